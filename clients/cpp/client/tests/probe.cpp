// A client that a test drives from outside: it reads a config, acts, and says what happened.
//
//   assay-probe CONFIG STEPS [until-version N] [pause-ms M]
//
// The controlled system is a counter: an episode ends by itself after ten steps, and is cut off
// after seven every second time; the reward is the number of the step. With `until-version` it goes
// on until a model of that version or a later one has acted 30 times. The last line of its output is
// JSON.
#include <assay/client.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: assay-probe CONFIG STEPS [until-version N] [pause-ms M]\n");
    return 2;
  }
  auto config = assay::ClientConfig::fromFile(argv[1]);
  if (!config) {
    std::fprintf(stderr, "%s\n", config.error().message.c_str());
    return 2;
  }
  long steps = std::atol(argv[2]);
  long untilVersion = 0;
  long pause = 0;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    (name == "until-version" ? untilVersion : pause) = std::atol(argv[i + 1]);
  }
  assay::ClientConfig given = std::move(config).value();
  given.onProblem = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  const std::size_t width = given.spec->observationSize();
  auto connected = assay::Client::connect(given);
  if (!connected) {
    std::fprintf(stderr, "%s\n", connected.error().message.c_str());
    return 2;
  }
  assay::Client& client = *connected.value();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::vector<float> seen(width, 0.0F);
  long wanted = untilVersion > 0 ? 30 : 0;
  long inEpisode = 0;
  long episode = 0;
  for (long i = 0;
       i < steps || (wanted > 0 && std::chrono::steady_clock::now() < deadline); ++i) {
    seen[0] = static_cast<float>(inEpisode);
    const assay::Decided decided = client.decide(seen);
    wanted -= decided.source == assay::Source::Model && decided.version >= untilVersion ? 1 : 0;
    client.reward(static_cast<double>(inEpisode));
    ++inEpisode;
    if (inEpisode == (episode % 2 == 0 ? 10 : 7)) {
      seen[0] = static_cast<float>(inEpisode);
      client.end(episode % 2 == 0, episode % 2 == 1, seen);
      inEpisode = 0;
      ++episode;
    }
    if (pause > 0 || i >= steps) {
      std::this_thread::sleep_for(std::chrono::milliseconds(pause > 0 ? pause : 1));
    }
  }
  const bool complete = client.close(60.0);
  const assay::Status status = client.status();
  std::printf(
      "{\"complete\": %s, \"decisions\": %llu, \"by_model\": %llu, \"by_constant\": %llu, "
      "\"recorded\": %llu, \"acknowledged\": %llu, \"refused\": %llu, \"dropped\": %llu, "
      "\"version\": %lld, \"sessions\": %llu, \"failures\": %llu, \"accepted_models\": %llu, "
      "\"rejected_models\": %llu}\n",
      complete ? "true" : "false", static_cast<unsigned long long>(status.decisions),
      static_cast<unsigned long long>(status.byModel),
      static_cast<unsigned long long>(status.byConstant),
      static_cast<unsigned long long>(status.recordedSteps),
      static_cast<unsigned long long>(status.acknowledgedSteps),
      static_cast<unsigned long long>(status.refusedSteps),
      static_cast<unsigned long long>(status.droppedSteps),
      static_cast<long long>(status.version), static_cast<unsigned long long>(status.sessions),
      static_cast<unsigned long long>(status.failures),
      static_cast<unsigned long long>(status.acceptedModels),
      static_cast<unsigned long long>(status.rejectedModels));
  if (!status.lastFailure.empty()) {
    std::fprintf(stderr, "last failure: %s\n", status.lastFailure.c_str());
  }
  return 0;
}

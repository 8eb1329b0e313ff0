// A queue learns to run itself.
//
//   queue [--address 127.0.0.1:50051] [--steps 80000] [--rate 2000] [--algorithm ppo]
//         [--models DIRECTORY] [--client NAME] [--policy NAME] [--wait SECONDS]
//
// First an operator's rule runs the queue, and is measured. Then the client does: for a while as an
// apprentice, which lets the rule act while the server (`assay serve`) learns to do the same, and
// from then on with the server's models, with the rule to fall back on. Without a server the rule
// goes on acting.
#include <assay/client.h>
#include <assay/policy.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "simulation.h"

namespace {

constexpr int kTrials = 50;
constexpr int kRows = 10;
constexpr long kMostApprentice = 4000;  // decisions of the rule that the policy learns from first

using Decide = std::function<int(const std::array<float, 3>&)>;

/// Return the mean cost of a slot over the same arrivals for everyone.
double meanCost(const Decide& decide) {
  double total = 0.0;
  for (int trial = 0; trial < kTrials; ++trial) {
    Simulation simulation(1000 + static_cast<std::uint64_t>(trial));
    for (int slot = 0; slot < Simulation::kSlots; ++slot) {
      total += simulation.run(decide(simulation.observe()));
    }
  }
  return total / (kTrials * Simulation::kSlots);
}

/// Return the mean cost of the newest model in a directory, at its best; nothing if there is none.
std::optional<double> meanCostOfModel(const std::string& directory) {
  std::filesystem::path newest;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    // Names begin with the learner's epoch and the version.
    if (file.path().extension() == ".safetensors" && file.path().filename() > newest.filename()) {
      newest = file.path();
    }
  }
  auto model = assay::Model::fromFile(newest.string());
  if (newest.empty() || !model) {
    return std::nullopt;
  }
  assay::Policy policy(model.value());
  return meanCost([&](const std::array<float, 3>& seen) {
    assay::Decision decision;
    return policy.act(seen, {}, nullptr, decision) == assay::ActStatus::Ok
               ? static_cast<int>(decision.choices[0])
               : machinesForJobs(seen.data());
  });
}

/// Give a server that is there some time to begin; one that is away is not waited for.
void waitForModel(const assay::Client& client, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < deadline) {
    const assay::Status status = client.status();
    if (status.version > 0 || (status.failures > 0 && !status.connected)) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

int fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options = {
      {"--address", "127.0.0.1:50051"}, {"--steps", "80000"}, {"--rate", "2000"},
      {"--algorithm", "ppo"},           {"--policy", "queue"}, {"--client", "queue-1"},
      {"--wait", "60"},
      {"--models", (std::filesystem::temp_directory_path() / "assay-queue").string()}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = options.find(argv[i]);
    if (option == options.end() || i + 1 == argc) {
      return fail(std::string("Unknown or incomplete option '") + argv[i] +
                  "'; see the first lines of main.cpp.");
    }
    option->second = argv[i + 1];
  }
  const long steps = std::atol(options["--steps"].c_str());
  const double rate = std::atof(options["--rate"].c_str());

  assay::SpecBuilder builder(options["--policy"], options["--algorithm"]);
  builder.observation(assay::Space::box({3}))
      .action(assay::Space::discrete(Simulation::kMachines + 1))
      .set("gamma", 0.98);  // a machine that is started pays off over some fifty slots
  if (options["--algorithm"] == "ppo") {
    builder.set("env_steps", static_cast<std::int64_t>(steps))
        .set("num_envs", 1)
        .set("horizon", 500)
        .set("minibatch_size", 125)
        .set("epochs", 6)
        .set("lr", 2e-3)
        .set("entropy_coef", 0.003)
        .set("gae_lambda", 0.95)
        .set("normalize_reward", true);
  }
  auto spec = builder.build();
  if (!spec) {
    return fail(spec.error().message);
  }
  assay::ClientConfig config;
  config.address = options["--address"];
  config.client = options["--client"];
  config.spec = spec.value();
  config.safeAction = assay::Action::choice(Simulation::kMachines);  // all on: dear, but safe
  config.heuristic = [](assay::Span<const float> seen, assay::Span<const std::uint8_t>) {
    return assay::Action::choice(machinesForJobs(seen.data()));
  };
  config.mode = assay::Mode::Apprentice;
  config.apprenticeSteps = static_cast<std::uint64_t>(std::clamp(steps / 10, 0L, kMostApprentice));
  config.models = options["--models"];
  config.batchSteps = 100;
  config.batchSeconds = 0.2;
  config.onProblem = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  auto connected = assay::Client::connect(config);
  if (!connected) {
    return fail(connected.error().message);
  }
  assay::Client& client = *connected.value();

  const double heuristic =
      meanCost([](const std::array<float, 3>& seen) { return machinesForJobs(seen.data()); });
  std::printf("heuristic: mean cost %.3f\n", heuristic);
  waitForModel(client, std::atof(options["--wait"].c_str()));
  std::printf("%10s %10s %10s %10s\n", "steps", "cost", "version", "by model");

  const auto begin = std::chrono::steady_clock::now();
  const long row = std::max(1L, steps / kRows);
  double cost = 0.0;
  std::uint64_t byModel = 0;
  Simulation simulation(7);
  for (long step = 1; step <= steps; ++step) {
    const int machines = static_cast<int>(client.act(simulation.observe()).choice());
    const double slot = simulation.run(machines);
    cost += slot;
    client.reward(-slot);
    if (step % Simulation::kSlots == 0) {
      // The queue itself never ends; it is cut into episodes, and goes on as it was.
      client.end(false, true, simulation.observe());
    }
    if (step % row == 0) {
      const assay::Status status = client.status();
      std::printf("%10ld %10.3f %10lld %9.0f%%\n", step, cost / static_cast<double>(row),
                  static_cast<long long>(status.version),
                  100.0 * static_cast<double>(status.byModel - byModel) / static_cast<double>(row));
      std::fflush(stdout);
      byModel = status.byModel;
      cost = 0.0;
    }
    if (rate > 0.0 && step % 20 == 0) {
      // A slot of a real system takes its time; here it is a fraction of a millisecond.
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(static_cast<double>(step) / rate)));
    }
  }
  client.close(rate > 0.0 ? 5.0 : 0.0);
  const assay::Status status = client.status();
  std::printf("steps acknowledged %llu, dropped %llu; models accepted %llu, rejected %llu\n",
              static_cast<unsigned long long>(status.acknowledgedSteps),
              static_cast<unsigned long long>(status.droppedSteps),
              static_cast<unsigned long long>(status.acceptedModels),
              static_cast<unsigned long long>(status.rejectedModels));
  if (status.acceptedModels == 0) {
    std::printf("No model came (%s): the heuristic acted.\n",
                status.lastFailure.empty() ? "the server has none yet" : status.lastFailure.c_str());
    return 0;
  }
  const std::string kept = config.models + "/" + options["--policy"];
  const auto learned = meanCostOfModel(kept);
  if (!learned) {
    return fail("Models came, but none could be kept in '" + kept + "'.");
  }
  std::printf("learned:   mean cost %.3f (%+.0f%% against the heuristic)\n", *learned,
              100.0 * (*learned / heuristic - 1.0));
  return 0;
}

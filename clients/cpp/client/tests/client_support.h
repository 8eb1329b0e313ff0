// What the tests of the client share: specs, configs, and models made by hand.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent.h"
#include "assay/client.h"
#include "assay/config.h"
#include "assay/sha256.h"
#include "assay/spec.h"
#include "loaded.h"
#include "outbox.h"
#include "support.h"

namespace assay::testing {

/// Wait for something that happens in another thread; a generous deadline, never a fixed pause.
inline bool eventually(const std::function<bool()>& condition, double seconds = 60.0) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A folder that is gone after the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "assay-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Three numbers in, one of three choices out.
inline PolicySpec choiceSpec(bool masked = false) {
  SpecBuilder builder("queue", "ppo");
  builder.observation(Space::box({3})).action(Space::discrete(3));
  return (masked ? builder.masked() : builder).build().value();
}

/// One number in, two numbers out.
inline PolicySpec numberSpec() {
  return SpecBuilder("knobs", "sac")
      .observation(Space::box({1}))
      .action(Space::box({2}, {-1.0, 0.0}, {1.0, 10.0}))
      .build()
      .value();
}

inline ClientConfig configFor(const PolicySpec& spec) {
  ClientConfig config;
  config.spec = spec;
  config.safeAction = spec.maskSize() > 0 ? Action::choice(1) : Action::values({0.0F, 1.0F});
  config.batchSteps = 4;
  config.bufferSteps = 64;
  config.batchSeconds = 1e6;
  config.clock = [] { return 0.0; };
  return config;
}

inline Json boxJson(const std::vector<std::size_t>& shape, const Json& low, const Json& high) {
  return {{"kind", "Box"}, {"shape", shape}, {"dtype", "float32"}, {"low", low}, {"high", high}};
}

/// Return a model for choiceSpec that wants one choice, whatever it sees.
inline std::string choiceModel(std::int64_t version, std::size_t wanted, bool recurrent = false,
                               bool masked = false) {
  Json description = describe({{"kind", "categorical"}, {"n", 3}}, 3);
  description["version"] = version;
  description["observation"] = boxJson({3}, nullptr, nullptr);
  description["action"] = {{"kind", "Discrete"}, {"n", 3}, {"start", 0}};
  if (masked) {
    description["observation"] = {
        {"kind", "Dict"},
        {"spaces",
         {{"action_mask", {{"kind", "MultiBinary"}, {"shape", {3}}}},
          {"obs", boxJson({3}, nullptr, nullptr)}}}};
    description["inputs"] = Json::array({{{"key", "obs"}, {"width", 3}}});
  }
  std::vector<float> bias(3, 0.0F);
  bias[wanted] = 50.0F;
  std::vector<NamedTensor> tensors = {{"w", {{3, 3}, std::vector<float>(9, 0.0F)}},
                                      {"b", {{3}, bias}}};
  if (recurrent) {
    const Json gates = {{"input", "i"}, {"bias", "g"}, {"hidden", "h"}};
    const Json memory = {{"kind", "gru"}, {"size", 3}, {"layers", Json::array({gates})}};
    description["layers"].insert(description["layers"].begin(), memory);
    tensors.push_back({"i", {{9, 3}, std::vector<float>(27, 0.1F)}});
    tensors.push_back({"g", {{9}, std::vector<float>(9, 0.0F)}});
    tensors.push_back({"h", {{9, 3}, std::vector<float>(27, 0.1F)}});
  }
  const Bytes bytes = makeFile(description, tensors);
  return {bytes.begin(), bytes.end()};
}

inline std::string shaOf(const std::string& bytes) {
  return sha256Hex(bytes.data(), bytes.size());
}

inline std::unique_ptr<LoadedModel> loaded(const std::string& bytes, const PolicySpec& spec,
                                           double freshAt = 0.0) {
  auto model = Model::fromBytes(bytes.data(), bytes.size());
  EXPECT_TRUE(model.ok()) << model.error().message;
  auto made = LoadedModel::make(model.value(), spec.parts(), freshAt);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

/// An agent with its outbox, without a network.
struct Bench {
  explicit Bench(ClientConfig given, std::unique_ptr<LoadedModel> lastGood = nullptr)
      : config(std::move(given)),
        outbox(config.spec->parts(), config.bufferSteps, config.batchSteps, config.overflow, 1),
        agent(config, outbox, mailbox, std::move(lastGood)) {}

  [[nodiscard]] Status status() const {
    Status status;
    agent.report(status);
    return status;
  }
  void deliver(const std::string& bytes, double freshAt = 0.0) {
    mailbox.deliver(loaded(bytes, *config.spec, freshAt));
  }

  ClientConfig config;
  ModelMailbox mailbox;
  Outbox outbox;
  Agent agent;
};

}  // namespace assay::testing

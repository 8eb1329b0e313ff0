// Specs and configs: what is read, and the one line that says what is wrong.
#include "assay/config.h"

#include <fstream>

#include "client_support.h"
#include "parsed_spec.h"

namespace assay {
namespace {

using testing::Json;

Json goodConfig() {
  return {{"address", "localhost:50051"},
          {"policy", "queue"},
          {"algorithm", "ppo"},
          {"observation", {{"kind", "box"}, {"shape", {3}}}},
          {"action", {{"kind", "discrete"}, {"n", 3}}},
          {"settings", {{"gamma", 0.99}}},
          {"safe_action", 1}};
}

std::string complaint(const Json& config) {
  auto read = ClientConfig::fromJson(config.dump());
  if (!read) {
    EXPECT_TRUE(read.error().code == ErrorCode::BadConfig);
    return read.error().message;
  }
  const auto problem = read.value().problem();
  return problem ? problem->message : "";
}

TEST(Config, ReadsEverything) {
  Json config = goodConfig();
  config.update({{"client", "node-7"}, {"mode", "act"}, {"apprentice_steps", 5},
                 {"explore", false}, {"seed", 9}, {"model_ttl", 60.5}, {"hold_steps", 2},
                 {"batch_steps", 32}, {"batch_seconds", 0.5}, {"buffer_steps", 1000},
                 {"overflow", "reservoir"}, {"block_seconds", 0}, {"models", "kept"},
                 {"token_file", "secret"}, {"masks", true}, {"keepalive_seconds", 5},
                 {"tls", {{"ca", "/etc/ca.pem"}, {"server_name", "trainer"}}}});
  const auto read = ClientConfig::fromJson(config.dump());
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ClientConfig& got = read.value();
  EXPECT_EQ(got.address, "localhost:50051");
  EXPECT_EQ(got.client, "node-7");
  EXPECT_EQ(got.spec->name(), "queue");
  EXPECT_TRUE(got.spec->masked());
  EXPECT_EQ(got.spec->observationSize(), 3U);
  EXPECT_EQ(got.spec->maskSize(), 3U);
  EXPECT_EQ(Json::parse(got.spec->json())["settings"]["gamma"], 0.99);
  EXPECT_EQ(got.safeAction->choice(), 1);
  EXPECT_FALSE(got.explore);
  EXPECT_EQ(got.seed, 9U);
  EXPECT_EQ(got.modelTtl, 60.5);
  EXPECT_EQ(got.holdSteps, 2U);
  EXPECT_EQ(got.batchSteps, 32U);
  EXPECT_EQ(got.overflow, Overflow::Reservoir);
  EXPECT_EQ(got.models, "kept");
  EXPECT_EQ(got.tls->ca, "/etc/ca.pem");
  EXPECT_EQ(got.tls->serverName, "trainer");
  EXPECT_FALSE(got.problem().has_value());
}

TEST(Config, PathsInAFileAreSeenFromTheFile) {
  const testing::TemporaryFolder folder;
  Json config = goodConfig();
  config["models"] = "kept";
  config["token_file"] = "/abs/token";
  const std::string path = folder.path() + "/client.json";
  std::ofstream(path) << config.dump();
  const auto read = ClientConfig::fromFile(path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().models, folder.path() + "/kept");
  EXPECT_EQ(read.value().tokenFile, "/abs/token");
  std::ofstream(path) << "{";
  EXPECT_NE(ClientConfig::fromFile(path).error().message.find(path), std::string::npos);
  EXPECT_FALSE(ClientConfig::fromFile(folder.path() + "/missing").ok());
  EXPECT_FALSE(ClientConfig::fromFile(folder.path()).ok());
}

TEST(Config, EachMistakeHasOneClearLine) {
  const std::vector<std::tuple<std::string, Json, std::string>> mistakes = {
      {"batch_step", 4, "Did you mean 'batch_steps'?"},
      {"batch_steps", 0, "batch_steps=0: expected a whole number of 1 or more."},
      {"batch_steps", "many", "batch_steps=\"many\""},
      {"batch_steps", 1000000, "expected 1 <= batch_steps <= buffer_steps"},
      {"buffer_steps", 1e30, "buffer_steps=1e+30"},
      {"mode", "fly", "mode=\"fly\": expected one of act, shadow, apprentice."},
      {"mode", "shadow", "need a heuristic"},
      {"overflow", "burst", "expected one of block, drop_oldest, reservoir."},
      {"explore", 1, "explore=1: expected true or false."},
      {"seed", -1, "seed=-1"},
      {"model_ttl", 0, "model_ttl=0: expected a number above 0."},
      {"max_change", 0.5, "use hold_steps for choices"},
      {"safe_action", 3, "safe_action is not in the action space"},
      {"safe_action", {1, 2}, "safe_action is not in the action space"},
      {"safe_action", "wait", "safe_action=\"wait\": expected whole numbers."},
      {"safe_action", nullptr, "safe_action is missing"},
      {"address", "localhost", "expected host:port"},
      {"address", "localhost:99999", "expected host:port"},
      {"address", "example.com:50051", "plaintext does not leave it"},
      {"client", "two words", "client='two words'"},
      {"token", "with space", "expected one plain word"},
      {"tls", {{"certificate", "c.pem"}}, "tls.certificate and tls.key go together"},
      {"tls", {{"caa", "c.pem"}}, "Did you mean 'ca'?"},
      {"tls", 3, "tls is 3; expected an object."},
      {"policy", "two words", "\"two words\" is not a name"},
      {"policy", nullptr, "lacks 'policy'"},
      {"observation", {{"kind", "ball"}}, "kind is \"ball\""},
      {"observation", {{"kind", "box"}, {"shape", {0}}}, "0 is not a size"},
      {"observation", {{"kind", "box"}, {"shape", {1 << 20, 1 << 20}}}, "more than 4 MiB"},
      {"observation", {{"kind", "box"}, {"shape", {3}}, {"dtype", "float64"}}, "sends float32"},
      {"observation", {{"kind", "box"}, {"shape", {2}}, {"low", {1, 2, 3}}}, "low has 3 numbers"},
      {"action", {{"kind", "discrete"}, {"n", 3}, {"start", 1}}, "start is 1; expected 0"},
      {"action", {{"kind", "dict"}, {"spaces", Json::object()}}, "kind is \"dict\""},
      {"bounds", {{"low", 0}}, "limits of a box"},
      {"settings", 5, "settings: they are 5"},
      {"spec", {{"name", "other"}}, "The config has a spec, and keys that belong into it"},
  };
  EXPECT_EQ(complaint(goodConfig()), "");
  for (const auto& [key, value, expected] : mistakes) {
    Json config = goodConfig();
    config[key] = value;
    const std::string message = complaint(config);
    EXPECT_NE(message.find(expected), std::string::npos) << key << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  EXPECT_NE(complaint(Json::array()), "");
  EXPECT_FALSE(ClientConfig::fromJson("{\"seed\": 1, \"seed\": 2}").ok());
  EXPECT_FALSE(ClientConfig::fromJson("").ok());
}

TEST(Config, AWholeSpecMayStandInsteadOfItsParts) {
  Json config = {{"safe_action", 0}, {"spec", Json::parse(testing::choiceSpec().json())}};
  EXPECT_EQ(complaint(config), "");
  config["spec"] = testing::choiceSpec().json();
  EXPECT_EQ(complaint(config), "");
}

TEST(Config, ConnectGivesTheProblemBack) {
  ClientConfig config;
  EXPECT_EQ(Client::connect(config).error().code, ErrorCode::BadConfig);
  config = testing::configFor(testing::choiceSpec());
  config.tls = TlsConfig{"/no/such/ca.pem", "", "", ""};
  EXPECT_NE(Client::connect(config).error().message.find("/no/such/ca.pem"), std::string::npos);
  config.tls.reset();
  config.tokenFile = "/no/such/token";
  EXPECT_NE(Client::connect(config).error().message.find("/no/such/token"), std::string::npos);
}

TEST(Config, SafeNumbersLieInTheTighterBounds) {
  auto spec = SpecBuilder("knob", "sac")
                  .observation(Space::box({1}))
                  .action(Space::box({1}, -1.0, 1.0))
                  .bounds(0.0, 0.5)
                  .build();
  ClientConfig config;
  config.spec = spec.value();
  config.safeAction = Action::value(0.75F);
  EXPECT_TRUE(config.problem().has_value());
  config.safeAction = Action::value(0.25F);
  EXPECT_FALSE(config.problem().has_value());
}

TEST(Spec, TheBuilderWritesWhatTheServerReads) {
  const auto spec = SpecBuilder("jobs", "dqn")
                        .observation(Space::dict({{"load", Space::box({2}, 0.0, 1.0)},
                                                  {"kind", Space::discrete(4)}}))
                        .action(Space::multiDiscrete({2, 3}))
                        .masked()
                        .group("rack")
                        .set("gamma", 0.5)
                        .set("env_steps", 1000)
                        .set("normalize_obs", true)
                        .set("preset", "x")
                        .setJson("hidden", "[8, 8]")
                        .build();
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  const Json json = Json::parse(spec.value().json());
  EXPECT_EQ(json["settings"], Json::parse(R"({"gamma": 0.5, "env_steps": 1000,
      "normalize_obs": true, "preset": "x", "hidden": [8, 8]})"));
  EXPECT_EQ(json["observation"]["spaces"]["action_mask"]["shape"], Json::array({5}));
  EXPECT_EQ(json["group"], "rack");
  EXPECT_EQ(spec.value().observationSize(), 3U);
  EXPECT_EQ(spec.value().actionSize(), 2U);
  EXPECT_EQ(spec.value().maskSize(), 5U);
  // In the order of the names, as the wire has them.
  EXPECT_EQ(spec.value().parts().leaves[1].key, "kind");
  EXPECT_FALSE(SpecBuilder("a b", "ppo").build().ok());
  EXPECT_FALSE(SpecBuilder("a", "ppo").observation(Space::box({1})).build().ok());
  EXPECT_FALSE(SpecBuilder("a", "ppo")
                   .observation(Space::box({1}))
                   .action(Space::discrete(2))
                   .setJson("x", "{")
                   .build()
                   .ok());
  EXPECT_FALSE(SpecBuilder("a", "ppo")
                   .observation(Space::box({1}))
                   .action(Space::box({1}))
                   .masked()
                   .build()
                   .ok());
  EXPECT_FALSE(SpecBuilder("a", "ppo")
                   .observation(Space::box({1}))
                   .action(Space::box({kMaxAction + 1}))
                   .build()
                   .ok());
}

TEST(Spec, ModelsOfOtherSpacesAreRefused) {
  const auto fits = [](const PolicySpec& spec, const std::string& bytes) {
    const auto model = Model::fromBytes(bytes.data(), bytes.size());
    return LoadedModel::make(model.value(), spec.parts(), 0.0).ok();
  };
  EXPECT_TRUE(fits(testing::choiceSpec(), testing::choiceModel(1, 0)));
  EXPECT_TRUE(fits(testing::choiceSpec(true), testing::choiceModel(1, 0, false, true)));
  EXPECT_FALSE(fits(testing::choiceSpec(true), testing::choiceModel(1, 0)));
  EXPECT_FALSE(fits(testing::choiceSpec(), testing::choiceModel(1, 0, false, true)));
  EXPECT_FALSE(fits(testing::numberSpec(), testing::choiceModel(1, 0)));
  const auto bounded = SpecBuilder("queue", "ppo")
                           .observation(Space::box({3}, -1.0, 1.0))
                           .action(Space::discrete(3))
                           .build();
  EXPECT_FALSE(fits(bounded.value(), testing::choiceModel(1, 0)));
}

TEST(Spec, EveryGoldenModelFitsTheSpecOfItsSpaces) {
  // Numbers of entries stand in another order in some of these: the model must find its own.
  for (const auto& entry : testing::goldenModels()) {
    const std::string file = entry["file"];
    const auto model = Model::fromFile(testing::goldenPath(file));
    const Json seen = Json::parse(model.value()->observationSpace());
    const Json done = Json::parse(model.value()->actionSpace());
    const std::function<Json(const Json&)> toSpec = [&](const Json& space) -> Json {
      if (space["kind"] == "Dict") {
        Json parts = Json::object();
        for (const auto& [key, part] : space["spaces"].items()) {
          parts[key] = toSpec(part);
        }
        return {{"kind", "dict"}, {"spaces", parts}};
      }
      if (space["kind"] == "Box") {
        return {{"kind", "box"}, {"shape", space["shape"]}, {"dtype", space["dtype"]},
                {"low", space["low"]}, {"high", space["high"]}};
      }
      if (space["kind"] == "Discrete") {
        return {{"kind", "discrete"}, {"n", space["n"]}};
      }
      if (space["kind"] == "MultiDiscrete") {
        return {{"kind", "multi_discrete"}, {"nvec", space["nvec"]}};
      }
      return {{"kind", "multi_binary"}, {"shape", space["shape"]}};
    };
    const Json text = {{"name", "golden"}, {"algorithm", "ppo"}, {"observation", toSpec(seen)},
                       {"action", toSpec(done)}};
    const auto spec = PolicySpec::fromJson(text.dump());
    ASSERT_TRUE(spec.ok()) << file << ": " << spec.error().message;
    auto loaded = LoadedModel::make(model.value(), spec.value().parts(), 0.0);
    ASSERT_TRUE(loaded.ok()) << file << ": " << loaded.error().message;
    Policy policy(model.value());
    Decision expected;
    Decision found;
    const auto numbers = entry["steps"][0]["obs"].get<std::vector<float>>();
    ASSERT_EQ(policy.act(numbers, {}, nullptr, expected), ActStatus::Ok);
    ASSERT_EQ(loaded.value()->act(numbers, {}, nullptr, found), ActStatus::Ok);
    EXPECT_TRUE(std::equal(expected.choices.begin(), expected.choices.end(),
                           found.choices.begin()));
    EXPECT_TRUE(std::equal(expected.values.begin(), expected.values.end(), found.values.begin()));
  }
}

TEST(Spec, AModelFindsItsEntriesWhateverTheirOrder) {
  const auto spec = SpecBuilder("p", "ppo")
                        .observation(Space::dict({{"a", Space::box({1})}, {"b", Space::box({2})}}))
                        .action(Space::discrete(3))
                        .build()
                        .value();
  Json description = testing::describe({{"kind", "categorical"}, {"n", 3}}, 3);
  description["observation"] = {{"kind", "Dict"},
                                {"spaces",
                                 {{"a", testing::boxJson({1}, nullptr, nullptr)},
                                  {"b", testing::boxJson({2}, nullptr, nullptr)}}}};
  description["action"] = {{"kind", "Discrete"}, {"n", 3}, {"start", 0}};
  description["inputs"] =
      Json::array({{{"key", "b"}, {"width", 2}}, {{"key", "a"}, {"width", 1}}});
  const auto bytes = testing::makeFile(description, testing::unitTensors(3));
  const auto model = Model::fromBytes(bytes.data(), bytes.size());
  ASSERT_TRUE(model.ok()) << model.error().message;
  auto loaded = LoadedModel::make(model.value(), spec.parts(), 0.0);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  Decision decision;
  // The logits are (b0, b1, a): the largest number stands first in the observation.
  const std::vector<float> observation = {9.0F, 1.0F, 2.0F};
  ASSERT_EQ(loaded.value()->act(observation, {}, nullptr, decision), ActStatus::Ok);
  EXPECT_EQ(decision.choices[0], 2);
}

}  // namespace
}  // namespace assay

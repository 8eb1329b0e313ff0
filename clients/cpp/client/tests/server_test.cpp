// The whole client against a server that misbehaves.
#include <algorithm>
#include <fstream>
#include <numeric>

#include "client_support.h"
#include "fake_server.h"

namespace assay {
namespace {

using testing::choiceModel;
using testing::eventually;
using testing::FakeServer;

ClientConfig fastConfig(const std::string& address) {
  ClientConfig config = testing::configFor(testing::choiceSpec());
  config.address = address;
  config.client = "tester";
  config.clock = nullptr;
  config.bufferSteps = 10000;
  config.timing.firstPause = 0.01;
  config.timing.longestPause = 0.1;
  config.timing.refusedPause = 0.05;
  config.timing.fencedPause = 0.05;
  config.timing.longestFenced = 0.1;
  config.timing.pollSeconds = 0.002;
  config.timing.callSeconds = 20.0;
  return config;
}

std::unique_ptr<Client> connectTo(const ClientConfig& config) {
  auto client = Client::connect(config);
  EXPECT_TRUE(client.ok()) << client.error().message;
  return std::move(client).value();
}

/// Act for some steps of episodes of ten.
void play(Client& client, int steps) {
  for (int i = 0; i < steps; ++i) {
    const std::array<float, 3> seen = {static_cast<float>(i % 10), 0.0F, 0.0F};
    const Action action = client.act(seen);
    EXPECT_EQ(action.size(), 1U);
    client.reward(1.0);
    if (i % 10 == 9) {
      client.end(true);
    }
  }
}

/// The events 1 ... n, each once, in order.
std::vector<std::uint64_t> upTo(std::uint64_t n) {
  std::vector<std::uint64_t> events(n);
  std::iota(events.begin(), events.end(), 1);
  return events;
}

TEST(Server, EverythingArrivesOnce) {
  FakeServer server;
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 200);
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(server.events(), upTo(200));
  EXPECT_EQ(client->status().acknowledgedSteps, 200U);
  EXPECT_EQ(client->status().heldSteps, 0U);
  EXPECT_EQ(server.lastClient(), "tester");
  EXPECT_EQ(server.registered(), testing::choiceSpec().json());
  play(*client, 5);  // acting goes on after the connection has ended
}

TEST(Server, AServerThatIsNotThereStopsNobody) {
  ClientConfig config = fastConfig("127.0.0.1:9");
  config.bufferSteps = 100;
  auto client = connectTo(config);
  play(*client, 1000);
  EXPECT_EQ(client->status().byConstant, 1000U);
  EXPECT_LE(client->status().heldSteps, 100U);
  EXPECT_TRUE(eventually([&] { return client->status().failures > 1; }));
  EXPECT_FALSE(client->status().lastFailure.empty());
  EXPECT_FALSE(client->close(0.05));
}

TEST(Server, WhatWasRecordedBeforeTheServerCameArrives) {
  int port = 0;
  { port = FakeServer().port(); }
  auto client = connectTo(fastConfig("127.0.0.1:" + std::to_string(port)));
  play(*client, 100);
  FakeServer server(nullptr, port);
  EXPECT_TRUE(eventually([&] { return server.events() == upTo(100); }));
}

TEST(Server, AModelIsSwappedInKeptAndFoundAgain) {
  const testing::TemporaryFolder folder;
  FakeServer server;
  ClientConfig config = fastConfig(server.address());
  config.models = folder.path() + "/models";
  const std::vector<float> seen = {0.0F, 0.0F, 0.0F};
  {
    auto client = connectTo(config);
    EXPECT_EQ(client->decide(seen).source, Source::Constant);
    for (int version = 1; version <= 4; ++version) {
      server.publish(choiceModel(version, static_cast<std::size_t>(version) % 3));
      EXPECT_TRUE(eventually([&] { return client->decide(seen).version == version; }));
      EXPECT_EQ(client->act(seen).choice(), version % 3);
    }
    EXPECT_EQ(client->status().version, 4);
    EXPECT_EQ(client->status().acceptedModels, 4U);
  }
  std::size_t files = 0;
  const std::string kept = config.models + "/" + config.spec->name();
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(kept)) {
    ++files;
  }
  EXPECT_EQ(files, 2U);
  server.stop();
  auto client = connectTo(config);
  const Decided decided = client->decide(seen);
  EXPECT_EQ(decided.source, Source::LastGood);
  EXPECT_EQ(decided.version, 4);
}

TEST(Server, BadModelsAreRefusedAndTheOldOneActs) {
  FakeServer server;
  auto client = connectTo(fastConfig(server.address()));
  const std::vector<float> seen = {0.0F, 0.0F, 0.0F};
  server.publish(choiceModel(1, 2));
  ASSERT_TRUE(eventually([&] { return client->decide(seen).version == 1; }));
  std::string spoiled = choiceModel(2, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(spoiled.data() + spoiled.size() - sizeof nan, &nan, sizeof nan);
  server.publish(spoiled);
  EXPECT_TRUE(eventually([&] { return client->status().rejectedModels == 1; }));
  server.publish(choiceModel(3, 1, false, true));  // of another observation space
  EXPECT_TRUE(eventually([&] { return client->status().rejectedModels == 2; }));
  EXPECT_NE(client->status().lastRejection.find("observation space"), std::string::npos);
  server.faults.lieAboutHash = true;
  server.publish(choiceModel(4, 1));
  EXPECT_TRUE(eventually([&] { return client->status().rejectedModels == 3; }));
  EXPECT_NE(client->status().lastRejection.find("SHA-256"), std::string::npos);
  EXPECT_EQ(client->decide(seen).version, 1);
  server.faults.lieAboutHash = false;
  server.faults.cutModel = true;
  server.publish(choiceModel(5, 1));
  EXPECT_TRUE(eventually([&] { return client->status().rejectedModels > 3; }));
  EXPECT_EQ(client->decide(seen).version, 1);
  server.faults.cutModel = false;  // what broke on the way is fetched again
  EXPECT_TRUE(eventually([&] { return client->decide(seen).version == 5; }));
}

TEST(Server, ARefusedModelIsNotFetchedAgainAndAgain) {
  FakeServer server;
  auto client = connectTo(fastConfig(server.address()));
  const std::string alien = choiceModel(1, 1, false, true);
  for (int i = 0; i < 5; ++i) {
    server.publish(alien);  // announced again, as a sign of life
  }
  ASSERT_TRUE(eventually([&] { return client->status().rejectedModels == 1; }));
  server.publish(alien);
  server.publish(choiceModel(2, 1));
  ASSERT_TRUE(eventually([&] { return client->status().version == 2; }));
  EXPECT_EQ(server.fetches(), 2);
}

TEST(Server, CutStreamsLoseNothingAndRepeatNothing) {
  for (const bool beforeCommit : {false, true}) {
    FakeServer server;
    server.faults.cutAfter = 3;
    server.faults.cutBeforeCommit = beforeCommit;
    auto client = connectTo(fastConfig(server.address()));
    play(*client, 200);
    client->flush();
    EXPECT_TRUE(eventually([&] { return server.events().size() >= 200; }))
        << server.events().size();
    EXPECT_TRUE(client->close(60.0));
    EXPECT_EQ(server.events(), upTo(200));
    EXPECT_GT(client->status().sessions, 5U);
    EXPECT_EQ(client->status().acknowledgedSteps, 200U);
  }
}

TEST(Server, WhatWasCommittedWithoutAnAnswerIsNotSentTwice) {
  FakeServer server;
  server.faults.silent = true;
  ClientConfig config = fastConfig(server.address());
  config.timing.stallSeconds = 0.2;
  auto client = connectTo(config);
  play(*client, 40);
  ASSERT_TRUE(eventually([&] { return server.opened() >= 3; }));
  server.faults.silent = false;
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(server.events(), upTo(40));
}

TEST(Server, AServerThatRestartsIsFoundAgain) {
  FakeServer server;
  const int port = server.port();
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 50);
  ASSERT_TRUE(eventually([&] { return server.events().size() >= 40; }));
  server.stop();
  EXPECT_TRUE(eventually([&] { return !client->status().connected; }));
  play(*client, 50);
  server.start(port);
  client->flush();
  EXPECT_TRUE(eventually([&] { return server.events().size() == 100; }));
  EXPECT_EQ(server.events(), upTo(100));
  server.publish(choiceModel(9, 2));  // and models come again as well
  const std::vector<float> seen = {0.0F, 0.0F, 0.0F};
  EXPECT_TRUE(eventually([&] { return client->decide(seen).version == 9; }));
}

TEST(Server, DuplicatedAndDelayedAnswersDoNoHarm) {
  FakeServer server;
  server.faults.duplicateAcks = true;
  server.faults.delayMilliseconds = 2;
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 200);
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(server.events(), upTo(200));
  EXPECT_EQ(client->status().acknowledgedSteps, 200U);
}

TEST(Server, CreditsAreHonoured) {
  FakeServer server;
  server.faults.creditBatches = 0;
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 100);
  ASSERT_TRUE(eventually([&] { return client->status().connected; }));
  EXPECT_TRUE(server.stored().empty());
  EXPECT_FALSE(client->close(0.05));
  server.faults.creditBatches = 2;
  auto other = connectTo(fastConfig(server.address()));
  play(*other, 100);
  EXPECT_TRUE(other->close(60.0));
  EXPECT_LE(server.mostUnderWay(), 2U);
}

TEST(Server, ARefusedBatchIsDroppedCountedAndTold) {
  FakeServer server;
  server.faults.rejectOnce = v1::NOT_FINITE;
  ClientConfig config = fastConfig(server.address());
  std::mutex mutex;
  std::vector<std::string> told;
  config.onProblem = [&](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    told.push_back(line);
  };
  auto client = connectTo(config);
  play(*client, 100);
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(client->status().refusedSteps, 4U);
  EXPECT_EQ(client->status().acknowledgedSteps, 96U);
  auto expected = upTo(100);
  expected.erase(expected.begin(), expected.begin() + 4);
  EXPECT_EQ(server.events(), expected);
  EXPECT_EQ(client->status().lastRefusal, "Refused by the test.");
  const std::lock_guard<std::mutex> lock(mutex);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("Refused by the test."), std::string::npos);
}

TEST(Server, ThoseThatAreAlwaysRefusedAreNotSentForEver) {
  FakeServer server;
  server.faults.rejectAll = v1::WRONG_SHAPE;
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 100);
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(client->status().refusedSteps, 100U);
  EXPECT_EQ(client->status().heldSteps, 0U);
}

TEST(Server, AFullDiskIsWaitedFor) {
  FakeServer server;
  server.faults.rejectAll = v1::RESOURCE_EXHAUSTED;
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 20);
  client->flush();
  ASSERT_TRUE(eventually([&] { return server.mostUnderWay() > 0; }));
  server.faults.rejectAll = 0;
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(server.events(), upTo(20));
}

TEST(Server, ARefusalForAPersonIsToldOnceAndTheSystemGoesOn) {
  FakeServer server;
  server.faults.refuseRegister = v1::SPEC_CONFLICT;
  ClientConfig config = fastConfig(server.address());
  std::atomic<int> told{0};
  config.onProblem = [&](const std::string&) { ++told; };
  auto client = connectTo(config);
  ASSERT_TRUE(eventually([&] { return client->status().failures >= 3; }));
  EXPECT_EQ(told.load(), 1);
  EXPECT_EQ(client->status().lastFailure, "Refused by the test. Nothing.");
  play(*client, 20);
  server.faults.refuseRegister = 0;
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(server.events(), upTo(20));
}

TEST(Server, WhoMayNotRegisterMayStillSend) {
  FakeServer server;
  server.faults.refuseRegister = v1::PERMISSION_DENIED;
  auto client = connectTo(fastConfig(server.address()));
  play(*client, 20);
  EXPECT_TRUE(client->close(60.0));
  EXPECT_EQ(server.events().size(), 20U);
}

TEST(Server, TwoClientsWithOneIdentityDoNotFight) {
  FakeServer server;
  ClientConfig config = fastConfig(server.address());
  config.timing.fencedPause = 0.3;
  config.timing.longestFenced = 1000.0;
  auto first = connectTo(config);
  ASSERT_TRUE(eventually([&] { return first->status().connected; }));
  auto second = connectTo(config);
  ASSERT_TRUE(eventually([&] { return second->status().connected; }));
  play(*first, 8);
  ASSERT_TRUE(eventually([&] { return first->status().failures > 0; }));
  EXPECT_NE(first->status().lastFailure.find("Refused by the test."), std::string::npos);
  EXPECT_EQ(first->status().heldSteps, 4U);  // and nothing is lost
}

TEST(Server, ActingDoesNotWaitForAServerThatHangs) {
  FakeServer server;
  server.faults.hang = true;
  ClientConfig config = fastConfig(server.address());
  config.bufferSteps = 1000;
  auto client = connectTo(config);
  play(*client, 5000);
  EXPECT_LE(client->status().heldSteps, 1000U);
  EXPECT_EQ(client->status().decisions, 5000U);
  server.faults.hang = false;
  EXPECT_TRUE(client->close(60.0));
}

TEST(Server, LateRewardsFollowTheirSteps) {
  FakeServer server;
  auto client = connectTo(fastConfig(server.address()));
  const std::vector<float> seen = {0.0F, 0.0F, 0.0F};
  const Decided decided = client->decide(seen);
  client->end(true);
  client->flush();
  ASSERT_TRUE(eventually([&] { return server.events().size() == 1; }));
  EXPECT_TRUE(client->reward(2.5, decided.event));
  EXPECT_TRUE(client->reward(1.0, decided.event));
  EXPECT_TRUE(client->close(60.0));
  float sum = 0.0F;
  for (const v1::Batch& batch : server.stored()) {
    for (int i = 0; i < batch.patch().reward_size(); ++i) {
      EXPECT_EQ(batch.patch().event_id(i), decided.event);
      sum += batch.patch().reward(i);
    }
  }
  EXPECT_EQ(sum, 3.5F);
}

TEST(Server, LargeBatchesTravelInParts) {
  FakeServer server;
  ClientConfig config = fastConfig(server.address());
  config.spec = SpecBuilder("wide", "ppo")
                    .observation(Space::box({60000}))
                    .action(Space::discrete(3))
                    .build()
                    .value();
  config.batchSteps = 30;
  config.bufferSteps = 60;
  auto client = connectTo(config);
  const std::vector<float> seen(60000, 0.25F);
  for (int i = 0; i < 31; ++i) {
    EXPECT_EQ(client->act(seen).size(), 1U);
    client->reward(1.0);
  }
  EXPECT_TRUE(eventually([&] { return server.stored().size() == 1; }));
  const v1::Batch batch = server.stored()[0];
  EXPECT_EQ(batch.tensors().size(), batch.size());
  EXPECT_GT(batch.parts(), 1U);
}

TEST(Server, TheTokenGoesWithEveryCall) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/token";
  std::ofstream(path) << "assay_secret\n";
  FakeServer server;
  ClientConfig config = fastConfig(server.address());
  config.tokenFile = path;
  auto client = connectTo(config);
  ASSERT_TRUE(eventually([&] { return client->status().connected; }));
  EXPECT_EQ(server.lastAuthorization(), "Bearer assay_secret");
}

TEST(Server, ModelsRestWhenTheServerIsSilent) {
  FakeServer server;
  double now = 0.0;
  std::mutex mutex;
  ClientConfig config = fastConfig(server.address());
  config.modelTtl = 10.0;
  config.clock = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return now;
  };
  auto client = connectTo(config);
  server.publish(choiceModel(1, 2));
  const std::vector<float> seen = {0.0F, 0.0F, 0.0F};
  ASSERT_TRUE(eventually([&] { return client->decide(seen).source == Source::Model; }));
  server.stop();
  ASSERT_TRUE(eventually([&] { return !client->status().connected; }));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    now = 11.0;
  }
  EXPECT_EQ(client->decide(seen).source, Source::Constant);
}

}  // namespace
}  // namespace assay

// Recording and the fallback chain, worked out by hand.
#include "agent.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "client_support.h"
#include "encoding.h"

namespace assay {
namespace {

using testing::Bench;
using testing::choiceModel;
using testing::choiceSpec;
using testing::configFor;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct SeenStep {
  float observed;
  std::int64_t choice;
  double reward;
  std::uint8_t flags;
  std::int64_t version;
  bool terminated;
  bool truncated;
  float final;  // NaN: none
  std::uint64_t event;
};

struct SeenSegment {
  std::vector<SeenStep> steps;
  float bootstrap = kNan;
  std::uint64_t episode = 0;
  std::uint64_t startStep = 0;
};

/// Take what was offered and copy it out of its slots.
std::vector<SeenSegment> recorded(Outbox& outbox) {
  std::vector<SeenSegment> segments;
  const StepPool& pool = outbox.pool();
  for (Slot first = outbox.take(); first != kNoSlot; first = outbox.take()) {
    SeenSegment segment;
    const Step head = pool.step(first);
    segment.episode = head.episode;
    segment.startStep = head.startStep;
    segment.bootstrap = head.bootstrap == kNoSlot ? kNan : pool.observation(head.bootstrap)[0];
    Slot slot = first;
    for (std::uint32_t i = 0; i < head.count; ++i) {
      const Step& step = pool.step(slot);
      segment.steps.push_back({pool.observation(slot)[0], pool.choices(slot)[0], step.reward,
                               step.flags, step.version, step.terminated, step.truncated,
                               step.final == kNoSlot ? kNan : pool.observation(step.final)[0],
                               step.event});
      slot = step.next;
    }
    segments.push_back(segment);
    outbox.finish(first);
    outbox.settle(head.count, 0);
  }
  return segments;
}

std::vector<float> seeing(float number) { return {number, 0.0F, 0.0F}; }

TEST(Agent, RecordsStepsAndCutsBatches) {
  Bench bench(configFor(choiceSpec()));
  bench.deliver(choiceModel(7, 2));
  for (int i = 0; i < 6; ++i) {
    const Decided decided = bench.agent.decide(seeing(static_cast<float>(i)), {});
    EXPECT_EQ(decided.action.choice(), 2);
    EXPECT_EQ(decided.event, static_cast<std::uint64_t>(i) + 1);
    EXPECT_EQ(decided.source, Source::Model);
    EXPECT_EQ(decided.version, 7);
    EXPECT_EQ(decided.flags, 0);
    EXPECT_TRUE(bench.agent.reward(10.0 * i, std::nullopt));
    EXPECT_TRUE(bench.agent.reward(1.0, std::nullopt));
  }
  // Four steps make a batch; the observation of the fifth is what they bootstrap from.
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 1U);
  ASSERT_EQ(segments[0].steps.size(), 4U);
  EXPECT_EQ(segments[0].bootstrap, 4.0F);
  EXPECT_EQ(segments[0].episode, 0U);
  EXPECT_EQ(segments[0].startStep, 0U);
  for (int i = 0; i < 4; ++i) {
    const SeenStep& step = segments[0].steps[static_cast<std::size_t>(i)];
    EXPECT_EQ(step.observed, static_cast<float>(i));
    EXPECT_EQ(step.choice, 2);
    EXPECT_EQ(step.reward, 10.0 * i + 1.0);
    EXPECT_EQ(step.version, 7);
    EXPECT_EQ(step.event, static_cast<std::uint64_t>(i) + 1);
    EXPECT_FALSE(step.terminated || step.truncated);
    EXPECT_TRUE(std::isnan(step.final));
  }
  // The fifth is complete, the sixth is pending: a flush hands over the fifth.
  bench.agent.flush();
  const auto rest = recorded(bench.outbox);
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].steps.size(), 1U);
  EXPECT_EQ(rest[0].bootstrap, 5.0F);
  EXPECT_EQ(rest[0].startStep, 4U);
}

TEST(Agent, RecordsTheEndsOfEpisodes) {
  Bench bench(configFor(choiceSpec()));
  bench.agent.decide(seeing(0.0F), {});
  EXPECT_TRUE(bench.agent.end(true, false, {}));
  bench.agent.decide(seeing(1.0F), {});
  EXPECT_TRUE(bench.agent.end(false, true, seeing(9.0F)));
  bench.agent.decide(seeing(2.0F), {});
  EXPECT_TRUE(bench.agent.end(true, true, {}));
  bench.agent.decide(seeing(3.0F), {});
  EXPECT_TRUE(bench.agent.end(false, false, seeing(8.0F)));  // neither means: cut off
  EXPECT_FALSE(bench.agent.end(true, false, {}));            // there is no step
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 1U);
  const auto& steps = segments[0].steps;
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_TRUE(std::isnan(segments[0].bootstrap));
  EXPECT_TRUE(steps[0].terminated && !steps[0].truncated && std::isnan(steps[0].final));
  EXPECT_TRUE(!steps[1].terminated && steps[1].truncated && steps[1].final == 9.0F);
  EXPECT_TRUE(steps[2].terminated && steps[2].truncated && std::isnan(steps[2].final));
  EXPECT_TRUE(!steps[3].terminated && steps[3].truncated && steps[3].final == 8.0F);
  bench.agent.decide(seeing(4.0F), {});
  bench.agent.decide(seeing(5.0F), {});
  bench.agent.flush();
  const auto next = recorded(bench.outbox);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].episode, 4U);
  EXPECT_EQ(next[0].startStep, 0U);
}

TEST(Agent, ATruncatedEpisodeNeedsAFinalObservation) {
  Bench bench(configFor(choiceSpec()));
  bench.agent.decide(seeing(0.0F), {});
  bench.agent.decide(seeing(1.0F), {});
  EXPECT_FALSE(bench.agent.end(false, true, {}));
  EXPECT_EQ(bench.status().badEnds, 1U);
  EXPECT_EQ(bench.status().droppedSteps, 1U);
  // The step before it is kept: it bootstraps from the observation of the lost one.
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].steps.size(), 1U);
  EXPECT_EQ(segments[0].bootstrap, 1.0F);
}

TEST(Agent, ABadObservationCostsItsStepAndTheOneBefore) {
  Bench bench(configFor(choiceSpec()));
  bench.deliver(choiceModel(7, 2));
  bench.agent.decide(seeing(0.0F), {});
  bench.agent.decide(seeing(1.0F), {});
  EXPECT_EQ(bench.agent.decide(seeing(kNan), {}).action.choice(), 1);  // the safe one
  const std::vector<float> small = {1.0F};
  EXPECT_EQ(bench.agent.decide(small, {}).source, Source::Constant);
  bench.agent.decide(seeing(2.0F), {});
  bench.agent.decide(seeing(3.0F), {});
  bench.agent.flush();
  EXPECT_EQ(bench.status().badObservations, 2U);
  EXPECT_EQ(bench.status().droppedSteps, 3U);
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(segments[0].steps.size(), 1U);
  EXPECT_EQ(segments[0].bootstrap, 1.0F);
  EXPECT_EQ(segments[1].steps.size(), 1U);
  EXPECT_EQ(segments[1].steps[0].observed, 2.0F);
  // Of the steps 1 to 3 nothing is known, and 4 must not pass for what came after 0.
  EXPECT_EQ(segments[1].episode, 0U);
  EXPECT_EQ(segments[1].startStep, 4U);
  // An episode whose last step cannot be sent, and one that is whole.
  bench.agent.decide(seeing(kNan), {});
  EXPECT_FALSE(bench.agent.end(true, false, {}));
  bench.agent.decide(seeing(9.0F), {});
  EXPECT_TRUE(bench.agent.end(true, false, {}));
  EXPECT_FALSE(bench.agent.end(true, false, {}));
  bench.agent.flush();
  const auto later = recorded(bench.outbox);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].episode, 1U);
  EXPECT_EQ(later[0].startStep, 0U);
}

TEST(Agent, TimeClosesABatch) {
  double now = 0.0;
  ClientConfig config = configFor(choiceSpec());
  config.batchSeconds = 1.0;
  config.clock = [&now] { return now; };
  Bench bench(config);
  bench.agent.decide(seeing(0.0F), {});
  bench.agent.decide(seeing(1.0F), {});
  now = 1.5;
  bench.agent.decide(seeing(2.0F), {});
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].steps.size(), 2U);
  EXPECT_EQ(segments[0].bootstrap, 2.0F);
}

TEST(Agent, RewardsFindTheirSteps) {
  Bench bench(configFor(choiceSpec()));
  EXPECT_FALSE(bench.agent.reward(1.0, std::nullopt));  // before any decision
  for (int i = 0; i < 3; ++i) {
    bench.agent.decide(seeing(static_cast<float>(i)), {});
  }
  EXPECT_TRUE(bench.agent.reward(5.0, 1));
  EXPECT_TRUE(bench.agent.reward(7.0, 3));
  EXPECT_FALSE(bench.agent.reward(1.0, 4));  // has not been made
  EXPECT_FALSE(bench.agent.reward(1.0, 0));
  EXPECT_FALSE(bench.agent.reward(1e300, std::nullopt));
  EXPECT_FALSE(bench.agent.reward(1.1e12, std::nullopt));
  EXPECT_FALSE(bench.agent.reward(kMostValue, 3));  // with what it has already
  EXPECT_FALSE(bench.agent.reward(std::nan(""), std::nullopt));
  bench.agent.end(true, false, {});
  bench.agent.flush();
  EXPECT_TRUE(bench.agent.reward(0.25, 2));  // sent already: it follows
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].steps[0].reward, 5.0);
  EXPECT_EQ(segments[0].steps[1].reward, 0.0);
  EXPECT_EQ(segments[0].steps[2].reward, 7.0);
  std::vector<std::pair<std::uint64_t, float>> late;
  bench.outbox.takeRewards(late, 10);
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0], (std::pair<std::uint64_t, float>{2, 0.25F}));
  EXPECT_EQ(bench.status().lateRewards, 1U);
  EXPECT_EQ(bench.status().lostRewards, 7U);
}

TEST(Agent, AnswersAndDoesNotRecordWhatIsTooLargeToBeSent) {
  Bench bench(configFor(choiceSpec()));
  bench.deliver(choiceModel(1, 2), 0.0);
  bench.agent.decide(seeing(1.0F), {});
  bench.agent.decide(seeing(1e12F), {});
  EXPECT_EQ(bench.status().droppedSteps, 0U);
  for (const float number : {1.1e12F, -3e38F}) {
    const Decided decided = bench.agent.decide(seeing(number), {});
    EXPECT_EQ(decided.source, Source::Model) << number;
    EXPECT_EQ(decided.action.choice(), 2) << number;
  }
  // Those two, and the one before them that lacks its successor.
  EXPECT_EQ(bench.status().droppedSteps, 3U);
  bench.agent.decide(seeing(0.0F), {});
  EXPECT_FALSE(bench.agent.end(false, true, seeing(2e12F)));
  EXPECT_EQ(bench.status().droppedSteps, 4U);
  const auto segments = recorded(bench.outbox);
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].steps.size(), 1U);
  EXPECT_EQ(segments[0].bootstrap, 1e12F);
}

TEST(Agent, AsksTheWholeChain) {
  double now = 0.0;
  ClientConfig config = configFor(choiceSpec());
  config.modelTtl = 10.0;
  config.clock = [&now] { return now; };
  int asked = 0;
  config.heuristic = [&asked](Span<const float>, Span<const std::uint8_t>) {
    if (++asked > 1) {
      throw std::runtime_error("no idea");
    }
    return Action::choice(0);
  };
  Bench bench(config, testing::loaded(choiceModel(3, 1), choiceSpec(), 0.0));
  Decided decided = bench.agent.decide(seeing(0.0F), {});
  EXPECT_EQ(decided.source, Source::LastGood);
  EXPECT_EQ(decided.version, 3);
  EXPECT_EQ(decided.flags, kFlagFallback);
  bench.deliver(choiceModel(4, 2), 5.0);
  decided = bench.agent.decide(seeing(0.0F), {});
  EXPECT_EQ(decided.source, Source::Model);
  EXPECT_EQ(decided.action.choice(), 2);
  now = 16.0;  // eleven seconds without word of the server
  decided = bench.agent.decide(seeing(0.0F), {});
  EXPECT_EQ(decided.source, Source::Heuristic);
  EXPECT_EQ(decided.action.choice(), 0);
  EXPECT_EQ(decided.version, 0);
  EXPECT_EQ(decided.flags, kFlagFallback);
  decided = bench.agent.decide(seeing(0.0F), {});
  EXPECT_EQ(decided.source, Source::Constant);
  EXPECT_EQ(decided.action.choice(), 1);
  const Status status = bench.status();
  EXPECT_EQ(status.byLastGood, 1U);
  EXPECT_EQ(status.byModel, 1U);
  EXPECT_EQ(status.byHeuristic, 1U);
  EXPECT_EQ(status.byConstant, 1U);
  EXPECT_EQ(status.badHeuristics, 1U);
}

TEST(Agent, AHeuristicsNonsenseIsNotDone) {
  ClientConfig config = configFor(choiceSpec());
  config.heuristic = [](Span<const float>, Span<const std::uint8_t>) {
    return Action::values({0.5F});
  };
  Bench bench(config);
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).source, Source::Constant);
  config.heuristic = [](Span<const float>, Span<const std::uint8_t>) { return Action::choice(9); };
  Bench other(config);
  const Decided decided = other.agent.decide(seeing(0.0F), {});
  EXPECT_EQ(decided.action.choice(), 2);
  EXPECT_EQ(decided.flags, kFlagFallback | kFlagBounds);
}

TEST(Agent, ANewModelIsSwappedInAndTheOldOneIsTheLastGood) {
  Bench bench(configFor(choiceSpec()));
  bench.deliver(choiceModel(1, 0));
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).action.choice(), 0);
  bench.deliver(choiceModel(2, 1));
  bench.deliver(choiceModel(3, 2));  // before anyone acted with 2
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).version, 3);
  bench.deliver(choiceModel(4, 0));
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).version, 4);
}

TEST(Agent, AMemoryIsNotChangedInTheMiddleOfAnEpisode) {
  Bench bench(configFor(choiceSpec()));
  bench.deliver(choiceModel(1, 0, true));
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).version, 1);
  bench.deliver(choiceModel(2, 1, true));
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).version, 1);
  bench.deliver(choiceModel(3, 1, true));
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).version, 1);
  bench.agent.end(true, false, {});
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).version, 3);
}

TEST(Agent, MasksReachModelShieldAndRecord) {
  const PolicySpec spec = choiceSpec(true);
  Bench bench(configFor(spec));
  bench.deliver(choiceModel(1, 2, false, true));
  const std::vector<std::uint8_t> mask = {0, 1, 0};
  Decided decided = bench.agent.decide(seeing(0.0F), mask);
  EXPECT_EQ(decided.action.choice(), 1);
  EXPECT_EQ(decided.flags, 0);  // the policy itself saw the mask
  bench.agent.decide(seeing(1.0F), {});
  bench.agent.flush();
  const Slot slot = bench.outbox.take();
  ASSERT_NE(slot, kNoSlot);
  const std::uint8_t* kept = bench.outbox.pool().mask(slot);
  EXPECT_EQ(std::vector<std::uint8_t>(kept, kept + 3), mask);
  const std::vector<std::uint8_t> wrong = {1, 1};
  decided = bench.agent.decide(seeing(0.0F), wrong);
  EXPECT_EQ(decided.source, Source::Constant);
  EXPECT_EQ(bench.status().badMasks, 1U);
}

TEST(Agent, AMaskThatTheLearnerDoesNotSeeIsFlagged) {
  Bench bench(configFor(choiceSpec()));
  bench.deliver(choiceModel(1, 2));
  const std::vector<std::uint8_t> mask = {1, 1, 1};
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), mask).flags, kFlagMask);
}

TEST(Agent, ShadowModeRecommends) {
  ClientConfig config = configFor(choiceSpec());
  config.mode = Mode::Shadow;
  config.heuristic = [](Span<const float> observation, Span<const std::uint8_t>) {
    return Action::choice(observation[0] > 0.5F ? 2 : 0);
  };
  Bench bench(config);
  EXPECT_FALSE(bench.agent.recommendation().has_value());
  bench.deliver(choiceModel(1, 2));
  const Decided decided = bench.agent.decide(seeing(0.0F), {});
  EXPECT_EQ(decided.action.choice(), 0);
  EXPECT_EQ(decided.source, Source::Heuristic);
  EXPECT_EQ(decided.flags, kFlagHeuristic);
  ASSERT_TRUE(bench.agent.recommendation().has_value());
  EXPECT_EQ(bench.agent.recommendation()->choice(), 2);
  bench.agent.decide(seeing(1.0F), {});
  EXPECT_EQ(bench.status().agreement, 0.5);
}

TEST(Agent, AnApprenticeFollowsForAWhile) {
  ClientConfig config = configFor(choiceSpec());
  config.mode = Mode::Apprentice;
  config.apprenticeSteps = 2;
  config.heuristic = [](Span<const float>, Span<const std::uint8_t>) { return Action::choice(0); };
  Bench bench(config);
  bench.deliver(choiceModel(1, 2));
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).flags, kFlagHeuristic);
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).action.choice(), 0);
  EXPECT_EQ(bench.agent.decide(seeing(0.0F), {}).action.choice(), 2);
}

TEST(Agent, NumbersAreRecordedBeforeAndAfterTheShield) {
  const PolicySpec spec = testing::numberSpec();
  ClientConfig config = configFor(spec);
  config.heuristic = [](Span<const float>, Span<const std::uint8_t>) {
    return Action::values({5.0F, 3.0F});
  };
  Bench bench(config);
  const std::vector<float> seen = {0.0F};
  const Decided decided = bench.agent.decide(seen, {});
  EXPECT_EQ(decided.action.values()[0], 1.0F);
  EXPECT_EQ(decided.flags, kFlagFallback | kFlagBounds);
  bench.agent.decide(seen, {});
  bench.agent.flush();
  const Slot slot = bench.outbox.take();
  EXPECT_EQ(bench.outbox.pool().values(slot)[0], 1.0F);
  EXPECT_EQ(bench.outbox.pool().raw(slot)[0], 5.0F);
}

TEST(Agent, ABlockedBufferMakesRewardWaitNotAct) {
  ClientConfig config = configFor(choiceSpec());
  config.overflow = Overflow::Block;
  config.batchSteps = 2;
  config.bufferSteps = 4;
  config.blockSeconds = 0.02;
  Bench bench(config);
  for (int i = 0; i < 20; ++i) {
    bench.agent.decide(seeing(static_cast<float>(i)), {});
    bench.agent.reward(1.0, std::nullopt);
  }
  EXPECT_EQ(bench.status().heldSteps, 4U);
  EXPECT_EQ(bench.status().droppedSteps, 14U);  // 18 of 20 were closed in batches of two
  // Once there is room the wait is over at once.
  EXPECT_EQ(recorded(bench.outbox).size(), 2U);
  bench.agent.reward(1.0, std::nullopt);
  EXPECT_EQ(bench.status().heldSteps, 0U);
}

TEST(Agent, SeveralThreadsMayAct) {
  ClientConfig config = configFor(choiceSpec());
  config.bufferSteps = 100000;
  Bench bench(config);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&bench] {
      for (int i = 0; i < 2000; ++i) {
        const Decided decided = bench.agent.decide(seeing(1.0F), {});
        bench.agent.reward(1.0, decided.event);
      }
    });
  }
  for (int version = 1; version < 50; ++version) {
    bench.deliver(choiceModel(version, 2));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  bench.agent.flush();
  EXPECT_EQ(bench.status().decisions, 8000U);
  EXPECT_EQ(bench.status().lostRewards, 0U);
  std::size_t steps = 0;
  for (const SeenSegment& segment : recorded(bench.outbox)) {
    steps += segment.steps.size();
  }
  EXPECT_EQ(steps, 7999U);  // the last one is pending
}

}  // namespace
}  // namespace assay

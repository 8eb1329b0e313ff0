// Deciding, rewarding and ending allocate nothing, whoever answers and whatever is full.
#include "client_support.h"
#include "count_allocations.h"

namespace assay {
namespace {

/// Run a few hundred steps and count what they allocate.
long allocatedBy(testing::Bench& bench) {
  const std::vector<float> seen = {0.0F, 1.0F, 2.0F};
  const std::vector<std::uint8_t> mask = {1, 0, 1};
  const std::vector<float> bad = {1.0F};
  const long before = allocations.load();
  for (int i = 0; i < 400; ++i) {
    const Decided decided = bench.agent.decide(seen, i % 3 == 0 ? Span<const std::uint8_t>(mask)
                                                                : Span<const std::uint8_t>());
    bench.agent.reward(1.0, std::nullopt);
    bench.agent.reward(0.5, decided.event > 20 ? decided.event - 20 : decided.event);
    if (i % 7 == 0) {
      bench.agent.end(i % 2 == 0, true, seen);
    }
    if (i % 50 == 0) {
      bench.agent.decide(bad, {});
      bench.agent.flush();
    }
  }
  return allocations.load() - before;
}

TEST(ClientAllocation, TheCounterCounts) {
  const long before = allocations.load();
  const std::vector<float> some(10);
  void* block = std::malloc(some.size());
  std::free(block);
  EXPECT_GT(allocations.load(), before + 1);
}

TEST(ClientAllocation, ActingAllocatesNothing) {
  for (const Overflow overflow : {Overflow::DropOldest, Overflow::Reservoir, Overflow::Block}) {
    ClientConfig config = testing::configFor(testing::choiceSpec());
    config.overflow = overflow;
    config.blockSeconds = 0.0;
    config.heuristic = [](Span<const float>, Span<const std::uint8_t>) {
      return Action::choice(2);
    };
    testing::Bench bench(config);
    EXPECT_EQ(allocatedBy(bench), 0);  // by the heuristic
    bench.deliver(testing::choiceModel(1, 2));
    EXPECT_EQ(allocatedBy(bench), 0);  // by a model, and by its adoption
    bench.deliver(testing::choiceModel(2, 1));
    EXPECT_EQ(allocatedBy(bench), 0);  // by another, the first one being put aside
    EXPECT_GT(bench.status().droppedSteps, 0U);
  }
}

TEST(ClientAllocation, AShadowAllocatesNothing) {
  ClientConfig config = testing::configFor(testing::choiceSpec(true));
  config.mode = Mode::Shadow;
  config.heuristic = [](Span<const float>, Span<const std::uint8_t>) { return Action::choice(2); };
  testing::Bench bench(config);
  bench.deliver(testing::choiceModel(1, 2, false, true));
  EXPECT_EQ(allocatedBy(bench), 0);
}

}  // namespace
}  // namespace assay

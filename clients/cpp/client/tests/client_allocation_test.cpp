// Deciding, rewarding and ending allocate nothing, whoever answers and whatever is full.
#include <atomic>
#include <cstdlib>
#include <new>

#include "client_support.h"

namespace {

std::atomic<long> allocations{0};

}  // namespace

#if defined(__GLIBC__)
extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* malloc(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
#endif

// The compiler sees malloc and free behind new and delete, and takes them for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

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

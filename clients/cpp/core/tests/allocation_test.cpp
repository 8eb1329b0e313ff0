// Acting allocates nothing: neither by operator new nor by malloc, which Eigen would use.
#include <atomic>
#include <cstdlib>
#include <new>

#include "assay/policy.h"
#include "support.h"

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

TEST(Allocation, TheCounterCounts) {
  const long before = allocations.load();
  const std::vector<float> some(10);
  void* block = std::malloc(some.size());
  std::free(block);
  EXPECT_GT(allocations.load(), before + 1);
}

TEST(Allocation, ActingAllocatesNothing) {
  for (const auto& entry : testing::goldenModels()) {
    const std::string file = entry["file"];
    Policy policy(Model::fromFile(testing::goldenPath(file)).value());
    const auto observation = entry["steps"][0]["obs"].get<std::vector<float>>();
    const std::vector<std::uint8_t> mask(policy.model().maskSize(), 1);
    Random random(1);
    Decision decision;
    ActStatus status = ActStatus::Ok;
    const long before = allocations.load();
    for (int i = 0; i < 100; ++i) {
      policy.reset();
      const bool fine = policy.act(observation, mask, &random, decision) == ActStatus::Ok &&
                        policy.act(observation, {}, nullptr, decision) == ActStatus::Ok;
      status = fine ? status : ActStatus::BadOutput;
    }
    const long after = allocations.load();
    EXPECT_EQ(after, before) << file;
    EXPECT_EQ(status, ActStatus::Ok) << file;
  }
}

}  // namespace
}  // namespace assay

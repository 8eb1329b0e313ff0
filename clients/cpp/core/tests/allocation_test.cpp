// Acting allocates nothing: neither by operator new nor by malloc, which Eigen would use.
#include "assay/policy.h"
#include "count_allocations.h"
#include "support.h"

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

// The buffer between acting and sending: bounds, policies, counters, and two threads at once.
#include "outbox.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "client_support.h"

namespace assay {
namespace {

const PolicySpec& boxedSpec() {
  static const PolicySpec spec = testing::choiceSpec();
  return spec;
}

/// Offer a segment of so many steps whose first observation names it.
bool offerSegment(Outbox& outbox, std::uint32_t steps, float name, bool finals = false) {
  Slot first = kNoSlot;
  Slot last = kNoSlot;
  for (std::uint32_t i = 0; i < steps; ++i) {
    const Slot slot = outbox.allocate();
    if (slot == kNoSlot) {
      ADD_FAILURE() << "the pool is empty";
      return false;
    }
    outbox.pool().observation(slot)[0] = name;
    if (finals) {
      outbox.pool().step(slot).final = outbox.allocate();
    }
    if (first == kNoSlot) {
      first = slot;
    } else {
      outbox.pool().step(last).next = slot;
    }
    last = slot;
  }
  outbox.pool().step(first).count = steps;
  return outbox.offer(first);
}

/// Take everything and return the names.
std::vector<float> takeNames(Outbox& outbox) {
  std::vector<float> names;
  for (Slot slot = outbox.take(); slot != kNoSlot; slot = outbox.take()) {
    names.push_back(outbox.pool().observation(slot)[0]);
    const std::uint32_t steps = outbox.pool().step(slot).count;
    outbox.finish(slot);
    outbox.settle(steps, 0);
  }
  return names;
}

TEST(Outbox, IsFirstInFirstOut) {
  Outbox outbox(boxedSpec().parts(), 10, 4, Overflow::DropOldest, 1);
  EXPECT_TRUE(outbox.empty());
  EXPECT_TRUE(offerSegment(outbox, 4, 1.0F));
  EXPECT_TRUE(offerSegment(outbox, 2, 2.0F));
  EXPECT_EQ(outbox.heldSteps(), 6U);
  EXPECT_FALSE(outbox.hasRoom(5));
  EXPECT_EQ(takeNames(outbox), (std::vector<float>{1.0F, 2.0F}));
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.offeredSteps(), 6U);
  EXPECT_EQ(outbox.droppedSteps(), 0U);
}

TEST(Outbox, DropsTheOldest) {
  Outbox outbox(boxedSpec().parts(), 10, 4, Overflow::DropOldest, 1);
  for (float name = 1.0F; name <= 5.0F; ++name) {
    EXPECT_TRUE(offerSegment(outbox, 4, name));
  }
  EXPECT_EQ(outbox.droppedSteps(), 12U);
  EXPECT_EQ(takeNames(outbox), (std::vector<float>{4.0F, 5.0F}));
}

TEST(Outbox, WhatIsUnderWayIsNeverDropped) {
  Outbox outbox(boxedSpec().parts(), 8, 4, Overflow::DropOldest, 1);
  offerSegment(outbox, 4, 1.0F);
  offerSegment(outbox, 4, 2.0F);
  const Slot first = outbox.take();
  const Slot second = outbox.take();
  outbox.finish(first);
  outbox.finish(second);
  EXPECT_EQ(outbox.heldSteps(), 8U);  // taken, and not acknowledged
  EXPECT_FALSE(offerSegment(outbox, 4, 3.0F));
  EXPECT_EQ(outbox.droppedSteps(), 4U);
  outbox.settle(4, 0);
  EXPECT_TRUE(offerSegment(outbox, 4, 4.0F));
  EXPECT_EQ(takeNames(outbox), (std::vector<float>{4.0F}));
}

TEST(Outbox, BlockKeepsWhatIsThere) {
  Outbox outbox(boxedSpec().parts(), 8, 4, Overflow::Block, 1);
  offerSegment(outbox, 4, 1.0F);
  offerSegment(outbox, 4, 2.0F);
  EXPECT_FALSE(offerSegment(outbox, 1, 3.0F));
  EXPECT_EQ(outbox.droppedSteps(), 1U);
  EXPECT_EQ(takeNames(outbox), (std::vector<float>{1.0F, 2.0F}));
}

TEST(Outbox, TheReservoirIsAnEvenSample) {
  std::map<float, int> kept;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    Outbox outbox(boxedSpec().parts(), 4, 1, Overflow::Reservoir,
                  static_cast<std::uint64_t>(round) + 1);
    for (float name = 0.0F; name < 16.0F; ++name) {
      offerSegment(outbox, 1, name);
      EXPECT_LE(outbox.heldSteps(), 4U);
    }
    EXPECT_EQ(outbox.droppedSteps(), 12U);
    for (const float name : takeNames(outbox)) {
      ++kept[name];
    }
  }
  EXPECT_EQ(kept.size(), 16U);
  for (const auto& [name, count] : kept) {  // a quarter each; five standard deviations are 137
    EXPECT_NEAR(count, kRounds / 4, 140) << name;
  }
}

TEST(Outbox, TheReservoirHoldsItsBoundWithSegmentsOfAnyLength) {
  Outbox outbox(boxedSpec().parts(), 20, 6, Overflow::Reservoir, 3);
  Random random(5);
  for (int i = 0; i < 2000; ++i) {
    offerSegment(outbox, 1 + static_cast<std::uint32_t>(random.uniform() * 6.0),
                 static_cast<float>(i), true);
    ASSERT_LE(outbox.heldSteps(), 20U);
  }
  takeNames(outbox);
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, SlotsComeBack) {
  Outbox outbox(boxedSpec().parts(), 8, 4, Overflow::DropOldest, 1);
  const std::size_t slots = outbox.pool().slots();
  for (std::size_t i = 0; i < slots; ++i) {
    offerSegment(outbox, 4, 1.0F, true);
    if (i % 3 == 0) {
      takeNames(outbox);
    }
  }
  takeNames(outbox);
  std::set<Slot> all;
  for (Slot slot = outbox.allocate(); slot != kNoSlot; slot = outbox.allocate()) {
    EXPECT_TRUE(all.insert(slot).second);
  }
  EXPECT_EQ(all.size(), slots);
}

TEST(Outbox, ARewardDoesNotOvertakeItsStep) {
  Outbox outbox(boxedSpec().parts(), 8, 4, Overflow::DropOldest, 1);
  offerSegment(outbox, 2, 1.0F);
  EXPECT_TRUE(outbox.offerReward(1, 0.5F));
  std::vector<std::pair<std::uint64_t, float>> rewards;
  outbox.takeRewards(rewards, 10);
  EXPECT_TRUE(rewards.empty());
  EXPECT_FALSE(outbox.empty());
  outbox.finish(outbox.take());
  outbox.settle(2, 0);
  outbox.takeRewards(rewards, 10);
  ASSERT_EQ(rewards.size(), 1U);
  EXPECT_EQ(rewards[0], (std::pair<std::uint64_t, float>{1, 0.5F}));
  EXPECT_FALSE(outbox.empty());
  outbox.settle(0, 1);
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, RewardsAreBounded) {
  Outbox outbox(boxedSpec().parts(), 7, 4, Overflow::DropOldest, 1);
  int kept = 0;
  while (outbox.offerReward(1, 0.0F)) {
    ++kept;
  }
  EXPECT_EQ(kept, 8);
}

/// Offer in one thread and take in another: every step is settled or dropped, none twice.
void hammer(Overflow overflow) {
  Outbox outbox(boxedSpec().parts(), 64, 4, overflow, 9);
  constexpr int kSegments = 30000;
  std::atomic<bool> done{false};
  std::vector<int> seen(kSegments, 0);
  std::uint64_t taken = 0;
  std::thread sender([&] {
    for (;;) {
      const bool last = done.load();
      const Slot slot = outbox.take();
      if (slot == kNoSlot) {
        if (last) {
          return;
        }
        std::this_thread::yield();
        continue;
      }
      ++seen[static_cast<std::size_t>(outbox.pool().observation(slot)[0])];
      const std::uint32_t steps = outbox.pool().step(slot).count;
      taken += steps;
      outbox.finish(slot);
      outbox.settle(steps, 0);
    }
  });
  for (int i = 0; i < kSegments; ++i) {
    offerSegment(outbox, 1 + static_cast<std::uint32_t>(i) % 4, static_cast<float>(i), true);
  }
  done.store(true);
  sender.join();
  EXPECT_EQ(*std::max_element(seen.begin(), seen.end()), 1);
  EXPECT_EQ(outbox.offeredSteps(), taken + outbox.droppedSteps());
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, TwoThreadsDropOldest) { hammer(Overflow::DropOldest); }
TEST(Outbox, TwoThreadsReservoir) { hammer(Overflow::Reservoir); }
TEST(Outbox, TwoThreadsBlock) { hammer(Overflow::Block); }

}  // namespace
}  // namespace assay

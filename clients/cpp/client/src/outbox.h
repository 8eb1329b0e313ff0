// What waits to be sent: bounded, counted, and without a lock between acting and sending.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "assay/config.h"
#include "assay/random.h"
#include "steps.h"

namespace assay {

/// A queue of names of slots. One side pushes, both sides pop; nobody waits.
class SlotQueue {
 public:
  static constexpr Slot kEmpty = kNoSlot;
  static constexpr Slot kGone = kNoSlot - 1;  // was dropped where it stood

  explicit SlotQueue(std::size_t capacity);

  /// Append; false where it is full. For the pushing side.
  bool push(Slot slot) noexcept;
  /// Take the oldest, or kNoSlot. For both sides.
  Slot pop() noexcept;
  /// Exchange what stands at a place for something else; kNoSlot where nothing stands there any
  /// more. For the pushing side.
  Slot replace(std::uint64_t place, Slot slot) noexcept;

  [[nodiscard]] std::uint64_t head() const noexcept {
    return head_.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint64_t tail() const noexcept {
    return tail_.load(std::memory_order_acquire);
  }

 private:
  std::size_t mask_;
  std::unique_ptr<std::atomic<Slot>[]> cells_;
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

/// Segments and late rewards that wait for the transport.
///
/// The acting side offers (the agent's lock serialises its calls), the sending side takes. They
/// share atomics alone: whatever the network does, acting does not wait for it. Slots travel back
/// the same way.
class Outbox {
 public:
  /// @param spec Of the policy.
  /// @param capacity Most steps held, those under way included.
  /// @param batchSteps Most steps of a segment.
  Outbox(const ParsedSpec& spec, std::size_t capacity, std::size_t batchSteps, Overflow overflow,
         std::uint64_t seed);

  [[nodiscard]] StepPool& pool() noexcept { return pool_; }
  [[nodiscard]] const StepPool& pool() const noexcept { return pool_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

  // The acting side.

  /// Return a free slot, begun, or kNoSlot.
  Slot allocate() noexcept;
  /// Give one slot back.
  void release(Slot slot) noexcept;
  /// Take a segment in, making room as the policy says; return whether it was kept.
  bool offer(Slot segment) noexcept;
  /// Take a late reward in; false where there is no room.
  bool offerReward(std::uint64_t event, float reward) noexcept;
  [[nodiscard]] bool hasRoom(std::size_t steps) const noexcept {
    return heldSteps() + steps <= capacity_;
  }

  // The sending side.

  /// Return the next segment, or kNoSlot.
  Slot take() noexcept { return queue_.pop(); }
  /// Give the slots of a segment back.
  void finish(Slot segment) noexcept;
  /// Append the late rewards whose steps were taken before, so many at most.
  void takeRewards(std::vector<std::pair<std::uint64_t, float>>& rewards, std::size_t most);
  /// Note that so many steps and rewards are no longer held.
  void settle(std::size_t steps, std::size_t rewards) noexcept;

  // Both sides.

  /// Return how many steps wait or are under way.
  [[nodiscard]] std::size_t heldSteps() const noexcept;
  /// Say whether nothing waits and nothing is under way.
  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] std::uint64_t offeredSteps() const noexcept { return offered_.load(); }
  [[nodiscard]] std::uint64_t droppedSteps() const noexcept { return dropped_.load(); }

 private:
  struct Reward {
    std::uint64_t event;
    float reward;
    std::uint64_t after;  // how many segments had been offered before it
  };

  bool dropOldest(Slot segment) noexcept;
  bool sample(Slot segment) noexcept;
  void drop(Slot segment) noexcept;
  template <typename Release>
  void forEachSlot(Slot segment, Release release) noexcept;

  StepPool pool_;
  std::size_t capacity_;
  Overflow overflow_;
  Random random_;
  SlotQueue queue_;
  // Of the acting side:
  Slot free_ = kNoSlot;  // a list through Step::next
  Slot fresh_ = 0;       // slots from here on were never used
  std::uint64_t seenWhileFull_ = 0;
  // Written by the acting side, read by both:
  std::atomic<std::uint64_t> offered_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> offeredRewards_{0};
  // Written by the sending side, read by both:
  alignas(64) std::atomic<std::uint64_t> settled_{0};
  std::atomic<std::uint64_t> settledRewards_{0};
  std::atomic<Slot> returned_{kNoSlot};  // a list through Step::next
  // Late rewards: a ring with one writer and one reader.
  std::vector<Reward> rewards_;
  alignas(64) std::atomic<std::uint64_t> rewardHead_{0};
  alignas(64) std::atomic<std::uint64_t> rewardTail_{0};
};

}  // namespace assay

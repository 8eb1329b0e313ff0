#include "outbox.h"

#include <algorithm>

namespace assay {
namespace {

constexpr std::size_t kMostRewards = std::size_t{1} << 16U;

std::size_t powerOfTwo(std::size_t least) noexcept {
  std::size_t size = 1;
  while (size < least) {
    size *= 2;
  }
  return size;
}

}  // namespace

SlotQueue::SlotQueue(std::size_t capacity)
    : mask_(powerOfTwo(capacity + 1) - 1), cells_(new std::atomic<Slot>[mask_ + 1]) {
  for (std::size_t i = 0; i <= mask_; ++i) {
    cells_[i].store(kEmpty, std::memory_order_relaxed);
  }
}

bool SlotQueue::push(Slot slot) noexcept {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  std::atomic<Slot>& cell = cells_[tail & mask_];
  // Who popped the cell's last content may not have cleared it yet: then it is full for now.
  if (tail - head() > mask_ || cell.load(std::memory_order_acquire) != kEmpty) {
    return false;
  }
  cell.store(slot, std::memory_order_release);
  tail_.store(tail + 1, std::memory_order_release);
  return true;
}

Slot SlotQueue::pop() noexcept {
  std::uint64_t head = head_.load(std::memory_order_acquire);
  for (;;) {
    if (head == tail()) {
      return kNoSlot;
    }
    if (!head_.compare_exchange_weak(head, head + 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    // The place is ours: nobody else takes from it, but it may still be replaced until here.
    const Slot slot = cells_[head & mask_].exchange(kEmpty, std::memory_order_acq_rel);
    if (slot != kGone) {
      return slot;
    }
    head = head_.load(std::memory_order_acquire);
  }
}

Slot SlotQueue::replace(std::uint64_t place, Slot slot) noexcept {
  std::atomic<Slot>& cell = cells_[place & mask_];
  Slot found = cell.load(std::memory_order_acquire);
  while (found != kEmpty && found != kGone) {
    if (cell.compare_exchange_weak(found, slot, std::memory_order_acq_rel,
                                   std::memory_order_acquire)) {
      return found;
    }
  }
  return kNoSlot;
}

// A step takes one slot and at most one more for an observation after it: its own final one, or
// that of its segment. The open steps of the agent and the pending one come on top.
Outbox::Outbox(const ParsedSpec& spec, std::size_t capacity, std::size_t batchSteps,
               Overflow overflow, std::uint64_t seed)
    : pool_(spec, 2 * (capacity + 2 * batchSteps + 2)),
      capacity_(capacity),
      overflow_(overflow),
      random_(seed),
      queue_(2 * capacity + 2),
      rewards_(std::min(kMostRewards, powerOfTwo(capacity + 1))) {}

Slot Outbox::allocate() noexcept {
  if (free_ == kNoSlot) {
    free_ = returned_.exchange(kNoSlot, std::memory_order_acquire);
  }
  Slot slot = free_;
  if (slot != kNoSlot) {
    free_ = pool_.step(slot).next;
  } else if (fresh_ < pool_.slots()) {
    slot = fresh_++;
  } else {
    return kNoSlot;
  }
  pool_.begin(slot);
  return slot;
}

void Outbox::release(Slot slot) noexcept {
  pool_.step(slot).next = free_;
  free_ = slot;
}

template <typename Release>
void Outbox::forEachSlot(Slot segment, Release release) noexcept {
  const std::uint32_t count = pool_.step(segment).count;
  const Slot bootstrap = pool_.step(segment).bootstrap;
  Slot slot = segment;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Step& step = pool_.step(slot);
    const Slot next = step.next;  // releasing overwrites it
    if (step.final != kNoSlot) {
      release(step.final);
    }
    release(slot);
    slot = next;
  }
  if (bootstrap != kNoSlot) {
    release(bootstrap);
  }
}

std::size_t Outbox::heldSteps() const noexcept {
  // What was offered last: all three only grow, so that the difference is never below zero.
  const std::uint64_t settled = settled_.load(std::memory_order_acquire);
  const std::uint64_t dropped = dropped_.load(std::memory_order_acquire);
  return static_cast<std::size_t>(offered_.load(std::memory_order_acquire) - dropped - settled);
}

bool Outbox::empty() const noexcept {
  const std::uint64_t settled = settledRewards_.load(std::memory_order_acquire);
  return heldSteps() == 0 && offeredRewards_.load(std::memory_order_acquire) == settled;
}

bool Outbox::offer(Slot segment) noexcept {
  offered_.fetch_add(pool_.step(segment).count, std::memory_order_acq_rel);
  if (heldSteps() <= capacity_) {
    seenWhileFull_ = 0;
    if (queue_.push(segment)) {
      return true;
    }
    drop(segment);
    return false;
  }
  switch (overflow_) {
    case Overflow::DropOldest:
      return dropOldest(segment);
    case Overflow::Reservoir:
      return sample(segment);
    case Overflow::Block:
      break;
  }
  drop(segment);
  return false;
}

bool Outbox::dropOldest(Slot segment) noexcept {
  // What is under way is not in the queue, and is never dropped.
  while (heldSteps() > capacity_) {
    const Slot oldest = queue_.pop();
    if (oldest == kNoSlot) {
      drop(segment);
      return false;
    }
    drop(oldest);
  }
  if (!queue_.push(segment)) {
    drop(segment);
    return false;
  }
  return true;
}

bool Outbox::sample(Slot segment) noexcept {
  // Algorithm R over what came since the outbox was full, in the place of what it replaces. The
  // sender may take from the front meanwhile: what it took is no longer a candidate.
  const std::uint64_t head = queue_.head();
  const std::uint64_t waiting = queue_.tail() - head;
  if (seenWhileFull_ == 0) {
    seenWhileFull_ = waiting;
  }
  ++seenWhileFull_;
  const auto draw = [this](std::uint64_t count) {
    return static_cast<std::uint64_t>(random_.uniform() * static_cast<double>(count));
  };
  const auto replaceNear = [&](std::uint64_t place, Slot by) {
    for (std::uint64_t i = 0; i < waiting; ++i) {
      const Slot old = queue_.replace(head + (place + i) % waiting, by);
      if (old != kNoSlot) {
        return old;
      }
    }
    return kNoSlot;
  };
  const std::uint64_t place = draw(seenWhileFull_);
  const Slot replaced = place < waiting ? replaceNear(place, segment) : kNoSlot;
  if (replaced == kNoSlot) {
    drop(segment);
    return false;
  }
  drop(replaced);
  // Segments differ in length: one for one may not be enough.
  bool kept = true;
  while (heldSteps() > capacity_) {
    const Slot gone = replaceNear(draw(waiting), SlotQueue::kGone);
    if (gone == kNoSlot) {
      break;
    }
    kept = kept && gone != segment;
    drop(gone);
  }
  return kept;
}

void Outbox::drop(Slot segment) noexcept {
  dropped_.fetch_add(pool_.step(segment).count, std::memory_order_acq_rel);
  forEachSlot(segment, [this](Slot slot) { release(slot); });
}

bool Outbox::offerReward(std::uint64_t event, float reward) noexcept {
  const std::uint64_t tail = rewardTail_.load(std::memory_order_relaxed);
  if (tail - rewardHead_.load(std::memory_order_acquire) >= rewards_.size()) {
    return false;
  }
  rewards_[tail & (rewards_.size() - 1)] = {event, reward, queue_.tail()};
  offeredRewards_.fetch_add(1, std::memory_order_acq_rel);
  rewardTail_.store(tail + 1, std::memory_order_release);
  return true;
}

void Outbox::finish(Slot segment) noexcept {
  // First a chain of our own, then one exchange hands all of it over.
  Slot chain = kNoSlot;
  Slot last = kNoSlot;
  forEachSlot(segment, [&](Slot slot) {
    pool_.step(slot).next = chain;
    chain = slot;
    last = last == kNoSlot ? slot : last;
  });
  Slot returned = returned_.load(std::memory_order_relaxed);
  do {
    pool_.step(last).next = returned;
  } while (!returned_.compare_exchange_weak(returned, chain, std::memory_order_release,
                                            std::memory_order_relaxed));
}

void Outbox::takeRewards(std::vector<std::pair<std::uint64_t, float>>& rewards, std::size_t most) {
  std::uint64_t head = rewardHead_.load(std::memory_order_relaxed);
  const std::uint64_t tail = rewardTail_.load(std::memory_order_acquire);
  const std::uint64_t taken = queue_.head();
  while (head != tail && rewards.size() < most) {
    const Reward& one = rewards_[head & (rewards_.size() - 1)];
    if (one.after > taken) {  // a reward must not overtake its step
      break;
    }
    rewards.emplace_back(one.event, one.reward);
    ++head;
  }
  rewardHead_.store(head, std::memory_order_release);
}

void Outbox::settle(std::size_t steps, std::size_t rewards) noexcept {
  settled_.fetch_add(steps, std::memory_order_acq_rel);
  settledRewards_.fetch_add(rewards, std::memory_order_acq_rel);
}

}  // namespace assay

// Where steps are recorded: memory that is reserved once, so that acting allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "parsed_spec.h"

namespace assay {

/// Names a slot of the pool.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = std::numeric_limits<Slot>::max();

/// One decision and what came of it. An observation alone, to bootstrap from, takes a slot too.
struct Step {
  Slot next = kNoSlot;   // the step after it in its segment, or the next free slot
  Slot final = kNoSlot;  // the observation after a truncated step
  double reward = 0.0;
  double logProb = 0.0;
  std::int64_t version = 0;
  std::uint64_t event = 0;
  std::uint8_t flags = 0;
  bool terminated = false;
  bool truncated = false;
  // Of the first step of a segment, whose name is that of this step:
  std::uint32_t count = 0;
  Slot bootstrap = kNoSlot;  // the observation after the last step, where its episode goes on
  std::uint64_t episode = 0;
  std::uint64_t startStep = 0;
};

/// Slots for steps. Which of them are free, the outbox knows.
class StepPool {
 public:
  /// Reserve memory, which is touched as it is used. `valid` says whether there was enough.
  StepPool(const ParsedSpec& spec, std::size_t slots);

  [[nodiscard]] bool valid() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
  [[nodiscard]] static std::size_t bytesPerSlot(const ParsedSpec& spec) noexcept;

  /// Begin a step in a slot.
  Step& begin(Slot slot) noexcept;
  [[nodiscard]] Step& step(Slot slot) const noexcept;
  /// The numbers of the observation, without the mask.
  [[nodiscard]] float* observation(Slot slot) const noexcept;
  /// Whether each choice was valid, where the mask is part of the observation.
  [[nodiscard]] std::uint8_t* mask(Slot slot) const noexcept;
  /// The action, where it is made of choices.
  [[nodiscard]] std::int64_t* choices(Slot slot) const noexcept;
  /// The action, where it is made of numbers.
  [[nodiscard]] float* values(Slot slot) const noexcept;
  /// The numbers before they were clipped.
  [[nodiscard]] float* raw(Slot slot) const noexcept;

 private:
  struct Offsets {
    explicit Offsets(const ParsedSpec& spec) noexcept;
    std::size_t observation;
    std::size_t action;
    std::size_t raw;
    std::size_t mask;
    std::size_t stride;
  };

  [[nodiscard]] std::byte* at(Slot slot, std::size_t offset) const noexcept {
    return memory_.get() + static_cast<std::size_t>(slot) * offsets_.stride + offset;
  }

  Offsets offsets_;
  std::size_t slots_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace assay

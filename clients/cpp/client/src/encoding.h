// From recorded steps to the bytes of a batch, as `assay.server.tensors.Layout` says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parsed_spec.h"
#include "steps.h"

namespace assay {

inline constexpr std::size_t kFrameBytes = std::size_t{4} << 20U;
inline constexpr std::size_t kTrajectoryBytes = std::size_t{64} << 20U;
inline constexpr std::size_t kHeaderRoom = 1024;  // of a frame, for all that is not the tensors
inline constexpr std::size_t kMaxPatches = std::size_t{1} << 16U;
inline constexpr double kMostValue = 1e12;  // of rewards, and of floats in observations and actions
inline constexpr double kMostLogProb = 1e6;

/// A batch but for its epoch and number: steps, or late rewards alone.
struct EncodedBatch {
  std::string tensors;  // a serialised TensorMap
  std::uint32_t crc = 0;
  std::uint64_t episode = 0;
  std::uint64_t startStep = 0;
  std::uint64_t version = 0;
  std::uint32_t steps = 0;
  std::vector<std::pair<std::uint64_t, float>> patches;
  std::size_t rewards = 0;  // how many late rewards were added up in the patches

  [[nodiscard]] std::size_t bytes() const noexcept { return tensors.size() + patches.size() * 16; }
};

/// Say whether an observation is what the spec allows: finite, and integers in their ranges.
[[nodiscard]] bool isObservation(const ParsedSpec& spec, const float* numbers) noexcept;

/// Say whether the numbers of an observation are small enough for a batch.
[[nodiscard]] bool canBeSent(const ParsedSpec& spec, const float* numbers) noexcept;

/// Return the most bytes that the tensors of so many steps can take.
[[nodiscard]] std::size_t mostBytes(const ParsedSpec& spec, std::size_t steps) noexcept;

/// Pack a segment.
[[nodiscard]] EncodedBatch encodeSegment(const ParsedSpec& spec, const StepPool& pool, Slot first);

/// Pack late rewards; those of one event are added up, since a batch names an event once.
[[nodiscard]] EncodedBatch encodePatches(
    const std::vector<std::pair<std::uint64_t, float>>& rewards);

}  // namespace assay

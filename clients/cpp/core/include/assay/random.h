/// @file
/// A small generator of random numbers that allocates nothing.
#pragma once

#include <array>
#include <cstdint>

namespace assay {

/// xoshiro256++ (Blackman and Vigna), seeded by SplitMix64. For one thread at a time.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept;

  /// Return 64 random bits.
  std::uint64_t next() noexcept;
  /// Return a number in [0, 1).
  double uniform() noexcept;
  /// Return a standard normal number.
  double normal() noexcept;

 private:
  std::array<std::uint64_t, 4> state_;
  double spare_ = 0.0;
  bool hasSpare_ = false;
};

}  // namespace assay

#include "assay/random.h"

#include <cmath>

namespace assay {
namespace {

constexpr std::uint64_t rotateLeft(std::uint64_t x, unsigned n) {
  return (x << n) | (x >> (64U - n));
}

}  // namespace

Random::Random(std::uint64_t seed) noexcept : state_{} {
  for (std::uint64_t& word : state_) {
    seed += 0x9e3779b97f4a7c15U;
    std::uint64_t z = seed;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    word = z ^ (z >> 31U);
  }
}

std::uint64_t Random::next() noexcept {
  const std::uint64_t result = rotateLeft(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t t = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = rotateLeft(state_[3], 45);
  return result;
}

double Random::uniform() noexcept { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

double Random::normal() noexcept {
  if (hasSpare_) {
    hasSpare_ = false;
    return spare_;
  }
  // Marsaglia's polar method gives two at a time.
  double x = 0.0;
  double y = 0.0;
  double square = 0.0;
  do {
    x = 2.0 * uniform() - 1.0;
    y = 2.0 * uniform() - 1.0;
    square = x * x + y * y;
  } while (square >= 1.0 || square == 0.0);
  const double factor = std::sqrt(-2.0 * std::log(square) / square);
  spare_ = y * factor;
  hasSpare_ = true;
  return x * factor;
}

}  // namespace assay

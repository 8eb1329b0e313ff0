// From the parameters of a policy to an action and its log-probability.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "architecture.h"
#include "layers.h"

namespace assay {

/// The memory that a head writes into.
struct HeadSpace {
  std::vector<std::int64_t> choices;
  std::vector<float> values;
  std::vector<float> raw;
};

/// An immutable head. Its arithmetic is in double, as that of the Python client.
class Head {
 public:
  /// Throws ShapeError.
  Head(HeadSpec spec, TensorShop& shop);

  [[nodiscard]] const HeadSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::size_t actionSize() const noexcept;
  [[nodiscard]] std::size_t maskSize() const noexcept;
  [[nodiscard]] NoiseKind noiseKind() const noexcept;
  [[nodiscard]] std::size_t noiseSize() const noexcept;
  [[nodiscard]] HeadSpace makeSpace() const;

  /// Decide, and return the log-probability of what was decided.
  ///
  /// @param params What the network says.
  /// @param mask Nonzero where a choice is valid; nullptr for all.
  /// @param noise `noiseSize` numbers; nullptr takes the best action, with log-probability 0.
  double decide(const float* params, const std::uint8_t* mask, const double* noise,
                HeadSpace& space) const noexcept;

 private:
  double choices(const float* params, const std::uint8_t* mask, const double* noise,
                 HeadSpace& space) const noexcept;
  double bits(const float* params, const std::uint8_t* mask, const double* noise,
              HeadSpace& space) const noexcept;
  double bestOrAny(const float* params, const std::uint8_t* mask, const double* noise,
                   HeadSpace& space) const noexcept;
  double gaussian(const float* params, const double* noise, HeadSpace& space) const noexcept;
  double squashed(const float* params, const double* noise, HeadSpace& space) const noexcept;
  double deterministic(const float* params, const double* noise, HeadSpace& space) const noexcept;
  void scale(std::size_t i, double unit, HeadSpace& space) const noexcept;

  HeadSpec spec_;
  std::vector<double> logStd_;
  std::vector<double> center_;
  std::vector<double> halfWidth_;
};

}  // namespace assay

#include "head.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace assay {
namespace {

constexpr double kHalfLog2Pi = 0.91893853320467274178;
constexpr double kLog2 = 0.69314718055994530942;

double softplus(double x) noexcept { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

/// Return a mask that allows something, or nullptr: one that allows nothing counts as none.
const std::uint8_t* useful(const std::uint8_t* mask, std::size_t size) noexcept {
  if (mask == nullptr) {
    return nullptr;
  }
  return std::any_of(mask, mask + size, [](std::uint8_t flag) { return flag != 0; }) ? mask
                                                                                      : nullptr;
}

/// Return the valid index of the largest number.
std::size_t largest(const float* values, const std::uint8_t* mask, std::size_t size) noexcept {
  std::size_t best = size;
  for (std::size_t i = 0; i < size; ++i) {
    if ((mask == nullptr || mask[i] != 0) && (best == size || values[i] > values[best])) {
      best = i;
    }
  }
  return best;
}

/// Return the choice among softmax(logits) that u selects: the first whose cumulative probability
/// exceeds u. Adds its log-probability.
std::size_t choose(const float* logits, const std::uint8_t* mask, std::size_t size, double u,
                   double& logProb) noexcept {
  const double top = logits[largest(logits, mask, size)];
  double total = 0.0;
  for (std::size_t i = 0; i < size; ++i) {
    total += mask == nullptr || mask[i] != 0 ? std::exp(logits[i] - top) : 0.0;
  }
  double point = u * total;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double weight = mask == nullptr || mask[i] != 0 ? std::exp(logits[i] - top) : 0.0;
    if (weight > 0.0) {
      chosen = i;  // rounding may leave the point beyond the end: then the last possible choice
      point -= weight;
      if (point < 0.0) {
        break;
      }
    }
  }
  logProb += logits[chosen] - top - std::log(total);
  return chosen;
}

}  // namespace

Head::Head(HeadSpec spec, TensorShop& shop) : spec_(std::move(spec)) {
  if (spec_.kind == HeadKind::Gaussian) {
    for (const float value : shop.vector(spec_.logStd, spec_.low.size())) {
      logStd_.push_back(value);
    }
  }
  if (spec_.kind == HeadKind::SquashedGaussian || spec_.kind == HeadKind::Deterministic) {
    for (std::size_t i = 0; i < spec_.low.size(); ++i) {
      // In float32, as the learner scales.
      center_.push_back(static_cast<float>((spec_.high[i] + spec_.low[i]) / 2.0));
      halfWidth_.push_back(static_cast<float>((spec_.high[i] - spec_.low[i]) / 2.0));
    }
  }
}

std::size_t Head::actionSize() const noexcept {
  if (spec_.continuous()) {
    return spec_.low.size();
  }
  return spec_.kind == HeadKind::Bernoulli ? spec_.sizes[0] : spec_.sizes.size();
}

std::size_t Head::maskSize() const noexcept { return spec_.continuous() ? 0 : spec_.params(); }

NoiseKind Head::noiseKind() const noexcept {
  return spec_.continuous() ? NoiseKind::Normal : NoiseKind::Uniform;
}

std::size_t Head::noiseSize() const noexcept {
  return spec_.kind == HeadKind::ActionValues ? 2 : actionSize();
}

HeadSpace Head::makeSpace() const {
  const std::size_t size = actionSize();
  const bool numbers = spec_.continuous();
  return {std::vector<std::int64_t>(numbers ? 0 : size), std::vector<float>(numbers ? size : 0),
          std::vector<float>(numbers ? size : 0)};
}

double Head::decide(const float* params, const std::uint8_t* mask, const double* noise,
                    HeadSpace& space) const noexcept {
  switch (spec_.kind) {
    case HeadKind::Categorical:
    case HeadKind::MultiCategorical:
      return choices(params, mask, noise, space);
    case HeadKind::Bernoulli:
      return bits(params, mask, noise, space);
    case HeadKind::ActionValues:
      return bestOrAny(params, mask, noise, space);
    case HeadKind::Gaussian:
      return gaussian(params, noise, space);
    case HeadKind::SquashedGaussian:
      return squashed(params, noise, space);
    case HeadKind::Deterministic:
      return deterministic(params, noise, space);
  }
  return 0.0;
}

double Head::choices(const float* params, const std::uint8_t* mask, const double* noise,
                     HeadSpace& space) const noexcept {
  double logProb = 0.0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < spec_.sizes.size(); ++i) {
    const std::size_t size = spec_.sizes[i];
    const std::uint8_t* valid = useful(mask == nullptr ? nullptr : mask + begin, size);
    const std::size_t choice =
        noise == nullptr ? largest(params + begin, valid, size)
                         : choose(params + begin, valid, size, noise[i], logProb);
    space.choices[i] = static_cast<std::int64_t>(choice) + spec_.starts[i];
    begin += size;
  }
  return logProb;
}

double Head::bits(const float* params, const std::uint8_t* mask, const double* noise,
                  HeadSpace& space) const noexcept {
  double logProb = 0.0;
  for (std::size_t i = 0; i < space.choices.size(); ++i) {
    const double logit = params[i];
    bool bit = false;
    if (mask == nullptr || mask[i] != 0) {  // a masked bit stays 0
      if (noise == nullptr) {
        bit = logit > 0.0;
      } else {
        bit = noise[i] < 0.5 + 0.5 * std::tanh(0.5 * logit);
        logProb += (bit ? logit : 0.0) - softplus(logit);
      }
    }
    space.choices[i] = bit ? 1 : 0;
  }
  return logProb;
}

double Head::bestOrAny(const float* params, const std::uint8_t* mask, const double* noise,
                       HeadSpace& space) const noexcept {
  const std::size_t size = spec_.sizes[0];
  const std::uint8_t* valid = useful(mask, size);
  const std::size_t best = largest(params, valid, size);
  std::size_t choice = best;
  double logProb = 0.0;
  if (noise != nullptr) {
    std::size_t count = size;
    if (valid != nullptr) {
      count = static_cast<std::size_t>(
          std::count_if(valid, valid + size, [](std::uint8_t flag) { return flag != 0; }));
    }
    if (noise[0] < spec_.epsilon) {
      auto rank = static_cast<std::size_t>(noise[1] * static_cast<double>(count));
      rank = std::min(rank, count - 1);
      for (choice = 0;; ++choice) {
        if ((valid == nullptr || valid[choice] != 0) && rank-- == 0) {
          break;
        }
      }
    }
    // p(a) = epsilon / |A(s)| + (1 - epsilon) [a is the best]
    const double share = spec_.epsilon / static_cast<double>(count);
    logProb = std::log(share + (choice == best ? 1.0 - spec_.epsilon : 0.0));
  }
  space.choices[0] = static_cast<std::int64_t>(choice) + spec_.starts[0];
  return logProb;
}

double Head::gaussian(const float* params, const double* noise, HeadSpace& space) const noexcept {
  double logProb = 0.0;
  for (std::size_t i = 0; i < space.values.size(); ++i) {
    double action = params[i];
    if (noise != nullptr) {
      // a = mu + sigma z,  log N = -z^2 / 2 - log sigma - log(2 pi) / 2
      action += std::exp(logStd_[i]) * noise[i];
      logProb -= 0.5 * noise[i] * noise[i] + logStd_[i] + kHalfLog2Pi;
    }
    space.raw[i] = static_cast<float>(action);
    space.values[i] =
        static_cast<float>(std::min(std::max(action, spec_.low[i]), spec_.high[i]));
  }
  return logProb;
}

double Head::squashed(const float* params, const double* noise, HeadSpace& space) const noexcept {
  const std::size_t size = space.values.size();
  double logProb = 0.0;
  for (std::size_t i = 0; i < size; ++i) {
    double u = params[i];
    if (noise != nullptr) {
      const double logStd =
          std::min(std::max<double>(params[size + i], spec_.logStdLow), spec_.logStdHigh);
      u += std::exp(logStd) * noise[i];
      // log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))
      const double slope = 2.0 * (kLog2 - u - softplus(-2.0 * u));
      logProb -= 0.5 * noise[i] * noise[i] + logStd + kHalfLog2Pi + slope;
    }
    scale(i, std::tanh(u), space);
  }
  return logProb;
}

double Head::deterministic(const float* params, const double* noise,
                           HeadSpace& space) const noexcept {
  const bool explores = noise != nullptr && spec_.noise > 0.0;
  double logProb = 0.0;
  for (std::size_t i = 0; i < space.values.size(); ++i) {
    double unit = params[i];
    if (explores) {
      unit = std::min(std::max(unit + spec_.noise * noise[i], -1.0), 1.0);
      logProb -= 0.5 * noise[i] * noise[i] + std::log(spec_.noise) + kHalfLog2Pi;
    }
    scale(i, unit, space);
  }
  return logProb;
}

void Head::scale(std::size_t i, double unit, HeadSpace& space) const noexcept {
  // Clipped, because centre and half width are rounded and may miss an edge.
  const double action = unit * halfWidth_[i] + center_[i];
  space.values[i] = static_cast<float>(std::min(std::max(action, spec_.low[i]), spec_.high[i]));
  space.raw[i] = space.values[i];
}

}  // namespace assay

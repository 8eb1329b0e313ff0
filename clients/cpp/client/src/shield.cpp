#include "shield.h"

#include <algorithm>
#include <cmath>

#include "assay/client.h"

namespace assay {
namespace {

// Of a bound's range: what float32 may be off without meaning anything.
constexpr double kRounding = 1e-5;

}  // namespace

Shield::Shield(const ParsedSpec& spec, double maxChange, std::uint64_t holdSteps)
    : sizes_(spec.action.sizes),
      bits_(spec.action.kind == SpaceKind::MultiBinary),
      maxChange_(static_cast<float>(maxChange)),
      holdSteps_(holdSteps) {
  for (std::size_t i = 0; i < spec.action.low.size(); ++i) {
    low_.push_back(static_cast<float>(spec.action.low[i]));
    high_.push_back(static_cast<float>(spec.action.high[i]));
    const double width = spec.action.high[i] - spec.action.low[i];
    slack_.push_back(static_cast<float>((std::isfinite(width) ? width : 1.0) * kRounding));
  }
  lastValues_.resize(low_.size());
  lastChoices_.resize(sizes_.size());
}

int Shield::apply(Span<float> action) noexcept {
  for (const float value : action) {
    if (!std::isfinite(value)) {
      return -1;
    }
  }
  int flags = 0;
  for (std::size_t i = 0; i < action.size(); ++i) {
    float inside = std::min(std::max(action[i], low_[i]), high_[i]);
    if (std::abs(inside - action[i]) > slack_[i]) {
      flags |= kFlagBounds;
    }
    if (maxChange_ > 0.0F && acted_) {
      const float near =
          std::min(std::max(inside, lastValues_[i] - maxChange_), lastValues_[i] + maxChange_);
      if (std::abs(near - inside) > slack_[i]) {
        flags |= kFlagRate;
      }
      inside = near;
    }
    action[i] = inside;
  }
  std::copy(action.begin(), action.end(), lastValues_.begin());
  acted_ = true;
  return flags;
}

int Shield::apply(Span<std::int64_t> action, Span<const std::uint8_t> mask) noexcept {
  const bool waits = acted_ && held_ < holdSteps_;
  int flags = 0;
  std::size_t begin = 0;
  bool changed = !acted_;
  for (std::size_t i = 0; i < action.size(); ++i) {
    const std::int64_t size = sizes_[i];
    std::int64_t choice = action[i];
    if (choice < 0 || choice >= size) {
      choice = std::min(std::max<std::int64_t>(choice, 0), size - 1);
      flags |= kFlagBounds;
    }
    if (waits && choice != lastChoices_[i]) {
      choice = lastChoices_[i];
      flags |= kFlagRate;
    }
    if (!mask.empty()) {
      if (bits_) {  // one flag for each bit; a masked bit stays 0
        if (mask[i] == 0 && choice != 0) {
          choice = 0;
          flags |= kFlagMask;
        }
      } else if (mask[begin + static_cast<std::size_t>(choice)] == 0) {
        // The first valid one, never a random one; a mask that allows nothing counts as none.
        const std::uint8_t* first = mask.begin() + begin;
        const std::uint8_t* last = first + size;
        const std::uint8_t* valid =
            std::find_if(first, last, [](std::uint8_t flag) { return flag != 0; });
        if (valid != last) {
          choice = valid - first;
          flags |= kFlagMask;
        }
      }
    }
    action[i] = choice;
    changed = changed || choice != lastChoices_[i];
    begin += bits_ ? 1 : static_cast<std::size_t>(size);
  }
  held_ = changed ? 1 : held_ + 1;
  acted_ = true;
  std::copy(action.begin(), action.end(), lastChoices_.begin());
  return flags;
}

}  // namespace assay

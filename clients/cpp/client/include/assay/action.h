/// @file
/// An action: a small value that is passed around without an allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "assay/span.h"

namespace assay {

/// The most numbers that an action may have.
inline constexpr std::size_t kMaxAction = 256;

/// Choices (Discrete, MultiDiscrete, MultiBinary) or numbers (Box). It holds them itself.
class Action {
 public:
  /// Make an action of nothing, which no space has.
  Action() noexcept {}  // NOLINT(modernize-use-equals-default): the memory stays as it is

  /// Make one choice.
  [[nodiscard]] static Action choice(std::int64_t index) noexcept { return choices({index}); }
  /// Make several choices.
  [[nodiscard]] static Action choices(std::initializer_list<std::int64_t> indices) noexcept {
    return choices(Span<const std::int64_t>(indices.begin(), indices.size()));
  }
  [[nodiscard]] static Action choices(Span<const std::int64_t> indices) noexcept {
    Action action;
    if (indices.size() <= kMaxAction) {
      action.size_ = indices.size();
      std::copy(indices.begin(), indices.end(), action.choices_);
    }
    return action;
  }
  /// Make one number.
  [[nodiscard]] static Action value(float number) noexcept { return values({number}); }
  /// Make several numbers.
  [[nodiscard]] static Action values(std::initializer_list<float> numbers) noexcept {
    return values(Span<const float>(numbers.begin(), numbers.size()));
  }
  [[nodiscard]] static Action values(Span<const float> numbers) noexcept {
    Action action;
    action.numbers_ = true;
    if (numbers.size() <= kMaxAction) {
      action.size_ = numbers.size();
      std::copy(numbers.begin(), numbers.end(), action.values_);
    }
    return action;
  }

  Action(const Action& other) noexcept { assign(other); }
  Action& operator=(const Action& other) noexcept {
    if (this != &other) {
      assign(other);
    }
    return *this;
  }
  ~Action() = default;

  /// Return how many choices or numbers there are; 0 where more than kMaxAction were given.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Say whether it is made of numbers.
  [[nodiscard]] bool isNumbers() const noexcept { return numbers_; }
  /// Return the choices; empty where the action is made of numbers.
  [[nodiscard]] Span<const std::int64_t> choices() const noexcept {
    return {choices_, numbers_ ? 0 : size_};
  }
  /// Return the numbers; empty where the action is made of choices.
  [[nodiscard]] Span<const float> values() const noexcept {
    return {values_, numbers_ ? size_ : 0};
  }
  /// Return one choice; 0 where there is none of that index.
  [[nodiscard]] std::int64_t choice() const noexcept {
    return numbers_ || size_ == 0 ? 0 : choices_[0];
  }
  /// Return the first number; 0 where there is none.
  [[nodiscard]] float value() const noexcept { return numbers_ && size_ > 0 ? values_[0] : 0.0F; }

 private:
  // Only what is used is copied: an action of one choice costs as much as one number.
  void assign(const Action& other) noexcept {
    size_ = other.size_;
    numbers_ = other.numbers_;
    if (numbers_) {
      std::copy_n(other.values_, size_, values_);
    } else {
      std::copy_n(other.choices_, size_, choices_);
    }
  }

  std::size_t size_ = 0;
  bool numbers_ = false;
  union {
    std::int64_t choices_[kMaxAction];
    float values_[kMaxAction];
  };
};

}  // namespace assay

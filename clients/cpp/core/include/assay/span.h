/// @file
/// A view of numbers that lie side by side, which C++17 lacks.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace assay {

/// A pointer and a length. It owns nothing.
template <typename T>
class Span {
 public:
  using Value = std::remove_const_t<T>;

  constexpr Span() noexcept = default;
  constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  Span(const std::vector<Value>& values) noexcept  // NOLINT(google-explicit-constructor)
      : data_(values.data()), size_(values.size()) {}
  template <std::size_t N>
  constexpr Span(const std::array<Value, N>& values) noexcept  // NOLINT
      : data_(values.data()), size_(N) {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr T* begin() const noexcept { return data_; }
  [[nodiscard]] constexpr T* end() const noexcept { return data_ + size_; }
  constexpr T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace assay

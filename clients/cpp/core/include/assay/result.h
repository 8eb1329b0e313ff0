/// @file
/// A value or the reason why there is none: what may fail says so without an exception.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace assay {

/// Why something failed, in a form for programs.
enum class ErrorCode {
  Unreadable,   ///< The file cannot be read.
  TooLarge,     ///< A size lies beyond its limit.
  Torn,         ///< The file ends too early, or holds more than it accounts for.
  Altered,      ///< The digest is not the one that was promised.
  BadLayout,    ///< The safetensors header is wrong.
  BadModel,     ///< The description of the network is not of the schema.
  NewerSchema,  ///< The file was written by a newer Assay.
  BadShape,     ///< A tensor does not fit the layers around it.
  NotFinite,    ///< A number is infinite, or not a number.
  OutOfMemory,  ///< There is not enough memory.
  BadSpec,      ///< A policy spec, or a space in it, is not what the client can serve.
  BadConfig,    ///< A setting of the client is wrong, or does not go with another.
};

/// Why something failed, for programs and for people.
struct Error {
  ErrorCode code;
  std::string message;
};

/// Either a value or an Error.
template <typename T>
class Result {
 public:
  Result(T value) : content_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error) : content_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  /// Say whether there is a value.
  [[nodiscard]] bool ok() const noexcept { return std::holds_alternative<T>(content_); }
  explicit operator bool() const noexcept { return ok(); }

  /// Return the value. Only where ok().
  [[nodiscard]] const T& value() const& noexcept { return *std::get_if<T>(&content_); }
  [[nodiscard]] T&& value() && noexcept { return std::move(*std::get_if<T>(&content_)); }

  /// Return the reason. Only where not ok().
  [[nodiscard]] const Error& error() const noexcept { return *std::get_if<Error>(&content_); }

 private:
  std::variant<T, Error> content_;
};

}  // namespace assay

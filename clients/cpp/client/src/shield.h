// The shield: what leaves the client is within bounds, masks and rate limits, whoever chose it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "assay/span.h"
#include "parsed_spec.h"

namespace assay {

/// Keeps actions within what is allowed, in place. For one thread at a time; allocates nothing.
class Shield {
 public:
  /// @param maxChange How far a number may move from one action to the next; 0: any.
  /// @param holdSteps How many steps a choice stays before it may change.
  Shield(const ParsedSpec& spec, double maxChange, std::uint64_t holdSteps);

  /// Fix numbers; return the flags of what was changed, or -1 where they are not finite.
  int apply(Span<float> action) noexcept;
  /// Fix choices; a mask that is empty allows all.
  int apply(Span<std::int64_t> action, Span<const std::uint8_t> mask) noexcept;

 private:
  std::vector<float> low_;
  std::vector<float> high_;
  std::vector<float> slack_;
  std::vector<std::int64_t> sizes_;
  bool bits_;
  float maxChange_;
  std::uint64_t holdSteps_;
  bool acted_ = false;
  std::uint64_t held_ = 0;
  std::vector<float> lastValues_;
  std::vector<std::int64_t> lastChoices_;
};

}  // namespace assay

// JSON that was checked: no exceptions, no names that stand twice, bounded depth.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace assay {

using Json = nlohmann::json;

inline constexpr int kMaxDepth = 32;

/// Parse a text; nothing where it is not JSON, too deep, or names something twice.
template <typename Iterator>
std::optional<Json> parseJson(Iterator begin, Iterator end) {
  bool bad = false;
  std::vector<std::set<std::string>> names;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) {
      bad = true;
    }
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end && !names.empty()) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key && !names.empty()) {
      bad = bad || !names.back().insert(parsed.template get<std::string>()).second;
    }
    return !bad;  // what was refused is not kept
  };
  Json value = Json::parse(begin, end, watch, false);
  if (bad || value.is_discarded()) {
    return std::nullopt;
  }
  return value;
}

/// Return a whole number in [least, most]; nothing if the value is anything else.
inline std::optional<std::int64_t> wholeNumber(const Json& value, std::int64_t least,
                                               std::int64_t most) {
  if (!value.is_number_integer()) {
    return std::nullopt;
  }
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{1} << 62U) {
    return std::nullopt;
  }
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most) {
    return std::nullopt;
  }
  return number;
}

}  // namespace assay

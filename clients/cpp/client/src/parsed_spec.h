// A policy spec, taken apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "assay/spec.h"

namespace assay {

enum class SpaceKind { Box, Discrete, MultiDiscrete, MultiBinary };

/// The numbers of the enum `DType` on the wire that a client sends.
enum class WireType : std::uint8_t {
  Bool = 1,
  Uint8 = 2,
  Int8 = 3,
  Int64 = 9,
  Uint64 = 8,
  Float32 = 11,
};

/// One array of an observation, or an action.
struct LeafSpec {
  std::string key;  // such as "arm/joints"; empty where the observation is one array
  SpaceKind kind = SpaceKind::Box;
  WireType type = WireType::Float32;
  std::vector<std::size_t> shape;
  std::size_t size = 1;             // how many numbers it has
  bool isMask = false;              // the entry that holds the action mask
  std::vector<std::int64_t> sizes;  // number of values of each integer, or of each bit
  std::vector<double> low;          // of a Box, one for each number; infinite where there is none
  std::vector<double> high;
};

struct ParsedSpec {
  std::string name;
  std::string json;
  std::vector<LeafSpec> leaves;  // of the observation, in the order of their names
  LeafSpec action;  // a Box of actions has the limits of the spec's bounds
  std::size_t observationSize = 0;  // without the mask
  std::size_t maskSize = 0;
  bool masked = false;
};

/// The name of the entry that holds an action mask.
inline constexpr const char* kActionMask = "action_mask";

/// Say why a model's spaces, as its file describes them, are not those of the spec; empty: they are.
[[nodiscard]] std::string differenceTo(const ParsedSpec& spec, const std::string& observation,
                                       const std::string& action);

}  // namespace assay

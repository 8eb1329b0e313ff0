// What a model file says about its network: the schema of `assay.policies.description`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "assay/model.h"
#include "assay/result.h"

namespace assay {

inline constexpr std::int64_t kSchema = 1;
inline constexpr std::size_t kMaxWidth = 65536;
inline constexpr std::size_t kMaxParts = 64;
/// Numbers that quantile levels may make of one observation.
inline constexpr std::size_t kMaxCells = std::size_t{1} << 22;
/// Products that they may cost.
inline constexpr std::size_t kMaxWork = std::size_t{1} << 28;

enum class ActivationKind { None, Tanh, Relu, Elu, Silu, Gelu };
enum class LayerKind { Dense, LayerNorm, BatchNorm, Activation, Dueling, Atoms, Levels, Gru, Lstm };

struct GateSpec {
  std::string input;
  std::string bias;
  std::string hidden;
};

struct LayerSpec {
  LayerKind kind = LayerKind::Dense;
  std::string weight;
  std::string bias;
  std::string mean;
  std::string variance;
  std::string support;  // of atoms; empty where they weigh the same
  std::string levels;   // empty where a proposal gives them
  std::string proposalWeight;
  std::string proposalBias;
  float eps = 0.0F;
  ActivationKind activation = ActivationKind::None;
  std::vector<LayerSpec> value;
  std::vector<LayerSpec> advantage;
  std::size_t actions = 0;
  std::size_t atoms = 0;
  std::size_t size = 0;
  std::vector<GateSpec> gates;

  /// Whether the streams are affine by their form, and so commute with a mean over levels.
  [[nodiscard]] bool affine() const;
};

struct EntrySpec {
  std::string key;
  bool keyed = false;
  std::size_t width = 0;
  float scale = 1.0F;
  std::vector<std::size_t> sizes;
  std::vector<std::int64_t> starts;

  [[nodiscard]] std::size_t rawWidth() const { return sizes.empty() ? width : sizes.size(); }
};

struct NormalizationSpec {
  std::string mean;
  std::string inverseStd;
  std::string limit;
};

struct HeadSpec {
  HeadKind kind = HeadKind::Categorical;
  std::vector<std::size_t> sizes;    // one for categorical and q, one per choice for the multiple
  std::vector<std::int64_t> starts;  // as many
  std::string logStd;
  double logStdLow = 0.0;
  double logStdHigh = 0.0;
  double noise = 0.0;
  double epsilon = 0.0;
  std::vector<double> low;  // infinite where there is no bound
  std::vector<double> high;

  /// How many numbers the head reads from the last layer.
  [[nodiscard]] std::size_t params() const;
  /// Whether its actions are numbers with bounds rather than choices.
  [[nodiscard]] bool continuous() const;
};

struct Architecture {
  std::int64_t version = 0;
  std::int64_t epoch = 0;
  std::string algorithm;
  std::string observation;  // JSON, for the client that registered the spaces
  std::string action;
  std::vector<EntrySpec> inputs;
  bool normalized = false;
  NormalizationSpec normalization;
  std::vector<LayerSpec> layers;
  HeadSpec head;

  [[nodiscard]] std::size_t width() const;
  [[nodiscard]] std::size_t rawWidth() const;
};

/// Read the description of a network from its JSON text.
[[nodiscard]] Result<Architecture> parseArchitecture(const std::string& text);

}  // namespace assay

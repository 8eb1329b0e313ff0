// From an observation to the parameters of the head.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "architecture.h"
#include "layers.h"

namespace assay {

/// The memory that a network writes into: one for each policy that acts with it.
struct Workspace {
  std::vector<float> first;
  std::vector<float> second;
  std::vector<float> scratch;
  std::vector<float> state;
};

/// Why an observation has no answer.
enum class Fault { None, Observation, Output };

/// An immutable network.
class Network {
 public:
  /// Throws ShapeError.
  Network(const Architecture& architecture, TensorShop& shop);

  [[nodiscard]] Workspace makeWorkspace() const;

  /// Run the network on the raw numbers of an observation.
  ///
  /// @param params Set to the parameters of the head, inside the workspace.
  Fault run(const float* raw, Workspace& space, const float*& params) const noexcept;

  [[nodiscard]] std::size_t outWidth() const noexcept { return layers_.back()->outWidth(); }
  [[nodiscard]] std::size_t stateSize() const noexcept { return stateSize_; }

 private:
  bool read(const float* raw, float* flat) const noexcept;

  std::vector<EntrySpec> inputs_;
  std::size_t width_;
  std::vector<float> mean_;
  std::vector<float> inverseStd_;
  std::vector<float> limit_;
  LayerList layers_;
  std::size_t widest_;
  std::size_t scratchSize_ = 0;
  std::size_t stateSize_ = 0;
};

}  // namespace assay

#include "network.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace assay {
namespace {

bool allFinite(const float* values, std::size_t size) noexcept {
  // 0 * x is 0 unless x is infinite or not a number; the sum of such needs no branch per number.
  float sum = 0.0F;
  for (std::size_t i = 0; i < size; ++i) {
    sum += 0.0F * values[i];
  }
  return sum == 0.0F;
}

}  // namespace

Network::Network(const Architecture& architecture, TensorShop& shop)
    : inputs_(architecture.inputs), width_(architecture.width()), widest_(width_) {
  if (architecture.normalized) {
    mean_ = shop.vector(architecture.normalization.mean, width_);
    inverseStd_ = shop.vector(architecture.normalization.inverseStd, width_);
    limit_ = shop.vector(architecture.normalization.limit, width_);
  }
  std::size_t width = width_;
  for (const LayerSpec& spec : architecture.layers) {
    layers_.push_back(makeLayer(spec, width, shop));
    width = layers_.back()->outWidth();
    widest_ = std::max(widest_, width);
    scratchSize_ = std::max(scratchSize_, layers_.back()->scratchSize());
    stateSize_ += layers_.back()->stateSize();
  }
}

Workspace Network::makeWorkspace() const {
  return {std::vector<float>(widest_), std::vector<float>(widest_),
          std::vector<float>(scratchSize_), std::vector<float>(stateSize_)};
}

Fault Network::run(const float* raw, Workspace& space, const float*& params) const noexcept {
  float* in = space.first.data();
  float* out = space.second.data();
  if (!read(raw, in)) {
    return Fault::Observation;
  }
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    const float x = (in[i] - mean_[i]) * inverseStd_[i];
    in[i] = std::min(std::max(x, -limit_[i]), limit_[i]);
  }
  float* state = space.state.data();
  for (const auto& layer : layers_) {
    layer->run(in, out, space.scratch.data(), state);
    state += layer->stateSize();
    std::swap(in, out);
  }
  params = in;
  return allFinite(in, outWidth()) ? Fault::None : Fault::Output;
}

bool Network::read(const float* raw, float* flat) const noexcept {
  for (const EntrySpec& entry : inputs_) {
    const std::size_t count = entry.rawWidth();
    if (!allFinite(raw, count)) {
      return false;
    }
    if (entry.sizes.empty()) {
      for (std::size_t i = 0; i < count; ++i) {
        flat[i] = raw[i] * entry.scale;
      }
    } else {
      std::fill(flat, flat + entry.width, 0.0F);
      float* place = flat;
      for (std::size_t i = 0; i < count; ++i) {
        const double offset = static_cast<double>(raw[i]) - static_cast<double>(entry.starts[i]);
        if (!(offset >= 0.0) || offset >= static_cast<double>(entry.sizes[i])) {
          return false;
        }
        const auto choice = static_cast<std::size_t>(offset);
        if (static_cast<double>(choice) == offset) {
          place[choice] = 1.0F;  // a number between two values is none of them
        }
        place += entry.sizes[i];
      }
    }
    raw += count;
    flat += entry.width;
  }
  return true;
}

}  // namespace assay

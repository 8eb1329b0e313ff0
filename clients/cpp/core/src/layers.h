// Layers of a network. They own their weights, and write into memory that the caller holds.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "architecture.h"
#include "assay/safetensors.h"

namespace assay {

/// A layer: [in] -> [out]. Input, output, scratch and state never overlap.
class Layer {
 public:
  Layer(std::size_t in, std::size_t out) : in_(in), out_(out) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] std::size_t inWidth() const noexcept { return in_; }
  [[nodiscard]] std::size_t outWidth() const noexcept { return out_; }
  /// Return how many floats of scratch `run` needs.
  [[nodiscard]] virtual std::size_t scratchSize() const noexcept { return 0; }
  /// Return how many floats the layer remembers from step to step.
  [[nodiscard]] virtual std::size_t stateSize() const noexcept { return 0; }
  virtual void run(const float* in, float* out, float* scratch, float* state) const noexcept = 0;

 private:
  std::size_t in_;
  std::size_t out_;
};

using LayerList = std::vector<std::unique_ptr<const Layer>>;

/// Hands out tensors by name and shape, and knows which were never asked for.
class TensorShop {
 public:
  explicit TensorShop(std::map<std::string, Tensor> tensors) : tensors_(std::move(tensors)) {}

  /// Return a vector of `size` numbers. Throws ShapeError.
  std::vector<float> vector(const std::string& name, std::size_t size);
  /// Return a matrix [rows, columns], row by row. Throws ShapeError.
  std::vector<float> matrix(const std::string& name, std::size_t rows, std::size_t columns);
  /// Return the length of a vector. Throws ShapeError.
  std::size_t length(const std::string& name);
  /// Return the rows and columns of a matrix. Throws ShapeError.
  std::pair<std::size_t, std::size_t> shape(const std::string& name);
  /// Return how many numbers were handed out so far.
  [[nodiscard]] std::size_t numbers() const noexcept { return numbers_; }
  /// Throw ShapeError if a tensor was never asked for.
  void finish() const;

 private:
  Tensor& find(const std::string& name);
  std::vector<float> take(const std::string& name);

  std::map<std::string, Tensor> tensors_;
  std::set<std::string> used_;
  std::size_t numbers_ = 0;
};

/// A tensor does not fit. It never leaves the library.
struct ShapeError {
  std::string message;
};

/// Build a layer behind `width` numbers. Throws ShapeError.
std::unique_ptr<const Layer> makeLayer(const LayerSpec& spec, std::size_t width, TensorShop& shop);

}  // namespace assay

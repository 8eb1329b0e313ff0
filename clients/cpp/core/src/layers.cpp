#include "layers.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace assay {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Matrix<float, Eigen::Dynamic, 1>;
using ConstMatrixMap = Eigen::Map<const Matrix>;
using ConstVectorMap = Eigen::Map<const Vector>;
using VectorMap = Eigen::Map<Vector>;
using ArrayMap = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, 1>>;
using ConstArrayMap = Eigen::Map<const Eigen::Array<float, Eigen::Dynamic, 1>>;

Eigen::Index index(std::size_t n) { return static_cast<Eigen::Index>(n); }

/// out = W in + b, without a temporary.
void affine(const std::vector<float>& weight, const std::vector<float>& bias, const float* in,
            std::size_t inWidth, float* out) noexcept {
  const Eigen::Index rows = index(bias.size());
  VectorMap y(out, rows);
  y = ConstVectorMap(bias.data(), rows);
  y.noalias() += ConstMatrixMap(weight.data(), rows, index(inWidth)) *
                 ConstVectorMap(in, index(inWidth));
}

/// (1 + tanh(x / 2)) / 2, which cannot overflow.
template <typename Array>
void sigmoid(Array&& x) noexcept {
  x = (x * 0.5F).tanh() * 0.5F + 0.5F;
}

void activate(ActivationKind kind, float* values, std::size_t size) noexcept {
  ArrayMap x(values, index(size));
  switch (kind) {
    case ActivationKind::None:
      break;
    case ActivationKind::Tanh:
      x = x.tanh();
      break;
    case ActivationKind::Relu:
      x = x.max(0.0F);
      break;
    case ActivationKind::Elu:
      x = x.max(0.0F) + (x.min(0.0F).exp() - 1.0F);
      break;
    case ActivationKind::Silu:
      x = x * ((x * 0.5F).tanh() * 0.5F + 0.5F);
      break;
    case ActivationKind::Gelu:
      // x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
      x = x * (((x * x * 0.044715F + 1.0F) * x * 0.7978845608F).tanh() * 0.5F + 0.5F);
      break;
  }
}

class Dense final : public Layer {
 public:
  Dense(std::vector<float> weight, std::vector<float> bias, std::size_t in, ActivationKind kind)
      : Layer(in, bias.size()), weight_(std::move(weight)), bias_(std::move(bias)), kind_(kind) {}

  void run(const float* in, float* out, float*, float*) const noexcept override {
    affine(weight_, bias_, in, inWidth(), out);
    activate(kind_, out, outWidth());
  }

 private:
  std::vector<float> weight_;
  std::vector<float> bias_;
  ActivationKind kind_;
};

class LoneActivation final : public Layer {
 public:
  LoneActivation(std::size_t width, ActivationKind kind) : Layer(width, width), kind_(kind) {}

  void run(const float* in, float* out, float*, float*) const noexcept override {
    std::copy(in, in + inWidth(), out);
    activate(kind_, out, outWidth());
  }

 private:
  ActivationKind kind_;
};

class LayerNorm final : public Layer {
 public:
  LayerNorm(std::vector<float> weight, std::vector<float> bias, float eps)
      : Layer(bias.size(), bias.size()),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        eps_(eps) {}

  void run(const float* in, float* out, float*, float*) const noexcept override {
    const Eigen::Index n = index(inWidth());
    const ConstArrayMap x(in, n);
    ArrayMap y(out, n);
    y = x - x.mean();
    const float scale = 1.0F / std::sqrt(y.square().mean() + eps_);
    y = y * scale * ConstArrayMap(weight_.data(), n) + ConstArrayMap(bias_.data(), n);
  }

 private:
  std::vector<float> weight_;
  std::vector<float> bias_;
  float eps_;
};

class BatchNorm final : public Layer {
 public:
  BatchNorm(const std::vector<float>& weight, std::vector<float> bias, std::vector<float> mean,
            const std::vector<float>& variance, float eps)
      : Layer(bias.size(), bias.size()), bias_(std::move(bias)), mean_(std::move(mean)) {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      factor_.push_back(weight[i] / std::sqrt(variance[i] + eps));
    }
  }

  void run(const float* in, float* out, float*, float*) const noexcept override {
    const Eigen::Index n = index(inWidth());
    ArrayMap(out, n) = (ConstArrayMap(in, n) - ConstArrayMap(mean_.data(), n)) *
                           ConstArrayMap(factor_.data(), n) +
                       ConstArrayMap(bias_.data(), n);
  }

 private:
  std::vector<float> factor_;
  std::vector<float> bias_;
  std::vector<float> mean_;
};

/// Layers one after another, inside another layer.
class Stream {
 public:
  Stream(const std::vector<LayerSpec>& specs, std::size_t width, TensorShop& shop) {
    for (const LayerSpec& spec : specs) {
      layers_.push_back(makeLayer(spec, width, shop));
      width = layers_.back()->outWidth();
      widest_ = std::max(widest_, width);
    }
  }

  [[nodiscard]] std::size_t outWidth() const noexcept { return layers_.back()->outWidth(); }
  [[nodiscard]] std::size_t widest() const noexcept { return widest_; }
  [[nodiscard]] std::size_t scratchSize() const noexcept { return 2 * widest_; }

  /// Return the output, which lies in `scratch`.
  float* run(const float* in, float* scratch) const noexcept {
    float* out = scratch;
    float* other = scratch + widest_;
    for (const auto& layer : layers_) {
      layer->run(in, out, nullptr, nullptr);
      in = out;
      std::swap(out, other);
    }
    return other;
  }

 private:
  LayerList layers_;
  std::size_t widest_ = 0;
};

/// A stream as one layer.
class Sequence final : public Layer {
 public:
  Sequence(std::size_t in, Stream stream)
      : Layer(in, stream.outWidth()), stream_(std::move(stream)) {}

  [[nodiscard]] std::size_t scratchSize() const noexcept override { return stream_.scratchSize(); }

  void run(const float* in, float* out, float* scratch, float*) const noexcept override {
    const float* last = stream_.run(in, scratch);
    std::copy(last, last + outWidth(), out);
  }

 private:
  Stream stream_;
};

/// Q = V + A - mean(A).
class Dueling final : public Layer {
 public:
  Dueling(std::size_t in, Stream value, Stream advantage)
      : Layer(in, advantage.outWidth()),
        value_(std::move(value)),
        advantage_(std::move(advantage)) {}

  [[nodiscard]] std::size_t scratchSize() const noexcept override {
    return value_.scratchSize() + advantage_.scratchSize();
  }

  void run(const float* in, float* out, float* scratch, float*) const noexcept override {
    const float value = *value_.run(in, scratch);
    const float* advantage = advantage_.run(in, scratch + value_.scratchSize());
    const ConstArrayMap a(advantage, index(outWidth()));
    ArrayMap(out, index(outWidth())) = a + (value - a.mean());
  }

 private:
  Stream value_;
  Stream advantage_;
};

/// Expected returns of each action's atoms.
class Atoms final : public Layer {
 public:
  Atoms(std::size_t in, std::size_t actions, std::size_t atoms, Stream advantage,
        std::unique_ptr<const Stream> value, std::vector<float> support)
      : Layer(in, actions),
        atoms_(atoms),
        advantage_(std::move(advantage)),
        value_(std::move(value)),
        support_(std::move(support)) {}

  [[nodiscard]] std::size_t scratchSize() const noexcept override {
    return advantage_.scratchSize() + (value_ ? value_->scratchSize() : 0) + atoms_;
  }

  void run(const float* in, float* out, float* scratch, float*) const noexcept override {
    const Eigen::Index actions = index(outWidth());
    const Eigen::Index count = index(atoms_);
    float* table = advantage_.run(in, scratch);
    float* rest = scratch + advantage_.scratchSize();
    ArrayMap baseline(rest, count);
    if (value_) {
      // V_k + A_ak - mean_a A_ak
      const float* value = value_->run(in, rest + count);
      baseline = ConstArrayMap(table, count);
      for (Eigen::Index a = 1; a < actions; ++a) {
        baseline += ConstArrayMap(table + a * count, count);
      }
      baseline = ConstArrayMap(value, count) - baseline / static_cast<float>(actions);
    }
    for (Eigen::Index a = 0; a < actions; ++a) {
      ArrayMap atoms(table + a * count, count);
      if (value_) {
        atoms += baseline;
      }
      if (support_.empty()) {
        out[a] = atoms.mean();
      } else {
        atoms = (atoms - atoms.maxCoeff()).exp();
        out[a] = (atoms * ConstArrayMap(support_.data(), count)).sum() / atoms.sum();
      }
    }
  }

 private:
  std::size_t atoms_;
  Stream advantage_;
  std::unique_ptr<const Stream> value_;
  std::vector<float> support_;
};

/// phi(tau) = relu(W cos(pi i tau) + b), i = 0 .. C - 1.
class CosineEmbedding {
 public:
  CosineEmbedding(std::vector<float> weight, std::vector<float> bias, std::size_t cosines)
      : weight_(std::move(weight)), bias_(std::move(bias)) {
    for (std::size_t i = 0; i < cosines; ++i) {
      frequency_.push_back(3.14159265358979F * static_cast<float>(i));
    }
  }

  [[nodiscard]] std::size_t outWidth() const noexcept { return bias_.size(); }
  [[nodiscard]] std::size_t cosines() const noexcept { return frequency_.size(); }

  /// Write the embedding of one level; `scratch` holds the cosines.
  void run(float tau, float* phi, float* scratch) const noexcept {
    const Eigen::Index count = index(cosines());
    ArrayMap(scratch, count) = (ConstArrayMap(frequency_.data(), count) * tau).cos();
    affine(weight_, bias_, scratch, cosines(), phi);
    activate(ActivationKind::Relu, phi, outWidth());
  }

 private:
  std::vector<float> frequency_;
  std::vector<float> weight_;
  std::vector<float> bias_;
};

/// mean_k head(x * phi_k): expected returns at levels that are always the same.
class FixedLevels final : public Layer {
 public:
  /// An affine head commutes with the mean, which is then taken here.
  FixedLevels(const CosineEmbedding& embedding, const std::vector<float>& levels, bool affine,
              std::unique_ptr<const Layer> head)
      : Layer(embedding.outWidth(), head->outWidth()),
        rows_(affine ? 1 : levels.size()),
        phi_(rows_ * inWidth()),
        head_(std::move(head)) {
    const Eigen::Index width = index(inWidth());
    std::vector<float> cosines(embedding.cosines());
    std::vector<float> one(inWidth());
    for (std::size_t k = 0; k < levels.size(); ++k) {
      embedding.run(levels[k], one.data(), cosines.data());
      ArrayMap(row(affine ? 0 : k), width) += ConstArrayMap(one.data(), width);
    }
    if (affine) {
      ArrayMap(row(0), width) /= static_cast<float>(levels.size());
    }
  }

  [[nodiscard]] std::size_t scratchSize() const noexcept override {
    return inWidth() + outWidth() + head_->scratchSize();
  }

  void run(const float* in, float* out, float* scratch, float*) const noexcept override {
    const Eigen::Index width = index(inWidth());
    const Eigen::Index actions = index(outWidth());
    float* product = scratch;
    float* values = product + width;
    ArrayMap sum(out, actions);
    sum.setZero();
    for (std::size_t k = 0; k < rows_; ++k) {
      ArrayMap(product, width) =
          ConstArrayMap(in, width) * ConstArrayMap(phi_.data() + k * inWidth(), width);
      head_->run(product, values, values + actions, nullptr);
      sum += ConstArrayMap(values, actions);
    }
    sum /= static_cast<float>(rows_);
  }

 private:
  float* row(std::size_t k) noexcept { return phi_.data() + k * inWidth(); }

  std::size_t rows_;
  std::vector<float> phi_;  // [rows, in]
  std::unique_ptr<const Layer> head_;
};

/// sum_k mass_k head(x * phi(tau_k)): the masses are a softmax, and tau the middles between them.
class ProposedLevels final : public Layer {
 public:
  ProposedLevels(CosineEmbedding embedding, std::vector<float> weight, std::vector<float> bias,
                 bool affine, std::unique_ptr<const Layer> head)
      : Layer(embedding.outWidth(), head->outWidth()),
        embedding_(std::move(embedding)),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        affine_(affine),
        head_(std::move(head)) {}

  [[nodiscard]] std::size_t scratchSize() const noexcept override {
    return bias_.size() + embedding_.cosines() + 2 * inWidth() + outWidth() + head_->scratchSize();
  }

  void run(const float* in, float* out, float* scratch, float*) const noexcept override {
    const Eigen::Index width = index(inWidth());
    const Eigen::Index actions = index(outWidth());
    float* cosines = scratch + bias_.size();
    float* phi = cosines + embedding_.cosines();
    float* mean = phi + width;
    float* values = mean + width;
    float* rest = values + actions;
    affine(weight_, bias_, in, inWidth(), scratch);
    ArrayMap mass(scratch, index(bias_.size()));
    mass = (mass - mass.maxCoeff()).exp();
    mass /= mass.sum();
    const ConstArrayMap x(in, width);
    ArrayMap(mean, width).setZero();
    ArrayMap(out, actions).setZero();
    float end = 0.0F;
    for (Eigen::Index k = 0; k < mass.size(); ++k) {
      end += mass[k];
      embedding_.run(end - mass[k] / 2.0F, phi, cosines);
      if (affine_) {
        ArrayMap(mean, width) += mass[k] * ConstArrayMap(phi, width);
      } else {
        ArrayMap(phi, width) *= x;
        head_->run(phi, values, rest, nullptr);
        ArrayMap(out, actions) += mass[k] * ConstArrayMap(values, actions);
      }
    }
    if (affine_) {
      ArrayMap(mean, width) *= x;
      head_->run(mean, out, rest, nullptr);
    }
  }

 private:
  CosineEmbedding embedding_;
  std::vector<float> weight_;  // of the proposal
  std::vector<float> bias_;
  bool affine_;
  std::unique_ptr<const Layer> head_;
};

struct Gate {
  std::vector<float> input;
  std::vector<float> bias;
  std::vector<float> hidden;
  std::size_t in;
};

/// What GRU and LSTM share: gates over the input and over the last output.
class Gated : public Layer {
 public:
  Gated(std::size_t in, std::size_t size, std::size_t gates, std::vector<Gate> layers)
      : Layer(in, size), width_(gates * size), layers_(std::move(layers)) {}

  [[nodiscard]] std::size_t scratchSize() const noexcept override { return 2 * width_; }

 protected:
  /// Write the gates' inputs: from x with the bias, and from h.
  void project(const Gate& gate, const float* x, const float* h, float* fromX,
               float* fromH) const noexcept {
    affine(gate.input, gate.bias, x, gate.in, fromX);
    VectorMap(fromH, index(width_)).noalias() =
        ConstMatrixMap(gate.hidden.data(), index(width_), index(outWidth())) *
        ConstVectorMap(h, index(outWidth()));
  }

  [[nodiscard]] std::size_t width() const noexcept { return width_; }
  [[nodiscard]] const std::vector<Gate>& layers() const noexcept { return layers_; }

 private:
  std::size_t width_;
  std::vector<Gate> layers_;
};

/// Gates reset, keep, new; the state is h of each layer.
class Gru final : public Gated {
 public:
  using Gated::Gated;

  [[nodiscard]] std::size_t stateSize() const noexcept override {
    return layers().size() * outWidth();
  }

  void run(const float* in, float* out, float* scratch, float* state) const noexcept override {
    const Eigen::Index n = index(outWidth());
    float* fromX = scratch;
    float* fromH = scratch + width();
    const float* x = in;
    for (const Gate& gate : layers()) {
      project(gate, x, state, fromX, fromH);
      ArrayMap gates(fromX, 2 * n);
      gates += ConstArrayMap(fromH, 2 * n);
      sigmoid(gates);
      // n = tanh(x' + r h''),  h' = n + z (h - n)
      ArrayMap fresh(fromX + 2 * n, n);
      fresh = (fresh + ConstArrayMap(fromX, n) * ConstArrayMap(fromH + 2 * n, n)).tanh();
      ArrayMap h(state, n);
      h = fresh + ConstArrayMap(fromX + n, n) * (h - fresh);
      x = state;
      state += n;
    }
    std::copy(x, x + n, out);
  }
};

/// Gates input, forget, output, new; the state is c and h of each layer.
class Lstm final : public Gated {
 public:
  using Gated::Gated;

  [[nodiscard]] std::size_t stateSize() const noexcept override {
    return 2 * layers().size() * outWidth();
  }

  void run(const float* in, float* out, float* scratch, float* state) const noexcept override {
    const Eigen::Index n = index(outWidth());
    float* gates = scratch;
    float* fromH = scratch + width();
    const float* x = in;
    for (const Gate& gate : layers()) {
      ArrayMap c(state, n);
      ArrayMap h(state + n, n);
      project(gate, x, state + n, gates, fromH);
      ArrayMap all(gates, 4 * n);
      all += ConstArrayMap(fromH, 4 * n);
      ArrayMap open(gates, 3 * n);
      sigmoid(open);
      // c' = f c + i g,  h' = o tanh(c')
      c = ConstArrayMap(gates + n, n) * c +
          ConstArrayMap(gates, n) * ConstArrayMap(gates + 3 * n, n).tanh();
      h = ConstArrayMap(gates + 2 * n, n) * c.tanh();
      x = state + n;
      state += 2 * n;
    }
    std::copy(x, x + n, out);
  }
};

std::unique_ptr<const Layer> makeGated(const LayerSpec& spec, std::size_t width, TensorShop& shop) {
  const std::size_t gates = spec.kind == LayerKind::Gru ? 3 : 4;
  if (gates * spec.size > kMaxWidth) {
    throw ShapeError{"A memory is too wide."};
  }
  std::vector<Gate> layers;
  std::size_t in = width;
  for (const GateSpec& gate : spec.gates) {
    layers.push_back({shop.matrix(gate.input, gates * spec.size, in),
                      shop.vector(gate.bias, gates * spec.size),
                      shop.matrix(gate.hidden, gates * spec.size, spec.size), in});
    in = spec.size;
  }
  if (spec.kind == LayerKind::Gru) {
    return std::make_unique<Gru>(width, spec.size, gates, std::move(layers));
  }
  return std::make_unique<Lstm>(width, spec.size, gates, std::move(layers));
}

std::unique_ptr<const Layer> makeAtoms(const LayerSpec& spec, std::size_t width, TensorShop& shop) {
  if (spec.actions * spec.atoms > kMaxWidth) {
    throw ShapeError{"There are too many atoms."};
  }
  Stream advantage(spec.advantage, width, shop);
  std::unique_ptr<const Stream> value;
  if (!spec.value.empty()) {
    value = std::make_unique<const Stream>(spec.value, width, shop);
  }
  if (advantage.outWidth() != spec.actions * spec.atoms ||
      (value && value->outWidth() != spec.atoms)) {
    throw ShapeError{"A stream of the head does not give as many numbers as there are atoms."};
  }
  std::vector<float> support;
  if (!spec.support.empty()) {
    support = shop.vector(spec.support, spec.atoms);
  }
  return std::make_unique<Atoms>(width, spec.actions, spec.atoms, std::move(advantage),
                                 std::move(value), std::move(support));
}

std::unique_ptr<const Layer> makeDueling(std::size_t width, Stream value, Stream advantage) {
  if (value.outWidth() != 1) {
    throw ShapeError{"The value stream does not give one number."};
  }
  return std::make_unique<Dueling>(width, std::move(value), std::move(advantage));
}

std::unique_ptr<const Layer> makeLevels(const LayerSpec& spec, std::size_t width,
                                        TensorShop& shop) {
  const bool fixed = !spec.levels.empty();
  const std::size_t count =
      fixed ? shop.length(spec.levels) : shop.shape(spec.proposalWeight).first;
  const std::size_t cosines = shop.shape(spec.weight).second;
  const std::size_t before = shop.numbers();
  Stream advantage(spec.advantage, width, shop);
  std::size_t widest = std::max({width, cosines, advantage.widest()});
  std::unique_ptr<const Layer> head;
  if (spec.value.empty()) {
    head = std::make_unique<Sequence>(width, std::move(advantage));
  } else {
    Stream value(spec.value, width, shop);
    widest = std::max(widest, value.widest());
    head = makeDueling(width, std::move(value), std::move(advantage));
  }
  // A file of few bytes must not ask for much: the embeddings of all levels are kept.
  if (count > kMaxCells / widest) {
    throw ShapeError{std::to_string(count) + " levels make " + std::to_string(widest) +
                     " numbers each of one observation; at most " + std::to_string(kMaxCells) +
                     " in all fit."};
  }
  const std::size_t each = width * cosines + shop.numbers() - before;
  if (count > kMaxWork / each) {
    throw ShapeError{std::to_string(count) + " levels cost more products for one observation than " +
                     std::to_string(kMaxWork) + "."};
  }
  CosineEmbedding embedding(shop.matrix(spec.weight, width, cosines), shop.vector(spec.bias, width),
                            cosines);
  if (!fixed) {
    return std::make_unique<ProposedLevels>(
        std::move(embedding), shop.matrix(spec.proposalWeight, count, width),
        shop.vector(spec.proposalBias, count), spec.affine(), std::move(head));
  }
  const std::vector<float> levels = shop.vector(spec.levels, count);
  if (std::any_of(levels.begin(), levels.end(), [](float v) { return v < 0.0F || v > 1.0F; })) {
    throw ShapeError{"Tensor '" + spec.levels + "' holds a level that is not between 0 and 1."};
  }
  return std::make_unique<FixedLevels>(embedding, levels, spec.affine(), std::move(head));
}

}  // namespace

Tensor& TensorShop::find(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw ShapeError{"The model file lacks the tensor '" + name + "'."};
  }
  return found->second;
}

std::vector<float> TensorShop::take(const std::string& name) {
  // Each tensor belongs to one layer, so that layers hold no more than the file.
  if (!used_.insert(name).second) {
    throw ShapeError{"Two layers use the tensor '" + name + "'."};
  }
  std::vector<float> values = std::move(find(name).values);
  numbers_ += values.size();
  return values;
}

std::vector<float> TensorShop::vector(const std::string& name, std::size_t size) {
  const Tensor& tensor = find(name);
  if (tensor.shape != std::vector<std::size_t>{size}) {
    throw ShapeError{"Tensor '" + name + "' is not a vector of " + std::to_string(size) + "."};
  }
  return take(name);
}

std::vector<float> TensorShop::matrix(const std::string& name, std::size_t rows,
                                      std::size_t columns) {
  const Tensor& tensor = find(name);
  if (tensor.shape != std::vector<std::size_t>{rows, columns}) {
    throw ShapeError{"Tensor '" + name + "' is not a matrix of " + std::to_string(rows) + " by " +
                     std::to_string(columns) + "."};
  }
  return take(name);
}

std::size_t TensorShop::length(const std::string& name) {
  const Tensor& tensor = find(name);
  if (tensor.shape.size() != 1) {
    throw ShapeError{"Tensor '" + name + "' is not a vector."};
  }
  return tensor.shape[0];
}

std::pair<std::size_t, std::size_t> TensorShop::shape(const std::string& name) {
  const Tensor& tensor = find(name);
  if (tensor.shape.size() != 2) {
    throw ShapeError{"Tensor '" + name + "' is not a matrix."};
  }
  return {tensor.shape[0], tensor.shape[1]};
}

void TensorShop::finish() const {
  for (const auto& [name, tensor] : tensors_) {
    if (used_.count(name) == 0) {
      throw ShapeError{"No layer uses the tensor '" + name + "'."};
    }
  }
}

std::unique_ptr<const Layer> makeLayer(const LayerSpec& spec, std::size_t width, TensorShop& shop) {
  switch (spec.kind) {
    case LayerKind::Dense: {
      const std::size_t rows = shop.shape(spec.weight).first;
      return std::make_unique<Dense>(shop.matrix(spec.weight, rows, width),
                                     shop.vector(spec.bias, rows), width, spec.activation);
    }
    case LayerKind::LayerNorm:
      return std::make_unique<LayerNorm>(shop.vector(spec.weight, width),
                                         shop.vector(spec.bias, width), spec.eps);
    case LayerKind::BatchNorm: {
      const std::vector<float> variance = shop.vector(spec.variance, width);
      if (std::any_of(variance.begin(), variance.end(), [](float v) { return v < 0.0F; })) {
        throw ShapeError{"Tensor '" + spec.variance + "' holds a negative variance."};
      }
      return std::make_unique<BatchNorm>(shop.vector(spec.weight, width),
                                         shop.vector(spec.bias, width),
                                         shop.vector(spec.mean, width), variance, spec.eps);
    }
    case LayerKind::Activation:
      return std::make_unique<LoneActivation>(width, spec.activation);
    case LayerKind::Dueling: {
      Stream value(spec.value, width, shop);
      Stream advantage(spec.advantage, width, shop);
      return makeDueling(width, std::move(value), std::move(advantage));
    }
    case LayerKind::Atoms:
      return makeAtoms(spec, width, shop);
    case LayerKind::Levels:
      return makeLevels(spec, width, shop);
    case LayerKind::Gru:
    case LayerKind::Lstm:
      return makeGated(spec, width, shop);
  }
  throw ShapeError{"Unknown kind of layer."};
}

}  // namespace assay

/// @file
/// A model version: checked once when it is loaded, then immutable and shared between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "assay/result.h"

namespace assay {

/// What kind of decision a model makes.
enum class HeadKind {
  Categorical,       ///< One choice.
  MultiCategorical,  ///< Independent choices.
  Bernoulli,         ///< Independent bits.
  Gaussian,          ///< Numbers, clipped to their bounds.
  SquashedGaussian,  ///< Numbers, squashed into their bounds.
  Deterministic,     ///< Numbers; exploring adds noise.
  ActionValues,      ///< One choice: the best, or with probability epsilon any valid one.
};

/// What the noise of a decision is drawn from.
enum class NoiseKind { Uniform, Normal };

/// An entry of the observation, in the order in which a model reads them.
struct Input {
  std::string key;   ///< Empty where the observation is one array.
  std::size_t size;  ///< How many numbers it brings.
};

class Network;
class Head;

/// A policy as the server published it.
class Model {
 public:
  /// Load a model from the bytes of its file.
  ///
  /// @param data The whole file.
  /// @param size Its length.
  /// @param sha256 The digest that was promised, in hexadecimal; empty if none was.
  [[nodiscard]] static Result<std::shared_ptr<const Model>> fromBytes(
      const void* data, std::size_t size, const std::string& sha256 = {});

  /// Load a model from a file.
  [[nodiscard]] static Result<std::shared_ptr<const Model>> fromFile(
      const std::string& path, const std::string& sha256 = {});

  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] std::int64_t version() const noexcept;
  [[nodiscard]] std::int64_t epoch() const noexcept;
  /// Return the name of the algorithm that learned the model.
  [[nodiscard]] const std::string& algorithm() const noexcept;
  /// Return the digest of the file, in hexadecimal.
  [[nodiscard]] const std::string& sha256() const noexcept;
  [[nodiscard]] HeadKind headKind() const noexcept;
  /// Return how many numbers an observation has: those of all its entries, one after another.
  [[nodiscard]] std::size_t observationSize() const noexcept;
  /// Return the entries of an observation.
  [[nodiscard]] const std::vector<Input>& inputs() const noexcept;
  /// Return the space of observations that the model was made for, as JSON.
  [[nodiscard]] const std::string& observationSpace() const noexcept;
  /// Return the space of actions that the model was made for, as JSON.
  [[nodiscard]] const std::string& actionSpace() const noexcept;
  /// Return how many numbers an action has.
  [[nodiscard]] std::size_t actionSize() const noexcept;
  /// Return the length of an action mask; 0 where actions are not masked.
  [[nodiscard]] std::size_t maskSize() const noexcept;
  [[nodiscard]] NoiseKind noiseKind() const noexcept;
  [[nodiscard]] std::size_t noiseSize() const noexcept;
  /// Say whether the policy remembers from step to step.
  [[nodiscard]] bool recurrent() const noexcept;

 private:
  friend class Policy;
  struct Parts;
  explicit Model(std::unique_ptr<const Parts> parts) noexcept;

  std::unique_ptr<const Parts> parts_;
};

}  // namespace assay

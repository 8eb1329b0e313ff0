/// @file
/// Acting with a model: no allocation, no exception, no lock, no input or output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "assay/model.h"
#include "assay/random.h"
#include "assay/span.h"

namespace assay {

/// How a call of `Policy::act` went.
enum class ActStatus {
  Ok,
  WrongSize,       ///< Observation, mask or noise has not as many numbers as the model expects.
  BadObservation,  ///< The observation holds a number that is not finite, or out of its range.
  BadOutput,       ///< The network's output is not finite.
};

/// What was decided. The spans lead into the policy and hold until its next call.
struct Decision {
  Span<const std::int64_t> choices;  ///< The action where it is made of choices or bits.
  Span<const float> values;          ///< The action where it is made of numbers.
  Span<const float> raw;             ///< The numbers before they were clipped.
  double logProbability = 0.0;       ///< Of what was done, exploration included.
};

/// A model with memory of its own to act in. For one thread at a time.
///
/// The noise of a decision, and what log-probabilities are of, is said in
/// `assay.server.client.policy`, whose answers these are.
class Policy {
 public:
  /// Allocate all that acting needs.
  explicit Policy(std::shared_ptr<const Model> model);
  ~Policy();
  Policy(Policy&&) noexcept;
  Policy& operator=(Policy&&) noexcept;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  /// Choose an action.
  ///
  /// @param observation The numbers of all entries, one after another.
  /// @param mask Nonzero where a choice is valid, `Model::maskSize` of them; empty for all. One that
  ///     allows nothing counts as none.
  /// @param random Explore with it; nullptr takes the best action, with log-probability 0.
  /// @param decision Set where the status is Ok.
  ActStatus act(Span<const float> observation, Span<const std::uint8_t> mask, Random* random,
                Decision& decision) noexcept;

  /// Choose the action that given noise selects; empty noise takes the best one.
  ActStatus decide(Span<const float> observation, Span<const std::uint8_t> mask,
                   Span<const double> noise, Decision& decision) noexcept;

  /// Forget what was remembered: a new episode begins.
  void reset() noexcept;

  [[nodiscard]] const Model& model() const noexcept;

 private:
  struct Space;

  std::shared_ptr<const Model> model_;
  std::unique_ptr<Space> space_;
};

}  // namespace assay

// A model that is ready to act, and how it passes from the thread that fetched it to those that act.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "assay/policy.h"
#include "parsed_spec.h"

namespace assay {

/// A policy that was checked against the spec and warmed up.
class LoadedModel {
 public:
  /// Prepare a model, or say why it does not fit.
  [[nodiscard]] static Result<std::unique_ptr<LoadedModel>> make(std::shared_ptr<const Model> model,
                                                                 const ParsedSpec& spec,
                                                                 double freshAt);

  /// Choose an action; the observation is in the order of the spec.
  ActStatus act(Span<const float> observation, Span<const std::uint8_t> mask, Random* random,
                Decision& decision) noexcept;

  [[nodiscard]] Policy& policy() noexcept { return policy_; }
  [[nodiscard]] const Model& model() const noexcept { return policy_.model(); }

  /// When the server last said that this is the model to use.
  std::atomic<double> freshAt;
  /// The next one in a list of models that nobody acts with any more.
  LoadedModel* next = nullptr;

 private:
  LoadedModel(std::shared_ptr<const Model> model, double fresh);

  Policy policy_;
  std::vector<std::size_t> gather_;  // where each number comes from; empty: as they stand
  std::vector<float> gathered_;
};

/// Hands models over without a lock. One side delivers and frees, the other adopts and retires.
class ModelMailbox {
 public:
  ModelMailbox() = default;
  ~ModelMailbox();
  ModelMailbox(const ModelMailbox&) = delete;
  ModelMailbox& operator=(const ModelMailbox&) = delete;

  /// Make a model the next to be adopted, and free what was retired.
  void deliver(std::unique_ptr<LoadedModel> model) noexcept;
  /// Take what was delivered last, or nullptr. For the acting side; allocates and frees nothing.
  LoadedModel* adopt() noexcept;
  /// Leave a model to be freed by the other side.
  void retire(LoadedModel* model) noexcept;

 private:
  void reap() noexcept;

  std::atomic<LoadedModel*> incoming_{nullptr};
  std::atomic<LoadedModel*> retired_{nullptr};
};

}  // namespace assay

#include "loaded.h"

#include <algorithm>
#include <utility>

namespace assay {
namespace {

constexpr int kWarmUp = 3;

}  // namespace

LoadedModel::LoadedModel(std::shared_ptr<const Model> model, double fresh)
    : freshAt(fresh), policy_(std::move(model)) {}

Result<std::unique_ptr<LoadedModel>> LoadedModel::make(std::shared_ptr<const Model> model,
                                                       const ParsedSpec& spec, double freshAt) {
  if (auto difference = differenceTo(spec, model->observationSpace(), model->actionSpace());
      !difference.empty()) {
    return Error{ErrorCode::BadModel, std::move(difference)};
  }
  const bool numbers = spec.action.kind == SpaceKind::Box;
  const bool headOfNumbers = model->headKind() == HeadKind::Gaussian ||
                             model->headKind() == HeadKind::SquashedGaussian ||
                             model->headKind() == HeadKind::Deterministic;
  if (numbers != headOfNumbers || model->actionSize() != spec.action.size ||
      (!numbers && model->maskSize() != spec.maskSize)) {
    return Error{ErrorCode::BadModel, "The model's head does not give actions of its own space."};
  }
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(model, freshAt));
  bool inOrder = model->observationSize() == spec.observationSize;
  for (const Input& input : model->inputs()) {
    std::size_t offset = 0;
    const LeafSpec* found = nullptr;
    for (const LeafSpec& leaf : spec.leaves) {
      if (leaf.isMask) {
        continue;
      }
      if (leaf.key == input.key) {
        found = &leaf;
        break;
      }
      offset += leaf.size;
    }
    if (found == nullptr || found->size != input.size) {
      return Error{ErrorCode::BadModel, "The model reads an entry '" + input.key + "' of " +
                                            std::to_string(input.size) +
                                            " numbers, which the observation does not have."};
    }
    inOrder = inOrder && offset == loaded->gather_.size();
    for (std::size_t i = 0; i < input.size; ++i) {
      loaded->gather_.push_back(offset + i);
    }
  }
  if (inOrder) {
    loaded->gather_.clear();
  }
  loaded->gathered_.resize(loaded->gather_.size());
  // The first real call shall be no slower than the others.
  const std::vector<float> observation(spec.observationSize, 0.0F);
  const std::vector<std::uint8_t> mask(spec.maskSize, 1);
  Random random(0);
  Decision decision;
  for (int i = 0; i < kWarmUp; ++i) {
    for (Random* explore : {&random, static_cast<Random*>(nullptr)}) {
      if (loaded->act(observation, mask, explore, decision) != ActStatus::Ok) {
        return Error{ErrorCode::NotFinite, "The model does not answer an observation of zeros."};
      }
    }
  }
  loaded->policy_.reset();
  return loaded;
}

ActStatus LoadedModel::act(Span<const float> observation, Span<const std::uint8_t> mask,
                           Random* random, Decision& decision) noexcept {
  if (gather_.empty()) {
    return policy_.act(observation, mask, random, decision);
  }
  for (std::size_t i = 0; i < gather_.size(); ++i) {
    gathered_[i] = observation[gather_[i]];
  }
  return policy_.act(gathered_, mask, random, decision);
}

ModelMailbox::~ModelMailbox() {
  delete incoming_.load();
  reap();
}

void ModelMailbox::deliver(std::unique_ptr<LoadedModel> model) noexcept {
  delete incoming_.exchange(model.release(), std::memory_order_acq_rel);
  reap();
}

LoadedModel* ModelMailbox::adopt() noexcept {
  if (incoming_.load(std::memory_order_relaxed) == nullptr) {
    return nullptr;
  }
  return incoming_.exchange(nullptr, std::memory_order_acq_rel);
}

void ModelMailbox::retire(LoadedModel* model) noexcept {
  if (model == nullptr) {
    return;
  }
  model->next = retired_.load(std::memory_order_relaxed);
  while (!retired_.compare_exchange_weak(model->next, model, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
}

void ModelMailbox::reap() noexcept {
  LoadedModel* model = retired_.exchange(nullptr, std::memory_order_acquire);
  while (model != nullptr) {
    LoadedModel* next = model->next;
    delete model;
    model = next;
  }
}

}  // namespace assay

#include "assay/policy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "parts.h"

namespace assay {

struct Policy::Space {
  Workspace network;
  HeadSpace head;
  std::vector<double> noise;
};

Policy::Policy(std::shared_ptr<const Model> model) : model_(std::move(model)) {
  const Model::Parts& parts = *model_->parts_;
  space_ = std::make_unique<Space>(Space{parts.network.makeWorkspace(), parts.head.makeSpace(),
                                         std::vector<double>(parts.head.noiseSize())});
}

Policy::~Policy() = default;
Policy::Policy(Policy&&) noexcept = default;
Policy& Policy::operator=(Policy&&) noexcept = default;

ActStatus Policy::act(Span<const float> observation, Span<const std::uint8_t> mask, Random* random,
                      Decision& decision) noexcept {
  if (random == nullptr) {
    return decide(observation, mask, {}, decision);
  }
  const bool uniform = model_->noiseKind() == NoiseKind::Uniform;
  for (double& number : space_->noise) {
    number = uniform ? random->uniform() : random->normal();
  }
  return decide(observation, mask, space_->noise, decision);
}

ActStatus Policy::decide(Span<const float> observation, Span<const std::uint8_t> mask,
                         Span<const double> noise, Decision& decision) noexcept {
  const Model::Parts& parts = *model_->parts_;
  if (observation.size() != parts.observationSize ||
      (!mask.empty() && mask.size() != parts.head.maskSize()) ||
      (!noise.empty() && noise.size() != space_->noise.size())) {
    return ActStatus::WrongSize;
  }
  const float* params = nullptr;
  switch (parts.network.run(observation.data(), space_->network, params)) {
    case Fault::Observation:
      return ActStatus::BadObservation;
    case Fault::Output:
      return ActStatus::BadOutput;
    case Fault::None:
      break;
  }
  HeadSpace& head = space_->head;
  const std::uint8_t* flags = mask.empty() ? nullptr : mask.data();
  const double* draw = noise.empty() ? nullptr : noise.data();
  decision.logProbability = parts.head.decide(params, flags, draw, head);
  decision.choices = head.choices;
  decision.values = head.values;
  decision.raw = head.raw;
  return ActStatus::Ok;
}

void Policy::reset() noexcept {
  std::fill(space_->network.state.begin(), space_->network.state.end(), 0.0F);
}

const Model& Policy::model() const noexcept { return *model_; }

}  // namespace assay

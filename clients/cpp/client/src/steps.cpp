#include "steps.h"

#include <new>

namespace assay {
namespace {

constexpr std::size_t kAlign = alignof(std::max_align_t);
constexpr auto kMostBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

std::size_t aligned(std::size_t size) noexcept { return (size + kAlign - 1) / kAlign * kAlign; }

}  // namespace

StepPool::Offsets::Offsets(const ParsedSpec& spec) noexcept {
  const bool numbers = spec.action.kind == SpaceKind::Box;
  observation = aligned(sizeof(Step));
  action = aligned(observation + spec.observationSize * sizeof(float));
  raw = aligned(action + spec.action.size * (numbers ? sizeof(float) : sizeof(std::int64_t)));
  mask = raw + (numbers ? spec.action.size * sizeof(float) : 0);
  stride = aligned(mask + (spec.masked ? spec.maskSize : 0));
}

std::size_t StepPool::bytesPerSlot(const ParsedSpec& spec) noexcept {
  return Offsets(spec).stride;
}

StepPool::StepPool(const ParsedSpec& spec, std::size_t slots)
    : offsets_(spec),
      slots_(slots),
      // Not value-initialised: pages that are never used are never touched.
      memory_(slots < kNoSlot - 1 && slots <= kMostBytes / offsets_.stride
                  ? new (std::nothrow) std::byte[slots * offsets_.stride]
                  : nullptr) {}

Step& StepPool::begin(Slot slot) noexcept { return *new (at(slot, 0)) Step(); }

Step& StepPool::step(Slot slot) const noexcept { return *reinterpret_cast<Step*>(at(slot, 0)); }

float* StepPool::observation(Slot slot) const noexcept {
  return reinterpret_cast<float*>(at(slot, offsets_.observation));
}

std::uint8_t* StepPool::mask(Slot slot) const noexcept {
  return reinterpret_cast<std::uint8_t*>(at(slot, offsets_.mask));
}

std::int64_t* StepPool::choices(Slot slot) const noexcept {
  return reinterpret_cast<std::int64_t*>(at(slot, offsets_.action));
}

float* StepPool::values(Slot slot) const noexcept {
  return reinterpret_cast<float*>(at(slot, offsets_.action));
}

float* StepPool::raw(Slot slot) const noexcept {
  return reinterpret_cast<float*>(at(slot, offsets_.raw));
}

}  // namespace assay

#include "agent.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "encoding.h"

namespace assay {
namespace {

constexpr double kAlike = 1e-3;  // how far two numbers of an action may differ and be the same

double steadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Agent::Agent(const ClientConfig& config, Outbox& outbox, ModelMailbox& mailbox,
             std::unique_ptr<LoadedModel> lastGood)
    : policySpec_(*config.spec),
      spec_(policySpec_.parts()),
      numbers_(spec_.action.kind == SpaceKind::Box),
      safe_(*config.safeAction),
      heuristic_(config.heuristic),
      mode_(config.mode),
      apprenticeSteps_(config.apprenticeSteps),
      explore_(config.explore),
      ttl_(config.modelTtl),
      batchSteps_(config.batchSteps),
      batchSeconds_(config.batchSeconds),
      blocks_(config.overflow == Overflow::Block),
      blockSeconds_(config.blockSeconds),
      clock_(config.clock ? config.clock : std::function<double()>(steadySeconds)),
      outbox_(outbox),
      mailbox_(mailbox),
      random_(config.seed),
      shield_(spec_, config.maxChange, config.holdSteps),
      lastGood_(std::move(lastGood)),
      choices_(numbers_ ? 0 : spec_.action.size),
      values_(numbers_ ? spec_.action.size : 0),
      raw_(values_.size()) {
  open_.reserve(batchSteps_ + 1);
}

Agent::~Agent() = default;

Decided Agent::decide(Span<const float> observation, Span<const std::uint8_t> mask) noexcept {
  try {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    return decideLocked(observation, mask);
  } catch (...) {  // a mutex may throw; then what is safe at any time is the answer
    Decided decided;
    decided.action = safe_;
    decided.flags = kFlagFallback;
    return decided;
  }
}

bool Agent::reward(double value, std::optional<std::uint64_t> event) noexcept {
  bool kept = false;
  try {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    kept = std::abs(value) <= kMostValue && rewardLocked(value, event);  // NaN is not
    lostRewards_ += kept ? 0 : 1;
  } catch (...) {
    return false;
  }
  waitIfAsked();
  return kept;
}

bool Agent::end(bool terminated, bool truncated, Span<const float> finalObservation) noexcept {
  bool kept = false;
  try {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    kept = endLocked(terminated, truncated, finalObservation);
  } catch (...) {
    return false;
  }
  waitIfAsked();
  return kept;
}

void Agent::flush() noexcept {
  try {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (open_.empty()) {
      return;
    }
    const Step& last = outbox_.pool().step(open_.back());
    if (last.terminated || last.truncated || pending_ == kNoSlot) {
      closeOpen(kNoSlot);
      return;
    }
    const StepPool& pool = outbox_.pool();
    const std::uint8_t* mask = spec_.masked ? pool.mask(pending_) : nullptr;
    closeOpen(keep({pool.observation(pending_), spec_.observationSize},
                   {mask, spec_.masked ? spec_.maskSize : 0}));
  } catch (...) {
    return;
  }
}

std::optional<Action> Agent::recommendation() const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return recommendation_;
}

void Agent::report(Status& status) const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  status.decisions = event_;
  status.byModel = sources_[static_cast<int>(Source::Model)];
  status.byLastGood = sources_[static_cast<int>(Source::LastGood)];
  status.byHeuristic = sources_[static_cast<int>(Source::Heuristic)];
  status.byConstant = sources_[static_cast<int>(Source::Constant)];
  status.shielded = shielded_;
  status.badObservations = badObservations_;
  status.badMasks = badMasks_;
  status.badOutputs = badOutputs_;
  status.badHeuristics = badHeuristics_;
  status.badEnds = badEnds_;
  if (compared_ > 0) {
    status.agreement = static_cast<double>(agreed_) / static_cast<double>(compared_);
  }
  status.heldSteps = outbox_.heldSteps();
  status.recordedSteps = outbox_.offeredSteps();
  status.droppedSteps = outbox_.droppedSteps() + unrecorded_;
  status.lostRewards = lostRewards_;
  status.lateRewards = lateRewards_;
}

// ------------------------------------------------------------------ deciding

Decided Agent::decideLocked(Span<const float> observation,
                            Span<const std::uint8_t> mask) noexcept {
  ++event_;
  const double now = clock_();
  bool recordable = false;
  Choice choice;
  if (!mask.empty() && mask.size() != spec_.maskSize) {
    // Whatever was chosen might be forbidden: what is safe at any time is the answer.
    ++badMasks_;
    mask = {};
    takeConstant(kFlagFallback, choice);
  } else {
    const bool readable = observation.size() == spec_.observationSize &&
                          isObservation(spec_, observation.data());
    recordable = readable && canBeSent(spec_, observation.data());
    badObservations_ += recordable ? 0 : 1;
    choice = choose(readable, observation, mask, now);
  }
  int shieldFlags = numbers_ ? shield_.apply(Span<float>(values_.data(), values_.size()))
                             : shield_.apply(Span<std::int64_t>(choices_.data(), choices_.size()),
                                             mask);
  if (shieldFlags < 0) {
    takeAction(safe_);
    shieldFlags = kFlagBounds;
  }
  auto flags = static_cast<std::uint8_t>(choice.flags | shieldFlags);
  if (!mask.empty() && !spec_.masked) {
    flags |= kFlagMask;  // the learner does not see this mask
  }
  shielded_ += shieldFlags != 0 ? 1 : 0;
  ++sources_[static_cast<int>(choice.source)];
  // The server would refuse the whole batch for a number that is too large.
  recordable = recordable && std::abs(choice.logProb) <= kMostLogProb &&
               std::all_of(values_.begin(), values_.end(),
                           [](float value) { return std::abs(value) <= kMostValue; });
  record(recordable, observation, mask, choice, flags, now);
  Decided decided;
  decided.action = current();
  decided.event = event_;
  decided.source = choice.source;
  decided.version = choice.version;
  decided.logProbability = choice.logProb;
  decided.flags = flags;
  return decided;
}

/// Ask the chain: current model, last good one, heuristic, constant.
Agent::Choice Agent::choose(bool readable, Span<const float> observation,
                            Span<const std::uint8_t> mask, double now) noexcept {
  const bool imitates = mode_ == Mode::Shadow ||
                        (mode_ == Mode::Apprentice && event_ <= apprenticeSteps_);
  Choice choice;
  const bool answered = readable && askModels(observation, mask, now, choice);
  if (!imitates) {
    if (!answered && !askHeuristic(observation, mask, kFlagFallback, choice)) {
      takeConstant(kFlagFallback, choice);
    }
    return choice;
  }
  recommendation_.reset();
  if (answered) {
    recommendation_ = current();
  }
  if (!askHeuristic(observation, mask, kFlagHeuristic, choice)) {
    takeConstant(kFlagHeuristic, choice);
  }
  if (recommendation_) {
    ++compared_;
    agreed_ += alike(*recommendation_) ? 1 : 0;
  }
  return choice;
}

bool Agent::askModels(Span<const float> observation, Span<const std::uint8_t> mask, double now,
                      Choice& choice) noexcept {
  adopt();
  return askModel(acting_.get(), Source::Model, observation, mask, now, choice) ||
         askModel(lastGood_.get(), Source::LastGood, observation, mask, now, choice);
}

bool Agent::askModel(LoadedModel* model, Source source, Span<const float> observation,
                     Span<const std::uint8_t> mask, double now, Choice& choice) noexcept {
  if (model == nullptr ||
      (ttl_ > 0.0 && now - model->freshAt.load(std::memory_order_relaxed) > ttl_)) {
    return false;
  }
  Decision decision;
  if (model->act(observation, mask, explore_ ? &random_ : nullptr, decision) != ActStatus::Ok) {
    ++badOutputs_;
    return false;
  }
  if (numbers_) {
    std::copy(decision.values.begin(), decision.values.end(), values_.begin());
    std::copy(decision.raw.begin(), decision.raw.end(), raw_.begin());
  } else {
    std::copy(decision.choices.begin(), decision.choices.end(), choices_.begin());
  }
  choice.source = source;
  choice.logProb = decision.logProbability;
  choice.version = model->model().version();
  choice.flags = source == Source::Model ? 0 : kFlagFallback;
  return true;
}

/// Take over a new current model; a memory is not changed in the middle of an episode.
void Agent::adopt() noexcept {
  if (LoadedModel* fresh = mailbox_.adopt()) {
    mailbox_.retire(waiting_.release());
    waiting_.reset(fresh);
  }
  if (!waiting_) {
    return;
  }
  const bool remembers =
      waiting_->model().recurrent() || (acting_ && acting_->model().recurrent());
  if (pending_ != kNoSlot && acting_ && remembers) {
    return;
  }
  waiting_->policy().reset();
  if (acting_) {
    mailbox_.retire(lastGood_.release());
    lastGood_ = std::move(acting_);
  }
  acting_ = std::move(waiting_);
}

bool Agent::askHeuristic(Span<const float> observation, Span<const std::uint8_t> mask,
                         std::uint8_t flag, Choice& choice) noexcept {
  if (!heuristic_) {
    return false;
  }
  try {
    if (!takeAction(heuristic_(observation, mask))) {
      ++badHeuristics_;
      return false;
    }
  } catch (...) {
    ++badHeuristics_;
    return false;
  }
  choice = Choice{Source::Heuristic, 0.0, 0, flag};
  return true;
}

void Agent::takeConstant(std::uint8_t flag, Choice& choice) noexcept {
  takeAction(safe_);
  choice = Choice{Source::Constant, 0.0, 0, flag};
}

bool Agent::takeAction(const Action& action) noexcept {
  if (action.size() != spec_.action.size || action.isNumbers() != numbers_) {
    return false;
  }
  if (!numbers_) {
    std::copy(action.choices().begin(), action.choices().end(), choices_.begin());
    return true;
  }
  for (const float value : action.values()) {
    if (!std::isfinite(value)) {
      return false;
    }
  }
  std::copy(action.values().begin(), action.values().end(), values_.begin());
  std::copy(action.values().begin(), action.values().end(), raw_.begin());
  return true;
}

Action Agent::current() const noexcept {
  return numbers_ ? Action::values(Span<const float>(values_))
                  : Action::choices(Span<const std::int64_t>(choices_));
}

bool Agent::alike(const Action& other) const noexcept {
  if (!numbers_) {
    return std::equal(choices_.begin(), choices_.end(), other.choices().begin());
  }
  return std::equal(values_.begin(), values_.end(), other.values().begin(),
                    [](float a, float b) { return std::abs(a - b) <= kAlike; });
}

// ------------------------------------------------------------------ recording

/// Complete the step before, whose successor has come, and begin a new one.
void Agent::record(bool recordable, Span<const float> observation,
                   Span<const std::uint8_t> mask, const Choice& choice, std::uint8_t flags,
                   double now) noexcept {
  const Slot slot = recordable ? keep(observation, mask) : kNoSlot;
  if (slot == kNoSlot) {
    // A step that cannot be sent: the one before lacks its successor, so it goes as well, and its
    // own observation is what the rest bootstraps from.
    // Their numbers are left out, so that nobody takes what comes next for what followed.
    ++unrecorded_;
    if (pending_ != kNoSlot) {
      ++unrecorded_;
      forgetPending();
    }
    ++step_;
    return;
  }
  complete(slot, now);
  StepPool& pool = outbox_.pool();
  Step& step = pool.step(slot);
  step.logProb = choice.logProb;
  step.version = choice.version;
  step.flags = flags;
  step.event = event_;
  if (numbers_) {
    std::copy(values_.begin(), values_.end(), pool.values(slot));
    std::copy(raw_.begin(), raw_.end(), pool.raw(slot));
  } else {
    std::copy(choices_.begin(), choices_.end(), pool.choices(slot));
  }
  pending_ = slot;
}

/// Return a new slot with an observation, or kNoSlot.
Slot Agent::keep(Span<const float> observation, Span<const std::uint8_t> mask) noexcept {
  const Slot slot = outbox_.allocate();
  if (slot == kNoSlot) {
    return kNoSlot;
  }
  StepPool& pool = outbox_.pool();
  std::copy(observation.begin(), observation.end(), pool.observation(slot));
  if (spec_.masked) {
    if (mask.empty()) {
      std::fill_n(pool.mask(slot), spec_.maskSize, std::uint8_t{1});
    } else {
      std::copy(mask.begin(), mask.end(), pool.mask(slot));
    }
  }
  return slot;
}

/// Put the pending step among the open ones; close them if there are enough.
void Agent::complete(Slot following, double now) noexcept {
  if (pending_ == kNoSlot) {
    return;
  }
  StepPool& pool = outbox_.pool();
  const Slot slot = pending_;
  pending_ = kNoSlot;
  if (open_.empty()) {
    openEpisode_ = episode_;
    openStep_ = step_;
    openSince_ = now;
  } else {
    pool.step(open_.back()).next = slot;
  }
  open_.push_back(slot);
  ++step_;
  if (open_.size() < batchSteps_ && now - openSince_ < batchSeconds_) {
    return;
  }
  const Step& step = pool.step(slot);
  if (step.terminated || step.truncated || following == kNoSlot) {
    closeOpen(kNoSlot);
    return;
  }
  const std::uint8_t* mask = spec_.masked ? pool.mask(following) : nullptr;
  closeOpen(keep({pool.observation(following), spec_.observationSize},
                 {mask, spec_.masked ? spec_.maskSize : 0}));
}

/// Hand the open steps over as one segment. The bootstrap is the observation after the last of
/// them, where its episode goes on.
void Agent::closeOpen(Slot bootstrap) noexcept {
  StepPool& pool = outbox_.pool();
  const Step& last = pool.step(open_.back());
  if (!last.terminated && !last.truncated && bootstrap == kNoSlot) {
    // Nothing to bootstrap from: the segment would be refused. It cannot be, since the pool has
    // room for one observation more than there can be steps.
    unrecorded_ += open_.size();
    for (const Slot slot : open_) {
      if (const Slot final = pool.step(slot).final; final != kNoSlot) {
        outbox_.release(final);
      }
      outbox_.release(slot);
    }
    open_.clear();
    return;
  }
  Step& first = pool.step(open_.front());
  first.count = static_cast<std::uint32_t>(open_.size());
  first.bootstrap = bootstrap;
  first.episode = openEpisode_;
  first.startStep = openStep_;
  outbox_.offer(open_.front());
  open_.clear();
}

void Agent::forgetPending() noexcept {
  const Slot slot = pending_;
  pending_ = kNoSlot;
  if (slot == kNoSlot) {
    return;
  }
  ++step_;
  if (!open_.empty()) {
    const Step& last = outbox_.pool().step(open_.back());
    if (last.terminated || last.truncated) {
      closeOpen(kNoSlot);
    } else {
      closeOpen(slot);  // the slot goes with the segment, as an observation alone
      return;
    }
  }
  outbox_.release(slot);
}

void Agent::beginEpisode() noexcept {
  ++episode_;
  step_ = 0;
}

bool Agent::rewardLocked(double value, std::optional<std::uint64_t> event) noexcept {
  StepPool& pool = outbox_.pool();
  Slot slot = pending_;
  if (event && (slot == kNoSlot || pool.step(slot).event != *event)) {
    // Events only grow along the open steps.
    const auto found = std::lower_bound(
        open_.begin(), open_.end(), *event,
        [&](Slot one, std::uint64_t wanted) { return pool.step(one).event < wanted; });
    slot = found != open_.end() && pool.step(*found).event == *event ? *found : kNoSlot;
  }
  if (slot != kNoSlot) {
    const double total = pool.step(slot).reward + value;
    if (!(std::abs(total) <= kMostValue)) {
      return false;
    }
    pool.step(slot).reward = total;
    return true;
  }
  if (!event || *event == 0 || *event > event_) {
    return false;
  }
  ++lateRewards_;
  return outbox_.offerReward(*event, static_cast<float>(value));
}

bool Agent::endLocked(bool terminated, bool truncated,
                      Span<const float> finalObservation) noexcept {
  for (LoadedModel* model : {acting_.get(), lastGood_.get()}) {
    if (model != nullptr) {
      model->policy().reset();
    }
  }
  if (pending_ == kNoSlot) {
    if (step_ > 0) {  // its last step could not be recorded
      beginEpisode();
    }
    return false;
  }
  Step& step = outbox_.pool().step(pending_);
  if (!terminated) {
    const bool good = finalObservation.size() == spec_.observationSize &&
                      isObservation(spec_, finalObservation.data()) &&
                      canBeSent(spec_, finalObservation.data());
    step.final = good ? keep(finalObservation, {}) : kNoSlot;
    if (step.final == kNoSlot) {
      ++badEnds_;
      ++unrecorded_;
      forgetPending();
      beginEpisode();
      return false;
    }
  }
  step.terminated = terminated;
  step.truncated = truncated || !terminated;
  complete(kNoSlot, clock_());
  beginEpisode();
  return true;
}

/// With Overflow::Block: wait, without any lock, until what is open finds room.
void Agent::waitIfAsked() noexcept {
  if (!blocks_) {
    return;
  }
  try {
    std::size_t steps = 0;
    {
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      steps = open_.size() + 1;
    }
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(blockSeconds_);
    while (steps >= batchSteps_ && !outbox_.hasRoom(steps) &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (...) {
    return;
  }
}

}  // namespace assay

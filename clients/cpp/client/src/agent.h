// The acting half of the client: it answers, whatever happens to the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "assay/client.h"
#include "loaded.h"
#include "outbox.h"
#include "shield.h"

namespace assay {

/// Decides and records. Its lock is held by those who act, record and ask; never by the network.
class Agent {
 public:
  /// @param config Checked already.
  /// @param lastGood A model from the disk, or nullptr.
  Agent(const ClientConfig& config, Outbox& outbox, ModelMailbox& mailbox,
        std::unique_ptr<LoadedModel> lastGood);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  Decided decide(Span<const float> observation, Span<const std::uint8_t> mask) noexcept;
  bool reward(double value, std::optional<std::uint64_t> event) noexcept;
  bool end(bool terminated, bool truncated, Span<const float> finalObservation) noexcept;
  void flush() noexcept;
  [[nodiscard]] std::optional<Action> recommendation() const;
  void report(Status& status) const;

 private:
  /// A choice on its way to the shield; what it is made of lies in choices_, values_ and raw_.
  struct Choice {
    Source source = Source::Constant;
    double logProb = 0.0;
    std::int64_t version = 0;
    std::uint8_t flags = 0;
  };

  Decided decideLocked(Span<const float> observation, Span<const std::uint8_t> mask) noexcept;
  Choice choose(bool readable, Span<const float> observation, Span<const std::uint8_t> mask,
                double now) noexcept;
  bool askModels(Span<const float> observation, Span<const std::uint8_t> mask, double now,
                 Choice& choice) noexcept;
  bool askModel(LoadedModel* model, Source source, Span<const float> observation,
                Span<const std::uint8_t> mask, double now, Choice& choice) noexcept;
  bool askHeuristic(Span<const float> observation, Span<const std::uint8_t> mask,
                    std::uint8_t flag, Choice& choice) noexcept;
  void takeConstant(std::uint8_t flag, Choice& choice) noexcept;
  bool takeAction(const Action& action) noexcept;
  void adopt() noexcept;
  [[nodiscard]] Action current() const noexcept;
  [[nodiscard]] bool alike(const Action& other) const noexcept;

  void record(bool recordable, Span<const float> observation, Span<const std::uint8_t> mask,
              const Choice& choice, std::uint8_t flags, double now) noexcept;
  Slot keep(Span<const float> observation, Span<const std::uint8_t> mask) noexcept;
  void complete(Slot following, double now) noexcept;
  void closeOpen(Slot bootstrap) noexcept;
  void forgetPending() noexcept;
  void beginEpisode() noexcept;
  bool rewardLocked(double value, std::optional<std::uint64_t> event) noexcept;
  bool endLocked(bool terminated, bool truncated, Span<const float> finalObservation) noexcept;
  void waitIfAsked() noexcept;

  const PolicySpec policySpec_;
  const ParsedSpec& spec_;
  const bool numbers_;
  const Action safe_;
  const HeuristicFunction heuristic_;
  const Mode mode_;
  const std::uint64_t apprenticeSteps_;
  const bool explore_;
  const double ttl_;
  const std::size_t batchSteps_;
  const double batchSeconds_;
  const bool blocks_;
  const double blockSeconds_;
  const std::function<double()> clock_;
  Outbox& outbox_;
  ModelMailbox& mailbox_;

  mutable std::recursive_mutex mutex_;  // a heuristic may ask the agent something when it is asked
  Random random_;
  Shield shield_;
  std::unique_ptr<LoadedModel> acting_;
  std::unique_ptr<LoadedModel> lastGood_;
  std::unique_ptr<LoadedModel> waiting_;  // adopted once the episode is over
  std::vector<std::int64_t> choices_;
  std::vector<float> values_;
  std::vector<float> raw_;

  Slot pending_ = kNoSlot;
  std::vector<Slot> open_;  // never grows beyond what is reserved
  double openSince_ = 0.0;
  std::uint64_t openEpisode_ = 0;
  std::uint64_t openStep_ = 0;
  std::uint64_t episode_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t event_ = 0;
  std::optional<Action> recommendation_;
  std::uint64_t agreed_ = 0;
  std::uint64_t compared_ = 0;
  std::uint64_t sources_[4] = {0, 0, 0, 0};
  std::uint64_t shielded_ = 0;
  std::uint64_t unrecorded_ = 0;
  std::uint64_t lostRewards_ = 0;
  std::uint64_t lateRewards_ = 0;
  std::uint64_t badObservations_ = 0;
  std::uint64_t badMasks_ = 0;
  std::uint64_t badOutputs_ = 0;
  std::uint64_t badHeuristics_ = 0;
  std::uint64_t badEnds_ = 0;
};

}  // namespace assay

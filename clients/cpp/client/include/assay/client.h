/// @file
/// The client of a training server: it decides locally and learns in the background.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "assay/action.h"
#include "assay/config.h"
#include "assay/result.h"
#include "assay/span.h"

namespace assay {

/// Who chose an action.
enum class Source {
  Model,      ///< The current model.
  LastGood,   ///< The model before it, or the one that was found on the disk.
  Heuristic,  ///< The user's function.
  Constant,   ///< The safe action.
};

/// Why a step is not a sample of the current policy, a sum of these; such steps stay out of its
/// gradient.
enum Flag : std::uint8_t {
  kFlagBounds = 1,     ///< The action was moved into its bounds.
  kFlagMask = 2,       ///< The action was not valid, and was replaced.
  kFlagRate = 4,       ///< The action was held back by a rate limit.
  kFlagFallback = 8,   ///< It was not the current model that chose.
  kFlagHeuristic = 16, ///< Shadow or apprentice mode: the heuristic acted.
};

/// A decision and where it came from.
struct Decided {
  Action action;
  std::uint64_t event = 0;      ///< Its number, for rewards that come late.
  Source source = Source::Constant;
  std::int64_t version = 0;     ///< Of the model that chose it; 0 if none did.
  double logProbability = 0.0;  ///< Of what the policy did.
  std::uint8_t flags = 0;       ///< Why it is not a sample of the current policy; 0 if it is one.
};

/// What a client did so far.
struct Status {
  // Acting.
  std::uint64_t decisions = 0;
  std::uint64_t byModel = 0;
  std::uint64_t byLastGood = 0;
  std::uint64_t byHeuristic = 0;
  std::uint64_t byConstant = 0;
  std::uint64_t shielded = 0;            ///< Decisions that the shield changed.
  std::uint64_t badObservations = 0;     ///< Of a wrong size, not finite, or out of range.
  std::uint64_t badMasks = 0;            ///< Of a wrong size.
  std::uint64_t badOutputs = 0;          ///< A model's output was not finite.
  std::uint64_t badHeuristics = 0;       ///< The heuristic threw, or gave what is not an action.
  std::uint64_t badEnds = 0;             ///< A truncated episode without a good final observation.
  std::int64_t version = 0;              ///< Of the current model; 0: none.
  std::optional<double> agreement;       ///< Share of steps at which the model would have done what
                                         ///< the heuristic did, in shadow or apprentice mode.
  // Recording.
  std::uint64_t heldSteps = 0;           ///< Wait to be acknowledged.
  std::uint64_t recordedSteps = 0;       ///< Were handed over.
  std::uint64_t acknowledgedSteps = 0;   ///< Are durable on the server.
  std::uint64_t droppedSteps = 0;        ///< The buffer's policy or bad numbers cost them.
  std::uint64_t refusedSteps = 0;        ///< The server refused their content.
  std::uint64_t lostRewards = 0;         ///< Belong to no step, or float32 cannot hold them.
  std::uint64_t lateRewards = 0;         ///< Were sent after their step.
  // Connection and models.
  bool connected = false;
  std::uint64_t sessions = 0;            ///< That were opened.
  std::uint64_t failures = 0;            ///< How often a connection broke or could not be opened.
  std::string lastFailure;               ///< Why, of the last one.
  std::string lastRefusal;               ///< Why a batch was refused, of the last one.
  std::uint64_t acceptedModels = 0;
  std::uint64_t rejectedModels = 0;
  std::string lastRejection;             ///< Why a model was refused, of the last one.
  std::uint64_t diskErrors = 0;          ///< Times that a model could not be kept on the disk.
};

/// Acts for one controlled system. Safe to call from several threads.
///
/// `act` does no input or output, allocates nothing, waits for no lock that a network thread holds,
/// and never throws. It asks, in this order: the current model, the last good one, the user's
/// heuristic, the safe constant; never chance. (What a heuristic itself allocates is its own.)
class Client {
 public:
  /// Begin to act; returns at once, whether the server is there or not.
  ///
  /// @return The client, or what is wrong with the config.
  [[nodiscard]] static Result<std::unique_ptr<Client>> connect(ClientConfig config);

  /// Close, without waiting for what was not sent.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Return an action for one observation, always.
  ///
  /// @param observation The numbers of all entries, one after another, in the order of their names.
  /// @param mask Nonzero where a choice is valid; empty: all of them are.
  [[nodiscard]] Action act(Span<const float> observation,
                           Span<const std::uint8_t> mask = {}) noexcept;

  /// Return an action and where it came from.
  [[nodiscard]] Decided decide(Span<const float> observation,
                               Span<const std::uint8_t> mask = {}) noexcept;

  /// Add a reward to the latest decision. Return whether it belongs to a step.
  bool reward(double value) noexcept;
  /// Add a reward to the decision with a number, even after it was sent.
  bool reward(double value, std::uint64_t event) noexcept;

  /// End the episode.
  ///
  /// @param terminated It ended by itself: there is no value after it.
  /// @param truncated It was cut off. If `terminated` is false, this is what is meant.
  /// @param finalObservation After the last action; a truncated episode needs it.
  /// @return Whether the last step could be recorded.
  bool end(bool terminated, bool truncated = false,
           Span<const float> finalObservation = {}) noexcept;

  /// Hand over the steps that are complete, however few.
  void flush() noexcept;

  /// Return what the model would have done at the last decision of shadow or apprentice mode.
  [[nodiscard]] std::optional<Action> recommendation() const;

  /// Return what happened so far.
  [[nodiscard]] Status status() const;

  /// Send what waits, so long at most, and end the connection. Acting goes on with what there is.
  ///
  /// @return Whether everything was acknowledged.
  bool close(double seconds = 5.0);

 private:
  struct Parts;
  explicit Client(std::unique_ptr<Parts> parts) noexcept;

  std::unique_ptr<Parts> parts_;
};

}  // namespace assay

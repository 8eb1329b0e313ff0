// What is under way: numbers, credits, acknowledgements and refusals. Knows no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "encoding.h"

namespace assay {

/// The reasons of the wire format that the client decides on.
namespace reason {
inline constexpr int kChecksumMismatch = 5;
inline constexpr int kPartOutOfOrder = 7;
inline constexpr int kLastOfContent = 31;  // also of reasons that are yet to come
inline constexpr int kUnknownPolicy = 32;
inline constexpr int kUnknownSession = 33;
inline constexpr int kFenced = 34;
inline constexpr int kSequenceGap = 35;
inline constexpr int kSpecConflict = 36;
inline constexpr int kBadSpec = 37;
inline constexpr int kPolicyPaused = 38;
inline constexpr int kPolicyDeleted = 39;
inline constexpr int kResourceExhausted = 48;
inline constexpr int kQuotaExceeded = 49;
inline constexpr int kDraining = 50;
inline constexpr int kUnauthenticated = 64;
inline constexpr int kPermissionDenied = 65;
inline constexpr int kUnsupportedProtocol = 66;
inline constexpr int kHashMismatch = 81;
}  // namespace reason

/// Why something did not work.
struct Failure {
  int reason = 0;  // of the wire format; 0: the network
  std::string message;
};

struct Rejection {
  std::uint64_t epoch = 0;
  std::uint64_t seq = 0;
  int reason = 0;
  std::string message;
};

struct Ack {
  std::uint64_t epoch = 0;
  std::uint64_t committed = 0;
  std::uint64_t creditBytes = 0;
  std::uint64_t creditBatches = 0;
  std::vector<Rejection> rejections;
};

/// A batch with its number in the session.
struct Outgoing {
  std::uint64_t seq = 0;
  EncodedBatch batch;
  int copies = 0;  // sent in this session and not answered
  int tries = 0;   // refusals that may pass
  bool sent = false;
};

/// Batches that were taken from the outbox and not acknowledged. For one thread.
class SendWindow {
 public:
  /// What is no longer held.
  struct Settled {
    std::size_t steps = 0;     // acknowledged
    std::size_t refused = 0;   // steps whose content was refused
    std::size_t rewards = 0;   // late rewards, either way
    std::string refusal;       // why, of the last one
    std::optional<Failure> end;  // the session is over
  };

  /// Begin a session. What the last one committed is settled, the rest gets new numbers from 1.
  Settled begin(std::uint64_t epoch, std::uint64_t resumedCommitted, std::uint64_t creditBytes,
                std::uint64_t creditBatches, double now);
  /// Say whether a batch more may be taken from the outbox.
  [[nodiscard]] bool wantsMore() const noexcept;
  /// Take a batch in, behind the others.
  void add(EncodedBatch batch);
  /// Return the next batch to send now, or nullptr.
  [[nodiscard]] const Outgoing* next(double now) const noexcept;
  /// Return how many numbers right before this one will never come.
  [[nodiscard]] std::uint64_t droppedBefore(std::uint64_t seq) const noexcept;
  /// Note that the batch was sent.
  void sent(std::uint64_t seq, double now) noexcept;
  /// Take an answer in. Nothing in it is believed: what was never sent is not settled.
  Settled answer(const Ack& ack, double now);

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  /// Say how long a sent batch has been without any answer.
  [[nodiscard]] double unansweredSeconds(double now) const noexcept;

 private:
  [[nodiscard]] std::deque<Outgoing>::iterator find(std::uint64_t seq) noexcept;
  void settleFront(Settled& settled);
  void refuse(std::deque<Outgoing>::iterator item, const Rejection& rejection, Settled& settled);
  void handle(const Rejection& rejection, double now, Settled& settled);
  [[nodiscard]] bool fits(const Outgoing& item) const noexcept;

  std::deque<Outgoing> items_;
  std::uint64_t epoch_ = 0;
  std::uint64_t nextSeq_ = 1;
  std::uint64_t committed_ = 0;
  std::uint64_t creditBytes_ = 0;
  std::uint64_t creditBatches_ = 0;
  double notBefore_ = 0.0;
  double pause_ = 0.0;
  double answeredAt_ = 0.0;
};

}  // namespace assay

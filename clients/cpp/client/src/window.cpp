#include "window.h"

#include <algorithm>
#include <utility>

namespace assay {
namespace {

constexpr double kFirstPause = 0.1;
constexpr double kLongestPause = 10.0;
constexpr double kFirstOfPaused = 1.0;  // a person goes on with it soon, or late
constexpr double kLongestOfPaused = 5.0;
constexpr int kMostTries = 3;    // of what was damaged on the way
constexpr int kMostGaps = 1000;  // of one batch, until the session is given up
constexpr std::size_t kMostWaiting = 2;  // taken ahead of the credits, so that they are used at once

bool passes(int reason) {
  return reason == reason::kResourceExhausted || reason == reason::kQuotaExceeded ||
         reason == reason::kPolicyPaused || reason == reason::kDraining;
}

bool endsSession(int reason) {
  return reason == reason::kFenced || reason == reason::kUnknownSession ||
         reason == reason::kUnknownPolicy || reason == reason::kPolicyDeleted ||
         reason == reason::kSpecConflict || reason == reason::kBadSpec ||
         reason >= reason::kUnauthenticated;
}

}  // namespace

SendWindow::Settled SendWindow::begin(std::uint64_t epoch, std::uint64_t resumedCommitted,
                                      std::uint64_t creditBytes, std::uint64_t creditBatches,
                                      double now) {
  Settled settled;
  committed_ = std::max(committed_, std::min(resumedCommitted, nextSeq_ - 1));
  settleFront(settled);
  nextSeq_ = 1;
  committed_ = 0;
  for (Outgoing& item : items_) {
    item.seq = nextSeq_++;
    item.copies = item.tries = 0;
    item.sent = false;
  }
  epoch_ = epoch;
  creditBytes_ = creditBytes;
  creditBatches_ = creditBatches;
  notBefore_ = pause_ = 0.0;
  answeredAt_ = now;
  return settled;
}

bool SendWindow::wantsMore() const noexcept {
  std::size_t waiting = 0;
  for (auto item = items_.rbegin(); item != items_.rend() && item->copies == 0; ++item) {
    if (++waiting >= kMostWaiting) {
      return false;
    }
  }
  return true;
}

void SendWindow::add(EncodedBatch batch) {
  Outgoing item;
  item.seq = nextSeq_++;
  item.batch = std::move(batch);
  items_.push_back(std::move(item));
}

bool SendWindow::fits(const Outgoing& item) const noexcept {
  std::uint64_t batches = 0;
  std::uint64_t bytes = 0;
  for (const Outgoing& one : items_) {
    if (one.copies > 0) {
      ++batches;
      bytes += one.batch.bytes();
    }
  }
  if (creditBatches_ == 0 || creditBytes_ == 0) {
    return false;
  }
  return batches == 0 ||
         (batches < creditBatches_ && bytes + item.batch.bytes() <= creditBytes_);
}

const Outgoing* SendWindow::next(double now) const noexcept {
  if (now < notBefore_) {
    return nullptr;
  }
  const auto item = std::find_if(items_.begin(), items_.end(),
                                 [](const Outgoing& one) { return one.copies == 0; });
  return item != items_.end() && fits(*item) ? &*item : nullptr;
}

std::uint64_t SendWindow::droppedBefore(std::uint64_t seq) const noexcept {
  std::uint64_t before = committed_;
  for (const Outgoing& item : items_) {
    if (item.seq >= seq) {
      break;
    }
    before = std::max(before, item.seq);
  }
  return seq - 1 - before;
}

std::deque<Outgoing>::iterator SendWindow::find(std::uint64_t seq) noexcept {
  const auto item =
      std::lower_bound(items_.begin(), items_.end(), seq,
                       [](const Outgoing& one, std::uint64_t wanted) { return one.seq < wanted; });
  return item != items_.end() && item->seq == seq ? item : items_.end();
}

void SendWindow::sent(std::uint64_t seq, double now) noexcept {
  const bool quiet = std::none_of(items_.begin(), items_.end(),
                                  [](const Outgoing& one) { return one.copies > 0; });
  if (quiet) {
    answeredAt_ = now;  // there was nothing to answer until now
  }
  if (const auto item = find(seq); item != items_.end()) {
    ++item->copies;
    item->sent = true;
  }
}

double SendWindow::unansweredSeconds(double now) const noexcept {
  const bool waits = std::any_of(items_.begin(), items_.end(),
                                 [](const Outgoing& one) { return one.copies > 0; });
  return waits ? now - answeredAt_ : 0.0;
}

void SendWindow::settleFront(Settled& settled) {
  while (!items_.empty() && items_.front().seq <= committed_ && items_.front().sent) {
    settled.steps += items_.front().batch.steps;
    settled.rewards += items_.front().batch.rewards;
    items_.pop_front();
  }
}

void SendWindow::refuse(std::deque<Outgoing>::iterator item, const Rejection& rejection,
                        Settled& settled) {
  settled.refused += item->batch.steps;
  settled.rewards += item->batch.rewards;
  settled.refusal = rejection.message;
  items_.erase(item);
}

void SendWindow::handle(const Rejection& rejection, double now, Settled& settled) {
  if (rejection.epoch != epoch_ && rejection.epoch != 0) {
    return;
  }
  if (endsSession(rejection.reason)) {
    settled.end = Failure{rejection.reason, rejection.message};
    return;
  }
  const auto item = find(rejection.seq);
  if (item == items_.end() || item->copies == 0) {
    return;
  }
  --item->copies;
  if (rejection.reason == reason::kSequenceGap) {
    if (++item->tries > kMostGaps) {
      settled.end = Failure{rejection.reason, rejection.message};
    }
  } else if (passes(rejection.reason)) {
    const bool paused = rejection.reason == reason::kPolicyPaused;
    pause_ = std::min(std::max(paused ? kFirstOfPaused : kFirstPause, 2.0 * pause_),
                      paused ? kLongestOfPaused : kLongestPause);
    notBefore_ = now + pause_;
  } else {
    // Damage on the way may pass, and so may what this client does not know; content does not.
    const bool content = rejection.reason <= reason::kLastOfContent &&
                         rejection.reason != reason::kChecksumMismatch &&
                         rejection.reason != reason::kPartOutOfOrder && rejection.reason > 0;
    if (content || ++item->tries > kMostTries) {
      refuse(item, rejection, settled);
    }
  }
}

SendWindow::Settled SendWindow::answer(const Ack& ack, double now) {
  Settled settled;
  if (ack.epoch != epoch_) {
    return settled;  // of a session that has ended
  }
  creditBytes_ = ack.creditBytes;
  creditBatches_ = ack.creditBatches;
  std::uint64_t most = committed_;
  for (const Outgoing& item : items_) {
    most = item.sent ? std::max(most, item.seq) : most;
  }
  const std::uint64_t committed = std::min(ack.committed, most);
  if (committed > committed_) {
    committed_ = committed;
    pause_ = 0.0;
    answeredAt_ = now;
    settleFront(settled);
  }
  for (const Rejection& rejection : ack.rejections) {
    answeredAt_ = now;
    handle(rejection, now, settled);
  }
  return settled;
}

}  // namespace assay

#include "courier.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "assay/random.h"
#include "encoding.h"

namespace assay {
namespace {

double steadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Refusals that only a person can fix: asking again soon would not help.
bool needsPerson(int reason) {
  return reason == reason::kUnauthenticated || reason == reason::kPermissionDenied ||
         reason == reason::kUnsupportedProtocol || reason == reason::kSpecConflict ||
         reason == reason::kBadSpec || reason == reason::kPolicyDeleted;
}

/// Return a share of a pause, so that clients do not all come at once.
double jittered(double pause, Random& random) { return pause * (0.5 + 0.5 * random.uniform()); }

Random& jitter() {
  thread_local Random random(static_cast<std::uint64_t>(
      std::chrono::steady_clock::now().time_since_epoch().count()));
  return random;
}

}  // namespace

std::string ChunkAssembler::add(std::uint64_t offset, const std::string& data,
                                const std::string& baseSha256) {
  if (!baseSha256.empty()) {
    return "The server sent a difference to a model that was not offered as a base.";
  }
  if (offset != bytes_.size()) {
    return "A part of the model begins at byte " + std::to_string(offset) + "; expected " +
           std::to_string(bytes_.size()) + ".";
  }
  if (data.size() > size_ - bytes_.size()) {
    return "The model has more bytes than the " + std::to_string(size_) + " that were announced.";
  }
  bytes_ += data;
  return "";
}

std::string ChunkAssembler::finish() const {
  return bytes_.size() == size_ ? ""
                                : "The model has " + std::to_string(bytes_.size()) +
                                      " bytes; " + std::to_string(size_) + " were announced.";
}

Courier::Courier(const ClientConfig& config, const ParsedSpec& spec, Outbox& outbox,
                 ModelKeeper& keeper, std::unique_ptr<Transport> transport)
    : timing_(config.timing),
      address_(config.address),
      onProblem_(config.onProblem),
      clock_(steadySeconds),
      spec_(spec),
      outbox_(outbox),
      keeper_(keeper),
      transport_(std::move(transport)) {}

Courier::~Courier() { stop(0.0); }

void Courier::start() {
  sender_ = std::thread([this] { runSending(); });
  fetcher_ = std::thread([this] { runFetching(); });
}

bool Courier::stop(double seconds) {
  const double deadline = now() + seconds;
  while (sender_.joinable() && !outbox_.empty() && now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  transport_->cancel();
  for (std::thread* thread : {&sender_, &fetcher_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
  return outbox_.empty();
}

void Courier::report(Status& status) const {
  status.connected = connected_.load();
  status.sessions = sessions_.load();
  status.failures = failures_.load();
  status.acknowledgedSteps = acknowledged_.load();
  status.refusedSteps = refused_.load();
  const std::lock_guard<std::mutex> lock(mutex_);
  status.lastFailure = lastFailure_;
  status.lastRefusal = lastRefusal_;
}

void Courier::waitFor(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stopping_; });
}

// ------------------------------------------------------------------ sending

void Courier::runSending() {
  double pause = timing_.firstPause;
  for (;;) {
    std::optional<Failure> failure;
    const std::uint64_t before = sessions_.load();
    try {
      failure = session();
    } catch (const std::exception& error) {  // no memory for a batch: the client lives on
      failure = Failure{0, error.what()};
    }
    connected_.store(false);
    transport_->close();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_ || !failure) {
        return;
      }
    }
    pauseAfter(*failure, pause, sessions_.load() != before, true);
  }
}

std::optional<Failure> Courier::session() {
  auto opened = transport_->open(lastEpoch_);
  if (auto* failure = std::get_if<Failure>(&opened)) {
    return *failure;
  }
  const OpenedSession& session = std::get<OpenedSession>(opened);
  lastEpoch_ = session.epoch;
  note(window_.begin(session.epoch, session.resumedCommitted, session.creditBytes,
                     session.creditBatches, now()));
  sessions_.fetch_add(1);
  connected_.store(true);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    registered_ = true;
  }
  wake_.notify_all();
  std::vector<Ack> answers;
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) {
        return std::nullopt;
      }
    }
    fill(window_);
    bool sent = false;
    while (const Outgoing* item = window_.next(now())) {
      if (auto failure =
              transport_->send(*item, window_.epoch(), window_.droppedBefore(item->seq))) {
        return failure;
      }
      window_.sent(item->seq, now());
      sent = true;
      fill(window_);
    }
    answers.clear();
    const auto over = transport_->poll(sent ? 0.0 : timing_.pollSeconds, answers);
    for (const Ack& ack : answers) {
      keeper_.confirm();
      if (auto failure = note(window_.answer(ack, now()))) {
        return failure;
      }
    }
    if (over) {
      return over;
    }
    if (window_.unansweredSeconds(now()) > timing_.stallSeconds) {
      return Failure{0, "The server left a batch without an answer for too long."};
    }
  }
}

/// Take from the outbox what may soon be sent; the slots are free again at once.
void Courier::fill(SendWindow& window) {
  while (window.wantsMore()) {
    const Slot segment = outbox_.take();
    if (segment != kNoSlot) {
      window.add(encodeSegment(spec_, outbox_.pool(), segment));
      outbox_.finish(segment);
      continue;
    }
    std::vector<std::pair<std::uint64_t, float>> rewards;
    outbox_.takeRewards(rewards, kMaxPatches);
    if (rewards.empty()) {
      return;
    }
    window.add(encodePatches(rewards));
  }
}

std::optional<Failure> Courier::note(const SendWindow::Settled& settled) {
  acknowledged_.fetch_add(settled.steps);
  refused_.fetch_add(settled.refused);
  outbox_.settle(settled.steps + settled.refused, settled.rewards);
  if (settled.steps > 0) {
    fencedPause_.store(0.0);
  }
  if (!settled.refusal.empty()) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      lastRefusal_ = settled.refusal;
    }
    tell(Failure{0, "The server refused a batch: " + settled.refusal});
  }
  return settled.end;
}

void Courier::pauseAfter(const Failure& failure, double& pause, bool worked, bool counts) {
  if (counts) {
    failures_.fetch_add(1);
    const std::lock_guard<std::mutex> lock(mutex_);
    lastFailure_ = failure.message;
  }
  double seconds = 0.0;
  if (failure.reason == reason::kFenced) {
    // Another process has this identity. Two that take over from each other help nobody.
    seconds = std::min(std::max(timing_.fencedPause, 2.0 * fencedPause_.load()),
                       timing_.longestFenced);
    fencedPause_.store(seconds);
    tell(failure);
  } else if (needsPerson(failure.reason)) {
    seconds = timing_.refusedPause;
    tell(failure);
  } else {
    pause = worked ? timing_.firstPause : std::min(2.0 * pause, timing_.longestPause);
    seconds = pause;
  }
  waitFor(jittered(seconds, jitter()));
}

/// Tell a person, but not the same thing again and again.
void Courier::tell(const Failure& failure) {
  if (!onProblem_) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure.message == lastTold_ && now() - toldAt_ < timing_.problemSeconds) {
      return;
    }
    lastTold_ = failure.message;
    toldAt_ = now();
  }
  try {
    onProblem_("Assay server " + address_ + ": " + failure.message);
  } catch (...) {
    return;  // a listener's trouble is not ours
  }
}

// ------------------------------------------------------------------ fetching

void Courier::runFetching() {
  double pause = timing_.firstPause;
  std::string refused;  // the model that was fetched and is no good, so that it is not fetched again
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || registered_; });
      if (stopping_) {
        return;
      }
    }
    bool worked = false;
    Failure failure;
    try {
      std::optional<Failure> lost;
      failure = transport_->watch([&](const Announcement& model) {
        worked = true;
        if (keeper_.confirm(model.sha256) || model.sha256 == refused) {
          return true;
        }
        auto fetched = transport_->fetch(model);
        if (auto* trouble = std::get_if<Failure>(&fetched)) {
          lost = *trouble;
          return false;
        }
        if (!keeper_.offer(std::get<std::string>(fetched), model.sha256)) {
          refused = model.sha256;
        }
        return true;
      });
      if (lost) {
        worked = false;  // the announcement comes again with the next stream
        failure = *lost;
        if (lost->reason == reason::kHashMismatch) {
          keeper_.reject(lost->message);
        }
      }
    } catch (const std::exception& error) {
      failure = Failure{0, error.what()};
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) {
        return;
      }
    }
    pauseAfter(failure, pause, worked, false);
  }
}

}  // namespace assay

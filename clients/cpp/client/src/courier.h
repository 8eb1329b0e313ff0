// The threads that talk to the server: one sends experience, one fetches models.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "assay/client.h"
#include "keeper.h"
#include "outbox.h"
#include "transport.h"
#include "window.h"

namespace assay {

/// Moves segments from the outbox to the transport, and models from there to the keeper.
///
/// Nothing is lost by a broken connection: what was not acknowledged is sent again, and what the
/// server has is told by it when the next session opens.
class Courier {
 public:
  Courier(const ClientConfig& config, const ParsedSpec& spec, Outbox& outbox, ModelKeeper& keeper,
          std::unique_ptr<Transport> transport);
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  void start();
  /// Send what waits, so long at most, and end; return whether everything was acknowledged.
  bool stop(double seconds);
  void report(Status& status) const;

 private:
  void runSending();
  void runFetching();
  /// Work with one session until it ends; nothing where that was wanted.
  std::optional<Failure> session();
  void fill(SendWindow& window);
  std::optional<Failure> note(const SendWindow::Settled& settled);
  /// Wait before the next attempt; the failure says how long.
  void pauseAfter(const Failure& failure, double& pause, bool worked, bool counts);
  void tell(const Failure& failure);
  void waitFor(double seconds);
  [[nodiscard]] double now() const { return clock_(); }

  const Timing timing_;
  const std::string address_;
  const std::function<void(const std::string&)> onProblem_;
  const std::function<double()> clock_;  // steady, whatever the agent's is
  const ParsedSpec& spec_;
  Outbox& outbox_;
  ModelKeeper& keeper_;
  std::unique_ptr<Transport> transport_;
  SendWindow window_;
  std::uint64_t lastEpoch_ = 0;
  std::atomic<double> fencedPause_{0.0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool registered_ = false;  // so that there is something to watch
  std::string lastFailure_;
  std::string lastRefusal_;
  std::string lastTold_;
  double toldAt_ = -1e9;
  std::atomic<bool> connected_{false};
  std::atomic<std::uint64_t> sessions_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> acknowledged_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::thread sender_;
  std::thread fetcher_;
};

}  // namespace assay

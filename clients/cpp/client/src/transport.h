// Between the client and a network: what a connection does, in plain types.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "window.h"

namespace assay {

/// What a session begins with.
struct OpenedSession {
  std::uint64_t epoch = 0;
  std::uint64_t resumedCommitted = 0;
  std::uint64_t frameBytes = 0;
  std::uint64_t creditBytes = 0;
  std::uint64_t creditBatches = 0;
};

/// A model that the server wants to be used.
struct Announcement {
  std::string sha256;
  std::uint64_t size = 0;
};

/// A connection. `open`, `send`, `poll` and `close` belong to one thread, `watch` and `fetch` to
/// another; `cancel` may come from anywhere. Nothing throws.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Register the policy, open a session and begin to stream.
  virtual std::variant<OpenedSession, Failure> open(std::uint64_t resumeEpoch) = 0;
  /// Send one batch.
  virtual std::optional<Failure> send(const Outgoing& batch, std::uint64_t epoch,
                                      std::uint64_t dropped) = 0;
  /// Append the answers that came, waiting for them so long at most; a failure where the stream is
  /// over.
  virtual std::optional<Failure> poll(double seconds, std::vector<Ack>& answers) = 0;
  /// End the stream.
  virtual void close() = 0;

  /// Tell of each announced model until the stream ends or the function says no.
  virtual Failure watch(const std::function<bool(const Announcement&)>& announced) = 0;
  /// Return the bytes of a model.
  virtual std::variant<std::string, Failure> fetch(const Announcement& model) = 0;

  /// End everything, now and from now on.
  virtual void cancel() = 0;
};

/// Puts a model together from its chunks, which it does not trust.
class ChunkAssembler {
 public:
  explicit ChunkAssembler(std::uint64_t size) : size_(size) {}

  /// Take the next chunk; return what is wrong with it, or nothing.
  std::string add(std::uint64_t offset, const std::string& data, const std::string& baseSha256);
  /// Return what is missing, or nothing.
  [[nodiscard]] std::string finish() const;
  [[nodiscard]] std::string& bytes() noexcept { return bytes_; }

 private:
  std::uint64_t size_;
  std::string bytes_;
};

}  // namespace assay

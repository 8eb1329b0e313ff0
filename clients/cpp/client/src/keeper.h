// The models that a client has: verified, built and warmed up away from where it acts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "loaded.h"
#include "parsed_spec.h"

namespace assay {

/// Verifies, keeps and hands out models. Called by the thread that fetches; counts may be read by
/// any.
class ModelKeeper {
 public:
  using Clock = std::function<double()>;

  /// @param directory Where good models are kept; empty: nowhere.
  ModelKeeper(const ParsedSpec& spec, std::string directory, Clock clock, ModelMailbox& mailbox);

  /// Return the newest good model on the disk, or nullptr.
  [[nodiscard]] std::unique_ptr<LoadedModel> newestOnDisk();
  /// Make a model current if it is good; return whether it is.
  bool offer(const std::string& bytes, const std::string& sha256);
  /// Note that the server still wants the current model; return whether it is that one.
  bool confirm(const std::string& sha256);
  /// Note that the server was heard of.
  void confirm();
  /// Count a model that could not be had as it was announced.
  void reject(const std::string& why);

  [[nodiscard]] std::int64_t version() const noexcept { return version_.load(); }
  [[nodiscard]] std::uint64_t accepted() const noexcept { return accepted_.load(); }
  [[nodiscard]] std::uint64_t rejected() const noexcept { return rejected_.load(); }
  [[nodiscard]] std::uint64_t diskErrors() const noexcept { return diskErrors_.load(); }
  [[nodiscard]] std::string lastRejection() const;

 private:
  void keep(const Model& model, const std::string& bytes);

  const ParsedSpec& spec_;
  std::string directory_;
  Clock clock_;
  ModelMailbox& mailbox_;
  mutable std::mutex mutex_;  // of what the fetching thread and those that ask share; never acting
  // The model that was delivered last. It lives at least until the next one is delivered: the
  // acting side only retires what a newer one has replaced.
  LoadedModel* current_ = nullptr;
  std::string lastRejection_;
  std::atomic<std::int64_t> version_{0};
  std::atomic<std::uint64_t> accepted_{0};
  std::atomic<std::uint64_t> rejected_{0};
  std::atomic<std::uint64_t> diskErrors_{0};
};

}  // namespace assay

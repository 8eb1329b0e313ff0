#include "keeper.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <system_error>
#include <utility>
#include <vector>

namespace assay {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kKept = 2;

struct KeptFile {
  fs::file_time_type time;
  std::string name;
  std::string sha256;
};

/// Return the kept models, the one that was kept last at the end.
std::vector<KeptFile> byAge(const std::string& directory) {
  static const std::regex kName(R"((\d+)-(\d+)-([0-9a-f]{64})\.safetensors)");
  std::vector<KeptFile> files;
  std::error_code error;
  fs::directory_iterator at(directory, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::smatch match;
    std::error_code unreadable;
    const auto time = fs::last_write_time(at->path(), unreadable);
    if (!unreadable && std::regex_match(name, match, kName)) {
      files.push_back({time, name, match[3]});
    }
  }
  std::sort(files.begin(), files.end(), [](const KeptFile& a, const KeptFile& b) {
    return std::tie(a.time, a.name) < std::tie(b.time, b.name);
  });
  return files;
}

/// Write a file so that it is there whole, or not at all.
bool writeWhole(const std::string& path, const std::string& bytes) {
  const std::string draft = path + ".part";
  const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    return false;
  }
  std::size_t done = 0;
  bool good = true;
  while (good && done < bytes.size()) {
    const ssize_t count = ::write(file, bytes.data() + done, bytes.size() - done);
    good = count > 0;
    done += good ? static_cast<std::size_t>(count) : 0;
  }
  good = good && ::fsync(file) == 0;
  good = ::close(file) == 0 && good;
  good = good && ::rename(draft.c_str(), path.c_str()) == 0;
  if (!good) {
    ::unlink(draft.c_str());
  }
  return good;
}

std::string lowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

}  // namespace

ModelKeeper::ModelKeeper(const ParsedSpec& spec, std::string directory, Clock clock,
                         ModelMailbox& mailbox)
    : spec_(spec), directory_(std::move(directory)), clock_(std::move(clock)), mailbox_(mailbox) {}

std::unique_ptr<LoadedModel> ModelKeeper::newestOnDisk() {
  if (directory_.empty()) {
    return nullptr;
  }
  const auto files = byAge(directory_);
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    const auto model = Model::fromFile(directory_ + "/" + file->name, file->sha256);
    if (!model) {
      reject(model.error().message);
      continue;
    }
    // The wall clock may have jumped: an age is never negative.
    const std::chrono::duration<double> age = fs::file_time_type::clock::now() - file->time;
    auto loaded =
        LoadedModel::make(model.value(), spec_, clock_() - std::max(0.0, age.count()));
    if (loaded) {
      return std::move(loaded).value();
    }
    reject(loaded.error().message);
  }
  return nullptr;
}

bool ModelKeeper::offer(const std::string& bytes, const std::string& sha256) {
  if (confirm(sha256)) {
    return true;
  }
  if (sha256.empty()) {
    reject("The server names no SHA-256 of the model.");
    return false;
  }
  auto model = Model::fromBytes(bytes.data(), bytes.size(), sha256);
  if (!model) {
    reject(model.error().message);
    return false;
  }
  auto loaded = LoadedModel::make(model.value(), spec_, clock_());
  if (!loaded) {
    reject(loaded.error().message);
    return false;
  }
  keep(*model.value(), bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto ready = std::move(loaded).value();
  current_ = ready.get();
  version_.store(model.value()->version());
  mailbox_.deliver(std::move(ready));
  accepted_.fetch_add(1);
  return true;
}

bool ModelKeeper::confirm(const std::string& sha256) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (current_ == nullptr || current_->model().sha256() != lowerCase(sha256)) {
    return false;
  }
  current_->freshAt.store(clock_(), std::memory_order_relaxed);
  return true;
}

void ModelKeeper::confirm() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (current_ != nullptr) {
    current_->freshAt.store(clock_(), std::memory_order_relaxed);
  }
}

void ModelKeeper::reject(const std::string& why) {
  rejected_.fetch_add(1);
  const std::lock_guard<std::mutex> lock(mutex_);
  lastRejection_ = why;
}

std::string ModelKeeper::lastRejection() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lastRejection_;
}

void ModelKeeper::keep(const Model& model, const std::string& bytes) {
  if (directory_.empty()) {
    return;
  }
  char number[64];
  std::snprintf(number, sizeof number, "%08" PRId64 "-%012" PRId64 "-", model.epoch(),
                model.version());
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error || !writeWhole(directory_ + "/" + number + model.sha256() + ".safetensors", bytes)) {
    diskErrors_.fetch_add(1);  // a full disk is no reason not to act with a good model
    return;
  }
  const auto files = byAge(directory_);
  for (std::size_t i = 0; i + kKept < files.size(); ++i) {
    fs::remove(directory_ + "/" + files[i].name, error);
  }
}

}  // namespace assay

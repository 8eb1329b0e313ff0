// A training server in the test's own process that can refuse, cut, duplicate, delay and lie.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "assay.grpc.pb.h"
#include "assay/sha256.h"

namespace assay::testing {

class FakeServer final : public v1::Session::Service,
                         public v1::Ingest::Service,
                         public v1::Models::Service {
 public:
  /// What goes wrong. Set before or during a test.
  struct Faults {
    std::atomic<int> refuseOpen{0};      // a reason; 0: none
    std::atomic<int> refuseRegister{0};  // a reason; 0: none
    std::atomic<int> cutAfter{0};        // ends a stream after so many batches, committed or not
    std::atomic<bool> cutBeforeCommit{false};
    std::atomic<bool> silent{false};     // commits, but acknowledges nothing
    std::atomic<bool> duplicateAcks{false};
    std::atomic<int> delayMilliseconds{0};
    std::atomic<int> creditBatches{8};
    std::atomic<int> rejectOnce{0};      // a reason, for the next batch
    std::atomic<int> rejectAll{0};       // a reason, for every batch
    std::atomic<bool> hang{false};       // takes no batch from the stream
    std::atomic<bool> lieAboutHash{false};
    std::atomic<bool> cutModel{false};   // ends a model in the middle
    std::atomic<bool> shiftChunks{false};
  };

  explicit FakeServer(std::shared_ptr<grpc::ServerCredentials> credentials = nullptr,
                      int port = 0)
      : credentials_(credentials ? std::move(credentials) : grpc::InsecureServerCredentials()) {
    start(port);
  }

  ~FakeServer() override { stop(); }

  void start(int port) {
    stopping_ = false;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), credentials_, &port_);
    builder.RegisterService(static_cast<v1::Session::Service*>(this));
    builder.RegisterService(static_cast<v1::Ingest::Service*>(this));
    builder.RegisterService(static_cast<v1::Models::Service*>(this));
    server_ = builder.BuildAndStart();
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (server_) {
      server_->Shutdown(std::chrono::system_clock::now());
      server_->Wait();
      server_.reset();
    }
  }

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  /// Announce a model.
  void publish(const std::string& bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      model_ = bytes;
      ++published_;
    }
    changed_.notify_all();
  }

  [[nodiscard]] std::vector<v1::Batch> stored() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stored_;
  }

  /// Return the events of all stored steps, in the order of commitment.
  [[nodiscard]] std::vector<std::uint64_t> events() const {
    std::vector<std::uint64_t> events;
    for (const v1::Batch& batch : stored()) {
      v1::TensorMap map;
      map.ParseFromString(batch.tensors());
      for (const v1::NamedTensor& one : map.tensors()) {
        if (one.name() == "event") {
          const std::string& data = one.tensor().data();
          for (std::size_t at = 0; at + 8 <= data.size(); at += 8) {
            std::uint64_t event = 0;
            std::memcpy(&event, data.data() + at, 8);
            events.push_back(event);
          }
        }
      }
    }
    return events;
  }

  [[nodiscard]] std::uint64_t opened() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return epoch_;
  }
  [[nodiscard]] std::string lastClient() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lastClient_;
  }
  [[nodiscard]] std::string lastAuthorization() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lastAuthorization_;
  }
  [[nodiscard]] std::string registered() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return registered_;
  }
  [[nodiscard]] int fetches() const { return fetches_.load(); }
  [[nodiscard]] std::size_t mostUnderWay() const { return mostUnderWay_.load(); }

  Faults faults;

 private:
  static grpc::Status refusal(grpc::ServerContext* context, int reason) {
    v1::Rejection rejection;
    rejection.set_reason(static_cast<v1::Reason>(reason));
    rejection.set_message("Refused by the test.");
    rejection.set_fix("Nothing.");
    context->AddTrailingMetadata("assay-rejection-bin", rejection.SerializeAsString());
    return {grpc::StatusCode::FAILED_PRECONDITION, "Refused by the test."};
  }

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterReply* reply) override {
    if (faults.refuseRegister != 0) {
      return refusal(context, faults.refuseRegister);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    registered_ = request->spec_json();
    reply->set_spec_hash("hash");
    return grpc::Status::OK;
  }

  grpc::Status Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                    v1::OpenReply* reply) override {
    if (faults.refuseOpen != 0) {
      return refusal(context, faults.refuseOpen);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto& metadata = context->client_metadata();
    if (const auto found = metadata.find("assay-client"); found != metadata.end()) {
      lastClient_.assign(found->second.data(), found->second.size());
    }
    if (const auto found = metadata.find("authorization"); found != metadata.end()) {
      lastAuthorization_.assign(found->second.data(), found->second.size());
    }
    reply->set_epoch(++epoch_);
    reply->set_resumed_committed(committed_[request->resume_epoch()]);
    reply->set_credit_bytes(1 << 20);
    reply->set_credit_batches(static_cast<std::uint32_t>(faults.creditBatches));
    return grpc::Status::OK;
  }

  grpc::Status Stream(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::Ack, v1::IngestRequest>* stream) override {
    std::uint64_t epoch = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      epoch = epoch_;
    }
    int batches = 0;
    v1::IngestRequest request;
    std::string parts;
    while (stream->Read(&request)) {
      while (faults.hang && !context->IsCancelled() && !stopping()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (faults.delayMilliseconds > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(faults.delayMilliseconds));
      }
      v1::Ack ack;
      ack.set_epoch(epoch);
      if (request.has_batch()) {
        v1::Batch batch = request.batch();
        if (batch.parts() > 1) {
          parts = batch.part() == 0 ? batch.tensors() : parts + batch.tensors();
          if (batch.part() + 1 < batch.parts()) {
            continue;
          }
          batch.set_tensors(parts);
        }
        ++batches;
        const bool cut = faults.cutAfter > 0 && batches >= faults.cutAfter;
        if (cut && faults.cutBeforeCommit) {
          return {grpc::StatusCode::UNAVAILABLE, "Cut by the test."};
        }
        commit(batch, epoch, ack);
        if (cut) {
          return {grpc::StatusCode::UNAVAILABLE, "Cut by the test."};
        }
        if (faults.silent) {
          continue;
        }
      }
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ack.set_committed(committed_[epoch]);
      }
      ack.set_credit_bytes(1 << 20);
      ack.set_credit_batches(static_cast<std::uint32_t>(faults.creditBatches));
      stream->Write(ack);
      if (faults.duplicateAcks) {
        ack.clear_rejections();
        stream->Write(ack);
      }
    }
    return grpc::Status::OK;
  }

  void commit(const v1::Batch& batch, std::uint64_t epoch, v1::Ack& ack) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto reject = [&](int reason) {
      v1::Rejection& rejection = *ack.add_rejections();
      rejection.set_epoch(epoch);
      rejection.set_seq(batch.seq());
      rejection.set_reason(static_cast<v1::Reason>(reason));
      rejection.set_message("Refused by the test.");
    };
    std::uint64_t& committed = committed_[epoch];
    if (epoch != epoch_ || batch.epoch() != epoch) {
      reject(v1::FENCED);
    } else if (batch.seq() <= committed) {
      ack.set_duplicates(1);
    } else if (batch.seq() - batch.dropped() != committed + 1) {
      reject(v1::SEQUENCE_GAP);
    } else if (const int once = faults.rejectOnce.exchange(0); once != 0) {
      reject(once);
    } else if (faults.rejectAll != 0) {
      reject(faults.rejectAll);
    } else {
      committed = batch.seq();
      stored_.push_back(batch);
    }
    mostUnderWay_ = std::max<std::size_t>(mostUnderWay_, batch.seq() - committed);
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* /*request*/,
                     grpc::ServerWriter<v1::ModelInfo>* writer) override {
    int told = 0;
    while (!context->IsCancelled()) {
      v1::ModelInfo info;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(10));
        if (stopping_) {
          return grpc::Status::OK;
        }
        if (published_ == told) {
          continue;
        }
        told = published_;
        info.set_size(model_.size());
        info.set_sha256(faults.lieAboutHash ? std::string(64, 'a')
                                            : sha256Hex(model_.data(), model_.size()));
      }
      if (!writer->Write(info)) {
        break;
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext* /*context*/, const v1::FetchRequest* /*request*/,
                     grpc::ServerWriter<v1::ModelChunk>* writer) override {
    ++fetches_;
    std::string model;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      model = model_;
    }
    constexpr std::size_t kChunk = 100;
    for (std::size_t at = 0; at < model.size(); at += kChunk) {
      if (faults.cutModel && at > model.size() / 2) {
        break;
      }
      v1::ModelChunk chunk;
      chunk.set_offset(at + (faults.shiftChunks ? 1 : 0));
      chunk.set_data(model.substr(at, kChunk));
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }

  [[nodiscard]] bool stopping() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stopping_;
  }

  std::shared_ptr<grpc::ServerCredentials> credentials_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::uint64_t epoch_ = 0;
  std::map<std::uint64_t, std::uint64_t> committed_;
  std::vector<v1::Batch> stored_;
  std::string model_;
  int published_ = 0;
  std::string lastClient_;
  std::string lastAuthorization_;
  std::string registered_;
  std::atomic<int> fetches_{0};
  std::atomic<std::size_t> mostUnderWay_{0};
};

}  // namespace assay::testing

#include "grpc_transport.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "assay.grpc.pb.h"
#include "assay/safetensors.h"
#include "wire.h"

namespace assay {
namespace {

constexpr const char* kVersion = "assay-cpp 0.1";
constexpr double kRegisterSeconds = 60.0;  // the server starts a learner to see whether it can
constexpr double kFetchSeconds = 600.0;

/// Return a file's content, or nothing where it cannot be read.
std::optional<std::string> readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::chrono::system_clock::time_point after(double seconds) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(
             std::chrono::duration<double>(seconds));
}

Failure failureOf(const grpc::Status& status, const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("assay-rejection-bin");
  v1::Rejection rejection;
  if (found != trailers.end() &&
      rejection.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()))) {
    return fromMessage(rejection);
  }
  Failure failure;
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    failure.reason = reason::kUnauthenticated;
  } else if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    failure.reason = reason::kPermissionDenied;
  }
  failure.message = status.ok() ? "The server ended the stream." : status.error_message();
  return failure;
}

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(const ClientConfig& config, std::string client,
                const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : spec_(*config.spec),
        client_(std::move(client)),
        token_(config.token),
        tokenFile_(config.tokenFile),
        callSeconds_(config.timing.callSeconds) {
    const auto milliseconds = [](double seconds) { return static_cast<int>(seconds * 1000.0); };
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(config.timing.keepaliveSeconds));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                     milliseconds(config.timing.keepaliveTimeoutSeconds));
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                     milliseconds(config.timing.firstPause));
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, milliseconds(config.timing.firstPause));
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, milliseconds(config.timing.longestPause));
    // The courier sends again, by numbers; the channel shall not do so behind its back.
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(static_cast<int>(kFrameBytes + 65536));
    arguments.SetMaxSendMessageSize(static_cast<int>(kFrameBytes + 65536));
    if (config.tls && !config.tls->serverName.empty()) {
      arguments.SetSslTargetNameOverride(config.tls->serverName);
    }
    const auto channel = grpc::CreateCustomChannel(config.address, credentials, arguments);
    session_ = v1::Session::NewStub(channel);
    ingest_ = v1::Ingest::NewStub(channel);
    models_ = v1::Models::NewStub(channel);
  }

  ~GrpcTransport() override { GrpcTransport::close(); }

  std::variant<OpenedSession, Failure> open(std::uint64_t resumeEpoch) override {
    close();
    std::string hash;
    std::optional<Failure> denied;
    {
      Call call(*this, std::max(kRegisterSeconds, callSeconds_));
      v1::RegisterRequest request;
      request.set_protocol(kProtocol);
      request.set_spec_json(spec_.json());
      v1::RegisterReply reply;
      const grpc::Status status = session_->Register(&call.context(), request, &reply);
      if (!status.ok()) {
        denied = failureOf(status, call.context());
        if (denied->reason != reason::kPermissionDenied) {
          return *denied;
        }
        // Who may not register may still send to what someone else has registered.
      }
      hash = reply.spec_hash();
    }
    OpenedSession session;
    {
      Call call(*this, callSeconds_);
      v1::OpenRequest request;
      request.set_protocol(kProtocol);
      request.set_policy(spec_.name());
      request.set_spec_hash(hash);
      request.set_resume_epoch(resumeEpoch);
      request.set_client_version(kVersion);
      v1::OpenReply reply;
      const grpc::Status status = session_->Open(&call.context(), request, &reply);
      if (!status.ok()) {
        return denied ? *denied : failureOf(status, call.context());
      }
      session.epoch = reply.epoch();
      session.resumedCommitted = reply.resumed_committed();
      session.creditBytes = reply.credit_bytes();
      session.creditBatches = reply.credit_batches();
      frameBytes_ = kFrameBytes;
      if (const std::uint64_t stated = reply.limits().frame_bytes(); stated > 0) {
        frameBytes_ = static_cast<std::size_t>(std::min<std::uint64_t>(stated, kFrameBytes));
      }
      session.frameBytes = frameBytes_;
    }
    return startStream(session);
  }

  std::optional<Failure> send(const Outgoing& outgoing, std::uint64_t epoch,
                              std::uint64_t dropped) override {
    v1::IngestRequest request;
    v1::Batch& batch = *request.mutable_batch();
    toMessage(outgoing, epoch, dropped, batch);
    const std::uint32_t parts = partsOf(outgoing, frameBytes_);
    for (std::uint32_t part = 0; part < std::max(parts, 1U); ++part) {
      if (parts > 1) {
        toPart(outgoing, frameBytes_, part, batch);
      }
      if (!stream_->Write(request)) {
        // The reader knows why.
        std::unique_lock<std::mutex> lock(mutex_);
        arrived_.wait_for(lock, std::chrono::duration<double>(callSeconds_),
                          [this] { return ended_.has_value(); });
        return ended_ ? *ended_ : Failure{0, "The stream broke."};
      }
    }
    return std::nullopt;
  }

  std::optional<Failure> poll(double seconds, std::vector<Ack>& answers) override {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [this] { return !answers_.empty() || ended_.has_value(); });
    answers.insert(answers.end(), std::make_move_iterator(answers_.begin()),
                   std::make_move_iterator(answers_.end()));
    answers_.clear();
    return ended_;
  }

  void close() override {
    if (!call_) {
      return;
    }
    call_->context().TryCancel();
    if (reader_.joinable()) {
      reader_.join();
    }
    stream_.reset();
    call_.reset();
  }

  Failure watch(const std::function<bool(const Announcement&)>& announced) override {
    Call call(*this, 0.0);
    v1::WatchRequest request;
    request.set_policy(spec_.name());
    const auto reader = models_->Watch(&call.context(), request);
    v1::ModelInfo info;
    while (reader->Read(&info)) {
      if (!announced(Announcement{info.sha256(), info.size()})) {
        call.context().TryCancel();
      }
    }
    const grpc::Status status = reader->Finish();
    return failureOf(status, call.context());
  }

  std::variant<std::string, Failure> fetch(const Announcement& model) override {
    if (model.size == 0 || model.size > kMaxFile) {
      return Failure{reason::kHashMismatch, "The server announced a model of " +
                                                std::to_string(model.size) +
                                                " bytes; expected 1 byte to 256 MiB."};
    }
    Call call(*this, kFetchSeconds);
    v1::FetchRequest request;
    request.set_policy(spec_.name());
    request.set_sha256(model.sha256);
    const auto reader = models_->Fetch(&call.context(), request);
    ChunkAssembler assembler(model.size);
    v1::ModelChunk chunk;
    std::string trouble;
    while (reader->Read(&chunk)) {
      if (trouble.empty()) {
        trouble = assembler.add(chunk.offset(), chunk.data(), chunk.base_sha256());
        if (!trouble.empty()) {
          call.context().TryCancel();
        }
      }
    }
    const grpc::Status status = reader->Finish();
    if (trouble.empty() && !status.ok()) {
      return failureOf(status, call.context());
    }
    trouble = trouble.empty() ? assembler.finish() : trouble;
    if (!trouble.empty()) {
      return Failure{reason::kHashMismatch, trouble};
    }
    return std::move(assembler.bytes());
  }

  void cancel() override {
    const std::lock_guard<std::mutex> lock(callsMutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : calls_) {
      context->TryCancel();
    }
  }

 private:
  /// A call that `cancel` can end.
  class Call {
   public:
    /// @param seconds That it may take; 0: any.
    Call(GrpcTransport& owner, double seconds) : owner_(owner) {
      if (seconds > 0.0) {
        context_.set_deadline(after(seconds));
      }
      owner.identify(context_);
      const std::lock_guard<std::mutex> lock(owner.callsMutex_);
      owner.calls_.insert(&context_);
      if (owner.cancelled_) {
        context_.TryCancel();
      }
    }
    ~Call() {
      const std::lock_guard<std::mutex> lock(owner_.callsMutex_);
      owner_.calls_.erase(&context_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext& context() { return context_; }

   private:
    GrpcTransport& owner_;
    grpc::ClientContext context_;
  };

  /// Say who this is: never in a message, always in the call.
  void identify(grpc::ClientContext& context) const {
    context.AddMetadata("assay-client", client_);
    std::string token = token_;
    if (!tokenFile_.empty()) {
      token = readFile(tokenFile_).value_or("");
      // What a person's editor leaves at the end of a line; and nothing that is not a header.
      token.erase(std::remove_if(token.begin(), token.end(),
                                 [](char c) { return c <= ' ' || c > '~'; }),
                  token.end());
    }
    if (!token.empty()) {
      context.AddMetadata("authorization", "Bearer " + token);
    }
  }

  std::variant<OpenedSession, Failure> startStream(const OpenedSession& session) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_.clear();
      ended_.reset();
    }
    call_ = std::make_unique<Call>(*this, 0.0);
    stream_ = ingest_->Stream(&call_->context());
    reader_ = std::thread([this] { readAnswers(); });
    // Without a batch, so that a client without credits hears when there are some.
    v1::IngestRequest hello;
    hello.set_policy(spec_.name());
    if (!stream_->Write(hello)) {
      call_->context().TryCancel();
      reader_.join();
      const std::lock_guard<std::mutex> lock(mutex_);
      return ended_ ? *ended_ : Failure{0, "The stream could not be opened."};
    }
    return session;
  }

  void readAnswers() {
    v1::Ack message;
    while (stream_->Read(&message)) {
      Ack ack = fromMessage(message);
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_.push_back(std::move(ack));
      arrived_.notify_all();
    }
    const grpc::Status status = stream_->Finish();
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = failureOf(status, call_->context());
    arrived_.notify_all();
  }

  const PolicySpec spec_;
  const std::string client_;
  const std::string token_;
  const std::string tokenFile_;
  const double callSeconds_;
  std::unique_ptr<v1::Session::Stub> session_;
  std::unique_ptr<v1::Ingest::Stub> ingest_;
  std::unique_ptr<v1::Models::Stub> models_;
  std::size_t frameBytes_ = kFrameBytes;

  std::mutex callsMutex_;
  std::set<grpc::ClientContext*> calls_;
  bool cancelled_ = false;

  std::unique_ptr<Call> call_;  // of the stream
  std::unique_ptr<grpc::ClientReaderWriter<v1::IngestRequest, v1::Ack>> stream_;
  std::thread reader_;
  std::mutex mutex_;  // of what the reader leaves
  std::condition_variable arrived_;
  std::vector<Ack> answers_;
  std::optional<Failure> ended_;
};

}  // namespace

Result<std::unique_ptr<Transport>> makeGrpcTransport(const ClientConfig& config,
                                                     const std::string& client) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (config.tls) {
    grpc::SslCredentialsOptions options;
    for (const auto& [path, content, name] :
         {std::tuple{config.tls->ca, &options.pem_root_certs, "ca"},
          std::tuple{config.tls->certificate, &options.pem_cert_chain, "certificate"},
          std::tuple{config.tls->key, &options.pem_private_key, "key"}}) {
      if (path.empty()) {
        continue;
      }
      auto text = readFile(path);
      if (!text) {
        return Error{ErrorCode::BadConfig,
                     std::string("Cannot read tls.") + name + "='" + path + "'."};
      }
      *content = std::move(*text);
    }
    credentials = grpc::SslCredentials(options);
  }
  if (!config.tokenFile.empty() && !readFile(config.tokenFile)) {
    return Error{ErrorCode::BadConfig, "Cannot read token_file='" + config.tokenFile + "'."};
  }
  return std::unique_ptr<Transport>(
      std::make_unique<GrpcTransport>(config, client, credentials));
}

}  // namespace assay

#include "assay/client.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <utility>

#include "agent.h"
#include "courier.h"
#include "grpc_transport.h"
#include "keeper.h"
#include "outbox.h"

namespace assay {
namespace {

/// Return an id that nobody else has.
std::string madeUpId() {
  static std::atomic<unsigned> count{0};
  char host[81] = {};
  ::gethostname(host, sizeof host - 1);
  std::string name;
  for (const char* c = host; *c != '\0'; ++c) {
    const bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                       (*c >= '0' && *c <= '9');
    name += plain || (*c == '.' && !name.empty()) ? *c : '-';
  }
  if (name.empty() || name[0] == '-') {
    name = "client" + name;
  }
  return name + "-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

/// Return the folder of one policy: two must not find each other's models.
std::string ofPolicy(const std::string& models, const std::string& policy) {
  return models.empty() ? models : models + "/" + policy;
}

}  // namespace

// In the order in which they lean on each other; the courier's threads end first.
struct Client::Parts {
  Parts(const ClientConfig& config, std::function<double()> clock)
      : spec(*config.spec),
        outbox(spec.parts(), config.bufferSteps, config.batchSteps, config.overflow,
               config.seed + 1),
        keeper(spec.parts(), ofPolicy(config.models, spec.name()), std::move(clock), mailbox) {}

  PolicySpec spec;
  ModelMailbox mailbox;
  Outbox outbox;
  ModelKeeper keeper;
  std::unique_ptr<Agent> agent;
  std::unique_ptr<Courier> courier;
};

Client::Client(std::unique_ptr<Parts> parts) noexcept : parts_(std::move(parts)) {}

Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::connect(ClientConfig config) {
  try {
    if (auto problem = config.problem()) {
      return *problem;
    }
    if (!config.clock) {
      config.clock = [] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
      };
    }
    auto transport =
        makeGrpcTransport(config, config.client.empty() ? madeUpId() : config.client);
    if (!transport) {
      return transport.error();
    }
    auto parts = std::make_unique<Parts>(config, config.clock);
    if (!parts->outbox.pool().valid()) {
      return Error{ErrorCode::OutOfMemory,
                   "There is no memory for buffer_steps=" + std::to_string(config.bufferSteps) +
                       "; choose fewer."};
    }
    parts->agent = std::make_unique<Agent>(config, parts->outbox, parts->mailbox,
                                           parts->keeper.newestOnDisk());
    parts->courier =
        std::make_unique<Courier>(config, parts->spec.parts(), parts->outbox, parts->keeper,
                                  std::move(transport).value());
    parts->courier->start();
    return std::unique_ptr<Client>(new Client(std::move(parts)));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::OutOfMemory, "There is not enough memory for the client."};
  } catch (const std::exception& error) {
    return Error{ErrorCode::BadConfig, std::string("Cannot start the client: ") + error.what()};
  }
}

Action Client::act(Span<const float> observation, Span<const std::uint8_t> mask) noexcept {
  return parts_->agent->decide(observation, mask).action;
}

Decided Client::decide(Span<const float> observation, Span<const std::uint8_t> mask) noexcept {
  return parts_->agent->decide(observation, mask);
}

bool Client::reward(double value) noexcept { return parts_->agent->reward(value, std::nullopt); }

bool Client::reward(double value, std::uint64_t event) noexcept {
  return parts_->agent->reward(value, event);
}

bool Client::end(bool terminated, bool truncated, Span<const float> finalObservation) noexcept {
  return parts_->agent->end(terminated, truncated, finalObservation);
}

void Client::flush() noexcept { parts_->agent->flush(); }

std::optional<Action> Client::recommendation() const { return parts_->agent->recommendation(); }

Status Client::status() const {
  Status status;
  parts_->agent->report(status);
  parts_->courier->report(status);
  status.version = parts_->keeper.version();
  status.acceptedModels = parts_->keeper.accepted();
  status.rejectedModels = parts_->keeper.rejected();
  status.lastRejection = parts_->keeper.lastRejection();
  status.diskErrors = parts_->keeper.diskErrors();
  return status;
}

bool Client::close(double seconds) {
  flush();
  return parts_->courier->stop(seconds);
}

}  // namespace assay

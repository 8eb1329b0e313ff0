/// @file
/// How a client acts, records, guards and connects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "assay/action.h"
#include "assay/result.h"
#include "assay/span.h"
#include "assay/spec.h"

namespace assay {

/// Who acts.
enum class Mode {
  Act,         ///< The model, with the fallback chain behind it.
  Shadow,      ///< The heuristic; the model only recommends.
  Apprentice,  ///< The heuristic for a while, to learn from; then the model.
};

/// What gives when the buffer is full.
enum class Overflow {
  Block,       ///< reward() and end() wait, up to a limit; then new steps are dropped.
  DropOldest,  ///< What waits longest is dropped.
  Reservoir,   ///< What is kept is an even sample of all that came since it was full.
};

/// What the system did before: observation and mask (empty: all is valid) to action.
using HeuristicFunction = std::function<Action(Span<const float>, Span<const std::uint8_t>)>;

/// Files with certificates, in PEM.
struct TlsConfig {
  std::string ca;           ///< Who signs servers; empty: whom the system trusts.
  std::string certificate;  ///< The client's own, for mutual TLS.
  std::string key;          ///< Its private key.
  std::string serverName;   ///< The name in the server's certificate, if not that of the address.
};

/// Seconds. What is here is good as it is; tests make them short.
struct Timing {
  double firstPause = 0.1;      ///< Before a lost connection is opened again; it doubles.
  double longestPause = 10.0;   ///< The longest of these pauses.
  double refusedPause = 30.0;   ///< After a refusal that only a person can fix.
  double fencedPause = 5.0;     ///< After another process with this identity took over; doubles.
  double longestFenced = 300.0; ///< The longest of these pauses.
  double callSeconds = 10.0;    ///< What a single short call may take.
  double stallSeconds = 60.0;   ///< How long a batch may stay without an answer.
  double keepaliveSeconds = 20.0;         ///< Between pings, which find a half-open connection.
  double keepaliveTimeoutSeconds = 10.0;  ///< Until a ping without an answer ends it.
  double pollSeconds = 0.01;    ///< Between looks for new steps.
  double problemSeconds = 60.0; ///< Between reports of the same problem.
};

/// Everything about a client. The spec and the safe action have no defaults.
struct ClientConfig {
  std::string address = "127.0.0.1:50051";  ///< Of the server.
  std::string client;                ///< Who this is, where neither token nor certificate says it.
  std::optional<PolicySpec> spec;    ///< What is registered.
  std::optional<Action> safeAction;  ///< What is safe at any time; the end of the fallback chain.
  HeuristicFunction heuristic;       ///< What the system did before; empty if there is nothing.

  Mode mode = Mode::Act;
  std::uint64_t apprenticeSteps = 1000;  ///< For which an apprentice follows the heuristic.
  bool explore = true;                   ///< Sample as in training, or take the best action.
  std::uint64_t seed = 0;                ///< Of exploration and of the reservoir.
  double modelTtl = 0.0;  ///< Seconds without word from the server after which models rest; 0: never.
  double maxChange = 0.0;       ///< How far a Box action may move from step to step; 0: any.
  std::uint64_t holdSteps = 0;  ///< Steps before a choice may change.

  std::size_t batchSteps = 256;       ///< After which a batch is closed.
  double batchSeconds = 1.0;          ///< After which a batch is closed.
  std::size_t bufferSteps = 100'000;  ///< Most steps held until acknowledged.
  Overflow overflow = Overflow::DropOldest;
  double blockSeconds = 1.0;  ///< Longest wait of Overflow::Block.

  std::string models;            ///< Where good models are kept, by policy; empty: nowhere.
  std::optional<TlsConfig> tls;  ///< Without it the connection is plaintext, on this machine alone.
  std::string token;             ///< A bearer token.
  std::string tokenFile;         ///< A file with the token, read at every connection.

  /// Told, in one line, what a person should fix; from the client's own threads.
  std::function<void(const std::string&)> onProblem;
  Timing timing;
  std::function<double()> clock;  ///< Seconds that only grow; empty: the steady clock.

  /// Read a config from JSON; heuristic, onProblem and clock are set afterwards.
  [[nodiscard]] static Result<ClientConfig> fromJson(const std::string& text);
  /// Read a config from a JSON file.
  [[nodiscard]] static Result<ClientConfig> fromFile(const std::string& path);
  /// Return what is wrong, or nothing.
  [[nodiscard]] std::optional<Error> problem() const;
};

}  // namespace assay

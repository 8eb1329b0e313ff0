#include "assay/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "encoding.h"
#include "json.h"
#include "parsed_spec.h"

namespace assay {
namespace {

constexpr std::size_t kMostBuffered = 10'000'000;
constexpr std::size_t kMaxConfig = std::size_t{4} << 20U;
constexpr auto kReplace = Json::error_handler_t::replace;

/// Carries the reason out of the reader; it never leaves this file.
struct BadConfig {
  std::string message;
};

[[noreturn]] void refuse(const std::string& message) { throw BadConfig{message}; }

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, kReplace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

/// Return how many letters must change to make one word of another.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t corner = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = corner + (a[i - 1] == b[j - 1] ? 0 : 1);
      corner = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

/// Reads the keys of one JSON object, each at most once; null counts as not given.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      refuse(where_ + " is " + shown(object) + "; expected an object.");
    }
  }

  const Json* find(const std::string& key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void text(const std::string& key, std::string& out) {
    if (const Json* value = find(key)) {
      if (!value->is_string()) {
        refuse(name(key) + "=" + shown(*value) + ": expected a text.");
      }
      out = value->get<std::string>();
    }
  }

  void flag(const std::string& key, bool& out) {
    if (const Json* value = find(key)) {
      if (!value->is_boolean()) {
        refuse(name(key) + "=" + shown(*value) + ": expected true or false.");
      }
      out = value->get<bool>();
    }
  }

  template <typename T>
  void whole(const std::string& key, T& out, std::int64_t least) {
    if (const Json* value = find(key)) {
      const auto number = wholeNumber(*value, least, std::int64_t{1} << 53U);
      if (!number) {
        refuse(name(key) + "=" + shown(*value) + ": expected a whole number of " +
               std::to_string(least) + " or more.");
      }
      out = static_cast<T>(*number);
    }
  }

  /// Read a number above 0, or from 0 on.
  void number(const std::string& key, double& out, bool zero = false) {
    if (const Json* value = find(key)) {
      const double given = value->is_number() ? value->get<double>() : -1.0;
      if (!std::isfinite(given) || given < 0.0 || (given == 0.0 && !zero)) {
        refuse(name(key) + "=" + shown(*value) + ": expected a number " +
               (zero ? "of 0 or more." : "above 0."));
      }
      out = given;
    }
  }

  template <typename Enum, std::size_t N>
  void oneOf(const std::string& key, Enum& out,
             const std::array<std::pair<const char*, Enum>, N>& names) {
    const Json* value = find(key);
    if (value == nullptr) {
      return;
    }
    std::string list;
    for (const auto& [word, choice] : names) {
      if (*value == word) {
        out = choice;
        return;
      }
      list += (list.empty() ? "" : ", ") + std::string(word);
    }
    refuse(name(key) + "=" + shown(*value) + ": expected one of " + list + ".");
  }

  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (known_.count(key) != 0) {
        continue;
      }
      const auto nearest =
          std::min_element(known_.begin(), known_.end(), [&key = key](const auto& a, const auto& b) {
            return distance(a, key) < distance(b, key);
          });
      refuse(where_ + " has a key '" + key + "' that is not known. Did you mean '" + *nearest +
             "'?");
    }
  }

 private:
  [[nodiscard]] std::string name(const std::string& key) const {
    return where_ == "The config" ? key : where_ + "." + key;
  }

  const Json& object_;
  std::string where_;
  std::set<std::string> known_;
};

/// Return the spec that a config describes in keys of its own.
PolicySpec readSpec(Reader& reader) {
  std::string policy;
  std::string algorithm;
  std::string group;
  bool masks = false;
  reader.text("policy", policy);
  reader.text("algorithm", algorithm);
  reader.text("group", group);
  reader.flag("masks", masks);
  const Json* observation = reader.find("observation");
  const Json* action = reader.find("action");
  const Json* bounds = reader.find("bounds");
  const Json* settings = reader.find("settings");
  if (const Json* given = reader.find("spec")) {
    if (!policy.empty() || !algorithm.empty() || !group.empty() || masks ||
        observation != nullptr || action != nullptr || bounds != nullptr || settings != nullptr) {
      refuse(
          "The config has a spec, and keys that belong into it: expected one or the other (policy, "
          "algorithm, observation, action, bounds, settings, group, masks).");
    }
    auto spec = PolicySpec::fromJson(given->is_string() ? given->get<std::string>()
                                                        : given->dump(-1, ' ', false, kReplace));
    if (!spec) {
      refuse(spec.error().message);
    }
    return std::move(spec).value();
  }
  for (const auto& [missing, key] :
       {std::pair{policy.empty(), "policy"}, std::pair{algorithm.empty(), "algorithm"},
        std::pair{observation == nullptr, "observation"}, std::pair{action == nullptr, "action"}}) {
    if (missing) {
      refuse(std::string("The config lacks '") + key +
             "'; expected policy, algorithm, observation and action, or a whole spec.");
    }
  }
  Json spec = {{"name", policy},
               {"algorithm", algorithm},
               {"observation", *observation},
               {"action", *action},
               {"settings", settings == nullptr ? Json::object() : *settings}};
  if (bounds != nullptr) {
    spec["bounds"] = *bounds;
  }
  if (!group.empty()) {
    spec["group"] = group;
  }
  // Read once without the mask, to know how long it is.
  auto plain = PolicySpec::fromJson(spec.dump(-1, ' ', false, kReplace));
  if (!plain) {
    refuse(plain.error().message);
  }
  if (!masks) {
    return std::move(plain).value();
  }
  if (plain.value().maskSize() == 0) {
    refuse("masks=true, but actions of a box have no masks.");
  }
  Json& seen = spec["observation"];
  if (seen["kind"] != "dict") {
    seen = Json{{"kind", "dict"}, {"spaces", {{"obs", seen}}}};
  }
  seen["spaces"][kActionMask] = {{"kind", "multi_binary"}, {"shape", {plain.value().maskSize()}}};
  auto masked = PolicySpec::fromJson(spec.dump(-1, ' ', false, kReplace));
  if (!masked) {
    refuse(masked.error().message);
  }
  return std::move(masked).value();
}

Action readAction(const Json& value, const PolicySpec& spec) {
  const Json list = value.is_array() ? value : Json::array({value});
  const bool numbers = spec.parts().action.kind == SpaceKind::Box;
  std::vector<float> values;
  std::vector<std::int64_t> choices;
  for (const Json& one : list) {
    const auto whole = wholeNumber(one, std::numeric_limits<std::int32_t>::min(),
                                   std::numeric_limits<std::int32_t>::max());
    if (numbers ? !one.is_number() : !whole) {
      refuse("safe_action=" + shown(value) + ": expected " +
             (numbers ? "numbers." : "whole numbers."));
    }
    if (numbers) {
      values.push_back(one.get<float>());
    } else {
      choices.push_back(*whole);
    }
  }
  return numbers ? Action::values(Span<const float>(values))
                 : Action::choices(Span<const std::int64_t>(choices));
}

ClientConfig readConfig(const Json& object) {
  Reader reader(object, "The config");
  ClientConfig config;
  config.spec = readSpec(reader);
  reader.text("address", config.address);
  reader.text("client", config.client);
  if (const Json* safe = reader.find("safe_action")) {
    config.safeAction = readAction(*safe, *config.spec);
  }
  reader.oneOf("mode", config.mode,
               std::array{std::pair{"act", Mode::Act}, std::pair{"shadow", Mode::Shadow},
                          std::pair{"apprentice", Mode::Apprentice}});
  reader.oneOf("overflow", config.overflow,
               std::array{std::pair{"block", Overflow::Block},
                          std::pair{"drop_oldest", Overflow::DropOldest},
                          std::pair{"reservoir", Overflow::Reservoir}});
  reader.whole("apprentice_steps", config.apprenticeSteps, 0);
  reader.flag("explore", config.explore);
  reader.whole("seed", config.seed, 0);
  reader.number("model_ttl", config.modelTtl);
  reader.number("max_change", config.maxChange);
  reader.whole("hold_steps", config.holdSteps, 0);
  reader.whole("batch_steps", config.batchSteps, 1);
  reader.number("batch_seconds", config.batchSeconds);
  reader.whole("buffer_steps", config.bufferSteps, 1);
  reader.number("block_seconds", config.blockSeconds, true);
  reader.text("models", config.models);
  reader.text("token", config.token);
  reader.text("token_file", config.tokenFile);
  reader.number("keepalive_seconds", config.timing.keepaliveSeconds);
  reader.number("keepalive_timeout", config.timing.keepaliveTimeoutSeconds);
  reader.number("call_seconds", config.timing.callSeconds);
  reader.number("stall_seconds", config.timing.stallSeconds);
  if (const Json* tls = reader.find("tls")) {
    config.tls.emplace();
    Reader files(*tls, "tls");
    files.text("ca", config.tls->ca);
    files.text("certificate", config.tls->certificate);
    files.text("key", config.tls->key);
    files.text("server_name", config.tls->serverName);
    files.finish();
  }
  reader.finish();
  return config;
}

bool isLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return address.rfind("unix:", 0) == 0 || host == "localhost" || host.rfind("127.", 0) == 0 ||
         host == "[::1]";
}

bool hasPort(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (address.rfind("unix:", 0) == 0) {
    return true;
  }
  if (colon == std::string::npos || colon == 0) {
    return false;
  }
  const std::string port = address.substr(colon + 1);
  return !port.empty() && port.size() <= 5 &&
         std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoi(port) > 0 && std::stoi(port) < 65536;
}

/// Letters that an id on loopback may have, as the server reads it.
bool isClientId(const std::string& id) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !id.empty() && id.size() <= 128 && plain(id[0]) &&
         std::all_of(id.begin(), id.end(), [&](char c) {
           return plain(c) || c == '.' || c == '_' || c == '@' || c == ':' || c == '-';
         });
}

bool isSafe(const Action& action, const LeafSpec& space) {
  if (action.size() != space.size || action.isNumbers() != (space.kind == SpaceKind::Box)) {
    return false;
  }
  for (std::size_t i = 0; i < action.size(); ++i) {
    if (action.isNumbers()) {
      const float value = action.values()[i];
      if (!std::isfinite(value) || value < static_cast<float>(space.low[i]) ||
          value > static_cast<float>(space.high[i])) {
        return false;
      }
    } else if (action.choices()[i] < 0 || action.choices()[i] >= space.sizes[i]) {
      return false;
    }
  }
  return true;
}

Error bad(std::string message) { return {ErrorCode::BadConfig, std::move(message)}; }

}  // namespace

Result<ClientConfig> ClientConfig::fromJson(const std::string& text) {
  try {
    if (text.size() > kMaxConfig) {
      return bad("The config is larger than 4 MiB.");
    }
    const auto object = parseJson(text.begin(), text.end());
    if (!object) {
      return bad("The config is not JSON, or names a key twice.");
    }
    ClientConfig config = readConfig(*object);
    return config;
  } catch (const BadConfig& error) {
    return bad(error.message);
  } catch (const std::exception& error) {
    return bad(std::string("The config cannot be read: ") + error.what());
  }
}

Result<ClientConfig> ClientConfig::fromFile(const std::string& path) {
  try {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      return bad("Cannot read the config '" + path + "'.");
    }
    std::string text;
    char block[65536];
    while (text.size() <= kMaxConfig && (file.read(block, sizeof block), file.gcount() > 0)) {
      text.append(block, static_cast<std::size_t>(file.gcount()));
    }
    auto config = fromJson(text);
    if (!config) {
      return bad("In '" + path + "': " + config.error().message);
    }
    // Paths in a file are seen from the file.
    ClientConfig read = std::move(config).value();
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
    const auto beside = [&](std::string& name) {
      if (!name.empty() && name[0] != '/') {
        name = folder + name;
      }
    };
    beside(read.models);
    beside(read.tokenFile);
    if (read.tls) {
      beside(read.tls->ca);
      beside(read.tls->certificate);
      beside(read.tls->key);
    }
    return read;
  } catch (const std::exception& error) {
    return bad("Cannot read the config '" + path + "': " + error.what());
  }
}

std::optional<Error> ClientConfig::problem() const {
  if (!spec) {
    return bad("There is no spec; expected what the policy observes and does.");
  }
  const ParsedSpec& parts = spec->parts();
  if (!safeAction || !isSafe(*safeAction, parts.action)) {
    return bad(std::string("safe_action is ") + (safeAction ? "not in the action space" : "missing") +
               "; expected an action that is safe at any time.");
  }
  if (!hasPort(address)) {
    return bad("address='" + address + "': expected host:port, such as 127.0.0.1:50051.");
  }
  if (!tls && !isLoopback(address)) {
    return bad("address='" + address +
               "' is not on this machine, and plaintext does not leave it: expected tls.");
  }
  if (!client.empty() && !isClientId(client)) {
    return bad("client='" + client +
               "': expected 1 to 128 letters, digits, '.', '_', '@', ':' or '-'.");
  }
  if (!token.empty() && !tokenFile.empty()) {
    return bad("token and token_file are both given; expected one of them.");
  }
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; })) {
    return bad("The token has spaces or odd characters; expected one plain word.");
  }
  if (tls && tls->certificate.empty() != tls->key.empty()) {
    return bad("tls.certificate and tls.key go together; expected both or neither.");
  }
  if (mode != Mode::Act && !heuristic) {
    return bad("mode=shadow and mode=apprentice need a heuristic that acts; there is none.");
  }
  const bool numbers = parts.action.kind == SpaceKind::Box;
  if (maxChange != 0.0 && !(numbers && maxChange > 0.0 && std::isfinite(maxChange))) {
    return bad("max_change: expected a positive number, with Box actions; use hold_steps for "
               "choices.");
  }
  if (holdSteps != 0 && numbers) {
    return bad("hold_steps: expected actions that are choices; use max_change for Box actions.");
  }
  if (batchSteps < 1 || batchSteps > bufferSteps || bufferSteps > kMostBuffered) {
    return bad("batch_steps=" + std::to_string(batchSteps) + " and buffer_steps=" +
               std::to_string(bufferSteps) + ": expected 1 <= batch_steps <= buffer_steps <= " +
               std::to_string(kMostBuffered) + ".");
  }
  if (mostBytes(parts, batchSteps) > kTrajectoryBytes) {
    return bad("batch_steps=" + std::to_string(batchSteps) +
               ": so many steps are more than the 64 MiB of a batch; choose fewer.");
  }
  const auto positive = [](double value) { return std::isfinite(value) && value > 0.0; };
  if (!positive(batchSeconds) || !(blockSeconds >= 0.0) || !(modelTtl >= 0.0) ||
      !std::isfinite(blockSeconds) || !std::isfinite(modelTtl)) {
    return bad("batch_seconds, block_seconds and model_ttl: expected numbers of seconds.");
  }
  for (const double seconds :
       {timing.firstPause, timing.longestPause, timing.refusedPause, timing.fencedPause,
        timing.longestFenced, timing.callSeconds, timing.stallSeconds, timing.keepaliveSeconds,
        timing.keepaliveTimeoutSeconds, timing.pollSeconds, timing.problemSeconds}) {
    if (!positive(seconds) || seconds > 1e6) {
      return bad("timing: expected seconds above 0.");
    }
  }
  return std::nullopt;
}

}  // namespace assay

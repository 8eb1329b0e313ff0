#include "assay/spec.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "assay/action.h"
#include "json.h"
#include "parsed_spec.h"

namespace assay {
namespace {

constexpr std::size_t kMaxSpec = std::size_t{1} << 20U;
constexpr std::size_t kMaxStepBytes = std::size_t{4} << 20U;
constexpr std::size_t kMaxLeaves = 64;
constexpr std::size_t kMaxDepthOfSpaces = 8;
constexpr std::size_t kMaxChoices = 65536;  // of an action: how long a mask may be
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kReplace = Json::error_handler_t::replace;

/// Carries the reason out of the reader; it never leaves this file.
struct BadSpec {
  std::string message;
};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw BadSpec{"The policy spec: " + where + ": " + what + "."};
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, kReplace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

const Json& need(const Json& object, const std::string& name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end()) {
    refuse(where, "'" + name + "' is missing");
  }
  return *found;
}

void refuseOthers(const Json& object, const std::set<std::string>& known,
                  const std::string& where) {
  for (const auto& [name, value] : object.items()) {
    if (known.count(name) == 0) {
      refuse(where, "'" + name + "' is not known");
    }
  }
}

std::string nameOf(const Json& object, const std::string& field) {
  const Json& value = need(object, field, "the spec");
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const auto good = [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; };
  if (text.empty() || text.size() > 64 || !plain(text[0]) ||
      !std::all_of(text.begin(), text.end(), good)) {
    refuse(field, shown(value) + " is not a name; expected 1 to 64 letters, digits, '.', '_', '-'");
  }
  return text;
}

std::size_t sizeOf(const Json& value, const std::string& where, std::int64_t most) {
  const auto number = wholeNumber(value, 1, most);
  if (!number) {
    refuse(where, shown(value) + " is not a size; expected 1 to " + std::to_string(most));
  }
  return static_cast<std::size_t>(*number);
}

void readShape(const Json& space, const std::string& where, LeafSpec& leaf) {
  const Json& shape = need(space, "shape", where);
  if (!shape.is_array() || shape.empty() || shape.size() > 8) {
    refuse(where, "shape is " + shown(shape) + "; expected 1 to 8 sizes");
  }
  for (const Json& one : shape) {
    leaf.shape.push_back(sizeOf(one, where + ".shape", 1 << 30));
    leaf.size *= leaf.shape.back();
    if (leaf.size * sizeof(float) > kMaxStepBytes) {
      refuse(where, "shape is " + shown(shape) + ": more than 4 MiB a step");
    }
  }
}

std::vector<double> readBound(const Json& space, const char* name, std::size_t size, double none,
                              const std::string& where) {
  const auto found = space.find(name);
  std::vector<double> numbers(size, none);
  if (found == space.end() || found->is_null()) {
    return numbers;
  }
  const auto number = [&](const Json& value) {
    if (value.is_null()) {
      return none;
    }
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      refuse(where, std::string(name) + " holds " + shown(value) + "; expected numbers or null");
    }
    return value.get<double>();
  };
  if (found->is_array()) {
    if (found->size() != size) {
      refuse(where, std::string(name) + " has " + std::to_string(found->size()) +
                        " numbers; expected " + std::to_string(size));
    }
    for (std::size_t i = 0; i < size; ++i) {
      numbers[i] = number((*found)[i]);
    }
  } else {
    std::fill(numbers.begin(), numbers.end(), number(*found));
  }
  return numbers;
}

LeafSpec readLeaf(const Json& space, const std::string& where, bool action) {
  const Json& kind = need(space, "kind", where);
  LeafSpec leaf;
  if (kind == "box") {
    refuseOthers(space, {"kind", "shape", "dtype", "low", "high"}, where);
    readShape(space, where, leaf);
    const Json dtype = space.value("dtype", Json("float32"));
    if (dtype == "uint8" && !action) {
      leaf.type = WireType::Uint8;
    } else if (dtype != "float32") {
      refuse(where, "dtype is " + shown(dtype) + "; this client sends float32" +
                        (action ? "" : " or uint8"));
    }
    leaf.low = readBound(space, "low", leaf.size, -kInfinity, where);
    leaf.high = readBound(space, "high", leaf.size, kInfinity, where);
    for (std::size_t i = 0; i < leaf.size; ++i) {
      if (leaf.low[i] > leaf.high[i]) {
        refuse(where, "low is above high; expected low <= high everywhere");
      }
    }
    if (action && leaf.shape.size() != 1) {
      refuse(where, "its shape has more than one axis; expected actions in one row");
    }
  } else if (kind == "discrete") {
    refuseOthers(space, {"kind", "n", "start"}, where);
    leaf.kind = SpaceKind::Discrete;
    leaf.type = WireType::Int64;
    leaf.sizes = {static_cast<std::int64_t>(sizeOf(need(space, "n", where), where, 1U << 31U))};
    if (space.value("start", Json(0)) != 0) {
      refuse(where, "start is " + shown(space["start"]) + "; expected 0");
    }
  } else if (kind == "multi_discrete") {
    refuseOthers(space, {"kind", "nvec"}, where);
    leaf.kind = SpaceKind::MultiDiscrete;
    leaf.type = WireType::Int64;
    const Json& sizes = need(space, "nvec", where);
    if (!sizes.is_array() || sizes.empty() || sizes.size() > (1U << 16U)) {
      refuse(where, "nvec is " + shown(sizes) + "; expected a list of sizes");
    }
    for (const Json& one : sizes) {
      leaf.sizes.push_back(static_cast<std::int64_t>(sizeOf(one, where + ".nvec", 1U << 31U)));
    }
    leaf.size = sizes.size();
    leaf.shape = {leaf.size};
  } else if (kind == "multi_binary") {
    refuseOthers(space, {"kind", "shape"}, where);
    leaf.kind = SpaceKind::MultiBinary;
    leaf.type = WireType::Int8;
    readShape(space, where, leaf);
    if (leaf.shape.size() != 1) {
      refuse(where, "its shape has more than one axis; expected bits in one row");
    }
    leaf.sizes.assign(leaf.size, 2);
  } else {
    refuse(where, "kind is " + shown(kind) +
                      "; expected box, discrete, multi_discrete or multi_binary" +
                      (action ? "" : ", dict or tuple"));
  }
  return leaf;
}

void readLeaves(const Json& space, const std::string& key, std::size_t depth,
                std::vector<LeafSpec>& leaves) {
  const std::string where = key.empty() ? "observation" : "observation." + key;
  if (!space.is_object()) {
    refuse(where, "it is " + shown(space) + "; expected a space");
  }
  if (depth > kMaxDepthOfSpaces) {
    refuse(where, "spaces are nested deeper than 8 levels");
  }
  const auto join = [&](const std::string& name) { return key.empty() ? name : key + "/" + name; };
  const Json& kind = need(space, "kind", where);
  if (kind == "dict" || kind == "tuple") {
    refuseOthers(space, {"kind", "spaces"}, where);
    const Json& spaces = need(space, "spaces", where);
    if (spaces.empty() || !(kind == "dict" ? spaces.is_object() : spaces.is_array())) {
      refuse(where, "it has no spaces");
    }
    if (kind == "dict") {
      for (const auto& [name, one] : spaces.items()) {  // in the order of the names
        const auto bad = [](char c) { return c == '/' || static_cast<unsigned char>(c) < 32; };
        if (name.empty() || name.size() > 64 || std::any_of(name.begin(), name.end(), bad)) {
          refuse(where, "'" + name + "' is not a name of an entry; expected 1 to 64 characters");
        }
        readLeaves(one, join(name), depth + 1, leaves);
      }
    } else {
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        readLeaves(spaces[i], join(std::to_string(i)), depth + 1, leaves);
      }
    }
    return;
  }
  if (leaves.size() == kMaxLeaves) {
    refuse(where, "there are more than 64 parts");
  }
  leaves.push_back(readLeaf(space, where, false));
  leaves.back().key = key;
  leaves.back().isMask = key == kActionMask;
}

void readAction(const Json& object, ParsedSpec& spec) {
  spec.action = readLeaf(need(object, "action", "the spec"), "action", true);
  LeafSpec& action = spec.action;
  if (action.size > kMaxAction) {
    refuse("action", "it has " + std::to_string(action.size) + " numbers; this client takes " +
                         std::to_string(kMaxAction) + " or fewer");
  }
  if (action.kind == SpaceKind::MultiBinary) {
    spec.maskSize = action.size;
  } else {
    for (const std::int64_t size : action.sizes) {
      spec.maskSize += static_cast<std::size_t>(size);
      if (spec.maskSize > kMaxChoices) {
        refuse("action", "it has more than " + std::to_string(kMaxChoices) + " choices");
      }
    }
  }
  const auto bounds = object.find("bounds");
  if (bounds == object.end() || bounds->is_null()) {
    return;
  }
  if (action.kind != SpaceKind::Box || !bounds->is_object()) {
    refuse("bounds", "they are limits of a box of actions, {\"low\": ..., \"high\": ...}");
  }
  refuseOthers(*bounds, {"low", "high"}, "bounds");
  const auto low = readBound(*bounds, "low", action.size, -kInfinity, "bounds");
  const auto high = readBound(*bounds, "high", action.size, kInfinity, "bounds");
  for (std::size_t i = 0; i < action.size; ++i) {
    action.low[i] = std::max(action.low[i], low[i]);
    action.high[i] = std::min(action.high[i], high[i]);
    if (action.low[i] > action.high[i]) {
      refuse("bounds", "they leave no action");
    }
  }
}

std::shared_ptr<const ParsedSpec> readSpec(const std::string& text) {
  if (text.size() > kMaxSpec) {
    throw BadSpec{"The policy spec is larger than 1 MiB."};
  }
  const auto object = parseJson(text.begin(), text.end());
  if (!object || !object->is_object()) {
    throw BadSpec{"The policy spec is not a JSON object."};
  }
  refuseOthers(*object,
               {"schema", "name", "observation", "action", "bounds", "algorithm", "settings",
                "group"},
               "the spec");
  auto spec = std::make_shared<ParsedSpec>();
  spec->json = text;
  spec->name = nameOf(*object, "name");
  nameOf(*object, "algorithm");
  if (object->count("group") != 0 && !(*object)["group"].is_null()) {
    nameOf(*object, "group");
  }
  if (object->count("settings") != 0 && !(*object)["settings"].is_object()) {
    refuse("settings", "they are " + shown((*object)["settings"]) + "; expected an object");
  }
  readLeaves(need(*object, "observation", "the spec"), "", 0, spec->leaves);
  readAction(*object, *spec);
  std::size_t bytes = 0;
  for (const LeafSpec& leaf : spec->leaves) {
    bytes += leaf.size * sizeof(float);
    if (!leaf.isMask) {
      spec->observationSize += leaf.size;
      continue;
    }
    if (leaf.kind != SpaceKind::MultiBinary || leaf.size != spec->maskSize) {
      refuse("observation.action_mask", "expected a multi_binary of " +
                                            std::to_string(spec->maskSize) +
                                            ", one for each choice of the action");
    }
    spec->masked = true;
  }
  if (bytes > kMaxStepBytes) {
    refuse("observation", "it takes more than 4 MiB a step");
  }
  if (spec->observationSize == 0) {
    refuse("observation", "it holds nothing but the action mask");
  }
  return spec;
}

/// Compare a leaf with the description in a model file.
bool isSpace(const LeafSpec& leaf, const Json& found) {
  if (!found.is_object()) {
    return false;
  }
  const auto field = [&](const char* name) { return found.value(name, Json()); };
  const auto alike = [&](const char* name, const std::vector<double>& expected) {
    const Json value = field(name);
    if (value.is_array() && value.size() != expected.size()) {
      return false;
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Json& one = value.is_array() ? value[i] : value;
      const auto bound = static_cast<float>(expected[i]);
      if (one.is_null() ? std::isfinite(bound)
                        : !one.is_number() || static_cast<float>(one.get<double>()) != bound) {
        return false;
      }
    }
    return true;
  };
  switch (leaf.kind) {
    case SpaceKind::Discrete:
      return field("kind") == "Discrete" && field("n") == leaf.sizes[0] && field("start") == 0;
    case SpaceKind::MultiDiscrete:
      return field("kind") == "MultiDiscrete" && field("nvec") == Json(leaf.sizes) &&
             field("start") == Json(std::vector<int>(leaf.size, 0));
    case SpaceKind::MultiBinary:
      return field("kind") == "MultiBinary" && field("shape") == Json(leaf.shape);
    case SpaceKind::Box:
      break;
  }
  // A Box of bytes is bounded by its type, whatever the spec left out.
  const bool bytes = leaf.type == WireType::Uint8;
  return field("kind") == "Box" && field("shape") == Json(leaf.shape) &&
         field("dtype") == (bytes ? "uint8" : "float32") &&
         (bytes || (alike("low", leaf.low) && alike("high", leaf.high)));
}

std::string numberText(double value) { return Json(value).dump(); }

Json bound(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) {
    list.push_back(std::isfinite(value) ? Json(value) : Json());
  }
  return list;
}

}  // namespace

std::string differenceTo(const ParsedSpec& spec, const std::string& observation,
                         const std::string& action) {
  const auto seen = parseJson(observation.begin(), observation.end());
  const auto done = parseJson(action.begin(), action.end());
  if (!seen || !done || !isSpace(spec.action, *done)) {
    return "The model's action space is " + (done ? shown(*done) : "unreadable") +
           ", not that of the policy '" + spec.name + "'.";
  }
  bool same = true;
  if (spec.leaves.size() == 1 && spec.leaves[0].key.empty()) {
    same = isSpace(spec.leaves[0], *seen);
  } else {
    const Json parts = seen->is_object() ? seen->value("spaces", Json::object()) : Json::object();
    same = parts.is_object() && parts.size() == spec.leaves.size();
    for (const LeafSpec& leaf : spec.leaves) {
      same = same && parts.count(leaf.key) != 0 && isSpace(leaf, parts[leaf.key]);
    }
  }
  return same ? ""
              : "The model's observation space is " + shown(*seen) + ", not that of the policy '" +
                    spec.name + "'.";
}

Space Space::box(const std::vector<std::size_t>& shape, double low, double high) {
  Json space = {{"kind", "box"}, {"shape", shape}};
  if (std::isfinite(low)) {
    space["low"] = low;
  }
  if (std::isfinite(high)) {
    space["high"] = high;
  }
  return Space(space.dump());
}

Space Space::box(const std::vector<std::size_t>& shape, const std::vector<double>& low,
                 const std::vector<double>& high) {
  return Space(
      Json{{"kind", "box"}, {"shape", shape}, {"low", bound(low)}, {"high", bound(high)}}.dump());
}

Space Space::discrete(std::size_t n) { return Space(Json{{"kind", "discrete"}, {"n", n}}.dump()); }

Space Space::multiDiscrete(const std::vector<std::size_t>& sizes) {
  return Space(Json{{"kind", "multi_discrete"}, {"nvec", sizes}}.dump());
}

Space Space::multiBinary(std::size_t n) {
  return Space(Json{{"kind", "multi_binary"}, {"shape", {n}}}.dump());
}

Space Space::dict(const std::map<std::string, Space>& spaces) {
  Json parts = Json::object();
  for (const auto& [name, space] : spaces) {
    parts[name] = Json::parse(space.json(), nullptr, false);
  }
  return Space(Json{{"kind", "dict"}, {"spaces", parts}}.dump(-1, ' ', false, kReplace));
}

PolicySpec::PolicySpec(std::shared_ptr<const ParsedSpec> parts) noexcept
    : parts_(std::move(parts)) {}

Result<PolicySpec> PolicySpec::fromJson(const std::string& text) {
  try {
    return PolicySpec(readSpec(text));
  } catch (const BadSpec& bad) {
    return Error{ErrorCode::BadSpec, bad.message};
  } catch (const std::exception& error) {
    return Error{ErrorCode::BadSpec, std::string("The policy spec cannot be read: ") + error.what()};
  }
}

const std::string& PolicySpec::name() const noexcept { return parts_->name; }
const std::string& PolicySpec::json() const noexcept { return parts_->json; }
std::size_t PolicySpec::observationSize() const noexcept { return parts_->observationSize; }
std::size_t PolicySpec::actionSize() const noexcept { return parts_->action.size; }
std::size_t PolicySpec::maskSize() const noexcept { return parts_->maskSize; }
bool PolicySpec::masked() const noexcept { return parts_->masked; }

SpecBuilder::SpecBuilder(std::string name, std::string algorithm) {
  fields_["name"] = Json(std::move(name)).dump(-1, ' ', false, kReplace);
  fields_["algorithm"] = Json(std::move(algorithm)).dump(-1, ' ', false, kReplace);
}

SpecBuilder& SpecBuilder::observation(const Space& space) {
  fields_["observation"] = space.json();
  return *this;
}

SpecBuilder& SpecBuilder::action(const Space& space) {
  fields_["action"] = space.json();
  return *this;
}

SpecBuilder& SpecBuilder::masked() {
  masked_ = true;
  return *this;
}

SpecBuilder& SpecBuilder::bounds(double low, double high) {
  fields_["bounds"] =
      Json{{"low", bound({low})[0]}, {"high", bound({high})[0]}}.dump();
  return *this;
}

SpecBuilder& SpecBuilder::group(const std::string& name) {
  fields_["group"] = Json(name).dump(-1, ' ', false, kReplace);
  return *this;
}

SpecBuilder& SpecBuilder::set(const std::string& key, double value) {
  return setJson(key, numberText(value));
}
SpecBuilder& SpecBuilder::set(const std::string& key, int value) {
  return setJson(key, std::to_string(value));
}
SpecBuilder& SpecBuilder::set(const std::string& key, std::int64_t value) {
  return setJson(key, std::to_string(value));
}
SpecBuilder& SpecBuilder::set(const std::string& key, bool value) {
  return setJson(key, value ? "true" : "false");
}
SpecBuilder& SpecBuilder::set(const std::string& key, const char* value) {
  return set(key, std::string(value));
}
SpecBuilder& SpecBuilder::set(const std::string& key, const std::string& value) {
  return setJson(key, Json(value).dump(-1, ' ', false, kReplace));
}

SpecBuilder& SpecBuilder::setJson(const std::string& key, const std::string& json) {
  settings_[key] = json;
  return *this;
}

Result<PolicySpec> SpecBuilder::build() const {
  try {
    Json spec = {{"settings", Json::object()}};
    for (const auto& [name, text] : fields_) {
      spec[name] = Json::parse(text);
    }
    for (const auto& [name, text] : settings_) {
      Json value = Json::parse(text, nullptr, false);
      if (value.is_discarded()) {
        return Error{ErrorCode::BadSpec,
                     "The policy spec: settings." + name + ": " + text + " is not JSON."};
      }
      spec["settings"][name] = std::move(value);
    }
    if (masked_ && spec.count("observation") != 0 && spec.count("action") != 0) {
      const LeafSpec action = readLeaf(spec["action"], "action", true);
      std::int64_t choices = 0;
      for (const std::int64_t size : action.sizes) {
        choices += action.kind == SpaceKind::MultiBinary ? 1 : size;
      }
      if (choices == 0) {
        return Error{ErrorCode::BadSpec, "The policy spec: actions of a box have no masks."};
      }
      Json& observation = spec["observation"];
      if (observation.value("kind", "") != "dict") {
        observation = Json{{"kind", "dict"}, {"spaces", {{"obs", observation}}}};
      }
      observation["spaces"][kActionMask] = {{"kind", "multi_binary"}, {"shape", {choices}}};
    }
    return PolicySpec::fromJson(spec.dump(-1, ' ', false, kReplace));
  } catch (const BadSpec& bad) {
    return Error{ErrorCode::BadSpec, bad.message};
  } catch (const std::exception& error) {
    return Error{ErrorCode::BadSpec, std::string("The policy spec cannot be read: ") + error.what()};
  }
}

}  // namespace assay

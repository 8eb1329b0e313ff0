#include "architecture.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "json.h"

namespace assay {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 53;
constexpr double kLargest = 3.4028234663852886e38;

/// Carries the reason out of the reader; it never leaves this file.
struct BadModel {
  std::string message;
};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw BadModel{"The model's description is not of schema 1: " + where + ": " + what + "."};
}

/// Reads the fields of one JSON object; in the end none may be left over.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      refuse(where_, "expected an object");
    }
  }

  [[nodiscard]] const std::string& where() const { return where_; }

  const Json& any(const std::string& name) {
    const auto found = object_.find(name);
    if (found == object_.end()) {
      refuse(where_, "lacks '" + name + "'");
    }
    seen_.insert(name);
    return *found;
  }

  /// Return a field, or nullptr where it is missing or null.
  const Json* maybe(const std::string& name) {
    const auto found = object_.find(name);
    seen_.insert(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::string text(const std::string& name, std::size_t most = 200) {
    const Json& value = any(name);
    if (!value.is_string() || value.get_ref<const std::string&>().empty() ||
        value.get_ref<const std::string&>().size() > most) {
      refuse(where_, "'" + name + "' is not a short text");
    }
    return value.get<std::string>();
  }

  std::int64_t whole(const std::string& name, std::int64_t least, std::int64_t most) {
    const auto number = wholeNumber(any(name), least, most);
    if (!number) {
      refuse(where_, "'" + name + "' is not a whole number in its range");
    }
    return *number;
  }

  std::size_t width(const std::string& name) {
    return static_cast<std::size_t>(whole(name, 1, static_cast<std::int64_t>(kMaxWidth)));
  }

  double number(const std::string& name, double least, double most) {
    const Json& value = any(name);
    if (!value.is_number()) {
      refuse(where_, "'" + name + "' is not a number");
    }
    const auto number = value.get<double>();
    if (!(number >= least && number <= most)) {
      refuse(where_, "'" + name + "' is out of range");
    }
    return number;
  }

  const Json& list(const std::string& name, std::size_t least, std::size_t most) {
    const Json& value = any(name);
    if (!value.is_array() || value.size() < least || value.size() > most) {
      refuse(where_, "'" + name + "' is not a list of a fitting length");
    }
    return value;
  }

  std::vector<std::int64_t> wholes(const std::string& name, std::int64_t least, std::int64_t most,
                                   std::size_t atLeast) {
    std::vector<std::int64_t> numbers;
    for (const Json& value : list(name, atLeast, kMaxWidth)) {
      const auto number = wholeNumber(value, least, most);
      if (!number) {
        refuse(where_, "'" + name + "' holds something else than whole numbers in their range");
      }
      numbers.push_back(*number);
    }
    return numbers;
  }

  std::vector<std::size_t> widths(const std::string& name, std::size_t atLeast) {
    std::vector<std::size_t> sizes;
    for (const std::int64_t number :
         wholes(name, 1, static_cast<std::int64_t>(kMaxWidth), atLeast)) {
      sizes.push_back(static_cast<std::size_t>(number));
    }
    return sizes;
  }

  std::vector<double> bounds(const std::string& name, double none) {
    std::vector<double> numbers;
    for (const Json& value : list(name, 1, kMaxWidth)) {
      if (!value.is_null() && !value.is_number()) {
        refuse(where_, "'" + name + "' holds something else than numbers");
      }
      const double number = value.is_null() ? none : value.get<double>();
      if (!value.is_null() && std::abs(number) > kLargest) {
        refuse(where_, "'" + name + "' holds a number out of range");
      }
      numbers.push_back(number);
    }
    return numbers;
  }

  void finish() const {
    for (const auto& [name, value] : object_.items()) {
      if (seen_.count(name) == 0) {
        refuse(where_, "'" + name + "' is not known");
      }
    }
  }

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

ActivationKind activationOf(const Json* value, const std::string& where) {
  static const std::map<std::string, ActivationKind> kNames = {
      {"tanh", ActivationKind::Tanh}, {"relu", ActivationKind::Relu}, {"elu", ActivationKind::Elu},
      {"silu", ActivationKind::Silu}, {"gelu", ActivationKind::Gelu}};
  if (value == nullptr) {
    return ActivationKind::None;
  }
  const auto found = value->is_string() ? kNames.find(value->get<std::string>()) : kNames.end();
  if (found == kNames.end()) {
    refuse(where, "unknown activation");
  }
  return found->second;
}

LayerSpec readLayer(const Json& object, const std::string& where, bool plain);

std::vector<LayerSpec> readStream(const Json& list, const std::string& where) {
  if (!list.is_array() || list.empty() || list.size() > kMaxParts) {
    refuse(where, "expected a list of layers");
  }
  std::vector<LayerSpec> layers;
  for (const Json& part : list) {
    layers.push_back(readLayer(part, where, true));
  }
  return layers;
}

LayerSpec readLayer(const Json& object, const std::string& where, bool plain) {
  static const std::map<std::string, LayerKind> kKinds = {
      {"dense", LayerKind::Dense},           {"layer_norm", LayerKind::LayerNorm},
      {"batch_norm", LayerKind::BatchNorm},  {"activation", LayerKind::Activation},
      {"dueling", LayerKind::Dueling},       {"atoms", LayerKind::Atoms},
      {"levels", LayerKind::Levels},         {"gru", LayerKind::Gru},
      {"lstm", LayerKind::Lstm}};
  Fields fields(object, where);
  const std::string kind = fields.text("kind");
  const auto found = kKinds.find(kind);
  if (found == kKinds.end()) {
    refuse(where, "unknown kind of layer '" + kind + "'");
  }
  LayerSpec layer;
  layer.kind = found->second;
  if (plain && layer.kind >= LayerKind::Dueling) {
    refuse(where, "this kind of layer cannot stand inside another");
  }
  switch (layer.kind) {
    case LayerKind::BatchNorm:
      layer.mean = fields.text("mean");
      layer.variance = fields.text("variance");
      [[fallthrough]];
    case LayerKind::LayerNorm:
      layer.eps = static_cast<float>(fields.number("eps", 1e-30, 1.0));
      layer.weight = fields.text("weight");
      layer.bias = fields.text("bias");
      break;
    case LayerKind::Dense:
      layer.weight = fields.text("weight");
      layer.bias = fields.text("bias");
      layer.activation = activationOf(fields.maybe("activation"), where);
      break;
    case LayerKind::Activation:
      layer.activation = activationOf(&fields.any("activation"), where);
      break;
    case LayerKind::Dueling:
      layer.value = readStream(fields.any("value"), where + ".value");
      layer.advantage = readStream(fields.any("advantage"), where + ".advantage");
      break;
    case LayerKind::Atoms: {
      layer.advantage = readStream(fields.any("advantage"), where + ".advantage");
      if (const Json* value = fields.maybe("value")) {
        layer.value = readStream(*value, where + ".value");
      }
      layer.actions = fields.width("actions");
      layer.atoms = fields.width("atoms");
      if (fields.maybe("support") != nullptr) {
        layer.support = fields.text("support");
      }
      break;
    }
    case LayerKind::Levels:
      layer.weight = fields.text("weight");
      layer.bias = fields.text("bias");
      if (fields.maybe("levels") != nullptr) {
        layer.levels = fields.text("levels");
      }
      if (const Json* proposal = fields.maybe("proposal")) {
        Fields names(*proposal, where + ".proposal");
        layer.proposalWeight = names.text("weight");
        layer.proposalBias = names.text("bias");
        names.finish();
      }
      if (layer.levels.empty() == layer.proposalWeight.empty()) {
        refuse(where, "expected either levels or a proposal");
      }
      layer.advantage = readStream(fields.any("advantage"), where + ".advantage");
      if (const Json* value = fields.maybe("value")) {
        layer.value = readStream(*value, where + ".value");
      }
      break;
    case LayerKind::Gru:
    case LayerKind::Lstm:
      layer.size = fields.width("size");
      for (const Json& part : fields.list("layers", 1, kMaxParts)) {
        Fields gate(part, where + ".layers");
        layer.gates.push_back({gate.text("input"), gate.text("bias"), gate.text("hidden")});
        gate.finish();
      }
      break;
  }
  fields.finish();
  return layer;
}

HeadSpec readHead(const Json& object) {
  static const std::map<std::string, HeadKind> kKinds = {
      {"categorical", HeadKind::Categorical},
      {"multi_categorical", HeadKind::MultiCategorical},
      {"bernoulli", HeadKind::Bernoulli},
      {"gaussian", HeadKind::Gaussian},
      {"squashed_gaussian", HeadKind::SquashedGaussian},
      {"deterministic", HeadKind::Deterministic},
      {"q", HeadKind::ActionValues}};
  Fields fields(object, "head");
  const auto found = kKinds.find(fields.text("kind"));
  if (found == kKinds.end()) {
    refuse("head", "unknown kind of head");
  }
  HeadSpec head;
  head.kind = found->second;
  if (head.continuous()) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    head.low = fields.bounds("low", -kInfinity);
    head.high = fields.bounds("high", kInfinity);
    if (head.low.size() != head.high.size()) {
      refuse("head", "it has not as many lower as upper bounds");
    }
    for (std::size_t i = 0; i < head.low.size(); ++i) {
      const bool endless = !std::isfinite(head.low[i]) || !std::isfinite(head.high[i]);
      if (head.low[i] > head.high[i] || (endless && head.kind != HeadKind::Gaussian)) {
        refuse("head", "bounds are the wrong way round, or infinite where actions are scaled");
      }
    }
  }
  switch (head.kind) {
    case HeadKind::ActionValues:
      head.epsilon = fields.number("epsilon", 0.0, 1.0);
      [[fallthrough]];
    case HeadKind::Categorical:
      head.sizes = {fields.width("n")};
      head.starts = {0};
      if (fields.maybe("start") != nullptr) {
        head.starts = {fields.whole("start", -kMost, kMost)};
      }
      break;
    case HeadKind::Bernoulli:
      head.sizes = {fields.width("n")};
      break;
    case HeadKind::MultiCategorical:
      head.sizes = fields.widths("sizes", 1);
      head.starts = fields.wholes("starts", -kMost, kMost, 0);
      if (head.starts.size() != head.sizes.size() || head.params() > kMaxWidth) {
        refuse("head", "its sizes and starts do not fit");
      }
      break;
    case HeadKind::Gaussian:
      head.logStd = fields.text("log_std");
      break;
    case HeadKind::SquashedGaussian:
      head.logStdLow = fields.number("log_std_low", -kLargest, kLargest);
      head.logStdHigh = fields.number("log_std_high", head.logStdLow, kLargest);
      break;
    case HeadKind::Deterministic:
      head.noise = fields.number("noise", 0.0, 1e6);
      break;
  }
  fields.finish();
  return head;
}

EntrySpec readEntry(const Json& object) {
  Fields fields(object, "inputs");
  EntrySpec entry;
  if (fields.maybe("key") != nullptr) {
    entry.key = fields.text("key");
    entry.keyed = true;
  }
  entry.width = fields.width("width");
  if (fields.maybe("scale") != nullptr) {
    entry.scale = static_cast<float>(fields.number("scale", -kLargest, kLargest));
  }
  if (fields.maybe("sizes") != nullptr) {
    entry.sizes = fields.widths("sizes", 0);
  }
  if (fields.maybe("starts") != nullptr) {
    entry.starts = fields.wholes("starts", -kMost, kMost, 0);
  }
  std::size_t total = 0;
  for (const std::size_t size : entry.sizes) {
    total += size;
  }
  if (entry.starts.size() != entry.sizes.size() ||
      (!entry.sizes.empty() && total != entry.width)) {
    refuse("inputs", "sizes and starts of '" + entry.key + "' do not fit its width");
  }
  fields.finish();
  return entry;
}

Architecture readArchitecture(const Json& object) {
  Fields fields(object, "model");
  Architecture architecture;
  if (fields.text("format") != "assay-model") {
    refuse("format", "expected 'assay-model'");
  }
  fields.whole("schema_version", kSchema, kSchema);
  architecture.version = fields.whole("version", 0, kMost);
  architecture.epoch = fields.whole("epoch", 0, kMost);
  architecture.algorithm = fields.text("algorithm");
  // The spaces are for the client that registered them; acting needs inputs and head alone.
  if (!fields.any("observation").is_object() || !fields.any("action").is_object()) {
    refuse("model", "its spaces are not objects");
  }
  // A text that is not UTF-8 is replaced, not thrown at.
  constexpr auto kReplace = Json::error_handler_t::replace;
  architecture.observation = fields.any("observation").dump(-1, ' ', false, kReplace);
  architecture.action = fields.any("action").dump(-1, ' ', false, kReplace);
  std::set<std::string> keys;
  for (const Json& part : fields.list("inputs", 1, kMaxParts)) {
    architecture.inputs.push_back(readEntry(part));
    const EntrySpec& entry = architecture.inputs.back();
    if (!keys.insert(entry.key).second || (!entry.keyed && fields.any("inputs").size() > 1)) {
      refuse("inputs", "expected different keys");
    }
  }
  if (architecture.width() > kMaxWidth) {
    refuse("inputs", "they are too wide");
  }
  if (const Json* normalization = fields.maybe("normalization")) {
    Fields names(*normalization, "normalization");
    architecture.normalization = {names.text("mean"), names.text("inverse_std"),
                                  names.text("limit")};
    architecture.normalized = true;
    names.finish();
  }
  const Json& layers = fields.list("layers", 1, kMaxParts);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    architecture.layers.push_back(readLayer(layers[i], "layers." + std::to_string(i), false));
    const LayerKind kind = architecture.layers.back().kind;
    const bool last = kind == LayerKind::Dueling || kind == LayerKind::Atoms ||
                      kind == LayerKind::Levels;
    if (last && i + 1 < layers.size()) {
      refuse("layers", "a head's streams are not the last layer");
    }
  }
  architecture.head = readHead(fields.any("head"));
  fields.finish();
  return architecture;
}

}  // namespace

bool LayerSpec::affine() const {
  for (const std::vector<LayerSpec>* stream : {&advantage, &value}) {
    for (const LayerSpec& layer : *stream) {
      if (stream->size() > 1 || layer.kind != LayerKind::Dense ||
          layer.activation != ActivationKind::None) {
        return false;
      }
    }
  }
  return true;
}

std::size_t HeadSpec::params() const {
  if (continuous()) {
    return low.size() * (kind == HeadKind::SquashedGaussian ? 2 : 1);
  }
  std::size_t total = 0;
  for (const std::size_t size : sizes) {
    total += size;
  }
  return total;
}

bool HeadSpec::continuous() const {
  return kind == HeadKind::Gaussian || kind == HeadKind::SquashedGaussian ||
         kind == HeadKind::Deterministic;
}

std::size_t Architecture::width() const {
  std::size_t total = 0;
  for (const EntrySpec& entry : inputs) {
    total += entry.width;
  }
  return total;
}

std::size_t Architecture::rawWidth() const {
  std::size_t total = 0;
  for (const EntrySpec& entry : inputs) {
    total += entry.rawWidth();
  }
  return total;
}

Result<Architecture> parseArchitecture(const std::string& text) {
  const auto value = parseJson(text.begin(), text.end());
  if (!value || !value->is_object()) {
    return Error{ErrorCode::BadModel, "The model's description is not a JSON object."};
  }
  const auto schema = value->find("schema_version");
  if (schema != value->end() && schema->is_number_integer() &&
      !wholeNumber(*schema, std::numeric_limits<std::int64_t>::min(), kSchema)) {
    return Error{ErrorCode::NewerSchema,
                 "The model was written by a newer Assay; upgrade to load it."};
  }
  try {
    return readArchitecture(*value);
  } catch (const BadModel& bad) {
    return Error{ErrorCode::BadModel, bad.message};
  }
}

}  // namespace assay

#include "assay/model.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <fstream>
#include <ios>
#include <new>
#include <utility>
#include <vector>

#include "assay/safetensors.h"
#include "assay/sha256.h"
#include "parts.h"

namespace assay {
namespace {

std::string lowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Error outOfMemory() { return {ErrorCode::OutOfMemory, "There is not enough memory for the model."}; }

}  // namespace

Model::Model(std::unique_ptr<const Parts> parts) noexcept : parts_(std::move(parts)) {}
Model::~Model() = default;

Result<std::shared_ptr<const Model>> Model::fromBytes(const void* data, std::size_t size,
                                                      const std::string& sha256) {
  try {
    if (size > kMaxFile) {
      return Error{ErrorCode::TooLarge, "The model file is larger than the limit."};
    }
    std::string digest = sha256Hex(data, size);
    if (!sha256.empty() && digest != lowerCase(sha256)) {
      return Error{ErrorCode::Altered,
                   "The model file has the SHA-256 " + digest + "; expected " + sha256 + "."};
    }
    auto file = readTensors(data, size);
    if (!file) {
      return file.error();
    }
    TensorFile content = std::move(file).value();
    const auto text = content.metadata.find("assay");
    if (text == content.metadata.end()) {
      return Error{ErrorCode::BadModel,
                   "The file is not an Assay model: its metadata has no entry 'assay'."};
    }
    auto parsed = parseArchitecture(text->second);
    if (!parsed) {
      return parsed.error();
    }
    const Architecture& architecture = parsed.value();
    TensorShop shop(std::move(content.tensors));
    Network network(architecture, shop);
    Head head(architecture.head, shop);
    shop.finish();
    if (network.outWidth() != architecture.head.params()) {
      return Error{ErrorCode::BadShape, "The last layer does not give what the head reads."};
    }
    std::vector<Input> inputs;
    for (const EntrySpec& entry : architecture.inputs) {
      inputs.push_back({entry.key, entry.rawWidth()});
    }
    auto parts = std::make_unique<const Parts>(
        Parts{architecture.version, architecture.epoch, architecture.algorithm, std::move(digest),
              architecture.rawWidth(), std::move(inputs), architecture.observation,
              architecture.action, std::move(network), std::move(head)});
    return std::shared_ptr<const Model>(new Model(std::move(parts)));
  } catch (const ShapeError& error) {
    return Error{ErrorCode::BadShape, error.message};
  } catch (const std::bad_alloc&) {
    return outOfMemory();
  } catch (const std::exception& error) {
    return Error{ErrorCode::BadModel, error.what()};
  }
}

Result<std::shared_ptr<const Model>> Model::fromFile(const std::string& path,
                                                     const std::string& sha256) {
  try {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
    if (size < 0) {
      return Error{ErrorCode::Unreadable, "Cannot read the model '" + path + "'."};
    }
    if (static_cast<std::uint64_t>(size) > kMaxFile) {
      return Error{ErrorCode::TooLarge, "The model '" + path + "' is larger than the limit."};
    }
    std::vector<char> bytes(static_cast<std::size_t>(size));
    file.seekg(0);
    if (!file.read(bytes.data(), size)) {
      return Error{ErrorCode::Unreadable, "Cannot read the model '" + path + "'."};
    }
    return fromBytes(bytes.data(), bytes.size(), sha256);
  } catch (const std::bad_alloc&) {
    return outOfMemory();
  } catch (const std::exception& error) {
    return Error{ErrorCode::Unreadable, error.what()};
  }
}

std::int64_t Model::version() const noexcept { return parts_->version; }
std::int64_t Model::epoch() const noexcept { return parts_->epoch; }
const std::string& Model::algorithm() const noexcept { return parts_->algorithm; }
const std::string& Model::sha256() const noexcept { return parts_->sha256; }
HeadKind Model::headKind() const noexcept { return parts_->head.spec().kind; }
std::size_t Model::observationSize() const noexcept { return parts_->observationSize; }
const std::vector<Input>& Model::inputs() const noexcept { return parts_->inputs; }
const std::string& Model::observationSpace() const noexcept { return parts_->observation; }
const std::string& Model::actionSpace() const noexcept { return parts_->action; }
std::size_t Model::actionSize() const noexcept { return parts_->head.actionSize(); }
std::size_t Model::maskSize() const noexcept { return parts_->head.maskSize(); }
NoiseKind Model::noiseKind() const noexcept { return parts_->head.noiseKind(); }
std::size_t Model::noiseSize() const noexcept { return parts_->head.noiseSize(); }
bool Model::recurrent() const noexcept { return parts_->network.stateSize() > 0; }

}  // namespace assay

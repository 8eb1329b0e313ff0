#include "assay/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "json.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Model files are little-endian, and so must be the machine that reads them."
#endif

namespace assay {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 53;

struct Place {
  std::size_t begin;
  std::size_t end;
  std::string name;
  std::vector<std::size_t> shape;
};

Error layout(const std::string& message) { return {ErrorCode::BadLayout, message}; }

/// Return where a tensor lies, after checking that shape, offsets and body fit each other.
Result<Place> place(const std::string& name, const Json& entry, std::size_t available) {
  const std::string tensor = "Tensor '" + name + "' ";
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    return layout(tensor + "is not described by dtype, shape and data_offsets.");
  }
  if (entry["dtype"] != "F32") {
    return layout(tensor + "is not of dtype 'F32'.");
  }
  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  if (!shape.is_array() || shape.empty() || shape.size() > 2) {
    return layout(tensor + "has a shape other than one or two widths.");
  }
  Place found{0, 0, name, {}};
  std::size_t bytes = sizeof(float);
  for (const Json& width : shape) {
    const auto number = wholeNumber(width, 1, kMostBytes);
    if (!number || static_cast<std::size_t>(*number) > available / bytes) {
      return layout(tensor + "has a width that does not fit into the file.");
    }
    found.shape.push_back(static_cast<std::size_t>(*number));
    bytes *= found.shape.back();
  }
  if (!offsets.is_array() || offsets.size() != 2) {
    return layout(tensor + "has data_offsets other than two numbers.");
  }
  const auto begin = wholeNumber(offsets[0], 0, kMostBytes);
  const auto end = wholeNumber(offsets[1], 0, kMostBytes);
  if (!begin || !end || *end < *begin || static_cast<std::size_t>(*end) > available ||
      static_cast<std::size_t>(*end - *begin) != bytes) {
    return layout(tensor + "claims bytes that do not fit its shape or the file.");
  }
  found.begin = static_cast<std::size_t>(*begin);
  found.end = static_cast<std::size_t>(*end);
  return found;
}

Result<TensorFile> read(const unsigned char* bytes, std::size_t size) {
  if (size > kMaxFile) {
    return Error{ErrorCode::TooLarge, "The model file is larger than the limit."};
  }
  if (size < 8) {
    return Error{ErrorCode::Torn, "The model file is torn: it is shorter than its header."};
  }
  std::uint64_t claimed = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    claimed |= std::uint64_t{bytes[i]} << (8 * i);
  }
  if (claimed > kMaxHeader) {
    return Error{ErrorCode::TooLarge, "The model file's header claims more than the limit."};
  }
  if (claimed > size - 8) {
    return Error{ErrorCode::Torn, "The model file is torn: its header is not all there."};
  }
  const unsigned char* body = bytes + 8 + claimed;
  const std::size_t available = size - 8 - static_cast<std::size_t>(claimed);
  const auto header = parseJson(bytes + 8, body);
  if (!header || !header->is_object()) {
    return layout("The model file's header is not a JSON object with different names.");
  }
  TensorFile file;
  std::vector<Place> places;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) {
        return layout("The model file's metadata is not a table of texts.");
      }
      for (const auto& [key, text] : entry.items()) {
        if (!text.is_string()) {
          return layout("The model file's metadata is not a table of texts.");
        }
        file.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    if (places.size() == kMaxTensors) {
      return Error{ErrorCode::TooLarge, "The model file holds too many tensors."};
    }
    auto found = place(name, entry, available);
    if (!found) {
      return found.error();
    }
    places.push_back(std::move(found).value());
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  std::size_t end = 0;
  for (const Place& one : places) {
    if (one.begin != end) {
      return layout("Tensor '" + one.name + "' does not begin where the one before it ends.");
    }
    end = one.end;
    Tensor tensor;
    tensor.shape = one.shape;
    tensor.values.resize((one.end - one.begin) / sizeof(float));
    std::memcpy(tensor.values.data(), body + one.begin, one.end - one.begin);
    if (!std::all_of(tensor.values.begin(), tensor.values.end(),
                     [](float value) { return std::isfinite(value); })) {
      return Error{ErrorCode::NotFinite,
                   "Tensor '" + one.name + "' holds a number that is not finite."};
    }
    file.tensors.emplace(one.name, std::move(tensor));
  }
  if (end != available) {
    return Error{ErrorCode::Torn, "The model file holds bytes that no tensor accounts for."};
  }
  return file;
}

}  // namespace

Result<TensorFile> readTensors(const void* data, std::size_t size) {
  try {
    return read(static_cast<const unsigned char*>(data), size);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::OutOfMemory, "There is not enough memory for the model."};
  } catch (const std::exception& error) {
    return layout(std::string("The model file cannot be read: ") + error.what());
  }
}

}  // namespace assay

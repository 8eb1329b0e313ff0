#include "encoding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "crc32c.h"

namespace assay {
namespace {

void putVarint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) {
    out.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
  }
  out.push_back(static_cast<char>(value));
}

std::size_t varintSize(std::uint64_t value) noexcept {
  std::size_t size = 1;
  for (; value >= 0x80U; value >>= 7U) {
    ++size;
  }
  return size;
}

std::size_t typeSize(WireType type) noexcept {
  switch (type) {
    case WireType::Float32:
      return 4;
    case WireType::Int64:
    case WireType::Uint64:
      return 8;
    default:
      return 1;
  }
}

/// Writes a TensorMap: NamedTensor(name = 1, Tensor(dtype = 1, shape = 2, data = 3) = 2) = 1.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  /// Begin a tensor; exactly its data must follow.
  void head(const std::string& name, WireType type, std::size_t rows,
            const std::vector<std::size_t>& shape) {
    std::size_t bytes = rows * typeSize(type);
    std::string sizes;
    putVarint(sizes, rows);
    for (const std::size_t size : shape) {
      putVarint(sizes, size);
      bytes *= size;
    }
    std::string tensor;
    tensor.push_back('\x08');
    putVarint(tensor, static_cast<std::uint64_t>(type));
    tensor.push_back('\x12');
    putVarint(tensor, sizes.size());
    tensor += sizes;
    if (bytes > 0) {  // what is empty is left out, as the standard serialiser does
      tensor.push_back('\x1a');
      putVarint(tensor, bytes);
    }
    const std::size_t content = tensor.size() + bytes;
    const std::size_t named = 2 + varintSize(name.size()) + name.size() + varintSize(content) +
                              content;
    out_.push_back('\x0a');
    putVarint(out_, named);
    out_.push_back('\x0a');
    putVarint(out_, name.size());
    out_ += name;
    out_.push_back('\x12');
    putVarint(out_, content);
    out_ += tensor;
  }

  /// Little endian, which is what a client's machine is; checked when the library is compiled.
  template <typename T>
  void put(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out_.append(bytes, sizeof(T));
  }

  void put(const float* values, std::size_t count) {
    out_.append(reinterpret_cast<const char*>(values), count * sizeof(float));
  }

 private:
  std::string& out_;
};

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "The wire is little endian.");
#endif

/// Write one leaf of observations.
void writeLeaf(Writer& writer, const LeafSpec& leaf, const std::string& prefix, std::size_t offset,
               const StepPool& pool, const std::vector<Slot>& slots) {
  writer.head(leaf.key.empty() ? prefix : prefix + "/" + leaf.key, leaf.type, slots.size(),
              leaf.shape);
  for (const Slot slot : slots) {
    if (leaf.isMask) {
      const std::uint8_t* mask = pool.mask(slot);
      for (std::size_t i = 0; i < leaf.size; ++i) {
        writer.put(static_cast<std::int8_t>(mask[i] != 0 ? 1 : 0));
      }
      continue;
    }
    const float* numbers = pool.observation(slot) + offset;
    switch (leaf.type) {
      case WireType::Float32:
        writer.put(numbers, leaf.size);
        break;
      case WireType::Int64:
        for (std::size_t i = 0; i < leaf.size; ++i) {
          writer.put(static_cast<std::int64_t>(numbers[i]));
        }
        break;
      case WireType::Uint8:
        for (std::size_t i = 0; i < leaf.size; ++i) {
          writer.put(static_cast<std::uint8_t>(numbers[i]));
        }
        break;
      default:
        for (std::size_t i = 0; i < leaf.size; ++i) {
          writer.put(static_cast<std::int8_t>(numbers[i]));
        }
        break;
    }
  }
}

void writeObservations(Writer& writer, const ParsedSpec& spec, const std::string& prefix,
                       const StepPool& pool, const std::vector<Slot>& slots) {
  std::size_t offset = 0;
  for (const LeafSpec& leaf : spec.leaves) {
    writeLeaf(writer, leaf, prefix, offset, pool, slots);
    offset += leaf.isMask ? 0 : leaf.size;
  }
}

void writeActions(Writer& writer, const LeafSpec& action, const StepPool& pool,
                  const std::vector<Slot>& slots) {
  writer.head("action", action.type, slots.size(), action.shape);
  for (const Slot slot : slots) {
    if (action.kind == SpaceKind::Box) {
      writer.put(pool.values(slot), action.size);
      continue;
    }
    for (std::size_t i = 0; i < action.size; ++i) {
      const std::int64_t choice = pool.choices(slot)[i];
      if (action.type == WireType::Int8) {
        writer.put(static_cast<std::int8_t>(choice));
      } else {
        writer.put(choice);
      }
    }
  }
}

void writeRaw(Writer& writer, const LeafSpec& action, const StepPool& pool,
              const std::vector<Slot>& slots) {
  writer.head("raw_action", WireType::Float32, slots.size(), action.shape);
  for (const Slot slot : slots) {
    for (std::size_t i = 0; i < action.size; ++i) {
      // A heuristic's number may be beyond the limit, and its step is still worth sending.
      const float raw = pool.raw(slot)[i];
      writer.put(std::abs(raw) <= kMostValue ? raw : pool.values(slot)[i]);
    }
  }
}

}  // namespace

bool isObservation(const ParsedSpec& spec, const float* numbers) noexcept {
  for (const LeafSpec& leaf : spec.leaves) {
    if (leaf.isMask) {
      continue;
    }
    if (leaf.type == WireType::Float32) {
      for (std::size_t i = 0; i < leaf.size; ++i) {
        if (!std::isfinite(numbers[i])) {
          return false;
        }
      }
    } else {
      for (std::size_t i = 0; i < leaf.size; ++i) {
        const double most =
            leaf.sizes.empty() ? 255.0 : static_cast<double>(leaf.sizes[i]) - 1.0;
        const auto number = static_cast<double>(numbers[i]);
        if (!(number >= 0.0 && number <= most) || number != std::floor(number)) {
          return false;
        }
      }
    }
    numbers += leaf.size;
  }
  return true;
}

bool canBeSent(const ParsedSpec& spec, const float* numbers) noexcept {
  for (const LeafSpec& leaf : spec.leaves) {
    if (leaf.isMask) {
      continue;
    }
    if (leaf.type == WireType::Float32) {
      const bool small = std::all_of(numbers, numbers + leaf.size,
                                     [](float number) { return std::abs(number) <= kMostValue; });
      if (!small) {
        return false;
      }
    }
    numbers += leaf.size;
  }
  return true;
}

std::size_t mostBytes(const ParsedSpec& spec, std::size_t steps) noexcept {
  constexpr std::size_t kTensorRoom = 192;  // a name, shape, tags and lengths
  std::size_t row = 0;
  for (const LeafSpec& leaf : spec.leaves) {
    row += leaf.size * typeSize(leaf.type);
  }
  const std::size_t action =
      spec.action.size * (typeSize(spec.action.type) +
                          (spec.action.kind == SpaceKind::Box ? sizeof(float) : 0));
  const std::size_t rest = 4 + 4 + 8 + 1 + 1 + 1 + 8;
  return steps * (row + action + rest) + (steps + 1) * row +
         (2 * spec.leaves.size() + 9) * kTensorRoom;
}

EncodedBatch encodeSegment(const ParsedSpec& spec, const StepPool& pool, Slot first) {
  const Step& head = pool.step(first);
  std::vector<Slot> slots;
  std::vector<Slot> finals;
  slots.reserve(head.count);
  for (Slot slot = first; slots.size() < head.count; slot = pool.step(slot).next) {
    slots.push_back(slot);
    if (const Slot final = pool.step(slot).final; final != kNoSlot) {
      finals.push_back(final);
    }
  }
  if (head.bootstrap != kNoSlot) {
    finals.push_back(head.bootstrap);
  }
  EncodedBatch batch;
  batch.steps = head.count;
  batch.episode = head.episode;
  batch.startStep = head.startStep;
  batch.version = static_cast<std::uint64_t>(pool.step(slots.back()).version);
  batch.tensors.reserve(mostBytes(spec, slots.size()));
  Writer writer(batch.tensors);
  writeObservations(writer, spec, "obs", pool, slots);
  writeActions(writer, spec.action, pool, slots);
  const auto column = [&](const char* name, WireType type, auto value) {
    writer.head(name, type, slots.size(), {});
    for (const Slot slot : slots) {
      writer.put(value(pool.step(slot)));
    }
  };
  column("reward", WireType::Float32, [](const Step& s) { return static_cast<float>(s.reward); });
  column("log_prob", WireType::Float32,
         [](const Step& s) { return static_cast<float>(s.logProb); });
  column("version", WireType::Int64, [](const Step& s) { return s.version; });
  column("flags", WireType::Uint8, [](const Step& s) { return s.flags; });
  column("terminated", WireType::Bool,
         [](const Step& s) { return static_cast<std::uint8_t>(s.terminated); });
  column("truncated", WireType::Bool,
         [](const Step& s) { return static_cast<std::uint8_t>(s.truncated); });
  column("event", WireType::Uint64, [](const Step& s) { return s.event; });
  if (spec.action.kind == SpaceKind::Box) {
    writeRaw(writer, spec.action, pool, slots);
  }
  writeObservations(writer, spec, "bootstrap", pool, finals);
  batch.crc = crc32c(batch.tensors.data(), batch.tensors.size());
  return batch;
}

EncodedBatch encodePatches(const std::vector<std::pair<std::uint64_t, float>>& rewards) {
  std::map<std::uint64_t, float> sums;
  for (const auto& [event, reward] : rewards) {
    float& sum = sums[event];
    // Two large rewards may add up to more than the server takes; the first one stays.
    sum = std::abs(sum + reward) <= kMostValue ? sum + reward : sum;
  }
  EncodedBatch batch;
  batch.patches.assign(sums.begin(), sums.end());
  batch.rewards = rewards.size();
  return batch;
}

}  // namespace assay

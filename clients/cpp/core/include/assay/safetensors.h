/// @file
/// A reader of safetensors files that believes nothing it has not checked.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "assay/result.h"

namespace assay {

/// A float32 tensor of one or two axes.
struct Tensor {
  std::vector<std::size_t> shape;
  std::vector<float> values;
};

/// What a safetensors file holds.
struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;
};

/// The largest header that is read.
inline constexpr std::size_t kMaxHeader = std::size_t{1} << 20U;
/// The largest file that is read.
inline constexpr std::size_t kMaxFile = std::size_t{256} << 20U;
/// The most tensors that a file may hold.
inline constexpr std::size_t kMaxTensors = 4096;

/// Read a whole file from memory.
///
/// Sizes are checked before anything is allocated: no more is asked for than the file is long. All
/// tensors must be float32, finite, and lie side by side without a gap.
[[nodiscard]] Result<TensorFile> readTensors(const void* data, std::size_t size);

}  // namespace assay

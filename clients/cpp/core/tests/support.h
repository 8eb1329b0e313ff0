// What the tests share: golden files, and model files made by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace assay::testing {

using Json = nlohmann::json;
using Bytes = std::vector<unsigned char>;

inline std::string goldenPath(const std::string& name) {
  return std::string(ASSAY_GOLDEN) + "/" + name;
}

inline Bytes readBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline const Json& goldenModels() {
  static const Json models = [] {
    std::ifstream file(goldenPath("vectors.json"));
    return Json::parse(file)["models"];
  }();
  return models;
}

inline Bytes withHeader(const std::string& header, const Bytes& body) {
  Bytes file(8 + header.size() + body.size());
  for (std::size_t i = 0; i < 8; ++i) {
    file[i] = static_cast<unsigned char>(std::uint64_t{header.size()} >> (8 * i));
  }
  std::copy(header.begin(), header.end(), file.begin() + 8);
  std::copy(body.begin(), body.end(), file.end() - static_cast<std::ptrdiff_t>(body.size()));
  return file;
}

using NamedTensor = std::pair<std::string, std::pair<std::vector<std::size_t>, std::vector<float>>>;

/// Return a safetensors file with a description and tensors.
inline Bytes makeFile(const Json& description, const std::vector<NamedTensor>& tensors) {
  Json header;
  header["__metadata__"]["assay"] = description.dump();
  Bytes body;
  for (const auto& [name, tensor] : tensors) {
    const auto& [shape, values] = tensor;
    const std::size_t begin = body.size();
    body.resize(begin + values.size() * sizeof(float));
    std::memcpy(body.data() + begin, values.data(), values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, body.size()}}};
  }
  return withHeader(header.dump(), body);
}

/// Return a description whose head reads the observation itself, through a unit matrix.
inline Json describe(const Json& head, std::size_t width) {
  return {{"format", "assay-model"}, {"schema_version", 1}, {"version", 3}, {"epoch", 1},
          {"algorithm", "test"}, {"observation", Json::object()}, {"action", Json::object()},
          {"inputs", {{{"key", nullptr}, {"width", width}}}},
          {"layers", {{{"kind", "dense"}, {"weight", "w"}, {"bias", "b"}}}}, {"head", head}};
}

inline std::vector<NamedTensor> unitTensors(std::size_t n) {
  std::vector<float> unit(n * n, 0.0F);
  for (std::size_t i = 0; i < n; ++i) {
    unit[i * n + i] = 1.0F;
  }
  return {{"w", {{n, n}, unit}}, {"b", {{n}, std::vector<float>(n, 0.0F)}}};
}

}  // namespace assay::testing

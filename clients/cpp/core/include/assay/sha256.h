/// @file
/// SHA-256 (FIPS 180-4), so that a model is what the server published.
#pragma once

#include <cstddef>
#include <string>

namespace assay {

/// Return the digest of `size` bytes in lower-case hexadecimal.
[[nodiscard]] std::string sha256Hex(const void* data, std::size_t size);

}  // namespace assay

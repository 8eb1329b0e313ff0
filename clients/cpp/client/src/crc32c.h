// CRC32C (Castagnoli), as the wire uses it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay {

/// Return the checksum of `size` bytes; `before` continues that of the bytes before them.
[[nodiscard]] std::uint32_t crc32c(const void* data, std::size_t size,
                                   std::uint32_t before = 0) noexcept;

}  // namespace assay

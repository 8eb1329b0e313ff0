#include "crc32c.h"

#include <array>

namespace assay {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;  // reflected
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][b]: what a byte b contributes once k more bytes have followed it.
constexpr Tables makeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1U) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
    }
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t value = tables[k - 1][byte];
      tables[k][byte] = (value >> 8U) ^ tables[0][value & 0xFFU];
    }
  }
  return tables;
}

constexpr Tables kTables = makeTables();

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before) noexcept {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~before;
  for (; size >= 8; size -= 8, at += 8) {  // eight bytes at a time
    crc ^= static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8U |
           static_cast<std::uint32_t>(at[2]) << 16U | static_cast<std::uint32_t>(at[3]) << 24U;
    crc = kTables[7][crc & 0xFFU] ^ kTables[6][(crc >> 8U) & 0xFFU] ^
          kTables[5][(crc >> 16U) & 0xFFU] ^ kTables[4][crc >> 24U] ^ kTables[3][at[4]] ^
          kTables[2][at[5]] ^ kTables[1][at[6]] ^ kTables[0][at[7]];
  }
  for (; size > 0; --size, ++at) {
    crc = (crc >> 8U) ^ kTables[0][(crc ^ *at) & 0xFFU];
  }
  return ~crc;
}

}  // namespace assay

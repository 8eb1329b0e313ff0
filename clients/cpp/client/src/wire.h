// Between the messages of the wire format and the client's own types.
#pragma once

#include <cstdint>
#include <string>

#include "assay.pb.h"
#include "transport.h"
#include "window.h"

namespace assay {

/// What both sides state when they open a session.
inline constexpr std::uint32_t kProtocol = 1;

/// Fill in a batch, whatever its size.
void toMessage(const Outgoing& outgoing, std::uint64_t epoch, std::uint64_t dropped,
               v1::Batch& batch);
/// Return how many parts a batch is sent in, so that each fits a frame.
[[nodiscard]] std::uint32_t partsOf(const Outgoing& outgoing, std::size_t frameBytes) noexcept;
/// Return one part of a batch that is sent in several.
void toPart(const Outgoing& outgoing, std::size_t frameBytes, std::uint32_t part,
            v1::Batch& whole);

[[nodiscard]] Ack fromMessage(const v1::Ack& message);
[[nodiscard]] Failure fromMessage(const v1::Rejection& message);

}  // namespace assay

// The transport over gRPC. The only header that the rest of the client sees of it.
#pragma once

#include <memory>

#include "assay/config.h"
#include "transport.h"

namespace assay {

/// Make a connection; nothing is sent yet. An error where a certificate cannot be read.
[[nodiscard]] Result<std::unique_ptr<Transport>> makeGrpcTransport(const ClientConfig& config,
                                                                   const std::string& client);

}  // namespace assay

// What a model is made of.
#pragma once

#include <string>

#include "architecture.h"
#include "assay/model.h"
#include "head.h"
#include "network.h"

namespace assay {

struct Model::Parts {
  std::int64_t version;
  std::int64_t epoch;
  std::string algorithm;
  std::string sha256;
  std::size_t observationSize;
  Network network;
  Head head;
};

}  // namespace assay

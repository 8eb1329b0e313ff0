// What a model is made of.
#pragma once

#include <string>
#include <vector>

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
  std::vector<Input> inputs;
  std::string observation;
  std::string action;
  Network network;
  Head head;
};

}  // namespace assay

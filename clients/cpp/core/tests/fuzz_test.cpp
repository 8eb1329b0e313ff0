// Mutated model files are refused or act; under the sanitizers nothing else passes.
#include <algorithm>
#include <cstdlib>

#include "assay/policy.h"
#include "assay/random.h"
#include "support.h"

namespace assay {
namespace {

using testing::Bytes;

void mutate(Bytes& file, Random& random) {
  static const std::string kTelling = "0123456789-.,:[]{}\"eEnul";
  const auto place = [&](std::size_t size) {
    return static_cast<std::size_t>(random.uniform() * static_cast<double>(size));
  };
  const std::size_t count = 1 + place(6);
  for (std::size_t i = 0; i < count && !file.empty(); ++i) {
    // Mostly in the header, where the structure is.
    const std::size_t at = random.uniform() < 0.8 ? place(std::min<std::size_t>(file.size(), 2500))
                                                  : place(file.size());
    const auto offset = static_cast<std::ptrdiff_t>(at);
    switch (place(5)) {
      case 0:
        file[at] = static_cast<unsigned char>(random.next());
        break;
      case 1:
        file[at] = static_cast<unsigned char>(kTelling[place(kTelling.size())]);
        break;
      case 2:
        file.insert(file.begin() + offset, kTelling[place(kTelling.size())]);
        break;
      case 3:
        file.erase(file.begin() + offset,
                   file.begin() + offset +
                       static_cast<std::ptrdiff_t>(std::min(file.size() - at, 1 + place(40))));
        break;
      default:
        file.resize(at);
        break;
    }
  }
}

TEST(Fuzz, MutatedFilesAreRefusedOrAct) {
  std::vector<Bytes> originals;
  for (const auto& entry : testing::goldenModels()) {
    originals.push_back(testing::readBytes(testing::goldenPath(entry["file"])));
  }
  const char* asked = std::getenv("ASSAY_FUZZ_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 4000;
  Random random(20240501);
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    Bytes file = originals[static_cast<std::size_t>(round) % originals.size()];
    mutate(file, random);
    // A header that was cut or grown is often found out by its length: fix that in half of them.
    if (file.size() > 8 && random.uniform() < 0.5) {
      const auto end = std::find(file.rbegin(), file.rend(), '}').base();
      const auto size = static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(
          0, std::min(end - file.begin(), file.end() - file.begin()) - 8));
      for (std::size_t i = 0; i < 8; ++i) {
        file[i] = static_cast<unsigned char>(size >> (8 * i));
      }
    }
    const auto model = Model::fromBytes(file.data(), file.size());
    if (!model) {
      EXPECT_FALSE(model.error().message.empty());
      continue;
    }
    ++accepted;
    Policy policy(model.value());
    const std::vector<float> observation(policy.model().observationSize(), 0.5F);
    const std::vector<std::uint8_t> mask(policy.model().maskSize(), 1);
    Decision decision;
    policy.act(observation, {}, nullptr, decision);
    policy.act(observation, mask, &random, decision);
  }
  EXPECT_LT(accepted, rounds);
}

TEST(Fuzz, RandomBytesAreRefused) {
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    Bytes file(static_cast<std::size_t>(random.uniform() * 300));
    for (unsigned char& byte : file) {
      byte = static_cast<unsigned char>(random.next());
    }
    EXPECT_FALSE(Model::fromBytes(file.data(), file.size()).ok());
  }
}

}  // namespace
}  // namespace assay

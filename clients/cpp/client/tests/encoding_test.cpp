// The bytes of batches against those of the server's own code.
#include "encoding.h"

#include <fstream>

#include "client_support.h"
#include "crc32c.h"
#include "wire.h"

namespace assay {
namespace {

using testing::Json;

const Json& goldenBatches() {
  static const Json content = [] {
    std::ifstream file(testing::goldenPath("batches/batches.json"));
    return Json::parse(file);
  }();
  return content;
}

Slot keepGolden(StepPool& pool, Slot slot, const Json& numbers, const Json& mask,
                std::size_t maskSize) {
  pool.begin(slot);
  const auto values = numbers.get<std::vector<float>>();
  std::copy(values.begin(), values.end(), pool.observation(slot));
  for (std::size_t i = 0; i < maskSize; ++i) {
    pool.mask(slot)[i] = mask.is_null() ? 1 : mask[i].get<std::uint8_t>();
  }
  return slot;
}

/// Record a golden batch as the agent would, and pack it.
Outgoing packGolden(const Json& entry) {
  const auto spec = PolicySpec::fromJson(entry["spec"].dump());
  EXPECT_TRUE(spec.ok()) << spec.error().message;
  const ParsedSpec& parts = spec.value().parts();
  Outgoing outgoing;
  outgoing.seq = 300;
  if (entry["steps"].empty()) {
    outgoing.batch =
        encodePatches(entry["patches"].get<std::vector<std::pair<std::uint64_t, float>>>());
    return outgoing;
  }
  StepPool pool(parts, 100);
  const std::size_t maskSize = parts.masked ? parts.maskSize : 0;
  Slot next = 0;
  Slot last = kNoSlot;
  for (const Json& from : entry["steps"]) {
    const Slot slot = keepGolden(pool, next++, from["obs"], from["mask"], maskSize);
    EXPECT_TRUE(isObservation(parts, pool.observation(slot)));
    Step& step = pool.step(slot);
    step.reward = from["reward"];
    step.logProb = from["log_prob"];
    step.version = from["version"];
    step.flags = from["flags"];
    step.terminated = from["terminated"];
    step.truncated = from["truncated"];
    step.event = from["event"];
    for (std::size_t i = 0; i < parts.action.size; ++i) {
      if (parts.action.kind == SpaceKind::Box) {
        pool.values(slot)[i] = from["action"][i];
        pool.raw(slot)[i] = from["raw"][i];
      } else {
        pool.choices(slot)[i] = from["action"][i];
      }
    }
    if (!from["final"].is_null()) {
      step.final = keepGolden(pool, next++, from["final"], nullptr, maskSize);
    }
    if (last != kNoSlot) {
      pool.step(last).next = slot;
    }
    last = slot;
  }
  Step& first = pool.step(0);
  first.count = static_cast<std::uint32_t>(entry["steps"].size());
  first.episode = 12;
  first.startStep = 130;
  if (!entry["bootstrap"].is_null()) {
    first.bootstrap =
        keepGolden(pool, next++, entry["bootstrap"], entry["bootstrap_mask"], maskSize);
  }
  outgoing.batch = encodeSegment(parts, pool, 0);
  EXPECT_LE(outgoing.batch.tensors.size(), mostBytes(parts, first.count));
  return outgoing;
}

TEST(Encoding, GivesTheGoldenBytes) {
  EXPECT_GE(goldenBatches()["batches"].size(), 5U);
  for (const Json& entry : goldenBatches()["batches"]) {
    const std::string name = entry["name"];
    v1::Batch batch;
    toMessage(packGolden(entry), 7, 2, batch);
    const auto expected = testing::readBytes(testing::goldenPath("batches/" + name + ".bin"));
    const std::string bytes = batch.SerializeAsString();
    EXPECT_EQ(testing::Bytes(bytes.begin(), bytes.end()), expected) << name;
  }
}

TEST(Encoding, GivesTheGoldenChecksums) {
  for (const Json& entry : goldenBatches()["checksums"]) {
    const std::string text = entry["text"];
    EXPECT_EQ(crc32c(text.data(), text.size()), entry["crc32c"].get<std::uint32_t>());
    const std::size_t half = text.size() / 3;
    EXPECT_EQ(crc32c(text.data() + half, text.size() - half, crc32c(text.data(), half)),
              entry["crc32c"].get<std::uint32_t>());
  }
}

TEST(Encoding, PartsMakeTheWholeAgain) {
  const Outgoing outgoing = packGolden(goldenBatches()["batches"][2]);
  constexpr std::size_t kFrame = 2 * kHeaderRoom + 50;
  const std::uint32_t parts = partsOf(outgoing, kFrame);
  const std::size_t room = kFrame - kHeaderRoom;
  EXPECT_EQ(parts, (outgoing.batch.tensors.size() + room - 1) / room);
  std::string joined;
  v1::Batch batch;
  toMessage(outgoing, 7, 2, batch);
  for (std::uint32_t part = 0; part < parts; ++part) {
    toPart(outgoing, kFrame, part, batch);
    EXPECT_EQ(batch.part(), part);
    EXPECT_EQ(batch.parts(), parts);
    EXPECT_LE(batch.ByteSizeLong(), kFrame);
    joined += batch.tensors();
  }
  EXPECT_EQ(joined, outgoing.batch.tensors);
  EXPECT_EQ(partsOf(outgoing, kFrameBytes), 1U);
}

TEST(Encoding, LateRewardsOfOneEventAreAddedUp) {
  const EncodedBatch batch = encodePatches({{7, 1.0F}, {3, 2.0F}, {7, 0.5F}});
  EXPECT_EQ(batch.patches, (std::vector<std::pair<std::uint64_t, float>>{{3, 2.0F}, {7, 1.5F}}));
  EXPECT_EQ(batch.rewards, 3U);
  const EncodedBatch large = encodePatches({{7, 9e11F}, {7, 9e11F}});  // together they are too large
  EXPECT_EQ(large.patches, (std::vector<std::pair<std::uint64_t, float>>{{7, 9e11F}}));
}

TEST(Encoding, SeesWhatIsNoObservation) {
  const auto spec = PolicySpec::fromJson(goldenBatches()["batches"][2]["spec"].dump());
  auto numbers = goldenBatches()["batches"][2]["steps"][0]["obs"].get<std::vector<float>>();
  const ParsedSpec& parts = spec.value().parts();
  EXPECT_TRUE(isObservation(parts, numbers.data()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float good = numbers[i];
    numbers[i] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(isObservation(parts, numbers.data())) << i;
    numbers[i] = 300.0F;  // beyond every integer there
    EXPECT_EQ(isObservation(parts, numbers.data()), i >= 1 && i <= 4) << i;  // the joints
    numbers[i] = good;
  }
}

}  // namespace
}  // namespace assay

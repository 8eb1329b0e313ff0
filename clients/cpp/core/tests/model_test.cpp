#include "assay/model.h"

#include "assay/policy.h"
#include "support.h"

namespace assay {
namespace {

using testing::Bytes;
using testing::describe;
using testing::Json;
using testing::makeFile;
using testing::unitTensors;

const Json kHead = {{"kind", "categorical"}, {"n", 3}, {"start", 0}};

ErrorCode modelErrorOf(const Bytes& file) {
  const auto result = Model::fromBytes(file.data(), file.size());
  EXPECT_FALSE(result.ok());
  return result.ok() ? ErrorCode::Unreadable : result.error().code;
}

TEST(Model, LoadsAndSaysWhatItIs) {
  const Bytes file = makeFile(describe(kHead, 3), unitTensors(3));
  const auto result = Model::fromBytes(file.data(), file.size());
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Model& model = *result.value();
  EXPECT_EQ(model.version(), 3);
  EXPECT_EQ(model.epoch(), 1);
  EXPECT_EQ(model.algorithm(), "test");
  EXPECT_EQ(model.observationSize(), 3U);
  EXPECT_EQ(model.maskSize(), 3U);
  EXPECT_EQ(model.noiseSize(), 1U);
  EXPECT_FALSE(model.recurrent());
  EXPECT_TRUE(Model::fromBytes(file.data(), file.size(), model.sha256()).ok());
  const auto other = Model::fromBytes(file.data(), file.size(), std::string(64, '0'));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::Altered);
}

TEST(Model, AMissingFileIsNamed) {
  const auto result = Model::fromFile("no-such-model.safetensors");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::Unreadable);
  EXPECT_NE(result.error().message.find("no-such-model"), std::string::npos);
}

TEST(Model, RefusesDescriptionsThatAreNotOfTheSchema) {
  const auto changed = [](const std::string& pointer, const Json& value) {
    Json description = describe(kHead, 3);
    description[Json::json_pointer(pointer)] = value;
    return modelErrorOf(makeFile(description, unitTensors(3)));
  };
  EXPECT_EQ(changed("/schema_version", 2), ErrorCode::NewerSchema);
  EXPECT_EQ(changed("/schema_version", 0), ErrorCode::BadModel);
  EXPECT_EQ(changed("/format", "other"), ErrorCode::BadModel);
  EXPECT_EQ(changed("/surprise", 1), ErrorCode::BadModel);
  EXPECT_EQ(changed("/version", "3"), ErrorCode::BadModel);
  EXPECT_EQ(changed("/version", -1), ErrorCode::BadModel);
  EXPECT_EQ(changed("/head/kind", "oracle"), ErrorCode::BadModel);
  EXPECT_EQ(changed("/head/n", 1099511627776), ErrorCode::BadModel);
  EXPECT_EQ(changed("/head/n", 4), ErrorCode::BadShape);
  EXPECT_EQ(changed("/head/more", 4), ErrorCode::BadModel);
  EXPECT_EQ(changed("/inputs/0/width", 0), ErrorCode::BadModel);
  EXPECT_EQ(changed("/inputs/0/width", 2), ErrorCode::BadShape);
  EXPECT_EQ(changed("/layers", Json::array()), ErrorCode::BadModel);
  EXPECT_EQ(changed("/layers/0/activation", "softmax"), ErrorCode::BadModel);
  EXPECT_EQ(changed("/layers/0/weight", "absent"), ErrorCode::BadShape);
  EXPECT_EQ(changed("/layers/0/bias", "w"), ErrorCode::BadShape);
}

TEST(Model, RefusesTensorsThatAreLeftOverOrUsedTwice) {
  auto tensors = unitTensors(3);
  tensors.push_back({"more", {{1}, {0.0F}}});
  EXPECT_EQ(modelErrorOf(makeFile(describe(kHead, 3), tensors)), ErrorCode::BadShape);
  Json description = describe(kHead, 3);
  description["layers"].push_back(description["layers"][0]);
  EXPECT_EQ(modelErrorOf(makeFile(description, unitTensors(3))), ErrorCode::BadShape);
}

TEST(Model, ActingRefusesWhatDoesNotFit) {
  const Bytes file = makeFile(describe(kHead, 3), unitTensors(3));
  Policy policy(Model::fromBytes(file.data(), file.size()).value());
  Decision decision;
  EXPECT_EQ(policy.decide(std::vector<float>{1, 2}, {}, {}, decision), ActStatus::WrongSize);
  EXPECT_EQ(policy.decide({}, {}, {}, decision), ActStatus::WrongSize);
  const std::vector<float> good = {1, 2, 3};
  EXPECT_EQ(policy.decide(good, std::vector<std::uint8_t>{1}, {}, decision), ActStatus::WrongSize);
  EXPECT_EQ(policy.decide(good, {}, std::vector<double>{0.5, 0.5}, decision),
            ActStatus::WrongSize);
  EXPECT_EQ(policy.decide(std::vector<float>{1, NAN, 3}, {}, {}, decision),
            ActStatus::BadObservation);
  EXPECT_EQ(policy.decide(std::vector<float>{1, INFINITY, 3}, {}, {}, decision),
            ActStatus::BadObservation);
  EXPECT_EQ(policy.decide(good, {}, {}, decision), ActStatus::Ok);
  EXPECT_EQ(decision.choices[0], 2);
}

TEST(Model, ActingNoticesANetworkThatOverflows) {
  auto tensors = unitTensors(3);
  tensors[1].second.second.assign(3, 3e38F);
  const Bytes file = makeFile(describe(kHead, 3), tensors);
  Policy policy(Model::fromBytes(file.data(), file.size()).value());
  Decision decision;
  EXPECT_EQ(policy.decide(std::vector<float>{3e38F, 0, 0}, {}, {}, decision),
            ActStatus::BadOutput);
}

TEST(Model, ChoicesOutsideTheirRangeAreRefused) {
  Policy policy(Model::fromFile(testing::goldenPath("categorical_mixed.safetensors")).value());
  auto observation = testing::goldenModels()[2]["steps"][0]["obs"].get<std::vector<float>>();
  Decision decision;
  ASSERT_EQ(policy.decide(observation, {}, {}, decision), ActStatus::Ok);
  for (const float bad : {-1.0F, 3.0F, 1e30F}) {
    observation[0] = bad;
    EXPECT_EQ(policy.decide(observation, {}, {}, decision), ActStatus::BadObservation);
  }
}

}  // namespace
}  // namespace assay

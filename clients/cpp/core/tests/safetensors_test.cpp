#include "assay/safetensors.h"

#include <limits>

#include "support.h"

namespace assay {
namespace {

using testing::Bytes;
using testing::withHeader;

ErrorCode layoutErrorOf(const Bytes& file) {
  const auto result = readTensors(file.data(), file.size());
  EXPECT_FALSE(result.ok());
  return result.ok() ? ErrorCode::Unreadable : result.error().code;
}

TEST(Safetensors, ReadsWhatIsThere) {
  Bytes body(12);
  const float values[] = {1.0F, 2.0F, 3.0F};
  std::memcpy(body.data(), values, 12);
  const Bytes file = withHeader(
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})",
      body);
  const auto result = readTensors(file.data(), file.size());
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result.value().metadata.at("k"), "v");
  EXPECT_EQ(result.value().tensors.at("a").values, (std::vector<float>{1.0F, 2.0F}));
  EXPECT_EQ(result.value().tensors.at("b").values, (std::vector<float>{3.0F}));
}

TEST(Safetensors, RefusesHeadersThatLie) {
  const Bytes body(8);
  EXPECT_EQ(layoutErrorOf({}), ErrorCode::Torn);
  EXPECT_EQ(layoutErrorOf(Bytes(7)), ErrorCode::Torn);
  EXPECT_EQ(layoutErrorOf(Bytes(8, 0xff)), ErrorCode::TooLarge);
  EXPECT_EQ(layoutErrorOf(Bytes{200, 0, 0, 0, 0, 0, 0, 0, '{', '}'}), ErrorCode::Torn);
  EXPECT_EQ(layoutErrorOf(withHeader("{", body)), ErrorCode::BadLayout);
  EXPECT_EQ(layoutErrorOf(withHeader("[]", body)), ErrorCode::BadLayout);
  EXPECT_EQ(layoutErrorOf(withHeader(std::string(500000, '['), body)), ErrorCode::BadLayout);
  EXPECT_EQ(layoutErrorOf(withHeader(R"({"a":1,"a":1})", body)), ErrorCode::BadLayout);
  EXPECT_EQ(layoutErrorOf(withHeader("{}", body)), ErrorCode::Torn);
}

TEST(Safetensors, RefusesTensorsThatDoNotFit) {
  const Bytes body(8);
  const auto tensor = [&](const std::string& rest) {
    return layoutErrorOf(withHeader(R"({"a":{"dtype":"F32",)" + rest + "}}", body));
  };
  EXPECT_EQ(tensor(R"("shape":[3],"data_offsets":[0,8])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[2],"data_offsets":[8,0])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[2],"data_offsets":[4,12])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[1],"data_offsets":[4,8])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[1],"data_offsets":[0,4])"), ErrorCode::Torn);
  EXPECT_EQ(tensor(R"("shape":[4611686018427387904,4],"data_offsets":[0,8])"),
            ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[0,2],"data_offsets":[0,0])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[],"data_offsets":[0,4])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[2.0],"data_offsets":[0,8])"), ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[2],"data_offsets":[0,18446744073709551615])"),
            ErrorCode::BadLayout);
  EXPECT_EQ(tensor(R"("shape":[2],"data_offsets":[0,8],"more":1)"), ErrorCode::BadLayout);
  EXPECT_EQ(layoutErrorOf(withHeader(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", body)),
            ErrorCode::BadLayout);
}

TEST(Safetensors, RefusesNumbersThatAreNotFinite) {
  Bytes body(4);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()}) {
    std::memcpy(body.data(), &value, 4);
    const Bytes file = withHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", body);
    EXPECT_EQ(layoutErrorOf(file), ErrorCode::NotFinite);
  }
}

}  // namespace
}  // namespace assay

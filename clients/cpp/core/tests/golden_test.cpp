// The same observations and weights give the same answers as in Python and torch, to 1e-6.
#include <cmath>
#include <optional>

#include "assay/policy.h"
#include "support.h"

namespace assay {
namespace {

using testing::Json;

std::vector<double> numbers(const Json& value) {
  return value.is_array() ? value.get<std::vector<double>>()
                          : std::vector<double>{value.get<double>()};
}

void expectClose(double found, double expected) {
  EXPECT_NEAR(found, expected, 1e-6 + 1e-6 * std::abs(expected));
}

void expectAction(const Decision& decision, const Json& expected) {
  const std::vector<double> wanted = numbers(expected);
  ASSERT_EQ(decision.choices.size() + decision.values.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    expectClose(decision.choices.empty() ? static_cast<double>(decision.values[i])
                                         : static_cast<double>(decision.choices[i]),
                wanted[i]);
  }
}

class Golden : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Golden, AnswersAreTheExpectedOnes) {
  const Json& entry = testing::goldenModels()[GetParam()];
  const auto loaded = Model::fromFile(testing::goldenPath(entry["file"]), entry["sha256"]);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded.value()->version(), entry["version"].get<std::int64_t>());
  Policy policy(loaded.value());
  for (const bool explore : {true, false}) {
    policy.reset();
    for (const Json& step : entry["steps"]) {
      const auto observation = step["obs"].get<std::vector<float>>();
      const auto mask = step["mask"].is_null() ? std::vector<std::uint8_t>{}
                                               : step["mask"].get<std::vector<std::uint8_t>>();
      const auto noise =
          explore ? step["noise"].get<std::vector<double>>() : std::vector<double>{};
      Decision decision;
      ASSERT_EQ(policy.decide(observation, mask, noise, decision), ActStatus::Ok);
      expectAction(decision, step[explore ? "action" : "best"]);
      expectClose(decision.logProbability, explore ? step["log_prob"].get<double>() : 0.0);
      if (explore && !decision.raw.empty()) {
        const std::vector<double> raw = numbers(step["raw"]);
        for (std::size_t i = 0; i < raw.size(); ++i) {
          expectClose(decision.raw[i], raw[i]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         ::testing::Range(std::size_t{0}, testing::goldenModels().size()),
                         [](const auto& info) {
                           const std::string file = testing::goldenModels()[info.param]["file"];
                           return file.substr(0, file.find('.'));
                         });

TEST(Golden, AMemoryIsKeptUntilReset) {
  Policy policy(Model::fromFile(testing::goldenPath("gaussian_lstm.safetensors")).value());
  EXPECT_TRUE(policy.model().recurrent());
  const std::vector<float> observation(5, 1.0F);
  Decision decision;
  ASSERT_EQ(policy.decide(observation, {}, {}, decision), ActStatus::Ok);
  const float first = decision.values[0];
  ASSERT_EQ(policy.decide(observation, {}, {}, decision), ActStatus::Ok);
  EXPECT_NE(decision.values[0], first);
  policy.reset();
  ASSERT_EQ(policy.decide(observation, {}, {}, decision), ActStatus::Ok);
  EXPECT_EQ(decision.values[0], first);
}

}  // namespace
}  // namespace assay

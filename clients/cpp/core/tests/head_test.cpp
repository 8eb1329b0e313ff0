// Decisions by hand; the golden vectors compare whole models.
#include <array>
#include <cmath>

#include "assay/policy.h"
#include "support.h"

namespace assay {
namespace {

using testing::describe;
using testing::Json;
using testing::makeFile;
using testing::unitTensors;

Policy policyOf(const Json& head, std::size_t n, std::vector<testing::NamedTensor> more = {}) {
  auto tensors = unitTensors(n);
  tensors.insert(tensors.end(), more.begin(), more.end());
  const auto file = makeFile(describe(head, n), tensors);
  const auto model = Model::fromBytes(file.data(), file.size());
  EXPECT_TRUE(model.ok()) << model.error().message;
  return Policy(model.value());
}

TEST(Head, SampledChoicesHaveTheirProbabilities) {
  Policy policy = policyOf({{"kind", "categorical"}, {"n", 3}, {"start", 5}}, 3);
  const std::vector<float> logits = {std::log(0.1F), std::log(0.3F), std::log(0.6F)};
  const std::array<double, 3> p = {0.1, 0.3, 0.6};
  std::array<int, 3> counts{};
  Random random(1);
  Decision decision;
  for (int i = 0; i < 20000; ++i) {
    ASSERT_EQ(policy.act(logits, {}, &random, decision), ActStatus::Ok);
    const auto choice = static_cast<std::size_t>(decision.choices[0] - 5);
    ++counts[choice];
    EXPECT_NEAR(decision.logProbability, std::log(p[choice]), 1e-6);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(counts[i] / 20000.0, p[i], 0.02);
  }
}

TEST(Head, AMaskIsKeptUnlessItAllowsNothing) {
  Policy policy = policyOf({{"kind", "categorical"}, {"n", 3}}, 3);
  const std::vector<float> logits = {0.0F, 1.0F, 9.0F};
  Random random(2);
  Decision decision;
  for (int i = 0; i < 500; ++i) {
    policy.act(logits, std::vector<std::uint8_t>{1, 1, 0}, &random, decision);
    EXPECT_LT(decision.choices[0], 2);
  }
  policy.act(logits, std::vector<std::uint8_t>{1, 1, 0}, nullptr, decision);
  EXPECT_EQ(decision.choices[0], 1);
  policy.act(logits, std::vector<std::uint8_t>{0, 0, 0}, nullptr, decision);
  EXPECT_EQ(decision.choices[0], 2);
}

TEST(Head, ADrawAtTheVeryEndTakesTheLastPossibleChoice) {
  Policy policy = policyOf({{"kind", "categorical"}, {"n", 3}}, 3);
  Decision decision;
  policy.decide(std::vector<float>{0, 0, 0}, std::vector<std::uint8_t>{1, 1, 0},
                std::vector<double>{1.0}, decision);
  EXPECT_EQ(decision.choices[0], 1);
}

TEST(Head, EpsilonGreedyByHand) {
  Policy policy = policyOf({{"kind", "q"}, {"n", 4}, {"start", 1}, {"epsilon", 0.2}}, 4);
  const std::vector<float> q = {0, 3, 2, 1};
  Decision decision;
  policy.decide(q, {}, std::vector<double>{0.5, 0.9}, decision);
  EXPECT_EQ(decision.choices[0], 2);
  EXPECT_NEAR(decision.logProbability, std::log(0.85), 1e-12);
  policy.decide(q, {}, std::vector<double>{0.1, 0.99}, decision);
  EXPECT_EQ(decision.choices[0], 4);
  EXPECT_NEAR(decision.logProbability, std::log(0.05), 1e-12);
  policy.decide(q, std::vector<std::uint8_t>{1, 0, 0, 1}, std::vector<double>{0.1, 1.0}, decision);
  EXPECT_EQ(decision.choices[0], 4);
  EXPECT_NEAR(decision.logProbability, std::log(0.9), 1e-12);
}

TEST(Head, AGaussianIsClippedAndItsLogProbabilityIsOfTheRawAction) {
  Policy policy = policyOf({{"kind", "gaussian"}, {"log_std", "s"}, {"low", {-1.0, nullptr}},
                            {"high", {1.0, nullptr}}},
                           2, {{"s", {{2}, {std::log(2.0F), std::log(0.5F)}}}});
  Decision decision;
  policy.decide(std::vector<float>{0.5, 3.0}, {}, std::vector<double>{1.0, -2.0}, decision);
  EXPECT_FLOAT_EQ(decision.values[0], 1.0F);
  EXPECT_FLOAT_EQ(decision.values[1], 2.0F);
  EXPECT_FLOAT_EQ(decision.raw[0], 2.5F);
  EXPECT_NEAR(decision.logProbability, -2.5 - std::log(2.0 * M_PI), 1e-6);
}

TEST(Head, EdgesOfABoxAreInIt) {
  int missed = 0;
  for (int tenths = -20; tenths < 20; ++tenths) {
    const float low = static_cast<float>(tenths) / 10.0F;
    const float high = low + 0.8F;
    const Json bounds = {{"low", {low}}, {"high", {high}}};
    Json squashed = {{"kind", "squashed_gaussian"}, {"log_std_low", -5.0}, {"log_std_high", 2.0}};
    Json fixed = {{"kind", "deterministic"}, {"noise", 0.0}};
    squashed.update(bounds);
    fixed.update(bounds);
    Policy tanh = policyOf(squashed, 2);
    Policy plain = policyOf(fixed, 1);
    const float center = (low + high) / 2.0F;
    const float half = (high - low) / 2.0F;
    for (const float sign : {-1.0F, 1.0F}) {
      Decision decision;
      tanh.decide(std::vector<float>{30.0F * sign, 0.0F}, {}, {}, decision);
      EXPECT_GE(decision.values[0], low);
      EXPECT_LE(decision.values[0], high);
      plain.decide(std::vector<float>{sign}, {}, {}, decision);
      EXPECT_GE(decision.values[0], low);
      EXPECT_LE(decision.values[0], high);
      const auto edge = static_cast<float>(static_cast<double>(sign) * half + center);
      missed += edge < low || edge > high ? 1 : 0;
    }
  }
  EXPECT_GT(missed, 0);  // or these boxes do not show it
}

TEST(Random, NormalNumbersHaveTheirMoments) {
  Random random(3);
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < 100000; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.02);
  EXPECT_NEAR(squares / 1e5, 1.0, 0.02);
}

TEST(Random, UniformNumbersFillTheUnitInterval) {
  Random random(4);
  std::array<int, 10> counts{};
  for (int i = 0; i < 100000; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++counts[static_cast<std::size_t>(u * 10)];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 10000, 500);
  }
}

}  // namespace
}  // namespace assay

// Bounds, masks and rate limits, worked out by hand.
#include "shield.h"

#include <limits>

#include "client_support.h"
#include "parsed_spec.h"

namespace assay {
namespace {

int shieldNumbers(Shield& shield, std::vector<float>& values) {
  return shield.apply(Span<float>(values.data(), values.size()));
}

int shieldChoices(Shield& shield, std::vector<std::int64_t>& choices,
                  const std::vector<std::uint8_t>& mask = {}) {
  return shield.apply(Span<std::int64_t>(choices.data(), choices.size()), mask);
}

TEST(Shield, MovesNumbersIntoTheirBounds) {
  Shield shield(testing::numberSpec().parts(), 0.0, 0);
  std::vector<float> values = {-3.0F, 4.0F};
  EXPECT_EQ(shieldNumbers(shield, values), kFlagBounds);
  EXPECT_EQ(values, (std::vector<float>{-1.0F, 4.0F}));
  EXPECT_EQ(shieldNumbers(shield, values), 0);
}

TEST(Shield, RoundingIsNoReasonForAFlag) {
  Shield shield(testing::numberSpec().parts(), 0.0, 0);
  std::vector<float> values = {1.000001F, 4.0F};
  EXPECT_EQ(shieldNumbers(shield, values), 0);
  EXPECT_EQ(values[0], 1.0F);
}

TEST(Shield, RefusesWhatIsNotFinite) {
  Shield shield(testing::numberSpec().parts(), 0.0, 0);
  std::vector<float> values = {0.0F, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(shieldNumbers(shield, values), -1);
}

TEST(Shield, HoldsNumbersBack) {
  Shield shield(testing::numberSpec().parts(), 0.25, 0);
  std::vector<float> first = {0.0F, 1.0F};
  EXPECT_EQ(shieldNumbers(shield, first), 0);  // nothing was done before
  std::vector<float> second = {0.5F, 1.2F};
  EXPECT_EQ(shieldNumbers(shield, second), kFlagRate);
  EXPECT_EQ(second, (std::vector<float>{0.25F, 1.2F}));
  std::vector<float> third = {0.5F, 1.2F};
  EXPECT_EQ(shieldNumbers(shield, third), 0);  // from where it is now
}

TEST(Shield, TakesTheTighterBoundsOfTheSpec) {
  const auto spec = SpecBuilder("knobs", "sac")
                        .observation(Space::box({1}))
                        .action(Space::box({1}, -1.0, 1.0))
                        .bounds(-std::numeric_limits<double>::infinity(), 0.5)
                        .build();
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  Shield shield(spec.value().parts(), 0.0, 0);
  std::vector<float> values = {0.8F};
  EXPECT_EQ(shieldNumbers(shield, values), kFlagBounds);
  EXPECT_EQ(values[0], 0.5F);
}

TEST(Shield, MendsChoices) {
  Shield shield(testing::choiceSpec().parts(), 0.0, 0);
  std::vector<std::int64_t> choice = {7};
  EXPECT_EQ(shieldChoices(shield, choice), kFlagBounds);
  EXPECT_EQ(choice[0], 2);
  choice = {0};
  EXPECT_EQ(shieldChoices(shield, choice, {0, 0, 1}), kFlagMask);
  EXPECT_EQ(choice[0], 2);
  choice = {0};
  EXPECT_EQ(shieldChoices(shield, choice, {0, 0, 0}), 0);  // a mask that allows nothing is none
  EXPECT_EQ(choice[0], 0);
}

TEST(Shield, MasksPartsOfSeveralChoicesAndBits) {
  const auto parts = SpecBuilder("p", "ppo").observation(Space::box({1}));
  auto several = SpecBuilder(parts).action(Space::multiDiscrete({2, 3})).build().value();
  Shield shield(several.parts(), 0.0, 0);
  std::vector<std::int64_t> choices = {1, 0};
  EXPECT_EQ(shieldChoices(shield, choices, {1, 1, 0, 1, 1}), kFlagMask);
  EXPECT_EQ(choices, (std::vector<std::int64_t>{1, 1}));
  auto binary = SpecBuilder(parts).action(Space::multiBinary(3)).build().value();
  Shield bits(binary.parts(), 0.0, 0);
  choices = {1, 0, 1};
  EXPECT_EQ(shieldChoices(bits, choices, {0, 0, 1}), kFlagMask);
  EXPECT_EQ(choices, (std::vector<std::int64_t>{0, 0, 1}));
}

TEST(Shield, HoldsAChoice) {
  Shield shield(testing::choiceSpec().parts(), 0.0, 3);
  const std::vector<std::int64_t> asked = {0, 1, 1, 1, 2};
  const std::vector<std::int64_t> expected = {0, 0, 0, 1, 1};
  const std::vector<int> flags = {0, kFlagRate, kFlagRate, 0, kFlagRate};
  for (std::size_t i = 0; i < asked.size(); ++i) {
    std::vector<std::int64_t> choice = {asked[i]};
    EXPECT_EQ(shieldChoices(shield, choice), flags[i]) << i;
    EXPECT_EQ(choice[0], expected[i]) << i;
  }
}

TEST(Shield, AMaskOutranksAHold) {
  Shield shield(testing::choiceSpec().parts(), 0.0, 3);
  std::vector<std::int64_t> choice = {0};
  shieldChoices(shield, choice);
  choice = {1};
  EXPECT_EQ(shieldChoices(shield, choice, {0, 1, 1}), kFlagRate | kFlagMask);
  EXPECT_EQ(choice[0], 1);
}

}  // namespace
}  // namespace assay

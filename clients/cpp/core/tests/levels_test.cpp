// Expectations over quantile levels, against sums written out; what does not fit is refused.
#include <cmath>

#include "assay/policy.h"
#include "assay/random.h"
#include "support.h"

namespace assay {
namespace {

using testing::Bytes;
using testing::describe;
using testing::Json;
using testing::makeFile;
using testing::NamedTensor;

constexpr std::size_t kWidth = 3;
constexpr std::size_t kCosines = 5;
constexpr std::size_t kLevels = 4;
constexpr std::size_t kHidden = 6;

using Numbers = std::vector<double>;

/// A description and the tensors that it names; weights are drawn.
struct LevelsModel {
  Json description;
  std::vector<NamedTensor> tensors;

  [[nodiscard]] Bytes file() const { return makeFile(description, tensors); }

  [[nodiscard]] Json& layer() { return description["layers"][0]; }

  std::vector<float>& values(const std::string& name) { return entry(name).second; }

  std::pair<std::vector<std::size_t>, std::vector<float>>& entry(const std::string& name) {
    for (auto& [other, tensor] : tensors) {
      if (other == name) {
        return tensor;
      }
    }
    tensors.push_back({name, {}});
    return tensors.back().second;
  }

  void put(const std::string& name, const std::vector<std::size_t>& shape, Random& random) {
    std::size_t size = 1;
    for (const std::size_t n : shape) {
      size *= n;
    }
    std::vector<float> drawn;
    for (std::size_t i = 0; i < size; ++i) {
      drawn.push_back(static_cast<float>(random.normal()));
    }
    entry(name) = {shape, drawn};
  }

  /// W x + b
  Numbers affine(const std::string& name, const Numbers& x) {
    const std::vector<float>& weight = values(name + ".weight");
    Numbers out;
    for (const float bias : values(name + ".bias")) {
      double sum = bias;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum += static_cast<double>(weight[out.size() * x.size() + i]) * x[i];
      }
      out.push_back(sum);
    }
    return out;
  }
};

Json dense(const std::string& name, const char* activation = nullptr) {
  Json layer = {{"kind", "dense"}, {"weight", name + ".weight"}, {"bias", name + ".bias"}};
  if (activation != nullptr) {
    layer["activation"] = activation;
  }
  return layer;
}

/// The actions of the head are the numbers that the layer gives.
LevelsModel makeLevelsModel(bool proposed, bool deep, bool dueling) {
  Random random(3);
  LevelsModel model;
  const Json endless = {nullptr, nullptr};
  model.description = describe(
      {{"kind", "gaussian"}, {"log_std", "log_std"}, {"low", endless}, {"high", endless}}, kWidth);
  Json layer = {{"kind", "levels"}, {"weight", "phi.weight"}, {"bias", "phi.bias"}};
  model.put("log_std", {2}, random);
  model.put("phi.weight", {kWidth, kCosines}, random);
  model.put("phi.bias", {kWidth}, random);
  if (proposed) {
    layer["proposal"] = {{"weight", "tau.weight"}, {"bias", "tau.bias"}};
    model.put("tau.weight", {kLevels, kWidth}, random);
    model.put("tau.bias", {kLevels}, random);
  } else {
    layer["levels"] = "levels";
    model.tensors.push_back({"levels", {{kLevels}, {0.0F, 0.2F, 0.55F, 1.0F}}});
  }
  const auto stream = [&](const std::string& name, std::size_t outputs) {
    std::size_t width = kWidth;
    Json layers = Json::array();
    if (deep) {
      layers.push_back(dense(name + ".hidden", "relu"));
      model.put(name + ".hidden.weight", {kHidden, width}, random);
      model.put(name + ".hidden.bias", {kHidden}, random);
      width = kHidden;
    }
    layers.push_back(dense(name));
    model.put(name + ".weight", {outputs, width}, random);
    model.put(name + ".bias", {outputs}, random);
    return layers;
  };
  layer["advantage"] = stream("advantage", 2);
  if (dueling) {
    layer["value"] = stream("value", 1);
  }
  model.description["layers"] = {layer};
  return model;
}

/// sum_k mass_k head(x * phi(tau_k)), every sum written out.
Numbers expectation(LevelsModel& model, const Numbers& x) {
  const Json layer = model.layer();
  const bool proposed = layer.contains("proposal");
  const bool dueling = layer.contains("value");
  const bool deep = layer["advantage"].size() > 1;
  Numbers mass(kLevels, 1.0 / kLevels);
  Numbers tau;
  if (proposed) {
    mass = model.affine("tau", x);
    double total = 0.0;
    for (double& m : mass) {
      m = std::exp(m);
      total += m;
    }
    double end = 0.0;
    for (double& m : mass) {
      m /= total;
      tau.push_back(end + m / 2);
      end += m;
    }
  } else {
    tau.assign(model.values("levels").begin(), model.values("levels").end());
  }
  Numbers sum(2, 0.0);
  for (std::size_t k = 0; k < kLevels; ++k) {
    Numbers cosines;
    for (std::size_t i = 0; i < kCosines; ++i) {
      cosines.push_back(std::cos(std::acos(-1.0) * static_cast<double>(i) * tau[k]));
    }
    Numbers product = model.affine("phi", cosines);
    for (std::size_t i = 0; i < kWidth; ++i) {
      product[i] = std::max(product[i], 0.0) * x[i];
    }
    const auto run = [&](const std::string& name) {
      Numbers hidden = product;
      if (deep) {
        hidden = model.affine(name + ".hidden", product);
        for (double& h : hidden) {
          h = std::max(h, 0.0);
        }
      }
      return model.affine(name, hidden);
    };
    const Numbers a = run("advantage");
    const double shift = dueling ? run("value")[0] - (a[0] + a[1]) / 2 : 0.0;
    sum[0] += mass[k] * (a[0] + shift);
    sum[1] += mass[k] * (a[1] + shift);
  }
  return sum;
}

TEST(Levels, TheExpectationIsTheSumOverLevels) {
  for (const bool proposed : {false, true}) {
    for (const bool deep : {false, true}) {
      for (const bool dueling : {false, true}) {
        LevelsModel model = makeLevelsModel(proposed, deep, dueling);
        const Bytes file = model.file();
        const auto loaded = Model::fromBytes(file.data(), file.size());
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        Policy policy(loaded.value());
        Random random(8);
        for (int round = 0; round < 5; ++round) {
          std::vector<float> observation;
          for (std::size_t i = 0; i < kWidth; ++i) {
            observation.push_back(static_cast<float>(random.normal()));
          }
          const Numbers wanted =
              expectation(model, Numbers(observation.begin(), observation.end()));
          Decision decision;
          ASSERT_EQ(policy.decide(observation, {}, {}, decision), ActStatus::Ok);
          for (std::size_t a = 0; a < 2; ++a) {
            EXPECT_NEAR(decision.values[a], wanted[a], 3e-6 * (1 + std::abs(wanted[a])))
                << proposed << deep << dueling;
          }
        }
      }
    }
  }
}

Error levelsErrorOf(const LevelsModel& model) {
  const Bytes file = model.file();
  const auto result = Model::fromBytes(file.data(), file.size());
  EXPECT_FALSE(result.ok());
  return result.ok() ? Error{ErrorCode::Unreadable, ""} : result.error();
}

TEST(Levels, RefusesOtherSourcesThanOne) {
  LevelsModel both = makeLevelsModel(true, false, false);
  both.layer()["levels"] = "levels";
  EXPECT_EQ(levelsErrorOf(both).code, ErrorCode::BadModel);
  LevelsModel none = makeLevelsModel(true, false, false);
  none.layer()["proposal"] = nullptr;
  EXPECT_EQ(levelsErrorOf(none).code, ErrorCode::BadModel);
  LevelsModel more = makeLevelsModel(true, false, false);
  more.layer()["proposal"]["surprise"] = 1;
  EXPECT_EQ(levelsErrorOf(more).code, ErrorCode::BadModel);
  // An empty name is not a name, and not the same as none.
  LevelsModel empty = makeLevelsModel(true, false, false);
  empty.layer()["levels"] = "";
  EXPECT_EQ(levelsErrorOf(empty).code, ErrorCode::BadModel);
  LevelsModel nameless = makeLevelsModel(false, false, false);
  nameless.layer()["proposal"] = {{"weight", ""}, {"bias", "b"}};
  EXPECT_EQ(levelsErrorOf(nameless).code, ErrorCode::BadModel);
}

TEST(Levels, RefusesTensorsThatDoNotFit) {
  Random random(1);
  const auto changed = [&](bool proposed, const std::string& name,
                           const std::vector<std::size_t>& shape) {
    LevelsModel model = makeLevelsModel(proposed, true, true);
    model.put(name, shape, random);
    return levelsErrorOf(model).code;
  };
  EXPECT_EQ(changed(false, "phi.weight", {kWidth + 1, kCosines}), ErrorCode::BadShape);
  EXPECT_EQ(changed(false, "phi.weight", {kWidth}), ErrorCode::BadShape);
  EXPECT_EQ(changed(false, "phi.bias", {kWidth + 1}), ErrorCode::BadShape);
  EXPECT_EQ(changed(false, "levels", {2, 2}), ErrorCode::BadShape);
  EXPECT_EQ(changed(true, "tau.weight", {kLevels, kWidth + 1}), ErrorCode::BadShape);
  EXPECT_EQ(changed(true, "tau.bias", {kLevels + 1}), ErrorCode::BadShape);
  EXPECT_EQ(changed(true, "value.weight", {2, kHidden}), ErrorCode::BadShape);
  for (const float bad : {-0.01F, 1.01F}) {
    LevelsModel model = makeLevelsModel(false, false, false);
    model.values("levels")[1] = bad;
    EXPECT_EQ(levelsErrorOf(model).code, ErrorCode::BadShape);
  }
}

TEST(Levels, RefusesMoreThanTheLimitBeforeItIsAllocated) {
  // 2^20 levels of 6 numbers each, behind a hidden layer of that width: 24 MB of embeddings.
  LevelsModel model = makeLevelsModel(false, true, false);
  model.entry("levels") = {{std::size_t{1} << 20}, std::vector<float>(std::size_t{1} << 20)};
  const Error error = levelsErrorOf(model);
  EXPECT_EQ(error.code, ErrorCode::BadShape);
  EXPECT_NE(error.message.find("1048576 levels make 6 numbers each"), std::string::npos)
      << error.message;
}

TEST(Levels, RefusesWhatWouldTakeSecondsToAnswer) {
  // Far fewer numbers than may be made, but a pass over 128 x 128 weights for each level.
  const std::size_t wide = 128;
  Random random(1);
  LevelsModel model = makeLevelsModel(false, true, false);
  model.layer()["advantage"] = {dense("advantage.hidden", "relu"),
                                dense("advantage.middle", "relu"), dense("advantage")};
  model.put("advantage.hidden.weight", {wide, kWidth}, random);
  model.put("advantage.hidden.bias", {wide}, random);
  model.put("advantage.middle.weight", {wide, wide}, random);
  model.put("advantage.middle.bias", {wide}, random);
  model.put("advantage.weight", {2, wide}, random);
  const std::size_t each =
      kWidth * kCosines + wide * (kWidth + 1) + wide * (wide + 1) + 2 * (wide + 1);
  const std::size_t most = (std::size_t{1} << 28) / each;
  for (const std::size_t levels : {most, most + 1}) {
    model.entry("levels") = {{levels}, std::vector<float>(levels)};
    const Bytes file = model.file();
    EXPECT_EQ(Model::fromBytes(file.data(), file.size()).ok(), levels == most);
  }
}

TEST(Levels, StandsLastAndInNoOtherLayer) {
  LevelsModel first = makeLevelsModel(false, false, false);
  first.description["layers"].push_back(dense("more"));
  EXPECT_EQ(levelsErrorOf(first).code, ErrorCode::BadModel);
  LevelsModel inside = makeLevelsModel(false, false, false);
  const Json layer = inside.layer();
  inside.layer()["advantage"] = {layer};
  EXPECT_EQ(levelsErrorOf(inside).code, ErrorCode::BadModel);
}

TEST(Levels, AKindThatIsNotKnownIsNamed) {
  LevelsModel model = makeLevelsModel(false, false, false);
  model.layer()["kind"] = "later";
  const Error error = levelsErrorOf(model);
  EXPECT_EQ(error.code, ErrorCode::BadModel);
  EXPECT_NE(error.message.find("layers.0: unknown kind of layer 'later'"), std::string::npos)
      << error.message;
}

}  // namespace
}  // namespace assay

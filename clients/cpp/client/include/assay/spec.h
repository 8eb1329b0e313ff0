/// @file
/// What a client registers: the spaces, bounds and algorithm of its policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "assay/result.h"

namespace assay {

struct ParsedSpec;

/// A space of observations or actions.
class Space {
 public:
  /// Numbers (float32), all within the same bounds; infinite where there is none.
  [[nodiscard]] static Space box(const std::vector<std::size_t>& shape,
                                 double low = -std::numeric_limits<double>::infinity(),
                                 double high = std::numeric_limits<double>::infinity());
  /// Numbers (float32) with bounds of their own.
  [[nodiscard]] static Space box(const std::vector<std::size_t>& shape,
                                 const std::vector<double>& low, const std::vector<double>& high);
  /// One of 0 ... n - 1.
  [[nodiscard]] static Space discrete(std::size_t n);
  /// Several integers, each from 0 to its own size - 1.
  [[nodiscard]] static Space multiDiscrete(const std::vector<std::size_t>& sizes);
  /// Zeros and ones.
  [[nodiscard]] static Space multiBinary(std::size_t n);
  /// Named spaces; for observations.
  [[nodiscard]] static Space dict(const std::map<std::string, Space>& spaces);

  /// Return the space as the JSON of a policy spec.
  [[nodiscard]] const std::string& json() const noexcept { return json_; }

 private:
  explicit Space(std::string json) : json_(std::move(json)) {}

  std::string json_;
};

/// A spec that was checked, immutable and cheap to copy.
///
/// An observation is given as the numbers of all its entries, one after another, in the order of
/// the entries' names; an entry `action_mask` is not among them, it is given as the mask.
class PolicySpec {
 public:
  /// Read a spec: the JSON that `assay.server.spec.PolicySpec` writes.
  [[nodiscard]] static Result<PolicySpec> fromJson(const std::string& text);

  [[nodiscard]] const std::string& name() const noexcept;
  /// Return the JSON text that is registered.
  [[nodiscard]] const std::string& json() const noexcept;
  /// Return how many numbers an observation has, without the action mask.
  [[nodiscard]] std::size_t observationSize() const noexcept;
  /// Return how many numbers an action has.
  [[nodiscard]] std::size_t actionSize() const noexcept;
  /// Return the length of an action mask; 0 where the actions are numbers.
  [[nodiscard]] std::size_t maskSize() const noexcept;
  /// Say whether the mask is part of the observation, so that the learner sees it.
  [[nodiscard]] bool masked() const noexcept;

  /// Return the parts, for the library itself.
  [[nodiscard]] const ParsedSpec& parts() const noexcept { return *parts_; }

 private:
  explicit PolicySpec(std::shared_ptr<const ParsedSpec> parts) noexcept;

  std::shared_ptr<const ParsedSpec> parts_;
};

/// Writes a spec.
///
/// @code
/// auto spec = assay::SpecBuilder("queue", "ppo")
///                 .observation(assay::Space::box({3}))
///                 .action(assay::Space::discrete(4))
///                 .set("gamma", 0.97)
///                 .build();
/// @endcode
class SpecBuilder {
 public:
  /// @param name Of the policy on the server.
  /// @param algorithm That learns it, such as "ppo", "dqn" or "sac".
  SpecBuilder(std::string name, std::string algorithm);

  SpecBuilder& observation(const Space& space);
  SpecBuilder& action(const Space& space);
  /// Put the action mask into the observation, so that the learner sees which choices were valid.
  SpecBuilder& masked();
  /// Set tighter limits of a Box action: what the controlled system can bear.
  SpecBuilder& bounds(double low, double high);
  /// Share the policy with the other clients of a group.
  SpecBuilder& group(const std::string& name);
  /// Set a hyperparameter or run setting, as `assay train` takes them.
  SpecBuilder& set(const std::string& key, double value);
  SpecBuilder& set(const std::string& key, int value);
  SpecBuilder& set(const std::string& key, std::int64_t value);
  SpecBuilder& set(const std::string& key, bool value);
  SpecBuilder& set(const std::string& key, const char* value);
  SpecBuilder& set(const std::string& key, const std::string& value);
  /// Set a setting to any JSON, such as "[64, 64]".
  SpecBuilder& setJson(const std::string& key, const std::string& json);

  /// Return the spec, or what is wrong with it.
  [[nodiscard]] Result<PolicySpec> build() const;

 private:
  std::map<std::string, std::string> fields_;
  std::map<std::string, std::string> settings_;
  bool masked_ = false;
};

}  // namespace assay

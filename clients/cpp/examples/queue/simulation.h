// A cluster of three machines in front of a queue, in slots of time.
#pragma once

#include <array>
#include <cstdint>

#include <assay/random.h>

/// Jobs come in bursts. In each slot somebody decides how many machines run: each costs energy,
/// starting one costs more, and jobs that wait cost too.
class Simulation {
 public:
  static constexpr int kMachines = 3;
  static constexpr int kMostJobs = 30;
  static constexpr int kUsualJobs = 5;
  static constexpr int kSlots = 200;  // of an episode

  explicit Simulation(std::uint64_t seed) : random_(seed) {}

  /// Return what can be seen: jobs that wait, machines that run, recent arrivals; mostly 0 to 2.
  [[nodiscard]] std::array<float, 3> observe() const;

  /// Let so many machines run for one slot, and return what it cost.
  double run(int machines);

 private:
  int arrivals();

  assay::Random random_;
  int jobs_ = 0;
  int running_ = 0;
  bool burst_ = false;
  double recent_ = 0.5;
};

/// What an operator would write first: as many machines as there are jobs.
[[nodiscard]] int machinesForJobs(const float* observation);

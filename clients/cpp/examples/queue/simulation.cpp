#include "simulation.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr double kWaiting = 0.1;  // cost of a job that waits
constexpr double kEnergy = 0.5;   // of a machine that runs
constexpr double kStart = 2.0;    // of a machine that is started
constexpr double kSwitch = 0.03;  // chance that a burst begins or ends
constexpr double kCalmRate = 0.3;
constexpr double kBurstRate = 1.6;
constexpr double kDone = 0.8;  // chance that a machine finishes its job in a slot

}  // namespace

std::array<float, 3> Simulation::observe() const {
  return {static_cast<float>(jobs_) / kUsualJobs, static_cast<float>(running_) / kMachines,
          static_cast<float>(recent_)};
}

double Simulation::run(int machines) {
  const double cost = kWaiting * jobs_ + kEnergy * machines +
                      kStart * std::max(0, machines - running_);
  running_ = machines;
  const int busy = std::min(jobs_, running_);
  for (int i = 0; i < busy; ++i) {
    jobs_ -= random_.uniform() < kDone ? 1 : 0;
  }
  const int come = arrivals();
  jobs_ = std::min(kMostJobs, jobs_ + come);
  recent_ = 0.9 * recent_ + 0.1 * come;
  return cost;
}

int Simulation::arrivals() {
  burst_ = random_.uniform() < kSwitch ? !burst_ : burst_;
  // A Poisson number, by counting arrivals until the slot is over.
  const double end = std::exp(burst_ ? -kBurstRate : -kCalmRate);
  int count = 0;
  for (double left = random_.uniform(); left > end; left *= random_.uniform()) {
    ++count;
  }
  return count;
}

int machinesForJobs(const float* observation) {
  const int jobs = static_cast<int>(std::lround(observation[0] * Simulation::kUsualJobs));
  return std::min(Simulation::kMachines, jobs);
}

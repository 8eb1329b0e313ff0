// Measure act(): latency in nanoseconds at p50 and p99, as one JSON object.
//
//   act-benchmark MODEL.safetensors [CALLS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "assay/policy.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL.safetensors [CALLS]\n", argv[0]);
    return 2;
  }
  const auto loaded = assay::Model::fromFile(argv[1]);
  if (!loaded) {
    std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
    return 1;
  }
  const long calls = argc > 2 ? std::max(1000L, std::atol(argv[2])) : 200000L;
  assay::Policy policy(loaded.value());
  assay::Random random(1);
  std::vector<float> observation(policy.model().observationSize());
  std::vector<double> times(static_cast<std::size_t>(calls));
  assay::Decision decision;
  using Clock = std::chrono::steady_clock;
  for (double& time : times) {
    for (float& value : observation) {
      value = static_cast<float>(random.normal());
    }
    const auto begin = Clock::now();
    const assay::ActStatus status = policy.act(observation, {}, &random, decision);
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
    if (status != assay::ActStatus::Ok) {
      std::fprintf(stderr, "act() failed\n");
      return 1;
    }
    time = elapsed.count();
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("{\"calls\": %ld, \"p50_ns\": %.0f, \"p99_ns\": %.0f}\n", calls, at(0.5), at(0.99));
  return 0;
}

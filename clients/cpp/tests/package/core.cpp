#include <assay/policy.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  const auto loaded = assay::Model::fromFile(argc > 1 ? argv[1] : "");
  if (!loaded) {
    std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
    return 1;
  }
  assay::Policy policy(loaded.value());
  const std::vector<float> observation(policy.model().observationSize());
  assay::Decision decision;
  return policy.act(observation, {}, nullptr, decision) == assay::ActStatus::Ok ? 0 : 1;
}

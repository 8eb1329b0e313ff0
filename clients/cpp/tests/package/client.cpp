#include <assay/client.h>

#include <array>
#include <cstdio>

// A client without a server: it acts all the same.
int main() {
  auto spec = assay::SpecBuilder("package", "ppo")
                  .observation(assay::Space::box({2}))
                  .action(assay::Space::discrete(3))
                  .build();
  if (!spec) {
    std::fprintf(stderr, "%s\n", spec.error().message.c_str());
    return 1;
  }
  assay::ClientConfig config;
  config.address = "127.0.0.1:9";
  config.spec = spec.value();
  config.safeAction = assay::Action::choice(2);
  auto client = assay::Client::connect(config);
  if (!client) {
    std::fprintf(stderr, "%s\n", client.error().message.c_str());
    return 1;
  }
  const std::array<float, 2> observation{0.0F, 1.0F};
  return client.value()->act(observation).choice() == 2 ? 0 : 1;
}

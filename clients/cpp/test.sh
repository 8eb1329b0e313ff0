#!/bin/sh
# Build the C++ client and run its tests, plain and under the sanitizers.
#
#   clients/cpp/test.sh BUILD_DIRECTORY JOBS
#
# What is missing is installed where that is possible (Debian packages, as root). Where it is not,
# the tests are skipped and the reason is said: all of them without the first packages, those of the
# network part without the others.
set -eu

here=$(dirname "$0")
build=$1
jobs=$2
packages="cmake g++ libgtest-dev libeigen3-dev nlohmann-json3-dev"
network="libprotobuf-dev libgrpc++-dev protobuf-compiler protobuf-compiler-grpc"

missing() {
  command -v dpkg-query >/dev/null || return 0
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      printf '%s ' "$package"
  done
}

# shellcheck disable=SC2086
absent=$(missing $packages $network)
if [ -n "$absent" ] && [ "$(id -u)" = 0 ]; then
  echo "Installing $absent"
  # shellcheck disable=SC2086
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends $absent; } \
    >/dev/null 2>&1 || true
fi
# shellcheck disable=SC2086
absent=$(missing $packages)
if [ -n "$absent" ]; then
  echo "Skipped the C++ client: $absent not installed. Install them: sudo apt install $packages"
  exit 0
fi
for tool in cmake c++; do
  command -v "$tool" >/dev/null || {
    echo "Skipped the C++ client: there is no $tool. It needs CMake, a C++17 compiler," \
      "GoogleTest, Eigen and nlohmann-json."
    exit 0
  }
done

cmake -S "$here" -B "$build" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
grep 'not the client:' "$build.log" || true
cmake --build "$build" -j "$jobs" >>"$build.log" 2>&1 || { tail -50 "$build.log"; exit 1; }
ctest --test-dir "$build" -j "$jobs" --output-on-failure >>"$build.log" 2>&1 ||
  { tail -80 "$build.log"; exit 1; }
grep -E 'tests passed' "$build.log" | tail -1

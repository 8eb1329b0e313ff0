#!/bin/sh
# Build the C++ client and run its tests, plain and under the sanitizers.
#
#   clients/cpp/test.sh BUILD_DIRECTORY JOBS
#
# Where what they need is not installed the tests are skipped and the reason is said: all of them
# without a compiler or the core's libraries, those of the network part without gRPC and Protobuf.
set -eu

here=$(dirname "$0")
build=$1
jobs=$2

for tool in cmake c++; do
  command -v "$tool" >/dev/null || {
    echo "Skipped the C++ client: there is no $tool. It needs CMake, a C++17 compiler," \
      "GoogleTest, Eigen and nlohmann-json."
    exit 0
  }
done

cmake -S "$here" -B "$build" >"$build.log" 2>&1 || {
  # What find_package says of a library that is not there, in its two forms.
  library=$(sed -n -e 's/.*package configuration file provided by "\([A-Za-z0-9_]*\)".*/\1/p' \
    -e 's/.*Could NOT find \([A-Za-z0-9_]*\).*/\1/p' "$build.log" | head -1)
  [ -n "$library" ] || { cat "$build.log"; exit 1; }
  echo "Skipped the C++ client: CMake did not find $library ($build.log)." \
    "See clients/cpp/README.md for what to install."
  exit 0
}
if grep 'not the client:' "$build.log"; then
  echo "Skipped the network part of the C++ client."
fi
cmake --build "$build" -j "$jobs" >>"$build.log" 2>&1 || { tail -50 "$build.log"; exit 1; }
ctest --test-dir "$build" -j "$jobs" --output-on-failure >>"$build.log" 2>&1 ||
  { tail -80 "$build.log"; exit 1; }
grep -E 'tests passed' "$build.log" | tail -1

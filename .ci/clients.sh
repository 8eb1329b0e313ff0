#!/bin/sh
# Install Claude Code and Codex with npm, for the tests that add the plugins to real clients.
#
#   .ci/clients.sh FOLDER
#
# Nothing outside of FOLDER is installed. Where there is no npm, or the registry cannot be reached,
# a line says why, and those tests are skipped. CLIENTS=no installs nothing.
set -eu

# The versions that the tests were seen to pass with; no other place has them.
packages="@anthropic-ai/claude-code@2.1.325 @openai/codex@0.166.0"
use="the tests of skills in real clients, which are skipped without them"
folder=$1

[ "$(cat "$folder/.installed" 2>/dev/null)" != "$packages" ] || exit 0
reason=
if [ "${CLIENTS:-yes}" = no ]; then
  reason="CLIENTS=no"
elif ! command -v npm >/dev/null; then
  reason="there is no npm"
else
  echo "Installing $packages into $folder for $use"
  mkdir -p "$folder"
  # shellcheck disable=SC2086
  if said=$(npm install --prefix "$folder" --no-save --no-package-lock --no-audit --no-fund \
    --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000 $packages 2>&1); then
    echo "$packages" >"$folder/.installed"
  else
    said=$(printf '%s\n' "$said" | sed -n 's/^npm \(error\|ERR!\) //p')
    reason="npm failed: $(printf '%s\n' "$said" | grep -Ev '^(code|syscall|errno) ' | head -1)"
  fi
fi
[ -z "$reason" ] ||
  echo "Not installed ($reason): $packages, for $use. By hand: npm install --prefix $folder $packages"

#!/bin/sh
# Make sure that the tests find a PostgreSQL to start, where that is possible (Debian packages, as
# root). Where it is not, those tests are skipped and the reason is said.
set -eu

found() {
  command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

if ! found && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing postgresql"
  { apt-get -qq update &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql; } \
    >/dev/null 2>&1 || true
fi
found || echo "Skipped the tests with PostgreSQL: it is not installed. Install it:" \
  "sudo apt install postgresql"

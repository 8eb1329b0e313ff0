#!/bin/sh
# Install the Debian packages that a part of the project needs, where that takes no question.
#
#   .ci/packages.sh GROUP...
#
# Only root, or a user whom sudo asks for no password, installs anything, and only with apt-get.
# Where it cannot be done, or fails, a line says why, and what needs the packages is skipped.
# SYSTEM_PACKAGES=no installs nothing.
set -eu

# Debian keeps PostgreSQL's programs off the path.
for directory in /usr/lib/postgresql/*/bin; do PATH=$PATH:$directory; done

# Set `packages` and `use`. PACKAGE:COMMAND is there if the command is, whoever installed it.
describe() {
  case $1 in
    venv) use="creating .venv" packages="python3-venv" ;;
    git) use="studies, which are kept in git" packages="git:git" ;;
    cpp)
      use="the C++ client, which is skipped without them"
      packages="cmake:cmake g++:c++ libgtest-dev libeigen3-dev nlohmann-json3-dev libgrpc++-dev
        libprotobuf-dev protobuf-compiler protobuf-compiler-grpc"
      ;;
    postgres)
      use="the tests with PostgreSQL, which are skipped without it" packages="postgresql:initdb" ;;
    openssl)
      use="the tests with certificates, which are skipped without it" packages="openssl:openssl" ;;
    ssh)
      use="the tests of signed approvals, which are skipped without it"
      packages="openssh-client:ssh-keygen" ;;
    browser)
      use="the tests in a browser, which are skipped without it"
      packages="chromium:chromium chromium-driver:chromedriver" ;;
    *) echo "There is no group of packages '$1'." >&2 && exit 2 ;;
  esac
}

# Print those of the packages that are not installed.
missing() {
  installed=all
  if command -v dpkg-query >/dev/null; then
    # shellcheck disable=SC2046,SC2086
    installed=$(dpkg-query -W -f '<${Package} ${db:Status-Status}>' \
      $(printf '%s\n' $packages | sed 's/:.*//') 2>/dev/null || true)
  fi
  for entry in $packages; do
    package=${entry%%:*}
    case $entry in
      *:*) command -v "${entry#*:}" >/dev/null || printf '%s ' "$package" ;;
      *) case $installed in
           # On another system than Debian only the commands can be known.
           all | *"<$package installed>"*) ;;
           *) printf '%s ' "$package" ;;
         esac ;;
    esac
  done
}

# Without the lock below, which a server that a package starts would keep.
apt() {
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@" \
    </dev/null 2>&1 9<&-
}

# The lists of packages are fetched only if they are too old, or not there, to install from.
install() {
  # shellcheck disable=SC2086
  said=$(apt install -y --no-install-recommends $absent) ||
    { apt update >/dev/null || true; said=$(apt install -y --no-install-recommends $absent); }
}

# Install what is missing of a group, or set `reason`.
try() {
  sudo=
  [ "${SYSTEM_PACKAGES:-yes}" != no ] || { reason="SYSTEM_PACKAGES=no" && return; }
  command -v apt-get >/dev/null || { reason="there is no apt-get" && return; }
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null ||
      { reason="it takes root, or sudo without a password" && return; }
    sudo="sudo -n"
  fi
  echo "Installing $absent for $use"
  install || reason="apt-get failed: $(printf '%s\n' "$said" | tail -1)"
}

# One at a time: `make -j` may ask for two groups at once.
if command -v flock >/dev/null; then exec 9<"$0" && flock 9; fi
for group in "$@"; do
  describe "$group"
  absent=$(missing | sed 's/ $//')
  [ -n "$absent" ] || continue
  reason=
  try
  [ -z "$reason" ] ||
    echo "Not installed ($reason): $absent, for $use. By hand: apt-get install $absent"
done

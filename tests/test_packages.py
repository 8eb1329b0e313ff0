"""What `make` installs of the system, with stand-ins for apt-get, dpkg-query, sudo, id and npm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "packages.sh"
CLIENTS = ROOT / ".ci" / "clients.sh"

# Each notes what it was asked. What `apt-get install` was given is installed from then on.
APT = """#!/bin/sh
echo "apt-get $*" >>calls
case "$*" in
  *update*) touch lists; exit "${UPDATE_FAILS:-0}" ;;
esac
[ -e lists ] || { echo "E: Unable to locate package" >&2; exit 100; }
[ -z "${INSTALL_FAILS:-}" ] || { echo "E: no space left" >&2; exit 100; }
for word in "$@"; do
  echo "$word" >>installed
  [ "$word" != openssl ] || { touch bin/openssl && chmod +x bin/openssl; }
done
"""
DPKG_QUERY = """#!/bin/sh
shift 3
for name in "$@"; do ! grep -qxF "$name" installed || printf '<%s installed>' "$name"; done
"""
SUDO = """#!/bin/sh
echo "sudo $*" >>calls
[ -n "${SUDO_WORKS:-}" ] || { echo "sudo: a password is required" >&2; exit 1; }
shift
exec "$@"
"""
ID = """#!/bin/sh
echo "${USER_ID:-0}"
"""
NPM = """#!/bin/sh
echo "npm $*" >>calls
[ -z "${INSTALL_FAILS:-}" ] || {
  echo "npm error code EAI_AGAIN" >&2
  echo "npm error syscall getaddrinfo" >&2
  echo "npm error the registry cannot be reached" >&2
  exit 1
}
"""


class Machine:
    """A directory with a path of its own, on which nothing is installed yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name in ("sh", "sed", "env", "tail", "grep", "touch", "chmod", "true",
                     "cat", "mkdir", "head"):  # fmt: skip
            (self._bin / name).symlink_to(shutil.which(name) or name)
        for name, text in {
            "apt-get": APT,
            "dpkg-query": DPKG_QUERY,
            "sudo": SUDO,
            "id": ID,
            "npm": NPM,
        }.items():
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)
        (directory / "installed").touch()
        (directory / "lists").touch()

    def remove(self, name: str) -> None:
        (self._bin / name).unlink()

    def forget_lists(self) -> None:
        (self._directory / "lists").unlink()

    def run(self, *words: str, script: Path = SCRIPT, **environment: str) -> str:
        """Install groups of packages, or what another script does, and return what was printed."""
        environment = {"PATH": str(self._bin), **environment}
        done = subprocess.run(
            ["/bin/sh", str(script), *words],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def calls(self) -> list[str]:
        """Return how apt-get, sudo and npm were called since the last time."""
        path = self._directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_root_installs_what_is_missing_once(machine: Machine) -> None:
    said = machine.run("cpp", "openssl")
    packages, certificates = machine.calls()
    assert said.splitlines()[1].startswith("Installing openssl for the tests with certificates")
    assert "install -y --no-install-recommends cmake g++ " in packages
    assert "libprotobuf-dev" in packages  # only recommended by the packages of gRPC
    assert certificates.endswith("--no-install-recommends openssl")
    # `cmake` and `c++` are known by their commands, the libraries by dpkg.
    assert machine.run("openssl") == ""
    assert machine.run("cpp").startswith("Installing cmake g++ for the C++ client")


def test_lists_are_fetched_only_if_needed(machine: Machine) -> None:
    machine.forget_lists()
    machine.run("openssl", UPDATE_FAILS="1")  # as it does if one source of several is away
    first, update, second = machine.calls()
    assert update.endswith(" update") and first == second
    assert machine.run("openssl") == ""


@pytest.mark.parametrize(
    ("environment", "without", "reason"),
    [
        ({"SYSTEM_PACKAGES": "no"}, None, "SYSTEM_PACKAGES=no"),
        ({}, "apt-get", "there is no apt-get"),
        ({"USER_ID": "1000"}, None, "it takes root, or sudo without a password"),
        ({"USER_ID": "1000"}, "sudo", "it takes root, or sudo without a password"),
    ],
)
def test_who_may_not_install_is_told_why_and_apt_is_not_run(
    machine: Machine, environment: dict[str, str], without: str | None, reason: str
) -> None:
    if without is not None:
        machine.remove(without)
    assert machine.run("openssl", **environment) == (
        f"Not installed ({reason}): openssl, for the tests with certificates, which are skipped "
        "without it. By hand: apt-get install openssl\n"
    )
    assert [call for call in machine.calls() if call.startswith("apt-get")] == []


def test_sudo_is_used_if_it_asks_no_password(machine: Machine) -> None:
    machine.run("openssl", USER_ID="1000", SUDO_WORKS="1")
    asked, installs, apt = machine.calls()
    assert asked == "sudo -n true"
    assert installs.startswith("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get ")
    assert apt.endswith("install -y --no-install-recommends openssl")


def test_a_failure_is_said_and_goes_on(machine: Machine) -> None:
    said = machine.run("openssl", "git", INSTALL_FAILS="1").splitlines()
    assert said[1].startswith("Not installed (apt-get failed: E: no space left): openssl, for ")
    assert said[3].startswith("Not installed (apt-get failed: E: no space left): git, for ")


def test_where_dpkg_is_not_there_commands_alone_count(machine: Machine) -> None:
    machine.remove("dpkg-query")
    machine.remove("apt-get")
    assert machine.run("cpp").startswith("Not installed (there is no apt-get): cmake g++, for ")


def test_the_packages_are_those_of_the_documentation() -> None:
    readme = (ROOT / "clients" / "cpp" / "README.md").read_text()
    lines = [line for line in readme.splitlines() if line.startswith("sudo apt install ")]
    documented = {name for line in lines for name in line.split("#")[0].split()[3:]}
    text = SCRIPT.read_text()
    listed = text.split('packages="cmake:cmake')[1].split('"')[0].split()
    assert documented == {"cmake", *(entry.partition(":")[0] for entry in listed)}


def test_clients_are_installed_once_into_their_folder(machine: Machine) -> None:
    said = machine.run("here", script=CLIENTS)
    (call,) = machine.calls()
    assert "install --prefix here " in call and " -g" not in call
    assert said.startswith("Installing @anthropic-ai/claude-code@") and "@openai/codex@" in call
    assert machine.run("here", script=CLIENTS) == "" and machine.calls() == []
    machine.run("elsewhere", script=CLIENTS)
    assert len(machine.calls()) == 1


@pytest.mark.parametrize(
    ("environment", "without", "reason"),
    [
        ({"CLIENTS": "no"}, None, "CLIENTS=no"),
        ({}, "npm", "there is no npm"),
        ({"INSTALL_FAILS": "1"}, None, "npm failed: the registry cannot be reached"),
    ],
)
def test_clients_that_cannot_be_installed_are_said_and_tried_again(
    machine: Machine, environment: dict[str, str], without: str | None, reason: str
) -> None:
    if without is not None:
        machine.remove(without)
    for _ in range(2):
        said = machine.run("here", script=CLIENTS, **environment).splitlines()[-1]
        assert said.startswith(f"Not installed ({reason}): @anthropic-ai/claude-code@")
    assert len(machine.calls()) == (2 if "INSTALL_FAILS" in environment else 0)


def test_the_tests_look_for_clients_where_make_puts_them() -> None:
    make = (ROOT / "Makefile").read_text()
    (folder,) = (line.split()[2] for line in make.splitlines() if "CLIENTS_FOLDER :=" in line)
    tests = (ROOT / "tests" / "skills" / "test_clients.py").read_text()
    assert f'ROOT / "{folder}/node_modules/.bin"' in tests

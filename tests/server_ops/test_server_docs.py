"""docs/server.md is true: its config is read, its client learns, its names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_support import WAIT

from assay.server.admin_client import AdminClient, policy_facts
from assay.server.gateway.config import ServerConfig, read_config
from assay.server.store.registry import Verb

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text()


def test_the_config_is_read_as_it_stands(text: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "server.yaml").write_text(block)
    config = read_config(tmp_path / "server.yaml", {})
    assert config.tokens and config.canary.share == 0.2
    assert config.learner_of("queue").publish_steps == 1000
    assert config.learner_of("queue").memory_mb == 2000
    assert (config.backlog_of("queue"), config.backlog_of("other")) == (50_000, 200_000)


def test_names_of_settings_and_verbs_exist(text: str) -> None:
    verbs = text[text.index("| verb |") : text.index("With `tls.client_ca`")]
    assert set(re.findall(r"`([a-z]+)`", verbs)) == set(Verb)
    for setting in ("drain_seconds", "recheck_seconds", "backlog_steps", "metrics_port"):
        assert f"`{setting}`" in text or f"{setting}:" in text
        assert setting in ServerConfig.model_fields


def test_files_named_in_the_fault_matrix_exist() -> None:
    tests = Path(__file__).parents[1]
    named = re.findall(r"[a-z_/]+\.py", (tests / "server_faults" / "README.md").read_text())
    there = {one.name for one in tests.glob("*/*.py")}
    assert len(named) > 20
    assert [one for one in named if Path(one).name not in there | {"server.py"}] == []


def test_the_quickstart_learns_through_a_server_and_survives_its_end(
    text: str, tmp_path: Path
) -> None:
    found = re.search(r"<!-- quickstart -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None and found[1].count("127.0.0.1:50051") == 1
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    script = tmp_path / "queue_client.py"

    def play(address: str, seconds: int = 6) -> dict[str, Any]:
        script.write_text(found[1].replace("127.0.0.1:50051", address))
        done = subprocess.run(
            [sys.executable, str(script), str(seconds)],
            env=environment, capture_output=True, text=True, timeout=3 * WAIT + seconds,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = r"rule: [\d.]+ a slot; lately: [\d.]+ \(version (\d+|None)\)\n"
        assert re.fullmatch(said, done.stdout)
        end = time.monotonic() + WAIT
        with AdminClient.open({"address": address}) as admin:
            while True:
                # On a busy machine a client may be done before the first trainer has begun.
                known = [policy_facts(one) for one in admin.policies()]
                facts = known[0] if known else {"newest_version": 0, "steps": 0}
                learner = facts.get("learner", {"state": "idle", "behind_steps": 0})
                caught_up = learner["state"] == "idle" and not learner["behind_steps"]
                if caught_up or time.monotonic() > end:
                    return facts
                time.sleep(0.1)

    with serving(tmp_path / "data", environment) as (server, address):
        for seconds in (6, 12, 24, 48, 96):
            first = play(address, seconds)
            if first["newest_version"] >= 2:
                break
        assert first["newest_version"] >= 2 and first["steps"] > 1000
        server.kill()  # -9: the next one must find all of it
    with serving(tmp_path / "data", environment) as (server, address):
        second = play(address)
        assert second["steps"] > first["steps"]
        assert second["newest_version"] >= first["newest_version"]
        server.terminate()
        assert server.wait(3 * WAIT) == 0


@contextmanager
def serving(data: Path, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = ["serve", "--data", str(data), "--listen", "127.0.0.1:0", "--quiet"]
    server = subprocess.Popen(
        [sys.executable, "-m", "assay", *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        yield server, server.stdout.readline().split()[-1]
    finally:
        server.kill()
        server.communicate()

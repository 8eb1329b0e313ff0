"""docs/server.md is true: its config is read, its client learns, its names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_support import WAIT

from assay.server.admin_client import AdminClient
from assay.server.gateway.config import ServerConfig, read_config
from assay.server.policy_view import policy_facts
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


def test_the_quickstart_learns_through_a_server_and_survives_its_end(
    text: str, tmp_path: Path
) -> None:
    found = re.search(r"<!-- quickstart -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    data = str(tmp_path / "data")
    command = [sys.executable, "-m", "assay", "serve", "--data", data, "--listen", "127.0.0.1:0"]
    versions = []
    for life in range(2):
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            script = tmp_path / f"client-{life}.py"
            assert found[1].count("127.0.0.1:50051") == 1
            script.write_text(found[1].replace("127.0.0.1:50051", address))
            arguments = [sys.executable, str(script), "10" if life == 0 else "3"]
            done = subprocess.run(
                arguments, env=environment, capture_output=True, text=True, timeout=6 * WAIT
            )
            assert done.returncode == 0, done.stderr
            assert re.fullmatch(
                r"rule: [\d.]+ a slot; lately: [\d.]+ \(version (\d+|None)\)\n", done.stdout
            )
            with AdminClient.open({"address": address}) as admin:
                (facts,) = map(policy_facts, admin.policies())
            assert facts["steps"] > 1000 * (life + 1)
            versions.append(facts["newest_version"])
        finally:
            if life == 0:
                server.kill()  # -9: the second life must find all of it
            else:
                server.terminate()
            server.communicate(timeout=3 * WAIT)
    assert versions[0] >= 1 and versions[1] >= versions[0]
    assert server.returncode == 0

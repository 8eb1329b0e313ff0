import json
import subprocess
import sys

import pytest

from assay.runs import provenance
from assay.runs.provenance import MAX_DIFF_BYTES, REDACTED, collect

# Put together here, so that this file holds nothing that looks like a key.
GITHUB_KEY = "gh" + "p_" + "A1b2" * 9
AWS_KEY = "AK" + "IA" + "ABCDEFGH12345678"


def git(path, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(path), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    for name in ("code.py", ".env", "sub/deploy.pem"):
        (tmp_path / name).write_text("a = 1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_what_is_collected_is_json_and_describes_the_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-value")
    facts = collect(["assay", "train", "ppo"], seeds={"run": 7}, cwd=tmp_path)
    text = json.dumps(facts)
    assert facts["argv"] == ["assay", "train", "ppo"]
    assert facts["seeds"] == {"run": 7}
    assert facts["environment"]["OMP_NUM_THREADS"] == "1"
    assert facts["packages"]["numpy"]
    assert facts["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert facts["hardware"]["cpu"]
    assert facts["hardware"]["usable_cores"] >= 1
    assert facts["hardware"]["memory_bytes"] > 2**20
    assert "very-secret-value" not in text


def test_a_clean_repository_is_its_commit(repository):
    facts = collect([], cwd=repository / "sub")["git"]
    assert facts["sha"] == git(repository, "rev-parse", "HEAD").strip()
    assert facts["dirty"] is False
    assert facts["diff"] == ""


def test_changes_are_kept_as_a_diff_from_anywhere_in_the_repository(repository):
    (repository / "code.py").write_text("a = 2\n")
    (repository / "new.py").write_text("b = 1\n")
    facts = collect([], cwd=repository / "sub")["git"]
    assert facts["dirty"] is True
    assert "-a = 1\n+a = 2" in facts["diff"]
    assert facts["diff_truncated"] is False
    assert any("new.py" in line for line in facts["changed"])


def test_a_large_diff_is_cut(repository):
    (repository / "code.py").write_text("x = 'é'\n" * MAX_DIFF_BYTES)
    facts = collect([], cwd=repository)["git"]
    assert facts["diff_truncated"] is True
    assert MAX_DIFF_BYTES - 4 < len(facts["diff"].encode()) <= MAX_DIFF_BYTES


def test_secrets_stay_out_of_the_diff(repository):
    (repository / ".env").write_text("PLAIN=hidden-by-file\n")
    (repository / "sub" / "deploy.pem").write_text("hidden-by-suffix\n")
    lines = [
        f"key = {GITHUB_KEY!r}",
        f"aws = {AWS_KEY!r}",
        'my_password = "hunter2hunter2"',
        'config = {"api_key": "abcdef"}',
        "url = 'https://user:pa55word@example.org/x'",
        "-----BEGIN RSA " + "PRIVATE KEY-----",
        "MIIEsecretbody",
        "-----END RSA " + "PRIVATE KEY-----",
        "token_count = tokens[3]",
        "skip_connections_of_the_network = True",
    ]
    (repository / "code.py").write_text("\n".join(lines) + "\n")
    diff = collect([], cwd=repository)["git"]["diff"]
    for secret in (
        *("hidden-by-file", "hidden-by-suffix", GITHUB_KEY, AWS_KEY, "hunter2", "abcdef"),
        *("pa55word", "MIIEsecretbody"),
    ):
        assert secret not in diff
    assert "+token_count = tokens[3]" in diff
    assert "+skip_connections_of_the_network = True" in diff
    assert REDACTED in diff


def test_nothing_that_the_repository_configures_is_run(repository):
    ran = repository / "ran"
    script = repository / "monitor.sh"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(script))
    assert collect([], cwd=repository)["git"]["dirty"] is True
    assert not ran.exists()


def test_bytes_that_are_not_utf8_are_replaced(repository):
    (repository / "code.py").write_bytes(b"a = '\xff'\n")
    facts = collect([], cwd=repository)["git"]
    assert "+a = '\ufffd'" in facts["diff"]
    json.dumps(facts).encode()


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        (["--api-key", "s3cret", "x"], ["--api-key", REDACTED, "x"]),
        (["--token=s3cret"], [f"--token={REDACTED}"]),
        (["wandb_token=s3cret"], [f"wandb_token={REDACTED}"]),
        ([f"note={GITHUB_KEY}"], [f"note={REDACTED}"]),
        (["lr=3e-4", "token_dim=64", "--seed", "1"], ["lr=3e-4", "token_dim=64", "--seed", "1"]),
    ],
)
def test_secrets_stay_out_of_the_command_line(tmp_path, argument, kept):
    assert collect(argument, cwd=tmp_path)["argv"] == kept


def test_without_git_a_repository_or_a_gpu_the_rest_is_there(tmp_path, monkeypatch):
    assert collect([], cwd=tmp_path)["git"] is None
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = collect([], cwd=tmp_path)
    assert facts["git"] is None
    assert facts["hardware"]["gpus"] == []
    assert facts["packages"]


def test_packages_are_those_that_are_installed(tmp_path, monkeypatch):
    facts = "Metadata-Version: 2.1\nName: {}\nVersion: 1.2\n\nIts text\nName: another\nVersion: 9\n"
    for place, file, text in (
        ("plain-1.2.dist-info", "METADATA", facts.format("Plain")),
        ("windows-1.2.dist-info", "METADATA", facts.format("windows").replace("\n", "\r\n")),
        ("old-1.2.egg-info", "PKG-INFO", facts.format("old")),
        ("half_removed-1.2.dist-info", "INSTALLER", "pip\n"),
    ):
        (tmp_path / place).mkdir()
        (tmp_path / place / file).write_bytes(text.encode())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = collect([], cwd=tmp_path)["packages"]
    assert list(found.items()) == [("old", "1.2"), ("Plain", "1.2"), ("windows", "1.2")]
    found.clear()  # of no effect on what is found next
    (tmp_path / "later-2.0.dist-info").mkdir()
    (tmp_path / "later-2.0.dist-info/METADATA").write_text("Name: later\nVersion: 2.0\n")
    (tmp_path / "old-1.2.egg-info").rename(tmp_path / "removed")
    found = collect([], cwd=tmp_path)["packages"]
    assert list(found) == ["later", "Plain", "windows"]


def test_gpus_are_read_from_the_driver_and_a_hanging_git_is_skipped(monkeypatch, tmp_path):
    def answer(arguments, **settings):
        if arguments[0] == "nvidia-smi":
            text = b"0, GPU-1f2e, NVIDIA H200, 143771 MiB, 570.1\n"
            return subprocess.CompletedProcess(arguments, 0, text, b"")
        raise subprocess.TimeoutExpired(arguments, settings["timeout"])

    monkeypatch.setattr(provenance.subprocess, "run", answer)
    facts = collect([], cwd=tmp_path)
    assert facts["git"] is None
    assert facts["hardware"]["gpus"] == [
        {"name": "NVIDIA H200", "memory.total": "143771 MiB", "driver_version": "570.1"}
    ]
    assert [(gpu["index"], gpu["uuid"]) for gpu in provenance.gpus()] == [("0", "GPU-1f2e")]

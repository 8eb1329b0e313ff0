"""The C++ client against the real gateway; the binaries are those of `make cpp`."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "server_gateway"))

from certificates import Authority  # noqa: E402
from gateway_support import running  # noqa: E402

from assay.policies import description as arch  # noqa: E402
from assay.policies import layers  # noqa: E402
from assay.policies.model_file import make_snapshot  # noqa: E402
from assay.server.protocol import assay_pb2 as pb  # noqa: E402
from assay.server.spec import PolicySpec, read_spec  # noqa: E402
from assay.server.store.registry import Verb  # noqa: E402
from assay.server.store.tokens import make_token  # noqa: E402
from assay.server.tensors import Experience, Layout, decode  # noqa: E402

PROBE = ROOT / "build" / "cpp" / "assay-probe"
QUEUE = ROOT / "build" / "cpp" / "queue"
GOLDEN = ROOT / "clients" / "golden"
SECONDS = 120

needs_probe = pytest.mark.skipif(
    not PROBE.exists(), reason="the C++ client is not built; run: make cpp"
)
pytestmark = pytest.mark.cpp


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
@pytest.mark.parametrize("library", ["Protobuf", "gRPC"])
def test_cmake_names_the_library_that_is_missing(tmp_path: Path, library: str) -> None:
    without = [f"-DASSAY_{what}=OFF" for what in ("BUILD_TESTS", "BUILD_BENCHMARKS", "SANITIZE")]
    command = ["cmake", "-S", str(ROOT / "clients" / "cpp"), "-B", str(tmp_path), *without]
    command.append(f"-DCMAKE_DISABLE_FIND_PACKAGE_{library}=ON")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        pytest.skip("the core cannot be configured here")
    said = done.stdout + done.stderr
    if library == "gRPC" and "protobuf (apt" in said:
        pytest.skip("protobuf itself is not here")
    assert re.search(f"not the client: {library} .*was not found", said, re.IGNORECASE)


def config(tmp_path: Path, address: str, **more: Any) -> Path:
    values = {
        "address": address,
        "client": "probe",
        "policy": "counter",
        "algorithm": "ppo",
        "observation": {"kind": "box", "shape": [3]},
        "action": {"kind": "discrete", "n": 3},
        "safe_action": 1,
        "batch_steps": 16,
    }
    path = tmp_path / "client.json"
    path.write_text(json.dumps(values | more))
    return path


def probe(path: Path, *arguments: Any) -> dict[str, Any]:
    """Run the probe to its end and return what it says."""
    command = [str(PROBE), str(path), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def committed(server: Any, policy: str = "counter") -> list[Experience]:
    """Return what the store holds, decoded and checked by the registered spec."""
    layout = Layout(registered(server, policy))
    batches = []
    for one in server.store.read(policy, after=0):
        batch = pb.Batch.FromString(one.payload)
        batches.append(decode(batch, layout))
    return batches


def registered(server: Any, policy: str) -> PolicySpec:
    found = {one.name: one for one in server.store.registry.policies()}[policy]
    return found.spec if isinstance(found.spec, PolicySpec) else read_spec(found.spec)


def snapshot(version: int, prefers: int, choices: int = 3) -> bytes:
    """Return a model that sees three numbers and wants one of the choices, whatever it sees."""
    architecture = arch.Architecture(
        version=version,
        epoch=1,
        algorithm="ppo",
        observation={"kind": "Box", "shape": [3], "dtype": "float32", "low": None, "high": None},
        action={"kind": "Discrete", "n": choices, "start": 0},
        inputs=(arch.Entry(key=None, width=3),),
        layers=(layers.Dense(weight="w", bias="b"),),
        head=arch.Categorical(n=choices),
    )
    bias = np.where(np.arange(choices) == prefers, 50.0, 0.0).astype(np.float32)
    arrays = {"w": np.zeros((choices, 3), np.float32), "b": bias}
    return make_snapshot(architecture, arrays).data


@needs_probe
def test_what_the_client_sends_is_stored_and_decodes(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        said = probe(config(tmp_path, server.address), 200)
        batches = committed(server)
    assert said["complete"] and said["acknowledged"] == said["recorded"]
    events = np.concatenate([one.fields["event"] for one in batches])
    # 200 decisions: the last episode is open, and its last step pending.
    np.testing.assert_array_equal(events, np.arange(1, len(events) + 1))
    assert len(events) == said["recorded"] >= 190
    obs = np.concatenate([one.fields["obs"] for one in batches])
    reward = np.concatenate([one.fields["reward"] for one in batches])
    np.testing.assert_array_equal(obs[:, 0], reward)
    terminated = np.concatenate([one.fields["terminated"] for one in batches])
    truncated = np.concatenate([one.fields["truncated"] for one in batches])
    np.testing.assert_array_equal(np.flatnonzero(terminated)[:2], [9, 26])
    np.testing.assert_array_equal(np.flatnonzero(truncated)[:2], [16, 33])
    finals = np.concatenate([one.fields["bootstrap"] for one in batches])
    assert 7.0 in finals[:, 0]  # the observation after a cut
    assert {int(v) for one in batches for v in one.fields["action"]} == {1}
    assert {int(v) for one in batches for v in one.fields["flags"]} == {8}


@needs_probe
def test_a_published_model_is_swapped_in_and_acted_with(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        probe(config(tmp_path, server.address), 20)  # registers the policy
        server.puppet("counter").publish(data=snapshot(1, prefers=2))
        said = probe(config(tmp_path, server.address), 50, "until-version", 1)
        batches = committed(server)
    assert said["accepted_models"] == 1 and said["rejected_models"] == 0
    assert said["version"] == 1 and said["by_model"] > 0
    by_model = [one.fields["version"] == 1 for one in batches]
    actions = [one.fields["action"] for one in batches]
    chosen = np.concatenate(actions)[np.concatenate(by_model)]
    assert len(chosen) and set(chosen.tolist()) == {2}
    flags = np.concatenate([one.fields["flags"] for one in batches])
    assert not flags[np.concatenate(by_model)].any()


@needs_probe
def test_a_gateway_that_comes_later_gets_everything(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        address = server.address
    # The port is free again: the client begins without a server.
    process = subprocess.Popen(
        [str(PROBE), str(config(tmp_path, address)), "300", "pause-ms", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with running(tmp_path / "server", listen=address.replace("localhost", "127.0.0.1")) as late:
            out, err = process.communicate(timeout=SECONDS)
            batches = committed(late)
    finally:
        process.kill()
        process.wait()
    said = json.loads(out.splitlines()[-1])
    assert said["complete"], err
    events = np.concatenate([one.fields["event"] for one in batches])
    np.testing.assert_array_equal(events, np.arange(1, said["recorded"] + 1))


@needs_probe
def test_a_refused_spec_is_said_and_the_system_goes_on(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        probe(config(tmp_path, server.address), 20)
        path = config(tmp_path, server.address, action={"kind": "discrete", "n": 4})
        command = [str(PROBE), str(path), "50"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            line = process.stderr.readline()  # it waits in close() for a repairing that never comes
            assert "action.n is 3 as registered, 4 as given" in line
        finally:
            process.kill()
            process.wait()


@needs_probe
def test_a_certificate_says_who_the_client_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    authority.issue("ada", "ada")
    where = authority.directory
    server_files = {"cert": "server.crt", "key": "server.key", "client_ca": "ca.crt"}
    tls = {name: str(where / file) for name, file in server_files.items()}
    mine = {"ca": "ca.crt", "certificate": "ada.crt", "key": "ada.key"}
    files = {name: str(where / file) for name, file in mine.items()}
    grants = {"ada": {"counter": ["register", "write", "read"]}}
    with running(tmp_path / "server", tls=tls, grants=grants) as server:
        said = probe(config(tmp_path, server.address, client="mallory", tls=files), 40)
        assert said["complete"] and said["acknowledged"] > 0
        assert {one.client for one in server.store.read("counter", after=0)} == {"ada"}


@needs_probe
def test_a_token_from_a_file_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    where = authority.directory
    tls = {"cert": str(where / "server.crt"), "key": str(where / "server.key")}
    with running(tmp_path / "server", tls=tls, tokens=True) as server:
        verbs = frozenset({Verb.REGISTER, Verb.WRITE, Verb.READ})
        text, token = make_token("bob", {"counter": verbs})
        server.store.registry.add_token(token)
        (tmp_path / "token").write_text(text + "\n")
        path = config(
            tmp_path, server.address, token_file="token", tls={"ca": str(where / "ca.crt")}
        )
        said = probe(path, 40)
        assert said["complete"] and said["acknowledged"] > 0
        assert {one.client for one in server.store.read("counter", after=0)} == {"bob"}


@pytest.mark.skipif(not QUEUE.exists(), reason="the C++ example is not built; run: make cpp")
def test_the_example_streams_to_the_gateway_and_judges_what_it_got(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        address = server.address.replace("localhost", "127.0.0.1")
        command = [str(QUEUE), "--address", address, "--steps", "4000", "--rate", "4000"]
        command += ["--models", str(tmp_path / "models"), "--wait"]
        said = []
        for wait in ("0", "60"):
            done = subprocess.run(
                [*command, wait], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
            if wait == "0":
                assert sum(one.steps for one in committed(server, "queue")) == 4000
                server.puppet("queue").publish(data=snapshot(1, prefers=2, choices=4))
    assert "heuristic: mean cost" in said[0] and "the heuristic acted" in said[0]
    costs = [float(cost) for cost in re.findall(r"mean cost ([\d.]+)", said[1])]
    assert len(costs) == 2 and costs[1] > costs[0]  # two machines at all times are no good rule
    assert re.search(r"learned: .* \(\+\d+% against the heuristic\)", said[1])


def test_the_golden_batches_are_those_of_this_encoder(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("make_batches", GOLDEN / "make_batches.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    script.write(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in (GOLDEN / "batches").iterdir())
    for name in names:
        fresh, kept = (tmp_path / name).read_bytes(), (GOLDEN / "batches" / name).read_bytes()
        assert fresh == kept, f"{name}: run clients/golden/make_batches.py"


def test_the_golden_batches_decode(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "batches" / "batches.json").read_text())
    for entry in content["batches"]:
        spec = read_spec(json.dumps(entry["spec"]))
        batch = pb.Batch.FromString((GOLDEN / "batches" / f"{entry['name']}.bin").read_bytes())
        experience = decode(batch, Layout(spec))
        assert experience.steps == len(entry["steps"])
        assert len(experience.patches) == len(entry["patches"])

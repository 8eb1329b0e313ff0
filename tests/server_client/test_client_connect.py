"""`assay.connect`: settings with clear mistakes, processes, and what is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, KNOB, SEEN, model
from fake_server import FakeServer, wait_for
from gymnasium import spaces
from test_client_grpc import joined, play

import assay
from assay.core.errors import AssayError, ConfigError
from assay.policies.description import describe_space
from assay.server.client.config import read_config
from assay.server.client.connect import ServerWarning
from assay.server.client.spaces import gym_space, make_spec
from assay.server.spec import Box, Discrete, PolicySpec, leaves_of, read_spec

OBS = np.zeros(3, np.float32)
GOOD: dict[str, Any] = {
    "observation": SEEN,
    "action": CHOICE,
    "algorithm": "ppo",
    "safe_action": 0,
}
AWAY = "127.0.0.1:9"


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_step": 5}, "unknown setting 'batch_step'. Did you mean 'batch_steps'"),
        ({"batch_steps": -1}, "batch_steps=-1"),
        ({"batch_steps": "many"}, "batch_steps='many'"),
        ({"overflow": "explode"}, "overflow='explode'"),
        ({"mode": "shadow"}, "needs a heuristic"),
        ({"safe_action": 7}, "safe_action=7 is not in the action space"),
        ({"algorithm": None}, "algorithm is missing"),
        ({"observation": None}, "observation is missing"),
        ({"observation": 5}, "observation=5 is not a space"),
        ({"observation": {"kind": "bx", "shape": [3]}}, "bx"),
        ({"action": KNOB, "bounds": {"low": -5}, "safe_action": [0, 0]}, "beyond the action space"),
        ({"bounds": {"low": 0}}, "bounds are for a box"),
        ({"client": "no spaces"}, "client='no spaces'"),
        ({"token": "a", "token_file": "b"}, "expected one of them"),
        ({"token": "a b"}, "odd characters"),
        ({"tls": {"certificate": "x.pem"}}, "expected both or neither"),
        ({"tls": {"ca": "missing.pem"}}, "tls.ca='missing.pem' cannot be read"),
        ({"compress": "maybe"}, "compress='maybe'"),
        ({"model_ttl": 0}, "model_ttl=0"),
        ({"settings": {"gamma": float("nan")}}, "settings"),
        ({"action": spaces.Text(3)}, "action space Text is not supported"),
        ({"buffer_steps": 10}, "no batch would fit"),
    ],
)
def test_mistakes_are_named_in_one_line(options, words):
    with pytest.raises(AssayError, match=words.replace("(", r"\(")) as caught:
        assay.connect(AWAY, "p", **{**GOOD, **options})
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("action", "bounds", "does"),
    [
        (spaces.Discrete(3, start=4), None, 4),
        (spaces.Discrete(11, start=-5), None, 0),
        (spaces.MultiDiscrete([2, 3]), None, [0, 0]),
        (spaces.MultiDiscrete([9, 3], start=[-7, 2]), None, [0, 2]),
        (spaces.MultiBinary(2), None, [0, 0]),
        (KNOB, None, [0, 0]),
        (spaces.Box(-1, 1, (2, 2)), {"low": 0.5, "high": 0.75}, [[0.5, 0.5], [0.5, 0.5]]),
        (KNOB, {"low": [0.5, -1], "high": 1}, [0.5, 0]),
    ],
)
def test_without_a_safe_action_the_least_is_done_and_said(action, bounds, does):
    given = GOOD | {"action": action, "bounds": bounds, "safe_action": None}
    with pytest.warns(ServerWarning, match="No safe_action was given: .* 'p' does"):
        agent = assay.connect(AWAY, "p", **given)
    with agent:
        assert np.asarray(agent.act(OBS)).tolist() == does
        assert agent.status().acting.sources == {"constant": 1}
        agent.close(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = assay.connect(AWAY, "p", **given | {"safe_action": "nearest"})
    assert np.asarray(agent.act(OBS)).tolist() == does
    agent.close(0.0)


@pytest.mark.parametrize("address", ["nowhere", "host:", ":5", "host:port", "host:99999"])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(ConfigError, match="expected host:port"):
        assay.connect(address, "p", **GOOD)


def test_a_policy_needs_a_name_that_can_be_one():
    with pytest.raises(ConfigError, match="policy is missing"):
        assay.connect(AWAY, **GOOD)
    with pytest.raises(ConfigError, match="policy='a/b'"):
        assay.connect(AWAY, "a/b", **GOOD)


def test_a_file_says_everything_and_keywords_win(tmp_path: Path):
    (tmp_path / "token").write_text("secret")
    path = tmp_path / "client.yaml"
    path.write_text(
        textwrap.dedent("""
        address: 127.0.0.1:9
        policy: lander
        client: ada
        observation: {kind: box, shape: [3], low: -10, high: 10}
        action: {kind: discrete, n: 3}
        algorithm: ppo
        settings: {lr: 3e-4, gamma: 0.9}
        safe_action: 1
        batch_steps: 10
        models: kept
        token_file: token
        """)
    )
    with assay.connect(config=path, batch_steps=20, settings={"gamma": 0.8}) as agent:
        assert agent.spec.settings == {"lr": 3e-4, "gamma": 0.8}
        assert agent.agent.settings.batch_steps == 20
        assert agent.client == "ada" and agent.spec.name == "lander"
        assert agent.act(OBS) == 1
        assert agent._transport._config.token_file == tmp_path / "token"
        agent.close(0.0)
    values = {"address": AWAY, "policy": "p", "batch_steps": 7}
    (tmp_path / "client.json").write_text(json.dumps(values))
    assert read_config(tmp_path / "client.json", {}).batch_steps == 7


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "polcy: x", "unknown setting 'polcy'. Did you mean 'policy'"),
        ("a.yaml", "[1, 2]", "holds a list"),
        ("a.yaml", "a: [", "not readable YAML"),
        ("a.json", "{", "not readable JSON"),
        ("a.json", "[]", "holds a list"),
        ("a.json", '{"batch_steps": true}', "batch_steps=true"),
    ],
)
def test_a_file_with_a_mistake_is_named(tmp_path: Path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        assay.connect(config=path)
    assert str(path) in caught.value.message
    with pytest.raises(ConfigError, match="No such file"):
        assay.connect(config=tmp_path / f"nothing{path.suffix}")


def test_a_spec_may_be_given_whole():
    spec = PolicySpec(name="p", observation=Box(shape=(3,)), action=Discrete(n=3), algorithm="ppo")
    with FakeServer() as server:
        with assay.connect(server.address, spec=spec, safe_action=2, client="ada") as agent:
            wait_for(lambda: "p" in server.specs)
            assert server.specs["p"] == spec == agent.spec and agent.act(OBS) == 2
    with pytest.raises(ConfigError, match="algorithm is given, and the spec has its own"):
        assay.connect(AWAY, spec=spec, safe_action=2, algorithm="dqn")
    with pytest.raises(ConfigError, match="the spec is that of 'p'"):
        assay.connect(AWAY, "q", spec=spec, safe_action=2)


NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2, 2)), "on": spaces.Discrete(2, start=3)}),
        "rest": spaces.Tuple([spaces.MultiBinary(3), spaces.Box(0, 255, (4,), np.uint8)]),
        "wide": spaces.Box(-np.inf, 1e30, (1,), np.float64),
    }
)


@pytest.mark.parametrize("space", [SEEN, NESTED, spaces.Discrete(4, start=2), spaces.Box(0, 1, ())])
@pytest.mark.parametrize("masks", [True, False])
def test_what_is_registered_says_exactly_what_models_are_made_for(space, masks):
    """The learner builds its spaces from the spec; its models must fit the client's."""
    from assay.envs.spaces import ObservationMap
    from assay.server.client.agent import ClientAgent, ClientSettings

    spec = read_spec(make_spec("p", space, CHOICE, "ppo", masks=masks).canonical())
    agent = ClientAgent(space, CHOICE, 0, ClientSettings(masks=masks))
    learners = ObservationMap(gym_space(spec.observation))
    assert describe_space(learners.space) == agent.keeper._observation
    assert describe_space(gym_space(spec.action)) == agent.keeper._action
    names = {name for name, _ in leaves_of(spec.observation)}
    assert names == {leaf.key if not learners.bare else "" for leaf in learners.leaves}


def test_entries_that_clash_once_nested_are_refused():
    odd = spaces.Dict({"a": SEEN, "a/b": SEEN})
    with pytest.raises(AssayError, match="Rename one of them"):
        make_spec("p", odd, CHOICE, "ppo")


# ---------------------------------------------------------------------- many clients, threads


def test_many_clients_of_one_policy_in_one_process():
    with FakeServer() as server:
        agents = [
            assay.connect(server.address, "p", client=f"c{i}", batch_steps=4, group="all", **GOOD)
            for i in range(4)
        ]
        try:
            server.publish(model(1, prefers=2))
            threads = [threading.Thread(target=play, args=(agent, 21)) for agent in agents]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(agent.flush(30) for agent in agents)
            assert all(agent.wait_for_model(30) for agent in agents)
            for i in range(4):
                assert server.steps(f"c{i}") == list(range(1, 21))
            assert server.specs["p"].group == "all"
            seeds = {agent.agent.settings.seed for agent in agents}
            assert len(seeds) == 4  # they do not explore all alike
        finally:
            for agent in agents:
                agent.close(0.0)
    names = {assay.connect(AWAY, "p", **GOOD).client for _ in range(3)}
    assert len(names) == 3  # where none is given


def test_after_close_it_still_acts_and_records_nothing():
    with FakeServer() as server:
        agent = assay.connect(server.address, "p", batch_steps=4, overflow="block", **GOOD)
        play(agent, 9)
        assert agent.close() and agent.close()
        count = len(server.steps())
        play(agent, 50)
        agent.flush()
        assert agent.status().state == "stopped"
        assert len(server.steps()) == count and agent.agent.outbox.held_steps == 0


def test_trouble_is_a_warning_by_default():
    from assay.server.errors import Reason

    with FakeServer() as server:
        server.refuse_calls["Open"] = Reason.UNAUTHENTICATED
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with joined(server.address, on_trouble=None) as agent:
                wait_for(lambda: caught)
                assert agent.act(OBS) == 1
        assert caught[0].category is ServerWarning


# ---------------------------------------------------------------------- processes


def in_child(work):
    """Return what a forked child says, which must not hang.

    gRPC skips its own preparations if it is busy when the process forks, and then destroys the
    channel in the child all the same, which crashes some children. That is tried again.
    """
    for _ in range(5):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            signal.alarm(60)
            try:
                said = json.dumps(work())
            except BaseException as error:
                said = json.dumps(f"raised {error!r}")
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as stream:
            said = stream.read()
        _, status = os.waitpid(child, 0)
        if said or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGSEGV:
            break
    assert said, "the child hung"
    return json.loads(said)


def test_a_forked_child_acts_on_and_says_so_once():
    told = []
    with FakeServer() as server, joined(server.address, on_trouble=told.append) as agent:
        server.publish(model(1, prefers=2))
        assert agent.wait_for_model(30)
        play(agent, 3)

        def child():
            told.clear()
            acted = [agent.decide(OBS) for _ in range(3)]
            rewards = [agent.reward(1.0), agent.end(terminated=True), agent.flush(1.0)]
            status = agent.status()
            agent.close()  # neither waits nor hurts the parent's connection
            return [
                [int(agent.act(OBS)), *{one.source for one in acted}],
                [*rewards, agent.wait_for_model(30)],
                told,
                [status.state, status.trouble, status.acting.held_steps],
            ]

        acted, recorded, said, status = in_child(child)
        assert acted == [2, "model"]
        assert recorded == [False, False, False, True]
        assert len(said) == 1 and f"opened in process {os.getpid()}" in said[0]
        assert "after the fork" in said[0]
        assert status[:2] == ["stopped", said[0]]
        assert agent.act(OBS) == 2 and agent.status().state != "stopped"


def test_a_forked_child_answers_although_the_parent_was_acting():
    """The lock of the parent's other thread is never let go in the child."""
    asked, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def slow(obs, mask):
        if os.getpid() == parent:
            asked.set()
            go_on.wait(60)
        return 1

    with joined(AWAY, heuristic=slow) as agent:
        thread = threading.Thread(target=agent.act, args=(OBS,))
        thread.start()
        assert asked.wait(60)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a warning that is an error must not come out
                agent._report = lambda message: warnings.warn(message, ServerWarning, stacklevel=2)
                assert in_child(lambda: int(agent.act(OBS))) == 1
        finally:
            go_on.set()
            thread.join()


PROGRAM = """
import sys
sys.modules["torch"] = None  # importing it fails
import numpy as np
from gymnasium import spaces
import assay

agent = assay.connect(
    sys.argv[1], "p", client="ada", algorithm="ppo", safe_action=1, batch_steps=5,
    observation=spaces.Box(-10, 10, (3,), np.float32), action=spaces.Discrete(3),
)
if sys.argv[2] == "stay":
    assert agent.wait_for_model(30)
for i in range(12):
    print(agent.act(np.zeros(3, np.float32)))
    agent.reward(1.0)
agent.end(terminated=True)
assert assay.connect_env.__name__ == "connect_env"
# No close: what waits is sent when the process ends.
"""


@pytest.mark.parametrize("how", ["stay", "away"])
def test_without_torch_and_without_close(how):
    with FakeServer() as server:
        server.publish(model(1, prefers=2))
        address = server.address if how == "stay" else AWAY
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address, how],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.split() == ["2" if how == "stay" else "1"] * 12
        assert server.steps() == (list(range(1, 13)) if how == "stay" else [])


@pytest.mark.parametrize(
    ("module", "package"),
    [("grpc", "grpcio"), ("google.protobuf", "protobuf"), ("google_crc32c", "google-crc32c")],
)
def test_without_the_extra_it_says_which(module, package):
    program = f"""
import sys
sys.modules["{module}"] = None
import assay
from assay.core.errors import MissingExtraError
from gymnasium.spaces import Box, Discrete
try:
    assay.connect(
        "{AWAY}", "p", observation=Box(0, 1, (1,)), action=Discrete(2), algorithm="ppo",
        safe_action=0,
    )
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert f"needs the package '{package}'" in done.stdout, done.stderr
    assert "assay[server]" in done.stdout


def test_a_connection_that_nobody_holds_ends_by_itself():
    agent = assay.connect(AWAY, "p", **GOOD)
    thread = agent._courier._thread
    del agent
    import gc

    gc.collect()
    wait_for(lambda: not thread.is_alive())

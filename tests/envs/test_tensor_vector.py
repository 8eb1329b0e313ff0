"""Vector environments of tensors: what they answer arrives, and what acts on them is theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

import assay
from assay.core.errors import ConfigError, EnvError, RunError
from assay.core.types import tree_leaves
from assay.envs.make import make_vector
from assay.envs.tensor_vector import TensorVectorEnv
from assay.loops.events import CheckpointSaved

COUNT, LIMIT = 3, 4
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA])]


class Line:
    """Points on a line: 1 goes right, at 3 an episode ends, after four steps it is cut.

    It writes into the same tensors again and again, as simulators on a GPU do.
    """

    num_envs = COUNT
    single_observation_space = spaces.Box(-9, 9, (1,), np.float32)
    single_action_space: Any = spaces.Discrete(2)

    def __init__(self, ends: int = 2, told: bool = True) -> None:
        self.ends, self.told = ends, told
        self.x, self.age = torch.zeros(COUNT, 1), torch.zeros(COUNT)
        self.received: Any = None

    def reset(self) -> Any:
        self.x.zero_()
        self.age.zero_()
        return self.x

    def step(self, actions: Any) -> Any:
        self.received = actions
        self.x += 2.0 * actions.reshape(COUNT, 1) - 1.0
        self.age += 1
        arrived, old = self.x[:, 0] >= 3, self.age >= LIMIT
        done, reward = arrived | old, self.x[:, 0].clone()
        info = {"final_obs": self.x.clone()} if self.told else {}
        self.x[done], self.age[done] = 0.0, 0.0
        if self.ends == 2:
            return self.x, reward, arrived, old & ~arrived, info
        return self.x, reward, done, info | {"time_outs": old & ~arrived}


@pytest.mark.parametrize("ends", [1, 2])
def test_episodes_are_those_of_the_tensors(ends: int) -> None:
    line = Line(ends)
    with make_vector(TensorVectorEnv(line)) as vector:
        first = vector.reset(0)
        seen = [first.copy()]
        for _ in range(3):
            obs, reward, terminated, truncated, _, final = vector.step(np.array([1, 0, 1]))
            seen.append(obs)
        assert isinstance(line.received, torch.Tensor)
        assert np.ravel(first).tolist() == [0, 0, 0]  # a copy, whatever the environment writes
        assert [np.ravel(x).tolist() for x in seen[1:]] == [[1, -1, 1], [2, -2, 2], [0, -3, 0]]
        assert reward.tolist() == [3, -3, 3] and terminated.tolist() == [True, False, True]
        assert not truncated.any() and np.ravel(final)[[0, 2]].tolist() == [3, 3]
        _, _, terminated, truncated, _, final = vector.step(np.array([1, 0, 1]))
        assert not terminated.any() and truncated.tolist() == [False, True, False]
        assert np.ravel(final)[1] == -4


class Foreign:
    """An array of a library that only speaks DLPack."""

    def __init__(self, values: Any) -> None:
        self.values = torch.as_tensor(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class ForeignLine(Line):
    """The same points, told in another library's arrays."""

    def reset(self) -> Any:
        return Foreign(super().reset())

    def step(self, actions: Any) -> Any:
        obs, reward, *ends, info = super().step(actions.values)
        self.received = actions
        told = {key: Foreign(value) for key, value in info.items()}
        return Foreign(obs), Foreign(reward), *map(Foreign, ends), told


def test_arrays_come_and_go_by_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(from_dlpack=lambda array: Foreign(torch.from_dlpack(array)))
    monkeypatch.setitem(sys.modules, "foreign", library)
    monkeypatch.setattr(Foreign, "__module__", "foreign.arrays")
    line, seen = ForeignLine(), []
    for env in (line, Line()):
        with make_vector(TensorVectorEnv(env)) as vector:
            steps = [[vector.reset(0)]] + [vector.step(np.array([1, 0, 1])) for _ in range(5)]
        seen.append([np.asarray(x).tolist() for one in steps for x in one if x is not None])
    assert isinstance(line.received, Foreign) and seen[0] == seen[1]


def test_where_the_last_observation_is_not_told_the_one_before_stands_in() -> None:
    with make_vector(TensorVectorEnv(Line(told=False))) as vector:
        vector.reset(0)
        for _ in range(3):
            vector.step(np.array([0, 0, 0]))
        with pytest.warns(UserWarning, match="does not report the last observation"):
            *_, truncated, _, final = vector.step(np.array([0, 0, 0]))
        assert truncated.all() and np.ravel(final).tolist() == [-3, -3, -3]


def test_a_policy_learns_on_them(tmp_path: Path) -> None:
    run = assay.train(
        "ppo", TensorVectorEnv(Line()), env_steps=1536, horizon=32, minibatch_size=48, lr=3e-3,
        epochs=6, hidden=(16,), root=tmp_path, compile=False, sinks=[], checkpoint_every=0,
    )  # fmt: skip
    assert run.status == "done"
    agent = assay.load(run.path)
    assert [agent.act(np.array([x], np.float32)) for x in (-2.0, -1.0, 0.0)] == [1, 1, 1]


def test_spaces_of_another_library_are_read() -> None:
    class Other(Line):
        single_action_space = SimpleNamespace(low=[-1.0, -2.0], high=[1.0, 2.0])

    assert TensorVectorEnv(Other()).single_action_space == spaces.Box(
        np.array([-1, -2], np.float32), np.array([1, 2], np.float32)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 0}, "has num_envs=0"),
        ({"step": None}, r"has no step\(\)"),
        ({"single_action_space": "two"}, "single_action_space='two'"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        TensorVectorEnv(type("Line", (Line,), changes)())


def test_an_environment_of_many_copies_that_is_given_as_one_is_explained() -> None:
    class Lab(Line, gym.Env[Any, Any]):
        pass

    for given in (Lab(), Line()):
        with pytest.raises(EnvError) as caught:
            make_vector(given)  # type: ignore[arg-type]
        assert "TensorVectorEnv" in str(caught.value)


class Mass:
    """Masses on a line that are pushed, and paid for being near 0: in torch, on any device.

    An episode ends beyond 2, and is cut after twelve steps. All numbers are multiples of 1/64, so
    that every device computes the same. The starts come from a generator of the host.
    """

    single_observation_space = spaces.Box(-9, 9, (2,), np.float32)
    single_action_space = spaces.Box(-1, 1, (1,), np.float32)
    library: Any = torch
    end = 2.0

    def __init__(self, device: str = "cpu", count: int = 8) -> None:
        self.device, self.num_envs = device, count
        self.rng = torch.Generator().manual_seed(0)
        self.x: Any = None
        self.age: Any = None
        self.received: Any = None

    def put(self, tensor: torch.Tensor) -> Any:
        return tensor.to(self.device)

    def start(self) -> Any:
        at = torch.randint(-64, 65, (self.num_envs,), generator=self.rng) / 64
        return self.put(torch.stack([at, torch.zeros(self.num_envs)], 1))

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self.rng.manual_seed(seed)
        self.x, self.age = self.start(), self.put(torch.zeros(self.num_envs))
        return self.x, {}

    def step(self, actions: Any) -> Any:
        self.received, where = actions, self.library.where
        speed = self.x[:, 1] + (actions[:, 0] * 16).round() / 64
        x = self.library.stack([self.x[:, 0] + speed, speed], 1)
        self.age = self.age + 1
        out = abs(x[:, 0]) > self.end
        cut = (self.age >= 12) & ~out
        self.x = where((out | cut)[:, None], self.start(), x)
        self.age = where(out | cut, 0.0, self.age)
        return self.x, 1 - abs(x[:, 0]), out, cut, {"final_obs": x}


class SavedMass(Mass):
    """One that goes on in the middle of an episode."""

    def get_state(self) -> Any:
        return {"x": self.x, "age": self.age, "rng": self.rng.get_state()}

    def set_state(self, state: Any) -> None:
        self.x, self.age = (torch.from_numpy(state[k]).to(self.device) for k in ("x", "age"))
        self.rng.set_state(torch.from_numpy(state["rng"]))


class SeedMethod(Mass):
    """One that takes its seed apart from the reset, as Brax' does."""

    def seed(self, seed: int) -> None:
        self.rng.manual_seed(seed)

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset(None)


def played(env: Any, steps: int = 60) -> list[Any]:
    """Return what a vector answers to fixed actions."""
    rng = np.random.default_rng(0)
    with make_vector(TensorVectorEnv(env)) as vector:
        seen: list[Any] = [vector.reset(3)]
        for _ in range(steps):
            action = rng.uniform(-1, 1, (env.num_envs, 1)).astype(np.float32)
            before = action.copy()
            *step, valid, final = vector.step(action)
            assert valid is None and np.array_equal(action, before)
            done = step[2] | step[3]
            seen += [*step, None if final is None else final[done]]
    assert any(np.any(x) for x in seen[3::5]) and any(np.any(x) for x in seen[4::5])  # both ends
    return seen


def assert_same(one: list[Any], two: list[Any]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@NO_CUDA
def test_a_gpu_answers_what_a_cpu_does() -> None:
    on_gpu = Mass("cuda")
    assert_same(played(on_gpu), played(Mass("cpu")))
    assert on_gpu.received.is_cuda and on_gpu.received.dtype == torch.float32


def test_an_environment_that_has_a_method_for_its_seed_gets_it() -> None:
    assert_same(played(SeedMethod("cpu")), played(Mass("cpu")))


class HostCopies(TorchDispatchMode):
    """Count what goes from a GPU to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        source = args[1] if func is torch.ops.aten.copy_.default else args[0] if args else None
        scalar = func is torch.ops.aten._local_scalar_dense.default
        to_host = isinstance(out, torch.Tensor) and out.device.type == "cpu"
        if isinstance(source, torch.Tensor) and source.is_cuda and (scalar or to_host):
            self.count += 1
        return out


@pytest.mark.gpu
@NO_CUDA
def test_a_step_copies_four_arrays_to_the_host_and_a_fifth_at_an_end() -> None:
    with make_vector(TensorVectorEnv(Mass("cuda"))) as vector, HostCopies() as copies:
        vector.reset(0)
        assert copies.count == 1
        for _ in range(30):
            before = copies.count
            final = vector.step(np.full((8, 1), 0.5, np.float32))[5]
            assert copies.count - before == (4 if final is None else 5)


def train(algorithm: str, env: Any, root: Path, **settings: Any) -> assay.Run:
    own: dict[str, Any] = {
        "ppo": {"env_steps": 2048, "horizon": 32, "minibatch_size": 64, "epochs": 2, "lr": 3e-3},
        "sac": {"env_steps": 1024, "learning_starts": 128, "batch_size": 32, "lr": 3e-3},
    }[algorithm]
    return assay.train(
        algorithm, TensorVectorEnv(env), root=root, hidden=(16,), sinks=[], preset=False,
        device=env.device, checkpoint_every=256, **(own | settings),
    )  # fmt: skip


def same_weights(one: assay.Run, two: assay.Run) -> bool:
    states = [assay.load(run.path).algorithm.state()["weights"] for run in (one, two)]
    leaves = [tree_leaves(state) for state in states]
    return all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_masses_are_brought_to_the_middle(algorithm: str, device: str, tmp_path: Path) -> None:
    run = train(algorithm, Mass(device), tmp_path)
    agent = assay.load(run.path)
    scores = [
        assay.evaluate(agent.policy, TensorVectorEnv(Mass(where)), episodes=16, seed=1)
        for where in (device, "cpu")
    ]
    assert scores[0].returns.tolist() == scores[1].returns.tolist()
    # Doing nothing keeps a mass where it is: 12 x (1 - 1/2) on average.
    assert scores[0].mean > 9
    with pytest.raises(ConfigError, match="given as an object that cannot be copied"):
        run.evaluate()


@pytest.mark.gpu
@NO_CUDA
@pytest.mark.parametrize(("algorithm", "more"), [("ppo", {"epochs": 6}), ("sac", {"updates": 4})])
def test_updates_copy_nothing_to_the_host(
    algorithm: str, more: dict[str, Any], tmp_path: Path
) -> None:
    class Endless(Mass):
        """One whose episodes are all as long, however it is played."""

        end = 1e9

    counts = []
    for name, settings in (("few", {}), ("many", more)):
        with HostCopies() as copies:
            train(
                algorithm,
                Endless("cuda"),
                tmp_path / name,
                env_steps=512,
                compile=False,
                **settings,
            )
        counts.append(copies.count)
    # The environment's answers, what the policy chooses, values of rollouts, metrics, a checkpoint.
    assert counts[0] == counts[1] > 4 * 512 // 8


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Mass, SavedMass])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_resumed_run_is_the_undisturbed_one(
    algorithm: str, kind: type[Mass], device: str, tmp_path: Path
) -> None:
    def stop(event: Any) -> Any:
        saved = isinstance(event, CheckpointSaved) and event.clock.env_steps >= 256
        return assay.STOP if saved else None

    whole = train(algorithm, kind(device), tmp_path / "whole", env_steps=512)
    half = train(algorithm, kind(device), tmp_path / "half", env_steps=512, callbacks=[stop])
    assert half.status == "interrupted" and not same_weights(half, whole)
    with pytest.raises(RunError, match="given the environment 'TensorVectorEnv' as an object"):
        assay.resume(half.path)
    assay.resume(half.path, env=TensorVectorEnv(kind(device)))
    assert same_weights(half, whole)


def test_only_what_can_be_saved_is_saved() -> None:
    for kind, saves in ((Mass, False), (SavedMass, True)):
        with make_vector(TensorVectorEnv(kind("cpu"))) as vector:
            vector.reset(0)
            assert (vector.get_state() is not None) == saves


def test_arrays_of_jax_answer_what_torch_does(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    class OfJax(Mass):
        library = jax.numpy

        def put(self, tensor: torch.Tensor) -> Any:
            return jax.numpy.asarray(tensor.numpy())  # on a GPU, where JAX has one

    env = OfJax()
    assert_same(played(env), played(Mass()))
    assert isinstance(env.received, jax.Array) and env.received.devices() == env.x.devices()
    run = train("ppo", env, tmp_path)
    assert run.status == "done"
    mean = assay.evaluate(run.agent().policy, TensorVectorEnv(Mass()), episodes=16, seed=1).mean
    assert mean > 9


def test_an_environment_may_write_into_the_actions_it_gets() -> None:
    class Clamps(Line):
        def step(self, actions: Any) -> Any:
            return super().step(actions.zero_())

    with make_vector(TensorVectorEnv(Clamps())) as vector:
        vector.reset(0)
        actions = np.array([1, 0, 1])
        vector.step(actions)
        assert actions.tolist() == [1, 0, 1]

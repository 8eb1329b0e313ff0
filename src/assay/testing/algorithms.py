"""The contract tests that every algorithm must pass.

Subclass `AlgorithmContract` in a test module and say which algorithm it is, with settings that make
it small:

    class TestContract(AlgorithmContract):
        algorithm = "sac"
        settings = {"hidden": (16,), "batch_size": 8, "learning_starts": 8}

What it handles is read from its registration: every action space that it declares is tried, with
observations of every kind, and every other one with action masks where actions are discrete.
"""

from __future__ import annotations

import importlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import assay
from assay.algorithms.base import Algorithm
from assay.buffers.rollout import Rollout
from assay.core import registry, seeding
from assay.core.config import UnusedSettingError
from assay.core.errors import SpaceError
from assay.core.types import Batch, Clock, Metrics, Spaces, State, tree_leaves, tree_map
from assay.envs.make import EnvLike, make_vector
from assay.evaluation.evaluate import evaluate
from assay.loops.collect import Collector
from assay.loops.config import resolve
from assay.loops.events import Event, Logged
from assay.loops.table import make_loop
from assay.loops.training import build_algorithm
from assay.optim import compile_cache
from assay.optim.compiled_step import CompiledStep
from assay.optim.mode import has_compiler
from assay.optim.update import Objective, Step
from assay.runs import checkpoint
from assay.runs.checkpoint import Section
from assay.runs.directory import RunDirectory
from assay.runs.metrics import read_records
from assay.testing.envs import Identity, Observe

# By the name under which an algorithm declares them.
ACTION_SPACES: dict[str, dict[str, gym.Space[Any]]] = {
    "Discrete": {
        "discrete": spaces.Discrete(4),
        "discrete_from_2": spaces.Discrete(3, start=2),
    },
    "MultiDiscrete": {
        "multi_discrete": spaces.MultiDiscrete([3, 2]),
        "multi_discrete_table": spaces.MultiDiscrete(
            np.array([[2, 3], [3, 2]]), start=np.array([[1, 1], [0, -1]])
        ),
    },
    "MultiBinary": {
        "multi_binary": spaces.MultiBinary(3),
        "multi_binary_table": spaces.MultiBinary([2, 2]),
    },
    "Box": {
        "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32)),
        "box_table": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        "box_float64": spaces.Box(0.0, 3.0, (1,), np.float64),
    },
}


def make_algorithm(
    name: str,
    observation: gym.Space[Any],
    action: gym.Space[Any],
    *,
    seed: int = 1,
    num_envs: int = 1,
    env_steps: int = 1000,
    device: str = "cpu",
    **settings: Any,
) -> Any:
    """Return an algorithm by itself, for tests that give it data by hand.

    Args:
        name: Registry name.
        observation: Its canonical observation space.
        action: Its action space.
        seed: The run's seed.
        num_envs: The number of environments that it is built for.
        env_steps: The budget, which schedules refer to; of an offline algorithm, in updates.
        device: Where it computes: eagerly on a CPU, by CUDA graphs on a GPU.
        **settings: Hyperparameters.
    """
    run: dict[str, Any] = {"seed": seed, "device": device, "compile": device != "cpu"}
    run |= plain_budget(name, env_steps, num_envs)
    config = resolve(name, "none", run, settings, use_preset=False)
    return build_algorithm(config, Spaces(observation, action), config.run.clock())


def plain_budget(name: str, total: int, num_envs: int = 1) -> dict[str, Any]:
    """Return the budget of an algorithm that is built by itself, in the unit of its loop."""
    unit = "updates" if registry.get(name).spec.loop in ("offline", "game") else "env_steps"
    envs = {"num_envs": num_envs} if unit == "env_steps" else {}
    return {unit: total, **envs, **required_settings(name)}


def required_settings(name: str) -> dict[str, Any]:
    """Return the run settings that an algorithm cannot do without, which nobody will read."""
    spec = registry.get(name).spec
    if spec.loop == "offline":
        return {"data": __file__}  # a file that exists
    return {} if spec.expert is None else {"expert": "random"}


class Rig:
    """An algorithm with its loop and environments, and nothing on the disk.

    Args:
        algorithm: Registry name.
        env: What `make_vector` takes, or a `Vector` that was made already.
        seed: The run's seed.
        num_envs: Environments stepped in parallel.
        env_steps: The budget, which schedules refer to.
        compile: Whether optimizer steps are compiled.
        **settings: Hyperparameters.

    Attributes:
        algorithm: The algorithm under test.
        clock: Its counts.
        collector: Steps the environments.
        loop: Calls `update`.
    """

    def __init__(
        self,
        algorithm: str,
        env: EnvLike | Any,
        *,
        seed: int = 1,
        num_envs: int = 2,
        env_steps: int = 10_000,
        compile: Literal["auto"] | bool = False,
        **settings: Any,
    ) -> None:
        run = {"seed": seed, "num_envs": num_envs, "env_steps": env_steps, "compile": compile}
        run |= required_settings(algorithm)
        config = resolve(algorithm, "rig", {**run, "device": "cpu"}, settings, use_preset=False)
        torch.set_num_threads(1)  # as training does for small networks
        self.clock = Clock(env_steps)
        self.source = env
        made: Any = env if hasattr(env, "spaces") else make_vector(env, num_envs)
        self.env = made
        self.algorithm: Algorithm = build_algorithm(config, self.env.spaces, self.clock)
        loop: Any = make_loop(self.algorithm, self.env, config.run, self.expert(env))
        self.loop = loop
        self.collector: Collector = self.loop.collector
        self.loop.start()

    def expert(self, env: Any) -> Any:
        """Return whom to imitate in an environment; here nobody."""
        return None

    @property
    def obs(self) -> Any:
        """Return the current observations."""
        return self.collector.obs

    def learn(self, updates: int) -> Metrics:
        """Iterate for this many more updates, and return their mean metrics."""
        goal = self.clock.updates + updates
        while self.clock.updates < goal:
            self.loop.iterate()
        return self.algorithm.drain_metrics()

    def train(self, env_steps: int | None = None) -> Rig:
        """Iterate to `env_steps` (by default the whole budget), and return the rig."""
        goal = self.clock.total if env_steps is None else env_steps
        while self.clock.env_steps < goal:
            self.loop.iterate()
        return self

    def score(self, episodes: int = 20, seed: int = 0) -> float:
        """Return the mean return of the deterministic policy."""
        return evaluate(self.algorithm, self.source, episodes=episodes, seed=seed).mean

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of every array of every network by name."""
        sections = self.algorithm.state()["weights"]
        return {f"{m}.{k}": v.copy() for m, part in sections.items() for k, v in part.items()}

    def parameters(self) -> set[str]:
        """Return which of the `weights` are learned: parameters, not buffers."""
        modules = self.algorithm.modules
        return {f"{m}.{name}" for m, part in modules.items() for name, _ in part.named_parameters()}


class CannedReplay:
    """A replay that returns the same batch every time, and records the priorities it gets.

    Args:
        batch: What `sample` returns.

    Attributes:
        calls: The arguments of every `sample`.
        priorities: The (index, priority) of every `update`, as lists.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.calls: list[tuple[int, float]] = []
        self.priorities: list[tuple[list[int], list[float]]] = []

    def __len__(self) -> int:
        return len(self.batch.reward)

    def sample(self, batch_size: int, beta: float = 1.0) -> Any:
        """Return the batch."""
        self.calls.append((batch_size, beta))
        return self.batch

    def update(self, index: Any, *, priority: Any) -> None:
        """Take note."""
        self.priorities.append((index.tolist(), priority.tolist()))


def make_batch(**columns: Any) -> Batch:
    """Return a replay batch of tensors from lists; whole numbers become int64, the rest float32.

    What is left out is 0 (`terminated`, `truncated`) or None. Columns that a `Batch` does not name
    are its extras. An observation may be a dict of lists.
    """

    def tensor(values: Any) -> torch.Tensor:
        array = np.asarray(values)
        return torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "ib" else np.float32))

    nothing = torch.zeros(len(columns["reward"]))
    named = {k: tree_map(tensor, v) for k, v in columns.items()}
    floats = ("reward", "terminated", "truncated", "discount")
    named |= {k: named.get(k, nothing).to(torch.float32) for k in floats}
    fields = {k: named.pop(k) for k in ("obs", "action", "next_obs", *floats)}
    fields |= {k: named.pop(k, None) for k in ("weight", "index")}
    return Batch(**fields, extras=named)


@dataclass(frozen=True, slots=True)
class Case:
    """An environment that the contract tries."""

    name: str
    action: gym.Space[Any]
    observe: Observe = "vector"
    masked: bool = False

    def factory(self, **options: Any) -> Callable[[], Identity]:
        """Return a factory of the environment."""
        return partial(Identity, self.action, self.observe, masked=self.masked, **options)


def session_cache(factory: pytest.TempPathFactory) -> Path:
    """Return a cache of compiled steps that all processes of a test session share.

    In it, the first step proves for all that torch can load one.
    """
    place = factory.getbasetemp()
    # Each process of pytest-xdist has a directory of its own, in one of the session.
    return (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "compiled"


@contextmanager
def quick_compiler() -> Iterator[None]:
    """Make compilation fast, at the cost of slower steps.

    The code between the kernels takes the compiler longest, and tests do not need it to be fast.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    name = "compile_wrapper_opt_level"  # which some versions of torch do not have
    known = hasattr(config.aot_inductor, name)
    with (
        config.patch({f"aot_inductor.{name}": "O0"}) if known else nullcontext(),
        _plain_tracing(),
    ):
        yield


@contextmanager
def traced_steps() -> Iterator[None]:
    """Run the graphs of traced steps themselves, instead of having torch compile them.

    A graph holds all that a step does, and takes seconds to trace where compiling takes minutes.
    Steps that are made in here belong into a cache of their own.
    """
    graphs: dict[Path, Any] = {}

    def build(graph: Any, example: object, path: Path, scratch: object) -> None:
        graphs[path] = torch.no_grad()(graph)
        path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_cache, "_build", build)
        patch.setattr(compile_cache, "load", lambda path: lambda given: graphs[path](*given))
        with _plain_tracing():
            yield


@contextmanager
def _plain_tracing() -> Iterator[None]:
    """Note every tensor of a trace itself, where torch makes a fake one in half of the time.

    Fake ones are of use to compilers only, and these trace the trace again, with fake tensors.
    """
    module: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
    note = module.extract_val

    def note_fake(value: Any, *given: Any, **options: Any) -> Any:
        return value if type(value) is torch.Tensor else note(value, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "extract_val", note_fake)
        yield


def require_compiled(*steps: Step) -> None:
    """Fail a test whose steps run eagerly, or skip it where no step could run otherwise.

    Some builds of torch crash when they load what they compiled; a minimal step shows it.
    """
    if all(step.mode == "compiled" for step in steps):
        return
    net = nn.Linear(1, 1)
    objective = Objective("probe", net, lambda batch: (net(batch["x"]).square().mean(), {}))
    probe = CompiledStep([objective], mode="compiled", key="probe")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probe({"x": torch.ones(2, 1)}, 0.1)
    if any("cannot load" in str(one.message) for one in caught):
        pytest.skip("this torch cannot load what it compiles")
    pytest.fail("the step was not compiled")


class AlgorithmContract:
    """Checks of an algorithm: spaces, updates, saving, determinism, resume, compilation, export.

    Attributes:
        algorithm: Registry name.
        settings: Hyperparameters that make it small and quick.
        updates: How many updates it takes until every network has changed.
        span: How long a run is that is killed and resumed, in the unit of its loop.
        lowered: Whether the compiled case is compiled to machine code. Otherwise its traced graph
            runs, unless the environment says `ASSAY_LOWER=yes`.
        recorded: Whether its updates can be recorded; see `assay.optim.recorded`.
        compiled_settings: Further hyperparameters of the one compiled case.
        compiled_atol: How far its numbers may be from the eager ones.
    """

    algorithm: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    updates: ClassVar[int] = 4
    span: ClassVar[int] = 64
    lowered: ClassVar[bool] = False
    recorded: ClassVar[bool] = True
    compiled_settings: ClassVar[Mapping[str, Any]] = {}
    compiled_atol: ClassVar[float] = 1e-5
    make_rig: ClassVar[type[Rig]] = Rig

    def cases(self) -> Iterator[Case]:
        """Yield the environments to try."""
        declared = registry.get(self.algorithm).spec.actions
        for kind in declared:
            for i, (name, space) in enumerate(ACTION_SPACES[kind].items()):
                # The harder one of two has the masks: what goes wrong goes wrong with them too.
                masked = kind != "Box" and i % 2 == 1
                yield Case(f"{name}_masked" if masked else name, space, masked=masked)
        first = next(iter(ACTION_SPACES[declared[0]].values()))
        for observe in ("discrete", "image", "dict"):
            yield Case(f"sees_{observe}", first, observe)
        for kind in declared:
            if kind != "Box":
                some = next(iter(ACTION_SPACES[kind].values()))
                yield Case("sees_dict_masked", some, "dict", masked=True)
                break

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give every test that asks for a case one call per case."""
        if "case" in metafunc.fixturenames:
            cases = list(self.cases())
            metafunc.parametrize("case", cases, ids=[case.name for case in cases])

    @property
    def hyperparameters(self) -> set[str]:
        """Return the names of the algorithm's hyperparameters."""
        return set(registry.get(self.algorithm).Hyperparameters.model_fields)

    def rig(self, case: Case, **options: Any) -> Rig:
        """Return the algorithm on the environments of a case."""
        env = options.pop("env", None) or case.factory()
        settings = dict(self.settings)
        while True:
            try:
                return self.make_rig(self.algorithm, env, **{"num_envs": 2, **settings, **options})
            except (
                UnusedSettingError
            ) as error:  # without use in this case, such as layers where images are
                if error.setting not in settings:
                    raise
                del settings[error.setting]

    def budget(self, factory: Callable[[], Any], directory: Path, total: int) -> dict[str, Any]:
        """Return the run settings that say how long to train, and on what."""
        return {"env_steps": total, "num_envs": 2}

    def first_case(self) -> Case:
        """Return the case of the first declared action space."""
        return next(iter(self.cases()))

    def normalised(self, case: Case) -> dict[str, Any]:
        """Return settings that switch all normalisation on, as far as there is any."""
        names = ["normalize_reward"]
        if case.observe not in ("discrete", "image"):  # those have no float vector
            names.append("normalize_obs")
        return {name: True for name in names if name in self.hyperparameters}

    # ------------------------------------------------------------------ acting

    def test_acts_within_the_space(self, case: Case) -> None:
        """Actions have the space's shape and type, and none is out of bounds or masked."""
        rig = self.rig(case, num_envs=3)
        space = rig.env.spaces.action
        for explore in (True, False):
            for _ in range(10):
                obs, carry = rig.obs, rig.collector.carry
                choice = rig.algorithm.act(obs, carry, explore)
                assert isinstance(choice.action, np.ndarray)
                assert choice.action.shape == (3, *space.shape)
                assert choice.action.dtype == np.dtype(space.dtype)
                assert all(space.contains(action) for action in choice.action)
                for value in tree_leaves(choice.extras):
                    assert len(value) == 3 and np.isfinite(value).all()
                # An `Identity` environment refuses what its mask forbids.
                rig.collector.obs = rig.env.step(choice.action)[0]

    def test_deterministic_action_uses_no_randomness(self, case: Case) -> None:
        """Without exploration an action is a function of the observation; no generator is used."""
        rig = self.rig(case)
        rig.learn(1)
        algorithm, obs, carry = rig.algorithm, rig.obs, rig.collector.carry
        before = (seeding.rng_state(algorithm.rng), torch.get_rng_state().tolist())
        first = np.copy(algorithm.act(obs, carry, False).action)
        for _ in range(5):
            np.testing.assert_array_equal(algorithm.act(obs, carry, False).action, first)
        assert (seeding.rng_state(algorithm.rng), torch.get_rng_state().tolist()) == before

    def test_keeps_no_view_of_what_it_returned(self) -> None:
        """An action that was returned is not written again by the next one."""
        rig = self.rig(self.first_case(), num_envs=4)
        for explore in (True, False):
            first = rig.algorithm.act(rig.obs, rig.collector.carry, explore)
            kept = [first.action.copy(), *map(np.copy, tree_leaves(first.extras))]
            rig.collector.obs = rig.env.step(first.action)[0]
            rig.algorithm.act(rig.obs, rig.collector.carry, explore)
            for now, then in zip([first.action, *tree_leaves(first.extras)], kept, strict=True):
                np.testing.assert_array_equal(now, then)

    # ------------------------------------------------------------------ learning

    def test_update_changes_every_network(self, case: Case) -> None:
        """After a few updates all metrics and weights are finite, and every network has changed."""
        rig = self.rig(case)
        before = rig.weights()
        metrics = rig.learn(self.updates)
        assert metrics and all(np.isfinite(value) for value in metrics.values()), metrics
        assert all(name.startswith("train/") for name in metrics)
        after = rig.weights()
        assert all(np.isfinite(array).all() for array in after.values())
        # Buffers (noise, running statistics) move by themselves: only parameters show learning.
        learned = rig.parameters()
        networks = {name.split(".")[0] for name in learned}
        still = networks - {n.split(".")[0] for n in learned if (before[n] != after[n]).any()}
        assert not still, f"{sorted(still)} did not move in {rig.clock.updates} updates"

    def test_refuses_other_action_spaces(self) -> None:
        """A space that is not declared is refused by name, with what is supported."""
        declared = registry.get(self.algorithm).spec.actions
        others = {k: next(iter(v.values())) for k, v in ACTION_SPACES.items() if k not in declared}
        others["Tuple"] = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
        observation = spaces.Box(-1.0, 1.0, (2,), np.float32)
        budget = plain_budget(self.algorithm, 100)
        config = resolve(self.algorithm, "none", budget, self.settings, use_preset=False)
        for kind, action in others.items():
            with pytest.raises(SpaceError, match=kind) as caught:
                build_algorithm(config, Spaces(observation, action), Clock(100))
            assert registry.get(self.algorithm).spec.name in caught.value.message
            assert all(name in caught.value.message for name in declared)

    # ------------------------------------------------------------------ saving

    def test_state_round_trip(self, case: Case, tmp_path: Path) -> None:
        """An algorithm loaded from a checkpoint acts and learns exactly like the saved one."""
        options = {"num_envs": 3, **self.normalised(case)}
        one = self.rig(case, **options)
        one.learn(self.updates)
        one.loop.iterate()  # leaves metrics that are not drained
        sections = {k: Section(*part) for k, part in one.algorithm.sections().items()}
        sections |= one.loop.sections()
        place = checkpoint.write_checkpoint(tmp_path, 1, sections)

        two = self.rig(case, seed=99, **options)
        two.learn(1)  # its own state must be replaced
        saved = checkpoint.read_checkpoint(place)
        two.algorithm.load_state(saved)
        two.collector.seed = one.collector.seed
        for name in ("env_steps", "updates", "episodes"):
            setattr(two.clock, name, getattr(one.clock, name))
        two.loop.load_sections(saved)

        for _ in range(3):
            pair = [rig.algorithm.act(rig.obs, rig.collector.carry, True) for rig in (one, two)]
            assert_same(pair[0].action, pair[1].action, "action")
            assert_same(pair[0].extras, pair[1].extras, "extras")
        metrics = [rig.learn((self.updates + 1) // 2) for rig in (one, two)]
        assert metrics[0] == metrics[1]
        assert_same(one.algorithm.state(), two.algorithm.state())

    # ------------------------------------------------------------------ determinism

    def test_one_seed_gives_one_result(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same seed gives the same weights, whatever happened before; another one does not.

        Nor does it matter whether updates are recorded.
        """
        monkeypatch.setenv("ASSAY_COMPILE", "false")
        monkeypatch.setattr("assay.optim.recorded.EAGER_UPDATES", 1)
        case = self.first_case()
        results = []
        for seed, noise in ((1, 0), (1, 1), (2, 0)):
            torch.manual_seed(noise)
            np.random.seed(noise)
            mode: Any = "auto" if noise else False
            rig = self.rig(case, seed=seed, compile=mode, **self.normalised(case))
            rig.learn(self.updates)
            results.append(rig.algorithm.state())
            for step in rig.algorithm.steps.values():
                assert (step.recorder is not None) == bool(noise)
                if step.recorder is not None and self.recorded:
                    assert not step.recorder.reason
                    assert step.recorder.recorded == max(0, step.updates - 1)
        assert_same(results[0], results[1])
        same = [
            np.array_equal(results[0]["weights"][name][key], array)
            for name, part in results[2]["weights"].items()
            for key, array in part.items()
        ]
        assert not all(same)

    @pytest.mark.parametrize("saves", [True, False], ids=["env_saves", "env_cannot_save"])
    def test_killed_run_ends_like_the_undisturbed_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool
    ) -> None:
        """A run that dies between two checkpoints and is resumed ends bit for bit the same.

        Where environments can save themselves and there are rollouts, it is stopped in the middle
        of one as well.
        """
        # Nothing here has to survive a power cut, and waiting for the disk is most of the time.
        monkeypatch.setattr("os.fsync", lambda descriptor: None)
        factory = self.first_case().factory(saves=saves)
        options: dict[str, Any] = {
            **self.budget(factory, tmp_path, self.span), "checkpoint_every": self.span * 3 // 10,
            "log_every": self.span // 8, "eval_every": self.span // 2, "eval_episodes": 2,
            "sinks": (), "compile": False, "preset": False, "root": tmp_path,
            **self.settings, **self.normalised(self.first_case()),
        }  # fmt: skip

        def die(event: Event) -> None:
            if isinstance(event, Logged) and event.clock.count >= self.span * 3 // 4:
                raise KeyError("the power is out")

        whole = assay.train(self.algorithm, factory, name="whole", **options)
        with pytest.raises(KeyError, match="power"):
            assay.train(self.algorithm, factory, name="killed", callbacks=[die], **options)
        assert last_checkpoint(tmp_path / "killed")["run"]["updates"], "nothing was learned"
        if saves and registry.get(self.algorithm).spec.loop == "on_policy":
            stop_when_called(monkeypatch, Rollout, "write", 2)
            stopped = assay.resume(tmp_path / "killed", env=factory)
            assert stopped.status == "interrupted"
        killed = assay.resume(tmp_path / "killed", env=factory)
        assert whole.status == killed.status == "done"
        assert_same_run(whole.path, killed.path)

    # ------------------------------------------------------------------ compiled, exported

    @pytest.mark.slow
    def test_compiled_step_does_what_the_eager_one_does(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Weights, optimizer state and metrics agree to rounding, on the same data."""
        lowered = self.lowered or os.environ.get("ASSAY_LOWER") == "yes"
        if not has_compiler():
            pytest.skip("no C++ compiler")
        cache = session_cache(tmp_path_factory) if lowered else tmp_path_factory.mktemp("traced")
        monkeypatch.setenv("ASSAY_CACHE", str(cache))
        case = self.first_case()
        options = {**self.settings, **self.compiled_settings}
        eager, compiled = (
            self.make_rig(self.algorithm, case.factory(), compile=on, **options)
            for on in (False, True)
        )
        with quick_compiler() if lowered else traced_steps():
            metrics = [rig.learn(self.updates) for rig in (eager, compiled)]
        require_compiled(*compiled.algorithm.steps.values())
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-3, abs=1e-5)
        close = partial(np.testing.assert_allclose, rtol=1e-3, atol=self.compiled_atol)
        one, two = (rig.algorithm.state() for rig in (eager, compiled))
        tree_map(close, one["weights"], two["weights"])
        for name, saved in one["optimizer"].items():
            tree_map(close, saved["moments"], two["optimizer"][name]["moments"])

    def test_exported_policy_is_the_agent(self, case: Case) -> None:
        """The module for export gives the deterministic actions, normalisation included."""
        settings = {k: v for k, v in self.normalised(case).items() if k == "normalize_obs"}
        rig = self.rig(case, num_envs=6, **settings)
        rig.learn(self.updates)
        module = rig.algorithm.policy.module()
        carry = rig.algorithm.policy.initial_carry(6)
        for _ in range(5):
            choice = rig.algorithm.act(rig.obs, carry, False)
            expected = choice.action
            inputs = [rig.obs] if carry is None else [rig.obs, carry]
            with torch.no_grad():
                found = module(*(tree_map(torch.from_numpy, tree) for tree in inputs))
            if carry is not None:
                found, after = found
                close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
                tree_map(close, tree_map(lambda x: x.numpy(), after), choice.carry)
            found, carry = found.numpy(), choice.carry
            assert found.shape == expected.shape
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(found, expected)
            rig.collector.obs = rig.env.step(expected)[0]


# ---------------------------------------------------------------------- comparing


def assert_same(one: Any, two: Any, where: str = "state") -> None:
    """Require two states to be equal bit for bit, and name the first place where they are not."""
    if isinstance(one, Mapping):
        assert isinstance(two, Mapping) and one.keys() == two.keys(), f"{where}: {two!r}"
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), where
        for i, pair in enumerate(zip(one, two, strict=True)):
            assert_same(*pair, f"{where}/{i}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype and one.shape == two.shape, where
        different = np.count_nonzero(~((one == two) | ((one != one) & (two != two))))
        assert not different, f"{where}: {different} of {one.size} numbers differ"
    else:
        assert one == two or (one != one and two != two), f"{where}: {one!r} is not {two!r}"


def stop_when_called(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *at: int
) -> list[None]:
    """Send this process a Ctrl-C in these calls of a function; return a list that counts them."""
    original = getattr(owner, name)
    calls: list[None] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) in at:
            signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


def assert_same_run(one: Path, two: Path) -> None:
    """Require two runs to have the same metrics, evaluations and last checkpoint, bit for bit.

    Wall times are left out: metrics under `time/`, and when a line or a file was written.
    """
    assert_same(run_metrics(one), run_metrics(two), "metrics")
    runs = [RunDirectory.open(path) for path in (one, two)]
    evaluations = [
        [{k: v for k, v in part.items() if k != "time"} for part in r.evals()] for r in runs
    ]
    assert_same(evaluations[0], evaluations[1], "evaluations")
    assert_same(last_checkpoint(one), last_checkpoint(two), "checkpoint")


def run_metrics(path: Path) -> list[Any]:
    """Return every line of a run's metrics without what depends on the wall clock."""
    records = read_records(RunDirectory.open(path).metrics_path)
    return [
        (r.env_steps, r.updates, r.episodes,
         {k: v for k, v in r.metrics.items() if not k.startswith("time/")})
        for r in records
    ]  # fmt: skip


def last_checkpoint(path: Path) -> dict[str, State]:
    """Return all sections of a run's last checkpoint, less the length of its metrics in bytes."""
    place = checkpoint.latest(RunDirectory.open(path).checkpoints_path)
    assert place is not None, f"'{path}' has no checkpoint"
    sections = checkpoint.read_checkpoint(place)
    sections["run"] = {k: v for k, v in sections["run"].items() if k != "sinks"}
    return sections

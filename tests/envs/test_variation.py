"""Randomised parameters and curricula: by hand, the same for every backend, and resumed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from test_env_parameters import Counter

import assay
from assay.core.errors import AssayError, ConfigError
from assay.envs.make import make_vector
from assay.envs.parameters import parameters
from assay.envs.start_check import check_ends
from assay.envs.variation.base import Sampler
from assay.envs.variation.ranges import Range, Ranges, read_ranges
from assay.envs.variation.sampling import Generated, LearningProgress, Reverse
from assay.envs.variation.settings import varied
from assay.envs.variation.widening import Adr
from assay.loops import events
from assay.testing.algorithms import assert_same_run

NONE = np.array([np.nan])


class Target(gym.Env[Any, Any]):
    """Succeeds at once where `difficulty` is below `skill`; it cannot be saved."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.difficulty = 0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array([self.difficulty], np.float32), {}

    def step(self, action: Any) -> Any:
        good = self.difficulty < 0.7
        return np.zeros(1, np.float32), float(good), True, False, {"is_success": good}


def ranges(**given: Any) -> Ranges:
    return Ranges(read_ranges(given), dict.fromkeys(given, 0.5))


def test_places_of_the_unit_interval_are_values() -> None:
    known = read_ranges({
        "a": [2, 4], "b": {"log_uniform": [0.1, 10]}, "c": {"gaussian": [1.0, 2.0]},
        "d": {"integer": [3, 5]}, "e": {"choice": [7, 9]},
        "f": {"gaussian": [0, 1], "within": [-0.5, 0.5]},
    })  # fmt: skip
    places = np.array([0.0, 0.5, 1.0])
    assert known["a"].values(places).tolist() == [2, 3, 4]
    np.testing.assert_allclose(known["b"].values(places), [0.1, 1.0, 10.0])
    # one standard deviation below and above
    np.testing.assert_allclose(known["c"].values(np.array([0.158655, 0.5, 0.841345])), [-1, 1, 3],
                               atol=1e-4)  # fmt: skip
    assert known["d"].values(places).tolist() == [3, 4, 5]
    assert known["e"].values(np.array([0.0, 0.49, 0.5, 1.0])).tolist() == [7, 7, 9, 9]
    assert known["f"].values(places).tolist() == [-0.5, 0.0, 0.5]
    for name, value in (("a", 2.5), ("b", 0.3), ("c", -1.5), ("d", 4.0), ("e", 9.0)):
        place = known[name].unit(value)
        assert known[name].values(np.array([place]))[0] == pytest.approx(value)


def test_ranges_grow_with_the_run() -> None:
    sampler = Sampler(ranges(x={"uniform": [0, 1], "grow": "linear:0:1:0.5"}))
    rng = np.random.default_rng(0)
    for progress, width in ((0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (1.0, 1.0)):
        sampler.progress = lambda progress=progress: progress
        units = sampler.draw(rng, 2000)[0]
        assert np.ptp(units) == pytest.approx(width, abs=0.01)
        assert units.mean() == pytest.approx(0.5, abs=0.02)


class TestAdr:
    """Algorithm 1 of arXiv:1910.07113."""

    def sampler(self) -> Any:
        return Adr(low=1.0, high=2.0, buffer=2, step=0.2).sampler(ranges(x=[0, 1], y=[0, 1]))

    def told(self, sampler: Any, end: int, *returns: float) -> None:
        for value in returns:
            sampler.ended(np.zeros((1, 2)), np.array([end]), np.array([value]), NONE)

    def test_ends_move_by_what_their_episodes_bring(self) -> None:
        sampler = self.sampler()
        assert sampler.ends.tolist() == [0.5] * 4
        self.told(sampler, 1, 2.0)
        assert sampler.ends[1] == 0.5  # one episode is not enough
        self.told(sampler, 1, 2.0)
        np.testing.assert_allclose(sampler.ends, [0.5, 0.7, 0.5, 0.5])
        self.told(sampler, 2, 3.0, 3.0)  # a lower end goes down
        np.testing.assert_allclose(sampler.ends, [0.5, 0.7, 0.3, 0.5])
        self.told(sampler, 1, 1.0, 2.0)  # between the thresholds: it stays
        self.told(sampler, -1, 9.0, 9.0)  # episodes elsewhere say nothing
        np.testing.assert_allclose(sampler.ends, [0.5, 0.7, 0.3, 0.5])
        self.told(sampler, 1, 0.0, 1.0)
        np.testing.assert_allclose(sampler.ends, [0.5, 0.5, 0.3, 0.5])
        self.told(sampler, 1, 0.0, 1.0)  # never beyond the usual value
        assert sampler.ends[1] == pytest.approx(0.5)
        for _ in range(4):
            self.told(sampler, 3, 5.0, 5.0)  # nor beyond the range
        assert sampler.ends[3] == 1.0

    def test_entropy_is_of_the_shares(self) -> None:
        sampler = self.sampler()
        sampler.ends[:] = [0.25, 0.75, 0.0, 1.0]
        found = sampler.metrics()
        assert found["curriculum/entropy"] == pytest.approx(np.log(0.5) / 2)
        assert (found["curriculum/x_low"], found["curriculum/x_high"]) == (0.25, 0.75)

    def test_draws_are_inside_and_some_at_an_end(self) -> None:
        sampler = self.sampler()
        sampler.ends[:] = [0.4, 0.6, 0.1, 0.9]
        units, tags = sampler.draw(np.random.default_rng(0), 4000)
        assert (units >= [0.4, 0.1]).all() and (units <= [0.6, 0.9]).all()
        assert (tags >= 0).mean() == pytest.approx(0.5, abs=0.03)
        for end, at in enumerate((0.4, 0.6, 0.1, 0.9)):
            rows = units[tags == end]
            assert len(rows) > 400 and (rows[:, end // 2] == at).all()
            assert np.ptp(rows[:, 1 - end // 2]) > 0.15  # the other one is drawn


def test_learning_progress_draws_what_changes() -> None:
    plan = LearningProgress(cells=4, uniform=0.2, rate=0.5, slow_rate=0.1)
    sampler: Any = plan.sampler(ranges(x=[0, 1]))
    np.testing.assert_allclose(sampler.weights(), [0.25] * 4)  # nothing is known
    for value in (0.0, 1.0):
        returns = np.array([5.0, value, 3.0, 0.0])
        sampler.ended(np.zeros((4, 1)), np.arange(4), returns, NONE)
    # fast 0.5, slow 0.1 in cell 1; the others did not change
    np.testing.assert_allclose(np.abs(sampler.means[0] - sampler.means[1]), [0, 0.4, 0, 0])
    np.testing.assert_allclose(sampler.weights(), [0.05, 0.85, 0.05, 0.05])
    units, tags = sampler.draw(np.random.default_rng(0), 1000)
    assert ((units[:, 0] * 4).astype(int) == tags).all()
    assert (tags == 1).mean() == pytest.approx(0.85, abs=0.04)


@pytest.mark.parametrize("reverse", [False, True])
def test_tasks_gather_where_they_can_just_be_solved(reverse: bool) -> None:
    """Tasks up to 0.6 are solved, those up to 0.8 half of the time, others never."""
    settings: dict[str, Any] = {"low": 0.2, "high": 0.8, "tries": 4, "noise": 0.05}
    plan = Reverse(**settings, begin={"x": 0.05}) if reverse else Generated(**settings)
    sampler: Any = plan.sampler(ranges(x=[0, 1]))
    sampler.begin(3)
    rng = np.random.default_rng(0)
    first = sampler.units.copy()
    assert (first.max() < 0.3) == reverse
    for _ in range(3000):
        units, tags = sampler.draw(rng, 4)
        chance = np.select([units[:, 0] < 0.6, units[:, 0] < 0.8], [1.0, 0.5], 0.0)
        sampler.ended(units, tags, (rng.random(4) < chance).astype(float), NONE)
    near = ((sampler.units > 0.5) & (sampler.units < 0.9)).mean()
    assert near > 0.5, sampler.units
    assert sampler.units.max() > 0.6
    again: Any = plan.sampler(ranges(x=[0, 1]))
    again.load_state(sampler.state())
    for one in (sampler, again):
        one.begin(9)
        one.ended(units, tags, np.ones(4), NONE)
    assert np.array_equal(sampler.units, again.units)


def test_success_counts_if_asked_for() -> None:
    plan = {"adr": {"low": 0.2, "high": 0.9, "measure": "success", "buffer": 3}}
    with make_vector(Target, 2, randomize={"difficulty": [0, 1]}, curriculum=plan) as envs:
        envs.reset(0)
        for _ in range(200):
            envs.step(np.zeros(2, np.int64))
        low, high = envs.curriculum.ends
        assert low == 0.0 and 0.65 <= high <= 0.8  # up to where it succeeds
    with make_vector(Counter, 1, randomize={"level": [0, 1]}, curriculum=plan) as envs:
        envs.reset(0)
        with pytest.raises(AssayError, match="goes by success, which the environment does not"):
            for _ in range(40):
                envs.step(np.zeros(1, np.int64))


VARIED: dict[str, Any] = {"gravity": [5, 15], "masspole": {"log_uniform": [0.05, 0.5]}}


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_native_and_other_copies_get_the_same_parameters(backend: Any) -> None:
    plan = {"adr": {"low": 5, "high": 15, "buffer": 2}}
    settings: dict[str, Any] = {"randomize": VARIED, "curriculum": plan}
    actions = np.random.default_rng(0).integers(2, size=(150, 3))
    with (
        make_vector("CartPole-v1", 3, **settings) as native,
        make_vector("CartPole-v1", 3, backend=backend, workers=2, **settings) as other,
    ):
        assert np.array_equal(native.reset(3), other.reset(3))
        for row in actions:
            for a, b in zip(native.step(row)[:4], other.step(row)[:4], strict=True):
                assert np.array_equal(a, b)
        assert np.ptp(native.curriculum.ends) > 0
        assert len(set(parameters(native)["gravity"])) == 3


def test_vectors_that_reset_in_the_next_step_get_them_in_time() -> None:
    """The value of an episode is what its first observation shows."""

    class Late(gym.vector.VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
        num_envs = 2
        single_observation_space = spaces.Box(-9, 9, (1,), np.float32)
        single_action_space = spaces.Discrete(2)
        observation_space = spaces.Box(-9, 9, (2, 1), np.float32)
        action_space = spaces.MultiDiscrete([2, 2])

        def __init__(self) -> None:
            self.now, self.planned = np.zeros(2), np.zeros(2)
            self.done = np.zeros(2, bool)

        def parameters(self) -> Any:
            return {"x": self.now.copy()}

        def set_parameters(self, values: Any, later: bool = False) -> None:
            self.planned = values["x"].copy()
            if not later:
                self.now = values["x"].copy()

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.now, self.done = self.planned.copy(), np.zeros(2, bool)
            return self.now[:, None].astype(np.float32), {}

        def step(self, actions: Any) -> Any:
            self.now = np.where(self.done, self.planned, self.now)
            self.done = ~self.done & (actions == 1)
            return self.now[:, None].astype(np.float32), self.now, self.done, np.zeros(2, bool), {}

    made = make_vector(Late())
    envs = varied(made, {"x": [0, 1]}, None)
    layer: Any = envs.backend
    seen: list[float] = [float(envs.reset(0)[0, 0])]
    for action in (0, 1, 0, 1, 0, 0, 1, 0):
        obs = envs.step(np.array([action, 0]))[0]
        assert obs[0, 0] == pytest.approx(layer._units[0, 0], rel=1e-6)
        seen.append(float(obs[0, 0]))
    assert len(set(seen)) == 4  # the first, and one for every end


def _settings(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "env_steps": 256, "num_envs": 2, "horizon": 16, "minibatch_size": 16, "hidden": (8,),
        "eval_episodes": 2, "checkpoint_every": 64, "sinks": (), "compile": False, "root": root,
        **more,
    }  # fmt: skip


CURRICULA: dict[str, Any] = {
    "none": None,
    "adr": {"adr": {"low": 5, "high": 15, "buffer": 2}},
    "learning_progress": "learning_progress",
    "generated": {"generated": {"low": 10, "high": 30, "tries": 1, "tasks": 4}},
}


@pytest.mark.parametrize("name", sorted(CURRICULA))
def test_a_run_is_resumed_exactly(tmp_path: Path, name: str) -> None:
    def stop(event: events.Event) -> Any:
        return assay.STOP if event.clock.env_steps >= 96 else None

    grown = {"length": {"uniform": [0.3, 0.8], "grow": "linear:0:1"}} if name == "none" else {}
    settings = _settings(tmp_path, randomize=VARIED | grown, curriculum=CURRICULA[name])
    whole = assay.train("ppo", "CartPole-v1", name="whole", **settings)
    parts = assay.train("ppo", "CartPole-v1", name="parts", callbacks=[stop], **settings)
    assert parts.status == "interrupted"
    assert_same_run(whole.path, assay.resume(parts.path).path)
    if name != "none":
        assert any(key.startswith("curriculum/") for key in whole.metrics())


def test_a_run_in_environments_that_cannot_be_saved_is_resumed_exactly(tmp_path: Path) -> None:
    def stop(event: events.Event) -> Any:
        saved = isinstance(event, events.CheckpointSaved) and event.clock.env_steps >= 128
        return assay.STOP if saved else None

    plan = {"adr": {"low": 0.2, "high": 0.9, "buffer": 3}}
    settings = _settings(tmp_path, randomize={"difficulty": [0, 1]}, curriculum=plan)
    whole = assay.train("ppo", Target, name="whole", **settings)
    parts = assay.train("ppo", Target, name="parts", callbacks=[stop], **settings)
    assert parts.status == "interrupted"
    assert_same_run(whole.path, assay.resume(parts.path, env=Target).path)
    assert whole.metrics()["curriculum/entropy"][1][-1] > np.log(0.3)


def test_evaluations_are_in_the_environment_as_it_is(tmp_path: Path) -> None:
    heavy = _settings(tmp_path, randomize={"g": [1e-3, 2e-3]}, eval_every=0)
    same = [assay.train("ppo", "Pendulum-v1", name="a", **heavy).evaluate(2, seed=1)]
    same.append(assay.open_run(tmp_path / "a").evaluate(2, seed=1))
    weightless = make_vector("Pendulum-v1", 2, randomize={"g": [1e-3, 2e-3]})
    assert parameters(weightless, ["g"])["g"].tolist() == [10.0, 10.0]  # before the first reset
    weightless.reset(0)
    assert (parameters(weightless, ["g"])["g"] < 2e-3).all()
    assert same[0].returns.tolist() == same[1].returns.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"randomize": {"gravty": [8, 12]}}, "Did you mean 'gravity'?"),
        ({"randomize": {"gravity": [12, 8]}}, "goes from 12 to 8; the second must be above"),
        ({"randomize": {"gravity": [1, 1]}}, "goes from 1 to 1; the second must be above"),
        ({"randomize": {"gravity": {"integer": [0, 10**30]}}}, "goes beyond 9,007,199,254,740,992"),
        ({"randomize": {"gravity": 3}}, "'3' is not a range for gravity"),
        ({"randomize": {"gravity": {"log_uniform": [0, 8]}}}, "which is not above 0"),
        ({"randomize": {"gravity": {"gaussian": [9, -1]}}}, "standard deviation is -1"),
        ({"randomize": {"gravity": {}}}, "exactly one of"),
        (
            {"randomize": {"gravity": {"choice": []}}},
            "choice=[]: expected a list of 1 or more\nWrite [low, high]",
        ),
        ({"randomize": {"gravity": {"low": 1, "high": 2}}}, "Write [low, high]"),
        ({"randomize": VARIED, "curriculum": "adr"}, "curriculum={adr: {low: 100, high: 400}}"),
        ({"randomize": VARIED | {"length": [0, 1]}}, "randomize draws length=0, and"),
        ({"randomize": {"tau": {"choice": [0.02, 1e300]}}}, "randomize draws tau=1e+300, and"),
        ({"curriculum": "learning_progress"}, "has nothing to choose from"),
        ({"randomize": VARIED, "curriculum": "addr"}, "Did you mean 'adr'?"),
        (
            {"randomize": VARIED, "curriculum": {"adr": {"low": 9, "high": 8}}},
            "is not below high=8",
        ),
        (
            {"randomize": VARIED, "curriculum": {"adr": {"low": 9, "hi": 8}}},
            "unknown setting 'hi'",
        ),
        (
            {
                "randomize": VARIED,
                "curriculum": {"reverse": {"low": 1, "high": 2, "begin": {"gravity": 9}}},
            },
            "begin has no value of masspole",
        ),
        (
            {
                "randomize": {"gravity": [5, 15]},
                "curriculum": {"reverse": {"low": 1, "high": 2, "begin": {"gravity": 99}}},
            },
            "begin has gravity=99, which is not in its range; the nearest value there is 15",
        ),
        ({"wrappers": [3]}, "wrappers.0=3: input should be a valid string or a valid dictionary"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssayError) as caught:
        assay.train("ppo", "CartPole-v1", **_settings(tmp_path, **settings))
    assert message in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != ".locks"]


class Room(gym.Env[Any, Any]):
    """Shows its argument; an episode is as long as that."""

    observation_space = spaces.Box(0, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3, noisy: bool = False, name: str = "room") -> None:
        if length > 8:
            self.observation_space = spaces.Box(0, 99, (3,), np.float32)
        self.length, self.noisy, self.scale, self.steps = length, noisy, 1.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.array([self.length, self.np_random.random()], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._seen(), self.scale, self.steps == self.length, False, {}

    def get_state(self) -> Any:
        return {"steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.steps = int(state["steps"])


def test_arguments_are_parameters_and_a_state_goes_on() -> None:
    given: Any = {"env_kwargs.length": {"integer": [2, 5]}, "scale": [1, 2]}
    make = lambda backend: make_vector(Room, 3, backend=backend, workers=2, randomize=given)  # noqa: E731
    step = np.zeros(3, np.int64)
    with make("sync") as one, make("sync") as two, make("processes") as three:
        assert np.array_equal(one.reset(4), three.reset(4))
        lengths = set()
        for _ in range(20):
            found = one.step(step)
            for a, b in zip(found[:4], three.step(step)[:4], strict=True):
                assert np.array_equal(a, b)
            lengths |= set(found[0][:, 0].tolist())
            units = one.curriculum.ranges.values(one.backend._units)
            assert found[0][:, 0].tolist() == units["env_kwargs.length"].tolist()
        assert lengths == {2, 3, 4, 5}
        two.reset(9)
        two.set_state(one.get_state())
        for _ in range(20):
            for a, b in zip(one.step(step)[:4], two.step(step)[:4], strict=True):
                assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env_kwargs.lenth": [2, 5]}, "Did you mean 'length'?"),
        ({"env_kwargs.name": [2, 5]}, "no argument 'name' with a number as its value"),
        ({"env_kwargs.length": {"choice": [9]}}, "leave the spaces as they are"),
    ],
)
def test_arguments_that_cannot_change(given: Any, message: str) -> None:
    with pytest.raises(AssayError) as caught, make_vector(Room, 1, randomize=given) as envs:
        envs.reset(0)
    assert message in str(caught.value)


def test_arguments_of_an_id() -> None:
    given = {"env_kwargs.g": [1, 2]}
    with make_vector("Pendulum-v1", 2, randomize=given) as envs:
        envs.reset(0)
        made = [env.unwrapped.g for env in envs.backend.group.envs]
        assert all(1 <= g <= 2 for g in made) and made[0] != made[1]


class Heavy(Target):
    """Refuses a negative mass, and breaks with one of 7."""

    mass, drag = 1.0, 0.0

    def parameters(self) -> dict[str, float]:
        return {"mass": self.mass, "drag": self.drag}

    def set_parameters(self, values: Any) -> None:
        if values.get("mass", 1.0) < 0:
            raise ValueError("no negative mass")
        self.mass = values.get("mass", self.mass)
        self.drag = values.get("drag", self.drag)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, np.nan if self.mass == 7 else reward, *rest)


@pytest.mark.parametrize(
    ("given", "message", "backend"),
    [
        ([-0.1, 2], "mass=-0.1, and the environment cannot have it: .*no negative", "processes"),
        ([-0.1, 2], "mass=-0.1, and the environment cannot have it: .*no negative", "sync"),
        ({"gaussian": [1, 0.4]}, "mass=-0.236", "sync"),
        ([2, 7], "mass=7, and .* the reward nan", "sync"),
        ({"choice": [1, -2, 3]}, "mass=-2, and the environment cannot have it: .*no neg", "sync"),
    ],
)
def test_the_ends_of_a_range_and_all_choices_are_tried_before_a_run_begins(
    given: Any, message: str, backend: Any, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, backend=backend, eval_every=0)
    randomize = {"drag": [0, 1], "mass": given}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ConfigError, match=f"(?s)randomize draws {message}") as caught:
            assay.train("ppo", Heavy, randomize=randomize, **settings)
    assert caught.value.fix == "Give mass another range."
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != ".locks"]


def test_a_range_below_zero_of_what_is_above_it_is_warned_of(tmp_path: Path) -> None:
    settings = _settings(tmp_path, env_steps=32, eval_every=0)
    with pytest.warns(UserWarning, match="draws masspole from -0.9 to -0.5, and it is usually 0.1"):
        assay.train("ppo", "CartPole-v1", randomize={"masspole": [-0.9, -0.5]}, **settings)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assay.train("ppo", "CartPole-v1", randomize={"masspole": [0.0, 0.5]}, **settings)
    assert not [one for one in seen if "usually" in str(one.message)]


def test_looking_at_the_ends_changes_nothing() -> None:
    with make_vector("CartPole-v1", 3, randomize=VARIED) as one:
        seen = [one.reset(5), one.step(np.zeros(3, np.int64))[0]]
        drawn = parameters(one, VARIED)
        check_ends(one)
        again = [one.reset(5), one.step(np.zeros(3, np.int64))[0]]
        np.testing.assert_array_equal(seen, again)
        for name, values in parameters(one, VARIED).items():
            np.testing.assert_array_equal(values, drawn[name])


def test_what_was_made_again_before_a_seed_does_not_matter_after_it() -> None:
    given: Any = {"env_kwargs.length": {"integer": [2, 5]}}
    with make_vector(Room, 1, randomize=given) as one, make_vector(Room, 1, randomize=given) as two:
        one.reset(1)
        for _ in range(12):
            one.step(np.zeros(1, np.int64))
        np.testing.assert_array_equal(one.reset(4), two.reset(4))
        for _ in range(12):
            found = [envs.step(np.zeros(1, np.int64))[0] for envs in (one, two)]
            np.testing.assert_array_equal(*found)


def test_many_levels_take_no_memory() -> None:
    many = Range(integer=(0, 10**15))
    assert many.values(np.array([many.unit(10**14)])) == [10**14]

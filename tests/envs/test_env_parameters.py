"""Parameters of environments by name."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.make import make_vector
from assay.envs.native import make_native
from assay.envs.parameters import parameters, set_parameters

# Other values of all parameters of the native versions.
CHANGED = {
    "Acrobot-v1": {
        "LINK_LENGTH_1": 1.2, "LINK_MASS_1": 0.8, "LINK_MASS_2": 1.3, "LINK_COM_POS_1": 0.6,
        "LINK_COM_POS_2": 0.45, "LINK_MOI": 1.1, "dt": 0.15,
    },
    "CartPole-v1": {
        "gravity": 11.0, "masscart": 1.3, "masspole": 0.23, "length": 0.71, "force_mag": 8.0,
        "tau": 0.03,
    },
    "MountainCar-v0": {"force": 0.0013, "gravity": 0.0021, "goal_position": 0.4},
    "MountainCarContinuous-v0": {"power": 0.0019},
    "Pendulum-v1": {"g": 12.3, "m": 1.7, "l": 0.83, "dt": 0.041, "max_torque": 1.3},
}  # fmt: skip


class Counter(gym.Env[np.ndarray, int]):
    """Shows its parameter, and what the parameter was at the last reset."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.level, self.whole = 1.0, 3
        self._steps, self._at_reset = 0, 0.0

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=kwargs.get("seed"))
        self._steps, self._at_reset = 0, self.level
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._seen(), self.level, self._steps == 3, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.level, self._at_reset], np.float32)


@pytest.mark.parametrize("env_id", sorted(CHANGED))
@pytest.mark.parametrize("copies", [1, 3])
def test_native_versions_with_other_parameters_equal_gymnasium_bit_for_bit(
    env_id: str, copies: int
) -> None:
    changed = CHANGED[env_id]
    native, single = make_native(env_id, copies), gym.make(env_id)
    assert native.parameters().keys() == changed.keys()
    set_parameters(native, changed)
    set_parameters(single, changed)
    observations, _ = native.reset(seed=3)
    observation, _ = single.reset(seed=3)
    native.action_space.seed(1)
    for _ in range(600):
        assert np.array_equal(observations[0], observation)
        actions = native.action_space.sample()
        observations, rewards, terminated, truncated, _ = native.step(actions)
        observation, reward, over, cut, _ = single.step(actions[0])
        assert (rewards[0], terminated[0], truncated[0]) == (reward, over, cut)
        if over or cut:
            observation, _ = single.reset()


def test_each_copy_has_its_own_value() -> None:
    with make_vector("Pendulum-v1", 3) as envs:
        set_parameters(envs, {"m": np.array([1.0, 2.0, 4.0]), "g": 0.0})
        envs.reset(seed=1)
        before = envs.backend.env._physics()[:, 1]
        envs.step(np.full((3, 1), 1.0, np.float32))
        # dv = 3 / (m l^2) torque dt, without gravity
        gained = envs.backend.env._physics()[:, 1] - before
        np.testing.assert_allclose(gained, [0.15, 0.075, 0.0375], rtol=1e-6)


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_later_means_from_the_next_episode_of_each_copy_on(backend: Any) -> None:
    with make_vector(Counter, 2, backend=backend, workers=1) as envs:
        envs.reset(seed=0)
        envs.backend.set_parameters({"level": np.array([5.0, 7.0])}, later=True)
        actions = np.zeros(2, np.int64)
        for _ in range(2):
            assert envs.step(actions)[0].tolist() == [[1, 1], [1, 1]]
        obs, reward, terminated, *_, final = envs.step(actions)
        assert terminated.all() and final.tolist() == [[1, 1], [1, 1]]
        assert obs.tolist() == [[5, 5], [7, 7]] and reward.tolist() == [1, 1]
        assert parameters(envs)["level"].tolist() == [5, 7]
        set_parameters(envs, {"level": 9.0})  # at once, and it stays
        for _ in range(3):
            obs, reward, *_ = envs.step(actions)
        assert reward.tolist() == [9, 9] and obs.tolist() == [[9, 9], [9, 9]]


def test_native_later_means_from_the_next_episode_of_each_copy_on() -> None:
    with make_vector("CartPole-v1", 4, max_episode_steps=3) as envs:
        envs.reset(seed=0)
        envs.backend.set_parameters({"gravity": np.arange(4.0)}, later=True)
        for _ in range(2):
            envs.step(np.zeros(4, np.int64))
            assert parameters(envs)["gravity"].tolist() == [9.8] * 4
        envs.step(np.zeros(4, np.int64))
        assert parameters(envs)["gravity"].tolist() == [0, 1, 2, 3]


def test_whole_numbers_stay_whole_and_states_are_not_parameters() -> None:
    env = Counter()
    set_parameters(env, {"whole": 4})
    assert env.whole == 4 and isinstance(env.whole, int)
    lake = gym.make("FrozenLake-v1")
    lake.reset(seed=0)
    assert "s" not in parameters(lake)
    assert "total_mass" not in parameters(gym.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gravty": 9.0}, "has no parameter 'gravty'.\nDid you mean 'gravity'?"),
        ({"gravity": float("nan")}, "gravity cannot be nan"),
        ({"gravity": "high"}, "gravity cannot be 'high'"),
        ({"gravity": np.ones(3)}, "Give a finite number, or 2 of them"),
    ],
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with make_vector("CartPole-v1", 2) as envs, pytest.raises(EnvError) as caught:
        set_parameters(envs, values)
    assert message in str(caught.value)


class Elevator(Counter):
    """Has attributes that only a reset sets, as many environments do."""

    arrival = 0.1

    def reset(self, **options: Any) -> Any:
        self.floor = 0.0
        return super().reset(**options)


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_what_only_a_reset_sets_is_no_parameter_of_copies(backend: Any) -> None:
    """The first copy is looked at, and reset, before the others are."""
    vector = make_vector(Elevator, 4, backend=backend)
    vector.backend.first_env().reset(seed=0)
    assert "floor" not in parameters(vector)
    set_parameters(vector, {"arrival": 0.3})
    vector.reset(seed=1)
    assert parameters(vector)["arrival"].tolist() == [0.3] * 4
    vector.close()


def test_an_environment_without_parameters_says_so() -> None:
    with (
        make_vector("simple_spread_v3", 1) as envs,
        pytest.raises(EnvError, match="no parameters that can be set by name") as caught,
    ):
        parameters(envs)
    assert "env_kwargs.NAME" in str(caught.value.fix)


class TestMujoco:
    """Fields of the model."""

    @pytest.fixture
    def hopper(self) -> Any:
        pytest.importorskip("mujoco")
        env = gym.make("Hopper-v5")
        yield env
        env.close()

    @pytest.mark.parametrize(
        ("name", "value"), [("mass", -1.0), ("body_mass[torso]", -0.5), ("opt.timestep", 0.0)]
    )
    def test_what_no_physics_has_is_refused(self, hopper: Any, name: str, value: float) -> None:
        with pytest.raises(EnvError, match=rf"{re.escape(name)}={value:g}: expected"):
            set_parameters(hopper, {name: value})

    def test_whole_fields_are_factors_and_single_numbers_are_set(self, hopper: Any) -> None:
        model = hopper.unwrapped.model
        mass, inertia = model.body_mass.copy(), model.body_inertia.copy()
        set_parameters(hopper, {"mass": 2.0, "body_mass[torso]": 5.0, "gravity": 0.5})
        expected = mass * 2
        expected[1] = 5.0
        np.testing.assert_allclose(model.body_mass, expected)
        np.testing.assert_allclose(model.body_inertia, inertia * 2)
        assert model.opt.gravity[2] == pytest.approx(-9.81 / 2)
        # factors are of what the model had at first
        set_parameters(hopper, {"mass": 1.5, "geom_friction[floor]": 3.0, "opt.timestep": 0.001})
        np.testing.assert_allclose(model.body_mass[2:], mass[2:] * 1.5)
        assert model.opt.timestep == 0.001
        read = parameters(hopper, ["mass", "body_mass[torso]", "geom_friction[floor]"])
        assert read == {"mass": 1.5, "body_mass[torso]": 5.0, "geom_friction[floor]": 3.0}

    def test_derived_constants_follow(self, hopper: Any) -> None:
        model = hopper.unwrapped.model
        total, weight = model.body_subtreemass[0], model.dof_invweight0.copy()
        set_parameters(hopper, {"mass": 2.0})
        assert model.body_subtreemass[0] == pytest.approx(2 * total)
        assert (model.dof_invweight0 < weight).all()

    def test_factors_of_one_change_nothing(self, hopper: Any) -> None:
        def played() -> list[np.ndarray]:
            hopper.action_space.seed(0)
            hopper.reset(seed=4)
            return [hopper.step(hopper.action_space.sample())[0] for _ in range(50)]

        before = played()
        set_parameters(hopper, dict.fromkeys(("mass", "friction", "damping", "gravity"), 1.0))
        assert np.array_equal(before, played())
        set_parameters(hopper, {"damping": 3.0})
        assert not np.array_equal(before, played())

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("body_mas", "Did you mean 'body_mass'?"),
            ("body_mass[torsoo]", "Did you mean 'torso'?"),
            ("body_mass[77]", "whose shape is (5,)"),
            ("zzzzzz", "assay envs parameters Hopper-v5"),
        ],
    )
    def test_unknown_fields(self, hopper: Any, name: str, message: str) -> None:
        with pytest.raises(EnvError) as caught:
            set_parameters(hopper, {name: 1.0})
        assert message in str(caught.value)


@pytest.mark.parametrize("how", ["set", "randomised"])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_physics_that_is_not_finite_any_more_is_noticed(how: str) -> None:
    randomize = {"length": {"choice": [0.0]}} if how == "randomised" else {}
    with make_vector("CartPole-v1", 2, randomize=randomize) as vector:
        vector.reset(0)
        if how == "set":
            set_parameters(vector, {"length": 0.0})
        with pytest.raises(EnvError, match="nan"):
            for _ in range(3):
                vector.step(np.zeros(2, np.int64))

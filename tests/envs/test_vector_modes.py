"""What a step returns in each autoreset mode, worked out by hand."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Counter, Masked
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from assay.core.errors import EnvError
from assay.envs.gym_vector import Batched
from assay.envs.make import make_vector
from assay.envs.processes import Processes
from assay.envs.sync import Sync
from assay.envs.vector import Vector

# Environment 0 terminates after 2 steps, environment 1 is truncated after 3.
FACTORIES = [partial(Counter, 2), partial(Counter, 3, truncates=True)]
ACTIONS = np.zeros(2, np.int64)
T, F = True, False

# obs, reward, terminated, truncated, valid, {row: final observation}
SAME = [
    ([1, 1], [1, 1], [F, F], [F, F], None, {}),
    ([100, 2], [2, 2], [T, F], [F, F], None, {0: 2}),
    ([101, 100], [1, 3], [F, F], [F, T], None, {1: 3}),
    ([200, 101], [2, 1], [T, F], [F, F], None, {0: 102}),
    ([201, 102], [1, 2], [F, F], [F, F], None, {}),
    ([300, 200], [2, 3], [T, F], [F, T], None, {0: 202, 1: 103}),
]
NEXT = [
    ([1, 1], [1, 1], [F, F], [F, F], None, {}),
    ([2, 2], [2, 2], [T, F], [F, F], None, {0: 2}),
    ([100, 3], [0, 3], [F, F], [F, T], [F, T], {1: 3}),
    ([101, 100], [1, 0], [F, F], [F, F], [T, F], {}),
    ([102, 101], [2, 1], [T, F], [F, F], None, {0: 102}),
    ([200, 102], [0, 2], [F, F], [F, F], [F, T], {}),
]


def foreign(mode: AutoresetMode, copy: bool = True) -> Vector:
    return Vector(Batched(SyncVectorEnv(FACTORIES, copy=copy, autoreset_mode=mode), "C"), "C")


CASES = {
    "same_step": (partial(foreign, AutoresetMode.SAME_STEP), SAME),
    "same_step_reused": (partial(foreign, AutoresetMode.SAME_STEP, copy=False), SAME),
    "next_step": (partial(foreign, AutoresetMode.NEXT_STEP), NEXT),
    "next_step_reused": (partial(foreign, AutoresetMode.NEXT_STEP, copy=False), NEXT),
    "disabled": (partial(foreign, AutoresetMode.DISABLED), SAME),
    "disabled_reused": (partial(foreign, AutoresetMode.DISABLED, copy=False), SAME),
    "sync": (lambda: Vector(Sync(FACTORIES, "C"), "C"), SAME),
    "processes_1": (lambda: Vector(Processes(FACTORIES, "C", workers=1), "C"), SAME),
    "processes_2": (lambda: Vector(Processes(FACTORIES, "C", workers=2), "C"), SAME),
}


@pytest.mark.parametrize("case", CASES)
def test_sequence(case: str) -> None:
    make, expected = CASES[case]
    with make() as envs:
        for _ in range(2):  # a second reset leaves nothing over
            first = envs.reset(seed=5)
            assert first.tolist() == [[0], [0]]
            results = [envs.step(ACTIONS) for _ in expected]
            # Compared at the end: nothing that was returned may have been written again.
            assert first.tolist() == [[0], [0]]
            for result, (obs, reward, terminated, truncated, valid, final) in zip(
                results, expected, strict=True
            ):
                assert result[0].ravel().tolist() == obs
                assert result[0].dtype == np.float32 and result[0].shape == (2, 1)
                assert result[1].tolist() == reward
                assert result[2].tolist() == terminated and result[2].dtype == bool
                assert result[3].tolist() == truncated and result[3].dtype == bool
                assert (None if result[4] is None else result[4].tolist()) == valid
                if not final:
                    assert result[5] is None
                else:
                    assert result[5].shape == (2, 1)
                    assert {row: result[5][row, 0] for row in final} == final


def test_reset_in_mid_episode_forgets_the_pending_reset() -> None:
    envs = foreign(AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    envs.step(ACTIONS)
    assert envs.step(ACTIONS)[2].tolist() == [T, F]
    envs.reset(seed=0)
    assert envs.step(ACTIONS)[4] is None


class Declares(gym.vector.VectorEnv):
    num_envs = 2
    single_observation_space = spaces.Box(-1, 1, (1,))
    single_action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 1), np.float32), np.zeros(2), np.array([T, F]), np.array([F, F]), {}


@pytest.mark.parametrize("mode", ["Sometimes", None, 3])
def test_unknown_mode_is_refused(mode: object) -> None:
    env = Declares()
    env.metadata = {"autoreset_mode": mode}
    with pytest.raises(EnvError, match=r"Declares.*autoreset_mode.*SAME_STEP"):
        make_vector(env)


def test_mode_that_leaked_into_the_base_class_is_refused(monkeypatch) -> None:
    monkeypatch.setitem(gym.vector.VectorEnv.metadata, "autoreset_mode", AutoresetMode.SAME_STEP)
    with pytest.raises(EnvError, match="does not declare its autoreset mode"):
        make_vector(Declares())


def test_mode_by_value_is_known() -> None:
    env = Declares()
    env.metadata = {"autoreset_mode": "NextStep"}
    envs = make_vector(env)
    envs.reset(seed=0)
    assert envs.step(ACTIONS)[5] is not None


def test_same_step_without_the_last_observation_is_refused() -> None:
    env = Declares()
    env.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = make_vector(env)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="final_obs"):
        envs.step(ACTIONS)


def test_an_environment_that_resets_in_place_keeps_its_last_observation() -> None:
    class InPlace(Declares):
        def reset(self, *, seed=None, options=None):
            if options is None:
                self.obs = np.zeros((2, 1), np.float32)
            else:
                self.obs[options["reset_mask"]] = 0.5
            return self.obs, {}

        def step(self, actions):
            self.obs = self.obs + 0.25
            return self.obs, np.zeros(2), np.array([T, F]), np.array([F, F]), {}

    env = InPlace()
    env.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    envs = make_vector(env)
    envs.reset(seed=0)
    obs, *_, final = envs.step(ACTIONS)
    assert final.tolist() == [[0.25], [0.25]] and obs.tolist() == [[0.5], [0.25]]


def batched_masks(mode: AutoresetMode) -> Vector:
    env = SyncVectorEnv([partial(Masked, "info")] * 2, autoreset_mode=mode)
    return Vector(Batched(env, "M"), "M")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Vector(Sync([partial(Masked, "info")] * 2, "M"), "M"),
        lambda: Vector(Sync([partial(Masked, "method")] * 2, "M"), "M"),
        lambda: Vector(Processes([partial(Masked, "info")] * 2, "M", workers=2), "M"),
        partial(batched_masks, AutoresetMode.SAME_STEP),
        partial(batched_masks, AutoresetMode.DISABLED),
    ],
)
def test_masks_stand_next_to_the_observation(make) -> None:
    with make() as envs:
        assert envs.spaces.observation == spaces.Dict(
            obs=Counter.observation_space, action_mask=spaces.MultiBinary(3)
        )
        obs = envs.reset(seed=0)
        assert obs["obs"].tolist() == [[0], [0]]
        assert obs["action_mask"].tolist() == [[1, 0, 0]] * 2
        assert obs["action_mask"].dtype == np.int8
        obs = envs.step(ACTIONS)[0]
        assert obs["action_mask"].tolist() == [[0, 1, 0]] * 2
        obs, *_, final = envs.step(ACTIONS)
        assert obs["obs"].tolist() == [[100], [100]]
        assert obs["action_mask"].tolist() == [[1, 0, 0]] * 2  # of the new episode
        assert final["obs"].tolist() == [[2], [2]]
        assert final["action_mask"].tolist() == [[0, 0, 1]] * 2  # of the state that was cut off


@pytest.mark.parametrize(
    ("how", "batched"), [("method", False), ("forgets", False), ("forgets", True)]
)
def test_a_last_mask_that_is_not_given_is_all_ones(how: str, batched: bool) -> None:
    factories = [partial(Masked, how, length=1, truncates=False)] * 2
    env = SyncVectorEnv(factories, autoreset_mode="SameStep") if batched else None
    envs = make_vector(env) if env else make_vector(factories[0], 2)
    envs.reset(seed=0)
    obs, *_, final = envs.step(ACTIONS)
    assert final["obs"].tolist() == [[1], [1]]
    assert final["action_mask"].tolist() == [[1, 1, 1]] * 2
    assert obs["action_mask"].tolist() == [[1, 0, 0]] * 2


def test_a_last_mask_of_the_wrong_length_is_refused() -> None:
    class Short(Masked):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {"action_mask": info["action_mask"][:2]}

    factories = [partial(Short, "info", length=1)] * 2
    envs = make_vector(SyncVectorEnv(factories, autoreset_mode="SameStep"))
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"final_info.*action mask is not one row of 3"):
        envs.step(ACTIONS)
    envs = make_vector(factories[0], 2)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"action mask of shape \(2,\)"):
        envs.step(ACTIONS)


def test_masks_in_next_step_mode() -> None:
    envs = batched_masks(AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    envs.step(ACTIONS)
    obs, *_, final = envs.step(ACTIONS)
    assert final is obs and obs["action_mask"].tolist() == [[0, 0, 1]] * 2
    obs, *_, valid, _ = envs.step(ACTIONS)
    assert valid.tolist() == [F, F] and obs["action_mask"].tolist() == [[1, 0, 0]] * 2


@pytest.mark.parametrize("batched", [False, True])
def test_a_mask_that_goes_missing_is_refused(batched: bool) -> None:
    factories = [partial(Masked, "forgets")] * 2
    env = SyncVectorEnv(factories, autoreset_mode="SameStep") if batched else None
    envs = make_vector(env) if env else make_vector(factories[0], 2)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"nvironment 0.*no action mask"):
        envs.step(ACTIONS)


def test_taxi_brings_masks() -> None:
    taxi = next(name for name in gym.registry if name.startswith("Taxi-"))
    with make_vector(taxi, 2) as envs:
        obs = envs.reset(seed=0)
        assert obs["obs"].shape == (2,) and obs["obs"].dtype == np.int64
        assert obs["action_mask"].shape == (2, 6)
        assert envs.step(obs["action_mask"].argmax(1))[0]["action_mask"].dtype == np.int8

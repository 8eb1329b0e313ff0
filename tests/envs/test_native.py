"""The native environments equal Gymnasium's bit for bit, and keep the promises of their base."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from assay.core.errors import EnvError
from assay.envs.native import NATIVE, base, make_native
from assay.envs.native.base import NativeVectorEnv, libm_squares
from assay.envs.native.cartpole import CartPole

IDS = sorted(NATIVE)
pytestmark = pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")


def choose(
    id: str, obs: np.ndarray, rng: np.random.Generator, reach: float = 1.0, first_row: int = 0
) -> np.ndarray:
    """Return random actions, but good ones in odd rows, so that episodes end in every way."""
    n = len(obs)
    odd = (np.arange(n) + first_row) % 2 == 1
    if id == "Pendulum-v1":
        return (rng.uniform(-2, 2, (n, 1)) * reach).astype(np.float32)
    if id.startswith("CartPole"):
        good = obs @ np.array([0.1, 0.3, 5.0, 1.0]) > 0  # balances to the time limit
        return np.where(odd, good, rng.integers(0, 2, n))
    # Push along with the motion: pumps energy in until the goal is reached.
    forward = (obs[:, 1] if id.startswith("MountainCar") else -obs[:, 4]) >= 0
    if id == "MountainCarContinuous-v0":
        noise = rng.uniform(-1, 1, (n, 1)) * reach
        pump = np.where(forward, 1, -1)[:, None] * np.abs(noise)
        return np.where(odd[:, None], pump, noise).astype(np.float32)
    return np.where(odd, np.where(forward, 2, 0), rng.integers(0, 3, n))


class Reference:
    """Copies of `gymnasium.make(id)`, stepped one by one, each reset when its episode ends."""

    def __init__(self, id: str, n: int, **kwargs: Any) -> None:
        self.envs = [gymnasium.make(id, disable_env_checker=True, **kwargs) for _ in range(n)]
        # Ours keep the two positions before the two velocities, Gymnasium's CartPole does not.
        self.order = [0, 2, 1, 3] if id.startswith("CartPole") else slice(None)

    def reset(self, seed: int | None, options: dict[str, Any] | None = None) -> np.ndarray:
        seeds = [None if seed is None else seed + i for i in range(len(self.envs))]
        pairs = zip(self.envs, seeds, strict=True)
        return np.stack([env.reset(seed=s, options=options)[0] for env, s in pairs])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return observations after and before the reset, rewards, terminated and truncated."""
        rows = []
        for env, action in zip(self.envs, actions, strict=True):
            final, reward, terminated, truncated, _ = env.step(action)
            obs = env.reset()[0] if terminated or truncated else final
            rows.append((obs, final, reward, terminated, truncated))
        obs, final, rewards, terminated, truncated = map(np.array, zip(*rows, strict=True))
        return obs, final, rewards.astype(np.float64), terminated, truncated

    def physics(self) -> np.ndarray:
        """Return the inner states in float64, in the order in which ours are saved."""
        states = np.array([env.unwrapped.state for env in self.envs], np.float64)
        return states[:, self.order].copy()

    def enter(self, physics: np.ndarray) -> None:
        """Put the copies into inner states, given in that order."""
        for env, state in zip(self.envs, physics[:, self.order], strict=True):
            env.unwrapped.state = state


def assert_same(ours: np.ndarray, theirs: np.ndarray, where: str) -> None:
    """Compare type, shape and bits."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
    assert ours.tobytes() == theirs.tobytes(), f"{where}: {ours} is not {theirs}"


def follow(
    envs: NativeVectorEnv,
    reference: Reference,
    id: str,
    obs: np.ndarray,
    steps: int,
    seed: int = 7,
    **kwargs: Any,
) -> Counter[str]:
    """Step both with the same actions, compare everything, and count how episodes ended."""
    rng = np.random.default_rng(seed)
    ends: Counter[str] = Counter()
    for t in range(steps):
        actions = choose(id, obs, rng, **kwargs)
        obs, rewards, terminated, truncated, info = envs.step(actions)
        *expected, their_terminated, their_truncated = reference.step(actions)
        their_obs, their_final, their_rewards = expected
        assert_same(obs, their_obs, f"observation {t}")
        assert_same(rewards, their_rewards, f"reward {t}")
        assert_same(terminated, their_terminated, f"terminated {t}")
        assert_same(truncated, their_truncated, f"truncated {t}")
        done = terminated | truncated
        if done.any():
            assert_same(info["_final_obs"], done, f"mask {t}")
            assert_same(info["final_obs"][done], their_final[done], f"final observation {t}")
            ends.update(terminated=int(terminated.sum()), truncated=int(truncated.sum()))
        else:
            assert info == {}
        if t == 0 or t % 10 == 5:
            # Shows what the float32 observation hides, and that saving disturbs nothing.
            assert_same(envs.get_state()["physics"], reference.physics(), f"physics {t}")
    return ends


# Three copies take the batched path over many episodes; forty the one where squares are sieved.
@pytest.mark.parametrize(("n", "steps"), [(1, 1500), (3, 2000), (40, 100)])
@pytest.mark.parametrize("id", IDS)
def test_equals_gymnasium(id: str, n: int, steps: int) -> None:
    envs, reference = make_native(id, n), Reference(id, n)
    obs, info = envs.reset(seed=11)
    assert_same(obs, reference.reset(11), "first observation")
    assert info == {}
    ends = follow(envs, reference, id, obs, steps, first_row=n == 1)
    if n == 3:
        assert ends["truncated"] >= 2
        assert ends["terminated"] >= 2 or id == "Pendulum-v1"


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("id", ["MountainCarContinuous-v0", "Pendulum-v1"])
def test_clips_actions_beyond_the_space_like_gymnasium(id: str, n: int) -> None:
    envs, reference = make_native(id, n), Reference(id, n)
    obs, _ = envs.reset(seed=5)
    reference.reset(5)
    follow(envs, reference, id, obs, 1200, reach=1.7)


# Starts that no episode would reach, or seldom: beyond the goal and falling back, at the wall, too
# fast, many turns away.
WIDE_STARTS: dict[str, list[dict[str, float]]] = {
    "Acrobot-v1": [{"low": -40.0, "high": 40.0}, {"low": -3.0, "high": 3.0}],
    "CartPole-v0": [{"low": -2.0, "high": 2.5}, {"high": 0.1}],
    "CartPole-v1": [{"low": -2.0, "high": 2.5}, {"high": 0.1}],
    "MountainCar-v0": [{"low": 0.5, "high": 0.52}, {"low": -1.3, "high": -1.1}],
    "MountainCarContinuous-v0": [{"low": 0.45, "high": 0.48}, {"low": -1.3, "high": -1.1}],
    "Pendulum-v1": [{"x_init": 50.0, "y_init": 12.0}, {"x_init": 0.3}],
}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("id", IDS)
def test_reset_without_seed_and_with_options_like_gymnasium(id: str, n: int) -> None:
    envs = type(make_native(id, n))(n, max_episode_steps=20)
    reference = Reference(id, n, max_episode_steps=20)
    obs, _ = envs.reset(seed=2)
    assert_same(obs, reference.reset(2), "first observation")
    for round, options in enumerate([None, *WIDE_STARTS[id]] * 5):
        obs, _ = envs.reset(options=options)
        assert_same(obs, reference.reset(None, options), f"reset {round}")
        follow(envs, reference, id, obs, 25, seed=round, first_row=round)


# Bounds of states to begin a step from: up to every limit and a little beyond, where there is one.
REACH: dict[str, list[float]] = {
    "Acrobot-v1": [3.2, 3.2, 13.0, 29.0],
    "CartPole-v0": [2.5, 0.22, 3.0, 3.0],
    "CartPole-v1": [2.5, 0.22, 3.0, 3.0],
    "MountainCar-v0": [1.2, 0.07],
    "MountainCarContinuous-v0": [1.2, 0.07],
    "Pendulum-v1": [30.0, 8.0],
}


@pytest.mark.parametrize(("n", "rounds"), [(1, 300), (30, 40)])
@pytest.mark.parametrize("id", IDS)
def test_one_step_from_any_state_like_gymnasium(id: str, n: int, rounds: int) -> None:
    envs, reference = make_native(id, n), Reference(id, n)
    envs.reset(seed=0)
    reference.reset(0)
    rng = np.random.default_rng(1)
    high = np.array(REACH[id])
    for round in range(rounds):
        physics = rng.uniform(-high, high, (n, len(high)))
        physics[rng.random((n, len(high))) < 0.1] = 0.0
        if id.startswith("CartPole"):
            physics[0, [0, 2]] = 2.4, 0.0  # stands on the limit, which is not beyond it
        if id.startswith("MountainCar"):
            physics[:, 0] = physics[:, 0].clip(-1.2, 0.6)
            physics[rng.random(n) < 0.2, 1] *= 1e3
            physics[:, 1] = physics[:, 1].clip(-0.07, 0.07)
        if id == "MountainCarContinuous-v0":
            physics = physics.astype(np.float32)
        envs.reset()
        reference.reset(None)
        envs.set_state({**envs.get_state(), "physics": physics, "elapsed": np.ones(n, np.int64)})
        reference.enter(physics)
        obs = np.zeros((n, *envs.single_observation_space.shape), np.float32)
        follow(envs, reference, id, obs, 1, seed=round)


@pytest.mark.parametrize("n", [1, 2])
def test_terminated_and_truncated_in_the_same_step(n: int) -> None:
    envs = CartPole(n)
    envs.reset(seed=0)
    length = 1
    while not envs.step(np.zeros(n, np.int64))[2][0]:
        length += 1
    envs = CartPole(n, max_episode_steps=length)
    reference = Reference("CartPole-v1", n, max_episode_steps=length)
    envs.reset(seed=0)
    reference.reset(0)
    for _ in range(length):
        _, _, terminated, truncated, _ = envs.step(np.zeros(n, np.int64))
        *_, their_terminated, their_truncated = reference.step(np.zeros(n, np.int64))
    assert terminated[0] and truncated[0]
    assert_same(terminated, their_terminated, "terminated")
    assert_same(truncated, their_truncated, "truncated")


@pytest.mark.parametrize("id", IDS)
def test_describes_itself_like_gymnasium(id: str) -> None:
    envs, single = make_native(id, 3), gymnasium.make(id)
    assert isinstance(envs, VectorEnv)
    assert envs.single_observation_space == single.observation_space
    assert envs.single_action_space == single.action_space
    assert envs.observation_space.shape == (3, *single.observation_space.shape)
    assert envs.action_space.shape == (3, *single.action_space.shape)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.spec is not None and envs.spec.id == id
    assert envs.max_episode_steps == gymnasium.spec(id).max_episode_steps
    assert envs.observation_space.contains(envs.reset(seed=1)[0])


def test_time_limits_are_those_that_gymnasium_registers() -> None:
    limits = {id: make_native(id, 1).max_episode_steps for id in IDS}
    assert limits == {
        "Acrobot-v1": 500,
        "CartPole-v0": 200,
        "CartPole-v1": 500,
        "MountainCar-v0": 200,
        "MountainCarContinuous-v0": 999,
        "Pendulum-v1": 200,
    }
    assert {id for id in IDS if type(make_native(id, 1))().max_episode_steps != limits[id]} == {
        "CartPole-v0"
    }


def test_done_rows_come_back_reset() -> None:
    envs = make_native("CartPole-v1", 4)
    envs.reset(seed=0)
    for _ in range(200):
        obs, _, terminated, truncated, info = envs.step(np.array([0, 1, 0, 1]))
        done = terminated | truncated
        if done.any():
            break
    assert not done.all()
    assert (np.abs(obs[done]) <= 0.05).all()
    assert (np.abs(info["final_obs"][done, 2]) > 12 * math.pi / 180).all()
    assert_same(info["final_obs"][~done], obs[~done], "rows that go on")
    assert envs.get_state()["elapsed"][done].tolist() == [0] * done.sum()
    assert (envs.get_state()["elapsed"][~done] > 0).all()


@pytest.mark.parametrize("id", IDS)
def test_a_copy_does_not_depend_on_how_many_there_are(id: str) -> None:
    rng = np.random.default_rng(3)
    many = make_native(id, 40)
    alone = [make_native(id, 1) for _ in range(3)]
    few = make_native(id, 3)
    obs, _ = many.reset(seed=20)
    few.reset(seed=[20, 21, 22])
    for i, env in enumerate(alone):
        env.reset(seed=20 + i)
    for t in range(400):
        actions = choose(id, obs, rng)
        result = many.step(actions)
        obs = result[0]
        some = few.step(actions[:3])
        singles = [env.step(actions[i : i + 1]) for i, env in enumerate(alone)]
        for part in range(4):
            assert_same(some[part], result[part][:3], f"three copies, step {t}")
            single = np.concatenate([r[part] for r in singles])
            assert_same(single, result[part][:3], f"one copy, step {t}")


@pytest.mark.parametrize("id", IDS)
def test_one_copy_takes_the_batched_path_where_libm_disagrees(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    fast = make_native(id, 1)
    monkeypatch.setattr(base, "libm_agrees", lambda: False)
    slow = make_native(id, 1)
    assert fast._scalar and not slow._scalar
    obs, _ = fast.reset(seed=9)
    assert_same(slow.reset(seed=9)[0], obs, "first observation")
    for t in range(700):
        actions = choose(id, obs, rng)
        obs, *rest, _ = fast.step(actions)
        for ours, theirs in zip((obs, *rest), slow.step(actions)[:4], strict=True):
            assert_same(theirs, ours, f"step {t}")


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("id", IDS)
def test_continues_bit_for_bit_from_a_saved_state(id: str, n: int) -> None:
    rng = np.random.default_rng(6)
    envs = type(make_native(id, n))(n, max_episode_steps=40)
    undisturbed = type(envs)(n, max_episode_steps=40)
    obs, _ = envs.reset(seed=1)
    undisturbed.reset(seed=1)
    # Saved at the start, within episodes, and right at an end.
    for until_save in (0, 55, 25, 40):
        for _ in range(until_save):
            actions = choose(id, obs, rng)
            obs = envs.step(actions)[0]
            undisturbed.step(actions)
        state = envs.get_state()
        state["rng"] = json.loads(json.dumps(state["rng"]))
        kept = {key: np.copy(state[key]) for key in ("physics", "elapsed")}
        resumed = type(envs)(n, max_episode_steps=40)
        resumed.set_state(state)
        seen = obs
        for t in range(130):
            actions = choose(id, seen, rng)
            expected = undisturbed.step(actions)
            seen = expected[0]
            for other in (envs, resumed):
                for ours, theirs in zip(other.step(actions)[:4], expected[:4], strict=True):
                    assert_same(ours, theirs, f"step {t} after {until_save}")
        for key, value in kept.items():
            assert_same(state[key], value, f"{key} was not a copy")
        obs = seen


def test_saved_states_that_do_not_fit_are_refused() -> None:
    envs = make_native("CartPole-v1", 2)
    with pytest.raises(EnvError, match="before the first reset"):
        envs.get_state()
    envs.reset(seed=0)
    state = envs.get_state()
    with pytest.raises(EnvError, match="of CartPole, not of Acrobot"):
        make_native("Acrobot-v1", 2).set_state(state)
    with pytest.raises(EnvError, match=r"shape \(2, 4\)"):
        make_native("CartPole-v1", 3).set_state(state)
    with pytest.raises(EnvError, match="elapsed"):
        envs.set_state({k: v for k, v in state.items() if k != "elapsed"})
    other = dict(np.random.Generator(np.random.MT19937(0)).bit_generator.state)
    with pytest.raises(EnvError, match="PCG64"):
        envs.set_state({**state, "rng": [other, other]})


def bad_actions(id: str, n: int) -> list[tuple[Any, str]]:
    """Return actions that must be refused, each with what its message says."""
    if isinstance(make_native(id, n).single_action_space, Discrete):
        high = np.zeros(n, np.int64)
        high[-1] = 3
        return [
            (high, f"Environment {n - 1} was given the action 3"),
            (np.full(n, -1), "action -1; an integer from 0 to"),
            (np.full(n, 2**63, np.uint64), "Environment 0"),
            (np.zeros(n + 1, np.int64), rf"shape \({n + 1},\)"),
            (np.zeros((n, 1), np.int64), "shape"),
            (np.zeros(n), "type float64"),
            (np.zeros(n, np.bool_), "type bool"),
            ([0] * (n + 1), "shape"),
        ]
    nan = np.zeros((n, 1), np.float32)
    nan[-1] = np.nan
    return [
        (nan, f"Environment {n - 1} was given the action .nan"),
        (np.full((n, 1), np.inf), "a finite number"),
        (np.zeros(n, np.float32), rf"shape \({n},\)"),
        (np.zeros((n + 1, 1), np.float32), "shape"),
        (np.full((n, 1), "left"), "type"),
    ]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("id", IDS)
def test_bad_actions_are_refused_and_move_nothing(id: str, n: int) -> None:
    envs = make_native(id, n)
    envs.reset(seed=0)
    before = envs.get_state()
    for actions, message in bad_actions(id, n):
        with pytest.raises(EnvError, match=message):
            envs.step(actions)
    after = envs.get_state()
    assert_same(after["physics"], before["physics"], "physics")
    assert_same(after["elapsed"], before["elapsed"], "elapsed")


@pytest.mark.parametrize("n", [1, 3])
def test_actions_of_other_integer_types_and_lists_are_taken(n: int) -> None:
    kinds = [
        lambda a: a,
        lambda a: a.astype(np.int32),
        lambda a: a.astype(np.uint64),
        np.ndarray.tolist,
    ]
    results = []
    for kind in kinds:
        envs = make_native("Acrobot-v1", n)
        envs.reset(seed=0)
        results.append(envs.step(kind(np.full(n, 2)))[0])
    for result in results[1:]:
        assert_same(result, results[0], "observation")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("id", IDS)
def test_returned_arrays_are_never_written_again(id: str, n: int) -> None:
    envs = type(make_native(id, n))(n, max_episode_steps=30)
    rng = np.random.default_rng(0)
    first, _ = envs.reset(seed=0)
    returned, copies, obs = [first], [first.copy()], first
    for _ in range(100):
        obs, *rest, info = envs.step(choose(id, obs, rng))
        arrays = [obs, *rest, *info.values()]
        returned += arrays
        copies += [a.copy() for a in arrays]
    assert obs.flags.c_contiguous
    for array, copy in zip(returned, copies, strict=True):
        assert_same(array, copy, "returned array")
    for i, array in enumerate(returned):
        assert not any(np.shares_memory(array, other) for other in returned[i + 1 : i + 8])


def test_seeds() -> None:
    envs = make_native("CartPole-v1", 3)
    by_number = envs.reset(seed=5)[0]
    assert_same(envs.reset(seed=[5, 6, 7])[0], by_number, "list")
    assert_same(envs.reset(seed=np.int64(5))[0], by_number, "NumPy integer")
    mixed = envs.reset(seed=[5, None, 7])[0]
    assert_same(mixed[::2], by_number[::2], "seeded rows")
    assert (mixed[1] != by_number[1]).any()
    unseeded = [make_native("CartPole-v1", 1).reset()[0] for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).any()
    for seed, message in [
        (-1, "-1 is negative"),
        ([1, 2], "2 seeds were given for 3"),
        (1.5, "1.5 is not an integer"),
        ("abc", "not an integer"),
    ]:
        with pytest.raises(EnvError, match=message):
            envs.reset(seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("CartPole-v1", {"lo": 1}, "'lo'.*\n.*'low'"),
        ("CartPole-v1", {"low": 1.0, "high": -1.0}, "low=1.0 is above high=-1.0"),
        ("CartPole-v1", {"low": 1.0}, "above high=0.05"),
        ("MountainCar-v0", {"high": float("nan")}, "high=nan is not a finite number"),
        ("Acrobot-v1", {"high": "x"}, "'x' is not a finite number"),
        ("Pendulum-v1", {"low": 0.0}, "'low'"),
        ("Pendulum-v1", {"y_init": -1.0}, "must not be negative"),
    ],
)
def test_bad_reset_options_are_refused(id: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_native(id, 2).reset(seed=0, options=options)


def test_what_cannot_be_made_or_stepped_is_refused() -> None:
    with pytest.raises(EnvError, match=r"(?s)'CartPole-v2' has no native.*'CartPole-v"):
        make_native("CartPole-v2", 1)
    for number in (0, -1, 1.0, True):
        with pytest.raises(EnvError, match="num_envs"):
            make_native("CartPole-v1", number)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="before its first reset"):
        make_native("Pendulum-v1", 1).step(np.zeros((1, 1), np.float32))


def test_libm_squares_are_the_c_librarys() -> None:
    rng = np.random.default_rng(8)
    for scale in (1e-3, 1.0, 1.5, 30.0):
        x = rng.uniform(-scale, scale, (3, 20_000))
        x[0, :4] = 0.0, 1.0, -1.25, np.float32(0.1)
        powers = np.array([v**2 for v in x.ravel().tolist()]).reshape(x.shape)
        assert (powers != x * x).any(), "nothing to get right: every power is the product"
        for array in (x, x[:, :8].copy()):
            out = np.empty_like(array)
            libm_squares(array, out)
            assert_same(out, powers[:, : array.shape[1]].copy(), f"scale {scale}")


def test_the_lookup_imports_nothing_heavy() -> None:
    code = (
        "import sys; from assay.envs.native import NATIVE; "
        "sys.exit(bool({'gymnasium', 'numpy', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

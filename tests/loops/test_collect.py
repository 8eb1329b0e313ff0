"""What a collector records, worked out by hand for every way in which environments reset."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from assay.buffers.replay import ReplayBuffer
from assay.buffers.rollout import Rollout
from assay.core.types import Action, Clock, Transition, tree_leaves
from assay.envs.make import make_vector
from assay.loops.collect import Collector, EpisodeStatistics, _allowed_choices
from assay.loops.on_policy import OnPolicyLoop
from assay.loops.run_settings import OnlineSettings
from assay.testing.algorithms import make_algorithm
from assay.testing.envs import Corridor, Counting, Identity

T, F = True, False
# Environment 0 terminates after 2 steps, environment 1 is truncated after 3.
FACTORIES = [partial(Counting, 2), partial(Counting, 3, truncates=True)]
MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


class Scripted:
    """Takes the number of the environment as its action; carries how often it was asked."""

    gives_extras = False

    def __init__(self, remembers: bool = True) -> None:
        self.remembers = remembers
        self.asked = 0
        self.told: list[Any] = []

    def cut_episodes(self) -> None:
        pass

    def design(self) -> None:
        return None

    def initial_carry(self, n: int) -> Any:
        return {"count": np.zeros((n, 1), np.int64)} if self.remembers else None

    def acted(self, carry: Any, action: Any) -> Any:
        self.told.append(action)
        return carry

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        assert explore
        self.asked += 1
        action = np.arange(len(tree_leaves(obs)[0]))
        if not self.remembers:
            return Action(action)
        count = carry["count"]
        return Action(action, {"count": count + 1}, {"count": count[:, 0].astype(np.float32)})


def as_list(array: Any) -> Any:
    return None if array is None else array.tolist()


def collector(mode: AutoresetMode, remembers: bool = True) -> Collector:
    env = make_vector(SyncVectorEnv(FACTORIES, autoreset_mode=mode))
    made = Collector(env, Scripted(remembers), Clock(1000), seed=7)  # type: ignore[arg-type]
    made.start()
    return made


def columns(array: np.ndarray) -> list[list[Any]]:
    """Return [T, N] as one list per environment."""
    return array.reshape(array.shape[0], array.shape[1]).T.tolist()


# Per environment: what was acted on, reward, flags, whether it was a transition, count carried.
SAME = {
    "obs": [[0, 1, 100, 101, 200, 201], [0, 1, 2, 100, 101, 102]],
    "reward": [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]],
    "terminated": [[F, T, F, T, F, T], [F] * 6],
    "truncated": [[F] * 6, [F, F, T, F, F, T]],
    "valid": [[T] * 6, [T] * 6],
    "count": [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]],
}
# Observations 2, 102 and 3 are the last ones of episodes: what is done there only resets.
NEXT = {
    "obs": [[0, 1, 2, 100, 101, 102], [0, 1, 2, 3, 100, 101]],
    "reward": [[1, 2, 0, 1, 2, 0], [1, 2, 3, 0, 1, 2]],
    "terminated": [[F, T, F, F, T, F], [F] * 6],
    "truncated": [[F] * 6, [F, F, T, F, F, F]],
    "valid": [[T, T, F, T, T, F], [T, T, T, F, T, T]],
    "count": [[0, 1, 0, 0, 1, 0], [0, 1, 2, 0, 0, 1]],
}


class TestRollout:
    @pytest.mark.parametrize("mode", MODES)
    def test_sequence(self, mode: AutoresetMode) -> None:
        made = collector(mode)
        rollout = Rollout(made.env.spaces, 6, 2)
        seen = made.collect_rollout(rollout)
        next_step = mode is AutoresetMode.NEXT_STEP
        expected = NEXT if next_step else SAME
        for name in ("obs", "reward", "terminated", "truncated", "valid"):
            assert columns(getattr(rollout, name)) == expected[name], name
        assert columns(rollout.extras["count"]) == expected["count"]
        assert columns(rollout.action) == [[0] * 6, [1] * 6]
        finals = rollout.finals
        assert finals is not None
        # Truncated transitions alone bootstrap from their last observation; the carry is the one
        # from before the reset.
        assert finals.step.tolist() == ([2] if next_step else [2, 5])
        assert finals.env.tolist() == ([1] if next_step else [1, 1])
        assert finals.obs.ravel().tolist() == ([3] if next_step else [3, 103])
        assert finals.carry["count"].ravel().tolist() == ([3] if next_step else [3, 3])
        assert rollout.last_obs.ravel().tolist() == ([200, 102] if next_step else [300, 200])
        assert rollout.runs.carry["count"].ravel().tolist() == [0, 0]
        assert rollout.last_carry["count"].ravel().tolist() == ([0, 2] if next_step else [0, 0])
        # Resets are not steps. Returns 1 + 2 = 3 and 1 + 2 + 3 = 6.
        assert seen.env_steps == (9 if next_step else 12)
        assert made.clock.collected == 12  # who watches need not know
        assert seen.obs is rollout.obs and seen.reward is rollout.reward
        assert columns(seen.done) == columns(rollout.terminated | rollout.truncated)
        short, long = (3.0, 2), (6.0, 3)
        ended = [short, long, short] + ([] if next_step else [short, long])
        assert list(made.episodes.recent) == ended and made.clock.episodes == len(ended)

    @pytest.mark.parametrize("mode", MODES)
    def test_the_next_rollout_goes_on(self, mode: AutoresetMode) -> None:
        whole, halves = collector(mode), collector(mode)
        long = Rollout(whole.env.spaces, 10, 2)
        whole.collect_rollout(long)
        parts = [Rollout(halves.env.spaces, 5, 2) for _ in range(2)]
        for part in parts:
            halves.collect_rollout(part)
        for name in ("obs", "reward", "terminated", "truncated", "valid"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(joined, getattr(long, name))
        joined = np.concatenate([part.extras["count"] for part in parts])
        np.testing.assert_array_equal(joined, long.extras["count"])
        steps = [part.finals.step + 5 * i for i, part in enumerate(parts) if part.finals]
        np.testing.assert_array_equal(np.concatenate(steps), long.finals.step)
        np.testing.assert_array_equal(parts[1].last_obs, long.last_obs)
        assert halves.clock == whole.clock
        assert list(halves.episodes.recent) == list(whole.episodes.recent)

    def test_termination_wins_over_truncation(self) -> None:
        class Both(Counting):
            def step(self, action: Any) -> Any:
                obs, reward, terminated, _, info = super().step(action)
                return obs, reward, terminated, terminated, info

        env = make_vector(Both, 1)
        made = Collector(env, Scripted(), Clock(1000), seed=7)  # type: ignore[arg-type]
        made.start()
        rollout = Rollout(env.spaces, 4, 1)
        made.collect_rollout(rollout)
        assert rollout.finals is None  # nothing to bootstrap from
        assert columns(rollout.terminated) == columns(rollout.truncated) == [[F, F, T, F]]


def transitions(replay: ReplayBuffer) -> list[set[tuple[float, ...]]]:
    """Return everything that is in a replay, per environment (the action is its number)."""
    batch = replay.sample(2000)
    rows = zip(
        batch.action.tolist(), batch.obs[:, 0].tolist(), batch.reward.tolist(),
        batch.next_obs[:, 0].tolist(), batch.terminated.tolist(), batch.truncated.tolist(),
        strict=True,
    )  # fmt: skip
    found: list[set[tuple[float, ...]]] = [set(), set()]
    for env, *rest in rows:
        found[env].add(tuple(rest))
    return found


# (obs, reward, next obs, terminated, truncated)
FIRST = {(0, 1, 1, 0, 0), (1, 2, 2, 1, 0), (100, 1, 101, 0, 0), (101, 2, 102, 1, 0)}
SECOND = {(0, 1, 1, 0, 0), (1, 2, 2, 0, 0), (2, 3, 3, 0, 1), (100, 1, 101, 0, 0)}
SECOND |= {(101, 2, 102, 0, 0)}


class TestReplay:
    @pytest.mark.parametrize("mode", MODES)
    def test_sequence(self, mode: AutoresetMode) -> None:
        made = collector(mode, remembers=False)
        rng = np.random.default_rng(0)
        replay = ReplayBuffer(made.env.spaces, 40, 2, rng=rng)
        steps = sum(made.collect_step(replay, random=False).env_steps for _ in range(6))
        more = set() if mode is AutoresetMode.NEXT_STEP else {(200, 1, 201, 0, 0)}
        more_0 = more | ({(201, 2, 202, 1, 0)} if more else set())
        more_1 = {(102, 3, 103, 0, 1)} if more else set()
        # What follows the last step of an episode is its true last observation, never a reset one.
        assert transitions(replay) == [FIRST | more_0, SECOND | more_1]
        assert len(replay) == steps == (12 if more else 9)
        assert made.clock.episodes == (5 if more else 3)
        short, long = (3.0, 2), (6.0, 3)
        ended = [short, long, short] + ([short, long] if more else [])
        assert list(made.episodes.recent) == ended

    def test_returns_what_was_seen(self) -> None:
        made = collector(AutoresetMode.NEXT_STEP, remembers=False)
        replay = ReplayBuffer(made.env.spaces, 40, 2, rng=np.random.default_rng(0))
        seen = [made.collect_step(replay, random=False) for _ in range(4)]
        # The observation that was acted on, with the rows that are not transitions marked.
        assert [(s.obs[:, 0].tolist(), as_list(s.valid)) for s in seen] == [
            ([0, 0], None), ([1, 1], None), ([2, 2], [F, T]), ([100, 3], [T, F]),
        ]  # fmt: skip
        assert [(s.reward.tolist(), s.done.tolist()) for s in seen] == [
            ([1, 1], [F, F]), ([2, 2], [T, F]), ([0, 3], [F, T]), ([1, 0], [F, F]),
        ]  # fmt: skip

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("random", [False, True])
    def test_the_carry_that_was_acted_with_is_kept(self, mode: AutoresetMode, random: bool) -> None:
        class Notes:
            def __init__(self) -> None:
                self.carries: list[list[int]] = []
                self.actions: list[Any] = []

            def add(self, step: Transition) -> None:
                self.carries.append(step.carry["count"].ravel().tolist())
                self.actions.append(step.action)

        made, notes = collector(mode), Notes()
        for _ in range(6):
            made.collect_step(notes, random=random)
        expected = NEXT if mode is AutoresetMode.NEXT_STEP else SAME
        assert [list(column) for column in zip(*notes.carries, strict=True)] == expected["count"]
        told: Any = made.algorithm.told  # type: ignore[attr-defined]
        np.testing.assert_array_equal(told, notes.actions if random else [])  # not its own

    def test_random_steps_have_the_extras_of_the_others(self) -> None:
        class Marking(Scripted):
            gives_extras = True

            def act(self, obs: Any, carry: Any, explore: bool) -> Action:
                choice = super().act(obs, carry, explore)
                return Action(choice.action, None, {"asked": np.full(2, 1.0 * self.asked)})

        made = collector(AutoresetMode.SAME_STEP, remembers=False)
        made.algorithm = Marking(remembers=False)  # type: ignore[assignment]
        replay = ReplayBuffer(made.env.spaces, 40, 2, rng=np.random.default_rng(0))
        for random in (True, True, False):
            made.collect_step(replay, random=random)
        assert set(replay.sample(60).extras["asked"].tolist()) == {1.0, 2.0, 3.0}


class Spy:
    """A replay that keeps the actions."""

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []

    def add(self, step: Transition) -> None:
        self.actions.append(np.copy(step.action))


class TestRandomActions:
    @pytest.mark.parametrize(
        "space",
        [
            spaces.Discrete(3),
            spaces.Box(np.array([-1, 5], np.float32), np.array([0, 9], np.float32)),
            spaces.MultiDiscrete([2, 4]),
        ],
    )
    def test_cover_the_space(self, space: Any) -> None:
        env = make_vector(partial(Counting, action_space=space), 50)
        scripted = Scripted(remembers=False)
        made = Collector(env, scripted, Clock(1000), seed=3)  # type: ignore[arg-type]
        made.start()
        spy = Spy()
        for _ in range(10):
            made.collect_step(spy, random=True)
        actions = np.concatenate(spy.actions)
        assert scripted.asked == 0
        assert actions.dtype == space.dtype and all(space.contains(a) for a in actions)
        if isinstance(space, spaces.Box):
            low, high = actions.min(0), actions.max(0)
            np.testing.assert_allclose(low, space.low, atol=0.2)
            np.testing.assert_allclose(high, space.high, atol=0.2)
        else:
            nvec = [space.n] if isinstance(space, spaces.Discrete) else space.nvec
            for column, n in zip(actions.reshape(500, -1).T, nvec, strict=True):
                assert sorted(set(column)) == list(range(n))

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Discrete(4),
            spaces.MultiDiscrete([2, 4]),
            spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [-2, 0]]),
        ],
        ids=str,
    )
    def test_keep_to_the_mask(self, space: Any) -> None:
        env = make_vector(partial(Identity, space, masked=True), 20)
        made = Collector(env, Constant(), Clock(1000), seed=3)  # type: ignore[arg-type]
        made.start()
        spy = Spy()
        for _ in range(20):  # the environment refuses what its mask forbids
            made.collect_step(spy, random=True)
        actions = np.concatenate(spy.actions)
        assert actions.dtype == space.dtype
        sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.ravel()
        for column, size in zip(actions.reshape(len(actions), -1).T, sizes, strict=True):
            assert sorted(set(column)) == list(range(size))  # the collector's actions begin at 0

    def test_a_part_whose_mask_allows_nothing_is_free(self) -> None:
        rng, mask = np.random.default_rng(0), np.array([[0, 0, 0, 0, 1]] * 60, np.int8)
        chosen = _allowed_choices(rng, np.array([2, 3]), mask)
        assert set(chosen[:, 0]) == {0, 1} and set(chosen[:, 1]) == {2}


class TestEpisodeStatistics:
    def test_only_valid_rewards_count(self) -> None:
        statistics = EpisodeStatistics(2)
        assert statistics.step(np.array([1.0, 5.0]), None, None) == 0
        assert statistics.step(np.array([9.0, 5.0]), None, np.array([F, T])) == 0
        assert statistics.step(np.array([2.0, 5.0]), np.array([T, F]), None) == 1
        assert list(statistics.recent) == [(3.0, 2)]
        assert statistics.metrics() == {"rollout/return_mean": 3.0, "rollout/length_mean": 2.0}

    def test_nothing_before_the_first_end(self) -> None:
        assert EpisodeStatistics(2).metrics() == {}

    def test_the_mean_is_over_the_last_hundred(self) -> None:
        statistics = EpisodeStatistics(1)
        for value in range(150):
            statistics.step(np.array([float(value)]), np.array([T]), None)
        assert statistics.metrics()["rollout/return_mean"] == np.mean(range(50, 150))

    def test_state_goes_round(self) -> None:
        one, two = EpisodeStatistics(2), EpisodeStatistics(2)
        for n in range(7):
            one.step(np.array([n, 2.0]), np.array([n % 3 == 2, F]), None)
        two.load_state(one.state())
        for statistics in (one, two):
            statistics.step(np.array([1.0, 1.0]), np.array([T, T]), None)
        assert list(one.recent) == list(two.recent)
        assert list(two.recent)[-1] == (2.0 * 7 + 1, 8)


class Constant:
    """Walks right, always."""

    gives_extras = False

    def cut_episodes(self) -> None:
        pass

    def design(self) -> None:
        return None

    def initial_carry(self, n: int) -> None:
        return None

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        return Action(np.ones(len(obs), np.int64))


class TestState:
    def make(self, env: Any, env_steps: int = 0) -> Collector:
        made = Collector(make_vector(env, 2), Constant(), Clock(1000, env_steps), seed=5)  # type: ignore[arg-type]
        made.start()
        return made

    def test_goes_on_where_it_was(self) -> None:
        one, two = self.make(Corridor), self.make(Corridor)
        spy = Spy()
        for _ in range(3):
            one.collect_step(spy, random=True)
        state = one.state()
        assert state["env"] is not None
        two.load_state(state)
        np.testing.assert_array_equal(one.obs, two.obs)
        for made in (one, two):
            for _ in range(3):
                made.collect_step(spy, random=True)
        np.testing.assert_array_equal(spy.actions[-3:], spy.actions[-6:-3])
        np.testing.assert_array_equal(one.obs, two.obs)
        assert list(one.episodes.recent) == list(two.episodes.recent)

    def test_begins_again_where_the_environment_cannot_say(self) -> None:
        class Noisy(Counting):
            def _observe(self) -> np.ndarray:
                return self.np_random.uniform(0, 9, 1).astype(np.float32)

        one = self.make(Noisy)
        rollout = Rollout(one.env.spaces, 4, 2)
        one.clock.env_steps += one.collect_rollout(rollout).env_steps
        one.start()  # what the loop does before it saves such a state
        state = one.state()
        assert state["env"] is None
        two = self.make(Noisy, env_steps=one.clock.env_steps)
        two.collect_rollout(rollout)
        two.clock.env_steps = one.clock.env_steps
        two.load_state(state)
        np.testing.assert_array_equal(one.obs, two.obs)
        assert one.episodes.lengths.tolist() == two.episodes.lengths.tolist() == [0, 0]
        # Every start is another one: its seed is of the run's seed and of the step.
        two.clock.env_steps += 8
        two.start()
        assert not np.array_equal(one.obs, two.obs)

    def test_a_start_is_of_seed_and_step(self) -> None:
        def first(seed: int, env_steps: int) -> Any:
            clock = Clock(1000, env_steps)
            made = Collector(gym_vector(), Constant(), clock, seed)  # type: ignore[arg-type]
            made.start()
            return made.obs.tolist()

        assert first(1, 0) == first(1, 0)
        assert first(1, 0) != first(2, 0)
        assert first(1, 0) != first(1, 8)


def gym_vector() -> Any:
    return make_vector(lambda: gym.make("CartPole-v1"), 2)


@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_is_whole_unless_steps_may_be_resets(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([partial(gym.make, "CartPole-v1")] * 2, autoreset_mode=mode)
    with make_vector(envs) as vector:
        algorithm = make_algorithm(
            "ppo", vector.spaces.observation, vector.spaces.action, num_envs=2, horizon=64,
            minibatch_size=64, hidden=(4,),
        )  # fmt: skip
        loop: Any = OnPolicyLoop(algorithm, vector, OnlineSettings())
        loop.start()
        loop.iterate()
        assert loop.rollout.whole is (mode is not AutoresetMode.NEXT_STEP)
        assert loop.rollout.valid.all() == loop.rollout.whole

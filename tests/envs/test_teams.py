"""Environments of several agents: joint spaces, PettingZoo, native ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from assay.core.errors import EnvError, SpaceError
from assay.envs.make import make_env, make_vector
from assay.envs.native.team import NativeTeam
from assay.envs.parameters import parameters, set_parameters
from assay.envs.teams import team_from_state, team_to_state
from assay.envs.vector import Vector
from assay.loops.collect import random_actions
from assay.testing.teams import Signals, TurnSignals

THREE, FOUR = spaces.Discrete(3), spaces.Discrete(4)


def roll(vector: Vector, steps: int, seed: int = 0) -> list[Any]:
    """Take random actions; return what every step gave, with the outcomes of agents."""
    rng, obs = np.random.default_rng(seed), vector.reset(5)
    found = [obs]
    for _ in range(steps):
        action = random_actions(rng, vector.spaces.action, vector.num_envs, obs.get("action_mask"))
        step = vector.step(action)
        obs = step[0]
        found.append((*step, vector.outcomes()))
    return found


def assert_equal(one: Any, two: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_equal(one[key], two[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(two)
        for pair in zip(one, two, strict=True):
            assert_equal(*pair)
    elif one is None:
        assert two is None
    else:
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("name", "settings", "limit"),
    [
        ("simple_spread_v3", {}, 25),
        ("simple_speaker_listener_v4", {"max_cycles": 7}, 7),
        ("simple_spread_v3", {"max_cycles": 20_000}, None),  # beyond what is played to the end
        ("assay/TwoStep-v0", {}, None),
    ],
)
def test_the_time_limit_of_a_native_team_is_known(
    name: str, settings: dict[str, Any], limit: int | None
) -> None:
    assert make_vector(name, 2, env_kwargs=settings).limit == limit


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("simple_spread_v3", {}),
        ("simple_spread_v3", {"N": 4, "continuous_actions": True, "local_ratio": 0.2}),
        ("simple_speaker_listener_v4", {}),
        ("simple_speaker_listener_v4", {"continuous_actions": True, "max_cycles": 7}),
    ],
)
def test_native_particles_are_mpes_step_for_step(name: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("mpe2")
    ours, theirs = (
        make_vector(name, 3, backend=backend, env_kwargs=settings) for backend in ("vector", "sync")
    )
    assert isinstance(ours.backend.env, NativeTeam)  # type: ignore[attr-defined]
    assert ours.spaces == theirs.spaces
    one, two = (roll(vector, 60) for vector in (ours, theirs))
    assert_equal(one[0], two[0])
    for a, b in zip(one[1:], two[1:], strict=True):
        # The team's reward is a mean, of float64 here and of float32 there.
        np.testing.assert_allclose(a[1], b[1], rtol=1e-5)
        assert_equal((a[0], *a[2:]), (b[0], *b[2:]))
    if name == "simple_spread_v3":
        rewards = np.stack([step[6]["agent_reward"] for step in one[1:]])
        assert (rewards != rewards[..., :1]).any(), "nobody has bumped into anybody"


def test_agents_are_pushed_apart() -> None:
    envs = make_vector("simple_spread_v3", 1).backend.env  # type: ignore[attr-defined]
    envs.reset(seed=0)
    envs._variables[0] = 0.0
    envs._variables[0, :6] = [0.0, 0.0, 0.25, 0.0, 0.9, 0.9]
    envs.step(np.zeros((1, 3), int))
    velocity = envs._variables[0].reshape(9, 2)[6:]
    # How deep: 0.3 - 0.25 = 0.05; force 100 * 0.05 = 5; a tenth of it is the new velocity.
    assert velocity[:, 0].tolist() == pytest.approx([-0.5, 0.5, 0.0], abs=1e-6)


def test_the_two_step_game() -> None:
    with make_vector("assay/TwoStep-v0", 4) as envs:
        first = envs.reset(0)
        assert first["state"].tolist() == [[1, 0, 0]] * 4
        obs, reward, terminated, *_ = envs.step(np.array([[0, 1], [1, 0], [1, 0], [1, 1]]))
        assert not reward.any() and not terminated.any()
        assert obs["obs"][:, 0].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
        obs, reward, terminated, truncated, _, final = envs.step(
            np.array([[0, 1], [0, 0], [0, 1], [1, 1]])
        )
        assert reward.tolist() == [7, 0, 1, 8] and terminated.all() and not truncated.any()
        assert envs.outcomes()["agent_reward"].tolist() == [[7, 7], [0, 0], [1, 1], [8, 8]]
        assert envs.outcomes()["agent_terminated"].all()
        assert final["state"][:2].tolist() == [[0, 1, 0], [0, 0, 1]]
        assert obs["state"].tolist() == [[1, 0, 0]] * 4


def test_matrix_games_pay_what_their_tables_say() -> None:
    with make_vector("assay/PrisonersDilemma-v0", 1, env_kwargs={"rounds": 2}) as envs:
        assert not envs.reset(0)["obs"].any()
        obs, reward, terminated, *_ = envs.step(np.array([[0, 1]]))
        assert envs.outcomes()["agent_reward"].tolist() == [[-3, 0]] and reward.tolist() == [-1.5]
        assert obs["obs"].tolist() == [[[1, 0, 0, 1], [0, 1, 1, 0]]] and not terminated.any()
        assert envs.step(np.array([[1, 1]]))[2].all()
    for name, action, paid in (
        ("Climbing", [0, 0], 11), ("Climbing", [0, 1], -30), ("Penalty", [2, 2], 10),
        ("Penalty", [0, 2], -100),
    ):  # fmt: skip
        with make_vector(f"assay/{name}-v0", 1) as envs:
            envs.reset(0)
            assert envs.step(np.array([action]))[1].tolist() == [paid]


def test_native_teams_go_on_from_where_they_were_saved() -> None:
    one, two = (make_vector("simple_spread_v3", 2) for _ in range(2))
    roll(one, 30)
    two.reset(99)
    two.set_state(one.get_state())  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    for _ in range(30):
        action = rng.integers(5, size=(2, 3))
        assert_equal(one.step(action), two.step(action))


def test_agents_that_leave_and_come_are_not_alive_before_and_after() -> None:
    with make_vector(lambda: Signals([THREE] * 3, moving=True), 1) as envs:
        found = roll(envs, 4)
        alive = [found[0]["alive"][0].tolist()] + [
            step[0]["alive"][0].tolist() for step in found[1:]
        ]
        # The last comes after one step; the first has left after two; then a new episode begins.
        assert alive == [[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 0]]
        ends = [step[6]["agent_terminated"][0].tolist() for step in found[1:]]
        assert ends == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1]]
        assert [bool(step[2][0]) for step in found[1:]] == [False, False, False, True]
        # The row of who has just left holds what it saw last, and zeros from then on.
        assert found[2][0]["obs"][0, 0].any() and not found[3][0]["obs"][0, 0].any()
        # The team's reward is the mean over all three, whoever is there.
        for step in found[1:]:
            assert step[1][0] == pytest.approx(step[6]["agent_reward"].mean())


def test_unequal_agents_are_padded_and_masked() -> None:
    with make_vector(lambda: Signals([THREE, FOUR], state=True), 2) as envs:
        obs = envs.reset(0)
        assert envs.spaces.action == spaces.MultiDiscrete([4, 4])
        assert obs["obs"].shape == (2, 2, 4) and not obs["obs"][:, 0, 3].any()
        assert obs["action_mask"].tolist() == [[1, 1, 1, 0, 1, 1, 1, 1]] * 2
        assert envs.spaces.team is not None and not envs.spaces.team.masks
        with pytest.raises(EnvError, match="Agent 'kinda_0' was given the action 3; it has 3"):
            envs.step(np.array([[3, 0], [0, 0]]))


def test_a_turn_is_a_step_and_pays_who_acts_next() -> None:
    with make_vector(lambda: TurnSignals([THREE] * 2, length=2), 1) as envs:
        obs = envs.reset(3)
        turns, paid = [], []
        for _ in range(4):
            turns.append(obs["alive"][0].tolist())
            right = obs["obs"][0].argmax(1)
            obs, _, terminated, truncated, *_ = envs.step(right[None])
            paid.append(envs.outcomes()["agent_reward"][0].tolist())
        assert turns == [[1, 0], [0, 1], [1, 0], [0, 1]]
        # Agent 0 is paid when its second turn comes, both once more when the episode is over.
        assert paid == [[0, 0], [1, 0], [0, 1], [1, 1]]
        assert terminated.all() and not truncated.any()
        assert envs.outcomes()["agent_terminated"].all()


def test_processes_step_teams_as_one_process_does() -> None:
    def make() -> Signals:
        return Signals([THREE, FOUR], masked=True, moving=True)

    one, two = (
        make_vector(make, 3, backend=backend, workers=1) for backend in ("sync", "processes")
    )
    with one, two:
        assert one.spaces == two.spaces
        assert_equal(roll(one, 9), roll(two, 9))


def test_a_team_survives_a_checkpoint() -> None:
    with make_vector(lambda: Signals([THREE, FOUR], masked=True)) as envs:
        assert team_from_state(team_to_state(envs.spaces.team)) == envs.spaces.team
    assert team_from_state(team_to_state(None)) is None


def test_an_id_may_name_a_function_of_a_module() -> None:
    with make_vector("assay.envs.native.games:make_two_step", 2) as envs:
        assert envs.spaces.team is not None and envs.spaces.team.agents == ("agent_0", "agent_1")


class _Broken(Signals):
    """Signals of which one thing is wrong."""

    def __init__(self, wrong: str) -> None:
        super().__init__([THREE] * 2, masked=True)
        self.wrong = wrong

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        if self.wrong == "reward":
            del rewards["kinda_1"]
        if self.wrong == "flag":
            del truncated["kinda_1"]
        if self.wrong == "leaves":
            self.agents = ["kinda_0"]
        if self.wrong == "stranger":
            self.agents.append("nobody")
        if self.wrong == "blind":
            del seen["kinda_0"]
        if self.wrong == "none":
            seen["kinda_0"] = None
        return seen, rewards, terminated, truncated, infos

    def _mask(self, agent: str) -> np.ndarray:
        return super()._mask(agent) * (self.wrong != "mask" or self.time == 0)


class _Stuck(TurnSignals):
    """Signals whose masks forbid everything from some time on."""

    def __init__(self, since: int) -> None:
        super().__init__([THREE] * 2, masked=True)
        self.since = since

    def _mask(self, agent: str) -> np.ndarray:
        return super()._mask(agent) * (self.time < self.since)


class _Endless(TurnSignals):
    def step(self, action: Any) -> None:
        if action is not None:
            super().step(action)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _Broken("reward"), "no reward for agent 'kinda_1', which acted; it has .*kinda_0"),
        (lambda: _Broken("flag"), "does not say whether agent 'kinda_1'"),
        (lambda: _Broken("leaves"), "'kinda_1' of .* has left, neither terminated nor truncated"),
        (lambda: _Broken("stranger"), "has the agent 'nobody', which is not in its"),
        (lambda: _Broken("blind"), "agent 'kinda_0' is to act, and sees nothing"),
        (lambda: _Broken("none"), "agent 'kinda_0' is to act, and sees nothing"),
        (lambda: _Broken("mask"), "'kinda_0' is to act after step 1 of .* forbids all its 3"),
        (lambda: _Stuck(1), "'kinda_0' is to act after step 2 of .* forbids all its 3 actions; "),
        (lambda: _Stuck(0), r"'kinda_0' is to act after reset\(\), and its action mask forbids"),
        (lambda: _Endless([THREE] * 2, length=1), "does not end: agent 'kinda_0' is out"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(make: Callable[[], Any], message: str) -> None:
    with make_vector(make, 1) as envs, pytest.raises(EnvError, match=message):
        roll(envs, 3)


class _Older(Signals):
    """Steps as PettingZoo's did before 1.22."""

    def step(self, actions: Any) -> Any:
        return super().step(actions)[:4]


class _Words(Signals):
    def _paid(self, agent: str, action: Any) -> Any:
        return "much"


class _Nothing(Signals):
    def _paid(self, agent: str, action: Any) -> Any:
        return np.nan


class _OneForAll(Signals):
    """Has one number where a dict is expected."""

    place = 1

    def step(self, actions: Any) -> Any:
        told = list(super().step(actions))
        told[self.place] = False
        return tuple(told)


class _Flag(_OneForAll):
    place = 3


class _Infos(_OneForAll):
    place = 4


class _Grows(Signals):
    state_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def state(self) -> np.ndarray:
        return np.zeros(1 + self.time, np.float32)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Older, r"does not return \(observations, rewards, terminations"),
        (_Words, "returned the reward 'much' for agent 'kinda_"),
        (_Nothing, "returned the reward nan for agent 'kinda_.'; a finite number"),
        (_OneForAll, r"returned False as rewards from step\(\); a dict with an entry for each"),
        (_Flag, r"returned False as truncations from step\(\); a dict"),
        (_Infos, r"returned False as infos from step\(\); a dict"),
        (_Grows, r"state\(\) has 2 entries, and had 1 at the first reset"),
    ],
)
def test_steps_of_another_form_are_named(kind: type[Signals], message: str) -> None:
    with make_vector(lambda: kind([THREE] * 2), 1) as envs, pytest.raises(EnvError, match=message):
        roll(envs, 1)


class _Bare(Signals):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0]


class _NoInfos(Signals):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0], None


class _Unseeded(Signals):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class _Empty(Signals):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        told = super().reset(seed, options)
        self.agents = []
        return told


class _Blind(TurnSignals):
    def observe(self, agent: str) -> Any:
        return None


class _Lost(TurnSignals):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.agent_selection = "nobody"


class _Masked(Signals):
    def _infos(self, agents: Any) -> Any:
        return {agent: {"action_mask": np.ones(2)} for agent in agents}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _Bare([THREE] * 2), r"does not return \(observations, infos\) from reset\(\)"),
        (lambda: _NoInfos([THREE] * 2), r"returned None as infos from reset\(\); a dict"),
        (lambda: _Unseeded([THREE] * 2), r"^'signals' failed in reset\(\): TypeError.*'seed'"),
        (lambda: _Empty([THREE] * 2), "over before anybody has acted: agents is empty"),
        (lambda: _Blind([THREE] * 2), "agent 'kinda_0' is to act, and sees nothing"),
        (lambda: _Lost([THREE] * 2), "has agent_selection='nobody'; one of its agents"),
        (lambda: _Masked([spaces.Box(-1.0, 1.0, (2,))]), "only Discrete ones can be masked"),
    ],
)
def test_resets_of_another_form_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(EnvError, match=message), make_vector(make, 1) as envs:
        envs.reset(0)


@pytest.mark.parametrize("names", [[0, 1], ["a", "a"], ["", "b"]])
def test_agents_have_names_of_their_own(names: Any) -> None:
    class Named(Signals):
        def __init__(self) -> None:
            super().__init__([THREE] * 2)
            self.possible_agents = names

    with pytest.raises(EnvError, match=r"has possible_agents=\[.*; different names, each a str"):
        make_vector(Named)


def test_a_reward_may_be_an_array_of_one_number() -> None:
    class Arrays(Signals):
        def _paid(self, agent: str, action: Any) -> Any:
            return np.array([0.5])

    with make_vector(lambda: Arrays([THREE] * 2), 1) as envs:
        assert roll(envs, 1)[1][1].tolist() == [0.5]


class _Listed(Signals):
    """Keeps everybody in `agents`, and goes on to say who is out."""

    def step(self, actions: Any) -> Any:
        self.agents = list(actions)
        told = super().step(actions)
        told[2]["kinda_0"] = self.time >= 2
        self.agents = list(self.possible_agents)
        return told


def test_an_agent_that_is_out_and_still_listed_does_not_come_back() -> None:
    with make_vector(lambda: _Listed([THREE] * 2, length=5), 1) as envs:
        alive = [step[0]["alive"].tolist() for step in roll(envs, 4)[1:]]
    assert alive == [[[1, 1]], [[0, 1]], [[0, 1]], [[0, 1]]]


class _CutOff(Signals):
    """Truncates, and allows nothing any more."""

    def step(self, actions: Any) -> Any:
        seen, rewards, over, _, infos = super().step(actions)
        if self.time == self.length:
            infos = {agent: {"action_mask": np.zeros(3)} for agent in seen}
        return seen, rewards, dict.fromkeys(over, False), over, infos


class _TurnsCutOff(TurnSignals):
    def last(self) -> Any:
        seen, earned, over, _, info = super().last()
        return seen, earned, False, over, {"action_mask": np.zeros(3)} if over else info


@pytest.mark.parametrize("kind", [_CutOff, _TurnsCutOff])
def test_nothing_need_be_allowed_when_an_episode_is_cut_off(kind: type[Signals]) -> None:
    with make_vector(lambda: kind([THREE] * 2, masked=True, length=1), 1) as envs:
        truncated, _, final = roll(envs, 2)[-1][3:6]
    assert truncated.all()
    assert final["alive"].all() and final["action_mask"].all()


class _Reporting(Signals):
    """Says of every agent whether it succeeded."""

    def _infos(self, agents: Any) -> Any:
        return {agent: {"is_success": agent == self.possible_agents[0]} for agent in agents}


class _TurnsReporting(TurnSignals):
    def last(self) -> Any:
        return *super().last()[:4], {"is_success": True}


@pytest.mark.parametrize(
    ("make", "success"),
    [
        (lambda: _Reporting([THREE], length=1), 1.0),
        (lambda: _Reporting([THREE] * 2, length=1), 0.0),  # of two, one has succeeded
        (lambda: _TurnsReporting([THREE] * 2, length=1), 1.0),
        (lambda: Signals([THREE] * 2, length=1), np.nan),
    ],
)
def test_a_team_has_succeeded_when_all_who_report_it_have(
    make: Callable[[], Any], success: float
) -> None:
    with make_vector(make, 1) as envs:
        envs.reset(0)
        over = False
        while not over:
            action = random_actions(np.random.default_rng(0), envs.spaces.action, 1, None)
            _, _, terminated, *_ = envs.step(action)
            over = bool(terminated.all())
        assert_equal(envs.success, np.array([success]))


class _Emptied(TurnSignals):
    def step(self, action: Any) -> None:
        super().step(action)
        if self.time == self.length:
            self.agents = []


def test_turns_that_end_without_a_last_one_are_named() -> None:
    with (
        make_vector(lambda: _Emptied([THREE] * 2, length=1), 1) as envs,
        pytest.raises(EnvError, match="emptied agents at once, so that nobody learns"),
    ):
        roll(envs, 2)


def test_an_environment_without_possible_agents() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")

    class Nameless(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]
        def observation_space(self, agent: str) -> Any:
            return THREE

    with pytest.raises(EnvError, match="possible_agents is empty or missing"):
        make_vector(Nameless())
    with pytest.raises(EnvError, match="possible_agents is empty or missing"):
        make_vector(Nameless)


def test_a_package_that_petting_zoo_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pettingzoo")
    monkeypatch.setitem(sys.modules, "pettingzoo.classic.tictactoe_v3", None)
    monkeypatch.delitem(gym.registry, "tictactoe_v3", raising=False)
    with pytest.raises(EnvError, match="'tictactoe_v3' of pettingzoo needs") as caught:
        make_vector("tictactoe_v3")
    # The extra of Assay does not bring it.
    assert caught.value.fix == "Install what it needs: pip install 'pettingzoo[classic]'"


def test_a_setting_that_petting_zoo_does_not_know_is_named() -> None:
    pytest.importorskip("mpe2")
    with pytest.raises(EnvError) as caught:
        make_vector("simple_tag_v3", env_kwargs={"num_goods": 1})
    assert "'simple_tag_v3' has no setting 'num_goods'" in caught.value.message
    assert "Traceback" not in caught.value.message


def test_spaces_that_do_not_fit_are_named() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    with pytest.raises(SpaceError, match="Give all agents Discrete actions"):
        make_vector(lambda: Signals([THREE, box]))
    several = spaces.MultiDiscrete([2, 2])
    with pytest.raises(SpaceError, match="Agent 'kinda_0' has the actions MultiDiscrete"):
        make_vector(lambda: _Odd([several]))
    whole = spaces.Box(-3, 3, (2,), np.int64)
    with pytest.raises(SpaceError, match="Use Discrete for whole numbers"):
        make_vector(lambda: Signals([whole]))


class _Odd(Signals):
    def _width(self, i: int) -> int:
        return 2


class _Tuples(gym.Env[Any, Any]):
    """Two agents by Gymnasium's interface: each is paid what it does."""

    observation_space = spaces.Tuple([spaces.Box(-9.0, 9.0, (2,)), spaces.Box(-9.0, 9.0, (3,))])
    action_space = spaces.Tuple([THREE, FOUR])

    def __init__(self, reward: Any = None, ends: Any = (False, True)) -> None:
        self.reward, self.ends = reward, ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return (np.ones(2, np.float32), np.full(3, 2, np.float32)), {"reward/all": 1.0}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        seen = self.reset()[0]
        return seen, self.reward or [float(a) for a in action], *self.ends, {}


def test_tuples_are_agents() -> None:
    with make_vector(_Tuples, 2) as envs:
        team = envs.spaces.team
        assert team is not None and team.agents == ("agent_0", "agent_1")
        assert envs.reset(0)["obs"].tolist() == [[[1, 1, 0], [2, 2, 2]]] * 2
        _, reward, terminated, truncated, *_ = envs.step(np.array([[2, 3], [0, 1]]))
        assert reward.tolist() == [2.5, 0.5] and truncated.all() and not terminated.any()
        assert envs.outcomes()["agent_reward"].tolist() == [[2, 3], [0, 1]]
    with make_vector(lambda: _Tuples(ends=([True, False], False)), 1) as envs:
        envs.reset(0)
        _, _, terminated, truncated, *_ = envs.step(np.array([[2, 3]]))
        assert not (terminated | truncated).any()  # one agent is done, and the other goes on
    with make_vector(lambda: _Tuples(ends=([True, False], [False, True])), 1) as envs:
        envs.reset(0)
        assert envs.step(np.array([[2, 3]]))[3].all()
        assert envs.outcomes()["agent_terminated"].tolist() == [[True, False]]


@pytest.mark.parametrize(("reward", "told"), [(1.5, "returned 1.5"), ([1, 2, 3], "3 of them")])
def test_tuples_without_a_reward_for_each_agent(reward: Any, told: str) -> None:
    with make_vector(lambda: _Tuples(reward), 1) as envs, pytest.raises(EnvError, match=told):
        roll(envs, 1)


class _Scaled(_Tuples):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: Signals([THREE] * 2, length=4), "length"), (_Scaled, "scale")]
)
def test_parameters_are_those_of_the_environment_itself(make: Callable[[], Any], name: str) -> None:
    with make_vector(make, 1) as envs:
        found = parameters(envs)
        assert name in found and not {"most", "steps"} & found.keys()
        set_parameters(envs, {name: 1.0})
        assert parameters(envs, [name])[name].tolist() == [1.0]


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(EnvError, match=r"'assay/TwoStep-v0' cannot be drawn: .*'render_mode'\."):
        make_env("assay/TwoStep-v0", env_kwargs={"render_mode": "rgb_array"})


def test_tuples_with_flags_of_others_are_named() -> None:
    with (
        make_vector(lambda: _Tuples(ends=([False] * 3, False)), 1) as envs,
        pytest.raises(EnvError, match="returned 3 of them as terminated; 2 were expected"),
    ):
        roll(envs, 1)


def test_games_that_are_seen_as_they_are_drawn_are_drawn() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    with make_vector("cooperative_pong_v6", 1) as envs:
        seen = envs.reset(0)["obs"]
        assert seen.dtype == np.uint8 and seen.min() < seen.max()


def test_petting_zoos_games_of_turns() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    with make_vector("tictactoe_v3", 2) as envs:
        found = roll(envs, 40)
        ends = [step[2] | step[3] for step in found[1:]]
        assert np.sum(ends) >= 4
        for step in found[1:]:
            paid = step[6]["agent_reward"]
            assert (paid.sum(1) == 0).all()  # who wins takes what the other loses
            over = step[2]
            assert (np.abs(paid).sum(1)[~over] == 0).all()

"""`assay test attack`: gradients by hand, bounds that hold, attacks beyond chance."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.errors import ConfigError
from assay.core.types import Spaces
from assay.envs.make import make_vector
from assay.networks.encoders import make_encoder
from assay.networks.heads import AtomHead, AtomMean, DuelingHead, SquashedGaussianHead
from assay.networks.normalize import RunningNormalizer
from assay.policies.heads import DeterministicHead, GreedyHead, SquashedHead, StochasticHead
from assay.policies.policy import Policy
from assay.robustness.acting import Overruled, Urgent, anything, by_chance, timed, worst
from assay.robustness.adversary import Deceiving, shift
from assay.robustness.attack import Plan, measure_attacks
from assay.robustness.bounds import Certifier
from assay.robustness.disturbed import Room, corners
from assay.robustness.gradients import GradientAttack, GradientPath, margin

LOOSE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
THREE = gym.spaces.Discrete(3)
TORQUE = gym.spaces.Box(-2, 2, (2,), np.float32)


def room(space: gym.spaces.Box = LOOSE, scale: Any = (1.0, 2.0, 0.5)) -> Room:
    return Room({"": space}, {"": np.array(scale, np.float32)})


def make_policy(
    network: nn.Module, head: Any, action: gym.Space[Any], normalizer: Any = None
) -> Policy:
    device, rng = torch.device("cpu"), np.random.default_rng(0)
    spaces = Spaces(LOOSE, action)
    return Policy(spaces, network, head, device=device, rng=rng, normalizer=normalizer)


def linear_policy(weight: Any) -> Policy:
    layer = nn.Linear(3, len(weight), bias=False)
    layer.weight.data = torch.tensor(weight)
    network = nn.Sequential(make_encoder(LOOSE, hidden=()), layer)
    return make_policy(network, StochasticHead(gym.spaces.Discrete(len(weight))),
                       gym.spaces.Discrete(len(weight)))  # fmt: skip


def states(count: int = 8, seed: int = 0) -> list[tuple[Any, None]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(1, 3)).astype(np.float32), None) for _ in range(count)]


def batch(count: int, seed: int = 0) -> np.ndarray:
    return np.concatenate([obs for obs, _ in states(count, seed)])


def test_fgsm_moves_every_number_against_the_choice_by_the_whole_budget() -> None:
    path = GradientPath(linear_policy([[1.0, -2.0, 3.0], [0.0, 0.0, 0.0]]), room(), states())
    obs = np.array([[5.0, 0.0, 0.0]], np.float32)  # chooses 0, whose lead is x0 - 2 x1 + 3 x2
    seen = GradientAttack(path, 0.1, 1, np.random.default_rng(0))(obs, None)
    # each by 0.1 of its scale, so that the lead falls
    assert seen - obs == pytest.approx(np.array([[-0.1, 0.2, -0.05]]), abs=1e-6)
    other = np.array([[-5.0, 0.0, 0.0]], np.float32)  # chooses 1
    seen = GradientAttack(path, 0.1, 1, np.random.default_rng(0))(other, None)
    assert seen - other == pytest.approx(np.array([[0.1, -0.2, 0.05]]), abs=1e-6)


def test_a_margin_is_to_the_best_other_action_that_is_valid() -> None:
    numbers = torch.tensor([[3.0, 1.0, 2.0]])
    assert margin(numbers, torch.tensor([0])).item() == -1.0
    assert margin(numbers, torch.tensor([0]), torch.tensor([[1, 1, 0]])).item() == -2.0
    assert margin(numbers, torch.tensor([1])).item() == 2.0


def make_values() -> nn.Module:
    torch.manual_seed(3)
    encoder = make_encoder(LOOSE, hidden=(16, 16), activation="tanh")
    return nn.Sequential(encoder, nn.Linear(16, 3))


def test_pgd_stays_within_ball_and_bounds_and_finds_more_than_fgsm_and_chance() -> None:
    policy = make_policy(make_values(), GreedyHead(THREE, None), THREE)
    tight = gym.spaces.Box(-1.5, 1.5, (3,), np.float32)
    path = GradientPath(policy, room(tight), states())
    obs = np.clip(batch(200), -1.5, 1.5)
    best = policy.act(obs).action

    def reached(attack: Any) -> torch.Tensor:
        seen = attack(obs, None)
        assert (np.abs(seen - obs) <= 0.3 * path.room.scales[""] + 1e-6).all()
        assert np.abs(seen).max() <= 1.5
        with torch.no_grad():
            return margin(path.numbers(torch.from_numpy(seen), None), torch.from_numpy(best))

    rng = np.random.default_rng
    pgd = reached(GradientAttack(path, 0.3, 20, rng(0)))
    fgsm = reached(GradientAttack(path, 0.3, 1, rng(0)))
    noise = reached(partial(corners, path.room, 0.3, rng(0)))
    assert (pgd >= noise - 1e-5).float().mean() > 0.97  # one corner of eight is the worst
    assert (pgd >= fgsm - 1e-5).all() and pgd.mean() > fgsm.mean() > noise.mean()
    assert ((pgd > 0).sum()) > 2 * (noise > 0).sum()  # choices that change


def test_box_actions_are_pushed_to_the_other_side() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(make_encoder(LOOSE, hidden=(16,)), nn.Linear(16, 2), nn.Tanh())
    policy = make_policy(network, DeterministicHead(TORQUE, lambda: 0.0), TORQUE)
    path = GradientPath(policy, room(), states())
    obs = batch(50)
    before = policy.act(obs).action
    after = policy.act(GradientAttack(path, 0.3, 10, np.random.default_rng(0))(obs, None)).action
    towards = (np.sign(before) * (after - before)).sum(1)
    assert (towards < 0).all()


def test_a_policy_without_gradients_is_refused_with_the_reason() -> None:
    class Cut(nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return (obs > 0).float()

    policy = make_policy(Cut(), GreedyHead(THREE, None), THREE)
    with pytest.raises(ConfigError, match="no gradients to attack it by: its actions are detached"):
        GradientPath(policy, room(), states())
    with pytest.raises(ConfigError, match="0 in all states"):
        GradientPath(linear_policy([[0.0] * 3] * 2), room(), states())


# Bounds


def test_the_bound_of_a_linear_policy_is_exact() -> None:
    path = GradientPath(linear_policy([[1.0, -2.0, 3.0], [0.0, 0.0, 0.0]]), room(), states())
    gap = Certifier(path).bound(np.array([[5.0, 0.0, 0.0]], np.float32), 0.1)
    # 5 - 0.1 (1 * 1 + 2 * 2 + 3 * 0.5)
    assert gap == pytest.approx([5 - 0.65], abs=1e-5)


HEADS = {
    "linear": lambda: nn.Linear(8, 3),
    "dueling": lambda: DuelingHead(8, 3, hidden=(8,)),
    "atoms": lambda: nn.Sequential(AtomHead(8, 3, 5, dueling=True), AtomMean()),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
def test_no_observation_in_the_box_is_beyond_the_bound(head: str, activation: str) -> None:
    torch.manual_seed(1)
    network = nn.Sequential(
        make_encoder(LOOSE, hidden=(8, 8), activation=activation), HEADS[head]()
    )
    normalizer = RunningNormalizer(LOOSE, clip=2.0)
    normalizer.update(batch(100, 5) * 2 + 1)
    policy = make_policy(network, GreedyHead(THREE, None), THREE, normalizer)
    path = GradientPath(policy, room(), states())
    obs, rng = batch(20), np.random.default_rng(2)
    best = policy.act(obs).action
    for budget in (0.03, 0.3, 2.0):
        bound = Certifier(path).bound(obs, budget)
        least = np.full(len(obs), np.inf)
        for _ in range(60):
            corner = rng.random() < 0.5
            moves = rng.uniform(-1, 1, obs.shape)
            moves = np.sign(moves) if corner else moves
            seen = (obs + budget * path.room.scales[""] * moves).astype(np.float32)
            with torch.no_grad():
                numbers = path.numbers(torch.from_numpy(seen), None)
            least = np.minimum(least, -margin(numbers, torch.from_numpy(best)).numpy())
        assert (bound <= least + 1e-4).all()
        if budget == 0.03:  # and it is not much below what can be found
            assert (least - bound).mean() < 0.25 * np.abs(least).mean() + 0.02


def test_box_bounds_contain_what_attacks_do_and_shrink_with_the_budget() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(make_encoder(LOOSE, hidden=(8,)), SquashedGaussianHead(8, 2))
    policy = make_policy(network, SquashedHead(TORQUE), TORQUE)
    path = GradientPath(policy, room(), states())
    obs, bounds = batch(20), []
    for budget in (0.01, 0.1, 1.0):
        attack = GradientAttack(path, budget, 10, np.random.default_rng(0))
        moved = np.abs(policy.act(attack(obs, None)).action - policy.act(obs).action).max(1) / 2
        bounds.append(Certifier(path).bound(obs, budget))
        assert (moved <= bounds[-1] + 1e-5).all()
    assert (bounds[0] < bounds[1]).all() and (bounds[1] <= bounds[2]).all()
    assert bounds[2].max() <= 2.0


def test_parts_without_a_bound_are_named() -> None:
    network = nn.Sequential(make_encoder(LOOSE, hidden=(8,), network="simba"), nn.Linear(8, 3))
    policy = make_policy(network, GreedyHead(THREE, None), THREE)
    with pytest.raises(ConfigError, match="no certified bound for a layer of the kind"):
        Certifier(GradientPath(policy, room(), states()))


# When, and what is done


def test_timed_attacks_are_made_where_most_is_at_stake() -> None:
    path = GradientPath(linear_policy([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), room(), states())
    obs = np.array([[0.1, 0, 0], [3.0, 0, 0], [-5.0, 0, 0], [0.2, 0, 0]], np.float32)
    urgent = Urgent(path, [(row[None], None) for row in obs], 0.5)
    assert urgent(obs, None).tolist() == [False, True, True, False]
    shown = timed(lambda obs, carry: obs + 1, urgent, obs, None)
    assert (shown - obs)[:, 0].tolist() == pytest.approx([0, 1, 1, 0])
    strong = make_policy(
        nn.Sequential(make_encoder(LOOSE, hidden=()), nn.Linear(3, 2), nn.Tanh()),
        DeterministicHead(TORQUE, lambda: 0.0), TORQUE,
    )  # fmt: skip
    rows = batch(9)
    decided = np.abs(strong.act(rows).action).mean(1)
    path = GradientPath(strong, room(), states())
    third = Urgent(path, [(row[None], None) for row in rows], 1 / 3)
    assert third(rows, None).tolist() == (decided >= np.sort(decided)[-3]).tolist()
    chance = by_chance(0.3, np.random.default_rng(0), np.zeros((10_000, 3)), None)
    assert chance.mean() == pytest.approx(0.3, abs=0.02)


def test_overruled_actions() -> None:
    policy = linear_policy([[3.0, 0, 0], [2.0, 0, 0], [1.0, 0, 0]])
    path = GradientPath(policy, room(), states())
    obs = np.tile(np.array([[1.0, 0, 0]], np.float32), (2_000, 1))
    rng = np.random.default_rng(0)
    agent = Overruled(policy, THREE, partial(worst, THREE, path), 0.25, rng)
    actions = agent.act(obs, None, False).action
    assert set(actions) == {0, 2} and (actions == 2).mean() == pytest.approx(0.25, abs=0.03)
    own = np.array([[1.0, -0.5]], np.float32)
    assert worst(TORQUE, None, obs, None, own).tolist() == [[-2.0, 2.0]]
    still: Any = linear_policy([[1.0, 0, 0]])
    still.act = lambda *given: type("A", (), {"action": own, "carry": None, "extras": {}})
    mixed = Overruled(still, TORQUE, partial(worst, TORQUE, None), 0.25, rng).act(obs, None, False)
    assert mixed.action.tolist() == [[0.75 * 1.0 - 0.5, 0.75 * -0.5 + 0.5]]
    drawn = anything(TORQUE, rng, obs, None, np.zeros((50, 2)))
    assert drawn.shape == (50, 2) and np.abs(drawn).max() <= 2


# Adversaries


def test_an_adversary_gets_what_the_run_loses_and_moves_what_it_sees() -> None:
    moved = shift(room(), np.zeros((1, 3), np.float32), np.array([[1.0, -5.0, 0.5]]), 0.1)
    assert moved == pytest.approx(np.array([[0.1, -0.2, 0.025]]))
    with make_vector("CartPole-v1", 4) as vector:
        space: Any = vector.spaces.observation
        seen = []

        class Left:
            def initial_carry(self, n: int) -> None:
                return None

            def act(self, obs: Any, carry: Any, explore: bool) -> Any:
                seen.append(obs)
                return type("A", (), {"action": np.zeros(len(obs), int), "carry": None})

        env = Deceiving(vector, Left(), room(space, (1.0,) * 4), 0.5)  # type: ignore[arg-type]
        first, _ = env.reset(seed=0)
        ended = False
        for _ in range(15):
            obs, reward, terminated, _, info = env.step(np.ones((4, 4), np.float32))
            assert reward.tolist() == [-1.0] * 4
            if terminated.any():
                assert np.abs(info["final_obs"][terminated, 2]).min() > 0.2  # the pole has fallen
                assert np.abs(obs[terminated, 2]).max() < 0.1  # and the next one stands
                ended = True
        assert ended and seen[0] == pytest.approx(np.clip(first + 0.5, space.low, space.high))


def test_too_many_numbers_for_an_adversary() -> None:
    big = gym.spaces.Box(0, 255, (64, 64), np.uint8)
    vector: Any = type("V", (), {"resets_in_steps": False, "name": "x"})
    with pytest.raises(ConfigError, match="would have to learn 4,096 numbers"):
        Deceiving(vector, vector, Room({"": big}, {"": np.ones((64, 64), np.float32)}), 0.1)


# Runs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attacks": ("pdg",)}, "Did you mean 'pgd'"),
        ({"budgets": (0.0,)}, "expected numbers above 0"),
        ({"shares": (1.5,)}, "at most 1"),
        ({"steps": 0}, "at least 1"),
        ({"attacks": ()}, "No attack is named"),
    ],
)
def test_a_bad_plan_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**given)


def test_pgd_hurts_where_noise_of_the_same_size_does_not(balancing: Path) -> None:
    plan = Plan(attacks=("random", "pgd"), budgets=(3.0,), steps=2)
    result = measure_attacks([balancing], plan, episodes=8)
    noise, pgd = result.verdict.cells
    (more,) = result.beyond.values()
    assert more.low > 0 and pgd.mean < noise.mean
    assert result.certified is not None
    figures = result.certified[3.0]
    assert figures["certified_share"] + figures["attacked_share"] <= 1
    # A linear policy is certified exactly: what is not certified, PGD changes.
    assert figures["certified_share"] + figures["attacked_share"] == pytest.approx(1)


def test_the_command_reports_attacks_with_an_adversary(balancing: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = CliRunner().invoke(
        app,
        ["test", "attack", str(balancing), "--attacks", "random,adversary,action,reward",
         "--budgets", "2", "--shares", "0.5", "--adversary-steps", "64", "--episodes", "4",
         "--out", str(out), "--tolerance", "0.1", "--json"],
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert [cell["axis"] for cell in found["cells"]] == [
        "random", "adversary", "action", "action_random", "reward",
    ]  # fmt: skip
    assert {one["axis"] for one in found["beyond_control"]} == {"adversary", "action"}
    assert found["certified"][0]["budget"] == 2
    text = (out / "report.md").read_text()
    assert "## Beyond chance" in text and "## Certified" in text
    assert (out / "losses.svg").stat().st_size > 1000
    assert (out / "runs" / "1" / "adversary" / "config.yaml").is_file()
    again = (out / "runs" / "1" / "reward-0.5" / "config.yaml").read_text()
    assert "flip_reward: 0.5" in again and "hidden: []" in again


def test_mistakes_exit_with_2_and_write_nothing(balancing: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    for wrong in (["--attacks", "pdg"], ["--budgets", "a"], ["--tolerance", "2"]):
        result = CliRunner().invoke(
            app, ["test", "attack", str(balancing), "--out", str(out), *wrong]
        )
        assert result.exit_code == 2, result.output
    assert not out.exists()

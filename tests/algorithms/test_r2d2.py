"""R2D2: the contract, its numbers by hand, and that it learns what needs memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.algorithms import r2d2
from assay.algorithms.r2d2 import R2D2
from assay.core.errors import ConfigError
from assay.core.types import SequenceBatch, tree_map
from assay.networks.rnn import Memory
from assay.optim.parameters import flatten_parameters
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Case,
    Rig,
    make_algorithm,
)
from assay.testing.envs import Corridor, Identity, Recall

SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 4, "train_every": 8, "target_every": 2,
    "sequence": 4, "burn_in": 2, "overlap": 1, "n_step": 2, "hidden": (8,), "memory_size": 8,
}  # fmt: skip
SEEN, ACTIONS = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)


class TestContract(AlgorithmContract):
    algorithm = "r2d2"
    settings = SMALL
    compiled_settings = {"sequence": 2, "burn_in": 1}  # noqa: RUF012
    test_exported_policy_is_the_agent = None  # it has none: see below


class TestContractOfTheTransformer(AlgorithmContract):
    algorithm = "r2d2"
    settings = SMALL | {"memory": "transformer", "context": 4, "prioritized": False}
    test_exported_policy_is_the_agent = None
    test_compiled_step_does_what_the_eager_one_does = None  # done above, and it takes its time

    def cases(self) -> Iterator[Case]:
        yield Case("discrete_masked", spaces.Discrete(4), masked=True)


class Tally(Memory):
    """Remembers w times the sum of all that it has seen: s' = s + w x."""

    def __init__(self, kind: str, features: int, size: int, **options: Any) -> None:
        super().__init__()
        self.in_features = self.out_features = features
        self.w = nn.Parameter(torch.ones(()))

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {"sum": np.zeros((n, self.out_features), np.float32)}

    def forward(self, x: Tensor, carry: dict[str, Tensor], is_first: Tensor) -> Any:
        s, sums = carry["sum"], []
        for seen, first in zip(x, is_first, strict=True):
            s = s * (1 - first).unsqueeze(1) + self.w * seen
            sums.append(s)
        return torch.stack(sums), {"sum": s}


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes R2D2 with a tally as memory and known action values."""
    monkeypatch.setattr(r2d2, "make_memory", Tally)

    def make(observation: Any = SEEN, **settings: Any) -> R2D2:
        plain = {"hidden": (), "dueling": False, "gamma": 0.5, "n_step": 2}
        if settings.get("rescale", True):
            plain["rescale_eps"] = 0.0  # h(3) = 1, h(8) = 2, and h^-1 the other way round
        cut = {"sequence": 3, "burn_in": 0, "overlap": 0, "batch_size": 2}
        algorithm = make_algorithm("r2d2", observation, ACTIONS, **(plain | cut | settings))
        # Online Q = s, 3 - s. Target Q = s - 1, 5.
        fill(algorithm.q, [1.0, -1.0], [0.0, 3.0])
        fill(algorithm.target, [1.0, 0.0], [-1.0, 5.0])
        return algorithm

    return make


def fill(network: Any, slope: list[float], bias: list[float]) -> None:
    layer = network.head[0]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(slope).unsqueeze(1))
        layer.bias.copy_(torch.tensor(bias))


# The tally is 1, 2, 2, then 3 in the first sequence, which goes on after its end; and 1, 2, then 3
# in the second, which begins and ends its episode and is padded (with something to trip over).
#   s   online Q   best   target Q   h^-1 of what the online network prefers
#   2   2, 1       0      1, 5       3
#   3   3, 0       0      2, 5       8
def items(**more: Any) -> SequenceBatch:
    columns = {
        "obs": [[[0], [1], [0], [1]], [[1], [1], [1], [0]]],
        "action": [[1, 0, 0], [0, 0, 1]],
        "reward": [[2.75, -1, 4], [6.5, 3, 50]],
        "terminated": [[0, 0, 0], [0, 1, 0]],
        "truncated": [[0, 0, 0], [0, 0, 0]],
        "is_first": [[0, 0, 0], [1, 0, 0]],
        "valid": [[1, 1, 1], [1, 1, 0]],
        "carry": {"sum": [[1.0], [7.0]]},  # forgotten where an episode begins
        "weight": [1.0, 1.0],
        "index": [7, 3],
    }
    named = {k: tree_map(lambda x: torch.tensor(x).float(), v) for k, v in (columns | more).items()}
    return SequenceBatch(**named | {k: named[k].long() for k in ("action", "index")})


def loss_of(algorithm: R2D2, batch: SequenceBatch) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a batch that goes in through `update`, and its metrics."""
    caught = []

    def look(named: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        caught.append(algorithm._loss(named))
        return caught[-1]

    [objective] = algorithm.step.objectives
    object.__setattr__(objective, "loss", look)
    algorithm.update(CannedReplay(batch))
    return caught[0][0].item(), caught[0][1]


class TestLoss:
    def test_by_hand(self, tally: Any) -> None:
        loss, metrics = loss_of(tally(), items())
        # First: 2.75 - 1/2 + 3/4 = 3; -1 + 4/2 + 8/4 = 3; and 4 + 8/2 = 8, one step being left:
        # h = 1, 1, 2. Q = 2, 2, 2: errors 1, 1, 0.
        # Second: 6.5 + 3/2 = 8; 3: h = 2, 1. Q = 1, 2: errors -1, 1.
        assert loss == pytest.approx(0.5 * (1 + 1 + 0 + 1 + 1) / 5)
        assert metrics["q_mean"].item() == pytest.approx((2 + 2 + 2 + 1 + 2) / 5)
        # 0.9 max + 0.1 mean over the steps that are there
        assert metrics["priority"].tolist() == pytest.approx([0.9 + 0.1 * 2 / 3, 0.9 + 0.1])

    def test_truncation_bootstraps(self, tally: Any) -> None:
        flags = {"terminated": [[0, 0, 0]] * 2, "truncated": [[0, 0, 0], [0, 1, 0]]}
        rewards = [[2.75, -1, 4], [6.5, -1, 50]]
        # Second: 6.5 - 1/2 + 8/4 = 8 and -1 + 8/2 = 3, as before.
        loss, metrics = loss_of(tally(), items(reward=rewards, **flags))
        assert loss == pytest.approx(0.4)
        assert metrics["priority"].tolist() == pytest.approx([0.9 + 0.1 * 2 / 3, 1.0])

    def test_importance_weights(self, tally: Any) -> None:
        loss, _ = loss_of(tally(), items(weight=[1.0, 0.5]))
        assert loss == pytest.approx(0.5 * (2 + 0.5 * 2) / 5)

    def test_masked_actions_are_not_bootstrapped_from(self, tally: Any) -> None:
        space = spaces.Dict({"obs": SEEN, "action_mask": spaces.MultiBinary(2)})
        plain = items()
        # Only action 1 in what follows the first sequence: worth 5 there, and h^-1(5) = 35.
        mask = torch.ones(2, 4, 2, dtype=torch.int8)
        mask[0, 3, 0] = 0
        plain.obs = {"obs": plain.obs, "action_mask": mask}
        _, metrics = loss_of(tally(space), plain)
        # 3; -1 + 4/2 + 35/4 = 9.75; 4 + 35/2 = 21.5
        errors = [1.0, 10.75**0.5 - 3, 22.5**0.5 - 3]
        first = 0.9 * max(errors) + 0.1 * sum(errors) / 3
        assert metrics["priority"].tolist() == pytest.approx([first, 1.0])

    def test_without_rescaling_by_hand(self, tally: Any) -> None:
        loss, metrics = loss_of(tally(rescale=False), items())
        # Target values of 2 and 3 are 1 and 2. First: 2.75 - 1/2 + 1/4 = 2.5;
        # -1 + 4/2 + 2/4 = 1.5; 4 + 2/2 = 5. Q = 2, 2, 2: errors -0.5, 0.5, -3.
        # Second: 6.5 + 3/2 = 8; 3. Q = 1, 2: errors -7, -1.
        assert loss == pytest.approx(0.5 * (0.25 + 0.25 + 9 + 49 + 1) / 5)
        assert metrics["priority"].tolist() == pytest.approx([2.7 + 0.4 / 3, 6.3 + 0.4])

    def test_rewards_are_scaled(self, tally: Any) -> None:
        algorithm = tally(normalize_reward=True)
        # Returns 0, 8, 0, 8 of episodes of one step: a deviation of 4.
        algorithm.update_reward_stats(np.array([[0.0], [8], [0], [8]]), np.ones((4, 1), bool))
        raw = items(reward=[[11.0, -4, 16], [26, 12, 200]])
        assert loss_of(algorithm, raw)[0] == pytest.approx(0.4)  # as by hand
        assert raw.reward[0].tolist() == [11, -4, 16]

    def test_rescaling_has_its_epsilon(self, tally: Any) -> None:
        algorithm = tally(rescale_eps=0.5, gamma=0.0)
        rewards = [[3.0, 3, 3], [3, 3, 0]]  # h = 1 + 1.5
        loss, _ = loss_of(algorithm, items(reward=rewards))
        assert loss == pytest.approx(0.5 * (3 * 0.5**2 + 1.5**2 + 0.5**2) / 5)


class TestBurnIn:
    """One step of burn-in before two; what is seen is 1, so the tally counts."""

    def batch(self, is_first: int, reward: list[float]) -> SequenceBatch:
        return items(
            obs=[[[1]] * 4], action=[[0, 0, 0]], reward=[reward],
            terminated=[[0] * 3], truncated=[[0] * 3], weight=[1.0],
            is_first=[[is_first, 0, 0]], valid=[[1, 1, 1]], carry={"sum": [[1.0]]}, index=[0],
        )  # fmt: skip

    def gradient(self, algorithm: R2D2, batch: SequenceBatch) -> tuple[float, float]:
        """Return loss and dloss/dw, from what Adam has seen in one step."""
        loss, _ = loss_of(algorithm, batch)
        names = [name for name, _ in algorithm.q.named_parameters()]
        assert names[0] == "memory.w"
        first_moment = algorithm.step.moments["q"]["first"][0].item()
        return loss, first_moment / 0.1

    def test_no_gradient_flows_through_it(self, tally: Any) -> None:
        algorithm = tally(burn_in=1, sequence=2, gamma=0.0, max_grad_norm=None, batch_size=1)
        # From the stored 1: s = 2; then 3, 4 against h(3) = 1, h(8) = 2: errors 2, 2.
        # ds/dw = 1, 2, were it not for burn-in 2, 3.
        found = self.gradient(algorithm, self.batch(0, [0.0, 3.0, 8.0]))
        assert found == pytest.approx((0.5 * (4 + 4) / 2, (2 * 1 + 2 * 2) / 2))

    def test_an_episode_is_learned_from_its_beginning(self, tally: Any) -> None:
        algorithm = tally(burn_in=1, sequence=2, gamma=0.0, max_grad_norm=None, batch_size=1)
        # s = 1, 2, 3 against 0, 1, 2: errors 1, 1, 1. ds/dw = 1, 2, 3.
        found = self.gradient(algorithm, self.batch(1, [0.0, 3.0, 8.0]))
        assert found == pytest.approx((0.5, (1 + 2 + 3) / 3))

    def test_the_target_network_is_warmed_up_too(self, tally: Any) -> None:
        algorithm = tally(burn_in=1, sequence=2, gamma=1.0, n_step=1, batch_size=1)
        fill(algorithm.target, [0.25, 0.0], [-0.75, 0.0])
        with torch.no_grad():
            algorithm.target.memory.w.fill_(2.0)
        # Its tally from the stored 1: 3 (burn-in), 5, 7, 9. After step 1 it is 7: (7 - 3)/4 = 1,
        # h^-1 = 3; after step 2 it is 9: 1.5, h^-1 = 5.25. Targets: h(3) = 1, h(2.75 + 5.25) = 2.
        loss, metrics = loss_of(algorithm, self.batch(0, [0.0, 0.0, 2.75]))
        assert loss == pytest.approx(0.5 * (2**2 + 2**2) / 2)
        assert metrics["priority"].tolist() == pytest.approx([2.0])


class TestUpdate:
    def test_priorities_are_written_after_the_loss(self, tally: Any) -> None:
        algorithm = tally(priority_beta="linear:0.4:1", lr=0.1)
        algorithm.clock.env_steps = 500  # of 1000
        replay = CannedReplay(items())
        algorithm.update(replay)
        assert replay.calls == [(2, pytest.approx(0.7))]
        [(index, priorities)] = replay.priorities
        assert index == [7, 3] and priorities == pytest.approx([0.9 + 0.2 / 3, 1.0])

    def test_target_is_copied_when_due_or_follows_slowly(self, tally: Any) -> None:
        algorithm = tally(target_every=2, lr=0.1)
        for update in range(1, 5):
            algorithm.update(CannedReplay(items()))
            target, online = (flatten_parameters(m) for m in (algorithm.target, algorithm.q))
            assert torch.equal(target, online) == (update % 2 == 0)
        slow = tally(tau=0.25, lr=0.1)
        before = slow.step.flats[slow.target].clone()
        slow.update(CannedReplay(items()))
        expected = 0.75 * before + 0.25 * slow.step.flats[slow.q]
        torch.testing.assert_close(slow.step.flats[slow.target], expected)

    def test_asks_for_whole_sequences(self) -> None:
        settings = {"sequence": 20, "burn_in": 10, "overlap": 5, "gamma": 0.9}
        needs = make_algorithm("r2d2", SEEN, ACTIONS, **settings).needs
        # Two sequences share the burn-in of the second and the overlap.
        assert (needs.sequence, needs.overlap, needs.gamma) == (30, 15, 0.9)
        assert needs.prioritized == 0.9 and not needs.cross_episodes
        plain = make_algorithm("r2d2", SEEN, ACTIONS, prioritized=False)
        assert plain.needs.prioritized is None


class TestAct:
    @pytest.mark.parametrize("memory", ["lstm", "gru", "transformer"])
    def test_stepping_is_unrolling(self, memory: str) -> None:
        algorithm = make_algorithm("r2d2", SEEN, ACTIONS, memory=memory, memory_size=8, burn_in=3)
        rng = np.random.default_rng(0)
        obs = rng.standard_normal((6, 2, 1), dtype=np.float32)
        carry, stepped = algorithm.initial_carry(2), []
        start = tree_map(torch.from_numpy, carry)
        for seen in obs:
            values, carry = algorithm.policy.advance(seen, carry)
            stepped.append(values.copy())
        unrolled = algorithm.q(torch.from_numpy(obs), start, torch.zeros(5, 2))
        np.testing.assert_allclose(np.stack(stepped), unrolled.detach(), rtol=1e-4, atol=1e-5)

    def test_epsilon_of_every_environment(self) -> None:
        settings = {"epsilon": 0.4, "epsilon_alpha": 7.0, "num_envs": 3}
        algorithm = make_algorithm("r2d2", SEEN, ACTIONS, **settings)
        assert algorithm.epsilons(3).tolist() == pytest.approx([0.4, 0.4**4.5, 0.4**8])
        assert make_algorithm("r2d2", SEEN, ACTIONS, epsilon=0.4).epsilons(3) == 0.4

    def test_share_of_random_actions(self) -> None:
        settings = {"epsilon": "linear:1:0.2:0.5", "epsilon_alpha": 1.0, "num_envs": 4000}
        algorithm = make_algorithm("r2d2", SEEN, spaces.Discrete(4), hidden=(8,), **settings)
        obs, carry = np.ones((4000, 1), np.float32), algorithm.initial_carry(4000)
        greedy = algorithm.act(obs, carry, False).action
        algorithm.clock.env_steps = 1000
        same = algorithm.act(obs, carry, True).action == greedy
        # From 0.2 at one end to 0.04 at the other; a random action is the best one in four.
        assert same[:1000].mean() == pytest.approx(1 - 0.2 ** (1 + 1 / 8) * 3 / 4, abs=0.05)
        assert same[-1000:].mean() == pytest.approx(1 - 0.2 ** (1 + 7 / 8) * 3 / 4, abs=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overlap": 80}, "overlap=80 is not less than sequence=80"),
        ({"context": 8}, "context=8 has no effect with memory=lstm"),
        ({"rescale": False, "rescale_eps": 0.1}, "rescale_eps=0.1 has no effect"),
        ({"heads": 2, "memory": "gru"}, "heads=2 has no effect with memory=gru"),
        ({"prioritized": False, "priority_alpha": 0.5}, "with prioritized=false"),
        ({"prioritized": False, "priority_beta": 0.5}, "with prioritized=false"),
        ({"tau": 0.1, "target_every": 7}, "target_every=7 has no effect"),
        ({"epsilon_alpha": 7.0}, "with num_envs=1"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm("r2d2", SEEN, ACTIONS, **settings)


QUICK = {
    "num_envs": 8, "buffer_size": 8000, "learning_starts": 200, "train_every": 16, "lr": 0.004,
    "adam_eps": 1e-5, "batch_size": 16, "target_every": 20, "gamma": 0.9, "hidden": (16,),
    "memory_size": 16, "n_step": 2, "epsilon": "linear:1:0.05:0.5", "overlap": 0, "burn_in": 0,
}  # fmt: skip


class TestLearns:
    @pytest.mark.parametrize("memory", ["lstm", "gru", "transformer"])
    def test_to_remember(self, memory: str) -> None:
        settings = QUICK | {"sequence": 6, "memory": memory}
        rig = Rig("r2d2", partial(Recall, 4), env_steps=3000, **settings)
        assert rig.train().score(50) == 1.0  # without memory: 0.5

    def test_what_lies_before_the_sequence(self) -> None:
        """The cue is in the stored state and in the burn-in, not among the steps learned from."""
        settings = QUICK | {"sequence": 3, "burn_in": 2, "epsilon_alpha": 1.0}
        rig = Rig("r2d2", partial(Recall, 4), env_steps=4500, **settings)
        assert rig.train().score(50) == 1.0

    def test_the_right_answer_among_valid_ones(self) -> None:
        env = partial(Identity, spaces.Discrete(4), masked=True)
        rig = Rig("r2d2", env, env_steps=2500, **(QUICK | {"sequence": 8}))
        assert rig.train().score() == 8.0

    def test_to_look_ahead(self) -> None:
        rig = Rig("r2d2", Corridor, env_steps=2500, **(QUICK | {"sequence": 6, "burn_in": 2}))
        assert rig.train().score() == 1.0

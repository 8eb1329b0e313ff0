"""Recurrent policies learn from segments: every step with the memory that its client had."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_support import Client, Corridor, Cue, Server, learn, score, spec_for, train
from test_learner_feed import Hand, Line

from assay.buffers.rollout import Rollout
from assay.core.types import tree_map
from assay.server.client.policy import Policy
from assay.server.client.shield import Flag
from assay.server.client.spaces import make_spec
from assay.server.learner.rollout_feed import Piece
from assay.server.learner.sequence_feed import Memory, SequenceFeed

Array = np.ndarray[Any, Any]
MEMORY = {"memory_size": 16, "head_hidden": [16], "hidden": [16], "chunk": 8}
SMALL = {
    "horizon": 12, "minibatch_size": 12, "chunk": 4, "hidden": [8], "memory_size": 5,
    "head_hidden": [8], "epochs": 1,
}  # fmt: skip
STILL = {"lr": 1e-12}  # so that every version is the first one


class Long(gym.Env[Any, Any]):
    """An episode that goes on and on, of which a policy sees noise."""

    observation_space = gym.spaces.Box(-5, 5, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._seen(), float(self.np_random.normal()), False, self.t == 100, {}

    def _seen(self) -> Array:
        return self.np_random.normal(size=2).astype(np.float32)


class Updates:
    """Keeps the rollouts that an update was given, in place of the update."""

    def __init__(self, server: Server) -> None:
        self.rollouts: list[Rollout] = []
        server.learner.algorithm.update = self.rollouts.append  # type: ignore[method-assign]


def recurrent_server(**changes: Any) -> Server:
    return Server(spec_for(Line(), "recurrent_ppo", **(SMALL | changes)))


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_it_learns_what_only_a_memory_can(memory: str) -> None:
    settings = MEMORY | {
        "lr": 5e-3, "horizon": 64, "num_envs": 4, "minibatch_size": 64, "memory": memory, "seed": 1,
        "entropy_coef": 0.03,
    }  # fmt: skip
    before, _, server = learn(Cue, "recurrent_ppo", 120, 64, settings)
    assert before < 0.9
    assert score(server.policy, Cue(), 50) > 0.9


def test_without_a_memory_it_is_chance() -> None:
    settings = {"lr": 5e-3, "horizon": 64, "num_envs": 4, "minibatch_size": 64, "hidden": [16]}
    _, _, server = learn(Cue, "ppo", 120, 64, settings)
    assert abs(score(server.policy, Cue(), 50)) < 0.5


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_ratio_is_one_while_the_policy_is_the_clients(
    memory: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, rollouts and episodes end at different steps; the memory runs on across them all."""
    settings = SMALL | STILL | {"horizon": 48, "memory": memory, "memory_layers": layers}

    def divergence() -> float:
        server = Server(spec_for(Long(), "recurrent_ppo", **settings))
        algorithm: Any = server.learner.algorithm
        with torch.no_grad():
            for parameter in algorithm.net.head.parameters():
                parameter.mul_(30.0)  # else the memory hardly moves the policy
        snapshot = algorithm.policy.snapshot(algorithm.spec.name, version=1, epoch=1)
        clients = [Client(server, Long(), f"client-{i}", i) for i in range(3)]
        policies = [Policy(snapshot) for _ in clients]
        for number, steps in enumerate([7, 20, 13, 31, 5, 40, 17, 29, 50, 11, 23, 90]):
            client = clients[number % 3]
            server.send(client.name, client.play(steps, policies[number % 3]))
        assert server.version == 7
        return max(abs(one.metrics["train/approx_kl"]) for one in server.publications[1:])

    assert divergence() < 1e-7

    # With an empty memory where an episode goes on, it would not be.
    def forgetful(feed: SequenceFeed, piece: Piece) -> Memory:
        return Memory(piece.first, 1, feed.algorithm.initial_carry(1))

    monkeypatch.setattr(SequenceFeed, "_memory_before", forgetful)
    assert divergence() > 1e-4


def test_the_steps_of_a_client_begin_with_what_it_remembers() -> None:
    server = recurrent_server()
    seen = Updates(server)
    one, two = Hand(server, "one"), Hand(server, "two", 100)
    one.send(3, ends={1: "terminated"})  # 0, 1 | 11, goes on with 12
    two.send(5)
    one.send(3, ends={1: "truncated"})  # 12, 13, followed by 14 | 23
    two.send(4)  # 105 is the last that fits; then 106 .. 108
    [data] = seen.rollouts
    # One client's six steps, two rows to the next multiple of the chunk, and the other's.
    assert np.flatnonzero(~data.valid[:, 0]).tolist() == [6, 7, 14, 15]
    assert data.obs[:6, 0, 0].tolist() == [0, 1, 11, 12, 13, 23]
    assert data.obs[8:14, 0, 0].tolist() == [100, 101, 102, 103, 104, 105]
    assert data.reward[:6, 0].tolist() == [0, 1, 11, 12, 13, 23]
    assert np.flatnonzero(data.terminated[:, 0]).tolist() == [1]
    assert np.flatnonzero(data.truncated[:, 0]).tolist() == [4, 5, 13]
    finals, runs = data.finals, data.runs
    assert finals is not None
    followed = dict(zip(finals.step.tolist(), finals.obs[:, 0].tolist(), strict=True))
    assert followed == {4: 14, 5: 24, 13: 106}
    assert runs.step.tolist() == [0, 8] and runs.length.tolist() == [6, 6]
    assert all((part == 0).all() for part in runs.carry.values())
    assert data.policy_weight[data.valid].all()
    # The memory after a final is what acting through the episode leaves.
    policy, carry = server.learner.algorithm, server.learner.algorithm.initial_carry(1)
    for n in range(100, 106):
        carry = policy.act(np.array([[n]], np.float32), carry, False).carry
    [k] = np.flatnonzero(finals.step == 13)
    tree_map(lambda x, y: np.testing.assert_allclose(x[k], y[0], atol=1e-6), finals.carry, carry)
    # The next rollout begins with it.
    one.send(6)
    two.send(3)
    after = seen.rollouts[1]
    assert after.runs.step.tolist() == [0, 8]
    assert after.obs[[0, 8], 0, 0].tolist() == [106, 24]
    tree_map(
        lambda x, y: np.testing.assert_allclose(x[0], y[0], atol=1e-6), after.runs.carry, carry
    )
    assert after.policy_weight[after.valid].all()


def weights(seen: Updates) -> list[list[float]]:
    """Return of each rollout which steps count in the policy gradient."""
    return [data.policy_weight[data.valid].tolist() for data in seen.rollouts]


def test_where_steps_are_missing_the_rest_of_the_episode_teaches_no_policy() -> None:
    server = recurrent_server()
    seen = Updates(server)
    one = Hand(server)
    one.send(2)
    one.batch(2)  # never arrives
    for _ in range(3):
        one.send(10)
    one.send(16, ends={9: "terminated"})
    assert weights(seen) == [[1] * 2 + [0] * 10, [0] * 12, [0] * 12, [0] * 6 + [1] * 6]
    data = seen.rollouts[3]
    log_prob = data.extras["log_prob"][data.valid]
    assert log_prob[6:].tolist() == pytest.approx([-0.5] * 6)  # as the client said
    assert (log_prob[:6] != -0.5).all()  # the policy's own: a ratio of 1


@pytest.mark.parametrize(
    ("versions", "counts"),
    [
        ([0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]),  # the first model came in mid-episode
        ([1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0]),  # it rested for a while
        ([2, 2, 2, 1, 1, 1], [1, 1, 1, 0, 0, 0]),  # the last good one took over
        ([1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
    ],
)
def test_where_not_one_model_acts_the_rest_of_the_episode_teaches_no_policy(
    versions: list[int], counts: list[int]
) -> None:
    server = recurrent_server(horizon=4, minibatch_size=4)  # an episode spans rollouts
    seen = Updates(server)
    one = Hand(server)
    server.learner.feed.version = 2
    one.send(6, version=versions, flags=[2 * (v == 0) for v in versions], ends={5: "terminated"})
    one.send(2, version=2)
    found = [weight for rollout in weights(seen) for weight in rollout]
    assert found == [*counts, 1, 1]


def test_a_client_that_was_started_again_has_another_memory() -> None:
    server = recurrent_server()
    seen = Updates(server)
    one = Hand(server)
    one.send(12)
    one.session += 1
    one.event = 0  # another process, which says that it is at step 12 as well
    one.send(12, ends={2: "truncated"})
    assert weights(seen)[1] == [0, 0, 0] + [1] * 9


def test_a_client_that_connects_again_remembers() -> None:
    server = recurrent_server()
    seen = Updates(server)
    one = Hand(server)
    for _ in range(6):
        one.send(6)
        one.session += 1
    assert weights(seen) == [[1] * 12] * 3
    assert [data.runs.step.tolist() for data in seen.rollouts] == [[0]] * 3


def test_many_short_clients_beside_a_long_one_cost_what_their_steps_do() -> None:
    server = recurrent_server(horizon=240, minibatch_size=48)
    seen = Updates(server)
    Hand(server, "long").send(120)
    for number in range(120):
        Hand(server, f"short-{number}").send(1)
    [data] = seen.rollouts
    assert data.length == 120 + 120 * 4 and data.num_envs == 1
    assert data.valid.sum() == 240


def test_minibatches_are_of_transitions_not_of_padding() -> None:
    server = recurrent_server(horizon=48, minibatch_size=12)
    steps: list[Any] = []
    algorithm: Any = server.learner.algorithm
    step = algorithm.step
    algorithm.step = lambda *given: steps.append(given) or step(*given)
    for name in ("metrics", "metric_names"):
        setattr(algorithm.step, name, getattr(step, name))
    for number in range(24):
        Hand(server, f"short-{number}").send(2)
    sizes = [int(batch["weight"][index].sum()) for batch, _, index in steps]
    assert sizes == [12] * 4


MASKED = gym.spaces.Dict(
    {"action_mask": gym.spaces.MultiBinary(2), "x": gym.spaces.Box(-5, 5, (1,), np.float32)}
)


def masked_server() -> Server:
    return Server(make_spec("p", MASKED, gym.spaces.Discrete(2), "recurrent_ppo", SMALL))


def masked_fields(x: Array, mask: Array, action: Array, **changes: Any) -> dict[str, Any]:
    rows = len(x)
    return {
        "obs/action_mask": mask, "obs/x": x[:, None], "action": action,
        "reward": np.zeros(rows, np.float32), "log_prob": np.full(rows, -0.5, np.float32),
        "version": np.ones(rows, np.int64), "flags": np.full(rows, Flag.HEURISTIC, np.uint8),
        "terminated": np.zeros(rows, bool), "truncated": np.zeros(rows, bool),
        "event": np.arange(1, rows + 1, dtype=np.uint64),
        "bootstrap/action_mask": mask[:1], "bootstrap/x": x[:1, None], **changes,
    }  # fmt: skip


def send(
    server: Server, name: str, fields: dict[str, Any], place: tuple[int, int] = (0, 0)
) -> None:
    client = Client.__new__(Client)
    client.server, client.seq, client.place = server, 0, place
    server.send(name, client.pack(fields))


def test_masks_count_where_something_else_acted() -> None:
    server = masked_server()
    seen = Updates(server)
    mask = np.ones((12, 2), np.int8)
    mask[3, 1] = 0  # action 0 was the only one there was
    send(server, "one", masked_fields(np.zeros(12, np.float32), mask, np.zeros(12, np.int64)))
    log_prob = seen.rollouts[0].extras["log_prob"][:, 0]
    assert log_prob[3] == pytest.approx(0.0, abs=1e-6)
    assert log_prob[[2, 4]] == pytest.approx([np.log(0.5)] * 2, abs=0.05)


def test_the_loss_of_cloning_is_that_of_the_steps_one_by_one() -> None:
    """Episodes end within chunks of 4, one goes on in the next rollout, and the policy acts too."""
    server = masked_server()
    Updates(server)
    algorithm: Any = server.learner.algorithm
    with torch.no_grad():
        for parameter in algorithm.net.head.parameters():
            parameter.mul_(30.0)
    found: list[float] = []

    def take(loss_of: Any, count: int, share: float, size: int) -> None:
        assert share == pytest.approx(8 / 12)
        found.append(loss_of(torch.arange(count)).item())

    server.learner.feed.imitation.update = take  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    expected: list[list[float]] = [[], []]
    carries: dict[str, Any] = {}
    for rollout, name, rows, ends, place, event in (
        (0, "one", 7, (2, 4), (0, 0), 1),
        (0, "two", 5, (1,), (0, 0), 1),
        (1, "one", 4, (), (2, 2), 8),
        (1, "two", 8, (6,), (1, 3), 6),
    ):
        x, action = rng.normal(size=rows).astype(np.float32), rng.integers(2, size=rows)
        mask = np.ones((rows, 2), np.int8)
        mask[1, 1 - action[1]] = 0
        terminated = np.isin(np.arange(rows), ends)
        flags = np.where(np.isin(np.arange(rows), (3, 5, 6)), 0, Flag.HEURISTIC).astype(np.uint8)
        events = np.arange(event, event + rows, dtype=np.uint64)
        changes = {"terminated": terminated, "flags": flags, "event": events}
        send(server, name, masked_fields(x, mask, action, **changes), place)
        carry = carries.get(name, algorithm.initial_carry(1))
        for t in range(rows):
            obs = {"action_mask": mask[t : t + 1], "x": x[t : t + 1, None]}
            params, carry = algorithm.policy.advance(obs, carry)
            one = [torch.from_numpy(v) for v in (params, action[t : t + 1], mask[t : t + 1])]
            if flags[t]:
                expected[rollout].append(algorithm.distribution.log_prob(*one).item())
            if terminated[t]:
                carry = algorithm.initial_carry(1)
        carries[name] = carry
    assert found == pytest.approx([-np.mean(part) for part in expected], rel=1e-5)


def test_a_heuristic_with_a_memory_is_cloned() -> None:
    """It does what the first observation says, at the last step: no single observation tells."""

    class Knows:
        cue = 0

        def __call__(self, obs: Array) -> int:
            if obs[0]:
                self.cue = int(obs[0] > 0)
            return self.cue

    settings = MEMORY | {"horizon": 126, "minibatch_size": 63, "chunk": 3, "seed": 3}
    agreed = {}
    for imitate in ("true", "false"):
        spec = spec_for(Cue(), "recurrent_ppo", **settings)
        server = Server(spec, f'{{"imitate": {imitate}}}')
        client = Client(server, Cue(), heuristic=Knows())
        for _ in range(30):
            server.send("one", client.play(64))
        agreed[imitate] = score(server.policy, Cue(), 50)
        assert ("train/imitation_loss" in server.publications[-1].metrics) == (imitate == "true")
    assert agreed["true"] > 0.9 > agreed["false"]


def test_clients_without_a_single_whole_chunk_still_teach() -> None:
    server = Server(spec_for(Corridor(), "recurrent_ppo", **SMALL | {"chunk": 12}))
    clients = [Client(server, Corridor(), f"client-{i}", i) for i in range(6)]
    train(server, clients, 24, 2)
    assert server.version == 5
    assert all(np.isfinite(one.metrics["train/policy_loss"]) for one in server.publications[1:])

"""DreamerV3: the contract, its losses by hand and by naive loops, and that it learns to catch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from assay.algorithms.dreamerv3 import SIZES, DreamerV3
from assay.core.errors import ConfigError, SpaceError
from assay.core.types import SequenceBatch, tree_map
from assay.functional.symlog import two_hot
from assay.networks import rssm
from assay.optim import cuda_graph
from assay.testing.algorithms import AlgorithmContract, CannedReplay, Rig, make_algorithm
from assay.testing.envs import Counting, Identity

SMALL = {
    "size": "nano", "deter": 8, "hidden": 8, "classes": 3, "units": 8, "stoch": 2,
    "blocks": 2, "layers": 1, "batch_size": 2, "sequence": 4, "imagination": 3, "train_ratio": 1,
    "buffer_size": 160, "learning_starts": 12, "lr": 1e-3, "warmup": 2,
}  # fmt: skip
SEEN, ACTIONS = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)


class TestContract(AlgorithmContract):
    algorithm = "dreamerv3"
    settings = SMALL
    updates = 3
    compiled_settings = {"sequence": 2, "imagination": 2}  # noqa: RUF012
    compiled_atol = 1e-4  # LaProp's moments are normalised: the rounding of small gradients shows


def small(action: Any = ACTIONS, observation: Any = SEEN, **settings: Any) -> DreamerV3:
    return make_algorithm("dreamerv3", observation, action, **(SMALL | settings))


def box(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


def sequences() -> SequenceBatch:
    """Return two sequences of four steps.

    In the first an episode goes on, ends after its second step (row 2 is its last moment) and
    another one begins. The second begins an episode, which is cut short after its third step.
    """

    def rows(*numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float32)

    obs = rows([1, 2, 3, 10, 11], [20, 21, 22, 23, 0]).unsqueeze(-1)
    return SequenceBatch(
        obs=obs,
        action=torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0]]),
        reward=rows([1, 2, 0, 4], [5, 6, 7, 0]),
        terminated=rows([0, 1, 0, 0], [0, 0, 0, 0]),
        truncated=rows([0, 0, 0, 0], [0, 0, 1, 0]),
        is_first=rows([0, 0, 0, 1], [1, 0, 0, 0]),
        valid=rows([1, 1, 0, 1], [1, 1, 1, 0]),
        carry={
            "deter": 0.1 * torch.arange(16.0).view(2, 8),
            "stoch": torch.tensor([[1.0, 0, 0, 0, 1, 0]] * 2),
            "action": rows([0, 1], [1, 0]),
        },
        index=torch.tensor([3, 7]),
    )


class TestMoments:
    def test_rewards_arrive_with_the_next_observation(self) -> None:
        found = small().moments(sequences())
        by_hand = {
            "reward": [[0, 1, 2, 0, 4], [0, 5, 6, 7, 0]],
            "is_first": [[0, 0, 0, 1, 0], [1, 0, 0, 0, 0]],
            "is_terminal": [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]],  # a cut is not terminal
            "is_last": [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]],
            "real": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]],
            "reward_known": [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]],
            "terminal_known": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]],
        }
        for name, expected in by_hand.items():
            assert found[name].t().tolist() == expected, name
        taken = found["action"][:, 0].argmax(-1).tolist()
        assert taken == [1, 1, 0, 0, 1]  # the carry's, then what was done before each moment

    def test_box_actions_are_those_of_the_unit_box(self) -> None:
        algorithm = small(box([-2.0, 0.0], [2.0, 10.0]))
        sample = sequences()
        sample.action = torch.tensor([[[2.0, 0.0]] * 4, [[-1.0, 5.0]] * 4])
        taken = algorithm.moments(sample)["action"]
        assert taken[1:, 0].tolist() == [[1.0, -1.0]] * 4
        assert taken[1:, 1].tolist() == [[-0.5, 0.0]] * 4

    def test_the_replay_keeps_every_end(self) -> None:
        """Whatever is at the border of two sequences: each reward and each end is learned once."""
        for length in (3, 4, 5):
            settings = {"sequence": length, "num_envs": 1, "buffer_size": 60}
            rig = Rig("dreamerv3", partial(Counting, 3), env_steps=60, **(SMALL | settings))
            for _ in range(15):  # five episodes: 100 e + t, rewards 1, 2, 3
                rig.collector.collect_step(rig.loop.replay, True)
            rewards: dict[int, float] = {}
            ends = set()
            for _ in range(40):
                sample = rig.loop.replay.sample(2)
                found: Any = rig.algorithm.moments(sample)  # type: ignore[attr-defined]
                for b in range(2):
                    tags = sample.obs[b, :, 0].tolist()
                    for t, tag in enumerate(tags):
                        if found["reward_known"][t, b]:
                            rewards[int(tag)] = found["reward"][t, b].item()
                        if found["is_terminal"][t, b]:
                            ends.add(int(tag))
                        if found["real"][t, b]:
                            assert found["is_first"][t, b] == (tag % 100 == 0) or t == length
            assert all(reward == tag % 100 for tag, reward in rewards.items())
            stored = [tag for tag in (3, 103, 203) if max(rewards) > tag]
            assert stored and ends >= set(stored)


def learned(algorithm: DreamerV3) -> dict[str, Tensor]:
    """Return a batch with noise, with the parameters moved away from where they began."""
    sample = sequences()
    if not algorithm.discrete:
        sample.action = torch.rand(2, 4, 2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in algorithm.modules.values():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    assert algorithm.step.noise is not None
    return algorithm.moments(sample) | algorithm.step.noise.draw()


def cross_entropy(head: Any, features: Tensor, target: Tensor) -> Tensor:
    return -(two_hot(target, head.bins) * head(features).log_softmax(-1)).sum(-1)


class TestLosses:
    def test_world(self) -> None:
        algorithm = small(free_nats=0.05)
        batch = learned(algorithm)
        world, given = algorithm.world, dict(batch)
        _, metrics = algorithm._world_loss(batch)
        tokens = torch.stack([world.encode(given["obs"][:, t]) for t in range(5)])
        carry = {k: given[k] for k in ("deter", "stoch")}
        noise = given["posterior_noise"]
        state = world.rssm.observe(tokens, given["action"], given["is_first"], carry, noise)
        kl, seen, reward, proceed = [], [], [], []
        for t in range(5):
            for b in range(2):
                if not given["real"][t, b]:
                    continue
                q, p = state.posterior[t, b], world.rssm.prior(state.deter[t, b])
                kl.append(max(0.05, sum(q.exp()[i] @ (q[i] - p[i]) for i in range(2)).item()))  # type: ignore[union-attr]
                feature = state.features[t, b : b + 1]
                x = given["obs"][b, t]
                shown = x.sign() * (x.abs() + 1).log()
                seen.append((world.decoder(feature)[1][0] - shown).square().sum().item())
                if given["reward_known"][t, b]:
                    target = given["reward"][t, b : b + 1]
                    reward.append(cross_entropy(world.reward, feature, target).item())
                c = torch.sigmoid(world.continuation(feature)).item()
                y = (1 - 1 / 333) * (1 - given["is_terminal"][t, b].item())
                proceed.append(-y * np.log(c) - (1 - y) * np.log(1 - c))
        assert len(kl) == 9 and len(reward) == 8
        for name, by_hand in (
            ("dynamics_loss", kl), ("representation_loss", kl), ("reconstruction_loss", seen),
            ("reward_loss", reward), ("continue_loss", proceed),
        ):  # fmt: skip
            assert metrics[name].item() == pytest.approx(np.mean(by_hand), rel=1e-4), name

    def test_the_whole_is_the_weighted_sum(self) -> None:
        algorithm = small()
        loss, parts = algorithm._world_loss(learned(algorithm))
        weights = {
            "dynamics_loss": 1.0, "representation_loss": 0.1, "reconstruction_loss": 1.0,
            "reward_loss": 1.0, "continue_loss": 1.0, "replay_value_loss": 0.3,
        }  # fmt: skip
        assert loss.item() == pytest.approx(sum(w * parts[k].item() for k, w in weights.items()))

    @pytest.mark.parametrize("action", [ACTIONS, spaces.Box(-1.0, 1.0, (2,), np.float32)])
    def test_imagination_actor_and_critic(self, action: Any) -> None:
        algorithm = small(action)
        batch = learned(algorithm)
        algorithm._world_loss(batch)
        features, taken = batch["features"], batch["taken"]  # [3, 8, F], [3, 8, A]
        assert features.shape[:2] == taken.shape[:2] == (3, 8)
        # The next state of the last step is not among the features: imagine it again.
        world, actor = algorithm.world, algorithm.actor
        with torch.no_grad():
            h, z = features[0, :, :8], features[0, :, 8:]
            states = [features[0]]
            for t in range(3):
                moves = world.rssm.from_action(taken[t].clamp(-1, 1))
                h = world.rssm._advance(h, z, moves)
                z = (world.rssm.prior(h) + batch["prior_noise"][t]).argmax(-1)
                z = F.one_hot(z, 3).float().flatten(1)
                states.append(torch.cat([h, z], 1))
            torch.testing.assert_close(torch.stack(states[:3]), features)
            value = [algorithm.critic.mean(s) for s in states]
            c = [torch.sigmoid(world.continuation(s)) for s in states]
            r = [world.reward.mean(s) for s in states]
            returns, after = [], value[3]
            for t in (2, 1, 0):
                # R_t = r_{t+1} + c_{t+1} ((1 - lambda) v_{t+1} + lambda R_{t+1})
                after = r[t + 1] + c[t + 1] * (0.05 * value[t + 1] + 0.95 * after)
                returns.insert(0, after)
            target = torch.stack(returns)
            low, high = np.percentile(target.numpy(), [5, 95])
            scale = max(1.0, 0.01 * (high - low))
            weight = torch.stack([c[0], c[0] * c[1], c[0] * c[1] * c[2]])
        close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
        close(batch["target"], target)
        close(batch["weight"], weight)
        assert algorithm.range.high.item() == pytest.approx(0.01 * high, rel=1e-4, abs=1e-6)
        advantage = (target - torch.stack(value[:3])) / scale
        close(batch["advantage"], advantage)

        loss, _ = algorithm._actor_loss(batch)
        params = actor(features)
        if algorithm.discrete:
            spread: Any = torch.distributions.Categorical(logits=params)
            log_pi, entropy = spread.log_prob(taken.argmax(-1)), spread.entropy()
        else:
            mean, log_std = params.chunk(2, -1)
            spread = torch.distributions.Normal(mean, log_std.exp())
            log_pi, entropy = spread.log_prob(taken).sum(-1), spread.entropy().sum(-1)
        by_hand = -(weight * (log_pi * advantage + 3e-4 * entropy)).mean()
        assert loss.item() == pytest.approx(by_hand.item(), rel=1e-4)

        loss, _ = algorithm._critic_loss(batch)
        slow = algorithm.slow.mean(features)
        critic = algorithm.critic
        both = cross_entropy(critic, features, target) + cross_entropy(critic, features, slow)
        assert loss.item() == pytest.approx(
            (weight * both).mean().item() + 0.3 * self.replay_loss(algorithm, batch, target[0]),
            rel=1e-4,
        )

    def replay_loss(self, algorithm: DreamerV3, batch: Any, imagined: Tensor) -> float:
        """Return the critic's loss on replayed rewards, step by step."""
        critic, gamma = algorithm.critic, 1 - 1 / 333
        replayed = batch["replayed"]  # [4, 2, F]
        starts = imagined.view(4, 2)
        # What is behind the last step is bootstrapped from by its value: found from the target.
        last = [(batch["replay_target"][3, b] - batch["reward"][4, b]) / gamma for b in range(2)]
        total = 0.0
        for b in range(2):
            boot = [*starts[1:, b], last[b]]
            after, targets = boot[3], [torch.zeros(())] * 4
            for t in (3, 2, 1, 0):
                live = gamma * (1 - batch["is_terminal"][t + 1, b])
                lam = 0.95 * (1 - batch["is_last"][t + 1, b])
                mixed = boot[t] if t == 3 else (1 - lam) * boot[t] + lam * after
                after = batch["reward"][t + 1, b] + live * mixed
                targets[t] = after
            for t in range(4):
                x = replayed[t, b : b + 1]
                target = targets[t].reshape(1)
                assert batch["replay_target"][t, b].item() == pytest.approx(target.item(), rel=1e-4)
                if not batch["is_last"][t, b]:  # nothing was done there
                    total += cross_entropy(critic, x, target).item()
                    total += cross_entropy(critic, x, algorithm.slow.mean(x)).item()
        return total / 8

    def test_who_is_trained_by_what(self) -> None:
        algorithm = small()
        batch = learned(algorithm)
        loss, _ = algorithm._world_loss(batch)
        world, actor, critic = (
            list(m.parameters()) for m in (algorithm.world, algorithm.actor, algorithm.critic)
        )
        # The actor is trained by imagination alone; the world model through the critic as well.
        grads = torch.autograd.grad(loss, [*world, *actor], allow_unused=True)
        assert all(g is not None for g in grads[: len(world)])
        assert all(g is None for g in grads[len(world) :])
        for name in ("features", "target", "weight", "advantage", "replayed", "replay_target"):
            assert not batch[name].requires_grad, name
        loss, _ = algorithm._critic_loss(batch)
        grads = torch.autograd.grad(loss, [*critic, *actor, *world], allow_unused=True)
        assert all(g is not None for g in grads[: len(critic)])
        assert all(g is None for g in grads[len(critic) :])

    def test_an_update_moves_the_slow_critic_a_little(self) -> None:
        algorithm = small(warmup=0, tau=0.25)
        before = algorithm.step.flats[algorithm.slow].clone()
        algorithm.update(CannedReplay(sequences()))
        now = algorithm.step.flats[algorithm.critic]
        expected = 0.75 * before + 0.25 * now
        torch.testing.assert_close(algorithm.step.flats[algorithm.slow], expected)
        assert not torch.equal(before, now)


class TestPrecision:
    """bfloat16, as on a GPU: a CPU computes the same, slowly."""

    @pytest.mark.parametrize("action", [ACTIONS, box([-1, -1], [1, 1])])
    def test_losses_are_nearly_those_of_float32(self, action: Any) -> None:
        found = []
        for precision in ("float32", "bfloat16"):
            algorithm = small(action, precision=precision)
            batch = learned(algorithm)
            step = algorithm.step
            world, metrics = step._loss(step.objectives[0], batch)
            found.append({"world": world, **metrics})
            # A discount of 0.997 would be 1 in bfloat16.
            for name in ("target", "advantage", "weight", "features", "replay_target"):
                assert batch[name].dtype == torch.float32, name
        exact, rough = found
        assert exact["world"].item() != rough["world"].item()
        for name in ("world", "dynamics_loss", "reconstruction_loss", "reward_loss"):
            assert rough[name].item() == pytest.approx(exact[name].item(), rel=0.05), name

    def test_parameters_and_moments_stay_float32(self) -> None:
        algorithm = small(precision="bfloat16", warmup=0)
        before = algorithm.step.flats[algorithm.world].clone()
        algorithm.update(CannedReplay(sequences()))
        step = algorithm.step
        assert not torch.equal(before, step.flats[algorithm.world])
        kept = [*step.flats.values(), *(m for one in step.moments.values() for m in one.values())]
        assert {tensor.dtype for tensor in kept} == {torch.float32}

    def test_auto_is_float32_on_a_cpu(self) -> None:
        assert small().step.low_precision is None
        assert small(precision="bfloat16").step.low_precision is torch.bfloat16


class TestOnAGPU:
    """What a GPU does differently, without one."""

    @pytest.mark.parametrize("explore", [True, False])
    @pytest.mark.parametrize("action", [ACTIONS, box([-1, -1], [1, 1])])
    @pytest.mark.parametrize(
        "seen", [SEEN, spaces.Dict(eye=spaces.Box(0, 255, (8, 8, 3), np.uint8), place=SEEN)]
    )
    def test_a_graph_gives_what_layers_give(
        self, seen: Any, action: Any, explore: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One array goes in beside the observations, and one comes out."""
        recorded = []

        def record(program: Any, state: Any, inputs: Any) -> Any:
            recorded.append(len(inputs))
            return lambda given: program(*state, *given)

        monkeypatch.setattr(cuda_graph, "record", record)
        policy = small(action, seen).policy
        rng = np.random.default_rng(0)
        obs = tree_map(lambda x: np.stack([x, x]), seen.sample())
        carry = {k: rng.random(v.shape, np.float32) for k, v in policy.initial_carry(2).items()}
        gumbel = policy._gumbel(rng, 2) if explore else None
        with torch.no_grad():
            one, after = policy._by_layers(obs, carry, gumbel)
            for _ in range(2):
                two, again = policy._by_graph(obs, carry, gumbel)
        np.testing.assert_array_equal(one, two)
        assert after.keys() == again.keys()
        for name, rows in after.items():
            np.testing.assert_array_equal(rows, again[name])
        assert recorded == [2 if seen is SEEN else 3]  # once, with one array beside the entries

    def test_compiled_steps_of_the_model_learn_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called = []

        def compiled(step: Any, **options: Any) -> Any:
            def run(*arguments: Any) -> Any:
                called.append(step.__name__)
                return step(*arguments)

            return run

        rssm._fused.cache_clear()
        monkeypatch.setattr(torch, "compile", compiled)
        plain, fused = small(), small()
        fused.world.rssm.fused = True
        for algorithm in (plain, fused):
            algorithm.update(CannedReplay(sequences()))
        rssm._fused.cache_clear()
        assert torch.equal(plain.step.flats[plain.world], fused.step.flats[fused.world])
        assert called == ["_seen"] * 5 + ["_imagined"] * 3
        # Who acts has shapes of its own, and is not compiled.
        obs = np.zeros((1, 1), np.float32)
        fused.policy.act(obs, fused.policy.initial_carry(1), explore=True)
        assert len(called) == 8


class TestAct:
    def test_stepping_is_observing(self) -> None:
        """Acting sees the states that learning infers, from the same observations and actions."""
        algorithm = small()
        obs = np.random.default_rng(0).standard_normal((5, 2, 1)).astype(np.float32)
        carry, states, taken = algorithm.initial_carry(2), [], []
        for seen in obs:
            taken.append(carry["action"])
            choice = algorithm.act(seen, carry, False)
            carry = choice.carry
            states.append(carry["deter"])
            assert carry["action"].argmax(1).tolist() == choice.action.tolist()
        world = algorithm.world
        start = tree_map(torch.from_numpy, algorithm.initial_carry(2))
        tokens = torch.stack([world.encode(torch.from_numpy(x)) for x in obs])
        actions = torch.from_numpy(np.stack(taken))
        state = world.rssm.observe(tokens, actions, torch.zeros(5, 2), start, None)
        np.testing.assert_allclose(np.stack(states), state.deter.detach(), atol=1e-5)

    def test_it_is_told_of_actions_that_others_chose(self) -> None:
        algorithm = small(box([0.0, 0.0], [4.0, 4.0]))
        carry = algorithm.acted(algorithm.initial_carry(1), np.array([[4.0, 1.0]], np.float32))
        assert carry["action"].tolist() == [[1.0, -0.5]]

    def test_the_replay_has_the_actions_that_were_taken(self) -> None:
        settings = SMALL | {"num_envs": 1}
        rig = Rig("dreamerv3", partial(Counting, 50), env_steps=60, **settings)
        for _ in range(24):
            rig.collector.collect_step(rig.loop.replay, True)  # random ones
        sample = rig.loop.replay.sample(32)
        # A sequence that does not begin an episode begins after what was done before.
        for b in range(32):
            tag = int(sample.obs[b, 0, 0])
            if tag == 0:
                assert not sample.carry["action"][b].any()
            else:
                before = [c for c in range(32) if int(sample.obs[c, -1, 0]) == tag]
                chosen = int(sample.action[before[0], -1])
                assert sample.carry["action"][b].argmax() == chosen

    def test_box_actions_stay_inside(self) -> None:
        algorithm = small(box([-2.0], [6.0]))
        obs, carry = np.zeros((500, 1), np.float32), algorithm.initial_carry(500)
        action = algorithm.act(obs, carry, True).action
        assert action.min() == -2.0 and action.max() == 6.0  # a deviation of almost 1: cut often
        assert np.unique(action).size > 250
        best = algorithm.act(obs, carry, False).action
        assert np.ptp(best) == 0 and abs(best[0, 0] - 2.0) < 0.5


class TestSettings:
    def test_a_size_gives_all_widths_and_what_is_given_wins(self) -> None:
        image = spaces.Box(0, 255, (3, 16, 16), np.uint8)
        own = {"sequence": 4, "batch_size": 1, "learning_starts": 0, "imagination": 2}
        algorithm = make_algorithm("dreamerv3", image, ACTIONS, size="nano", units=24, **own)
        rssm = algorithm.world.rssm
        assert (rssm.deter, rssm.classes, rssm.stoch) == (512, 4, 32)
        assert algorithm.actor.mlp[0][0].out_features == 24
        assert algorithm.world.encoder.cnns["image"].convs[0].out_channels == 8
        assert list(SIZES) == ["nano", "XS", "S", "M", "L"]
        assert sorted(SIZES.values()) == list(SIZES.values())

    def test_updates_follow_the_train_ratio(self) -> None:
        for ratio, every, updates in ((1, 8, 1), (2, 4, 1), (6, 4, 3), (32, 1, 4)):
            needs = small(train_ratio=ratio).needs
            assert (needs.train_every, needs.updates) == (every, updates)
        assert needs.sequence == 4 and needs.cross_episodes

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"sequence": 200}, "sequence=200 is longer than the replay: buffer_size=160"),
            ({"env_steps": 30, "num_envs": 10}, "sequence=4 is longer than the 3 steps"),
            ({"blocks": 3}, "blocks=3 does not divide deter=8"),
            ({"depth": 4}, "depth=4 has no effect because the observation has no images"),
        ],
    )
    def test_what_cannot_be_is_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            small(**settings)

    def test_images_that_cannot_be_halved_are_refused(self) -> None:
        with pytest.raises(SpaceError, match="5 by 64 pixels"):
            small(observation=spaces.Box(0, 255, (3, 5, 64), np.uint8))


class TestLearns:
    @pytest.mark.slow
    def test_to_answer(self) -> None:
        """What an answer earns is known from the model alone: the actor never sees a reward.

        The context is new in every step, so it costs nats to know it: they are free here.
        """
        rig = Rig(
            "dreamerv3", Identity, env_steps=1500, num_envs=4, size="nano", deter=32, hidden=32,
            units=32, stoch=4, classes=4, blocks=4, layers=1, batch_size=16, sequence=3,
            imagination=2, train_ratio=16, learning_starts=60, lr=4e-3, warmup=20, horizon=10.0,
            free_nats=20.0, entropy_coef=0.1,
        )  # fmt: skip
        assert rig.train().score(30) > 6.0  # of 8; guessing gets 2

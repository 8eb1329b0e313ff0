"""Segments become the data that an algorithm wants, and nothing else."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_support import Client, Corridor, Point, Server, fields_of, spec_for

from assay.algorithms.base import Context
from assay.algorithms.dqn import DQN
from assay.algorithms.ppo import PPO
from assay.buffers.rollout import Rollout
from assay.core import seeding
from assay.core.types import Clock, Transition
from assay.envs.make import make_vector
from assay.loops.off_policy import OffPolicyLoop
from assay.loops.on_policy import OnPolicyLoop
from assay.loops.run_settings import OnlineSettings
from assay.policies.model_file import parse_snapshot
from assay.server.client.shield import Flag
from assay.server.learner.replay_feed import ReplayFeed
from assay.server.learner.rollout_feed import RolloutFeed

Array = np.ndarray[Any, Any]
SMALL = {"horizon": 8, "minibatch_size": 8, "hidden": [8]}


class Line(gym.Env[Any, Any]):
    """Only lends its spaces: the tests write its steps down themselves."""

    observation_space = gym.spaces.Box(-1000, 1000, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)


class Recorder:
    """Keeps what an update was given, in place of the update."""

    def __init__(self, server: Server) -> None:
        self.rollouts: list[dict[str, Any]] = []
        server.learner.algorithm.update = self._update  # type: ignore[method-assign]

    def _update(self, data: Rollout) -> None:
        finals = data.finals
        self.rollouts.append(
            {
                "obs": data.obs[:, 0, 0].tolist(),
                "reward": data.reward[:, 0].tolist(),
                "terminated": np.flatnonzero(data.terminated[:, 0]).tolist(),
                "truncated": np.flatnonzero(data.truncated[:, 0]).tolist(),
                "finals": {}
                if finals is None
                else dict(zip(finals.step.tolist(), finals.obs[:, 0].tolist(), strict=True)),
                "last": data.last_obs[:, 0].tolist(),
                "weight": data.policy_weight[:, 0].tolist(),
                "log_prob": data.extras["log_prob"][:, 0].tolist(),
                "valid": bool(data.valid.all()),
            }
        )


class Hand:
    """Writes batches by hand: observation n is followed by n + 1 until an episode ends."""

    def __init__(self, server: Server, name: str = "one", first: int = 0) -> None:
        self.server, self.name, self.at = server, name, first
        self.event = self.seq = self.episode = self.step = 0
        self.session = 1

    def batch(
        self,
        steps: int,
        *,
        ends: dict[int, str] | None = None,
        version: int | list[int] = 1,
        flags: int | list[int] = 0,
        log_prob: float = -0.5,
        patches: dict[int, float] | None = None,
    ) -> bytes:
        """Return steps with the reward n of observation n; `ends` says where episodes end, how."""
        rows, finals = [], []
        place = (self.episode, self.step)
        for i in range(steps):
            end = (ends or {}).get(i)
            self.event += 1
            rows.append(
                {
                    "obs": [self.at], "action": 0, "reward": float(self.at), "log_prob": log_prob,
                    "version": version if isinstance(version, int) else version[i],
                    "flags": flags if isinstance(flags, int) else flags[i],
                    "terminated": end == "terminated", "truncated": end == "truncated",
                    "event": self.event,
                }
            )  # fmt: skip
            self.at += 1
            self.step += 1
            if end == "truncated":
                finals.append([self.at])
            if end is not None:
                self.at += 9  # the next episode begins elsewhere
                self.episode, self.step = self.episode + 1, 0
        if end is None:
            finals.append([self.at])
        client = Client.__new__(Client)
        client.server, client.seq, client.place = self.server, self.seq, place
        fields = fields_of(self.server.layout, rows, finals)
        payload = client.pack(fields, patches, epoch=self.session)
        self.seq += 1
        return payload

    def send(self, steps: int, **options: Any) -> None:
        self.server.send(self.name, self.batch(steps, **options))

    def patch(self, patches: dict[int, float]) -> None:
        client = Client.__new__(Client)
        client.server, client.seq, client.place = self.server, self.seq, (0, 0)
        self.server.send(self.name, client.pack({}, patches))
        self.seq += 1


def ppo_server(settings: str = "{}", **changes: Any) -> Server:
    return Server(spec_for(Line(), "ppo", **(SMALL | changes)), settings)


class TestRollouts:
    def test_the_steps_of_a_client_lie_together_and_run_on_from_batch_to_batch(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        one, two = Hand(server, "one"), Hand(server, "two", 100)
        one.send(3, ends={1: "terminated"})  # 0, 1 | 11, goes on with 12
        two.send(1)  # 100, goes on with 101
        one.send(2, ends={1: "truncated"})  # 12, 13, followed by 14
        two.send(2)  # 101, 102, goes on with 103
        [rollout] = seen.rollouts
        assert rollout["obs"] == [0, 1, 11, 12, 13, 100, 101, 102]
        assert rollout["reward"] == rollout["obs"]
        assert rollout["terminated"] == [1]
        assert rollout["truncated"] == [4, 7]
        assert rollout["finals"] == {4: 14, 7: 103}
        assert rollout["last"] == [103]
        assert rollout["weight"] == [1] * 8
        assert rollout["valid"]

    def test_a_client_that_was_started_again_does_not_go_on_where_the_old_one_was(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        old, new = Hand(server), Hand(server, first=500)
        new.session = 2
        old.send(4)  # 0 to 3, and then it was killed
        new.batch(4)  # 500 to 503 did not fit the new one's buffer
        new.send(4)  # 504 to 507: the same episode and step that the old one would have sent next
        [rollout] = seen.rollouts
        assert rollout["obs"] == [0, 1, 2, 3, 504, 505, 506, 507]
        assert rollout["truncated"] == [3, 7]
        assert rollout["finals"] == {3: 4, 7: 508}

    def test_a_batch_is_cut_where_the_rollout_ends(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        Hand(server).send(21, ends={20: "terminated"})
        first, second = seen.rollouts
        assert first["obs"] == list(range(8)) and first["finals"] == {7: 8}
        assert second["obs"] == list(range(8, 16)) and second["finals"] == {7: 16}
        assert server.learner.feed.filled == 5  # type: ignore[attr-defined]
        # Two updates, but the batch gives one version, since the cursor stands between batches.
        assert [one.version for one in server.publications] == [1, 2]

    def test_batches_of_one_step(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        hands = [Hand(server, "one"), Hand(server, "two", 100)]
        for number in range(8):
            hands[number % 2].send(1)
        [rollout] = seen.rollouts
        assert rollout["obs"] == [0, 1, 2, 3, 100, 101, 102, 103]
        assert rollout["finals"] == {3: 4, 7: 104}

    def test_a_client_that_begins_again_does_not_run_on(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        Hand(server, "one").send(4)
        Hand(server, "one", 50).send(4)  # of the same name, from the first step on
        [rollout] = seen.rollouts
        assert rollout["obs"] == [0, 1, 2, 3, 50, 51, 52, 53]
        assert rollout["finals"] == {3: 4, 7: 54}

    def test_steps_that_are_too_old_are_left_out_and_what_is_around_them_is_cut(self) -> None:
        server = ppo_server('{"max_lag": 1}')
        seen = Recorder(server)
        hand = Hand(server)
        hand.send(8)
        hand.send(8, version=2)
        assert server.version == 3
        # Newest 3, at most 1 behind: versions 2 and 3, and 0, which no model chose; 4 is none yet.
        hand.send(12, version=[1, 2, 3, 1, 3, 2, 0, 4, 3, 3, 3, 3], flags=[0] * 6 + [8] + [0] * 5)
        rollout = seen.rollouts[2]
        assert rollout["obs"] == [17, 18, 20, 21, 22, 24, 25, 26]
        assert rollout["finals"] == {1: 19, 4: 23, 7: 27}
        assert rollout["weight"] == [1, 1, 1, 1, 0, 1, 1, 1]
        metrics = server.publications[-1].metrics
        assert metrics["server/steps_too_old"] == 2
        assert metrics["server/steps_unknown_version"] == 1
        assert metrics["server/steps"] == 28

    def test_what_the_policy_did_not_choose_has_no_weight_and_the_ratio_one(self) -> None:
        server = ppo_server('{"imitate": false}')
        seen = Recorder(server)
        Hand(server).send(8, flags=[0, 1, 2, 4, 8, 16, 31, 0], log_prob=-9.0)
        [rollout] = seen.rollouts
        assert rollout["weight"] == [1, 0, 0, 0, 0, 0, 0, 1]
        algorithm = server.learner.algorithm
        obs = np.arange(8, dtype=np.float32)[:, None]
        logits = algorithm.policy.network(torch.from_numpy(obs)).detach().double().numpy()
        own = logits[:, 0] - np.log(np.exp(logits).sum(1))
        np.testing.assert_allclose(rollout["log_prob"][1:7], own[1:7], atol=1e-6)
        assert rollout["log_prob"][0] == rollout["log_prob"][7] == -9.0

    def test_late_rewards_reach_steps_that_wait(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        one, two = Hand(server, "one"), Hand(server, "two", 100)
        one.send(3)
        two.send(2)
        one.patch({2: 0.5, 99: 1.0})
        two.patch({2: 0.25})
        one.send(3, patches={1: 7.0, 6: 3.0})  # of an earlier step, and of its own last one
        [rollout] = seen.rollouts
        assert rollout["reward"] == [7, 1.5, 2, 3, 4, 8, 100, 101.25]
        one.patch({1: 1.0})  # it was learned from
        assert server.outcome is not None
        metrics = server.outcome.metrics
        assert metrics["server/late_rewards"] == 5
        assert metrics["server/late_rewards_missed"] == 2

    def test_a_client_that_begins_again_does_not_patch_its_earlier_life(self) -> None:
        server = ppo_server()
        seen = Recorder(server)
        Hand(server).send(3)
        again = Hand(server, first=50)
        again.send(2)
        again.patch({1: 0.5, 3: 0.5})  # the third is not sent yet
        Hand(server, "two", 100).send(3)
        assert seen.rollouts[0]["reward"] == [0, 1, 2, 50.5, 51, 100, 101, 102]

    def test_box_actions_are_learned_as_they_were_before_clipping(self) -> None:
        server = Server(spec_for(Point(), "ppo", **SMALL))
        client = Client(server, Point())
        fields = client.collect(8)
        fields["raw_action"] = np.arange(8, dtype=np.float32)[:, None]
        fields["action"] = np.clip(fields["raw_action"], -2, 2)
        fields["flags"][5] = Flag.BOUNDS
        feed = server.learner.feed
        assert isinstance(feed, RolloutFeed)
        taken: list[Array] = []
        server.learner.algorithm.update = lambda data: taken.append(  # type: ignore[method-assign]
            data.extras["raw_action"][:, 0, 0].copy()
        )
        server.send("one", client.pack(fields))
        assert taken[0].tolist() == [0, 1, 2, 3, 4, 2, 6, 7]

    def test_box_actions_of_a_client_that_does_not_explore_are_no_samples(self) -> None:
        server = Server(spec_for(Point(), "ppo", **SMALL))
        seen = Recorder(server)
        client = Client(server, Point())
        fields = client.collect(8)
        fields["log_prob"] = np.where(np.arange(8) < 3, 0.0, -1.0).astype(np.float32)
        server.send("one", client.pack(fields))
        [rollout] = seen.rollouts
        assert rollout["weight"] == [0] * 3 + [1] * 5
        assert 0.0 not in rollout["log_prob"][:3]  # the policy's own: the ratio is 1

    def test_returns_for_the_scale_of_rewards_are_each_clients_own(self) -> None:
        server = ppo_server(normalize_reward=True, gamma=0.5)
        Recorder(server)
        one, two = Hand(server, "one"), Hand(server, "two", 100)
        one.send(2)  # 0, 1
        two.send(1)
        one.send(2, ends={0: "terminated"})  # 2 | 12
        two.send(2, ends={1: "truncated"})
        one.send(1)  # 13
        # R_t = r_t + R_{t-1} / 2 along each client's episodes, over all cuts
        returns = [0, 1, 2.5, 12, 13 + 6, 100, 101 + 50, 102 + 75.5]
        scale = server.learner.algorithm.reward_scale
        assert scale is not None
        assert scale.moments.var == pytest.approx(np.var(returns), rel=1e-3)


class TestEpisodes:
    def test_they_are_followed_over_batches(self) -> None:
        server = ppo_server('{"max_lag": null}')
        Recorder(server)
        one, two = Hand(server, "one"), Hand(server, "two", 100)
        one.send(2, version=1)  # 0, 1
        two.send(2, ends={1: "truncated"}, version=1, flags=[8, 0])  # 100 + 101
        one.send(5, ends={1: "terminated", 3: "terminated"}, version=[1] * 5)  # 2, 3 | 13, 14 | 24
        recent = server.learner.episodes.recent
        assert list(recent) == [(201, 2), (6, 4), (27, 2)]
        one.send(1, ends={0: "terminated"}, version=2, flags=1)
        assert recent[-1] == (49, 2)
        assert server.outcome is not None
        metrics = server.outcome.metrics
        assert metrics["rollout/return_mean"] == pytest.approx((6 + 27 + 201) / 3)
        assert metrics["server/episodes"] == 4

    def test_one_of_which_a_batch_is_missing_does_not_count(self) -> None:
        server = ppo_server()
        hand = Hand(server)
        hand.send(2)
        hand.batch(2)  # never arrives
        hand.send(2, ends={0: "terminated"})
        assert not server.learner.episodes.recent
        hand.send(1, ends={0: "terminated"})
        assert [steps for _, steps in server.learner.episodes.recent] == [2]

    def test_late_rewards_count(self) -> None:
        server = ppo_server()
        hand = Hand(server)
        hand.send(2)
        hand.patch({1: 10.0})
        hand.send(1, ends={0: "terminated"})
        assert list(server.learner.episodes.recent) == [(0 + 1 + 2 + 10, 3)]


class TestReplay:
    def server(self, settings: str = "{}", **changes: Any) -> Server:
        values = {"learning_starts": 1000, "buffer_size": 10, "hidden": [8]} | changes
        return Server(spec_for(Line(), "dqn", **values), settings)

    def transitions(self, server: Server) -> list[tuple[float, float, float, bool, bool]]:
        feed = server.learner.feed
        assert isinstance(feed, ReplayFeed)
        replay = feed.replay
        (leaf,) = replay._leaves.values()
        held = range(max(0, feed.written - replay.slots), feed.written)
        return [
            (
                float(leaf.columns["obs"][row, 0, 0]),
                float(replay._reward[row, 0]),
                float(leaf.columns["next_obs"][row, 0, 0]),
                bool(replay._terminated[row, 0]),
                bool(replay._truncated[row, 0]),
            )
            for row in (serial % replay.slots for serial in held)
        ]

    def test_transitions_by_hand(self) -> None:
        server = self.server()
        one, two = Hand(server, "one"), Hand(server, "two", 100)
        one.send(4, ends={1: "terminated", 2: "truncated"})  # 0, 1 | 11 | 21, goes on with 22
        two.send(2)
        assert self.transitions(server) == [
            (0, 0, 1, False, False),
            (1, 1, 1, True, False),  # what follows does not matter
            (11, 11, 12, False, True),
            (21, 21, 22, False, True),
            (100, 100, 101, False, False),
            (101, 101, 102, False, True),
        ]

    def test_late_rewards_reach_what_is_held(self) -> None:
        server = self.server()
        one = Hand(server)
        one.send(6)
        one.send(6)
        one.patch({3: 0.5, 2: 0.5, 12: 0.25})  # ten are held: events 3 to 12
        rewards = [reward for _, reward, *_ in self.transitions(server)]
        assert rewards == [2.5, *range(3, 11), 11.25]
        assert server.outcome is not None
        assert server.outcome.metrics["server/late_rewards_missed"] == 1

    def test_the_log_is_kept_as_far_as_the_replay_reaches(self) -> None:
        server = self.server(learning_starts=1, train_every=1, batch_size=4)
        hand = Hand(server)
        for _ in range(5):
            hand.send(4)
        # Ten transitions are in batches 3 (two of them), 4 and 5, but a version came with the
        # first batch alone: a learner that starts from there needs batch 1.
        assert [one.position for one in server.publications] == [0, 1]
        assert server.outcome is not None and server.outcome.keep_after == 0
        last = server.learner.checkpoint()
        assert last is not None and last.position == 5
        hand.send(1)
        assert server.outcome.keep_after == 2

    def test_updates_are_owed_by_steps(self) -> None:
        server = self.server(learning_starts=5, train_every=3, updates=2, batch_size=4)
        hand = Hand(server)
        counts = []
        for _ in range(14):
            hand.send(1)
            counts.append(server.learner.clock.updates)
        assert counts == [0] * 7 + [2] * 3 + [4] * 3 + [6]


class TestAgainstTheLocalLoops:
    """The same data in the local loop and in the learner moves the weights in the same way."""

    @pytest.mark.parametrize(("batch", "gae_lambda"), [(64, 0.95), (13, 0.0)])
    def test_ppo_on_cartpole(self, batch: int, gae_lambda: float) -> None:
        """In one batch; or cut, where returns of one step do not reach over the cuts anyway."""
        values = {
            "horizon": 64, "minibatch_size": 16, "hidden": (8,), "gae_lambda": gae_lambda,
            "lr": "linear:1e-3:0",
        }  # fmt: skip
        env = make_vector("CartPole-v1", 1)
        clock = Clock(1000)
        local = PPO(env.spaces, PPO.Hyperparameters(**values), Context(clock, seed=3))
        loop = OnPolicyLoop(local, env, OnlineSettings(seed=3))
        loop.start()
        spec = spec_for(gym.make("CartPole-v1"), "ppo", **values, env_steps=1000, seed=3)
        server = Server(spec)
        remote: Any = server.learner.algorithm
        update = local.update

        def update_both(data: Rollout) -> None:
            seeding.set_rng_state(remote.rng, seeding.rng_state(local.rng))
            update(data)

        local.update = update_both  # type: ignore[method-assign]
        for number in range(3):
            loop.iterate()
            data, version = loop.rollout, number + 1
            for begin in range(0, 64, batch):
                self._send(server, data, begin, min(begin + batch, 64), version)
            assert server.version == number + 2
            for name, tensor in local.net.state_dict().items():
                found = remote.net.state_dict()[name]
                np.testing.assert_allclose(found, tensor, rtol=1e-4, atol=1e-6, err_msg=name)
        assert clock.env_steps == remote.clock.env_steps
        assert clock.updates == remote.clock.updates > 0

    @staticmethod
    def _send(server: Server, data: Rollout, begin: int, end: int, version: int) -> None:
        rows, finals = [], []
        done = data.terminated[:, 0] | data.truncated[:, 0]
        ends = {} if data.finals is None else dict(
            zip(data.finals.step.tolist(), data.finals.obs, strict=True)
        )  # fmt: skip
        for t in range(begin, end):
            rows.append(
                {
                    "obs": data.obs[t, 0], "action": data.action[t, 0],
                    "reward": data.reward[t, 0], "log_prob": data.extras["log_prob"][t, 0],
                    "version": version, "flags": 0, "terminated": data.terminated[t, 0],
                    "truncated": data.truncated[t, 0],
                }
            )  # fmt: skip
            if t in ends:
                finals.append(ends[t])
        if not done[end - 1]:
            finals.append(data.last_obs[0] if end == 64 else data.obs[end, 0])
        client = Client.__new__(Client)
        client.server, client.seq, client.place = server, len(server.log), (0, 0)
        server.send("one", client.pack(fields_of(server.layout, rows, finals)))

    def test_dqn(self) -> None:
        values = {
            "learning_starts": 20, "train_every": 4, "updates": 2, "batch_size": 8, "hidden": (8,),
            "buffer_size": 50, "target_every": 10, "lr": "linear:1e-3:0",
        }  # fmt: skip
        env = make_vector(Corridor, 1)
        clock = Clock(1000)
        local = DQN(env.spaces, DQN.Hyperparameters(**values), Context(clock, seed=3))
        loop = OffPolicyLoop(local, env, OnlineSettings(seed=3))
        loop.start()
        rows: list[dict[str, Any]] = []
        following: list[Array] = []
        add = loop.replay.add

        def keep(step: Transition) -> None:
            add(step)
            if step.valid is not None and not step.valid[0]:
                return
            rows.append(
                {
                    "obs": step.obs[0].copy(), "action": step.action[0], "reward": step.reward[0],
                    "terminated": step.terminated[0], "truncated": step.truncated[0],
                    "log_prob": 0.0, "version": 1, "flags": 0,
                }
            )  # fmt: skip
            following.append(step.next_obs[0].copy())

        loop.replay.add = keep
        while clock.env_steps < 120:
            loop.iterate()
        spec = spec_for(Corridor(), "dqn", **values, env_steps=1000, seed=3)
        server = Server(spec, '{"publish_steps": 100000}')
        for begin in range(0, 120, 7):
            some = rows[begin : begin + 7]
            ends = [
                following[begin + i]
                for i, row in enumerate(some)
                if not row["terminated"] and (row["truncated"] or i == len(some) - 1)
            ]
            client = Client.__new__(Client)
            client.server, client.seq, client.place = server, len(server.log), (0, 0)
            server.send("one", client.pack(fields_of(server.layout, some, ends)))
        remote: Any = server.learner.algorithm
        assert clock.updates == remote.clock.updates == 50
        for name, tensor in local.q.state_dict().items():
            np.testing.assert_array_equal(remote.q.state_dict()[name], tensor, err_msg=name)


class TestFlags:
    def servers(self, algorithm: str, count: int = 2) -> list[Server]:
        settings = {"horizon": 16, "hidden": [8], "entropy_coef": 0.01}
        if algorithm == "ppo":
            settings["minibatch_size"] = 8
        return [
            Server(spec_for(Corridor(), algorithm, **settings), '{"imitate": false}')
            for _ in range(count)
        ]

    @pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
    def test_shielded_steps_do_not_move_the_policy(self, algorithm: str) -> None:
        [server] = self.servers(algorithm, 1)
        before = {k: v.clone() for k, v in self._parts(server).items()}
        client = Client(server, Corridor())
        fields = client.collect(48)
        fields["flags"][:] = Flag.RATE
        server.send("one", client.pack(fields))
        after = self._parts(server)
        moved = {name: not bool((after[name] == before[name]).all()) for name in before}
        assert server.learner.clock.updates > 0
        assert not any(moved[name] for name in moved if not name.startswith("value"))
        assert any(moved[name] for name in moved if name.startswith("value"))

    @pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
    def test_only_their_rewards_matter(self, algorithm: str) -> None:
        same, other, rewarded = self.servers(algorithm, 3)
        client = Client(same, Corridor(), seed=2)
        fields = client.collect(16)
        fields["flags"][[3, 4, 9]] = Flag.MASK
        same.send("one", client.pack(fields))
        changed = {name: array.copy() for name, array in fields.items()}
        changed["action"][[3, 4, 9]] ^= 1
        changed["log_prob"][[3, 4, 9]] = -7.0
        other.send("one", client.pack(changed))
        assert self._weights(other) == self._weights(same)
        changed["reward"][4] += 1.0
        rewarded.send("one", client.pack(changed))
        policy = [name for name in self._parts(same) if not name.startswith("value")]
        a, b = self._parts(same), self._parts(rewarded)
        assert any(not bool((a[name] == b[name]).all()) for name in policy)

    def _parts(self, server: Server) -> dict[str, Any]:
        net: Any = server.learner.algorithm.net  # type: ignore[attr-defined]
        return dict(net.state_dict())

    def _weights(self, server: Server) -> dict[str, list[float]]:
        arrays = parse_snapshot(server.publications[-1].snapshot).arrays
        return {name: array.ravel().tolist() for name, array in arrays.items()}


class TestImitation:
    def test_the_heuristic_is_cloned_and_left_behind(self) -> None:
        settings = {"horizon": 128, "minibatch_size": 64, "hidden": [16]}
        agreed = {}
        for imitate in ("true", "false"):
            server = Server(spec_for(Corridor(), "ppo", **settings), f'{{"imitate": {imitate}}}')
            client = Client(server, Corridor(), heuristic=lambda obs: int(obs.argmax() == 0))
            for _ in range(10):
                server.send("one", client.play(64))
            policy = server.policy
            agreed[imitate] = sum(
                policy.act(cell[None])[0] == (i == 0)
                for i, cell in enumerate(np.eye(7, dtype=np.float32)[:2])
            )
            metrics = server.publications[-1].metrics
            assert ("train/imitation_share" in metrics) == (imitate == "true")
        # The heuristic goes to and fro between cells 0 and 1, which no reward would teach.
        assert agreed["true"] == 2
        client.heuristic = None
        server.send("one", client.play(128))
        assert "train/imitation_share" not in server.publications[-1].metrics

    def test_its_optimizer_is_part_of_the_checkpoint(self) -> None:
        settings = {"horizon": 32, "minibatch_size": 32, "hidden": [8]}
        server = Server(spec_for(Corridor(), "ppo", **settings))
        client = Client(server, Corridor(), heuristic=lambda obs: 1)
        for _ in range(4):
            server.send("one", client.play(32))
        again = server.restart(server.publications[2], epoch=1)
        for batch in server.log[2:]:
            again.consume(batch)
        assert again.publications[-1].snapshot == server.publications[-1].snapshot

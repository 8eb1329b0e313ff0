"""What all algorithms share: metrics, noise, normalisation, saving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, DatasetNeeds, ReplayNeeds
from assay.algorithms.shared.mistakes import refuse_mistakes
from assay.buffers.imagined import ImaginedReplay
from assay.core import registry
from assay.core.config import Settings
from assay.core.errors import CheckpointError, ConfigError, SpaceError
from assay.core.registry import register
from assay.core.types import Action, Clock, Spaces
from assay.loops.config import resolve
from assay.loops.training import build_algorithm
from assay.networks.normalize import RunningNormalizer
from assay.optim.noise import NoiseSpec
from assay.optim.update import Objective, Step
from assay.policies.heads import DeterministicHead
from assay.testing.algorithms import CannedReplay, make_algorithm, make_batch, plain_budget

BOX, OBS = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Box(-9.0, 9.0, (2,), np.float32)
ITEMS = make_batch(
    obs=[[1.0, 2.0], [3.0, 4.0]], action=[[0.5], [-0.5]], reward=[1.0, 40.0],
    next_obs=[[5.0, 6.0], [7.0, 8.0]], discount=[0.9, 0.9],
)  # fmt: skip


def td3(**settings: Any) -> Any:
    return make_algorithm("td3", OBS, BOX, hidden=(4,), batch_size=2, **settings)


class TestMetrics:
    def test_means_of_all_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[dict[str, float]] = []
        call = Step.__call__

        def spy(step: Step, *args: Any) -> torch.Tensor:
            vector = call(step, *args)
            seen.append(step.metrics(vector))
            return vector

        monkeypatch.setattr(Step, "__call__", spy)
        algorithm = td3(policy_delay=3)
        for _ in range(4):
            algorithm.update(CannedReplay(ITEMS))
        found = algorithm.drain_metrics()
        # The critic moves in both steps, the actor in the third update alone.
        critic = [metrics["critic_loss"] for metrics in seen]
        assert found["train/critic_loss"] == pytest.approx(sum(critic) / 4)
        assert found["train/actor_loss"] == pytest.approx(seen[2]["actor_loss"])
        assert algorithm.drain_metrics() == {}

    def test_updates_are_counted_by_the_steps_and_written_down_by_the_loop(self) -> None:
        algorithm = td3(policy_delay=2)
        for count in range(1, 4):
            algorithm.update(CannedReplay(ITEMS))
            assert algorithm.updates == count
        assert {k: v.updates for k, v in algorithm.steps.items()} == {
            "critic_step": 2,
            "full_step": 1,
        }
        assert algorithm.clock.updates == 0
        other = td3(policy_delay=2)
        other.load_state(algorithm.state())
        assert other.updates == 3

    def test_the_last_note_counts(self) -> None:
        algorithm = td3()
        algorithm.note(share=1.0)
        algorithm.note(share=2.0)
        assert algorithm.drain_metrics() == {"train/share": 2.0}
        assert algorithm.drain_metrics() == {}

    def test_what_is_not_drained_is_saved(self) -> None:
        one, two = td3(), td3(seed=2)
        for _ in range(3):
            one.update(CannedReplay(ITEMS))
        one.note(share=0.5)
        two.load_state(one.state())
        found, expected = two.drain_metrics(), one.drain_metrics()
        assert found == expected and {"train/critic_loss", "train/share"} <= set(expected)


class TestData:
    def test_observations_and_rewards_are_normalised(self) -> None:
        algorithm = td3(normalize_obs=True, normalize_reward=True, gamma=0.5, num_envs=2)
        # Mean (2, 4), variance (1, 4)
        algorithm.update_obs_stats(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
        # Returns 2, 6, then 0 + 2/2 = 1 and 0 + 6/2 = 3: mean 3, variance (1 + 9 + 4 + 0) / 4
        algorithm.update_reward_stats(np.array([2.0, 6.0]), np.zeros(2, bool))
        algorithm.update_reward_stats(np.array([0.0, 0.0]), np.zeros(2, bool))
        batch = algorithm.replay_tensors(ITEMS)
        expected = torch.tensor([[-1.0, -1.0], [1.0, 0.0]])
        torch.testing.assert_close(batch["obs"], expected, atol=1e-4, rtol=0)
        expected = torch.tensor([[3.0, 1.0], [5.0, 2.0]])
        torch.testing.assert_close(batch["next_obs"], expected, atol=1e-4, rtol=0)
        # The mean is not subtracted; 40 is clipped to 10 standard deviations.
        expected = torch.tensor([1.0 / np.sqrt(3.5), 10.0], dtype=torch.float32)
        torch.testing.assert_close(batch["reward"], expected, atol=1e-4, rtol=0)
        assert ITEMS.reward.tolist() == [1.0, 40.0] and ITEMS.obs[0].tolist() == [1.0, 2.0]

    def test_acting_does_not_move_the_normaliser(self) -> None:
        algorithm = td3(normalize_obs=True)
        algorithm.update_obs_stats(np.ones((4, 2), np.float32))
        before = algorithm.state()["normalisers"]
        for explore in (True, False):
            algorithm.act(np.full((3, 2), 5.0, np.float32), None, explore)
        algorithm.update(CannedReplay(ITEMS))
        assert algorithm.state()["normalisers"]["obs_norm"][""]["count"] == 4
        np.testing.assert_array_equal(
            algorithm.state()["normalisers"]["obs_norm"][""]["mean"], before["obs_norm"][""]["mean"]
        )

    def test_dict_observations_keep_their_names(self) -> None:
        space = spaces.Dict({"arm": OBS, "leg": BOX})
        algorithm = make_algorithm("ddpg", space, BOX, hidden=(4,))
        batch = make_batch(
            obs={"arm": [[1.0, 2.0]], "leg": [[3.0]]},
            next_obs={"arm": [[4.0, 5.0]], "leg": [[6.0]]},
            action=[[0.0]], reward=[1.0], discount=[0.9],
        )  # fmt: skip
        named = algorithm.replay_tensors(batch)
        assert named["obs/leg"].tolist() == [[3.0]]
        assert named["next_obs/arm"].tolist() == [[4.0, 5.0]]

    def test_noise_comes_from_the_algorithms_own_stream(self) -> None:
        one, two = td3(), td3()
        torch.manual_seed(0)
        first = one.noise(3, 2)
        torch.manual_seed(1)
        assert first.shape == (3, 2) and torch.equal(first, two.noise(3, 2))
        assert not torch.equal(first, one.noise(3, 2))


class TestSpaces:
    @pytest.mark.parametrize(
        ("observation", "action"),
        [
            (OBS, spaces.Discrete(3, start=5)),
            (OBS, spaces.MultiDiscrete([2, 3], start=[0, -1])),
            (spaces.Discrete(4, start=1), spaces.Discrete(3)),
            (spaces.Dict({"kind": spaces.Discrete(4, start=-1)}), spaces.Discrete(3)),
        ],
    )
    def test_whole_numbers_are_counted_from_0(self, observation: Any, action: Any) -> None:
        with pytest.raises(AssertionError, match="not canonical"):
            make_algorithm("ppo", observation, action, hidden=(4,))


class TestLearningRates:
    SETTINGS: ClassVar[dict[str, dict[str, Any]]] = {
        "sac": {},
        "td3": {"policy_delay": 1},
        "ddpg": {},
        "tqc": {"n_critics": 2, "n_quantiles": 5},
        "redq": {"policy_delay": 1, "n_critics": 3},
        "crossq": {"policy_delay": 1, "critic_hidden": (4,)},
    }

    def moved(self, name: str, **settings: Any) -> set[str]:
        """Return which networks one update moves."""
        plain = {"hidden": (4,), "batch_size": 2, "env_steps": 100}
        algorithm = make_algorithm(name, OBS, BOX, **plain, **self.SETTINGS[name], **settings)
        algorithm.clock.env_steps = 50
        modules = {k: getattr(algorithm, k, None) for k in ("critic", "actor", "temperature")}
        before = {k: [p.clone() for p in m.parameters()] for k, m in modules.items() if m}
        algorithm.update(CannedReplay(ITEMS))
        return {
            k
            for k, old in before.items()
            if any(not torch.equal(a, b) for a, b in zip(old, modules[k].parameters(), strict=True))
        }

    @pytest.mark.parametrize("name", SETTINGS)
    def test_of_each_network(self, name: str) -> None:
        learned = {"temperature"} if name not in ("td3", "ddpg") else set()
        everything = {"critic", "actor"} | learned
        assert self.moved(name) == everything
        # One of their own is taken in place of `lr`, and is a schedule as well: 0 after a half.
        assert self.moved(name, lr=0.0, critic_lr=0.1) == {"critic"}
        assert self.moved(name, critic_lr="linear:0.1:0:0.5") == everything - {"critic"}
        assert self.moved(name, critic_lr="linear:0.1:0:0.6") == everything
        if learned:
            assert self.moved(name, lr=0.0, alpha_lr=0.1) == {"temperature"}
            assert self.moved(name, alpha_lr=0.0) == {"critic", "actor"}
            with pytest.raises(ConfigError, match=r"alpha_lr=0\.1 has no effect with alpha"):
                self.moved(name, alpha=0.2, alpha_lr=0.1)


class TestState:
    def test_has_a_place_for_everything(self) -> None:
        state = td3(normalize_obs=True, normalize_reward=True).state()
        networks = {"actor", "critic", "target_actor", "target_critic"}
        assert networks <= set(state["weights"])
        assert set(state["optimizer"]) == {"critic_step", "full_step"}
        assert set(state["normalisers"]) == {"obs_norm", "reward_scale"}
        assert "rng" in state["algorithm"]

    def test_loading_writes_in_place(self) -> None:
        """The fast path of acting holds views of the weights: they must not move."""
        one, two = td3(), td3(seed=2)
        obs = np.ones((3, 2), np.float32)
        assert not np.allclose(two.act(obs, None, False).action, one.act(obs, None, False).action)
        places = [p.data_ptr() for p in two.actor.parameters()]
        two.load_state(one.state())
        assert [p.data_ptr() for p in two.actor.parameters()] == places
        np.testing.assert_array_equal(
            two.act(obs, None, False).action, one.act(obs, None, False).action
        )

    @pytest.mark.parametrize(
        "value",
        [
            [nn.Linear(1, 1)],
            {"a": torch.zeros(1)},
            (td3().critic_step,),
            [RunningNormalizer(OBS)],
            torch.Generator(),
        ],
        ids=["modules", "tensors", "steps", "normalisers", "generator"],
    )
    def test_what_a_checkpoint_would_lose_is_refused(self, value: Any) -> None:
        algorithm = td3()
        algorithm.extra = value
        with pytest.raises(ConfigError, match="'extra' holds state that no checkpoint"):
            algorithm.state()

    def test_an_agent_that_only_acts_needs_no_optimizer(self) -> None:
        learner = td3()
        learner.update(CannedReplay(ITEMS))
        sections = learner.state()
        del sections["optimizer"]
        run = {"device": "cpu", "compile": True, "hidden": (4,), "batch_size": 2}
        config = resolve("td3", "none", run, use_preset=False)
        agent = build_algorithm(config, Spaces(OBS, BOX), Clock(1000), learns=False)
        assert agent.mode() == "eager"  # whatever `compile` says
        agent.load_state(sections)
        obs = np.ones((3, 2), np.float32)
        np.testing.assert_array_equal(
            agent.act(obs, None, False).action, learner.act(obs, None, False).action
        )
        with pytest.raises(KeyError, match="optimizer"):
            td3().load_state(sections)


class TestOwnBuffers:
    """A buffer that is an attribute has sections of its own."""

    def owner(self, **settings: Any) -> Any:
        algorithm = td3(**settings)
        algorithm.dreams = ImaginedReplay(
            Spaces(OBS, BOX), 8, gamma=0.9, rng=np.random.default_rng(0)
        )
        return algorithm

    def add(self, algorithm: Any, count: int) -> None:
        obs, number = torch.ones(count, 2), torch.arange(float(count))
        algorithm.dreams.add(
            obs=obs, next_obs=obs, action=number[:, None], reward=number, terminated=number
        )

    def test_they_are_apart_from_what_acting_reads(self) -> None:
        algorithm = self.owner()
        self.add(algorithm, 3)
        state = algorithm.state()
        assert {"algorithm-dreams-head", "algorithm-dreams-00000"} <= state.keys()
        assert "dreams" not in state["normalisers"]

    def test_what_did_not_change_keeps_its_version(self) -> None:
        algorithm = self.owner()
        self.add(algorithm, 3)
        name = "algorithm-dreams-00000"
        before = algorithm.sections()
        algorithm.update(CannedReplay(ITEMS))
        assert algorithm.sections()[name][1] == before[name][1] is not None
        self.add(algorithm, 1)
        assert algorithm.sections()[name][1] != before[name][1]
        assert before["weights"][1] is None  # always written

    def test_they_are_restored_for_learning_alone(self) -> None:
        one, two = self.owner(), self.owner(seed=2)
        self.add(one, 3)
        two.load_state(one.state())
        assert one.dreams.sample(4).reward.tolist() == two.dreams.sample(4).reward.tolist()
        sections = {k: v for k, v in one.state().items() if not k.startswith("algorithm-")}
        with pytest.raises(CheckpointError, match="head"):
            self.owner().load_state(sections)
        acting = self.owner()
        acting.context = replace(acting.context, learns=False)
        acting.load_state(sections)
        assert len(acting.dreams) == 0


class TestSteps:
    @pytest.fixture
    def compiling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Build steps that would be compiled when they are called."""
        monkeypatch.setattr(Algorithm, "mode", lambda self, device=None: "compiled")

    @pytest.mark.usefixtures("compiling")
    def test_losses_may_read_every_module(self) -> None:
        algorithm = make_algorithm("c51", OBS, spaces.Discrete(2), hidden=(4,))
        assert algorithm.step.modules == [algorithm.q, algorithm.mean, algorithm.target]
        algorithm = td3()
        both = {algorithm.critic, algorithm.actor}
        both |= {algorithm.target_actor, algorithm.target_critic, algorithm.scale}
        assert set(algorithm.critic_step.modules) == set(algorithm.full_step.modules) == both

    @pytest.mark.usefixtures("compiling")
    def test_what_an_objective_moves_is_not_read_a_second_time(self) -> None:
        algorithm = make_algorithm("dqn", OBS, spaces.Discrete(2), hidden=(4,), rnd=1.0)
        rnd = algorithm.distillation
        assert algorithm.step.modules == [algorithm.q, rnd.predictor, algorithm.target, rnd.target]

    @pytest.mark.parametrize(
        ("name", "settings", "updates"),
        [
            ("ppo", {"horizon": 8, "minibatch_size": 4, "epochs": 3}, 1000 / 16 * 3 * 4),
            ("recurrent_ppo", {"horizon": 8, "minibatch_size": 4, "epochs": 3, "chunk": 4}, 750),
            ("a2c", {"horizon": 5}, 100),
            ("impala", {"horizon": 5}, 100),
            ("dqn", {"train_every": 4, "updates": 3}, 750),
        ],
    )
    def test_expected_updates(self, name: str, settings: dict[str, Any], updates: float) -> None:
        space = spaces.Discrete(2)
        algorithm = make_algorithm(name, OBS, space, num_envs=2, hidden=(4,), **settings)
        assert algorithm.needs.expected_updates(1000, 2) == updates

    @pytest.mark.parametrize(
        ("settings", "env_steps", "compiler", "worth"),
        [
            ({"sequence": 8, "burn_in": 4}, 10_000_000, True, True),
            ({"sequence": 8, "burn_in": 4}, 10_000_000, False, False),
            ({"sequence": 8, "burn_in": 4}, 1_000, True, False),
            # Unrolled, it would compile for minutes.
            ({"sequence": 20, "burn_in": 4}, 10_000_000, True, False),
        ],
    )
    def test_long_runs_are_worth_compiling_unless_that_takes_too_long(
        self,
        settings: dict[str, Any],
        env_steps: int,
        compiler: bool,
        worth: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("assay.algorithms.base.has_compiler", lambda: compiler)
        monkeypatch.setenv("ASSAY_COMPILE", "auto")
        run = {"device": "cpu", "compile": "auto", "env_steps": env_steps, "hidden": (4,)}
        config = resolve(
            "r2d2", "none", run, {"overlap": 2, "n_step": 1} | settings, use_preset=False
        )
        clock = Clock(env_steps)
        algorithm = build_algorithm(config, Spaces(OBS, spaces.Discrete(2)), clock)
        assert algorithm.step.mode == algorithm.mode() == "auto"
        assert algorithm.is_worth_compiling is worth
        assert algorithm.mode(torch.device("cuda")) == "cuda_graph"


class NoSettings(Settings):
    """Nothing to set."""


@register(loop="off_policy", actions=("Box",), family="trial", paper="trial")
class Noisy(Algorithm):
    """Two steps whose noise is drawn on the device."""

    Hyperparameters = NoSettings

    def __init__(self, seed: int) -> None:
        context = Context(Clock(100), seed)
        super().__init__(Spaces(OBS, BOX), NoSettings(), context)
        self.needs = ReplayNeeds(capacity=10, learning_starts=1)
        self.net, self.other = nn.Linear(2, 1), nn.Linear(2, 1)
        noise = {"eps": NoiseSpec((3, 2))}
        self.one = self.make_step([Objective("one", self.net, self._loss)], noise=noise)
        self.two = self.make_step([Objective("two", self.other, self._loss)], noise=noise)

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        return Action(np.zeros((len(obs), 1), np.float32))

    def update(self, data: Any) -> None:
        for step in (self.one, self.two):
            step({}, 0.1)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.net(batch["eps"]).mean() + self.other(batch["eps"]).mean()
        return loss, {"eps": batch["eps"]}


class TestDeviceNoise:
    def test_it_comes_from_the_seed_of_the_run(self) -> None:
        drawn = []
        for seed, unrelated in ((1, 0), (1, 1), (2, 0)):
            algorithm = Noisy(seed)
            torch.manual_seed(unrelated)
            algorithm.update(None)
            drawn.append([step.outputs["eps"] for step in algorithm.steps.values()])
        assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
        assert not torch.equal(drawn[0][0], drawn[2][0])
        assert not torch.equal(*drawn[0])  # two steps have two streams

    def test_a_restored_algorithm_goes_on_exactly(self) -> None:
        one, two = Noisy(1), Noisy(2)
        for _ in range(2):
            one.update(None)
        two.update(None)
        two.load_state(one.state())
        for algorithm in (one, two):
            algorithm.update(None)
        assert torch.equal(one.two.outputs["eps"], two.two.outputs["eps"])
        assert one.drain_metrics() == two.drain_metrics()
        for name, weights in one.state()["weights"].items():
            for key, array in weights.items():
                np.testing.assert_array_equal(two.state()["weights"][name][key], array)


@pytest.mark.parametrize("name", registry.names())
def test_every_algorithm_says_what_it_is(name: str) -> None:
    cls = registry.get(name)
    assert cls.spec.name == name and cls.spec.summary and cls.spec.paper
    for key, (_, _, meaning) in cls.Hyperparameters.meanings().items():
        assert meaning.endswith("."), f"{name}.{key} has no meaning"


@pytest.mark.parametrize("name", registry.names())
def test_an_unbounded_box_has_a_clear_answer(name: str) -> None:
    """Squashed policies need bounds; the others act without."""
    cls = registry.get(name)
    if "Box" not in cls.spec.actions:
        pytest.skip("no Box")
    if cls.spec.agents == "many":
        pytest.skip("not for one agent")
    free = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    run = {"device": "cpu", **plain_budget(name, 100)}
    settings = cls.Hyperparameters.model_fields
    small: dict[str, Any] = {"width": 4} if "width" in settings else {"hidden": (4,)}
    if "size" in settings:
        small = {"size": "nano"}
    config = resolve(name, "none", run, small, use_preset=False)
    if cls.spec.loop == "on_policy":
        algorithm = build_algorithm(config, Spaces(OBS, free), Clock(100))
        carry = algorithm.initial_carry(3)
        action = algorithm.act(np.zeros((3, 2), np.float32), carry, True).action
        assert action.shape == (3, 2) and np.isfinite(action).all()
    else:
        with pytest.raises(SpaceError, match="finite bounds"):
            build_algorithm(config, Spaces(OBS, free), Clock(100))


class Early(Noisy):
    """Makes its policy before its steps."""

    def make_step(self, *args: Any, **kwargs: Any) -> Any:
        self.policy = self.make_policy(self.net, DeterministicHead(BOX, lambda: 0.0))
        return super().make_step(*args, **kwargs)


def test_a_policy_that_would_act_on_with_old_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="Early calls make_policy before make_step"):
        Early(1)


def test_an_optimizer_of_torch_is_refused() -> None:
    algorithm: Any = Noisy(1)
    algorithm.optimizer = torch.optim.Adam(algorithm.net.parameters())
    with pytest.raises(ConfigError, match="'optimizer' holds state that no checkpoint"):
        algorithm.state()


class Unable(Noisy):
    """Cannot act."""

    act = Algorithm.act


def test_an_algorithm_without_needs_or_policy_is_refused() -> None:
    algorithm: Any = Unable(1)
    with pytest.raises(ConfigError, match="Unable has no policy"):
        refuse_mistakes(algorithm)
    algorithm.needs = DatasetNeeds()
    with pytest.raises(ConfigError, match="its needs are a DatasetNeeds; expected ReplayNeeds"):
        refuse_mistakes(algorithm)


@pytest.mark.parametrize("place", ["attribute", "module"])
def test_what_would_be_lost_is_refused_before_the_run(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint may be hours away."""

    def forgetful(self: Any, *args: Any) -> None:
        make(self, *args)
        (self if place == "attribute" else self.net).extra = [nn.Linear(1, 1)]

    cls = registry.get("a2c")
    make = cls.__init__
    monkeypatch.setattr(cls, "__init__", forgetful)
    config = resolve("a2c", "none", {"env_steps": 100, "device": "cpu"}, use_preset=False)
    with pytest.raises(ConfigError, match="'extra'"):
        build_algorithm(config, Spaces(OBS, spaces.Discrete(2)), Clock(100))

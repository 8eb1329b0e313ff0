"""Defaults that are chosen by what the environment is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import assay
from assay.core import registry
from assay.core.types import Clock, Sight, Spaces, Team
from assay.envs.make import look_at
from assay.loops.config import RunConfig, preset, resolve
from assay.loops.training import build_algorithm
from assay.testing.algorithms import required_settings

VECTOR = gym_spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = gym_spaces.Box(0, 255, (4, 84, 84), np.uint8)
SMALL = gym_spaces.Box(0, 1, (4, 10, 10), np.uint8)
ONE_OF = gym_spaces.Discrete(5)
BOX = gym_spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICE = gym_spaces.Discrete(3)
# Those that collect, for any environment of one agent: a board game is not any.
ALGORITHMS = [
    name
    for name in registry.names()
    if "policy" in registry.get(name).spec.loop
    and registry.get(name).spec.agents == "one"
    and not registry.get(name).plays_itself
]


def fit(
    algorithm: str, observation: Any = VECTOR, action: Any = None, **given: Any
) -> tuple[RunConfig, Spaces]:
    """Resolve settings for an environment that nobody tuned."""
    kinds = registry.get(algorithm).spec.actions
    action = action or (CHOICE if "Discrete" in kinds else BOX)
    spaces = Spaces(observation, action)
    layers = required_settings(algorithm), given
    return resolve(algorithm, "Maze-v0", *layers, look=lambda settings: Sight(spaces)), spaces


def values(config: RunConfig) -> Mapping[str, Any]:
    """Return all settings by name."""
    return config.run.model_dump() | config.hyperparameters


@pytest.mark.parametrize(
    "observation", [VECTOR, IMAGE, SMALL, ONE_OF], ids=["vector", "image", "small", "one-hot"]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_accepts_its_own_defaults(algorithm: str, observation: Any) -> None:
    if algorithm in ("mbpo", "mopo", "hiro") and observation is not VECTOR:
        pytest.skip("its model or its subgoals are of vectors")
    for action in (BOX, CHOICE):
        if type(action).__name__ in registry.get(algorithm).spec.actions:
            config, spaces = fit(algorithm, observation, action, env_steps=20_000, device="cpu")
            build_algorithm(config, spaces, Clock(20_000))


def test_they_depend_on_the_actions() -> None:
    box, choice = (values(fit("ppo", action=action)[0]) for action in (BOX, CHOICE))
    assert box["normalize_obs"] and box["normalize_reward"]
    assert choice["normalize_obs"] and choice["normalize_reward"]
    assert (box["lr"], choice["lr"]) == (3e-4, "linear:0.001:0.0")
    assert not values(fit("ppo", ONE_OF)[0])["normalize_obs"]
    assert box["num_envs"] * box["horizon"] == choice["num_envs"] * choice["horizon"] == 2048


def test_many_actions_explore_half_as_far() -> None:
    few, many = (gym_spaces.Box(-1.0, 1.0, shape, np.float32) for shape in ((5,), (2, 3)))
    found = [values(fit("ppo", action=action)[0])["log_std_init"] for action in (few, many)]
    assert found == [0.0, -0.7]
    assert values(fit("ppo", action=many, log_std_init=0.5)[0])["log_std_init"] == 0.5
    assert values(fit("a2c", action=many)[0])["log_std_init"] == 0.0  # it gained nothing
    own = gym_spaces.Box(-1.0, 1.0, (3,), np.float32)
    team = Team(("left", "right"), ("all", "all"), (VECTOR, VECTOR), (own, own))
    joint = Spaces(gym_spaces.Dict(), gym_spaces.Box(-1.0, 1.0, (6,), np.float32), team)
    config = resolve("ippo", "Maze-v0", look=lambda settings: Sight(joint))
    assert values(config)["log_std_init"] == 0.0


def test_a2c_moves_from_the_first_update_where_actions_are_a_box() -> None:
    """Its RMSprop starts from a mean square of one, and gradients of scaled rewards are small."""
    box, choice = (values(fit("a2c", action=action)[0]) for action in (BOX, CHOICE))
    assert (box["optimizer"], choice["optimizer"]) == ("adam", "rmsprop")
    assert (box["lr"], choice["lr"]) == ("linear:0.0007:0.0", 7e-4)  # falls: Adam follows noise
    assert box["num_envs"] == 1  # an update every eight steps
    assert values(fit("a2c", action=BOX, optimizer="rmsprop")[0])["optimizer"] == "rmsprop"


def test_they_depend_on_the_observation() -> None:
    vector, image = (values(fit("dqn", observation)[0]) for observation in (VECTOR, IMAGE))
    assert vector["double"] and vector["tau"] < 1
    assert image["tau"] == 1 and image["lr"] == 1e-4
    small = values(fit("dqn", SMALL)[0])
    assert {k: small[k] for k in ("tau", "lr")} == {k: vector[k] for k in ("tau", "lr")}
    rates = [values(fit("ppo", observation)[0])["lr"] for observation in (SMALL, IMAGE)]
    assert rates == ["linear:0.001:0.0", "linear:0.00025:0.0"]


def test_they_depend_on_the_budget() -> None:
    short, long = (values(fit("sac", env_steps=n)[0]) for n in (2_000, 10_000_000))
    assert short["learning_starts"] == 100 and long["learning_starts"] == 1_000
    assert short["buffer_size"] == 10_000 and long["buffer_size"] == 1_000_000
    boxed = [values(fit("sac", action=BOX, env_steps=n)[0]) for n in (10_000, 500_000)]
    assert [found["updates"] for found in (*boxed, short)] == [2, 1, 1]  # choices: not measured
    assert [found["layer_norm"] for found in (*boxed, short)] == [True, False, False]
    assert boxed[0]["learning_starts"] == 100


def test_two_updates_per_step_are_for_who_left_the_pace_open() -> None:
    for pace in ({"updates": 1}, {"train_every": 4}):
        found = values(fit("sac", action=BOX, env_steps=10_000, **pace)[0])
        assert (found["updates"], found["layer_norm"]) == (1, False)
    assert values(fit("td3", action=BOX, env_steps=10_000)[0])["updates"] == 2
    assert values(fit("redq", action=BOX, env_steps=10_000)[0])["updates"] == 20
    assert values(fit("sac", action=BOX, env_steps=10_000, network="simba")[0])["updates"] == 2


@pytest.mark.parametrize("algorithm", ["ppo", "recurrent_ppo"])
@pytest.mark.parametrize("action", [BOX, CHOICE])
@pytest.mark.parametrize("budget", [100, 500, 1000, 1009, 2000])
def test_a_rollout_is_not_larger_than_the_run(algorithm: str, action: Any, budget: int) -> None:
    """A thousand steps of a slow environment are not two thousand."""
    config, spaces = fit(algorithm, action=action, env_steps=budget, device="cpu")
    found = values(config)
    size = found["num_envs"] * found["horizon"]
    step = found["num_envs"] * max(8, found.get("chunk", 1))
    assert budget <= size < budget + step
    assert size // found["minibatch_size"] <= 32
    build_algorithm(config, spaces, Clock(budget))
    assert values(fit(algorithm, env_steps=budget, horizon=512)[0])["horizon"] == 512


def test_what_is_given_stays() -> None:
    found = values(fit("ppo", action=BOX, num_envs=3, epochs=2, normalize_obs=False)[0])
    assert (found["num_envs"], found["epochs"], found["normalize_obs"]) == (3, 2, False)


@given(
    envs=st.integers(1, 3000) | st.none(),
    horizon=st.integers(1, 5000) | st.none(),
    parts=st.integers(1, 40) | st.none(),
)
@settings(max_examples=60, deadline=None)
def test_rollouts_are_cut_to_fit(envs: int | None, horizon: int | None, parts: int | None) -> None:
    asked = {"num_envs": envs, "horizon": horizon}
    asked = {key: value for key, value in asked.items() if value is not None}
    if parts is not None and horizon is None:
        asked["minibatch_size"] = parts * 7
    found = values(fit("ppo", **asked)[0])
    size = found["num_envs"] * found["horizon"]
    assert size % found["minibatch_size"] == 0
    assert {key: found[key] for key in asked} == asked


@given(envs=st.integers(1, 300), chunk=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_chunks_stay_whole(envs: int, chunk: int) -> None:
    found = values(fit("recurrent_ppo", num_envs=envs, chunk=chunk)[0])
    assert found["horizon"] % chunk == 0 and found["minibatch_size"] % chunk == 0
    assert found["horizon"] * envs % found["minibatch_size"] == 0


@pytest.mark.parametrize(
    ("algorithm", "given", "void"),
    [
        ("dqn", {"noisy": True}, "epsilon"),
        ("ppo", {"network": "tests.own:net"}, "hidden"),
    ],
)
def test_a_default_without_effect_is_not_taken(
    algorithm: str, given: dict[str, Any], void: str
) -> None:
    config, spaces = fit(algorithm, **given)
    hp = registry.get(algorithm).Hyperparameters(**config.hyperparameters)
    hp.reject_unused(spaces)
    assert getattr(hp, void) == type(hp).model_fields[void].get_default(call_default_factory=True)


@pytest.mark.parametrize("given", [{"target_every": 10}, {"epsilon": 0.3}])
def test_a_default_that_would_void_what_is_given_is_not_taken(given: dict[str, Any]) -> None:
    config, spaces = fit("dqn", **given)
    registry.get("dqn").Hyperparameters(**config.hyperparameters).reject_unused(spaces)
    assert values(config)["double"]
    assert (values(config)["tau"] == 1) == ("target_every" in given)


def test_a_support_that_is_given_is_in_the_units_of_rewards() -> None:
    assert values(fit("c51")[0])["normalize_reward"]
    assert not values(fit("c51", v_min=0, v_max=12)[0])["normalize_reward"]


def test_a_preset_stays_what_was_tuned() -> None:
    spaces = Spaces(VECTOR, CHOICE)
    config = resolve("ppo", "CartPole-v1", look=lambda settings: Sight(spaces))
    assert config == resolve("ppo", "CartPole-v1")
    assert preset("ppo", "CartPole-v1")["horizon"] == values(config)["horizon"]


def test_a_preset_for_other_rollouts_leaves_them_open() -> None:
    spaces = Spaces(VECTOR, CHOICE)
    config = resolve("ppo", "CartPole-v1", num_envs=1, look=lambda settings: Sight(spaces))
    found, tuned = values(config), preset("ppo", "CartPole-v1")
    assert (found["num_envs"], found["horizon"], found["minibatch_size"]) == (1, 2048, 64)
    assert (found["epochs"], found["gamma"]) == (tuned["epochs"], tuned["gamma"])


def test_a_configuration_that_is_given_whole_is_not_looked_at() -> None:
    config, _ = fit("ppo")

    def refuse(kwargs: Mapping[str, Any]) -> Any:
        raise AssertionError("it was looked at")

    assert resolve("ppo", "Maze-v0", config.to_dict(), look=refuse, use_preset=False) == config


def test_they_are_in_the_runs_configuration(tmp_path: Path) -> None:
    run = assay.train(
        "ppo", "MountainCar-v0", preset=False, env_steps=64, num_envs=2, horizon=16,
        eval_episodes=1, root=tmp_path, compile=False,
    )  # fmt: skip
    assert run.config.hyperparameters["epochs"] == 10
    assert run.config.hyperparameters["minibatch_size"] == 32


def test_a_discount_by_the_length_of_episodes() -> None:
    """TD-MPC2: (L / 5 - 1) / (L / 5), between 0.95 and 0.995; without a limit, the field's."""

    def discount(steps: int | None) -> float:
        sight = Sight(Spaces(VECTOR, BOX), steps)
        return values(resolve("tdmpc2", "Maze-v0", look=lambda settings: sight))["gamma"]

    assert discount(200) == pytest.approx(39 / 40)
    assert (discount(50), discount(100_000), discount(None)) == (0.95, 0.995, 0.99)
    assert look_at("Pendulum-v1", {}).episode_steps == 200
    assert look_at("Pendulum-v1", {"max_episode_steps": 70}).episode_steps == 70
    wide = gym_spaces.Box(-1.0, 1.0, (20,), np.float32)
    iterations = [values(fit("tdmpc2", action=space)[0])["iterations"] for space in (BOX, wide)]
    assert iterations == [6, 8]


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({"num_envs": 4}, 128),  # 4 x 32 steps, and the preset has minibatches of 256
        ({"num_envs": 12}, 192),
        ({"horizon": 5}, 160),
        ({"num_envs": 64}, 256),
        ({"num_envs": 4, "minibatch_size": 256}, 256),  # what is asked for stays
    ],
)
def test_minibatches_of_a_preset_are_cut_to_a_rollout(asked: dict[str, int], size: int) -> None:
    assert resolve("ppo", "CartPole-v1", asked).hyperparameters["minibatch_size"] == size

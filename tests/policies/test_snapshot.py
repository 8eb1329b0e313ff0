"""Every policy that clients can run acts from its file as the agent that learned it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core import registry
from assay.core.types import action_mask
from assay.functional.distributions import policy_distribution
from assay.networks.noisy import NoisyLinear, set_noise
from assay.policies.distributions import ActionScale
from assay.policies.parts import ModelError
from assay.server.client.policy import Policy
from assay.testing.algorithms import make_algorithm

VECTOR = spaces.Box(-5, 5, (6,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32))
SMALL: dict[str, Any] = {"hidden": (12, 8)}
REPLAY = SMALL | {"buffer_size": 64, "learning_starts": 4, "batch_size": 4}
IMPLICIT = REPLAY | {"cosines": 16}
ROLLOUT = SMALL | {"horizon": 8}
CASES: dict[str, tuple[str, gym.Space[Any], dict[str, Any]]] = {
    "ppo discrete": ("ppo", spaces.Discrete(4), ROLLOUT | {"minibatch_size": 8}),
    "ppo box": ("ppo", BOX, ROLLOUT | {"minibatch_size": 8, "log_std_init": -0.7}),
    "ppo unbounded": (
        "ppo", spaces.Box(-np.inf, np.inf, (2,), np.float32), ROLLOUT | {"minibatch_size": 8}
    ),
    "ppo multi": ("ppo", spaces.MultiDiscrete([3, 2, 5]), ROLLOUT | {"minibatch_size": 8}),
    "ppo bits": ("ppo", spaces.MultiBinary(3), ROLLOUT | {"minibatch_size": 8}),
    "a2c": ("a2c", spaces.Discrete(4), ROLLOUT | {"activation": "gelu"}),
    "impala": ("impala", spaces.Discrete(4), ROLLOUT | {"activation": "silu"}),
    "dqn": ("dqn", spaces.Discrete(4), REPLAY | {"activation": "elu"}),
    "dqn dueling": ("dqn", spaces.Discrete(4), REPLAY | {"dueling": True}),
    "c51": ("c51", spaces.Discrete(4), REPLAY | {"dueling": True, "atoms": 7}),
    "qrdqn": ("qrdqn", spaces.Discrete(4), REPLAY | {"quantiles": 5}),
    "iqn": ("iqn", spaces.Discrete(4), IMPLICIT),
    "iqn deep": ("iqn", spaces.Discrete(4), IMPLICIT | {"head_hidden": (7,), "cvar": 0.4}),
    "iqn dueling": ("iqn", spaces.Discrete(4), IMPLICIT | {"dueling": True}),
    "iqn deep dueling": (
        "iqn", spaces.Discrete(4), IMPLICIT | {"dueling": True, "head_hidden": (7,)}
    ),
    "fqf": ("fqf", spaces.Discrete(4), IMPLICIT),
    "fqf deep": ("fqf", spaces.Discrete(4), IMPLICIT | {"head_hidden": (7,)}),
    "fqf dueling": ("fqf", spaces.Discrete(4), IMPLICIT | {"dueling": True}),
    "rainbow": ("rainbow", spaces.Discrete(4), REPLAY | {"atoms": 7}),
    "sac box": ("sac", BOX, REPLAY),
    "sac discrete": ("sac", spaces.Discrete(4), REPLAY),
    "td3": ("td3", BOX, REPLAY),
    "ddpg": ("ddpg", BOX, REPLAY),
    "redq": ("redq", BOX, REPLAY),
    "tqc": ("tqc", BOX, REPLAY),
    "crossq": ("crossq", BOX, REPLAY),
    "recurrent gru": (
        "recurrent_ppo", spaces.Discrete(4),
        {"horizon": 8, "minibatch_size": 8, "chunk": 8, "memory": "gru", "memory_size": 8,
         "memory_layers": 2},
    ),
    "recurrent lstm": (
        "recurrent_ppo", BOX,
        {"horizon": 8, "minibatch_size": 8, "chunk": 8, "memory": "lstm", "memory_size": 8},
    ),
    "r2d2": (
        "r2d2", spaces.Discrete(4),
        {"buffer_size": 300, "learning_starts": 12, "batch_size": 4, "sequence": 4, "burn_in": 2,
         "overlap": 1, "n_step": 2, "memory": "gru", "memory_size": 8, "head_hidden": (8,)},
    ),
}  # fmt: skip
REFUSED = {
    "transformer": ("recurrent_ppo", spaces.Discrete(4),
                    {"horizon": 8, "minibatch_size": 8, "chunk": 8, "memory": "transformer"}),
}  # fmt: skip


def scrambled(algorithm: Any) -> Any:
    """Return the algorithm with weights that show what they do: fresh heads give almost nothing."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in vars(algorithm).values():
            if isinstance(value, torch.nn.Module):
                for weight in value.parameters():
                    draw = torch.empty_like(weight).uniform_(-0.7, 0.7, generator=generator)
                    weight.copy_(draw)
    return algorithm


def rows(space: gym.Space[Any], n: int, seed: int = 3) -> Any:
    space.seed(seed)
    drawn = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {k: np.stack([row[k] for row in drawn]) for k in space.spaces}
    return np.stack(drawn)


def row(tree: Any, i: int) -> Any:
    return {k: v[i] for k, v in tree.items()} if isinstance(tree, dict) else tree[i]


def check(algorithm: Any, observation: gym.Space[Any]) -> None:
    """Compare the exported policy with the agent, step by step through an episode."""
    policy = Policy(algorithm.policy.snapshot(algorithm.spec.name, version=3))
    trees = rows(observation, 12)
    carry = algorithm.initial_carry(1)
    for i in range(12):
        one = row(trees, i)
        batch = {k: v[None] for k, v in one.items()} if isinstance(one, dict) else one[None]
        expected = algorithm.act(batch, carry, explore=False)
        carry = expected.carry
        action, log_prob = policy.act(one, action_mask(one))
        np.testing.assert_allclose(action, expected.action[0], rtol=2e-6, atol=2e-6)
        assert log_prob == 0.0
    assert policy.version == 3


@pytest.mark.parametrize("case", CASES)
def test_a_policy_acts_from_its_file_as_its_agent_does(case):
    name, action, settings = CASES[case]
    normal = "normalize_obs" in registry.get(name).Hyperparameters.model_fields
    settings = settings | ({"normalize_obs": True} if normal else {})
    algorithm = scrambled(make_algorithm(name, VECTOR, action, **settings))
    # Statistics so narrow that many observations are clipped.
    algorithm.update_obs_stats(rows(VECTOR, 50) * np.float32(0.05) + np.float32(1.0))
    check(algorithm, VECTOR)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_mixed_observations_with_masks_and_normalised_floats(name):
    observation = spaces.Dict(
        {
            "b": spaces.Box(-5, 5, (2, 3), np.float32),
            "a": spaces.Discrete(3),
            "c": spaces.MultiDiscrete([2, 4]),
            "d": spaces.MultiBinary(2),
            "e": spaces.Box(0, 255, (2,), np.uint8),
            "action_mask": spaces.MultiBinary(4),
        }
    )
    settings = (ROLLOUT | {"minibatch_size": 8}) if name == "ppo" else REPLAY
    settings = settings | {"normalize_obs": True}
    algorithm = scrambled(make_algorithm(name, observation, spaces.Discrete(4), **settings))
    algorithm.update_obs_stats(rows(observation, 50))
    check(algorithm, observation)


@pytest.mark.parametrize("case", ["ppo discrete", "ppo multi", "ppo bits", "ppo box", "sac box"])
def test_log_probabilities_are_torchs(case):
    name, action_space, settings = CASES[case]
    algorithm = scrambled(make_algorithm(name, VECTOR, action_space, **settings))
    policy = Policy(algorithm.policy.snapshot(algorithm.spec.name, version=0))
    distribution: Any = policy_distribution(action_space, squash=name == "sac")
    network: Any = algorithm.policy.module()
    rng = np.random.default_rng(1)
    for obs in rows(VECTOR, 30) * np.float32(0.3):
        noise = policy.draw(rng)
        action, log_prob = policy.decide(obs, None, noise)
        with torch.no_grad():
            params = network.network(torch.from_numpy(obs[None]))
        if policy.noise_kind == "uniform":
            expected = distribution.log_prob(params, torch.as_tensor(np.asarray(action))[None])
        else:
            draw = torch.tensor(noise, dtype=torch.float32)[None]
            taken, expected = distribution.sample_log_prob(params, draw)
            if name == "sac":
                taken = torch.from_numpy(ActionScale(action_space).to_env(taken.numpy()))
            np.testing.assert_allclose(policy.raw, taken[0].numpy(), rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(log_prob, float(expected[0]), rtol=2e-6, atol=2e-6)


def test_exploration_goes_with_the_file():
    dqn = make_algorithm("dqn", VECTOR, spaces.Discrete(4), **REPLAY, epsilon=0.25)
    td3 = make_algorithm("td3", VECTOR, BOX, **REPLAY, exploration_noise=0.5)
    assert dqn.policy.snapshot(dqn.spec.name, version=0).architecture.head.epsilon == 0.25
    assert td3.policy.snapshot(td3.spec.name, version=0).architecture.head.noise == 0.5


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(("iqn", "fqf"))])
def test_expectations_over_levels_are_torchs(case):
    name, action_space, settings = CASES[case]
    algorithm = scrambled(make_algorithm(name, VECTOR, action_space, **settings))
    snapshot = algorithm.policy.snapshot(algorithm.spec.name, version=0)
    last: Any = snapshot.architecture.layers[-1]
    assert last.affine == ("deep" not in case)
    if name == "iqn":  # the even levels, at which evaluations act
        np.testing.assert_array_equal(snapshot.arrays[last.levels], algorithm.policy.network.levels)
    policy = Policy(snapshot)
    network: Any = algorithm.policy.module().network
    for obs in rows(VECTOR, 10):
        with torch.no_grad():
            expected = network(torch.from_numpy(obs[None]))[0].numpy()
        np.testing.assert_allclose(policy.params(obs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rainbow", REPLAY | {"atoms": 7}),
        ("iqn", IMPLICIT | {"noisy": True, "head_hidden": (7,)}),
        ("fqf", IMPLICIT | {"noisy": True, "dueling": True}),
    ],
)
def test_noisy_layers_are_folded_with_one_draw_of_their_noise(name, settings):
    algorithm = make_algorithm(name, VECTOR, spaces.Discrete(4), **settings)
    silent = algorithm.policy.snapshot(algorithm.spec.name, version=0)
    noisy = algorithm.policy.snapshot(
        algorithm.spec.name, version=0, noise=np.random.default_rng(2)
    )
    network: Any = algorithm.policy.module().network
    set_noise(network, True)
    # The same draw, heard by the layers themselves.
    from assay.networks.noisy import resample_noise

    resample_noise(network, np.random.default_rng(2))
    obs = rows(VECTOR, 1)
    with torch.no_grad():
        heard = network.train()(torch.from_numpy(obs))[0].numpy()
        set_noise(network, False)
        quiet = network(torch.from_numpy(obs))[0].numpy()
    np.testing.assert_allclose(Policy(noisy).params(obs[0]), heard, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(Policy(silent).params(obs[0]), quiet, rtol=1e-5, atol=1e-5)
    assert np.abs(heard - quiet).max() > 1e-3
    assert any(isinstance(m, NoisyLinear) for m in algorithm.q.modules())  # left as it was


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_in_a_client_is_refused_by_name(case):
    name, action, settings = REFUSED[case]
    algorithm = make_algorithm(name, VECTOR, action, **settings)
    with pytest.raises(ModelError, match=f"'{name}'.*cannot run in a client"):
        algorithm.policy.snapshot(algorithm.spec.name, version=0)


def test_images_are_refused():
    image = spaces.Box(0, 255, (3, 48, 48), np.uint8)
    algorithm = make_algorithm("dqn", image, spaces.Discrete(2), buffer_size=8, learning_starts=1)
    with pytest.raises(ModelError, match="image"):
        algorithm.policy.snapshot(algorithm.spec.name, version=0)


@pytest.mark.parametrize("wide", [spaces.Box(-1, 1, (70_000,)), spaces.Discrete(70_000)])
def test_what_is_wider_than_a_file_may_be_acts_but_is_refused(wide):
    algorithm = make_algorithm("ppo", wide, spaces.Discrete(2), hidden=(2,))
    obs = np.zeros((3, *wide.shape), wide.dtype)
    assert algorithm.act(obs, None, False).action.shape == (3,)
    with pytest.raises(ModelError, match="an input of 70,000 numbers, more than 65,536"):
        algorithm.policy.snapshot("ppo", version=0)


def test_more_actions_than_a_file_may_have_are_refused():
    algorithm = make_algorithm("ppo", VECTOR, spaces.Discrete(70_000), hidden=(2,))
    with pytest.raises(ModelError, match=r"does not fit into a model file.*70000.*65536"):
        algorithm.policy.snapshot("ppo", version=0)


def test_the_same_policy_gives_the_same_bytes():
    first, second = (
        make_algorithm("sac", VECTOR, BOX, **REPLAY).policy.snapshot("sac", version=1)
        for _ in range(2)
    )
    assert first.data == second.data and first.sha256 == second.sha256

"""Networks of a user's own: found by name, checked, trained, saved, resumed and exported."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import assay
from assay.core.errors import ConfigError
from assay.networks.custom import CustomEncoder, find_factory, register_network, source_key
from assay.policies.export import export_policy
from assay.policies.parts import ModelError
from assay.testing.algorithms import assert_same_run, make_algorithm

BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)
SOURCE = """
import torch
from torch import nn

class Wave(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.out_features = 16
        self.net = nn.Linear(space.shape[0], 16)

    def forward(self, obs):
        return torch.sin(self.net(obs))

NUMBER = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a module `user_networks` where the command is run, which is not on the import path."""
    (tmp_path / "user_networks.py").write_text(SOURCE)
    (tmp_path / "user_script.py").write_text("raise SystemExit('usage: user_script.py SIZE')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p not in ("", ".")])
    monkeypatch.delitem(__import__("sys").modules, "user_networks", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "dqn", "c51", "iqn", "fqf", "rainbow"])
def test_every_discrete_family_takes_it(name: str, package: Path) -> None:
    algorithm = make_algorithm(name, BOX, spaces.Discrete(3), network="user_networks:Wave")
    kinds = [type(module).__name__ for module in algorithm.policy.network.modules()]
    assert "Wave" in kinds
    obs = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    with torch.no_grad():
        expected = algorithm.policy.module()(torch.from_numpy(obs))
    np.testing.assert_array_equal(algorithm.act(obs, None, False).action, expected.numpy())


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "tqc", "crossq", "redq"])
def test_actor_and_critics_take_it(name: str, package: Path) -> None:
    action = spaces.Box(-1.0, 1.0, (2,), np.float32)
    algorithm = make_algorithm(name, BOX, action, network="user_networks:Wave")
    for part in (algorithm.actor, algorithm.critic):
        assert any(type(module).__name__ == "Wave" for module in part.modules())


@pytest.mark.parametrize("name", ["recurrent_ppo", "r2d2"])
def test_memories_stand_behind_it(name: str, package: Path) -> None:
    algorithm = make_algorithm(name, BOX, spaces.Discrete(3), network="user_networks:Wave")
    carry = algorithm.initial_carry(2)
    choice = algorithm.act(np.zeros((2, 4), np.float32), carry, False)
    assert choice.action.shape == (2,)
    assert any(np.abs(after).max() > 0 for after in choice.carry.values())


def test_a_run_is_saved_resumed_loaded_and_exported(package: Path) -> None:
    settings: dict[str, Any] = {
        "network": "user_networks:Wave", "env_steps": 1024, "num_envs": 2, "horizon": 64,
        "minibatch_size": 64, "eval_episodes": 2, "eval_every": 0, "checkpoint_every": 256,
        "compile": False, "sinks": (), "preset": False,
    }  # fmt: skip
    whole = assay.train("ppo", "CartPole-v1", root="runs", name="whole", **settings)

    def stop(event: Any) -> Any:
        return assay.STOP if event.clock.env_steps >= 512 else None

    cut = assay.train("ppo", "CartPole-v1", root="runs", name="cut", callbacks=[stop], **settings)
    assert cut.status == "interrupted"
    resumed = assay.resume(cut.path)
    assert_same_run(whole.path, resumed.path)
    agent = assay.load(whole.path)
    obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    assert agent.act(obs) in (0, 1)
    result = export_policy(agent.policy, package / "policy.pt", "torchscript")
    assert result.max_difference == 0
    with pytest.raises(ModelError, match="it has the network user_networks:Wave"):
        agent.policy.snapshot("ppo", version=1)


def test_registered_names_and_dicts_without_their_mask() -> None:
    space = spaces.Dict({"x": BOX, "action_mask": spaces.MultiBinary(3)})
    seen: list[list[str]] = []

    @register_network("of a test")
    class OfATest(nn.Module):
        def __init__(self, space: Any) -> None:
            super().__init__()
            self.out_features = 4

        def forward(self, obs: Any) -> torch.Tensor:
            seen.append(sorted(obs))
            return obs["x"]

    encoder = CustomEncoder("of a test", space)
    assert encoder.out_features == 4 and seen[0] == ["x"]
    assert find_factory("of a test") is OfATest


def test_the_code_is_part_of_a_compiled_step_s_key(package: Path) -> None:
    before = source_key("user_networks:Wave")
    (package / "user_networks.py").write_text(SOURCE.replace("sin", "cos"))
    assert source_key("user_networks:Wave") != before
    assert source_key("mlp") == ""


class Silent(nn.Module):
    def __init__(self, space: Any) -> None:
        super().__init__()


class Crooked(nn.Module):
    def __init__(self, space: Any) -> None:
        super().__init__()
        self.out_features = 5

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs


class Broken(Crooked):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        raise KeyError("weights")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mpl", r"'mpl' is not registered. .*mlp"),
        ("nowhere_at_all:Net", "cannot import 'nowhere_at_all'"),
        ("user_script:Net", "cannot import 'user_script': ImportError: it ends"),
        ("user_networks:Net", r"no class or function 'Net'"),
        ("user_networks:NUMBER", "no class or function 'NUMBER'"),
        (f"{__name__}:Silent", "makes a Silent with out_features=None; expected an nn.Module"),
        (f"{__name__}:Crooked", r"returns Tensor\[2, 4\].*expected Tensor\[2, 5\]"),
        (f"{__name__}:Broken", "fails on a batch of two blank observations: KeyError: 'weights'"),
    ],
)
def test_mistakes_are_named(name: str, words: str, package: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        make_algorithm("dqn", BOX, spaces.Discrete(2), network=name)


def test_settings_of_the_mlp_are_unused(package: Path) -> None:
    with pytest.raises(ConfigError, match=r"hidden=.*no effect with network=user_networks:Wave"):
        make_algorithm("dqn", BOX, spaces.Discrete(2), network="user_networks:Wave", hidden=(7,))


class Dropping(nn.Module):
    """Has a layer that acts otherwise in training."""

    def __init__(self, space: Any, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.out_features = 4
        self.net = nn.Sequential(nn.Linear(space.shape[0], 4), layer or nn.Dropout())

    def forward(self, obs: Any) -> Any:
        return self.net(obs)


class Normalising(Dropping):
    """Has another one."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, nn.BatchNorm1d(4))


def failing(space: Any) -> nn.Module:
    """Fail as a user's code may."""
    raise KeyError("width")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Dropping", "has a Dropout, which computes something else in training"),
        ("Normalising", "has a BatchNorm1d"),
        ("failing", "cannot be made: KeyError: 'width'"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CustomEncoder(f"{__name__}:{name}", BOX)


class Linear(nn.Module):
    """Is an encoder as it should be; the classes below do one thing wrong."""

    out_features: Any = 4

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.net = nn.Linear(space.shape[0], 4)

    def forward(self, obs: Any) -> Any:
        return torch.tanh(self.net(obs))


class Width(Linear):
    out_features = 0


class Array(Linear):
    def forward(self, obs: Any) -> Any:
        return super().forward(obs).numpy()


class Wide(Linear):
    def forward(self, obs: Any) -> Any:
        return super().forward(obs).double()


class WideInside(Linear):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.double()

    def forward(self, obs: Any) -> Any:
        return super().forward(obs.double()).float()


class Random(Linear):
    def forward(self, obs: Any) -> Any:
        return super().forward(obs) + torch.randn(4)


class FunctionalDropout(Linear):
    def forward(self, obs: Any) -> Any:
        return nn.functional.dropout(super().forward(obs), training=self.training)


class AcrossRows(Linear):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.over_time = nn.LSTM(4, 4)

    def forward(self, obs: Any) -> Any:
        return self.over_time(super().forward(obs))[0]


class Changing(Linear):
    def forward(self, obs: Any) -> Any:
        obs *= 0.5
        return super().forward(obs)


class Listed(Linear):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.layers = [nn.Linear(4, 4)]


class Loose(Linear):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.weight = torch.randn(4, 4, requires_grad=True)


ONLY_ONE = Linear(BOX)


def one_for_all(space: Any) -> nn.Module:
    """Return a module that others have as well."""
    return ONLY_ONE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Width", "out_features=0; expected"),
        ("Array", "returns ndarray.*expected Tensor"),
        ("Wide", r"torch.float64 for two observations; expected Tensor\[2, 4\] torch.float32"),
        ("WideInside", "has the parameter net.weight of torch.float64; expected torch.float32"),
        ("Random", "returns other features for the same observations"),
        ("FunctionalDropout", "returns other features for the same observations"),
        ("AcrossRows", "returns other features for the second of two equal observations"),
        ("Changing", "changes the observations"),
        ("Listed", "holds a Linear in the attribute 'layers' of Listed"),
        ("Loose", "holds a Tensor in the attribute 'weight' of Loose"),
        ("one_for_all", "returns the same Linear twice"),
    ],
)
def test_what_would_fail_or_be_lost_later_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        for _ in range(2):
            CustomEncoder(f"{__name__}:{name}", BOX)


@pytest.mark.parametrize("name", ["mlp", "package:name", "", Linear])
def test_a_name_that_means_something_else_is_not_registered(name: Any) -> None:
    with pytest.raises(ConfigError, match="expected a name of your own"):
        register_network(name)


class Frozen(Linear):
    """Has layers that were trained before."""

    out_features = np.int64(4)

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.before = nn.GRU(4, 4, batch_first=True).requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        return super().forward(self.before(obs.unsqueeze(1))[0].squeeze(1))


def test_parameters_without_gradient_stay_as_they_are_and_are_saved(tmp_path: Path) -> None:
    run = assay.train(
        "a2c", "CartPole-v1", root=tmp_path, network=f"{__name__}:Frozen", env_steps=64, horizon=8,
        eval_episodes=1, preset=False, sinks=(),
    )  # fmt: skip
    encoder = CustomEncoder(f"{__name__}:Frozen", BOX)
    assert not [key for key, _ in encoder.named_parameters() if "before" in key]
    saved = encoder.state_dict()
    assert [key for key in saved if "before" in key]
    agent = run.agent()
    found = next(m for m in agent.policy.network.modules() if isinstance(m, CustomEncoder))
    assert found.out_features == 4 and found.state_dict().keys() == saved.keys()


class Off(Linear):
    """Has a dropout that does nothing, as a layer of a transformer may."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.dropout = nn.Dropout(0.0)


def test_dropout_of_nothing_is_taken() -> None:
    assert CustomEncoder(f"{__name__}:Off", BOX).out_features == 4


def test_code_that_has_changed_since_the_training_is_told(package: Path) -> None:
    """The weights fit it as before, and mean something else."""
    settings: dict[str, Any] = {
        "network": "user_networks:Wave", "env_steps": 64, "horizon": 8, "eval_episodes": 1,
        "preset": False, "sinks": (),
    }  # fmt: skip
    run = assay.train("a2c", "CartPole-v1", root=package, name="run", **settings)
    own = package / "user_networks.py"
    own.write_text(own.read_text() + "OTHER = 4\n")
    for change, warned, budget in (("sin", 0, 128), ("cos", 2, 192)):
        own.write_text(own.read_text().replace("torch.sin", f"torch.{change}"))
        sys.modules.pop("user_networks")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assay.load(run.path)
            assay.resume(run.path, budget=budget)
        found = [w for w in caught if "'user_networks:Wave' has changed" in str(w.message)]
        assert len(found) == warned

"""Algorithms that are found by their place, without being installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.core import registry
from assay.core.errors import ConfigError

SOURCE = '''
from assay.algorithms.a2c import A2C
from assay.core.registry import register


@register(loop="on_policy", actions=("Discrete",), family="trial", paper="trial")
class Mine(A2C):
    """A2C under another name."""
'''


@pytest.mark.parametrize("look", [lambda: registry.get("own"), registry.names])
def test_what_is_installed_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.get("ppo").spec.name == "ppo"  # which looks through what is installed
    facts = tmp_path / "their_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[assay.algorithms]\nown = own\n")
    (tmp_path / "own.py").write_text(SOURCE)
    look()
    assert "own" in registry.names()
    assert registry.get("own").__name__ == "Mine"
    sys.modules.pop("own")


class TestNamedByItsPlace:
    @pytest.fixture(autouse=True)
    def _beside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "own_learner.py").write_text(SOURCE)
        (tmp_path / "broken_learner.py").write_text("1 / 0")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
        yield
        sys.modules.pop("own_learner", None)

    def test_it_is_trained_and_resumed(self, tmp_path: Path) -> None:
        name = "own_learner:Mine"
        settings = {"env_steps": 200, "eval_episodes": 1, "sinks": (), "compile": False}

        def stop(event: Any) -> Any:
            return assay.STOP if isinstance(event, assay.events.Logged) else None

        run = assay.train(name, "CartPole-v1", root=tmp_path, callbacks=[stop], **settings)
        assert run.config.algorithm == name and run.status == "interrupted"
        assert assay.resume(run.path).status == "done"
        assert assay.load(run.path).algorithm.spec.summary == "A2C under another name."

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("own_learner:Yours", "'own_learner' has no algorithm 'Yours'"),
            ("own_learner:A2", "'own_learner' has no algorithm 'A2'"),
            ("broken_learner:X", "cannot be imported: ZeroDivisionError"),
            ("no_learner:X", "No module named 'no_learner'"),
        ],
    )
    def test_a_wrong_name_is_explained(self, name: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            registry.get(name)

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ('("Discrete",)', '"Discrete"', "actions='Discrete'; expected a tuple"),
            ('("Discrete",)', '("discrete",)', "Did you mean 'Discrete'"),
            ('    """A2C under another name."""', "    __doc__ = None", "has no docstring"),
            ("(A2C)", "(Algorithm)", "has no method update"),
            ("", "", "has no class Hyperparameters"),
        ],
    )
    def test_a_class_that_cannot_run_is_refused(
        self, tmp_path: Path, before: str, after: str, words: str
    ) -> None:
        source = SOURCE.replace(before, after) + "    Hyperparameters = None\n" * (before == after)
        source = "from assay.algorithms.base import Algorithm\n" + source
        (tmp_path / "own_mistake.py").write_text(source)
        with pytest.raises(ConfigError, match=words):
            registry.get("own_mistake:Mine")
        sys.modules.pop("own_mistake", None)


def test_a_class_in_place_of_a_name_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"is not the name of an algorithm") as caught:
        assay.train(assay.PPO, "CartPole-v1")  # type: ignore[arg-type]
    assert "PPO('CartPole-v1').train" in str(caught.value.fix)


@pytest.mark.parametrize("name", registry.names())
def test_the_facts_about_an_algorithm_are_read_without_importing_it(name: str) -> None:
    cls = registry.get(name)
    assert registry.spec_of(name) == cls.spec


@pytest.mark.parametrize("name", sorted(registry.built_in()))
def test_traits_are_what_the_algorithm_can_do(name: str) -> None:
    cls = registry.get(name)
    fields, traits = cls.Hyperparameters.model_fields, cls.spec.traits
    settings = {"hindsight": "her", "novelty": "rnd", "risk": "cvar"}
    for trait, setting in settings.items():
        assert (trait in traits) == (setting in fields), trait
    assert ("recorded" in traits) == cls.takes_both
    assert ("rules" in traits) == (cls.plays_itself or cls.spec.loop == "game")
    assert ("memory" in fields) <= bool({"memory", "recall"} & {*traits})
    assert ("recall" in traits) == ("memory" in fields and fields["memory"].default is None)


def test_an_unknown_trait_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'memory'"):
        registry.register(loop="offline", actions=(), family="value", paper="", traits=("memroy",))(
            type("Some", (), {"__doc__": "Something."})
        )


def test_facts_that_are_not_literals_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_facts_in", lambda path, changed: None)
    assert registry.spec_of("ppo") == registry.get("ppo").spec

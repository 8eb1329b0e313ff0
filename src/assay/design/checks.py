"""All rules in one table, and what they say about a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from assay.core.errors import nearest
from assay.design import (
    action_rules,
    agents_rules,
    architecture_rules,
    demonstrations_rules,
    hierarchy_rules,
    mdp_rules,
    reward_rules,
    reward_runs,
    state_rules,
)
from assay.design.fit import facts_of, specs, unfit
from assay.design.problem import SECTIONS, Action, Problem
from assay.design.rules import SEVERITIES, DesignError, Finding, Rule, found
from assay.design.sizes import (
    assumed_gamma,
    assumed_steps,
    state_bytes,
    step_bytes,
    term_size,
    transition_bytes,
    width,
)

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rules in (
        state_rules.RULES,
        action_rules.RULES,
        reward_rules.RULES,
        reward_runs.RULES,
        mdp_rules.RULES,
        agents_rules.RULES,
        hierarchy_rules.RULES,
        demonstrations_rules.RULES,
        architecture_rules.RULES,
    )
    for rule in rules
}


def known_section(name: str) -> str:
    """Return a section's name.

    Raises:
        DesignError: There is no such section; the nearest is named.
    """
    if name not in SECTIONS:
        raise DesignError(f"There is no section '{name}'.", nearest(name, SECTIONS))
    return name


def known_rule(name: str) -> Rule:
    """Return a rule by its name.

    Raises:
        DesignError: There is no such rule; the nearest is named.
    """
    if name not in RULES:
        same = [one for one in RULES if one.partition(".")[2] == name]
        hint = f"Did you mean {' or '.join(map(repr, same))}?" if same else nearest(name, RULES)
        raise DesignError(f"There is no rule '{name}'.", hint)
    return RULES[name]


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return by rule a problem that breaks it ("bad") and one that does not ("good")."""
    text = resources.files("assay.design").joinpath("examples.yaml").read_text(encoding="utf-8")
    made: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return made


def check(problem: Problem, section: str | None = None) -> list[Finding]:
    """Return what the rules say about a problem, or about one section, the worst first."""
    findings = []
    for rule in RULES.values():
        part = getattr(problem, rule.section)
        if part is None or rule.check is None or section not in (None, rule.section):
            continue
        findings += [found(rule, *hit) for hit in rule.check(part, problem)]
    return sorted(findings, key=lambda one: SEVERITIES.index(one.severity))


def refuse_contradictions(problem: Problem) -> None:
    """Refuse answers that exclude each other.

    Raises:
        DesignError: Names the fields, and the rule.
    """
    for one in check(problem):
        if RULES[one.rule].contradiction:
            raise DesignError(
                f"The answers contradict each other: {one.field}: {one.message} ({one.rule}).",
                one.fix,
            )


def facts(problem: Problem, section: str | None = None) -> dict[str, dict[str, Any]]:
    """Return what follows from each section: sizes, encoders, heads, fitting algorithms."""
    made: dict[str, Callable[[Problem], dict[str, Any]]] = {
        "state": _state,
        "action": _action,
        "reward": _reward,
        "agents": _agents,
        "architecture": _architecture,
    }
    return {
        name: compute(problem)
        for name, compute in made.items()
        if section in (None, name) and getattr(problem, name) is not None
    }


def _state(problem: Problem) -> dict[str, Any]:
    assert problem.state is not None
    entries = problem.state.entries
    image = any(entry.kind == "image" for entry in entries)
    flat = sum(width(entry) for entry in entries if entry.kind != "image")
    encoder = "an MLP"
    if image:
        encoder = "a CNN (cnn=nature or impala)" + (" beside an MLP" if flat else "")
    if facts_of(problem).partial:
        encoder += ", and a memory (memory=lstm, gru or transformer)"
    return {
        "flat_width": flat,
        "bytes_per_step": state_bytes(problem.state),
        "largest": max(entries, key=step_bytes).name if entries else None,
        "encoder": encoder,
    }


def _action(problem: Problem) -> dict[str, Any]:
    assert problem.action is not None
    known = facts_of(problem)
    fitting = [spec.name for spec in specs() if unfit(spec, known, problem) is None]
    return {**_head(problem.action), "algorithms": fitting}


def _head(action: Action) -> dict[str, Any]:
    """Return the outputs of a policy and its distribution."""
    masked = ", masked" if action.mask else ""
    if action.kind == "discrete":
        return {"head": action.n, "distribution": f"categorical{masked}"}
    if action.kind == "multi_discrete":
        return {"head": sum(action.sizes or ()), "distribution": f"one categorical each{masked}"}
    if action.kind == "multi_binary":
        return {"head": action.n, "distribution": "one Bernoulli each"}
    if action.kind == "box":
        size = math.prod(action.shape or (0,))
        name = "normal, squashed by tanh" if action.squash != "clip" else "normal, clipped"
        return {"head": 2 * size, "distribution": name}
    return {"head": None, "distribution": None}


def _reward(problem: Problem) -> dict[str, Any]:
    assert problem.reward is not None
    gamma, steps = assumed_gamma(problem), assumed_steps(problem)
    sizes = {term.name: term_size(term, gamma, steps) for term in problem.reward.terms}
    known = {name: size for name, size in sizes.items() if size is not None}
    whole = sum(known.values())
    return {
        "gamma": gamma,
        "steps": steps,
        "per_episode": {name: round(size, 4) for name, size in known.items()},
        "share": {name: round(size / whole, 4) for name, size in known.items()} if whole else {},
    }


def _agents(problem: Problem) -> dict[str, Any]:
    agents = problem.agents
    assert agents is not None
    scheme = agents.training
    if scheme is None:
        two_sided = agents.relation == "competitive" and agents.turns == "alternating"
        whole = agents.reward == "team" or agents.global_state
        scheme = "self_play" if two_sided else "central" if whole else "independent"
    return {"agents": sum(kind.count for kind in agents.types), "training": scheme}


def _architecture(problem: Problem) -> dict[str, Any]:
    assert problem.architecture is not None
    buffer = problem.architecture.buffer
    both = buffer is not None and buffer.kind == "replay"
    size = transition_bytes(problem, both=both)
    kept = buffer.capacity * size if buffer is not None and buffer.capacity else None
    return {"bytes_per_transition": size, "buffer_bytes": kept}

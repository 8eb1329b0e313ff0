"""What the environments that a blueprint writes have in common, as code."""

from __future__ import annotations

from string import Template

from assay.design.problem import Ending, Problem, RewardTerm

_SUCCEEDED = "near > 0.99"


def rules(problem: Problem, failed: str) -> str:
    """Return the methods with the terms of the reward and the endings.

    `near`, that both are given, is 1 where the placeholder is at its aim and 0 far from it.

    Args:
        problem: The problem.
        failed: The condition of endings that are failures.
    """
    return Template(_RULES).substitute(
        terms=_terms(problem, failed), endings=_endings(problem, failed)
    )


def success(problem: Problem) -> str:
    """Return the entry of the info that evaluations read, where success is an ending."""
    endings = problem.mdp.endings if problem.mdp is not None else ()
    names = [f'endings["{ending.name}"]' for ending in endings if ending.kind == "success"]
    return f' | {{"is_success": {" or ".join(names)}}}' if names else ""


def _terms(problem: Problem, failed: str) -> str:
    terms = problem.reward.terms if problem.reward is not None else ()
    if not terms:
        return '            "progress": (1.0, near),\n'
    kinds = [ending.kind for ending in _ends(problem)]
    # What is paid at the end is paid where the episode ends, and so once.
    at_end = failed if kinds and "success" not in kinds else _SUCCEEDED
    shares = {"dense": "near", "sparse": "(near > 0.95)", "terminal": f"({at_end})"}
    return "".join(
        f'            "{term.name}": ({term.weight!r}, {_value(term)} * {shares[term.kind]}),\n'
        for term in terms
    )


def _value(term: RewardTerm) -> str:
    low = 0.0 if term.low is None else term.low
    high = low + 1.0 if term.high is None else term.high
    return f"{low!r} + {high - low!r}"


def _endings(problem: Problem, failed: str) -> str:
    conditions = {"success": _SUCCEEDED, "failure": failed}
    lines = [f'            "{e.name}": {conditions[e.kind]},\n' for e in _ends(problem)]
    return "{\n" + "".join(lines) + "        }" if lines else "{}"


def _ends(problem: Problem) -> list[Ending]:
    """Return the endings that a placeholder can come to."""
    endings = problem.mdp.endings if problem.mdp is not None else ()
    return [ending for ending in endings if ending.kind in ("success", "failure")]


_RULES = '''    def _terms(self, near: float) -> dict[str, tuple[float, float]]:
        """Return the weight and the value of every term of the reward. Replace the values."""
        return {
$terms        }

    def _endings(self, near: float) -> dict[str, bool]:
        """Return which endings were reached: nothing follows them. Replace the conditions."""
        return $endings
'''

# A function of every environment that is written, also of those for one agent.
SHOWN = '''def _shown(space: gym.Space[Any], x: float) -> Any:
    """Return a number from -1 to 1 as a value of a space. Replace this by what is measured."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _shown(part, x) for name, part in space.items()}
    if isinstance(space, gym.spaces.Discrete):
        return np.int64(min(int((x + 1) / 2 * space.n), int(space.n) - 1))
    if isinstance(space, gym.spaces.MultiBinary):
        return np.full(space.shape, x > 0, np.int8)
    assert isinstance(space, gym.spaces.Box)
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    return (low + (x + 1) / 2 * (high - low)).astype(space.dtype)
'''

"""All evaluations of a library: routing of every query, and outcomes of cases."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.skills import cases, evals
from assay.skills import routing as router
from assay.skills.library import LIBRARY, Skill, plugins

KINDS = ("none", "ci", "all")  # of cases to run


def routing(root: Path = LIBRARY) -> router.Routing:
    """Route every query of a library among all its skills.

    Raises:
        SkillsError: Evaluations are malformed.
    """
    skills = [skill for plugin in plugins(root) for skill in plugin.skills]
    found = (evals.read(skill.path) for skill in skills)
    return router.measure(skills, [query for each in found if each for query in each.queries])


def outcomes(skills: Sequence[Skill], kind: str) -> Iterator[cases.Outcome]:
    """Run cases of skills, each in a temporary directory of its own."""
    for skill in skills if kind != "none" else ():
        found = evals.read(skill.path)
        for case in found.cases if found else ():
            if kind == "all" or case.ci:
                with tempfile.TemporaryDirectory(prefix="assay-skill-") as name:
                    yield cases.run(case, skill.path, Path(name))

"""The block in AGENTS.md that lists installed skills, between two markers.

What is outside of the markers belongs to the user and stays as it is, line endings included.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.skills.library import Skill, SkillsError

HEADER = "<!-- assay-skills -->"
FOOTER = "<!-- /assay-skills -->"


def block(skills: Sequence[Skill], folder: str) -> str:
    """Return the lines between the markers, for skills that are in `folder`."""
    rule = "Read the file before you do what it is about."
    if any(skill.name.startswith("rlxp-") for skill in skills):
        rule += " In a study no training starts without `assay study run`, `queue step` or `loop`."
    lines = [
        HEADER,
        "## Assay skills",
        rule,
        *(f"- `{folder}/{skill.name}/SKILL.md`: {skill.description}" for skill in skills),
        FOOTER,
    ]
    return "\n".join(lines)


def with_block(text: str, wanted: str | None, path: Path, *, force: bool = False) -> str:
    """Return a file's text with the block replaced in place, appended, or taken out (None).

    Args:
        text: The file as it is; "" where there is none.
        wanted: The new block.
        path: For messages.
        force: Take a marker without its partner for the whole block; nothing else is removed.

    Raises:
        SkillsError: A marker is there without its partner, twice, or in the wrong order.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)  # each with its own ending: a file may mix them
    begins = [i for i, line in enumerate(lines) if line.strip() == HEADER]
    ends = [i for i, line in enumerate(lines) if line.strip() == FOOTER]
    new = [line + newline for line in wanted.split("\n")] if wanted is not None else []
    if len(begins) == len(ends) == 1 and begins[0] < ends[0]:
        start, stop = begins[0], ends[0] + 1
    elif not begins and not ends:
        if wanted is None:
            return text
        kept = text.rstrip("\r\n")
        return (kept + 2 * newline if kept else "") + "".join(new)
    elif force and len(begins) + len(ends) == 1:
        start = (begins or ends)[0]
        stop = start + 1
    else:
        number = sorted([*begins, *ends])[0] + 1
        raise SkillsError(
            f"'{path}' has markers of the skills' index without their partners, the first in line "
            f"{number}: expected one {HEADER} and, below it, one {FOOTER}.",
            "Add the missing line or remove the lone one; --force replaces a single lone marker "
            "and leaves all other lines.",
        )
    before, after = lines[:start], lines[stop:]
    if wanted is None:
        while before and not before[-1].strip():
            before.pop()
        rest = "".join([*before, *after])
        return rest if rest.strip() else ""
    if not lines[stop - 1].endswith(("\n", "\r")):
        new[-1] = new[-1].rstrip("\r\n")
    return "".join([*before, *new, *after])

"""`assay skills`: install skills for coding agents, check them, take them away."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.core.wording import counted

if TYPE_CHECKING:
    from assay.skills.checks import Finding
    from assay.skills.install import Report
    from assay.skills.places import Place

app = typer.Typer(
    help="Skills for Claude Code and Codex: install, check, remove.", no_args_is_help=True
)
_NAMES = {"add": "added", "update": "updated", "remove": "removed", "keep": "kept"}

Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="claude or codex; may be repeated.")
]
Scope = Annotated[str | None, typer.Option("--scope", help="project or user.")]
Root = Annotated[
    Path | None, typer.Option("--root", help="The project; by default the working directory.")
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--skills",
        help="Names of skills or plugins, with commas; by default all but the old names.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; claude and project.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")]
Force = Annotated[
    bool, typer.Option("--force", help="Also replace or remove files that were edited.")
]
CodexFolder = Annotated[
    bool, typer.Option("--codex-folder", help="Also copy to .codex/skills, for older versions.")
]


@app.command("install")
def install(
    hosts: Hosts = None,
    scope: Scope = None,
    skills: Names = None,
    root: Root = None,
    codex_folder: CodexFolder = False,
    force: Force = False,
    yes: Yes = False,
    dry: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Copy skills to where a coding agent finds them; files that you edited stay."""
    from assay.skills import install
    from assay.skills.library import chosen

    found = chosen(_split(skills))
    places = _places(hosts, scope, root, codex_folder, ask=not (yes or as_json))
    for place in places:  # all are checked before the first is written to
        install.install(place, found, force=force, dry=True)
    reports = [install.install(place, found, force=force, dry=dry) for place in places]
    _show(reports, dry, as_json, "replaces")


@app.command("uninstall")
def uninstall(
    hosts: Hosts = None,
    scope: Scope = None,
    skills: Names = None,
    root: Root = None,
    codex_folder: CodexFolder = False,
    force: Force = False,
    yes: Yes = False,
    dry: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Remove what was installed, and nothing else; files that you edited stay."""
    from assay.skills import install

    places = _places(hosts, scope, root, codex_folder, ask=not (yes or as_json))
    names = _split(skills) or None
    for place in places:
        install.uninstall(place, names, force=force, dry=True)
    reports = [install.uninstall(place, names, force=force, dry=dry) for place in places]
    _show(reports, dry, as_json, "removes")


@app.command("list")
def list_skills(
    plugin: Annotated[str, typer.Argument(metavar="[PLUGIN]", help="Only this one.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the skills of the library, by plugin."""
    from assay.skills.library import chosen, plugins

    known = {skill.name for skill in chosen([plugin])} if plugin else None
    rows = [
        (each.name, skill.name, skill.description)
        for each in plugins()
        for skill in each.skills
        if known is None or skill.name in known
    ]
    if as_json:
        keys = ("plugin", "skill", "description")
        output.print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    output.show(output.table(("plugin", "skill", "what it is for"), rows))


@app.command("validate")
def validate(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="A skill, a plugin or a library; by default ours."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check skills against what both hosts accept, and what they do not notice; exit 1 if not."""
    from assay.skills.library import LIBRARY
    from assay.skills.validate import validate

    problems = validate(path or LIBRARY)
    if as_json:
        output.print_json([dataclasses.asdict(problem) for problem in problems])
    else:
        for problem in problems:
            output.say(f"{problem.path}: {problem.rule}: {problem.message}")
        output.say(f"{counted(len(problems), 'problem')}." if problems else "No problem was found.")
    if problems:
        raise typer.Exit(1)


@app.command("eval")
def evaluate(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Skills or plugins; by default all."),
    ] = None,
    run: Annotated[
        str, typer.Option("--cases", help="Which cases to run: none, ci (cheap ones) or all.")
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """Route the queries of skills by a scripted model, and run their cases; exit 1 if one fails."""
    from assay.skills.library import LIBRARY, SkillsError, chosen, plugins
    from assay.skills.routing import KINDS, outcomes, routing

    if run not in KINDS:
        raise SkillsError(f"--cases is '{run}'.", f"One of {', '.join(KINDS)}.")
    skills = chosen(names or [plugin.name for plugin in plugins()])
    found = routing(LIBRARY)
    done = list(outcomes(skills, run))
    if as_json:
        rows = {s.name: found.tallies[s.name] for s in skills}
        output.print_json(
            {"accuracy": found.accuracy, "queries": found.queries,
             "near_misses": found.near_misses, "near_misses_left": found.near_misses_left,
             "skills": {name: {"precision": t.precision, "recall": t.recall}
                        for name, t in rows.items()},
             "cases": [dataclasses.asdict(outcome) for outcome in done]}
        )  # fmt: skip
    else:
        tallies = [(s.name, found.tallies[s.name]) for s in skills]
        rows_of = [(name, f"{t.precision:.2f}", f"{t.recall:.2f}") for name, t in tallies]
        output.show(output.table(("skill", "precision", "recall"), rows_of))
        output.say(
            f"{found.accuracy:.1%} of {found.queries} queries went where they belong; "
            f"{found.near_misses_left} of {found.near_misses} near misses were left alone."
        )
        for outcome in done:
            told = "; ".join(outcome.failed) or "as expected"
            output.say(f"{outcome.skill}, case {outcome.number}: {told}")
    if any(outcome.failed for outcome in done):
        raise typer.Exit(1)


@app.command("measure")
def measure(
    name: Annotated[str, typer.Argument(metavar="SKILL", help="The skill.")],
    host: Annotated[str, typer.Option("--host", help="claude or codex.")] = "claude",
    to: Annotated[Path, typer.Option("--to", help="The results file to add to.")] = Path(
        "skill-results.json"
    ),
    as_json: AsJson = False,
) -> None:
    """Have a real model do a skill's cases with and without it; costs what the model costs."""
    from assay.skills import evals
    from assay.skills.library import SkillsError, chosen
    from assay.skills.measuring import measure

    skill = chosen([name])[0]
    found = evals.read(skill.path)
    if found is None:
        raise SkillsError(f"'{name}' has no evaluations.", f"Write {evals.FILE} into its folder.")
    runs = []
    for run in measure(skill, found.cases, host, to):
        runs.append(dataclasses.asdict(run))
        if not as_json:
            word = "with" if run.with_skill else "without"
            told = "passed" if run.passed else "; ".join(run.failed)
            output.say(f"{run.skill}, case {run.case}, {word} it: {told}")
    if as_json:
        output.print_json(runs)


@app.command("doctor")
def doctor(root: Root = None, as_json: AsJson = False) -> None:
    """Show what is installed for which host, edited or missing; exit 1 if something is broken."""
    from assay.skills.checks import doctor

    _findings(doctor(root or Path.cwd()), as_json)


@app.command("release-check")
def release_check(
    root: Root = None,
    holosoma: Annotated[
        Path | None,
        typer.Option("--holosoma", help="Also audit this checkout of Holosoma; runs none of it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a checkout can be released: one version, valid skills, all of it in the wheel."""
    from assay.skills.checks import release_check

    found = release_check((root or Path.cwd()).resolve())
    if holosoma is not None:
        found.append(_holosoma(holosoma))
    _findings(found, as_json)


def _holosoma(place: Path) -> Finding:
    """Say whether the audit reads a checkout of Holosoma as the skills tell; nothing is run."""
    from assay.skills.checks import Finding
    from assay.skills.library import SkillsError
    from assay.study.repo.audit import inspect

    if not place.is_dir():
        raise SkillsError(f"'{place}' is not a directory.", "Name a checkout with --holosoma.")
    audit = inspect(place, "holosoma")
    if audit.findings:
        return Finding("holosoma", "broken", "; ".join(audit.findings))
    seen = audit.adapter
    parts = {"train command": seen.train, "metrics": seen.metrics, "reward terms": seen.reward}
    missing = [name for name, items in parts.items() if not items]
    if missing:
        return Finding("holosoma", "broken", f"the audit finds no {', no '.join(missing)}")
    terms = sum(len(item.value["names"]) for item in seen.reward)
    counts = f"{counted(terms, 'reward term')}, {counted(len(seen.metrics), 'metric')}"
    return Finding("holosoma", "ok", f"{' '.join(seen.train[0].value['command'])}; {counts}")


def _findings(found: list[Finding], as_json: bool) -> None:
    broken = [finding for finding in found if finding.state == "broken"]
    if as_json:
        output.print_json(
            {"ok": not broken, "findings": [dataclasses.asdict(finding) for finding in found]}
        )
    else:
        rows = [(f.name, f.state.upper() if f in broken else f.state, f.detail) for f in found]
        output.show(output.table(("what", "", "found"), rows))
    if broken:
        raise typer.Exit(1)


def _split(names: list[str] | None) -> list[str]:
    from assay.skills.library import SkillsError

    found = [name.strip() for word in names or [] for name in word.split(",") if name.strip()]
    if names and not found:
        raise SkillsError("An empty name is given.", "Leave the option out for all of them.")
    return found


def _places(
    hosts: list[str] | None, scope: str | None, root: Path | None, codex_folder: bool, ask: bool
) -> list[Place]:
    """Return where to install, after asking for what was not said where somebody can answer."""
    from assay.skills.places import HOSTS, SCOPES, place, refuse_unknown

    named = _split(hosts)
    refuse_unknown(named, [scope] if scope else [])
    asking = ask and sys.stdin.isatty()
    if not named and asking:
        options = ", ".join(HOSTS)
        named = _split([typer.prompt(f"For which agents ({options})?", default="claude")])
    if scope is None and asking:
        scope = typer.prompt(f"For this project or for the user ({', '.join(SCOPES)})?", "project")
    return [
        place(host, scope or "project", root or Path.cwd(), codex_folder=codex_folder)
        for host in dict.fromkeys(named or ["claude"])
    ]


def _show(reports: list[Report], dry: bool, as_json: bool, forced: str) -> None:
    if as_json:
        output.print_json(
            [
                {"host": r.place.host, "scope": r.place.scope, "skills": r.skills, "dry_run": dry,
                 "changes": [dataclasses.asdict(c) for c in r.changes if c.action != "same"]}
                for r in reports
            ]
        )  # fmt: skip
        return
    for report in reports:
        counts = [
            f"{len(report.having(action))} {word}"  # type: ignore[arg-type]
            for action, word in _NAMES.items()
            if report.having(action)  # type: ignore[arg-type]
        ]
        would = "Would change: " if dry else ""
        place = f"{report.place.host}, {report.place.scope}: {counted(len(report.skills), 'skill')}"
        output.say(
            f"{place} in {report.place.skills[0]}. {would}{', '.join(counts) or 'no change'}"
        )
        for change in report.having("keep"):
            output.say(f"  kept {change.path}: {change.why} (--force {forced} it)")

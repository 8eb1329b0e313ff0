"""`assay envs`: list environments, check them, and begin one of your own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.core.errors import EXIT_USER_ERROR
from assay.core.wording import counted

_LONGEST = 100  # ids of a family that are listed without being asked for

app = typer.Typer(
    help="List environments, check one or many, begin one of your own.", no_args_is_help=True
)


@app.command("list")
def list_envs(
    pattern: str = typer.Argument("", metavar="[TEXT]", help="Only ids that contain this."),
    as_json: AsJson = False,
) -> None:
    """List the environments that can be trained on by their id."""
    import gymnasium as gym

    import assay.envs.tasks  # noqa: F401 (registers them)
    from assay.envs.families import FAMILIES, load_all

    missing = load_all()
    ids = sorted(name for name in gym.registry if pattern.lower() in name.lower())
    if as_json:
        output.print_json([{"id": name, "from": _origin(name)} for name in ids])
        return
    large = []
    for family in () if pattern else FAMILIES:
        own = {name for name in ids if family.ids.match(name)}
        if len(own) > _LONGEST:
            large.append(f"{family.name}: {len(own):,} ids like {family.example}")
            ids = [name for name in ids if name not in own or name == family.example]
    output.show(output.table(("id", "from"), [(name, _origin(name)) for name in ids]))
    if large:
        output.say(f"{'; '.join(large)}. List them with a part of an id: assay envs list Foraging")
    for family in missing:
        output.note(
            f"{family.name} is not installed ({family.example} and others): "
            f"pip install 'assay[{family.extra}]'"
        )


@app.command("check")
def check(
    env: str = typer.Argument(..., metavar="ID", help="The environment's id."),
    settings: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Settings of the environment itself."
    ),
    steps: int = typer.Option(2000, "--steps", min=1, help="Random actions to take."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seeds the environment and the actions."),
    as_json: AsJson = False,
) -> None:
    """Check that an environment follows Gymnasium's API; exit with 2 if it does not."""
    from assay.core import registry
    from assay.core.config import parse_assignments
    from assay.envs.checks import check_env

    results = check_env(
        env,
        env_kwargs=parse_assignments(settings or []),
        steps=steps,
        seed=seed,
        algorithms=registry.general("one"),
        team_algorithms=registry.general("many"),
    )
    failed = [result for result in results if not result.ok]
    if as_json:
        checks = [{"name": r.name, "ok": r.ok, "detail": r.detail, "fix": r.fix} for r in results]
        output.print_json({"env": env, "ok": not failed, "checks": checks})
    else:
        output.show(output.table(("check", "", "found"), [_row(result) for result in results]))
        verdict = (
            f"{len(failed)} of {len(results)} checks failed." if failed else "All checks passed."
        )
        output.say(f"{env}: {verdict}")
    if failed:
        raise typer.Exit(EXIT_USER_ERROR)


@app.command("wrappers")
def wrappers(as_json: AsJson = False) -> None:
    """List what can be put around environments: `wrappers=[{frame_stack: 4}, sign_reward]`."""
    from assay.envs.wrappers.settings import WRAPPERS

    _list_kinds("wrapper", WRAPPERS, as_json)


@app.command("curricula")
def curricula(as_json: AsJson = False) -> None:
    """List how parameters can be drawn: `curriculum={adr: {low: 100, high: 400}}`."""
    from assay.envs.variation.settings import CURRICULA

    _list_kinds("curriculum", CURRICULA, as_json)


def _list_kinds(what: str, kinds: Mapping[str, Any], as_json: bool) -> None:
    rows = []
    for name, kind in kinds.items():
        fields = kind.meanings()
        texts = [
            f"{key}{'' if kind.model_fields[key].is_required() else f'={default}'}: {meaning}"
            for key, (_, default, meaning) in fields.items()
            if key != "key"
        ]
        rows.append((name, (kind.__doc__ or "").split("\n")[0], " ".join(texts)))
    if as_json:
        keys = (what, "what", "settings")
        output.print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    output.show(output.table((what, "what", "settings"), rows))


@app.command("parameters")
def parameters(
    env: str = typer.Argument(..., metavar="ID", help="The environment's id."),
    settings: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Settings of the environment itself."
    ),
    as_json: AsJson = False,
) -> None:
    """List the parameters of an environment that can be set by name, and their values.

    Of a MuJoCo model, mass, friction and the like are factors (1 is the model's own), and every
    other field can be named as well: body_mass[torso], geom_friction[floor], opt.timestep.
    """
    from assay.core.config import parse_assignments
    from assay.envs import parameters as named
    from assay.envs.make import make_vector

    with make_vector(env, 1, env_kwargs=parse_assignments(settings or [])) as envs:
        found = {name: float(value[0]) for name, value in named.parameters(envs).items()}
    if as_json:
        output.print_json(found)
        return
    output.show(output.table(("parameter", "value>"), [(k, f"{v:g}") for k, v in found.items()]))


@app.command("suite")
def suite(
    envs: list[str] = typer.Argument(
        ..., metavar="ID...", help="Ids, or patterns such as 'MiniGrid-Empty-*'."
    ),
    steps: int = typer.Option(500, "--steps", min=10, help="Random actions in each environment."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seeds the environments and the actions."),
    processes: bool = typer.Option(True, help="Compare with copies in processes of their own."),
    html: Path = typer.Option(None, "--html", help="Also write a page to this file."),
    as_json: AsJson = False,
) -> None:
    """Check many environments in one report.

    To the checks of `assay envs check` it adds: copies are independent, processes and native
    versions give the same episodes, a new episode follows each end, seeds change what they should,
    and memory does not grow. The exit code is 0 if everything passed, 1 if a check failed (that an
    environment can be made is one), and 2 for a mistake in the command, such as an unknown id.
    """
    from assay.core import registry
    from assay.envs.suite import check_suite
    from assay.envs.suite_page import speed, suite_page
    from assay.runs.files import replacing

    ids = _expand(envs)
    actions = registry.general("one") | registry.general("many")
    reports = []
    with ExitStack() as stack:
        # A place that cannot be written to is known before anything is checked.
        page = None if html is None else stack.enter_context(replacing(html))
        for report in check_suite(
            ids, steps=steps, seed=seed, processes=processes, algorithms=actions
        ):
            reports.append(report)
            if len(ids) > 1:
                output.note(f"{len(reports)}/{len(ids)} {report.env}: {_verdict(report)}")
        if page is not None:
            page.write_text(suite_page(reports))
    bad = [report for report in reports if report.failed]
    if as_json:
        output.print_json({"ok": not bad, "envs": [report.to_dict() for report in reports]})
    else:
        columns = ("environment", "", "advice>", "steps/s>", "failed")
        rows = [
            (r.env, "FAILED" if r.failed else "ok", len(r.advice), speed(r), _failures(r))
            for r in reports
        ]
        output.show(output.table(columns, rows))
        failed = f"{len(bad)} of {counted(len(reports), 'environment')} failed."
        output.say(failed if bad else f"{counted(len(reports), 'environment')} passed.")
        if html is not None:
            output.say(f"Page: {html}")
    if bad:
        raise typer.Exit(1)


def _expand(names: list[str]) -> list[str]:
    """Return the ids that are named, with patterns replaced by the ids that they match."""
    from fnmatch import fnmatchcase

    from assay.core.errors import ConfigError
    from assay.envs.make import find_spec

    ids: list[str] = []
    for name in names:
        if not set(name) & set("*?["):
            find_spec(name)  # refuses what nobody registers, before anything is checked
            ids.append(name)
            continue
        import gymnasium as gym

        import assay.envs.tasks  # noqa: F401 (registers them)
        from assay.envs.families import load_all

        load_all()
        found = sorted(known for known in gym.registry if fnmatchcase(known, name))
        if not found:
            raise ConfigError(
                f"No environment is registered as '{name}'.", "`assay envs list` has all ids."
            )
        ids += found
    return list(dict.fromkeys(ids))


def _verdict(report: Any) -> str:
    return f"{len(report.failed)} failed" if report.failed else "ok"


def _failures(report: Any) -> str:
    return "\n".join(f"{one.name}: {one.detail}" for one in report.failed)


@app.command("new")
def new(
    name: str = typer.Argument(..., metavar="NAME", help="Of the package, such as my_env."),
    place: Path = typer.Option(Path(), "--dir", help="Where its directory is made."),
    actions: Literal["discrete", "box"] = typer.Option(
        "discrete", "--actions", help="The kind of actions."
    ),
) -> None:
    """Write a package with an environment of your own: spaces, registration, tests.

    It is a small environment that passes `assay envs check` and can be trained on, to be changed.
    Nothing that exists is overwritten.
    """
    from assay.envs.skeleton import write_skeleton

    path, env = write_skeleton(name, place, actions)
    output.say(f"Package: {path}")
    output.note(f"Next:\n  cd {path}\n  assay envs check {env}\n  assay train ppo {env}")


def _row(result: Any) -> tuple[str, str, str]:
    word = "FAILED" if not result.ok else "advice" if result.fix else "ok"
    return result.name, word, result.detail + (f"\n{result.fix}" if result.fix else "")


def _origin(name: str) -> str:
    """Return where the code of an id's environment is from."""
    import gymnasium as gym

    from assay.envs.native import NATIVE

    spec = gym.registry[name]
    native = name in NATIVE or str(spec.vector_entry_point).startswith("assay.envs.native.")
    return "native" if native else _home(spec)


def _home(spec: Any) -> str:
    """Return the package that an environment's code comes from."""
    entry = spec.entry_point
    if isinstance(entry, partial):  # on a module's name, or on a function of who registered it
        entry = f"{entry.args[0]}:" if entry.args else entry.func
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    parts = module.split(".")
    return ".".join(parts[:3] if parts[:2] == ["gymnasium", "envs"] else parts[:1])

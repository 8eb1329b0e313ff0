"""`assay envs`: list environments, check them, and begin one of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.core.errors import EXIT_USER_ERROR

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
    from assay.envs.families import load_all
    from assay.envs.native import NATIVE

    missing = load_all()
    ids = sorted(name for name in gym.registry if pattern.lower() in name.lower())
    rows = [(name, "native" if name in NATIVE else _home(gym.registry[name])) for name in ids]
    if as_json:
        output.print_json([{"id": name, "from": home} for name, home in rows])
        return
    output.show(output.table(("id", "from"), rows))
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

    actions = {name: registry.get(name).spec.actions for name in registry.names()}
    results = check_env(
        env,
        env_kwargs=parse_assignments(settings or []),
        steps=steps,
        seed=seed,
        algorithms=actions,
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


def _home(spec: Any) -> str:
    """Return the package that an environment's code comes from."""
    entry = getattr(spec.entry_point, "func", spec.entry_point)  # a partial's own function
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    parts = module.split(".")
    return ".".join(parts[:3] if parts[:2] == ["gymnasium", "envs"] else parts[:1])

"""`assay algorithms`: list the algorithms and their settings."""

from __future__ import annotations

from typing import Any

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson


def algorithms(
    name: str = typer.Argument(None, metavar="[NAME]", help="Show one algorithm in full."),
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or all settings of one of them."""
    from assay.core import registry

    if name is None:
        listed = [_facts(registry.get(known)) for known in registry.names()]
        if as_json:
            output.print_json(listed)
            return
        columns = ("algorithm", "summary", "actions", "paper")
        output.show(output.table(columns, [_row(facts) for facts in listed]))
        output.say("All settings of one of them: assay algorithms NAME")
        return
    facts = _facts(registry.get(name))
    if as_json:
        output.print_json(facts)
    else:
        _show(facts)
        output.say(f"Set any of them: assay train {name} ENV setting=value")


def _facts(cls: Any) -> dict[str, Any]:
    from assay.core.presets import presets
    from assay.loops.run_settings import settings_model

    spec = cls.spec
    return {
        "name": spec.name,
        "summary": spec.summary,
        "family": spec.family,
        "loop": spec.loop,
        "actions": list(spec.own_actions),
        "paper": spec.paper,
        "traits": list(spec.traits),
        "presets": list(presets(spec.name)),
        "hyperparameters": _settings(cls.Hyperparameters),
        "run_settings": _settings(settings_model(cls)),
    }


def _settings(model: Any) -> dict[str, dict[str, Any]]:
    return {
        key: {"type": kind, "default": output.plain(default), "meaning": meaning}
        for key, (kind, default, meaning) in model.meanings().items()
    }


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    return facts["name"], facts["summary"], ", ".join(facts["actions"]), facts["paper"]


def _show(facts: dict[str, Any]) -> None:
    output.say(f"{facts['name']}: {facts['summary']}")
    for key in ("family", "loop", "actions", "traits", "paper", "presets"):
        value = facts[key]
        output.say(f"{key + ':':<10}{', '.join(value) if isinstance(value, list) else value}")
    for title, key in (("Hyperparameters", "hyperparameters"), ("Run settings", "run_settings")):
        rows = [
            (name, _kind(setting["type"]), _default(setting["default"]), setting["meaning"])
            for name, setting in facts[key].items()
        ]
        output.show(output.table(("setting", "type", "default", "meaning"), rows, title=title))


def _kind(text: str) -> str:
    """Format a type for readers.

    Example:
        >>> _kind("Literal['nature', 'impala'] | None")
        'nature | impala | none'
    """
    import re

    text = re.sub(r"Union\[(.*)\]", lambda m: m[1].replace("], ", "] | "), text)
    text = re.sub(
        r"Literal\[([^\]]*)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), text
    )
    return text.replace("None", "none")


def _default(value: Any) -> str:
    return "none" if value is None else str(value)

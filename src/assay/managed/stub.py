"""Write `assay/__init__.pyi`, by which editors and type checkers know what `import assay` offers.

    python -m assay.managed.stub        # or: make stubs

It is written from the registry: run it after an algorithm or a setting was added or changed. A test
says when that was forgotten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import assay
from assay.core import registry
from assay.managed.types import default_of, settings_of, type_of

PLACE = Path(assay.__file__).with_suffix(".pyi")
COMMAND = "python -m assay.managed.stub"
_HEAD = f'''"""What `import assay` offers, for editors and type checkers.

Written by `{COMMAND}` from the registry; do not edit.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from assay.data.dataset import Dataset
from assay.envs.make import EnvLike
'''
_PLAIN = (int, float, str, bool, type(None), tuple)
_WIDTH = 100


def render() -> str:
    """Return the stub."""
    lines = [_HEAD.rstrip("\n")]
    modules = []
    for name, home in sorted(assay._HOME.items(), key=lambda item: (item[1], item[0])):
        if name in assay._MODULES:
            package, _, module = home.rpartition(".")
            modules.append(f"from {package} import {module} as {name}")
        else:
            lines.append(f"from {home} import {name} as {name}")
    lines += [
        *sorted(modules),
        "",
        "__version__: str",
        "_HOME: dict[str, str]",
        "_MODULES: tuple[str, ...]",
    ]
    for cls in sorted(map(registry.get, registry.built_in()), key=lambda one: one.__name__):
        lines += ["", *_class(cls)]
    return "\n".join(lines) + "\n"


def _class(algorithm: Any) -> list[str]:
    summary = algorithm.spec.summary.replace("\\", "\\\\")
    parameters = [
        "self", "env: EnvLike | None = None", "*", "name: str | None = None",
        "root: Path | str | None = None", "preset: bool = True",
    ]  # fmt: skip
    for name, field in settings_of(algorithm).items():
        text = f"{name}: {type_of(name, field)}"
        if not field.is_required():
            default = default_of(field)
            text += f" = {default!r}" if isinstance(default, _PLAIN) else " = ..."
        parameters.append(text)
    return [
        f"class {algorithm.__name__}(Managed):",
        f'    """{summary}"""',
        "    def __init__(",
        *_filled(parameters),
        "    ) -> None: ...",
    ]


def _filled(parameters: list[str]) -> list[str]:
    """Return the parameters in lines as long as they may be."""
    lines, indent = [], " " * 8
    line = indent
    for text in parameters:
        if len(line) + len(text) + 1 > _WIDTH:
            lines.append(line.rstrip())
            line = indent
        line += f"{text}, "
    return [*lines, line.rstrip()]


def main() -> None:
    """Write the stub."""
    PLACE.write_text(render())
    print(f"Wrote {PLACE}")


if __name__ == "__main__":
    main()

"""Write the manifests of all hosts from one table: `python -m assay.skills.manifests`.

One version everywhere comes from there being one place that it is taken from.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import __version__
from assay.skills.library import HOOKED, HOOKS, LIBRARY, read_json

MARKETPLACE = "assay"
OWNER = {"name": "The Assay authors"}
CLAUDE, CODEX = ".claude-plugin/marketplace.json", ".agents/plugins/marketplace.json"
SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
SIDE = 64  # of an icon, in pixels


@dataclass(frozen=True, slots=True)
class Entry:
    """What the manifests say of a plugin."""

    title: str
    description: str
    category: str
    prompts: tuple[str, ...]
    keywords: tuple[str, ...]


PLUGINS: Mapping[str, Entry] = {
    "assay-study": Entry(
        "Assay: studies",
        "Prove that a change to an RL task is better: contract, candidates, runs behind approval, "
        "audits, verdicts, report.",
        "Research",
        (
            "Audit this RL repository and draft a contract for a study.",
            "Analyse the last run of the study and propose the next candidate.",
            "What is the next safe step of the study?",
        ),
        ("reinforcement-learning", "experiments", "evaluation"),
    ),
    "assay-study-names": Entry(
        "Assay: old names of study skills",
        "The four names that study skills once had, each leading to its successors.",
        "Research",
        ("Run the old rl-task-audit workflow.",),
        ("reinforcement-learning", "experiments"),
    ),
    "assay-architecture": Entry(
        "Assay: architecture",
        "Decide what is to be learned before anything trains: states, actions, reward, transition, "
        "algorithm, system.",
        "Research",
        ("Design the RL formulation of this task, checked, up to a directory that trains.",),
        ("reinforcement-learning", "design", "architecture"),
    ),
    "assay-environments": Entry(
        "Assay: environments",
        "Write, wrap and check environments for reinforcement learning, of one agent or several.",
        "Research",
        ("Write a Gymnasium environment for this task and check it.",),
        ("reinforcement-learning", "gymnasium", "environments"),
    ),
    "assay-algorithms": Entry(
        "Assay: algorithms",
        "Choose and set up learners: replay, memory, recorded data, imitation, several agents.",
        "Research",
        ("Which algorithm fits this task, and how do I show it?",),
        ("reinforcement-learning", "algorithms"),
    ),
    "assay-evaluation": Entry(
        "Assay: evaluation",
        "Judge agents: evaluation over seeds, plots, diagnosis of failures, equilibria of games.",
        "Research",
        ("Why does this training not learn?", "Is this setting better? Show it over seeds."),
        ("reinforcement-learning", "evaluation"),
    ),
    "assay-mlops": Entry(
        "Assay: operations",
        "Run trainings: tracking, checkpoints and exact resume, datasets from logs.",
        "Research",
        ("Make a dataset of these logs and check it.",),
        ("reinforcement-learning", "mlops"),
    ),
}


def files(root: Path = LIBRARY) -> dict[Path, bytes]:
    """Return every manifest of a library, and every icon, as they are to be."""
    found: dict[Path, bytes] = {}
    for name, entry in PLUGINS.items():
        place = root / "plugins" / name
        shared = {"name": name, "version": __version__, "description": entry.description}
        known = {"author": OWNER, "license": "MIT", "keywords": list(entry.keywords)}
        interface = {
            "displayName": entry.title, "shortDescription": entry.description,
            "category": entry.category, "defaultPrompt": list(entry.prompts),
            "logo": "./assets/icon.png", "composerIcon": "./assets/icon.png",
        }  # fmt: skip
        found[place / "plugin.json"] = _json({"$schema": SCHEMA} | shared | known)
        found[place / ".claude-plugin/plugin.json"] = _json(shared | known)
        codex = shared | known | {"skills": "./skills/", "interface": interface}
        if name == HOOKED:
            found[place.parent / ".codex-plugin/plugin.json"] = _json(_from_above(codex, place))
        else:
            found[place / ".codex-plugin/plugin.json"] = _json(codex)
        found[place / "assets/icon.png"] = icon(list(PLUGINS).index(name))
    return found | marketplaces(root, "./plugins")


def _from_above(codex: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return the manifest of the folder above a plugin, by which Codex takes it with its hooks.

    Codex runs no hook of a folder with the root `plugin.json` of Agent Plugins, whichever manifest
    names it. So its marketplace leads to the folder above, which has none, and whose manifest names
    the skills and hooks of the plugin below.
    """
    below = f"./{place.name}/"
    icons = {key: codex["interface"][key].replace("./", below) for key in ("logo", "composerIcon")}
    hooks = json.dumps(read_json(place / HOOKS)["hooks"])
    hooks = hooks.replace("${CLAUDE_PLUGIN_ROOT}/", f"${{CLAUDE_PLUGIN_ROOT}}/{place.name}/")
    return {
        **codex,
        "skills": f"{below}skills/",
        "hooks": {"hooks": json.loads(hooks)},
        "interface": codex["interface"] | icons,
    }


def marketplaces(root: Path, prefix: str) -> dict[Path, bytes]:
    """Return the marketplaces of both hosts, with plugins below `prefix` of `root`."""
    claude: dict[str, Any] = {
        "name": MARKETPLACE,
        "owner": OWNER,
        "metadata": {"description": "Skills for reinforcement learning", "version": __version__},
        "plugins": [
            {"name": name, "source": f"{prefix}/{name}", "version": __version__,
             "description": entry.description}
            for name, entry in PLUGINS.items()
        ],
    }  # fmt: skip
    policy = {"installation": "AVAILABLE", "authentication": "ON_INSTALL"}
    codex: dict[str, Any] = {
        "name": MARKETPLACE,
        "interface": {"displayName": "Assay"},
        "plugins": [
            {"name": name, "source": {"source": "local",
                                      "path": prefix if name == HOOKED else f"{prefix}/{name}"},
             "policy": policy, "category": entry.category}
            for name, entry in PLUGINS.items()
        ],
    }  # fmt: skip
    return {root / CLAUDE: _json(claude), root / CODEX: _json(codex)}


def repository_files(root: Path) -> dict[Path, bytes]:
    """Return the marketplaces at the top of a checkout, by which hosts add it from its address."""
    inside = LIBRARY.resolve().relative_to(root.resolve()).as_posix()
    return marketplaces(root, f"./{inside}/plugins")


def icon(number: int) -> bytes:
    """Draw a square icon: rising bars, in a colour by the plugin's number."""
    colour = ((38, 70, 83), (42, 157, 143), (231, 111, 81), (69, 123, 157), (106, 76, 147),
              (131, 56, 56), (60, 60, 60))[number % 7]  # fmt: skip
    rows = []
    for y in range(SIDE):
        row = bytearray([0])  # no filter
        for x in range(SIDE):
            bar, inside = divmod(x - 8, 13)
            risen = 0 <= bar < 4 and inside < 9 and 8 <= SIDE - y <= 20 + 11 * bar
            row += bytes((255, 255, 255) if risen else colour)
        rows.append(bytes(row))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def outdated(root: Path | None = None) -> list[Path]:
    """Return the manifests that are not what they are to be; `root` is that of a checkout."""
    wanted = files() | (repository_files(root) if root is not None else {})
    return [p for p, data in wanted.items() if not p.is_file() or p.read_bytes() != data]


def main() -> None:
    """Write all manifests of this checkout."""
    top = LIBRARY.parents[3]
    for path, data in (files() | repository_files(top)).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()

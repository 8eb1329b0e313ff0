"""Where cases of evaluations begin, by name: what many of them would otherwise repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A training script as users have it, without Assay: its score rises with --lr.
_SCRIPT = """\
import argparse, json, pathlib, random

p = argparse.ArgumentParser()
p.add_argument("--seed", type=int, default=0)
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--out", default="out")
a = p.parse_args()
d = pathlib.Path(a.out)
d.mkdir(parents=True, exist_ok=True)
score = 10 * a.lr + random.Random(a.seed).random()
(d / "eval.json").write_text(json.dumps({"return": score}))
"""
_STUDY = (
    'assay study start train.py --question "Is a larger step better?" --minimum-effect 1 '
    "--candidates 2",
    "assay study contract set 'metrics.primary.source={kind: json, path: eval.json, key: return}' "
    "task.env=Toy evaluation.episodes=1",
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The files of a directory, by name, and the commands that are then run in it."""

    files: Mapping[str, str]
    commands: tuple[str, ...] = ()


BEGINNINGS: Mapping[str, Beginning] = {
    "script": Beginning({"train.py": _SCRIPT}),
    "study": Beginning({"train.py": _SCRIPT}, _STUDY),
}

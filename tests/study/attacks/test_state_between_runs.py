"""What a run leaves in the place for temporary files reaches no other run."""

from __future__ import annotations

import json
import tempfile
import textwrap
from pathlib import Path

import pytest
from arena import FILES, begin, propose, repository

SEEN = """
import json, os, pathlib, tempfile
place = pathlib.Path(tempfile.gettempdir())
seen = [str(place), sorted(path.name for path in place.iterdir())]
seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
(place / "left-behind").mkdir(exist_ok=True)
(out / "NAME.json").write_text(json.dumps(seen))
"""


def files() -> dict[str, str]:
    scripts = {"train.py": "out = pathlib.Path(out)", "evaluate.py": ""}
    return FILES | {
        name: textwrap.dedent(FILES[name]) + line + SEEN.replace("NAME", name.partition(".")[0])
        for name, line in scripts.items()
    }


@pytest.mark.parametrize("given", [False, True])
def test_a_run_finds_nothing_and_leaves_nothing(tmp_path: Path, run, given: bool) -> None:
    usual = tmp_path / "temporary"
    usual.mkdir()
    changes = {"baseline": {"env": {"TMPDIR": str(usual)}}} if given else {}
    study = begin(repository(tmp_path / "r", files()), **changes)
    propose(study)
    places = []
    for seed in (1, 2):
        record = run(study, seed=seed, phase="promotion")
        assert record.outcome == "done", record.reason
        for name in ("train", "evaluate"):
            out = study.path / "runs" / record.id / "out"
            place, found, compiled = json.loads((out / f"{name}.json").read_text())
            assert found == []
            assert not Path(place).exists()
            assert Path(place).parent == (usual if given else Path(tempfile.gettempdir()))
            assert Path(compiled).parent == Path(place).parent  # which is not emptied
            places.append(place)
    assert len(set(places)) == 4
    assert not list(usual.iterdir())

"""The report of a study as Markdown, as one HTML file with plots, and as a list of experiments."""

from __future__ import annotations

from pathlib import Path

import yaml

from assay.study.files.base import VERSION
from assay.study.files.documents import write_text
from assay.study.record.study import Study
from assay.study.report.blocks import markdown, page
from assay.study.report.facts import read
from assay.study.report.sections import document


def report(study: Study) -> str:
    """Return the report as Markdown.

    Raises:
        AssayError: The ledger is damaged, so that nothing can be said.
    """
    return markdown(document(read(study), plots=False))


def html_report(study: Study) -> str:
    """Return the report as one HTML file with plots."""
    facts = read(study)
    title = f"Study {study.task}/{study.name}"
    return page(title, document(facts, plots=True))


def write(study: Study) -> tuple[Path, Path, Path]:
    """Write report.md, report.html and experiments.yaml; return where they are.

    Raises:
        AssayError: The ledger is damaged, or the place cannot be written to.
    """
    study.require_writable()
    paths = tuple(study.path / n for n in ("report.md", "report.html", "experiments.yaml"))
    write_text(paths[0], report(study))
    write_text(paths[1], html_report(study))
    history = study.history()
    study.label(history)
    experiments = [
        {"candidate": name, "kind": history.kind[name], "state": status, "runs": [
            {"run": run.id, "phase": run.phase, "seed": run.seed, "outcome": run.outcome,
             "metrics": run.metrics}
            for run in history.over(name)
        ]}
        for name, status in history.status.items()
    ]  # fmt: skip
    made = {"schema_version": VERSION, "incumbent": history.incumbent, "experiments": experiments}
    write_text(paths[2], yaml.safe_dump(made, sort_keys=False, allow_unicode=True))
    return paths[0], paths[1], paths[2]

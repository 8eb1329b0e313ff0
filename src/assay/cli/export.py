"""`assay export`: the policy as one file that runs without Assay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunName, RunsRoot
from assay.core.errors import ConfigError

if TYPE_CHECKING:
    from assay.policies.export import Export, Format


def export(
    run: RunName,
    onnx: bool = typer.Option(False, "--onnx", help="Write ONNX (needs the extra onnx)."),
    torchscript: bool = typer.Option(False, "--torchscript", help="Write TorchScript."),
    out: Path = typer.Option(
        None, "--out", help="The file; by default RUN/policy.onnx or RUN/policy.pt."
    ),
    settings: list[str] | None = typer.Option(
        None,
        "--set",
        metavar="KEY=VALUE",
        help="A setting that only acting reads: simulations=0 exports no search.",
    ),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Write the policy as one file that runs without Assay.

    Observations in, deterministic actions out: normalisation and action limits are included. The
    file is run and compared with the agent. Of several agents, each policy is a file of its own,
    with its name: policy-speaker.onnx.
    """
    if onnx == torchscript:
        raise ConfigError(
            "Both --onnx and --torchscript are given."
            if onnx
            else "Neither --onnx nor --torchscript is given.",
            "Give one of them.",
        )
    from assay.api import load
    from assay.core.config import parse_assignments
    from assay.policies.export import export_policy
    from assay.policies.team import TeamPolicy

    place = locate(run, root)
    agent = load(place, settings=parse_assignments(settings or []))
    path = out or place / ("policy.onnx" if onnx else "policy.pt")
    form: Format = "onnx" if onnx else "torchscript"
    if isinstance(agent.policy, TeamPolicy):
        results = {
            name: export_policy(policy, path.with_stem(f"{path.stem}-{quote(name, '')}"), form)
            for name, policy in agent.policy.policies.items()
        }
        if as_json:
            output.print_json({name: result.to_json() for name, result in results.items()})
            return
        for result in results.values():
            _show(result)
        return
    result = export_policy(agent.policy, path, form)
    if as_json:
        output.print_json(result.to_json())
        return
    _show(result)


def _show(result: Export) -> None:
    output.say(f"Policy: {result.path}")
    for name, shape, dtype in result.inputs:
        output.say(f"  input {name}: {dtype} [batch{''.join(f', {n}' for n in shape)}]")
    shape, dtype = result.output
    output.say(f"  output action: {dtype} [batch{''.join(f', {n}' for n in shape)}]")
    if not result.runtime:
        output.note("Not checked, because onnxruntime is missing: pip install 'assay[onnx]'")
        return
    output.say(
        f"Checked with {result.runtime} on {result.observations} observations: the largest "
        f"difference from the agent is {result.max_difference:.2g}"
    )

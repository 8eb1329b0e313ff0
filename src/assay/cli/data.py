"""`assay data`: record data, look at it, check it, convert it, put it together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunName, RunsRoot
from assay.core.errors import EXIT_USER_ERROR, ConfigError
from assay.core.wording import counted
from assay.evaluation.formatting import few, number

if TYPE_CHECKING:
    from assay.data.dataset import Dataset
    from assay.data.summary import Summary

app = typer.Typer(
    help="Recorded data: record, inspect, validate, convert, build, merge, split, list.",
    no_args_is_help=True,
)

Set = Annotated[
    str,
    typer.Argument(
        metavar="SET", help="A file, the name of one in $ASSAY_DATA (data), or a Minari id."
    ),
]
Out = Annotated[
    str,
    typer.Argument(
        metavar="OUT",
        help="Ends in .npz, .hdf5 or .parquet; like -v0: a Minari dataset, minari:ID in its place.",
    ),
]


@app.command("record")
def record(
    run: RunName,
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="[OUT]",
            help="Where to write it (as `convert`); data/RUN-QUALITY.npz by default.",
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", min=1, help="How many; 100, or all of a replay, by default."),
    ] = None,
    quality: Annotated[
        Literal["random", "medium", "replay", "expert"],
        typer.Option("--quality", help="Who acts."),
    ] = "expert",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes the episodes.")] = 0,
    log_prob: Annotated[
        bool, typer.Option("--log-prob", help="Also the log-probability of each Discrete action.")
    ] = False,
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Record a dataset from a run.

    random: uniform actions. expert: the deterministic policy of the last checkpoint. medium: about
    half-way between the returns of these two, by an earlier checkpoint with some random actions if
    one is near, else by the last one with more of them. replay: what the run collected and still
    holds.
    """
    from assay.data.files import data_root
    from assay.recording import record as play

    place = locate(run, root)
    target = str(data_root() / f"{place.name}-{quality}.npz") if out is None else out
    made = play(place, target, episodes=episodes, quality=quality, seed=seed, log_prob=log_prob)
    _tell(made, as_json)
    if not as_json and "medium" in made.metadata:
        facts = made.metadata
        output.note(f"Medium: {facts['medium']}, {facts['share']:.0%} of the way.")


@app.command("build")
def build(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG...", help=".csv, .jsonl, also .gz; .parquet, .npz, .hdf5."),
    ],
    out: Annotated[
        str, typer.Option("--out", metavar="OUT", help="Where to write it, as `convert`.")
    ],
    columns: Annotated[
        list[str],
        typer.Option(
            "--column",
            metavar="FIELD=NAME[,NAME...]",
            help="Which columns are obs, action, reward, terminated; also truncated, episode, "
            "next_obs, extra/NAME.",
        ),
    ],
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="The environment with these spaces.")
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            "--actions", metavar="N or LOW:HIGH", help="Choices, or bounds, without --env."
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option(
            "--words",
            metavar="COLUMN=WORD,WORD...",
            help="Words in a column: the first becomes 0. Of the action column: its choices.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a dataset of the logs of a real system.

    Without --env a run learns from it without an environment: `assay train iql data=OUT`.
    """
    from assay.data.tables import build as make

    fields, spoken = _pairs("--column", columns), _pairs("--words", words or ())
    space = None if actions is None else _action_space(actions)
    _tell(make(logs, fields, out, env=env, actions=space, words=spoken), as_json)


def _pairs(option: str, texts: Iterable[str]) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for text in texts:
        name, equals, names = text.partition("=")
        found = [one.strip() for one in names.split(",") if one.strip()]
        if not name or not equals or not found:
            raise ConfigError(f"{option} '{text}': expected NAME=ONE or NAME=ONE,TWO.")
        if name.strip() in pairs:
            both = ",".join([*pairs[name.strip()], *found])
            raise ConfigError(
                f"{option} has '{name.strip()}' twice.", f"Write {option} {name.strip()}={both}"
            )
        pairs[name.strip()] = found
    return pairs


def _action_space(text: str) -> Any:
    """Read `3` as three choices and `-1:1` as bounds."""
    from gymnasium.spaces import Box, Discrete

    low, colon, high = text.partition(":")
    try:
        if not colon:
            return Discrete(int(text))
        Box(float(low), float(high), ())  # which checks them
        return float(low), float(high)
    except (ValueError, AssertionError):
        raise ConfigError(
            f"--actions '{text}': expected a number of choices, or LOW:HIGH.",
            "Write --actions 3, or --actions=-1:1",
        ) from None


@app.command("inspect")
def inspect(
    source: Set,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, to a .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a dataset: returns, lengths, ends, ranges, coverage, duplicates."""
    from assay.data.files import load
    from assay.data.summary import summarise

    dataset = load(source)
    summary = summarise(dataset)
    if plot is not None:
        _draw(dataset, summary, plot)
    if as_json:
        output.print_json(summary.to_json())
        return
    for name, line in _lines(dataset, summary).items():
        output.say(f"{name + ':':<13}{line}")
    columns = ("field", "shape", "type", "min>", "mean>", "max>")
    output.show(output.table(columns, _rows(dataset, summary)))
    if plot is not None:
        output.say(f"Plot: {plot}")


def _lines(dataset: Dataset, summary: Summary) -> dict[str, str]:
    from gymnasium.spaces import Box

    from assay.evaluation.plots import text_histogram

    returns, lengths, coverage = summary.returns, summary.lengths, summary.coverage
    facts = summary.to_json()
    lines = {
        "dataset": dataset.name,
        "content": dataset.describe(),
        "sha256": summary.sha256,
        "observation": str(dataset.schema.observation),
        "action": str(dataset.schema.action),
        "return": f"{_spread(facts['return'])}  {text_histogram(returns)}",
        "length": f"{_spread(facts['length'])}  {text_histogram(lengths)}",
        "ends": f"{summary.terminated:,} terminated, {summary.truncated:,} truncated, "
        f"{len(summary.open_ends):,} neither, {len(summary.early_ends):,} with a terminal before "
        "the last step",
        "duplicates": few(f"{a} = {b}" for a, b in summary.duplicates) or "none",
    }
    if coverage is not None:
        box = isinstance(dataset.schema.action, Box)
        what = "each component's range" if box else "choices"
        lines["coverage"] = f"{', '.join(f'{share:.0%}' for share in coverage[:12])} of {what}"
    if summary.metadata:
        lines["metadata"] = ", ".join(f"{k}={v}" for k, v in summary.metadata.items())
    return lines


def _spread(facts: dict[str, float]) -> str:
    return (
        f"mean {number(facts['mean'])} (std {number(facts['std'])}), "
        f"{number(facts['min'])} to {number(facts['max'])}"
    )


def _rows(dataset: Dataset, summary: Summary) -> list[tuple[Any, ...]]:
    return [
        (
            name,
            str(list(dataset.schema.fields[name].shape)),
            dataset.schema.fields[name].dtype,
            *(number(float(x)) for x in (one.low.min(), one.mean.mean(), one.high.max())),
        )
        for name, one in summary.ranges.items()
    ]


def _draw(dataset: Dataset, summary: Summary, path: Path) -> None:
    import numpy as np

    from assay.evaluation.plots import plot_histograms

    drawn = next(iter(dataset.blocks(["action"], rows=1 << 18))).columns["action"]
    actions = drawn.reshape(len(drawn), -1)
    panels = {"return": summary.returns, "length": np.asarray(summary.lengths)}
    panels |= {f"action {i}": actions[:, i] for i in range(min(7, actions.shape[1]))}
    plot_histograms(panels, path, title=f"{dataset.name}: {dataset.describe()}")


@app.command("validate")
def validate(
    source: Set,
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Compare with this environment.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a dataset; exit code 2 if something is wrong with it.

    Shapes, types and bounds of the spaces, T + 1 observations for T steps, values that are not
    finite, terminals, duplicates, coverage. Without --env the spaces are those that it states.
    """
    from assay.data.findings import validate as check

    found = check(source, env)
    wrong = [one for one in found if one.level == "error"]
    if as_json:
        output.print_json({"valid": not wrong, "findings": [one.to_json() for one in found]})
    else:
        for one in found:
            times = f" ({one.count:,} of them)" if one.count > 1 and one.level == "error" else ""
            output.say(f"{one.level}: {one.message}{times}")
        output.say(
            f"{source}: {'not valid' if wrong else 'valid'}, {counted(len(found), 'finding')}."
        )
    if wrong:
        raise typer.Exit(EXIT_USER_ERROR)


@app.command("convert")
def convert(source: Set, out: Out, as_json: AsJson = False) -> None:
    """Write a dataset in another format; the content and its hash stay the same."""
    from assay.data.files import load

    _write(load(source), out, as_json)


@app.command("merge")
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SET...", help="What to put together.")],
    out: Annotated[
        str, typer.Option("--out", metavar="OUT", help="Where to write it, as `convert`.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write the episodes of several datasets into one."""
    from assay.data.combine import merge as join

    _write(join(sources), out, as_json)


@app.command("split")
def split(
    source: Set,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Gets the share of --fraction.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Gets the rest.")],
    fraction: Annotated[
        float, typer.Option("--fraction", help="Share of the episodes in FIRST.")
    ] = 0.9,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes the draw.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Divide a dataset by whole episodes, drawn at random."""
    from assay.data.combine import split as divide
    from assay.data.files import check_target, locate, save

    whole = locate(source)
    check_target(first, keep=[whole])
    check_target(second, keep=[whole, first])
    parts = zip(divide(whole, fraction, seed=seed), (first, second), strict=True)
    facts = [{"path": str(save(part, path)), **part.facts()} for part, path in parts]
    if as_json:
        output.print_json(facts)
        return
    for one in facts:
        output.say(
            f"{one['path']}: {counted(one['episodes'], 'episode')} with "
            f"{counted(one['steps'], 'step')}"
        )


@app.command("list")
def list_sets(
    root: Annotated[
        Path | None, typer.Option("--root", help="Where datasets are kept ($ASSAY_DATA, or data).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the datasets in a directory, and those that Minari keeps on this machine."""
    from assay.core.errors import AssayError
    from assay.data.files import data_root, find, load, minari_root

    place = data_root() if root is None else root
    found: list[dict[str, Any]] = []
    for path in dict.fromkeys([*find(place), *find(minari_root())]):
        try:
            dataset = load(path)
        except AssayError as error:
            found.append({"path": str(path), "error": error.message})
            continue
        facts = {"episodes": dataset.num_episodes, "steps": len(dataset)}
        found.append({"path": str(path), **facts, "bytes": dataset.nbytes})
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.say(f"There are no datasets in '{place}'. Record one: assay data record RUN OUT")
        return
    rows = [(one["path"], one.get("episodes"), one.get("steps"), one.get("error")) for one in found]
    output.show(output.table(("dataset", "episodes>", "steps>", "cannot be read"), rows))


def _write(dataset: Dataset, out: str, as_json: bool) -> None:
    """Save a dataset and say so."""
    from assay.data.files import load, save

    _tell(load(save(dataset, out)), as_json)


def _tell(dataset: Dataset, as_json: bool) -> None:
    """Print where a dataset is, and what is in it."""
    if as_json:
        output.print_json({"path": str(dataset.path), **dataset.facts()})
    else:
        output.say(f"{dataset.path}: {dataset.describe()}")

"""`assay prefer`: learn a reward from comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import ConfigError
from assay.core.wording import counted
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.experts.reward_model import FitSettings, RewardModel
    from assay.preferences.files import PreferenceSet

app = typer.Typer(
    help="Learn a reward from comparisons: sample, label, inspect, fit, and all of it in a loop.",
    no_args_is_help=True,
)

Set = Annotated[Path, typer.Argument(metavar="SET", help="A directory that `sample` wrote.")]
Length = Annotated[int, typer.Option("--length", min=1, help="Steps of a segment.")]
Episodes = Annotated[
    int, typer.Option("--episodes", min=1, help="Most episodes that segments are taken from.")
]
Noise = Annotated[
    float | None,
    typer.Option("--noise", min=0, max=1, help="With --oracle: share of wrong answers."),
]
Equal = Annotated[
    float | None,
    typer.Option("--equal", min=0, help="With --oracle: returns that differ less are equal."),
]
Oracle = Annotated[bool, typer.Option("--oracle", help="Answer by the environment's own rewards.")]
Page = Annotated[bool, typer.Option("--page", help="Let a person answer, on a local page.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port of --page. [default: a free one]"),
]
AnnotatorName = Annotated[
    str | None, typer.Option("--annotator", help="Who answers. [default: oracle, or your login]")
]
Without = Annotated[list[str] | None, typer.Option("--without", help="An annotator to leave out.")]
FitValues = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the fit, such as bound=clip."),
]


@app.command("sample")
def sample(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN_OR_SET]...", help="Runs, and datasets of episodes."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="SET", help="The directory; pairs are added to it.")
    ] = Path("preferences"),
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ID", help="Also random actions in this environment."),
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", min=1, help="How many.")] = 100,
    length: Length = 25,
    by: Annotated[
        Literal["chance", "disagreement", "coverage"],
        typer.Option("--by", help="How pairs are chosen."),
    ] = "chance",
    model: Annotated[
        Path | None, typer.Option("--model", help="The model of --by disagreement.")
    ] = None,
    actor: Annotated[
        Literal["policy", "random", "replay"],
        typer.Option("--from", help="Of a run: its policy, random actions, or its replay."),
    ] = "policy",
    episodes: Episodes = 20,
    held_out: Annotated[
        float,
        typer.Option("--held-out", min=0, max=0.9, help="Share of pairs to measure models by."),
    ] = 0.15,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes episodes and pairs.")] = 0,
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Take pairs of segments from runs, to be compared.

    chance: any two segments. disagreement: those on which the members of a model disagree most.
    coverage: those that are farthest from each other. The same command again adds nothing; another
    --seed adds more.
    """
    from assay.preferences.sample import random_source, source_of
    from assay.preferences.sample import sample as draw

    found = [
        source_of(_named(one, root), actor=actor, episodes=episodes, seed=seed)
        for one in sources or ()
    ]
    if env is not None:
        found.append(random_source(env, episodes=episodes, seed=seed))
    batch, new = draw(
        out, found, pairs=pairs, length=length, by=by,
        model=None if model is None else _model(model), held_out=held_out, seed=seed,
    )  # fmt: skip
    facts = {
        "set": str(out), "batch": batch.number, "pairs": len(batch.pairs), "new": new,
        "held_out": sum(pair.held_out for pair in batch.pairs),
        "episodes": batch.dataset.num_episodes, "sha256": batch.facts["sha256"],
    }  # fmt: skip
    if as_json:
        output.print_json(facts)
        return
    if not new:
        output.note("There is such a batch already. Another --seed adds more.")
    output.say(
        f"{out}: batch {batch.number} with {counted(len(batch.pairs), 'pair')} of "
        f"{counted(length, 'step')} "
        f"({facts['held_out']} held out), from {counted(facts['episodes'], 'episode')}"
    )


def _named(text: str, root: Path | None) -> str:
    """Return the path of a run under the root; anything else as it is."""
    place = locate(text, root)
    return str(place) if (place / "run.json").is_file() else text


def _model(path: Path) -> RewardModel:
    from assay.experts.reward_model import RewardModel
    from assay.experts.rewards import learned_reward

    found = learned_reward(path)
    if not isinstance(found, RewardModel):
        raise ConfigError(
            f"'{path}' has no members that could disagree.", "Give a model of assay prefer fit."
        )
    return found


@app.command("label")
def label(
    source: Set,
    oracle: Oracle = False,
    page: Page = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE.jsonl", help="Take answers from a file.")
    ] = None,
    noise: Noise = None,
    equal: Equal = None,
    annotator: AnnotatorName = None,
    port: Port = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes the oracle's mistakes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Answer pairs: by an oracle, from a file, or by a person at a local page.

    Lines of a file are like {"pair": "1-0", "choice": "left"}, with left, right, equal or unsure,
    and may name their annotator. Pairs that an annotator has answered are not asked again.
    """
    from assay.preferences.files import PreferenceSet, read_answers

    _one_way({"--oracle": oracle, "--page": page, "--file": file is not None})
    _refuse_unread({"--noise": noise, "--equal": equal}, oracle, "--oracle")
    _refuse_unread({"--port": port}, page, "--page")
    found = PreferenceSet.open(source)
    before = len(found.labels())
    if file is not None:
        who = annotator or _login()
        found.add_labels((pair, choice, name or who) for pair, choice, name in read_answers(file))
    else:
        asking = _asking(oracle, noise, equal, annotator, port, seed)
        asking(found)
    labels = found.labels()
    answered = {one.pair for one in labels}
    facts = {
        "set": str(source), "answers": len(labels), "new": len(labels) - before,
        "open": len(found.pairs()) - len(answered),
    }  # fmt: skip
    if as_json:
        output.print_json(facts)
    else:
        output.say(f"{source}: {facts['new']} new answers, {facts['open']} pairs without any")


def _one_way(ways: dict[str, bool]) -> None:
    if sum(ways.values()) != 1:
        listed = ", ".join(ways)
        given = ", ".join(name for name, asked in ways.items() if asked) or "none"
        raise ConfigError(f"Who answers? Expected one of {listed}; given: {given}.")


def _refuse_unread(options: dict[str, Any], read: bool, other: str) -> None:
    for name, value in options.items():
        if value is not None and not read:
            raise ConfigError(f"{name} has a meaning only with {other}.", f"Leave out {name}.")


def _asking(
    oracle: bool,
    noise: float | None,
    equal: float | None,
    annotator: str | None,
    port: int | None,
    seed: int,
) -> Any:
    """Return what has pairs answered by an oracle or a person."""
    from assay.preferences.oracle import ORACLE, ask_oracle

    def ask(found: PreferenceSet) -> None:
        if oracle:
            name = annotator or ORACLE
            ask_oracle(found, noise=noise or 0.0, equal=equal or 0.0, seed=seed, annotator=name)
            return
        from assay.preferences.page import LabelPage

        if not found.unlabelled(annotator or _login()):
            return
        page = LabelPage(found, annotator or _login(), port=port or 0)
        output.note(f"Compare the clips at {page.address} (Ctrl-C or `finish` ends it)")
        page.serve()

    return ask


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "person"


@app.command("inspect")
def inspect(source: Set, as_json: AsJson = False) -> None:
    """Show who answered, who agrees, who favours a side, and what was compared."""
    from assay.preferences.files import PreferenceSet
    from assay.preferences.inspection import inspect as look

    found = look(PreferenceSet.open(source))
    if as_json:
        output.print_json(found.to_json())
        return
    output.say(
        f"{source}: {found.pairs} pairs, {found.labelled} answered ({found.held_out} held out), of "
        f"{found.episodes[1]} of {found.episodes[0]} episodes"
    )
    if found.coverage:
        output.say(f"Compared of each observation's range: {_percent(found.coverage)}")
    columns = ("annotator", "answers>", "left>", "right>", "equal>", "unsure>", "share left>")
    rows = [
        (
            one.name,
            one.answers,
            *one.choices.values(),
            _share(one.left),
        )
        for one in found.annotators
    ]
    output.show(output.table(columns, rows))
    if found.agreements:
        both = [
            (f"{one.one}, {one.other}", one.pairs, f"{one.share:.0%}", number(one.kappa))
            for one in found.agreements
        ]
        output.show(output.table(("annotators", "pairs>", "agree>", "kappa>"), both))
    for flag in found.flags:
        output.say(f"Flag: {flag}")


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _percent(shares: Sequence[float]) -> str:
    more = f" and {len(shares) - 12} more" if len(shares) > 12 else ""
    return ", ".join(f"{share:.0%}" for share in shares[:12]) + more


@app.command("export")
def export(
    source: Set,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.npz", help="The dataset to write.")
    ] = Path("pairs.npz"),
    without: Without = None,
) -> None:
    """Write answered pairs as a dataset, to learn a policy from them without a reward model.

    `assay train bc ENV data=FILE.npz contrast=0.1` does that. Pairs that are held out are left out.
    """
    from assay.preferences.export import export as write
    from assay.preferences.files import PreferenceSet

    found = PreferenceSet.open(source)
    made = write(found, out, without=without or ())
    output.say(f"{out}: {made.num_episodes // 2} pairs of {found.length} steps")
    env = found.facts["env"]
    output.note(f"Next: assay train bc {env} data={out} contrast=0.1")


@app.command("fit")
def fit(
    source: Set,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as bound=clip members=5."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="MODEL", help="The directory of the model.")
    ] = Path("reward"),
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Fit a reward to the answers: an ensemble of Bradley-Terry models.

    Settings: members, hidden, bound (tanh, clip, running, none), limit, epochs, batch_size, lr,
    weight_decay, error (share of answers assumed to be chance), seed. A run learns from it with
    `assay train sac ENV reward_model=MODEL`.
    """
    from assay.preferences.files import PreferenceSet
    from assay.preferences.fit import doubts
    from assay.preferences.fit import fit as learn
    from assay.preferences.inspection import biased

    found, fitting = PreferenceSet.open(source), _fitting(settings)
    for text in biased(found):
        if not any(f"'{name}'" in text for name in without or ()):
            output.note(f"Warning: {text}")
    model = learn(found, out, fitting, without=without or (), tell=output.note)
    facts = model.facts
    for text in doubts(facts["quality"], facts["held_out"]):
        output.note(f"Warning: {text}")
    if as_json:
        output.print_json({"model": str(out), **_shown(model)})
        return
    output.say(f"{out}: fitted to {facts['comparisons']} answers, bound={model.settings.bound}")
    for name, key in (("held-out", "quality"), ("fitted", "fitted")):
        if (quality := facts[key]) is None:
            output.say(f"{name}: no answers that chose a side to measure by")
            continue
        output.say(
            f"{name}: accuracy {quality['accuracy']:.1%} of {quality['answers']} answers, log loss "
            f"{quality['log_loss']:.3f}, calibration error {quality['calibration_error']:.3f}"
        )
    if facts["quality"] is not None:
        rows = [(f"{c:.2f}", f"{s:.2f}", n) for c, s, n in facts["quality"]["calibration"]]
        output.show(output.table(("confidence>", "right>", "answers>"), rows))


def _shown(model: RewardModel) -> dict[str, Any]:
    names = ("sha256", "env", "length", "comparisons", "held_out", "quality", "fitted", "settings")
    return {name: model.facts[name] for name in names}


def _fitting(settings: Sequence[str] | None) -> FitSettings:
    from assay.core.config import parse, parse_assignments
    from assay.experts.reward_model import FitSettings

    return parse(FitSettings, parse_assignments(list(settings or [])), what="the fit")


@app.command("loop")
def loop(
    algorithm: Annotated[str, typer.Argument(metavar="ALGO", help="ppo, sac or redq.")],
    env: Annotated[str, typer.Argument(metavar="ENV", help="The environment's id.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the run."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIRECTORY", help="Where all of it is kept.")
    ] = Path("preference-loop"),
    oracle: Oracle = False,
    page: Page = False,
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Comparisons in all.")] = 700,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Times to ask, after random actions.")
    ] = 4,
    length: Length = 25,
    episodes: Episodes = 20,
    by: Annotated[
        Literal["chance", "disagreement", "coverage"],
        typer.Option("--by", help="How pairs are chosen, once there is a model."),
    ] = "disagreement",
    actor: Annotated[
        Literal["policy", "replay"],
        typer.Option("--from", help="Compare new episodes of the policy, or its replay."),
    ] = "policy",
    noise: Noise = None,
    equal: Equal = None,
    annotator: AnnotatorName = None,
    port: Port = None,
    fit_settings: FitValues = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes all of it.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train an agent on comparisons: train, sample, ask, fit, and go on, as often as --rounds says.

    The agent never learns from the environment's reward, which is shown beside the learned one.
    Stopped, the same command goes on. --from replay cannot be drawn, and so needs --oracle.
    """
    from assay.core.config import parse_assignments
    from assay.preferences.online import Plan, learn

    _one_way({"--oracle": oracle, "--page": page})
    _refuse_unread({"--noise": noise, "--equal": equal}, oracle, "--oracle")
    _refuse_unread({"--port": port}, page, "--page")
    if page and actor == "replay":
        raise ConfigError("A replay cannot be drawn for a person.", "Use --from policy.")
    made = learn(
        algorithm, env, out, _asking(oracle, noise, equal, annotator, port, seed),
        plan=Plan(pairs, rounds, length, episodes, by, actor, seed),
        settings=parse_assignments(settings or []),
        fitting=_fitting(fit_settings),
        tell=output.note,
    )  # fmt: skip
    facts = {
        "run": str(made.run.path), "extra_steps": made.extra_steps,
        "rounds": [asdict(one) for one in made.rounds],
    }  # fmt: skip
    if as_json:
        output.print_json(facts)
        return
    columns = ("round>", "steps>", "answers>", "held-out accuracy>", "true return>", "learned>")
    rows = [
        (
            one.number, f"{one.env_steps:,}", one.comparisons,
            _share(one.accuracy),
            number(one.true_return), number(one.learned_return),
        )
        for one in made.rounds
    ]  # fmt: skip
    output.show(output.table(columns, rows))
    output.say(
        f"Run: {made.run.path} (and {counted(made.extra_steps, 'step')} played to be compared)"
    )
    for one in made.rounds:
        if one.hacked:
            text = "the learned return rose while the true one fell"
            output.say(f"Flag: in round {one.number} {text}: {one.compared}")

"""Drawings of one score per run: performance profiles, probabilities of improvement, ranks.

An arm is a run or a group. Its runs may be of several environments: then scores are put on a scale
from 0 (the worst run of any arm in that environment) to 1 (the best), and environments count alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.wording import counted
from assay.evaluation import statistics
from assay.evaluation.formatting import p_value
from assay.evaluation.plots import COLOURS, FAINT, INK, check_suffix, new_figure, save_figure, tidy
from assay.evaluation.ranks import Ranks, average_ranks
from assay.evaluation.run_scores import At, arm_names, read_curve
from assay.runs.directory import group_runs

Kind = Literal["profiles", "improvement", "ranks"]
Scores = dict[str, dict[str, NDArray[np.float64]]]  # arm -> environment -> [runs]

_THRESHOLDS = 101
_MOST_PAIRS = 30


def plot_scores(
    paths: Sequence[Path],
    kind: Kind,
    path: Path,
    *,
    metric: str,
    at: At = "final",
    level: float = 0.95,
) -> Path:
    """Draw the scores of runs and groups, and return the file's path.

    Args:
        paths: The arms.
        kind: "profiles": the share of runs above each score. "improvement": how likely a run of one
            arm beats one of another. "ranks": average ranks, with bars over arms that are not told
            apart (a critical-difference diagram).
        path: Where to, ending in `.png` or `.svg`.
        metric: What is scored.
        at: "final" or "best" value of each run.
        level: Confidence of the bands.

    Raises:
        ConfigError: There are too few arms or runs, or they were not run on the same environments.
        RunError: A run has no such metric, or the file cannot be written.
    """
    check_suffix(path)
    if kind == "ranks":
        return _draw_ranks(read_ranks(paths, metric, at, level=level), path)
    scores = _scaled(read_scores(paths, metric, at))
    if kind == "profiles":
        return _draw_profiles(scores, path, metric, level)
    return _draw_improvement(scores, path, level)


def read_scores(paths: Sequence[Path], metric: str, at: At = "final") -> Scores:
    """Return one score per run, by arm and environment.

    Raises:
        ConfigError: The arms were not run on the same environments.
        RunError: A run has no such metric.
    """
    scores = {
        arm: {env: np.array(list(of.values())) for env, of in by_env.items()}
        for arm, by_env in _seeds(paths, metric, at).items()
    }
    envs = {arm: set(by_env) for arm, by_env in scores.items()}
    everything = set().union(*envs.values())
    for arm, its in envs.items():
        if its != everything:
            missing = ", ".join(sorted(everything - its))
            raise ConfigError(
                f"'{arm}' has no run of {missing}, which others have.",
                "Give arms that were run on the same environments.",
            )
    return scores


def read_ranks(
    paths: Sequence[Path], metric: str, at: At = "final", *, level: float = 0.95
) -> Ranks:
    """Rank arms over the environments and seeds that all of them were run on.

    Raises:
        ConfigError: There are too few arms, or too few such blocks.
        RunError: A run has no such metric.
    """
    found = _seeds(paths, metric, at)
    keys = [{(env, seed) for env, of in by.items() for seed in of} for by in found.values()]
    common = sorted(set.intersection(*keys))
    blocks = {arm: [by[env][seed] for env, seed in common] for arm, by in found.items()}
    return average_ranks(blocks, level=level)


def _seeds(paths: Sequence[Path], metric: str, at: At) -> dict[str, dict[str, dict[int, float]]]:
    """Return scores by arm, environment and seed."""
    if at == "auc":
        raise ConfigError("at='auc' has no meaning here.", "Use final or best.")
    found: dict[str, dict[str, dict[int, float]]] = {}
    for arm, path in zip(arm_names(paths), paths, strict=True):
        by_env: dict[str, dict[int, float]] = {}
        for run in group_runs(path):
            _, values = read_curve(run, metric)
            values = values[np.isfinite(values)]
            if not len(values):
                raise ConfigError(f"The run '{run.path}' has no finite value of {metric}.")
            score = float(values[-1] if at == "final" else values.max())
            seeds = by_env.setdefault(run.info["env"], {})
            if run.info["seed"] in seeds:
                raise ConfigError(
                    f"'{arm}' has two runs of {run.info['env']} with seed {run.info['seed']}.",
                    "Give each run of an arm another seed.",
                )
            seeds[run.info["seed"]] = score
        found[arm] = by_env
    return found


def _scaled(scores: Scores) -> Scores:
    """Return scores from 0 to 1 in each environment, where there are several."""
    envs = sorted(next(iter(scores.values())))
    if len(envs) == 1:
        return scores
    limits = {}
    for env in envs:
        values = np.concatenate([by_env[env] for by_env in scores.values()])
        limits[env] = float(values.min()), float(np.ptp(values)) or 1.0
    return {
        arm: {env: (by_env[env] - limits[env][0]) / limits[env][1] for env in envs}
        for arm, by_env in scores.items()
    }


def _words(scores: Mapping[str, Mapping[str, object]], metric: str) -> str:
    envs = len(next(iter(scores.values())))
    return metric if envs == 1 else f"{metric}, scaled to [0, 1] in each of {envs} environments"


def _draw_profiles(scores: Scores, path: Path, metric: str, level: float) -> Path:
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    values = np.concatenate([runs for by_env in scores.values() for runs in by_env.values()])
    room = 0.02 * (float(np.ptp(values)) or 1.0)
    taus = np.linspace(values.min() - room, values.max() + room, _THRESHOLDS)
    for index, (arm, by_env) in enumerate(scores.items()):
        found = statistics.performance_profile(by_env, taus, rng=0, level=level)
        colour = COLOURS[index % len(COLOURS)]
        runs = sum(len(one) for one in by_env.values())
        axes.step(
            taus,
            found.fraction,
            color=colour,
            where="post",
            label=f"{arm} ({counted(runs, 'run')})",
        )
        if np.isfinite(found.low).all():
            axes.fill_between(
                taus, found.low, found.high, color=colour, alpha=0.18, linewidth=0, step="post"
            )
    axes.set_xlabel(_words(scores, metric))
    axes.set_ylabel("share of runs above")
    axes.set_ylim(-0.02, 1.02)
    axes.legend(fontsize=8, frameon=False)
    tidy(axes, grid="y")
    return save_figure(figure, path)


def _draw_improvement(scores: Scores, path: Path, level: float) -> Path:
    arms = list(scores)
    pairs = [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]
    if not pairs:
        raise ConfigError("A probability of improvement needs two arms.", "Give another group.")
    if len(pairs) > _MOST_PAIRS:
        raise ConfigError(f"{len(arms)} arms make {len(pairs)} pairs.", "Draw at most 8 arms.")
    figure = new_figure(6.4, 1.4 + 0.45 * len(pairs))
    axes = figure.subplots()
    for row, (a, b) in enumerate(pairs):
        found = statistics.probability_of_improvement(scores[a], scores[b], rng=0, level=level)
        if np.isfinite(found.low):
            axes.plot(
                [found.low, found.high], [row, row], color=COLOURS[0], alpha=0.35, linewidth=6
            )
        axes.plot([found.point], [row], "D", color=COLOURS[0], markersize=6)
        axes.annotate(
            f"{found.point:.2f}", (found.point, row), xytext=(0, 7), textcoords="offset points",
            ha="center", fontsize=9, color=INK,
        )  # fmt: skip
    axes.axvline(0.5, color=FAINT, linewidth=1.2, zorder=0)
    axes.set_yticks(range(len(pairs)), [f"{a} > {b}" for a, b in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.7)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("probability of improvement")
    tidy(axes, grid="x")
    return save_figure(figure, path)


def _draw_ranks(ranks: Ranks, path: Path) -> Path:
    count = len(ranks.names)
    figure = new_figure(7.0, 1.6 + 0.32 * count)
    axes = figure.subplots()
    low, high = 1, count
    axes.plot([low, high], [0, 0], color=INK, linewidth=1)
    for rank in range(low, high + 1):
        axes.plot([rank, rank], [0, 0.15], color=INK, linewidth=1)
        axes.annotate(str(rank), (rank, 0.25), ha="center", va="bottom", fontsize=9)
    # The critical difference as a length, above the axis.
    end = min(low + ranks.critical, high)
    axes.plot([low, end], [1.1, 1.1], color=INK, linewidth=2)
    axes.annotate(f"critical difference {ranks.critical:.2f}", (low, 1.2), va="bottom", fontsize=9)
    for row, (name, rank) in enumerate(zip(ranks.names, ranks.average, strict=True)):
        y = -1.0 - 0.6 * row
        colour = COLOURS[row % len(COLOURS)]
        axes.plot([rank, rank, high + 0.15], [0, y, y], color=colour, linewidth=1)
        axes.annotate(f"{name} ({rank:.2f})", (high + 0.2, y), va="center", fontsize=9)
    for row, (first, last) in enumerate(ranks.cliques):
        y = -0.22 - 0.22 * row
        ends = [ranks.average[first] - 0.03, ranks.average[last] + 0.03]
        axes.plot(ends, [y, y], color=INK, linewidth=4, solid_capstyle="round")
    axes.set_xlim(low - 0.2, high + 0.2 + 0.25 * count)
    axes.set_ylim(-1.4 - 0.6 * count, 2.0)
    axes.axis("off")
    figure.suptitle(
        f"Average ranks over {ranks.blocks} blocks of environment and seed; Friedman "
        f"p {p_value(ranks.p)}",
        x=0.01, ha="left", fontsize=10,
    )  # fmt: skip
    return save_figure(figure, path)

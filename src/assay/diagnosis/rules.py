"""The rules of a diagnosis: each looks at one case for one kind of failure.

A rule is a function of a `Case` that returns a `Finding` or None. Its name is that of the finding,
and the first line of its docstring is what `assay diagnose --rules` prints. A rule that lacks what
it reads returns None. The limits were chosen on a few runs, and are measured on others
(`benchmarks/diagnosis.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from assay.diagnosis.case import (
    CLIPPED,
    ENTROPY,
    EVALUATION,
    FEW_POINTS,
    KL,
    LENGTH,
    RETURN,
    Case,
    Finding,
    Progress,
    Severity,
    binned,
    tail,
)
from assay.evaluation.formatting import number

Rule = Callable[[Case], Finding | None]

_LOSS = r"loss"
_LEARNED = r"loss|entropy|_kl$|grad_norm|q_mean|value_mean|target_mean|alpha"
_SIGNAL_POINTS = 5  # log lines without any difference that count as none


def _at(case: Case, metric: str, count: int, value: float) -> str:
    where = f"{case.columns[metric]} ({metric})" if metric in case.columns else metric
    return f"{where} is {_exact(value)} at {case.unit}={count:,}"


def _exact(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1e-2 or abs(value) >= 1e6 else number(value)


def _curve(
    case: Case, name: str, severity: Severity, metric: str, value: float, cause: str, step: str,
    command: str | None = None, *, at: int | None = None, more: str = "",
) -> Finding:  # fmt: skip
    """Return a finding whose evidence is a point of a curve."""
    count = case.count if at is None else at
    evidence = _at(case, metric, count, value) + (f"; {more}" if more else "")
    return Finding(name, severity, evidence, cause, step, command, metric, count, value)


# ---------------------------------------------------------------------- numbers that blow up


def diverged(case: Case) -> Finding | None:
    """Numbers that are not finite: a loss, an entropy, a value, or what training stopped at."""
    cause = "A step was too large: the learning rate, the rewards or the inputs are too big."
    step = "Train again with a tenth of the learning rate, and with normalised inputs and rewards."
    command = case.retrain(*_lower_rates(case))
    if case.error is not None and "not finite" in case.error:
        evidence = f"run.json says: {case.error.splitlines()[0]}"
        return Finding("diverged", "error", evidence, cause, step, command, at=case.count)
    for name in case.matching(_LEARNED):
        counts, values = case.series[name]
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            i = int(bad[0])
            return _curve(
                case, "diverged", "error", name, float(values[i]), cause, step, command,
                at=int(counts[i]), more=f"{len(bad)} of {len(values)} values are not finite",
            )  # fmt: skip
    return None


def failed(case: Case) -> Finding | None:
    """A run that ended with an error, or whose process is gone."""
    if case.status == "failed" and case.error and "not finite" not in case.error:
        return Finding(
            "failed", "error", f"run.json says: {case.error.splitlines()[0]}",
            "See the message.", "Remove the cause, and go on from the last checkpoint.",
            f"assay resume {case.source}", at=case.count,
        )  # fmt: skip
    if case.status == "interrupted" and case.total and case.count < case.total:
        return Finding(
            "failed", "info", f"The run was interrupted at {case.unit}={case.count:,} of "
            f"{case.total:,}.", "It was stopped, or its process was killed.",
            "Go on from the last checkpoint.", f"assay resume {case.source}", at=case.count,
        )  # fmt: skip
    return None


def loss_explodes(case: Case) -> Finding | None:
    """A loss or a gradient that grows ten thousand times."""
    for name in case.matching(rf"{_LOSS}|grad_norm"):
        found = case.get(name, FEW_POINTS)
        if found is None:
            continue
        size = np.abs(found[1])
        early = max(float(np.median(size[: max(1, len(size) // 5)])), 1e-3)
        late = float(np.median(tail(size)))
        if (late > 1e4 and late > 1e4 * early) or late > 1e10:
            return _curve(
                case, "loss_explodes", "error", name, late,
                "Values or weights grow without bound: the learning rate is too high, targets "
                "follow too fast, or rewards are not scaled.",
                "Train again with a tenth of the learning rate; clip gradients, scale rewards.",
                case.retrain(*_lower_rates(case)), more=f"it began at {_exact(early)}",
            )  # fmt: skip
    return None


def values_explode(case: Case) -> Finding | None:
    """Learned values far beyond any return that was ever collected (overestimation)."""
    if case.settings.get("normalize_reward"):
        return None  # values are in units that change over the run
    bound = _largest_value(case)
    for name in case.matching(r"^train/(q_mean|value_mean|target_mean)$"):
        found = case.get(name, FEW_POINTS)
        if found is None or bound is None:
            continue
        late = float(np.median(tail(found[1], 0.2)))
        if abs(late) > 5 * bound:
            return _curve(
                case, "values_explode", "error" if abs(late) > 50 * bound else "warning", name,
                late,
                "Bootstrapped targets feed on their own errors: the learning rate or the discount "
                "is too high, or the target network follows too fast.",
                "Lower the learning rate, let targets follow more slowly, use twin critics or "
                "double Q-learning; check that episode ends are reported as terminated.",
                case.retrain(*_lower_rates(case)),
                more=f"no discounted return can be beyond {_exact(bound)}",
            )  # fmt: skip
    return None


def values_do_not_fit(case: Case) -> Finding | None:
    """A value function that predicts returns worse than a constant would."""
    late = case.late("train/explained_variance", 0.5)
    if late is None or late > -0.5:
        return None
    return _curve(
        case, "values_do_not_fit", "warning", "train/explained_variance", late,
        "The critic lags behind or diverges: its loss has too little weight, its targets are too "
        "large, or the step size is too high.",
        "Normalise rewards, or raise value_coef and lower the learning rate.",
        case.retrain("normalize_reward=true"), more="1 is perfect, 0 is a constant",
    )  # fmt: skip


def temperature(case: Case) -> Finding | None:
    """An entropy temperature (alpha) that runs away."""
    found = case.get("train/alpha", 5)
    if found is None:
        return None
    early, late = float(np.median(found[1][:3])), float(np.median(tail(found[1])))
    if late < 10 or late < 30 * early:
        return None
    return _curve(
        case, "temperature", "error", "train/alpha", late,
        "The policy cannot reach the target entropy, so that its weight grows without bound: the "
        "step size of the temperature is too high, or the target too.",
        "Lower the learning rate or the target entropy, or fix the temperature.",
        case.retrain(*_lower_rates(case)), more=f"it began at {_exact(early)}",
    )  # fmt: skip


# ---------------------------------------------------------------------- the policy


def entropy_collapse(case: Case) -> Finding | None:
    """A policy that stops exploring before returns rise."""
    found = case.get(ENTROPY, FEW_POINTS)
    if found is None or case.improved or case.solved:
        return None
    counts, values = binned(found)
    if _is_discrete(case, values):
        top = _largest_entropy(case, values)
        limit, words = 0.05 * top, f"the largest is {_exact(top)}"
    else:
        # A Gaussian of deviation 0.02 in each dimension; the number of dimensions is not known.
        limit, words = -2.5, "which is a deviation of a hundredth in each dimension, or less"
    below = values < limit
    stays = np.flatnonzero(~below)
    first = 0 if not len(stays) else int(stays[-1]) + 1
    if first > 0.75 * len(values) or first >= len(values):
        return None
    return _curve(
        case, "entropy_collapse", "error", ENTROPY, float(values[first]),
        "The policy became deterministic before it had found anything: steps are too large, or "
        "nothing rewards exploration.",
        "Raise the entropy bonus and lower the learning rate.",
        case.retrain("entropy_coef=0.01", *_lower_rates(case)), at=int(counts[first]),
        more=f"{words}, and returns did not rise",
    )  # fmt: skip


def stays_random(case: Case) -> Finding | None:
    """A policy that is as random at the end as at the start."""
    found = case.get(ENTROPY, FEW_POINTS)
    if found is None or not _is_discrete(case, found[1]):
        return None
    values = found[1]
    top, late = _largest_entropy(case, values), float(np.median(tail(values)))
    if late < 0.98 * top:
        return None
    coef = case.settings.get("entropy_coef")
    huge = isinstance(coef, (int, float)) and coef > 0.1
    # A policy that is almost uniform may still be right about what is best.
    if not huge and (case.improved is not False or case.solved):
        return None
    return _curve(
        case, "stays_random", "error", ENTROPY, late,
        "The entropy bonus outweighs the rewards, or no gradient reaches the policy.",
        "Lower the entropy bonus; if it is small already, look at the rewards and the step size.",
        case.retrain("entropy_coef=0.01"),
        more=f"the largest is {_exact(top)}" + (f", and entropy_coef={coef}" if coef else ""),
    )  # fmt: skip


def kl_spikes(case: Case) -> Finding | None:
    """Updates that move the policy too far at once."""
    found = case.get(KL, FEW_POINTS)
    if found is None:
        return None
    counts, values = found
    middle, top = float(np.median(values)), int(np.argmax(values))
    if middle <= 0.1 and values[top] <= 1.0:
        return None
    severity: Severity = "error" if middle > 0.5 else "warning"
    return _curve(
        case, "kl_spikes", severity, KL, float(values[top]),
        "Steps are too large for the data of one rollout: the learning rate is too high, or there "
        "are too many epochs.",
        "Lower the learning rate, or stop epochs early with target_kl.",
        case.retrain("target_kl=0.03", *_lower_rates(case)), at=int(counts[top]),
        more=f"the median is {_exact(middle)}",
    )  # fmt: skip


def clip_fraction(case: Case) -> Finding | None:
    """Most of each batch is clipped, and so teaches nothing."""
    middle = case.late(CLIPPED, 1.0)
    if middle is None or middle < 0.5:
        return None
    return _curve(
        case, "clip_fraction", "warning", CLIPPED, middle,
        "The policy leaves the trust region in the first steps of each update: the learning rate "
        "is too high, or the clip range too narrow.",
        "Lower the learning rate, or use clip=0.2.",
        case.retrain("clip=0.2", *_lower_rates(case)), more="the median of the run",
    )  # fmt: skip


def policy_does_not_move(case: Case) -> Finding | None:
    """Updates that change nothing."""
    for name in (KL, *case.matching(r"grad_norm$")):
        found = case.get(name, FEW_POINTS)
        if found is None or case.solved:
            continue
        largest = (
            float(np.abs(found[1]).max())
            if name == KL
            else float(np.abs(tail(found[1], 0.5)).max())
        )
        if largest < 1e-7:
            return _curve(
                case, "policy_does_not_move", "error", name, largest,
                "The learning rate is 0, the advantages are all alike, or parameters are frozen.",
                "Look at the learning rate and at the rewards.",
                case.retrain("lr=3e-4"), more="never more",
            )  # fmt: skip
    return None


# ---------------------------------------------------------------------- settings


def learning_rate(case: Case) -> Finding | None:
    """A learning rate of 0, one that ends too early, or one that is too high to learn."""
    for name, schedule in case.learning_rates.items():
        top = max(schedule.start, schedule.end)
        if top == 0:
            return _setting(
                case, "learning_rate", "error", name, 0.0, "Nothing is learned with a step size "
                "of 0.", "Set it.", case.retrain(f"{name}=3e-4"),
            )  # fmt: skip
        if top > 0.03:
            return _setting(
                case, "learning_rate", _too_high(case, top), name, top,
                "Adam moves every weight by about this much in every step.",
                "Use 1e-4 to 3e-3.", case.retrain(f"{name}=3e-4"),
            )  # fmt: skip
        if schedule.end == 0 and schedule.until < 0.75:
            return _setting(
                case, "learning_rate", "warning", name, schedule.until,
                f"The learning rate is 0 after {schedule.until:.0%} of the run.",
                "Let it fall to 0 at the end.", case.retrain(f"{name}=linear:{schedule.start:g}:0"),
            )  # fmt: skip
    found = case.get("train/lr", FEW_POINTS)
    if found is None:
        return None
    counts, values = found
    cause, step = "Nothing is learned with a step size of 0.", "Look at the schedule."
    nothing = np.flatnonzero(values == 0)
    if len(nothing) > 0.25 * len(values):
        i = int(nothing[0])
        severity: Severity = "error" if len(nothing) == len(values) else "warning"
        return _curve(
            case, "learning_rate", severity, "train/lr", 0.0, cause, step, at=int(counts[i])
        )
    if float(values.max()) > 0.03:
        return _curve(
            case, "learning_rate", _too_high(case, float(values.max())), "train/lr",
            float(values.max()), "Adam moves every weight by about this much in every step.",
            "Use 1e-4 to 3e-3.",
        )  # fmt: skip
    return None


def discount(case: Case) -> Finding | None:
    """A discount that hides what an episode is about."""
    gamma, length = case.number("gamma"), case.late(LENGTH)
    if gamma is None or case.improved or gamma >= 1 or case.solved:
        return None
    horizon = 1 / (1 - gamma)
    short = length is not None and horizon < 0.05 * length
    if not short and gamma >= 0.6:
        return None
    more = "" if length is None else f", and episodes take {number(length)}"
    return _setting(
        case, "discount", "warning", "gamma", gamma,
        f"With this discount the agent looks about {number(horizon)} steps ahead{more}.",
        "Raise it.", case.retrain("gamma=0.99"),
    )  # fmt: skip


def replay_ratio(case: Case) -> Finding | None:
    """Experience that is never or hardly learned from, or learned from very often."""
    starts = case.number("learning_starts")
    if case.kind != "assay" or case.updates is None or case.unit != "env_steps":
        return None
    if case.updates == 0 and case.count > 0 and case.status != "running":
        return Finding(
            "replay_ratio", "error", f"updates is 0 at env_steps={case.count:,}",
            "Learning never began: the run is shorter than what comes before the first update.",
            "Train for longer, or begin earlier.",
            case.retrain("learning_starts=1000") if starts else case.retrain("env_steps=100000"),
            "updates", case.count, 0.0,
        )  # fmt: skip
    batch = case.number("batch_size")
    if starts is None or batch is None or case.count <= starts or not case.updates:
        return None
    times = case.updates * batch / (case.count - starts)
    if 1 <= times <= 1e5:
        return None
    few = times < 1
    return Finding(
        "replay_ratio", "warning",
        f"every step is learned from {_exact(times)} times (updates={case.updates:,}, "
        f"batch_size={batch:g}, env_steps={case.count:,})",
        "There are too few updates for so many steps." if few else
        "There are so many updates on so few steps that the networks fit noise.",
        "Update more often." if few else "Update less often, or reset and regularise critics.",
        case.retrain("train_every=1") if few else case.retrain("updates=1"),
        "updates", case.count, times,
    )  # fmt: skip


def value_support(case: Case) -> Finding | None:
    """Returns that lie outside of what a categorical value can say."""
    late = case.late("train/mass_clipped")
    if late is None or late < 0.2:
        return None
    return _curve(
        case, "value_support", "warning", "train/mass_clipped", late,
        "The support of the values (v_min, v_max) is too narrow for these returns.",
        "Widen it, or normalise rewards.", case.retrain("normalize_reward=true"),
    )  # fmt: skip


# ---------------------------------------------------------------------- networks and inputs


def dead_units(case: Case) -> Finding | None:
    """Hidden units that give the same on every observation."""
    if case.probe is None or not case.probe.units:
        return None
    worst = max(case.probe.units, key=lambda layer: layer.dead / layer.size)
    share = worst.dead / worst.size
    if share < 0.85:
        return None
    return Finding(
        "dead_units", "error" if share > 0.97 else "warning",
        f"{worst.dead} of {worst.size} units of layer {worst.layer} give the same on "
        f"{worst.rows} observations (checkpoint {case.probe.path.name})",
        "Steps that were too large pushed them to where their gradient is 0, or the inputs are far "
        "from 0.",
        "Lower the learning rate, normalise observations, or use another activation.",
        case.retrain(*_lower_rates(case), "normalize_obs=true"), "dead_units", case.count, share,
    )  # fmt: skip


def stale_normalizer(case: Case) -> Finding | None:
    """A normaliser that stopped, or whose statistics are not those of what is seen now."""
    found = case.probe
    if found is None or found.seen is None or case.unit != "env_steps" or not case.count:
        return None
    share = found.seen / case.count
    if share < 0.5:
        return Finding(
            "stale_normalizer", "error",
            f"the normaliser has seen {found.seen:,} observations at env_steps={case.count:,}",
            "It stopped: it is frozen, or not shown what is collected.",
            "Let it see every observation that is collected.",
            f"assay runs show {case.source}", "normaliser_count", case.count, share,
        )  # fmt: skip
    if found.distance is not None and found.distance > 5:
        return Finding(
            "stale_normalizer", "warning",
            f"observations are {_exact(found.distance)} deviations from the normaliser's mean at "
            f"env_steps={case.count:,}",
            "What the agent sees has changed since the statistics were made, or they are those of "
            "something else.",
            "Look at what the environment returns, and train again from the start.",
            case.check_env(), "normaliser_distance", case.count, found.distance,
        )  # fmt: skip
    return None


def inputs_unscaled(case: Case) -> Finding | None:
    """Observations that are too large for a network, and not normalised."""
    found = case.probe
    if found is None or found.size is None or found.size < 50 or case.improved is not False:
        return None
    return Finding(
        "inputs_unscaled", "warning",
        f"the largest feature of an observation is {_exact(found.size)} in the mean, and nothing "
        "normalises it",
        "Networks learn slowly from inputs far beyond 10, and saturate.",
        "Normalise observations.", case.retrain("normalize_obs=true"),
        "observation_size", case.count, found.size,
    )  # fmt: skip


# ---------------------------------------------------------------------- returns


def never_improves(case: Case) -> Finding | None:
    """Returns that never rise above those of the first, untrained policy."""
    if case.improved is not False or case.solved:
        return None
    shown = case.progress[0]
    short = case.count < 10_000 if case.unit == "env_steps" else case.count < 1000
    return _curve(
        case, "never_improves", "warning" if short else "error", shown.metric, shown.end,
        "Nothing is learned: see the other findings; if there are none, the budget is too small, "
        "or the reward too rare to be found by chance.",
        "Try an algorithm that learns from less, or train longer; check the environment first.",
        case.check_env(), more=f"it began at {_exact(shown.start)}, and the best fifth of the run "
        f"has {_exact(shown.best)}",
    )  # fmt: skip


def plateau(case: Case) -> Finding | None:
    """Returns that have not moved for the second half of the run, short of what is possible."""
    found = _main(case)
    if found is None or not found.improved or case.solved:
        return None
    series = case.get(found.metric, 8)
    if series is None:
        return None
    counts, values = binned(series)
    half = values[len(values) // 2 :]
    if len(half) < 4 or found.end < found.start:
        return None
    first, second = np.array_split(half, 2)
    gain, reached = float(second.mean() - first.mean()), found.best - found.start
    if abs(gain) > max(0.03 * reached, 1e-9) or float(half.std()) > 0.1 * reached:
        return None
    wanted = case.threshold
    missing = wanted is not None and wanted - found.end > 0.3 * (wanted - found.start)
    return _curve(
        case, "plateau", "warning" if missing else "info", found.metric, found.end,
        "The agent has learned what it can with these settings, or this is the best there is.",
        "If more should be possible, look at exploration, the learning rate's schedule and the "
        "network's size.",
        case.retrain("lr=1e-4") if missing else f"assay plot {case.source} --text"
        if case.kind == "assay" else None,
        more=f"it has changed by {_exact(gain)} since {case.unit}="
        f"{int(counts[len(values) // 2]):,}"
        + (f"; solved is {_exact(case.threshold)}" if missing and case.threshold else ""),
    )  # fmt: skip


def collapse_of_returns(case: Case) -> Finding | None:
    """Returns that rose and fell back to where they began."""
    found = _main(case)
    if found is None or not found.improved or case.get(found.metric, 8) is None:
        return None
    lost = (found.best - found.end) / (found.best - found.start)
    if lost < 0.8:
        return None
    return _curve(
        case, "collapse_of_returns", "warning", found.metric, found.end,
        "Learning is not stable: steps are too large for a policy that is good already, or the "
        "replay has lost what it learned from.",
        "Let the learning rate fall over the run, or keep the best checkpoint.",
        case.retrain(*_falling_rates(case)),
        more=f"the best fifth of the run has {_exact(found.best)}, the start {_exact(found.start)}",
    )  # fmt: skip


def evaluation_gap(case: Case) -> Finding | None:
    """Evaluations far below what training collects at the same time."""
    trained, evaluated = case.get(RETURN, 5), case.get(EVALUATION, 3)
    if trained is None or evaluated is None or case.kind != "assay":
        return None
    shown = next(one for one in case.progress if one.metric == RETURN)
    start, train_end = shown.start, shown.end
    eval_end = float(np.mean(tail(evaluated[1], 0.3)))
    if not shown.improved or eval_end >= start + 0.3 * (train_end - start):
        return None
    return _curve(
        case, "evaluation_gap", "warning", EVALUATION, eval_end,
        "The deterministic policy fails where the sampled one works, or evaluation sees another "
        "environment (other settings, wrappers, normalisation).",
        "Evaluate more episodes, watch one, and compare the environments.",
        f"assay evaluate {case.source} --episodes 100 --video",
        more=f"training collects {_exact(train_end)} there, and began at {_exact(start)}",
    )  # fmt: skip


def reward_hacking(case: Case) -> Finding | None:
    """Returns that rise while what is really wanted falls, or never happens."""
    for proxy in (EVALUATION, RETURN):
        for wanted in ("eval/success_rate", "rollout/true_return"):
            returns, truths = case.get(proxy, 5), case.get(wanted, 5)
            if returns is None or truths is None:
                continue
            returns, truths = binned(returns, 20), binned(truths, 20)
            rising = _change(returns[1]) > 1.0
            never = wanted == "eval/success_rate" and len(truths[1]) >= 8 and not truths[1].any()
            if not rising or not (never or _change(truths[1]) < -1.0):
                continue
            return _curve(
                case, "reward_hacking", "warning", wanted, float(truths[1][-1]),
                "The agent gets reward in a way that was not meant: a part of the reward can be "
                "collected without doing the task.",
                "Watch episodes, and look at the parts of the reward one by one.",
                f"assay evaluate {case.source} --video" if case.kind == "assay" else None,
                at=int(truths[0][-1]),
                more=f"it began at {_exact(float(truths[1][0]))}, while {proxy} went from "
                f"{_exact(float(returns[1][0]))} to {_exact(float(returns[1][-1]))}",
            )  # fmt: skip
    return None


# ---------------------------------------------------------------------- the environment


def episodes_end_at_once(case: Case) -> Finding | None:
    """Episodes of one step."""
    found = case.get(LENGTH, 3) or case.get("eval/length_mean", 3)
    if found is None or float(found[1].max()) > 1.0 + 1e-9:
        return None
    metric = LENGTH if LENGTH in case.series else "eval/length_mean"
    return _curve(
        case, "episodes_end_at_once", "error", metric, float(found[1][-1]),
        "The environment reports an end in its first step: flags in the wrong order, or a start "
        "state that counts as an end. (A bandit is like this on purpose.)",
        "Check the environment.", case.check_env(), more="never more",
    )  # fmt: skip


def no_episode_ends(case: Case) -> Finding | None:
    """Not one episode ended, so there are no returns to learn from or to show."""
    if case.kind != "assay" or case.unit != "env_steps" or case.episodes or case.count < 5000:
        return None
    per_env = case.count / max(1, case.run.get("num_envs") or 1)
    if per_env < 1000:
        return None
    return Finding(
        "no_episode_ends", "warning",
        f"episodes is 0 at env_steps={case.count:,} ({per_env:,.0f} in each environment)",
        "The environment has no time limit, or never reports an end.",
        "Limit its episodes.", case.retrain("max_episode_steps=1000"),
        "episodes", case.count, 0.0,
    )  # fmt: skip


def no_reward_signal(case: Case) -> Finding | None:
    """Every episode has the same return, so that nothing can be learned from it."""
    found = case.get(RETURN, _SIGNAL_POINTS) or case.get(EVALUATION, _SIGNAL_POINTS)
    if found is None or case.solved:
        return None
    lengths = case.get(LENGTH)
    values = found[1]
    if np.ptp(values) > 1e-6 * max(1.0, abs(float(values[0]))):
        return None
    evaluated = case.get(EVALUATION)
    if evaluated is not None and np.ptp(np.append(evaluated[1], values[0])) > 1e-6:
        return None
    if lengths is not None and float(lengths[1].max()) <= 1.0 + 1e-9 and values[0] != 0:
        return None  # episodes of one step: that is the finding
    metric = RETURN if case.get(RETURN, _SIGNAL_POINTS) else EVALUATION
    return _curve(
        case, "no_reward_signal", "error", metric, float(values[-1]),
        "The reward is constant, never reached by chance, or lost in a wrapper.",
        "Check the rewards of random actions; make the reward denser, or explore by curiosity "
        "(rnd).",
        case.check_env(), more=f"it has been exactly that in all {len(values)} log lines",
    )  # fmt: skip


def always_truncated(case: Case) -> Finding | None:
    """Evaluated episodes are all cut by a time limit, none ends by itself."""
    episodes = [one for _, each in case.evaluations[-3:] for one in each]
    if len(episodes) < 5 or any(one.get("terminated", True) for one in episodes):
        return None
    if case.solved:
        return None
    length = max(int(one.get("length", 0)) for one in episodes)
    return Finding(
        "always_truncated", "info",
        f"all of the last {len(episodes)} evaluated episodes were truncated, the longest after "
        f"{length:,} steps (eval/)",
        "The task has no end of its own, or the agent never reaches it.",
        "Nothing, if the task is like that; otherwise raise the limit.",
        case.retrain(f"max_episode_steps={2 * length}"), "truncated", case.count, 1.0,
    )  # fmt: skip


# ---------------------------------------------------------------------- time


def slows_down(case: Case) -> Finding | None:
    """Steps that take several times as long at the end as at the start."""
    if case.clock is None or len(case.clock) < 20:
        return None
    learning = case.clock[case.clock[:, 1] > 0]
    learning = learning[np.append(True, np.diff(learning[:, 0]) > 0)] if len(learning) else learning
    if len(learning) < 16:
        return None
    steps, seconds = np.diff(learning[:, 0]), np.diff(learning[:, 2])
    if (seconds <= 0).any():
        return None
    quarter = len(steps) // 4
    early = float(np.median(steps[:quarter] / seconds[:quarter]))
    late = float(np.median(steps[-quarter:] / seconds[-quarter:]))
    if seconds.sum() < 20 or late > 0.2 * early:
        return None
    return Finding(
        "slows_down", "warning",
        f"{number(late)} {case.unit} per second in the last quarter, {number(early)} in the first "
        f"(metrics.jsonl, {case.unit}={case.count:,})",
        "Something grows: memory that swaps, an environment that leaks, a replay that leaves the "
        "cache; or the machine was busy.",
        "Watch the memory of the process, and check the environment for leaks.",
        f"assay envs suite {case.env}" if case.made_by_id else None,
        f"time/{case.unit}_per_second", case.count, late,
    )  # fmt: skip


def bottleneck(case: Case) -> Finding | None:
    """Where most of the time goes."""
    shares = {
        "updates": case.late("time/update_share"),
        "evaluations": case.late("time/evaluation_share"),
    }
    update, evaluation = shares["updates"], shares["evaluations"]
    if update is None or evaluation is None:
        return None
    shares["acting and the environment"] = max(0.0, 1 - update - evaluation)
    where, share = max(((name, value or 0.0) for name, value in shares.items()), key=lambda p: p[1])
    if share < 0.6:
        return None
    advice = {
        "updates": ("The networks or the number of updates take the time.",
                    "Compile the steps, use a GPU for large networks, or update less often.",
                    "compile=true"),
        "evaluations": ("Evaluations are long or frequent.", "Evaluate less often, or on fewer "
                        "episodes.", "eval_episodes=5"),
        "acting and the environment": ("The environment is slow, or there are few copies of it.",
                                       "Step more copies, in processes of their own.",
                                       "backend=processes"),
    }[where]  # fmt: skip
    metric = {"updates": "time/update_share", "evaluations": "time/evaluation_share"}.get(where)
    return Finding(
        "bottleneck", "info", f"{share:.0%} of the time goes to {where}"
        + (f" ({metric})" if metric else ""), advice[0], advice[1], case.retrain(advice[2]),
        metric, case.count, share,
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    diverged, failed, loss_explodes, values_explode, values_do_not_fit, temperature,
    learning_rate, policy_does_not_move, entropy_collapse, stays_random, kl_spikes, clip_fraction,
    discount, replay_ratio, value_support, dead_units, stale_normalizer, inputs_unscaled,
    episodes_end_at_once, no_episode_ends, no_reward_signal, always_truncated,
    never_improves, plateau, collapse_of_returns, evaluation_gap, reward_hacking,
    slows_down, bottleneck,
)  # fmt: skip


# ---------------------------------------------------------------------- what rules share


def _setting(
    case: Case, name: str, severity: Severity, setting: str, value: float, cause: str, step: str,
    command: str | None,
) -> Finding:  # fmt: skip
    evidence = f"{setting}={case.settings[setting]} (config.yaml)"
    return Finding(name, severity, evidence, cause, step, command, setting, None, value)


def _lower_rates(case: Case) -> tuple[str, ...]:
    """Return settings with a tenth of each learning rate, at most what usually works."""
    rates = case.learning_rates
    if not rates:
        return ("lr=1e-4",)
    return tuple(f"{name}={min(rate.start / 10, 3e-4) or 3e-4:g}" for name, rate in rates.items())


def _too_high(case: Case, rate: float) -> Severity:
    """Return how bad a learning rate is that is far too high; some runs learn all the same."""
    return "error" if rate >= 1 and not case.improved else "warning"


def _falling_rates(case: Case) -> tuple[str, ...]:
    """Return settings by which each learning rate falls to 0 over the run."""
    starts = {name: rate.start for name, rate in case.learning_rates.items()} or {"lr": 3e-4}
    return tuple(f"{name}=linear:{start or 3e-4:g}:0" for name, start in starts.items())


def _is_discrete(case: Case, entropy: np.ndarray) -> bool:
    if case.probe is not None and case.probe.choices is not None:
        return True
    if case.kind == "assay" and case.probe is not None:
        return False
    return bool((entropy >= 0).all())


def _largest_entropy(case: Case, values: np.ndarray) -> float:
    """Return the entropy of uniform actions, or the largest at the start where that is unknown."""
    if case.probe is not None and case.probe.choices is not None:
        return math.log(case.probe.choices)
    return float(values[: max(1, len(values) // 5)].max())


def _largest_value(case: Case) -> float | None:
    """Return a bound of what a state can be worth, by the returns that were collected."""
    found, lengths = case.get(RETURN), case.get(LENGTH)
    evaluated, eval_lengths = case.get(EVALUATION), case.get("eval/length_mean")
    gamma = case.number("gamma") or 0.99
    ahead = 1 / (1 - gamma) if gamma < 1 else 0.0  # without a discount, the return is the bound
    bounds = [1.0]
    for returns, steps in ((found, lengths), (evaluated, eval_lengths)):
        if returns is None:
            continue
        largest = float(np.abs(returns[1]).max())
        bounds.append(largest)
        if steps is not None:
            shortest = max(1.0, float(np.median(steps[1])))
            bounds.append(largest / shortest * ahead)
    if len(bounds) == 1:
        return None
    bonus = 0.0
    alpha, entropy = case.get("train/alpha"), case.get(ENTROPY)
    if alpha is not None and entropy is not None:
        bonus = float(np.median(alpha[1])) * float(np.abs(entropy[1]).max()) * ahead
    return max(bounds) + bonus


def _main(case: Case) -> Progress | None:
    """Return how returns went by the curve that has more to say."""
    for one in case.progress:
        if one.metric == RETURN or case.get(EVALUATION, 8) is not None:
            return one
    return case.progress[0] if case.progress else None


def _change(values: np.ndarray) -> float:
    """Return how far a curve moved from its first to its last quarter, in its own deviations."""
    quarter = max(1, len(values) // 4)
    first, last = values[:quarter], values[-quarter:]
    spread = max(float(first.std()), float(last.std()), 1e-9)
    moved = float(last.mean() - first.mean())
    return moved / spread if abs(moved) > 1e-9 else 0.0


def describe(rule: Rule) -> tuple[str, str]:
    """Return a rule's name and what it looks for."""
    text = (rule.__doc__ or "").strip().partition("\n")[0]
    return rule.__name__, re.sub(r"\.$", "", text)

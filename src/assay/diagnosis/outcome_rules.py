"""Rules about what comes of it: returns, the environment, time."""

from __future__ import annotations

import numpy as np

from assay.diagnosis.case import (
    EVALUATION,
    LENGTH,
    RETURN,
    Case,
    Finding,
    binned,
    curve,
    exact,
    falling_rates,
    main_curve,
    moved,
    tail,
)
from assay.evaluation.formatting import number

_SIGNAL_POINTS = 5  # log lines without any difference that count as none


# ---------------------------------------------------------------------- returns


def never_improves(case: Case) -> Finding | None:
    """Returns that never rise above those of the first, untrained policy."""
    if case.improved is not False or case.solved or case.rivals:
        return None
    shown = case.progress[0]
    short = case.count < 10_000 if case.unit == "env_steps" else case.count < 1000
    return curve(
        case, "never_improves", "warning" if short else "error", shown.metric, shown.end,
        "Nothing is learned: see the other findings; if there are none, the budget is too small, "
        "or the reward too rare to be found by chance.",
        "Try an algorithm that learns from less, or train longer; check the environment first.",
        case.check_env(), more=f"it began at {exact(shown.start)}, and the best fifth of the run "
        f"has {exact(shown.best)}",
    )  # fmt: skip


def plateau(case: Case) -> Finding | None:
    """Returns that have not moved for the second half of the run, short of what is possible."""
    found = main_curve(case)
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
    return curve(
        case, "plateau", "warning" if missing else "info", found.metric, found.end,
        "The agent has learned what it can with these settings, or this is the best there is.",
        "If more should be possible, look at exploration, the learning rate's schedule and the "
        "network's size.",
        case.retrain("lr=1e-4") if missing else f"assay plot {case.source} --text"
        if case.kind == "assay" else None,
        more=f"it has changed by {exact(gain)} since {case.unit}="
        f"{int(counts[len(values) // 2]):,}"
        + (f"; solved is {exact(case.threshold)}" if missing and case.threshold else ""),
    )  # fmt: skip


def collapse_of_returns(case: Case) -> Finding | None:
    """Returns that rose and fell back to where they began."""
    found = main_curve(case)
    if found is None or not found.improved or case.get(found.metric, 8) is None:
        return None
    lost = (found.best - found.end) / (found.best - found.start)
    if lost < 0.8:
        return None
    return curve(
        case, "collapse_of_returns", "warning", found.metric, found.end,
        "Learning is not stable: steps are too large for a policy that is good already, or the "
        "replay has lost what it learned from.",
        "Let the learning rate fall over the run, or keep the best checkpoint.",
        case.retrain(*falling_rates(case)),
        more=f"the best fifth of the run has {exact(found.best)}, the start {exact(found.start)}",
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
    return curve(
        case, "evaluation_gap", "warning", EVALUATION, eval_end,
        "The deterministic policy fails where the sampled one works, or evaluation sees another "
        "environment (other settings, wrappers, normalisation).",
        "Evaluate with sampled actions: if that works, chance is what helps. Otherwise compare the "
        "environments.",
        f"assay evaluate {case.source} --episodes 100 --sampled",
        more=f"training collects {exact(train_end)} there, and began at {exact(start)}",
    )  # fmt: skip


def reward_hacking(case: Case) -> Finding | None:
    """Returns that rise while what is really wanted falls, or never happens."""
    for proxy in (EVALUATION, RETURN):
        for wanted in ("eval/success_rate", "rollout/true_return"):
            returns, truths = case.get(proxy, 5), case.get(wanted, 5)
            if returns is None or truths is None:
                continue
            returns, truths = binned(returns, 20), binned(truths, 20)
            rising = moved(returns[1]) > 1.0
            never = wanted == "eval/success_rate" and len(truths[1]) >= 8 and not truths[1].any()
            if not rising or not (never or moved(truths[1]) < -1.0):
                continue
            return curve(
                case, "reward_hacking", "warning", wanted, float(truths[1][-1]),
                "The agent gets reward in a way that was not meant: a part of the reward can be "
                "collected without doing the task.",
                "Watch episodes, and look at the parts of the reward one by one.",
                f"assay evaluate {case.source} --video" if case.kind == "assay" else None,
                at=int(truths[0][-1]),
                more=f"it began at {exact(float(truths[1][0]))}, while {proxy} went from "
                f"{exact(float(returns[1][0]))} to {exact(float(returns[1][-1]))}",
            )  # fmt: skip
    return None


# ---------------------------------------------------------------------- the environment


def episodes_end_at_once(case: Case) -> Finding | None:
    """Episodes of one step."""
    found = case.get(LENGTH, 3) or case.get("eval/length_mean", 3)
    if found is None or float(found[1].max()) > 1.0 + 1e-9:
        return None
    metric = LENGTH if LENGTH in case.series else "eval/length_mean"
    return curve(
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
    if case.rivals:
        team = case.algorithm in ("qmix", "vdn") or case.settings.get("reward") == "team"
        return curve(
            case, "rivals", "error" if team else "info", metric, float(values[-1]),
            "What some agents get, others lose: the team's reward, the mean over agents, is 0 "
            "whatever they do.",
            "Learn from each agent's own reward." if team else
            "Look at each agent's own return (eval/AGENT/return_mean); of equal rivals it is 0.",
            f"assay train ippo {case.env}" if team and case.made_by_id else None,
        )  # fmt: skip
    return curve(
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

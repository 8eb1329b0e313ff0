"""Rules about what is learned: losses, values, policies, settings, networks."""

from __future__ import annotations

import numpy as np

from assay.diagnosis.case import (
    CLIPPED,
    ENTROPY,
    FEW_POINTS,
    KL,
    LENGTH,
    Case,
    Finding,
    Severity,
    binned,
    curve,
    exact,
    is_discrete,
    largest_entropy,
    largest_value,
    lower_rates,
    of_setting,
    tail,
    too_high,
)
from assay.evaluation.formatting import number

_LOSS = r"loss"
_LEARNED = r"loss|entropy|_kl$|grad_norm|q_mean|value_mean|target_mean|alpha"


# ---------------------------------------------------------------------- numbers that blow up


def diverged(case: Case) -> Finding | None:
    """Numbers that are not finite: a loss, an entropy, a value, or what training stopped at."""
    cause = "A step was too large: the learning rate, the rewards or the inputs are too big."
    step = "Train again with a tenth of the learning rate, and with normalised inputs and rewards."
    command = case.retrain(*lower_rates(case))
    if case.error is not None and "not finite" in case.error:
        evidence = f"run.json says: {case.error.splitlines()[0]}"
        return Finding("diverged", "error", evidence, cause, step, command, at=case.count)
    for name in case.matching(_LEARNED):
        counts, values = case.series[name]
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            i = int(bad[0])
            return curve(
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
            return curve(
                case, "loss_explodes", "error", name, late,
                "Values or weights grow without bound: the learning rate is too high, targets "
                "follow too fast, or rewards are not scaled.",
                "Train again with a tenth of the learning rate; clip gradients, scale rewards.",
                case.retrain(*lower_rates(case)), more=f"it began at {exact(early)}",
            )  # fmt: skip
    return None


def values_explode(case: Case) -> Finding | None:
    """Learned values far beyond any return that was ever collected (overestimation)."""
    if case.settings.get("normalize_reward") or case.rivals:
        return None  # values are in units that change over the run, or of agents, not the team
    bound = largest_value(case)
    for name in case.matching(r"^train/(q_mean|value_mean|target_mean)$"):
        found = case.get(name, FEW_POINTS)
        if found is None or bound is None:
            continue
        late = float(np.median(tail(found[1], 0.2)))
        if abs(late) > 5 * bound:
            return curve(
                case, "values_explode", "error" if abs(late) > 50 * bound else "warning", name,
                late,
                "Bootstrapped targets feed on their own errors: the learning rate or the discount "
                "is too high, or the target network follows too fast.",
                "Lower the learning rate, let targets follow more slowly, use twin critics or "
                "double Q-learning; check that episode ends are reported as terminated.",
                case.retrain(*lower_rates(case)),
                more=f"no discounted return can be beyond {exact(bound)}",
            )  # fmt: skip
    return None


def values_do_not_fit(case: Case) -> Finding | None:
    """A value function that predicts returns worse than a constant would."""
    late = case.late("train/explained_variance", 0.5)
    if late is None or late > -0.5:
        return None
    return curve(
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
    return curve(
        case, "temperature", "error", "train/alpha", late,
        "The policy cannot reach the target entropy, so that its weight grows without bound: the "
        "step size of the temperature is too high, or the target too.",
        "Lower the learning rate or the target entropy, or fix the temperature.",
        case.retrain(*lower_rates(case)), more=f"it began at {exact(early)}",
    )  # fmt: skip


# ---------------------------------------------------------------------- the policy


def entropy_collapse(case: Case) -> Finding | None:
    """A policy that stops exploring before returns rise."""
    found = case.get(ENTROPY, FEW_POINTS)
    if found is None or case.improved or case.solved:
        return None
    counts, values = binned(found)
    if is_discrete(case, values):
        top = largest_entropy(case, values)
        limit, words = 0.05 * top, f"the largest is {exact(top)}"
    else:
        # A Gaussian of deviation 0.02 in each dimension; the number of dimensions is not known.
        limit, words = -2.5, "which is a deviation of a hundredth in each dimension, or less"
    below = values < limit
    stays = np.flatnonzero(~below)
    first = 0 if not len(stays) else int(stays[-1]) + 1
    if first > 0.75 * len(values) or first >= len(values):
        return None
    return curve(
        case, "entropy_collapse", "error", ENTROPY, float(values[first]),
        "The policy became deterministic before it had found anything: steps are too large, or "
        "nothing rewards exploration.",
        "Raise the entropy bonus and lower the learning rate.",
        case.retrain("entropy_coef=0.01", *lower_rates(case)), at=int(counts[first]),
        more=f"{words}, and returns did not rise",
    )  # fmt: skip


def stays_random(case: Case) -> Finding | None:
    """A policy that is as random at the end as at the start."""
    found = case.get(ENTROPY, FEW_POINTS)
    if found is None or not is_discrete(case, found[1]):
        return None
    values = found[1]
    top, late = largest_entropy(case, values), float(np.median(tail(values)))
    if late < 0.98 * top:
        return None
    coef = case.settings.get("entropy_coef")
    huge = isinstance(coef, (int, float)) and coef > 0.1
    # A policy that is almost uniform may still be right about what is best.
    if not huge and (case.improved is not False or case.solved):
        return None
    return curve(
        case, "stays_random", "error", ENTROPY, late,
        "The entropy bonus outweighs the rewards, or no gradient reaches the policy.",
        "Lower the entropy bonus; if it is small already, look at the rewards and the step size.",
        case.retrain("entropy_coef=0.01"),
        more=f"the largest is {exact(top)}" + (f", and entropy_coef={coef}" if coef else ""),
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
    return curve(
        case, "kl_spikes", severity, KL, float(values[top]),
        "Steps are too large for the data of one rollout: the learning rate is too high, or there "
        "are too many epochs.",
        "Lower the learning rate, or stop epochs early with target_kl.",
        case.retrain("target_kl=0.03", *lower_rates(case)), at=int(counts[top]),
        more=f"the median is {exact(middle)}",
    )  # fmt: skip


def clip_fraction(case: Case) -> Finding | None:
    """Most of each batch is clipped, and so teaches nothing."""
    middle = case.late(CLIPPED, 1.0)
    if middle is None or middle < 0.5:
        return None
    return curve(
        case, "clip_fraction", "warning", CLIPPED, middle,
        "The policy leaves the trust region in the first steps of each update: the learning rate "
        "is too high, or the clip range too narrow.",
        "Lower the learning rate, or use clip=0.2.",
        case.retrain("clip=0.2", *lower_rates(case)), more="the median of the run",
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
            return curve(
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
            return of_setting(
                case, "learning_rate", "error", name, 0.0, "Nothing is learned with a step size "
                "of 0.", "Set it.", case.retrain(f"{name}=3e-4"),
            )  # fmt: skip
        if top > 0.03:
            return of_setting(
                case, "learning_rate", too_high(case, top), name, top,
                "Adam moves every weight by about this much in every step.",
                "Use 1e-4 to 3e-3.", case.retrain(f"{name}=3e-4"),
            )  # fmt: skip
        if schedule.end == 0 and schedule.until < 0.75:
            return of_setting(
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
        return curve(
            case, "learning_rate", severity, "train/lr", 0.0, cause, step, at=int(counts[i])
        )
    if float(values.max()) > 0.03:
        return curve(
            case, "learning_rate", too_high(case, float(values.max())), "train/lr",
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
    return of_setting(
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
        f"every step is learned from {exact(times)} times (updates={case.updates:,}, "
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
    return curve(
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
        case.retrain(*lower_rates(case), "normalize_obs=true"), "dead_units", case.count, share,
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
            f"observations are {exact(found.distance)} deviations from the normaliser's mean at "
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
        f"the largest feature of an observation is {exact(found.size)} in the mean, and nothing "
        "normalises it",
        "Networks learn slowly from inputs far beyond 10, and saturate.",
        "Normalise observations.", case.retrain("normalize_obs=true"),
        "observation_size", case.count, found.size,
    )  # fmt: skip

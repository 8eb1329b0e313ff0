"""The whole loop in one call: train, sample, ask, fit, and go on with the new reward.

As in arXiv:1706.03741, with the replay relabelled by every new model as in arXiv:2106.05091. The
first comparisons are of random actions, the others are asked for in the first half of the budget.
Everything is in one directory: `pairs` (the comparisons), `models` (one for each round), `run` and
`rounds.json`. Stopped and called again, it goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from assay.api import Run, configure, open_run, progress_of, resume, train
from assay.core.errors import ConfigError, RunError
from assay.core.seeding import derive_seed
from assay.core.wording import counted
from assay.envs.make import look_at
from assay.experts.reward_model import FILE, FitSettings, RewardModel, load_model
from assay.loops.collect import EPISODE_WINDOW
from assay.loops.config import RunConfig
from assay.loops.events import STOP, Event, Logged
from assay.loops.run_settings import RewardedSettings
from assay.preferences.files import SET_FILE, PreferenceSet
from assay.preferences.fit import fit
from assay.preferences.pairs import By
from assay.preferences.sample import Actor, Source, random_source, sample, source_of
from assay.runs import checkpoint
from assay.runs.directory import RUN_FILE
from assay.runs.files import dump_json, read_json_object, run_error, write_atomic

Ask = Callable[[PreferenceSet], None]  # returns when pairs are answered, or not all of them
_ROUNDS = "rounds.json"
_TRUE, _LEARNED = "rollout/return_mean", "rollout/learned_return_mean"
_LENGTH = "rollout/length_mean"
_FALL = 0.1  # of the range of true returns that a fall has to have to count
_ERRORS = 3.0  # standard errors that it has to have as well


@dataclass(frozen=True, slots=True)
class Plan:
    """How comparisons are spread over a run."""

    pairs: int = 700  # comparisons in all
    rounds: int = 4  # times that the agent's own behaviour is asked about, after random actions
    length: int = 25  # steps of a segment
    episodes: int = 20  # most episodes that the segments of a round are of
    by: By = "disagreement"  # how pairs are chosen, once there is a model
    actor: Actor = "policy"  # whose episodes they are, as of `source_of`
    seed: int = 1  # fixes all of it

    def count(self, number: int) -> int:
        """Return how many pairs a round asks for, the first one of random actions."""
        share, more = divmod(self.pairs, self.rounds + 1)
        return share + (number < more)

    def reach(self, number: int, total: int) -> int:
        """Return how far the run is trained with the model of a round."""
        return total if number == self.rounds else total * (number + 1) // (2 * self.rounds)


@dataclass(frozen=True, slots=True)
class Round:
    """What happened with the model of one round."""

    number: int  # 0 for the one of random actions
    env_steps: int  # how far the run was trained with it
    comparisons: int  # those that it was fitted to
    accuracy: float | None  # share of held-out answers that it predicts
    calibration_error: float | None  # of its probabilities, on the same answers
    true_return: float | None  # mean return of the last episodes by the environment's reward
    learned_return: float | None  # the same by the model
    hacked: bool  # whether the learned return rose while the true one fell, beyond noise
    compared: str = ""  # what that was judged by, in words; empty if there was too little


@dataclass(frozen=True, slots=True)
class Learned:
    """What the loop made."""

    run: Run  # the run
    rounds: list[Round]  # one after the other
    extra_steps: int  # environment steps that were played to be compared, beside those of the run


def learn(
    algorithm: str,
    env: str,
    out: Path | str,
    ask: Ask,
    *,
    plan: Plan | None = None,
    settings: Mapping[str, Any] | None = None,
    fitting: FitSettings | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Learned:
    """Train an agent on comparisons, asking for more while it learns.

    Args:
        algorithm: One that takes `reward_model`.
        env: The environment's id.
        out: The directory of all of it; made if missing.
        ask: Has the open pairs of a set answered.
        plan: How many comparisons, when, and of what.
        settings: Of the run, as of `assay.train`.
        fitting: Of the reward model.
        tell: Called with what is going on.

    Raises:
        ConfigError: A setting is wrong, or the directory is of another loop.
        RunError: Pairs are left open; called again, it asks for them again.
    """
    plan, fitting, place = plan or Plan(), fitting or FitSettings(), Path(out)
    given = {**(settings or {}), "seed": plan.seed}
    config = _configured(algorithm, env, plan, given)
    asked = {
        "algorithm": config.algorithm, "env": env, "settings": given, "plan": asdict(plan),
        "fit": fitting.model_dump(mode="json"),
    }  # fmt: skip
    _begin(place, asked)
    rounds = _finished(place)
    for number in range(len(rounds), plan.rounds + 1):
        source = partial(_source, config, place / "run", plan, number)
        model = _model(place, plan, fitting, number, source, ask, tell)
        run = _train(config, given, place, plan.reach(number, config.run.total), number)
        rounds.append(_round(run, model, number, rounds))
        tell(_line(rounds[-1], config.run.total))
        write_atomic(place / _ROUNDS, dump_json({"rounds": [asdict(one) for one in rounds]}))
    return Learned(open_run(place / "run"), rounds, _extra_steps(place))


def _finished(place: Path) -> list[Round]:
    """Return the rounds that an earlier call has finished."""
    if not (place / _ROUNDS).is_file():
        return []
    return [Round(**one) for one in read_json_object(place / _ROUNDS)["rounds"]]


def _configured(algorithm: str, env: str, plan: Plan, given: Mapping[str, Any]) -> RunConfig:
    config, _ = configure(algorithm, env, given, look=partial(look_at, env))
    if not isinstance(config.run, RewardedSettings):
        raise ConfigError(
            f"{config.algorithm} takes no learned reward.", "Choose ppo, sac or redq."
        )
    if "reward_model" in given:
        raise ConfigError("The loop fits reward_model itself.", "Leave reward_model out.")
    if plan.rounds < 1 or plan.pairs < plan.rounds + 1:
        raise ConfigError(
            f"pairs={plan.pairs}, rounds={plan.rounds}: expected at least one round, and a pair "
            "for each and for the start."
        )
    return config


def _begin(place: Path, asked: dict[str, Any]) -> None:
    """Write down what is asked for, or check that it is what the directory is of."""
    file, plain = place / "loop.json", json.loads(dump_json(asked))
    if file.is_file():
        found = read_json_object(file)
        for name in plain:
            if found.get(name) != plain[name]:
                raise ConfigError(
                    f"'{place}' is of a loop with {name}={found.get(name)}, and this one has "
                    f"{plain[name]}.",
                    "Choose another --out, or ask for the same to go on.",
                )
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_atomic(file, dump_json(asked, indent=1))
    except OSError as error:
        raise run_error(error, f"write '{place}'") from None


def _source(config: RunConfig, run: Path, plan: Plan, number: int) -> Source:
    seed = derive_seed(plan.seed, "preferences", number) % 2**31
    if number == 0:
        chosen = config.run.env_settings()
        return random_source(config.env, episodes=plan.episodes, seed=seed, **chosen)
    return source_of(run, actor=plan.actor, episodes=plan.episodes, seed=seed)


def _model(
    place: Path,
    plan: Plan,
    fitting: FitSettings,
    number: int,
    source: Callable[[], Source],
    ask: Ask,
    tell: Callable[[str], None],
) -> RewardModel:
    """Return the model of a round: what is missing of it is sampled, asked for and fitted."""
    path, pairs = place / "models" / f"{number:02d}", place / "pairs"
    if (path / FILE).is_file():
        return load_model(path)
    done = len(PreferenceSet.open(pairs).batches) if (pairs / SET_FILE).is_file() else 0
    if done <= number:
        before = load_model(place / "models" / f"{number - 1:02d}") if number else None
        if plan.by != "disagreement":
            before = None
        sample(
            pairs,
            [source()],
            pairs=plan.count(number),
            length=plan.length,
            by=plan.by if number else "coverage",
            model=before,
            seed=derive_seed(plan.seed, "preferences", "pairs", number) % 2**31,
        )
    found = PreferenceSet.open(pairs)
    ask(found)
    left = set(found.pairs()) - {label.pair for label in found.labels()}
    if left:
        raise RunError(
            f"{counted(len(left), 'pair')} of '{pairs}' {'is' if len(left) == 1 else 'are'} not "
            "answered.",
            "Give the same command again to answer them and go on.",
        )
    return fit(found, path, fitting, tell=tell)


def _train(
    config: RunConfig, given: Mapping[str, Any], place: Path, target: int, number: int
) -> Run:
    """Train to a count of steps with the model of a round."""
    model, path = place / "models" / f"{number:02d}", place / "run"

    def stop(event: Event) -> object:
        reached = isinstance(event, Logged) and event.clock.count >= target < config.run.total
        return STOP if reached else None

    if not (path / RUN_FILE).is_file():
        run = train(
            config.algorithm, config.env, name="run", root=place, callbacks=[stop],
            **{**given, "reward_model": str(model)},
        )  # fmt: skip
    else:
        run = open_run(path)
        if run.status != "done" and progress_of(run.directory) < target:
            run = resume(path, reward_model=model, callbacks=[stop])
    if run.status != "done" and progress_of(run.directory) < target:
        raise KeyboardInterrupt
    return run


def _round(run: Run, model: RewardModel, number: int, before: list[Round]) -> Round:
    metrics, quality = run.metrics(), model.facts["quality"] or {}
    reached = progress_of(run.directory)
    began = before[-1].env_steps if before else 0
    # The true return goes on from the last round's; the learned one is of another model.
    steps, true = _between(metrics, _TRUE, began, reached)
    _, lengths = _between(metrics, _LENGTH, began, reached)
    _, learned = _between(metrics, _LEARNED, began + 1, reached)
    hacked, compared = False, ""
    if len(true) > 1 and len(learned) > 1:
        last = checkpoint.latest(run.directory.checkpoints_path)
        assert last is not None  # the run has reached a count of steps
        recent = checkpoint.read_checkpoint(last, ["collector"])["collector"]["episodes"]["recent"]
        error = fall_error(recent[:, 0], int(steps[0] / lengths[0]))
        hacked = is_hacked(true, learned, error)
        compared = (
            f"learned return {learned[0]:.4g} to {learned[-1]:.4g}, true return {true[0]:.4g} to "
            f"{true[-1]:.4g} (standard error of the difference {error:.2g})"
        )
    return Round(
        number,
        reached,
        int(model.facts["comparisons"]),
        quality.get("accuracy"),
        quality.get("calibration_error"),
        float(true[-1]) if len(true) else None,
        float(learned[-1]) if len(learned) else None,
        hacked,
        compared,
    )


def _between(metrics: Mapping[str, Any], name: str, first: int, last: int) -> np.ndarray[Any, Any]:
    """Return the counts and the values [2, N] of a metric from one count to another."""
    counts, values = metrics.get(name, ((), ()))
    points = [(c, v) for c, v in zip(counts, values, strict=True) if first <= c <= last]
    return np.array(points, float).reshape(-1, 2).T


def fall_error(returns: np.ndarray[Any, Any], earlier: int) -> float:
    """Return the standard error of the difference of two mean returns.

    Args:
        returns: Of the episodes of the later mean.
        earlier: How many episodes had ended at the earlier one; the latest of them are its own.
    """
    if len(returns) < 2:
        return math.inf
    share = 1 / min(max(earlier, 1), EPISODE_WINDOW) + 1 / len(returns)
    return float(returns.std(ddof=1)) * math.sqrt(share)


def is_hacked(
    true: np.ndarray[Any, Any], learned: np.ndarray[Any, Any], error: float = 0.0
) -> bool:
    """Return whether the learned return rose while the true one fell.

    A fall is one by a tenth of the range, and by three standard errors of the difference.

    Example:
        >>> is_hacked(np.array([3.0, 5.0, 1.0]), np.array([0.0, 1.0, 2.0]))
        True
    """
    if len(true) < 2 or len(learned) < 2:
        return False
    fell = true[0] - true[-1] > max(_FALL * np.ptp(true), _ERRORS * error)
    return bool(fell and learned[-1] > learned[0])


def _extra_steps(place: Path) -> int:
    """Return the steps that were played to be compared, beside those of the run."""
    batches = PreferenceSet.open(place / "pairs").batches
    return sum(len(one.dataset) for one in batches if one.facts["seeds"][0] is not None)


def _line(one: Round, total: int) -> str:
    parts = [f"{one.env_steps:,} of {total:,} steps", counted(one.comparisons, "comparison")]
    if one.accuracy is not None:
        parts.append(f"held-out accuracy {one.accuracy:.0%}")
    if one.true_return is not None:
        parts.append(f"true return {one.true_return:.1f}")
    if one.learned_return is not None:
        parts.append(f"learned return {one.learned_return:.1f}")
    fell = f" The learned return rises while the true one falls: {one.compared}."
    return f"Round {one.number}: {', '.join(parts)}.{fell if one.hacked else ''}"

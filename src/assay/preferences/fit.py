"""Fit a reward model to comparisons (arXiv:1706.03741; the bounds by tanh of arXiv:2106.05091).

Members differ in their first weights and in the order in which they see comparisons. They are
fitted one by one, and each is written down: a fit that was killed goes on with the next one.

Deviations from the first paper: every member sees all comparisons, as in the second one; the
regularisation is a fixed weight decay.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binomtest

from assay.buffers.dataset import DatasetBuffer
from assay.core.errors import DataError
from assay.core.seeding import derive_rng, derive_seed
from assay.core.types import Tree, tree_map
from assay.data.combine import merge
from assay.experts.reward_model import FILE, FitSettings, RewardModel, load_model
from assay.functional.preferences import bradley_terry_loss, calibration
from assay.networks.state_dict import load_module, to_array
from assay.preferences.files import TARGETS, PreferenceSet
from assay.preferences.pairs import Places, make_buffer, segment_steps, segment_sums
from assay.runs import provenance
from assay.runs.checkpoint import state_from_bytes, state_to_bytes
from assay.runs.files import run_error, write_atomic

_PARTS = ".members"  # of a fit that is not finished
_ROWS = 1 << 15  # steps that are looked at together
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Answers as arrays."""

    places: Places  # segments, [K, 2]
    target: NDArray[np.float32]  # [K] 1 for the left one, 0 for the right one, 0.5 for neither

    def __len__(self) -> int:
        return len(self.target)


def read_comparisons(
    found: PreferenceSet, without: Sequence[str] = ()
) -> tuple[DatasetBuffer, Comparisons, Comparisons]:
    """Return all steps of a set, what models are fitted to, and what they are measured by.

    Raises:
        DataError: There are no answers to fit to, all of them are "equal", or nobody is called as
            in `without`.
    """
    labels = found.labels()
    known = {label.annotator for label in labels}
    if unknown := set(without) - known:
        raise DataError(
            f"Nobody called '{sorted(unknown)[0]}' has answered.",
            f"Known: {', '.join(sorted(known))}." if known else "Answer pairs first.",
        )
    found.verify()
    offsets, total = {}, 0
    for batch in found.batches:
        offsets[batch.number] = total
        total += batch.dataset.num_episodes
    pairs = found.pairs()
    used = [one for one in labels if one.choice in TARGETS and one.annotator not in without]

    def arrays(held_out: bool) -> Comparisons:
        chosen = [one for one in used if pairs[one.pair].held_out == held_out]
        ends = [(pairs[one.pair].left, pairs[one.pair].right) for one in chosen]
        episode = [[offsets[s.batch] + s.episode for s in both] for both in ends]
        start = [[s.start for s in both] for both in ends]
        shape = (len(chosen), 2)
        places = Places(*(np.array(x, np.int64).reshape(shape) for x in (episode, start)))
        return Comparisons(places, np.array([TARGETS[one.choice] for one in chosen], np.float32))

    learned, measured = arrays(False), arrays(True)
    if not len(learned):
        raise DataError(
            f"'{found.path}' has no answers to fit a reward to.",
            "Answer pairs with assay prefer label.",
        )
    if (learned.target == TARGETS["equal"]).all():
        raise DataError(
            f"All {len(learned)} answers of '{found.path}' to fit to are equal: nothing to learn "
            "from.",
            "Sample longer segments or other episodes.",
        )
    buffer = make_buffer(merge([batch.dataset for batch in found.batches]))
    return buffer, learned, measured


def fit(
    found: PreferenceSet,
    out: Path | str,
    settings: FitSettings | None = None,
    *,
    without: Sequence[str] = (),
    tell: Tell = lambda text: None,
) -> RewardModel:
    """Fit a reward model, write it and return it.

    Asked again for the same, it returns what it made, or goes on with what is missing.

    Args:
        found: The comparisons.
        out: The directory of the model; made if missing.
        settings: Of the networks and the fit.
        without: Annotators whose answers do not count.
        tell: Called with what is going on.

    Raises:
        DataError: There is nothing to fit to.
        RunError: It cannot be written.
    """
    settings = settings or FitSettings()
    place = Path(out)
    asked = {
        "set": str(found.path.absolute()),
        "set_sha256": found.digest(),
        "settings": settings.model_dump(mode="json"),
        "without": sorted(without),
    }
    key = hashlib.sha256(json.dumps({**asked, "set": None}, sort_keys=True).encode()).hexdigest()
    if (place / FILE).is_file():
        made = load_model(place)
        if made.facts.get("key") == key:
            tell(f"'{place}' is fitted to these answers already.")
            return made
    buffer, learned, measured = read_comparisons(found, without)
    schema = buffer.dataset.schema
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(settings.seed, "preferences", "weights"))
        model = RewardModel(schema.observation, schema.action, settings, str(place))
    steps = segment_steps(buffer.dataset, learned.places, found.length)
    seen = _read_steps(model, buffer, steps)
    for number in range(settings.members):
        _fit_member(model, number, seen, learned.target, place / _PARTS / key, tell)
    _standardise(model, seen)
    model.running = len(seen.action) if settings.bound == "running" else 0
    facts = {
        **asked, "key": key, "env": found.facts["env"], "length": found.length,
        "comparisons": len(learned), "held_out": len(measured),
        "quality": measure(model, buffer, measured, found.length),
        "fitted": measure(model, buffer, learned, found.length),
        "provenance": provenance.collect(
            seeds={"fit": settings.seed},
            files={"preferences": {"path": asked["set"], "sha256": asked["set_sha256"]}},
        ),
    }  # fmt: skip
    model.identity = model.save(place, facts)
    model.facts = load_model(place).facts
    shutil.rmtree(place / _PARTS, ignore_errors=True)
    return model


@dataclass(frozen=True, slots=True)
class _Seen:
    """The steps that are compared, each once."""

    obs: Tree  # [U, ...], as the networks take them
    action: torch.Tensor  # [U, ...]
    rows: torch.Tensor  # [K, 2, L] which of them the segments of comparisons have


def _read_steps(model: RewardModel, buffer: DatasetBuffer, steps: NDArray[np.int64]) -> _Seen:
    """Return the steps [K, 2, L], and let the model's normaliser see them."""
    used, rows = np.unique(steps, return_inverse=True)
    batches = [buffer.batch(part) for part in np.array_split(used, -(-len(used) // _ROWS))]
    obs = tree_map(lambda *parts: torch.cat(parts), *(one.obs for one in batches))
    model.normalizer.update(tree_map(lambda part: part.numpy(), obs))
    action = torch.cat([one.action for one in batches])
    return _Seen(model.inputs(obs), action, torch.from_numpy(rows.reshape(steps.shape)))


def _fit_member(
    model: RewardModel,
    number: int,
    seen: _Seen,
    target: NDArray[np.float32],
    parts: Path,
    tell: Tell,
) -> None:
    """Fit one member, or take what a fit that was killed left behind."""
    settings, net = model.settings, model.ensemble.members[number]
    file = parts / f"{number}.safetensors"
    if file.is_file():
        load_module(f"member {number}", net, state_from_bytes(file.read_bytes()))
        return
    rng = derive_rng(settings.seed, "preferences", "member", number)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    answers, loss = torch.from_numpy(target), torch.zeros(())
    for _ in range(settings.epochs):
        order = torch.from_numpy(rng.permutation(len(target)))
        for index in order.split(settings.batch_size):
            rows = seen.rows[index]  # [B, 2, L]
            flat = rows.reshape(-1)
            obs = tree_map(lambda part, flat=flat: part[flat], seen.obs)
            said = model.ensemble.member(number, obs, seen.action[flat]).reshape(rows.shape)
            left, right = said.sum(2).unbind(1)
            loss = bradley_terry_loss(left, right, answers[index], settings.error)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    tell(f"Member {number + 1} of {settings.members}: loss {float(loss.detach()):.3f}")
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise run_error(error, f"write '{parts}'") from None
    weights = {name: to_array(part) for name, part in net.state_dict().items()}
    write_atomic(file, state_to_bytes(weights))


@torch.no_grad()
def _standardise(model: RewardModel, seen: _Seen) -> None:
    """Find what each member says of the data: its mean and its standard deviation."""
    parts = [
        model.ensemble.every(
            tree_map(lambda part, rows=rows: part[rows], seen.obs), seen.action[rows]
        )
        for rows in torch.arange(len(seen.action)).split(_ROWS)
    ]
    said = torch.cat(parts, 1)
    model.ensemble.mean.copy_(said.mean(1, keepdim=True))
    scale = said.std(1, keepdim=True, correction=0)
    model.ensemble.scale.copy_(torch.where(scale > 1e-6, scale, torch.ones_like(scale)))


def measure(
    model: RewardModel, buffer: DatasetBuffer, measured: Comparisons, length: int
) -> dict[str, Any] | None:
    """Return how well a model predicts answers that chose a side; None if there are none.

    `accuracy` counts answers whose segment has the larger sum of rewards, `log_loss` is that of the
    mean probability of the members, and `calibration` compares it with how often it is right.
    """
    sides = measured.target != 0.5
    if not sides.any():
        return None
    places, left = measured.places.take(np.flatnonzero(sides)), measured.target[sides] == 1.0
    sums = segment_sums(model, buffer, places, length)  # [M, K, 2]
    chance = expit(sums[..., 0] - sums[..., 1]).mean(0)
    chance = np.clip(chance, 1e-6, 1.0 - 1e-6)
    found = calibration(chance, left)
    return {
        "answers": int(sides.sum()),
        "accuracy": float(((chance > 0.5) == left).mean()),
        "log_loss": float(-np.log(np.where(left, chance, 1.0 - chance)).mean()),
        "calibration_error": found.error,
        "calibration": [list(row) for row in found.rows],
    }


def doubts(quality: Mapping[str, Any] | None, held_out: int = 0) -> list[str]:
    """Return why the answers that were held out do not speak for a model, in words.

    Args:
        quality: What `measure` returned of them.
        held_out: How many there are, with those that chose no side.

    Example:
        >>> doubts({"answers": 40, "accuracy": 0.9, "log_loss": 0.4})
        []
    """
    if quality is None:
        why = (
            f"All {held_out} held-out answers are equal" if held_out else "No answers were held out"
        )
        return [f"{why}, so that nobody knows whether the model is any good."]
    count, found = quality["answers"], []
    right = round(quality["accuracy"] * count)
    if binomtest(right, count, 0.5, alternative="greater").pvalue > 0.05:
        found.append(
            f"{right} of {count} held-out answers right is no better than chance. Label more "
            "pairs, or look for what is wrong with them: assay prefer inspect."
        )
    if quality["log_loss"] > math.log(2):
        found.append(
            f"The held-out log loss of {quality['log_loss']:.2f} is worse than a coin's 0.69: the "
            "model is too sure of itself. Set fewer epochs, or a larger weight_decay."
        )
    return found

"""What a prioritised sample costs, beside a sum tree as textbooks write it.

    python benchmarks/priorities.py            # a million transitions: about a minute
    python benchmarks/priorities.py --store    # ... and keep the result as evidence
    python benchmarks/priorities.py --quick    # does it work? The numbers mean nothing

One process, one thread; the contestants take turns on the same priorities. A turn draws batches
with their importance weights and writes new priorities back, as a learner does, and the two are
timed apart. Sums that are put off until they are needed are paid for by the draw.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

import evidence
import numpy as np
from children import finish

from assay.buffers.prioritized import Priorities, PrioritizedOptions

SIZE = 1_000_000
BATCH = 256
BATCHES = 20
REPEATS = 5
BETA = 0.4
TARGET = 5.0  # times a textbook's tree, per sample


class Contestant(Protocol):
    """Draws slots by priority and takes new priorities."""

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return slots [B] and importance weights [B]."""

    def update(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities from TD errors."""


class TextbookTree:
    """A binary sum tree in one array, walked from the root for every sample.

    Args:
        priorities: Of all slots, [N].
        options: The exponents that Assay's side uses.
    """

    def __init__(self, priorities: np.ndarray, options: PrioritizedOptions) -> None:
        self.options = options
        self.first = 1 << (len(priorities) - 1).bit_length()  # where the leaves begin
        self.count = len(priorities)
        self.nodes = np.zeros(2 * self.first)
        self.nodes[self.first : self.first + self.count] = priorities
        for node in range(self.first - 1, 0, -1):
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def find(self, mass: float) -> int:
        """Return the leaf under which a mass lies."""
        node = 1
        while node < self.first:
            node *= 2
            if mass >= self.nodes[node]:
                mass -= self.nodes[node]
                node += 1
        return node - self.first

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one slot from each of equal shares of the total mass, and the weights."""
        total = self.nodes[1]
        slots, weights = np.empty(batch, np.int64), np.empty(batch)
        for i, noise in enumerate(rng.random(batch)):
            slots[i] = self.find((i + noise) * total / batch)
            weights[i] = (self.count / total * self.nodes[self.first + slots[i]]) ** -BETA
        return slots, weights / weights.max()

    def update(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Set leaves one by one, and the sums above each."""
        for slot, error in zip(slots, errors, strict=True):
            node = self.first + slot
            self.nodes[node] = (abs(error) + self.options.eps) ** self.options.alpha
            while node > 1:
                node //= 2
                self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]


class LevelwiseTree(TextbookTree):
    """The same tree, walked by a whole batch at a time: what a careful reader would write."""

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return slots and weights, one level of the tree at a time."""
        total = self.nodes[1]
        mass = (np.arange(batch) + rng.random(batch)) * total / batch
        node = np.ones(batch, np.int64)
        while node[0] < self.first:
            node *= 2
            right = mass >= self.nodes[node]
            mass -= np.where(right, self.nodes[node], 0.0)
            node += right
        weights = (self.count / total * self.nodes[node]) ** -BETA
        return node - self.first, weights / weights.max()

    def update(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Set leaves, and the sums above them, one level at a time."""
        node = self.first + slots
        self.nodes[node] = (np.abs(errors) + self.options.eps) ** self.options.alpha
        while node[0] > 1:
            node = node // 2
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]


class Ours:
    """Assay's priorities, as the replay buffer uses them."""

    def __init__(self, priorities: np.ndarray, options: PrioritizedOptions) -> None:
        self.priorities = Priorities(len(priorities), options)
        self.priorities.tree.rebuild(priorities)
        self.count = len(priorities)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return slots and weights."""
        return self.priorities.draw(rng, batch, BETA, self.count)

    def update(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities."""
        self.priorities.update(slots, errors)


def contestants(size: int) -> dict[str, Contestant]:
    """Return all of them, on the same priorities."""
    options = PrioritizedOptions()
    priorities = (np.random.default_rng(0).exponential(size=size) + options.eps) ** options.alpha
    return {
        "assay": Ours(priorities, options),
        "textbook": TextbookTree(priorities, options),
        "levelwise": LevelwiseTree(priorities, options),
    }


def measure(size: int, batches: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds per sample of drawing and of updating, one value per turn."""
    sides = contestants(size)
    found: dict[str, dict[str, list[float]]] = {name: {"draw": [], "update": []} for name in sides}
    for repeat in range(repeats):
        for name, side in sides.items():
            rng = np.random.default_rng(repeat)  # the same draws for all
            spent = {"draw": 0.0, "update": 0.0}
            for _ in range(batches):
                start = time.perf_counter()
                slots, _ = side.draw(rng, BATCH)
                drawn = time.perf_counter()
                side.update(slots, rng.exponential(size=BATCH))
                spent["draw"] += drawn - start
                spent["update"] += time.perf_counter() - drawn
            for what, seconds in spent.items():
                found[name][what].append(seconds / (batches * BATCH))
    return found


def result(size: int, batches: int, repeats: int) -> dict[str, Any]:
    """Measure, and return what is stored: nanoseconds per sample, of every turn."""
    found = measure(size, batches, repeats)
    return {
        "schema": evidence.SCHEMA,
        "size": size,
        "batch": BATCH,
        "nanoseconds": {
            name: {what: evidence.rounded((1e9 * v for v in values), 1)
                   for what, values in parts.items()}
            for name, parts in found.items()
        },
        "machine": evidence.machine(),
    }  # fmt: skip


def lines(content: dict[str, Any]) -> str:
    """Return the result as a table, with the ratio to the textbook and whether it is enough."""
    rows = [
        "| sum tree | draw, per sample | update, per sample | to ours: draw | draw and update |"
    ]
    rows.append("| --- | --- | --- | --- | --- |")
    medians = {
        name: {what: statistics.median(values) for what, values in parts.items()}
        for name, parts in content["nanoseconds"].items()
    }
    ours = medians["assay"]
    titles = {
        "assay": "Assay",
        "textbook": "textbook, one sample at a time",
        "levelwise": "the same tree, a batch at a time",
    }
    for name, title in titles.items():
        draw, update = medians[name]["draw"], medians[name]["update"]
        times = f"{draw / ours['draw']:.1f}x | {(draw + update) / sum(ours.values()):.1f}x"
        rows.append(f"| {title} | {draw:,.0f} ns | {update:,.0f} ns | {times} |")
    ratio = medians["textbook"]["draw"] / ours["draw"]
    met = "reached" if ratio >= TARGET else "**missed**"
    rows += [
        "",
        f"{content['size']:,} transitions, batches of {content['batch']}: a sample is drawn "
        f"{ratio:.1f} times as fast as from the textbook's tree (target {TARGET:g}: {met}).",
    ]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; a missed target is a result, not an error."""
    parser = argparse.ArgumentParser(description="Time prioritised sampling.")
    parser.add_argument("--quick", action="store_true", help="a small tree; measures nothing")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    options = parser.parse_args(arguments)
    if options.quick:
        content = result(10_000, batches=2, repeats=1)
    else:
        content = result(SIZE, BATCHES, REPEATS)
    if options.store and not options.quick:
        evidence.write_json(evidence.PRIORITIES, content)
    print(lines(content))
    return 0


if __name__ == "__main__":
    finish(main)

"""What a contract can see is said before money is spent, by the test that will be run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from study_samples import contract_values

from assay.study.agree.setup import contract_template
from assay.study.files.contract import Contract, Evaluation, Pools
from assay.study.judge import gate, power

METRIC = Contract(**contract_values()).metrics.primary  # minimum effect 10


def evaluation(seeds: int, **changes: object) -> Evaluation:
    pools = Pools(
        development=(0,),
        promotion=tuple(range(1, seeds + 1)),
        validation=tuple(range(101, 101 + seeds)),
    )
    return Evaluation(episodes=1, pools=pools, **changes)


def default() -> Evaluation:
    import yaml

    return Evaluation(**yaml.safe_load(contract_template("t", "s"))["evaluation"])


class TestPower:
    def test_the_default_contract_sees_two_deviations(self) -> None:
        assert power.power(default(), 2.0) >= 0.8
        assert "takes" not in power.shown(default())

    def test_it_is_what_the_gate_does(self) -> None:
        """The chance by formula against the share of acceptances by the gate itself."""
        rng, chosen = np.random.default_rng(0), default()
        metric = METRIC.model_copy(update={"minimum_effect": 0.5})
        seeds = len(chosen.pools.promotion)
        trials, hits = 300, 0
        for _ in range(trials):
            accepted = True
            for alpha in (chosen.alpha / chosen.expected_candidates, chosen.alpha):
                arms = (dict(enumerate(rng.normal(m, size=seeds))) for m in (0.0, 2.0))
                found = gate.decide(metric, *arms, alpha=alpha, evaluation=chosen, noise_floor=1.0)
                accepted = accepted and found.outcome == "accept"
            hits += accepted
        assert hits / trials == pytest.approx(power.power(chosen, 2.0), abs=0.06)

    def test_what_it_would_take_is_said(self) -> None:
        said = power.shown(evaluation(5))
        assert "2% at 1 sd, 31% at 2 sd, 77% at 3 sd" in said
        seeds = int(said.split("80% at 2 sd takes ")[1].split(" ")[0])
        assert power.power(evaluation(5), 2.0, seeds) >= 0.8
        assert power.power(evaluation(5), 2.0, seeds - 1) < 0.8

    def test_pairing_arms_that_do_not_correlate_costs_power(self) -> None:
        assert power.power(evaluation(10, test="paired"), 2.0) < power.power(evaluation(10), 2.0)


class TestSeeds:
    def test_more_noise_needs_more_seeds(self) -> None:
        # Known value: two-sided 0.05, power 0.8, one standard deviation: 17 per arm.
        assert power.seeds_needed(1.0, 1.0, 0.025, 0.8) == 17
        assert power.seeds_needed(1.0, 2.0, 0.025, 0.8) > 60
        assert power.seeds_needed(1.0, 0.0, 0.025, 0.8) == 5
        assert power.seeds_needed(1e-9, 1.0, 0.025, 0.8) is None

    def test_pairs(self) -> None:
        # Known value: a paired test at two-sided 0.05, power 0.8, half a deviation: 34 pairs.
        assert power.seeds_needed(0.5, 1.0, 0.025, 0.8, paired=True) == 34

    def test_the_advice_is_for_the_test_and_the_effect_that_was_seen(self) -> None:
        """Arms that correlate by seed: a paired test needs few seeds, whatever the spread is."""
        rng = np.random.default_rng(1)
        base = rng.normal(100, 50, size=8)
        new = base + 23.5 + rng.normal(0, 14, size=8)
        arms = [dict(enumerate(arm)) for arm in (base, new)]
        metric = METRIC.model_copy(update={"minimum_effect": 20.0})
        seen = {}
        for test in ("paired", "welch"):
            chosen = evaluation(8, test=test)
            seen[test] = gate.decide(metric, *arms, alpha=1e-5, evaluation=chosen, noise_floor=50.0)
            assert seen[test].outcome == "inconclusive"
        paired, welch = seen["paired"], seen["welch"]
        assert paired.seeds_for_seen is not None and paired.seeds_for_seen < 20
        assert welch.seeds_for_seen is not None and welch.seeds_for_seen > 100
        assert paired.seeds_needed > paired.seeds_for_seen
        effect = f"the effect of {paired.comparison.effect:+.4g} that was seen"
        assert f"{paired.seeds_for_seen} {effect}" in paired.reasons[0]
        spread = float(np.std(new - base, ddof=1))
        assert paired.seeds_needed == power.seeds_needed(20.0, spread, 1e-5, 0.8, paired=True)


class TestCollapses:
    def decide(self, new: list[float], **metric: object) -> gate.Verdict:
        base = dict(enumerate([100.0, 104, 96, 102, 98, 101, 99, 103, 97, 100]))
        chosen = METRIC.model_copy(update=metric)
        return gate.decide(
            chosen, base, dict(enumerate(new)), alpha=0.05, evaluation=evaluation(10),
            noise_floor=2.5,
        )  # fmt: skip

    def test_a_seed_that_collapsed_rejects_what_is_better_on_average(self) -> None:
        good = [150.0 + i for i in range(9)]
        assert self.decide([*good, 150.0]).outcome == "accept"
        seen = self.decide([*good, 80.0])
        assert seen.comparison is not None and seen.comparison.p_better < 0.05
        assert seen.outcome == "reject"
        assert seen.reasons[0] == (
            "It collapsed on seed 9 (80): below 88.5, which is the baseline's worst seed less 3 "
            "standard deviations."
        )

    def test_the_contract_can_say_where(self) -> None:
        new = [150.0 + i for i in range(9)]
        assert self.decide([*new, 80.0], seed_bound=50.0).outcome == "accept"
        assert (
            "below 120, which is metrics.primary.seed_bound"
            in (self.decide([*new, 110.0], seed_bound=120.0).reasons[0])
        )

    def test_less_can_be_better(self) -> None:
        base = dict(enumerate([100.0, 104, 96, 102, 98]))
        new = dict(enumerate([50.0, 52, 48, 51, 200]))
        metric = METRIC.model_copy(update={"direction": "minimize", "minimum_effect": 1.0})
        seen = gate.decide(metric, base, new, alpha=0.05, evaluation=evaluation(5), noise_floor=3.0)
        assert any("It collapsed on seed 4 (200): above 113" in reason for reason in seen.reasons)


def test_harmful_is_decided_at_the_candidate_s_alpha() -> None:
    base = dict(enumerate([100.0, 104, 96, 102, 98]))
    worse = dict(enumerate([88.0, 91.0, 80.0, 92.0, 87.5]))
    found = {}
    for alpha in (0.05, 1e-6):
        found[alpha] = gate.decide(
            METRIC, base, worse, alpha=alpha, evaluation=evaluation(5), noise_floor=3.0
        ).outcome
    assert found == {0.05: "harmful", 1e-6: "reject"}


def test_statistics_of_pairs_by_hand() -> None:
    from scipy import stats

    from assay.evaluation.statistics import power_paired

    critical = stats.t.ppf(0.975, 33)
    exact = (
        1
        - stats.nct.cdf(critical, 33, 0.5 * math.sqrt(34))
        + stats.nct.cdf(-critical, 33, 0.5 * math.sqrt(34))
    )
    assert power_paired(0.5, 34) == pytest.approx(exact, abs=1e-6)

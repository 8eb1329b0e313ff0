"""The gate decides as worked out by hand, and errs as rarely as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from study_samples import contract_values

from assay.study.gate import compare, decide, noise_floor, seeds_needed, spend
from assay.study.layout import StudyError
from assay.study.models import Contract, Evaluation, Guardrail, Metrics, PrimaryMetric

CONTRACT = Contract(**contract_values())
METRIC: PrimaryMetric = CONTRACT.metrics.primary  # minimum effect 10
EVALUATION: Evaluation = CONTRACT.evaluation


def arm(*scores: float | None, start: int = 1) -> dict[int, float | None]:
    return dict(enumerate(scores, start))


BASE = arm(100, 104, 96, 102, 98)  # mean 100, std sqrt(10)


class TestCompare:
    def test_paired_by_hand(self) -> None:
        found = compare(BASE, arm(121, 123, 117, 120, 119), direction="maximize")
        # differences 21, 19, 21, 18, 21: mean 20, std sqrt(8/4) = 1.414, error 0.6325
        assert (found.test, found.seeds, found.effect) == ("paired t", (5, 5), 20.0)
        assert found.low == pytest.approx(20 - 2.13185 * 0.632456, abs=1e-4)  # t(4), 95 %
        assert found.high == pytest.approx(20 + 2.13185 * 0.632456, abs=1e-4)
        # t = 31.62 with 4 degrees of freedom: two-sided 5.96e-6
        assert found.p_better == pytest.approx(2.98e-6, rel=0.01)
        assert found.p_worse == pytest.approx(1.0, abs=1e-4)
        assert found.improvement == 1.0
        assert found.worst == (3, 117)

    def test_other_seeds_are_not_paired(self) -> None:
        found = compare(BASE, arm(121, 123, 117, 120, 119, start=20), direction="maximize")
        # errors: 10/5 + 5/5 = 3; t = 20 / sqrt(3) = 11.547
        assert found.test == "welch"
        assert found.effect == 20.0
        assert 0 < found.p_better < 1e-4
        with pytest.raises(StudyError, match="same seeds"):
            compare(BASE, arm(1, 2, start=20), direction="maximize", test="paired")

    def test_less_can_be_better(self) -> None:
        found = compare(BASE, arm(90, 94, 86, 92, 88.5), direction="minimize", test="welch")
        assert found.effect == pytest.approx(9.9)
        assert found.worst == (2, 94)
        assert found.p_better < 0.01

    def test_a_failed_seed_counts_as_the_worst_of_all(self) -> None:
        found = compare(BASE, arm(121, None, 117, math.nan, 119), direction="maximize")
        assert found.failures == pytest.approx(0.4)
        # 96 is the worst that either arm saw
        assert found.effect == pytest.approx((121 + 96 + 117 + 96 + 119) / 5 - 100)

    def test_a_baseline_must_be_whole(self) -> None:
        with pytest.raises(StudyError, match=r"no result for seeds \[2\]"):
            compare(arm(1, None, 2), arm(1, 2, 3), direction="maximize")

    def test_arms_without_spread_are_compared_by_permutation(self) -> None:
        found = compare(arm(*[9] * 5), arm(*[500] * 5, start=9), direction="maximize")
        assert found.test == "permutation"
        assert found.p_better == pytest.approx(1 / 252)  # of 10! / (5! 5!) labellings, one side
        assert (found.low, found.high) == (491, 491)


class TestDecide:
    def decide(self, candidate, base=BASE, alpha=0.0025, guardrails=()):
        return decide(
            METRIC, base, candidate, alpha=alpha, evaluation=EVALUATION, guardrails=guardrails
        )

    @pytest.mark.parametrize(
        ("candidate", "outcome", "reason"),
        [
            (arm(121, 123, 117, 120, 119), "accept", "better at alpha 0.0025"),
            (arm(105, 109, 101, 107, 103.5), "reject", "upper limit"),  # certain, and too small
            (arm(100, 105, 96, 101, 98), "reject", "upper limit"),
            (arm(80, 84, 76, 82, 78.5), "harmful", "worse"),
            (arm(160, 90, 140, 95, 150), "inconclusive", "p is not below"),
            (arm(500, 100, 96, 102, 98), "inconclusive", "p is not below"),  # one lucky seed
            (arm(108, 126, 104, 126, 113), "inconclusive", "p is not below"),
        ],
    )
    def test_outcomes(self, candidate, outcome: str, reason: str) -> None:
        verdict = self.decide(candidate)
        assert verdict.outcome == outcome, verdict.reasons
        assert reason in verdict.reasons[0]

    def test_the_advice_names_the_seeds(self) -> None:
        verdict = self.decide(arm(160, 90, 140, 95, 150))
        assert verdict.seeds_needed == seeds_needed(10.0, math.sqrt(10), 0.0025, 0.8)
        assert f"{verdict.seeds_needed} seeds per arm" in verdict.reasons[0]

    def test_few_seeds_decide_nothing(self) -> None:
        with pytest.raises(StudyError, match="at least 5"):
            self.decide(arm(200, 200, 200, 200))

    @pytest.mark.parametrize(
        ("bound", "margin", "after", "outcome", "reason"),
        [
            (None, 1.0, (10, 10, 10, 10, 10.2), "accept", "better"),
            (None, 1.0, (15, 15.1, 15, 14.9, 15), "reject", "got worse by"),
            (None, 1.0, (9, 13, 8, 12, 10), "inconclusive", "may be worse"),
            (11.0, None, (12, 12, 12, 12, 12), "reject", "beyond 11"),
            (13.0, None, (12, 12, 12, 12, 12), "accept", "better"),
        ],
    )
    def test_guardrails_block(self, bound, margin, after, outcome: str, reason: str) -> None:
        guard = Guardrail(
            name="falls", direction="minimize", bound=bound, margin=margin,
            source=METRIC.source,
        )  # fmt: skip
        before = arm(10, 10.1, 9.9, 10, 10)
        verdict = self.decide(
            arm(121, 123, 117, 120, 119), guardrails=[(guard, before, arm(*after))]
        )
        assert verdict.outcome == outcome, verdict.reasons
        assert reason in verdict.reasons[0]
        assert "falls" in verdict.guardrails


class TestSpending:
    def test_the_whole_is_never_exceeded(self) -> None:
        rates = [spend(EVALUATION, k) for k in range(EVALUATION.expected_candidates)]
        assert sum(rates) == pytest.approx(EVALUATION.alpha)
        with pytest.raises(StudyError, match="is spent"):
            spend(EVALUATION, EVALUATION.expected_candidates)

    def test_more_noise_needs_more_seeds(self) -> None:
        # Known value: two-sided 0.05, power 0.8, one standard deviation: 17 per arm.
        assert seeds_needed(1.0, 1.0, 0.025, 0.8) == 17
        assert seeds_needed(1.0, 2.0, 0.025, 0.8) > 60
        assert seeds_needed(1.0, 0.0, 0.025, 0.8) == 5
        assert seeds_needed(1e-9, 1.0, 0.025, 0.8) is None


def test_useless_candidates_are_rarely_accepted() -> None:
    """A small edition of `benchmarks/gate.py`: the family-wise error stays below alpha."""
    rng = np.random.default_rng(0)
    evaluation = EVALUATION.model_copy(update={"expected_candidates": 10})
    metric = METRIC.model_copy(update={"minimum_effect": 1e-9})
    loops, wrong = 60, 0
    for _ in range(loops):
        base = arm(*rng.normal(size=5))
        for k in range(10):
            verdict = decide(
                metric, base, arm(*rng.normal(size=5), start=50),
                alpha=spend(evaluation, k), evaluation=evaluation,
            )  # fmt: skip
            if verdict.outcome == "accept":
                wrong += 1
                break
    assert wrong / loops <= 0.1  # 0.05 expected at most; unspent alpha gives about 0.25


def test_noise_floor_is_the_spread_over_seeds() -> None:
    spread, found = noise_floor(BASE, arm(101, 99, 103, 97, 100, start=9), "maximize")
    assert spread == pytest.approx(np.std([*BASE.values(), 101, 99, 103, 97, 100], ddof=1))
    assert found.p_better > 0.2 and found.p_worse > 0.2


def test_metric_names_are_unique() -> None:
    values = contract_values()["metrics"]
    values["diagnostics"] = [{"name": "return", "source": values["primary"]["source"]}]
    with pytest.raises(ValueError, match="used twice: return"):
        Metrics(**values)

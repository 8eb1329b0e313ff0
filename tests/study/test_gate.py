"""The gate decides as worked out by hand, and errs as rarely as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from study_samples import contract_values

from assay.study.agree.spending import spend
from assay.study.files.contract import Contract, Evaluation, Guardrail, Metrics, PrimaryMetric
from assay.study.files.documents import StudyError
from assay.study.judge.gate import compare, decide, differ, noise_floor
from assay.study.judge.power import seeds_needed

CONTRACT = Contract(**contract_values())
METRIC: PrimaryMetric = CONTRACT.metrics.primary  # minimum effect 10
EVALUATION: Evaluation = CONTRACT.evaluation


def arm(*scores: float | None, start: int = 1) -> dict[int, float | None]:
    return dict(enumerate(scores, start))


BASE = arm(100, 104, 96, 102, 98)  # mean 100, std sqrt(10)


class TestCompare:
    def test_paired_by_hand(self) -> None:
        after = arm(121, 123, 117, 120, 119)
        found = compare(BASE, after, direction="maximize", test="paired")
        # differences 21, 19, 21, 18, 21: mean 20, std sqrt(8/4) = 1.414, error 0.6325
        assert (found.test, found.seeds, found.effect) == ("paired t", (5, 5), 20.0)
        assert found.low == pytest.approx(20 - 2.13185 * 0.632456, abs=1e-4)  # t(4), 95 %
        assert found.high == pytest.approx(20 + 2.13185 * 0.632456, abs=1e-4)
        # t = 31.62 with 4 degrees of freedom: two-sided 5.96e-6
        assert found.p_better == pytest.approx(2.98e-6, rel=0.01)
        assert found.p_worse == pytest.approx(1.0, abs=1e-4)
        assert found.improvement == 1.0
        assert found.worst == (3, 117)

    @pytest.mark.parametrize("start", [1, 20])
    def test_seeds_are_paired_only_if_the_contract_says_so(self, start: int) -> None:
        found = compare(BASE, arm(121, 123, 117, 120, 119, start=start), direction="maximize")
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

    def test_a_failed_seed_of_the_baseline_is_left_out(self) -> None:
        paired = compare(arm(1, None, 2), arm(4, 99, 6), direction="maximize", test="paired")
        assert (paired.test, paired.seeds, paired.effect) == ("paired t", (2, 2), 3.5)
        other = compare(arm(1, math.nan, 2), arm(4, 5, 6, start=7), direction="maximize")
        assert (other.test, other.seeds, other.effect) == ("welch", (2, 3), 3.5)
        with pytest.raises(StudyError, match="The baseline has 1 seed;"):
            compare(arm(1, None), arm(4, 5), direction="maximize")

    def test_a_permutation_test_relabels_all_seeds(self) -> None:
        after = arm(121, 123, 117, 120, 119)
        found = compare(BASE, after, direction="maximize", test="permutation")
        assert (found.test, found.p_better, found.p_worse) == ("permutation", 1 / 252, 1.0)
        # Pairs without any spread in their differences are relabelled pair by pair.
        after = {seed: score + 20 for seed, score in BASE.items()}
        found = compare(BASE, after, direction="maximize", test="paired")
        assert (found.test, found.p_better, found.p_worse) == ("paired permutation", 1 / 32, 1.0)

    @pytest.mark.parametrize("direction", ["maximize", "minimize"])
    def test_unequal_arms_are_permuted_on_one_side(self, direction) -> None:
        sign = 1 if direction == "maximize" else -1
        x = sign * np.array([0, 0, 0, 0, 0, 10.0])
        y = sign * np.array([0, 0, 0, 0, 0.1, 0.2, 0.3, 0.4])
        found = compare(arm(*y), arm(*x, start=20), direction=direction, test="permutation")
        expected = stats.permutation_test(
            (sign * x, sign * y), lambda a, b: a.mean() - b.mean(), alternative="greater"
        )
        assert found.p_better == pytest.approx(expected.pvalue) == pytest.approx(0.4286, abs=1e-4)

    @pytest.mark.parametrize("start", [1, 50])
    def test_drawn_permutations_agree_with_the_t_test(self, start: int) -> None:
        rng = np.random.default_rng(0)
        before, after = arm(*rng.normal(size=20)), arm(*rng.normal(0.5, size=20), start=start)
        drawn = compare(before, after, direction="maximize", test="permutation")
        exact = compare(before, after, direction="maximize")
        assert drawn.p_better == pytest.approx(exact.p_better, abs=0.015)
        assert drawn.p_worse == pytest.approx(exact.p_worse, abs=0.015)

    def test_arms_without_spread_are_compared_by_permutation(self) -> None:
        found = compare(arm(*[9] * 5), arm(*[500] * 5, start=9), direction="maximize")
        assert found.test == "permutation"
        assert found.p_better == pytest.approx(1 / 252)  # of 10! / (5! 5!) labellings, one side
        assert (found.low, found.high) == (491, 491)


class TestDecide:
    def decide(self, candidate, base=BASE, alpha=0.0025, guardrails=(), test="auto"):
        evaluation = EVALUATION.model_copy(update={"test": test})
        return decide(
            METRIC, base, candidate, alpha=alpha, evaluation=evaluation, guardrails=guardrails
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
        scores = (160, 90, 140, 95, 150)
        verdict = self.decide(arm(*scores))
        # the noise of both arms: the baseline's variance is 10
        spread = math.sqrt((10 + np.var(scores, ddof=1)) / 2)
        assert verdict.seeds_needed == seeds_needed(10.0, spread, 0.0025, 0.8)
        assert f"{verdict.seeds_needed} seeds per arm" in verdict.reasons[0]
        assert verdict.seeds_for_seen == seeds_needed(27.0, spread, 0.0025, 0.8)
        assert f"{verdict.seeds_for_seen} the effect of +27 that was seen" in verdict.reasons[0]

    def test_a_candidate_that_fails_more_often_is_never_accepted(self) -> None:
        """The worst score that anyone saw flatters a run that would have collapsed."""
        good = arm(321, 323, 317, 320, 319, 322, 318, None)
        base = arm(100, 104, 96, 102, 98, 101, 99, 100)
        verdict = self.decide(good, base, alpha=0.05)
        assert verdict.comparison.p_better < 0.05  # its scores alone would do
        assert verdict.outcome == "reject"
        assert verdict.reasons[0] == "12% of its seeds failed, and 0% of the baseline's."
        # Who fails no more often than the baseline is judged by what the others say.
        verdict = self.decide(good, base | {8: None}, alpha=0.05, test="paired")
        assert (verdict.outcome, verdict.comparison.seeds) == ("accept", (7, 7))

    def test_a_baseline_of_failures_decides_nothing(self) -> None:
        with pytest.raises(StudyError, match="baseline has 4 seeds with a result"):
            self.decide(arm(121, 123, 117, 120, 119), BASE | {2: None})

    def test_too_few_seeds_for_a_permutation_are_said(self) -> None:
        after = {seed: score + 100 for seed, score in BASE.items()}
        verdict = self.decide(after, alpha=0.025, test="paired")
        assert verdict.outcome == "inconclusive"
        assert "5 seeds cannot reach alpha 0.025" in verdict.reasons[0]
        assert "the smallest p is 0.031; 6 per arm can" in verdict.reasons[0]
        assert self.decide(after, alpha=0.04, test="paired").outcome == "accept"
        verdict = self.decide(after, alpha=1e-6, test="paired")
        assert "no number of them can" in verdict.reasons[0]
        longer = arm(*range(6))
        more = {seed: score + 100 for seed, score in longer.items()}
        assert self.decide(more, longer, alpha=0.025, test="paired").outcome == "accept"

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
            (None, 1.0, (None,) * 5, "reject", "not measured for seeds [1, 2, 3, 4, 5]"),
            (None, 1.0, (10, 10, math.nan, 10, 10.2), "reject", "not measured for seeds [3]"),
            (13.0, None, (None, None, None, None, 12), "reject", "not measured for seeds [1, 2"),
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

    def test_a_guardrail_that_nobody_wrote_is_a_breach_also_beside_a_constant(self) -> None:
        guard = Guardrail(name="falls", direction="minimize", margin=0.5, source=METRIC.source)
        for after in (arm(*[None] * 5), {}):
            verdict = self.decide(
                arm(121, 123, 117, 120, 119), guardrails=[(guard, arm(*[0.0] * 5), after)]
            )
            assert verdict.outcome == "reject" and "falls was not measured" in verdict.reasons[0]

    def test_a_margin_needs_the_baseline_and_a_bound_does_not(self) -> None:
        after = arm(10, 10, 10, 10, 10.2)
        for limit, outcome in (({"margin": 1.0}, "inconclusive"), ({"bound": 11.0}, "accept")):
            guard = Guardrail(name="falls", direction="minimize", source=METRIC.source, **limit)
            verdict = self.decide(
                arm(121, 123, 117, 120, 119), guardrails=[(guard, arm(*[None] * 5), after)]
            )
            assert verdict.outcome == outcome, verdict.reasons

    def test_the_words_of_an_acceptance_are_those_of_a_mean(self) -> None:
        """The limits of the effect may lie below the minimum effect; nobody says otherwise."""
        verdict = self.decide(arm(111, 115.5, 106, 113, 107), alpha=0.05)
        assert verdict.outcome == "accept" and verdict.comparison.low < 10
        assert "its mean effect is no less than the minimum effect" in verdict.reasons[0]
        assert "at least" not in verdict.reasons[0]


class TestSpending:
    def test_another_number_of_candidates_does_not_make_more_of_it(self) -> None:
        few, many = (
            EVALUATION.model_copy(update={"expected_candidates": n}) for n in (2, 200)
        )  # fmt: skip
        rates = [spend(few, 0, 0.0)]
        for k in range(1, 200):
            rates.append(spend(many, k, math.fsum(rates)))
        assert rates[0] == 0.025 and sum(rates) <= EVALUATION.alpha * (1 + 1e-9)
        with pytest.raises(StudyError, match="is spent"):
            spend(many, 2, 0.05)
        assert spend(few, 1, 0.00025) == 0.025  # and what was saved is not handed out

    def test_the_whole_is_never_exceeded(self) -> None:
        rates = [spend(EVALUATION, k) for k in range(EVALUATION.expected_candidates)]
        assert sum(rates) == pytest.approx(EVALUATION.alpha)
        with pytest.raises(StudyError, match="is spent"):
            spend(EVALUATION, EVALUATION.expected_candidates)


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


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_noise_floor_is_the_spread_over_seeds_within_the_pools(shift: float) -> None:
    other = arm(101 + shift, 99 + shift, 103 + shift, 97 + shift, 100 + shift, None, start=9)
    spread, found = noise_floor(BASE | {6: None}, other, "maximize")
    assert spread == pytest.approx(math.sqrt((40 + 20) / 8))  # sums of squares, both halves
    p = differ(BASE, other, "maximize")
    if shift:
        assert p is not None and p < 1e-6
    else:
        assert p is None and found.p_better > 0.2 and found.p_worse > 0.2


def test_metric_names_are_unique() -> None:
    values = contract_values()["metrics"]
    values["diagnostics"] = [{"name": "return", "source": values["primary"]["source"]}]
    with pytest.raises(ValueError, match="used twice: return"):
        Metrics(**values)

"""Rules of the section `reward`, on what is written; `reward_runs` looks at what a run logged."""

from __future__ import annotations

import re

from assay.design.problem import Problem, Reward, RewardTerm
from assay.design.rules import Hits, Rules, repeated
from assay.design.sizes import assumed_gamma, assumed_steps, episode_sum, term_range, term_size
from assay.design.units import comparable, unknown

RULES = Rules("reward")
EACH = RULES.each("terms")
DOMINANT = 0.8  # share of the summed size from which one term drowns the others
LARGEST, SMALLEST = 1000.0, 0.1  # sizes of returns that critics fit without normalisation
UNSEEN = 0.01  # discounted share of a late reward that is too small to learn from
FAR = 200  # steps to a reward that random actions rarely take in the right order
_PHI_NEXT = re.compile(r"\w+\(\s*(s'|s_next|next_s(tate)?)\s*\)")
_PHI_NOW = re.compile(r"-\s*\w+\(\s*(s|state)\s*\)")


def _ending(problem: Problem, kind: str) -> bool:
    return problem.mdp is not None and any(one.kind == kind for one in problem.mdp.endings)


def _worth(term: RewardTerm, problem: Problem) -> float | None:
    return term_size(term, assumed_gamma(problem), assumed_steps(problem))


def _real(reward: Reward) -> list[RewardTerm]:
    """Return the terms that change what is best: potentials do not."""
    return [term for term in reward.terms if not term.potential]


@RULES.add("warning", "Nothing can be said about a reward without terms.", "List its terms.")
def empty(reward: Reward, problem: Problem) -> Hits:
    """There is a reward, and no term of it is written down."""
    if reward.source != "none" and not reward.terms:
        yield "reward.terms", "there are none"


@RULES.add(
    "error",
    "A reward that exists has terms, and one that does not has none.",
    "Remove the terms, or set source: known.",
    contradiction=True,
)
def none_with_terms(reward: Reward, problem: Problem) -> Hits:
    """The reward is said not to exist, and has terms."""
    if reward.source == "none" and reward.terms:
        yield "reward.source", f"it is none, and there are {len(reward.terms)} terms"


@RULES.add(
    "error",
    "Without a reward somebody has to show what is wanted.",
    "Describe demonstrations (data or a teacher), or write a reward.",
)
def none_without_expert(reward: Reward, problem: Problem) -> Hits:
    """There is neither a reward nor anybody to imitate."""
    if reward.source == "none" and problem.demonstrations is None:
        yield "reward.source", "it is none, and there are no demonstrations"


@RULES.add("error", "One hides the other in logs and tables.", "Rename one of them.")
def duplicate_name(reward: Reward, problem: Problem) -> Hits:
    """Two terms have the same name."""
    return repeated("reward.terms", reward.terms)


@EACH(
    "warning",
    "Without it nobody knows which term decides.",
    "Write the smallest and largest value before the weight.",
)
def range_missing(term: RewardTerm, problem: Problem) -> Hits:
    """A term has no range."""
    if term_range(term) is None:
        yield ".low", f"'{term.name}' has no low or no high"


@EACH("error", "No value lies between them.", "Correct one of them.")
def range_order(term: RewardTerm, problem: Problem) -> Hits:
    """A term's smallest value is not below its largest."""
    if term.low is not None and term.high is not None and term.low >= term.high:
        yield ".low", f"'{term.name}': {term.low:g} to {term.high:g}"


@EACH("warning", "It changes nothing.", "Remove the term, or give it a weight.")
def zero_weight(term: RewardTerm, problem: Problem) -> Hits:
    """A term has the weight 0."""
    if term.weight == 0:
        yield ".weight", f"'{term.name}' has the weight 0"


@RULES.add(
    "warning",
    "The agent learns that term, and the others are noise to it.",
    "Lower its weight until terms that matter are of one size per episode.",
)
def dominance(reward: Reward, problem: Problem) -> Hits:
    """One term is most of the reward of an episode."""
    sizes = {t.name: _worth(t, problem) or 0.0 for t in _real(reward)}
    whole = sum(sizes.values())
    goals = {term.name for term in reward.terms if term.goal}
    for index, term in enumerate(reward.terms):
        share = sizes.get(term.name, 0.0) / whole if whole else 0.0
        if len(sizes) > 1 and share > DOMINANT and term.name not in goals:
            yield f"reward.terms[{index}].weight", f"'{term.name}' is {share:.0%} of an episode"


@RULES.add(
    "warning",
    "Critics fit returns of about 1 to 100; others make losses explode or vanish.",
    "Scale the weights, or set normalize_reward=true in the run.",
)
def size(reward: Reward, problem: Problem) -> Hits:
    """The discounted return of an episode is very large or very small."""
    sizes = [_worth(term, problem) for term in reward.terms]
    if sizes and all(one is not None for one in sizes):
        whole = sum(one or 0.0 for one in sizes)
        if not SMALLEST <= whole <= LARGEST:
            yield "reward.terms", f"returns reach {whole:.3g}"


@EACH(
    "warning",
    "From the first steps of an episode it is too small to be seen.",
    "Raise mdp.gamma, shorten episodes, or add a potential that leads there.",
)
def discounted_away(term: RewardTerm, problem: Problem) -> Hits:
    """A reward at the end of an episode is discounted to almost nothing."""
    gamma, steps = assumed_gamma(problem), assumed_steps(problem)
    if term.kind == "terminal" and gamma**steps < UNSEEN:
        worth = f"gamma={gamma:g} leaves {gamma**steps:.1g} of it over {steps:,} steps"
        yield "", f"'{term.name}': {worth}"


@RULES.add(
    "warning",
    "Going on is worth more than being done, so that the agent avoids success.",
    "Reward success with more than the rest of an episode, or punish every step.",
)
def survival(reward: Reward, problem: Problem) -> Hits:
    """Every step pays, and success ends the pay."""
    if not _ending(problem, "success"):
        return
    spans = [(t, term_range(t)) for t in _real(reward)]
    paid = sum(span[1] for term, span in spans if span is not None and term.kind == "dense")
    floor = sum(span[0] for term, span in spans if span is not None and term.kind == "dense")
    prize = sum(span[1] for term, span in spans if span is not None and term.kind != "dense")
    rest = paid * episode_sum(assumed_gamma(problem), assumed_steps(problem))
    if floor >= 0 and paid > 0 and rest > prize:
        yield "reward.terms", f"going on pays up to {rest:.3g}, and success {prize:.3g}"


@RULES.add(
    "warning",
    "Ending the episode by a failure costs less than going on.",
    "Punish failure with more than the rest of an episode, or pay for every step alive.",
)
def suicide(reward: Reward, problem: Problem) -> Hits:
    """Every step costs, and failure ends the cost."""
    if not _ending(problem, "failure"):
        return
    spans = [(t, term_range(t)) for t in _real(reward)]
    best = sum(span[1] for term, span in spans if span is not None and term.kind == "dense")
    cost = sum(span[0] for term, span in spans if span is not None and term.kind == "dense")
    penalty = -sum(span[0] for term, span in spans if span is not None and term.kind != "dense")
    rest = -cost * episode_sum(assumed_gamma(problem), assumed_steps(problem))
    if best <= 0 and rest > 0 and penalty < rest:
        yield "reward.terms", f"going on costs up to {rest:.3g}, and failure {penalty:.3g}"


@EACH(
    "error",
    "Only gamma * phi(s') - phi(s) leaves the best policy as it is (Ng et al. 1999).",
    "Write it in that form, with the gamma of the learner, or set potential: false.",
)
def potential(term: RewardTerm, problem: Problem) -> Hits:
    """A term that is meant as a potential does not have the form of one."""
    form = term.form or ""
    discounted = "gamma" in form or (assumed_gamma(problem) == 1 and bool(form))
    right = discounted and _PHI_NEXT.search(form) and _PHI_NOW.search(form)
    if term.potential and not right:
        yield ".form", f"'{term.name}' is {term.form or 'not written'}"


@RULES.add(
    "warning",
    "An agent that collects the proxies and never does the task is then the best one.",
    "Weigh the goal above all proxies together, turn proxies into potentials, or remove them.",
)
def hacking(reward: Reward, problem: Problem) -> Hits:
    """Terms besides the goal pay more in an episode than the goal does."""
    goals = [_worth(term, problem) or 0.0 for term in reward.terms if term.goal]
    spans = [(term, term_range(term)) for term in _real(reward) if not term.goal]
    paying = [t for t, span in spans if span is not None and span[1] > 0]
    proxies = sum(_worth(term, problem) or 0.0 for term in paying)
    if goals and proxies > sum(goals):
        names = ", ".join(term.name for term in paying)
        yield "reward.terms", f"{names} pay up to {proxies:.3g}, and the goal {sum(goals):.3g}"


@RULES.add(
    "note",
    "Without it nobody can check whether the agent does the task or games the reward.",
    "Set goal: true on the term that the task is about.",
)
def no_goal(reward: Reward, problem: Problem) -> Hits:
    """No term is marked as what the task is about."""
    if len(reward.terms) > 1 and not any(term.goal for term in reward.terms):
        yield "reward.terms", "no term has goal: true"


@RULES.add(
    "error",
    "A sum of metres and seconds means nothing, whatever the weights are.",
    "Give weights units of their own by leaving reward.unit out, or convert the term.",
)
def units(reward: Reward, problem: Problem) -> Hits:
    """A term has a unit that cannot be compared with that of the reward."""
    for index, term in enumerate(reward.terms):
        if reward.unit and term.unit and not comparable(reward.unit, term.unit):
            place = f"reward.terms[{index}].unit"
            yield place, f"'{term.unit}' cannot be compared with '{reward.unit}'"


@EACH("warning", "It cannot be compared with others.", "Write SI units, or 1 for none.")
def unit_unknown(term: RewardTerm, problem: Problem) -> Hits:
    """A unit is not known."""
    yield from ((".unit", text) for text in unknown(term.unit))


@RULES.add(
    "warning",
    "Beyond the bound more of it is worth nothing, and terms become equal.",
    "Raise the bound, or lower the weights.",
)
def clipped(reward: Reward, problem: Problem) -> Hits:
    """The reward of a step is cut below what a term can be."""
    for index, term in enumerate(reward.terms):
        span = term_range(term)
        if reward.clip is not None and span is not None and max(map(abs, span)) > reward.clip:
            most = max(map(abs, span))
            yield f"reward.terms[{index}]", f"'{term.name}' reaches {most:g}; clip={reward.clip:g}"


@RULES.add(
    "warning",
    "Random actions rarely find it, and without it nothing is learned.",
    "Relabel goals (mdp.goals: true, her=future), reward novelty (rnd), add demonstrations, or "
    "shape it with a potential.",
)
def sparse(reward: Reward, problem: Problem) -> Hits:
    """The only reward is rare, episodes are long, and nothing helps to find it."""
    helped = problem.demonstrations is not None or bool(problem.mdp and problem.mdp.goals)
    rare = reward.terms and all(term.kind != "dense" for term in reward.terms)
    if rare and not helped and assumed_steps(problem) > FAR:
        steps = f"{assumed_steps(problem):,} steps"
        yield "reward.terms", f"no term is dense, and episodes have {steps}"

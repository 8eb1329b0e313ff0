"""What a repository measures, and what of it could get worse unnoticed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.study.files.records import Answer
from assay.study.repo.answers import settings
from assay.study.repo.answers.ranking import THRESHOLD, Found, ranked
from assay.study.repo.files import words
from assay.study.repo.measures import is_metric
from assay.study.repo.repository import Repository
from assay.study.repo.walk import Facts, Helper, Spoken
from assay.study.repo.words import (
    AXES,
    GUARDRAIL_WORDS,
    HANDS_ON,
    NO_GUARDRAIL,
    NO_PRIMARY,
    OUTCOME_WORDS,
)

METRICS, GUARDRAILS = 250, 100
_OFF, _PRINTED, _KEPT = "off by default", "printed", "kept"
# Words of settings that turn a logger on, as whoever wants a metric does.
_LOGGERS = {"wandb", "tensorboard", "track", "log", "logger", "logging", "writer", "tb", "verbose"}
_GUARDRAIL_PAIRS = (
    {"action", "rate"}, {"action", "smooth"}, {"dof", "acc"}, {"joint", "acc"}, {"out", "bounds"},
    {"off", "track"}, {"bad", "orientation"}, {"error", "vel"}, {"action", "acc"},
)  # fmt: skip
# What could be a study's primary metric comes first.
_PROMISING = (
    {"success", "successes", "solved", "win", "winrate", "completion", "successful"},
    {
        "return", "returns", "reward", "rewards", "rew", "score", "scores", "fitness", "ret",
        "hypervolume", "eprewmean",
    },
    {
        "elo", "profit", "profits", "sharpe", "pnl", "wins", "accuracy", "worth", "makespan",
        "regret", "cost",
    },
    {"length", "error", "tracking", "len"},
)  # fmt: skip
_HELD_OUT = {"eval", "evaluation", "evaluate", "test", "evaluator", "val", "validation", "testing"}
_WHOLE_EPISODES = {"episodic", "episode", "ep", "epi", "total", "eps", "episodes", "undiscounted"}
_MEAN = {"mean", "avg", "average", "iqm", "median"}
_EXTREME = {
    "max", "min", "std", "best", "worst", "last", "per", "step", "raw", "shaped", "history",
}  # fmt: skip
_PLACE = re.compile(r"\{(\w+)\}")
_VALUES = 6  # of one place
# What a name consists of that says no more than that it is an outcome.
_OUTCOMES = ("reward", "return", "returns", "score")
# Names of variables that are given other things elsewhere.
_ANY = {"name", "key", "k", "tag", "metric", "n", "i", "label", "title", "id", "env", "env_id"}
_WHERE = {"eval", "evaluation", "test", "val", "episode", "rollout", "train"}


def metrics(repo: Repository) -> tuple[Answer, ...]:
    """Return the names under which results are logged, the most promising first."""
    found = [*_logged(repo), *_handed_on(repo), *_helped(repo)]
    found += filled(repo, found)
    # What is only printed or kept counts where nothing that is logged could decide a study.
    recorded = any(
        item.confidence >= 0.65 and _decides(str(item.value)) and _distance(repo, item) == 0
        for item in found
    )
    if not recorded or [a.value for a in settings.logging(repo)][:1] == ["stdout"]:
        found += _logged(repo, printed=True)
    if not recorded:
        found += _kept(repo)
    far: dict[str, int] = {}
    tested = set()
    for item in found:
        if item.confidence >= THRESHOLD:
            distance = _distance(repo, item)
            far[str(item.value)] = min(distance, far.get(str(item.value), 2))
            said = recorded and item.note == _PRINTED
            if not distance and not said and _HELD_OUT & set(words(repo.around(item.place))):
                tested.add(str(item.value))

    # What a run keeps its best weights by decides, whatever it is called.
    keeps = set() if recorded else _keeps_best(repo)

    def order(name: str, sure: float) -> tuple[int, ...]:
        near = far.get(name, 2)
        promised = promise(name, sure, near, tested=name in tested)
        return (near, -1, *promised) if name in keeps else promised

    return ranked(found, METRICS, key=order)


def _distance(repo: Repository, item: Found) -> int:
    """Return how far what logs something is from the commands.

    What is off by default is far, and what an evaluation only prints is for people. What is kept
    counts by what an evaluation returns.
    """
    if item.note == _OFF:
        return 2
    near = repo.distance(item.place, *(("train",) if item.note == _PRINTED else ()))
    if item.note == _KEPT and not _HELD_OUT & set(words(repo.around(item.place))):
        return max(near, 1)  # nothing says that it is ever logged
    return near


def _kept(repo: Repository) -> list[Found]:
    """Return the outcomes that training keeps, where nothing says under what name it logs them."""
    return [
        Found(hit.name, f"{fact.path}:{hit.line}", hit.confidence, note)
        for fact in repo.relevant()
        for note, hits in ((_KEPT, fact.kept), ("", fact.beats))
        for hit in hits
    ]


def _keeps_best(repo: Repository) -> set[str]:
    """Return the keys by whose values the commands tell the best so far."""
    return {
        hit.name
        for fact in repo.relevant()
        for hit in fact.beats
        if hit.confidence >= 0.7 and not repo.distance(f"{fact.path}:{hit.line}")
    }


def _logged(repo: Repository, *, printed: bool = False) -> list[Found]:
    """Return what files log by name, or what they print."""
    holds = settings.by_default(repo)
    found = []
    for fact in repo.searched():
        nearby = fact.path in repo.own
        for hit in fact.metrics:
            name = hit.name.removeprefix("stdout:")
            if (name != hit.name) is printed and _measures(name):
                confidence = hit.confidence - (0.0 if nearby else 0.1)
                asked = tuple(c for c in hit.under if not set(words(c[0])) & _LOGGERS)
                note = _OFF if holds(asked) is False else _PRINTED if printed else ""
                found.append(Found(name, f"{fact.path}:{hit.line}", confidence, note))
    return found


def _helped(repo: Repository) -> Iterable[Found]:
    """Yield the names that are given to functions which log what they are given."""
    helpers: dict[str, list[tuple[str, Helper]]] = {}
    for fact in repo.searched():
        for function, helper in fact.helpers.items():
            helpers.setdefault(function, []).append((fact.path, helper))
    for fact in repo.searched() if helpers else ():
        spoken = [item for item in fact.spoken if item.function in helpers]
        used = {item.path for item in repo.closure(fact.path, 6)} if spoken else set()
        used |= repo.own if fact.path in repo.own else set()
        for item in spoken:
            for path, helper in helpers[item.function]:
                for name in _filled(helper, item) if path in used else ():
                    if is_metric(name) and _measures(name):
                        yield Found(name, f"{fact.path}:{item.line}", 0.7)


def _filled(helper: Helper, call: Spoken) -> Iterable[str]:
    """Yield the names under which a helper logs what a call gives it."""

    def named(argument: str | int) -> str:
        known = helper.arguments
        if isinstance(argument, int):
            return known[argument] if argument < len(known) else ""
        return argument

    texts = dict(helper.defaults) | {named(argument): text for argument, text in call.texts}
    template = re.sub(r"\{(\w+)\}", lambda m: texts.get(m[1], m[0]), helper.template)
    if helper.keys:
        for argument, names in call.keys:
            if named(argument) == helper.argument:
                yield from (template.replace("{}", name) for name in names)
    elif helper.argument in texts:
        yield template.replace("{}", texts[helper.argument])


def _handed_on(repo: Repository) -> Iterable[Found]:
    """Yield the keys of dictionaries that one function returns and another logs."""
    makers: dict[str, list[Facts]] = {}
    for fact in repo.searched():
        for function, keys in fact.returned.items():
            if keys:
                makers.setdefault(function, []).append(fact)
    for fact in repo.searched():
        for logged in fact.logged:
            # `to_dict` gives settings back as well, and what is not used here is another's.
            used = {item.path for item in repo.closure(fact.path, 6)}
            used |= repo.own if fact.path in repo.own else set()
            named = set(words(logged.function))
            function = logged.function.rpartition(".")[2]
            known = [
                maker
                for maker in makers.get(function, [])
                if maker.path in used
                and HANDS_ON & (named | set(words(maker.path.rpartition("/")[2])))
            ]
            if not known and is_metric(logged.instead) and _measures(logged.instead):
                place = f"{fact.path}:{logged.line}"
                yield Found(logged.instead, place, max(logged.confidence - 0.1, 0.5))
            own = [maker for maker in known if maker is fact]
            for maker in own or known:
                for hit in maker.returned[function]:
                    name = logged.template.replace("{}", hit.name)
                    if is_metric(name) and _measures(name):
                        sure = logged.confidence - (0.0 if own else 0.15)
                        yield Found(name, f"{maker.path}:{hit.line}", max(sure, 0.5))


def guardrails(repo: Repository, metrics: Iterable[Answer]) -> tuple[Answer, ...]:
    """Return the measures that must not get worse: logged, in an info, or terms of a reward."""
    extra = set(repo.hints.guardrails)
    found = [
        Found(answer.value, place, max(answer.confidence * 0.9, THRESHOLD), "logged")
        for answer in metrics
        for place in answer.evidence[:1]
        if _guards(str(answer.value), extra)
    ]
    for fact in repo.searched():
        for hit in fact.infos:
            if _guards(hit.name, extra):
                place = f"{fact.path}:{hit.line}"
                found.append(Found(hit.name, place, min(hit.confidence, 0.65), "info"))
        for slot, name, _, line in fact.terms:
            if name and slot in ("reward", "termination") and _guards(name, extra):
                place = f"{fact.path}:{line}"
                found.append(Found(name, place, 0.6, f"{slot} term"))
    return ranked(found, GUARDRAILS, noted=True)


def _guards(name: str, extra: set[str]) -> bool:
    named = set(words(name))
    if named & NO_GUARDRAIL:
        return False
    return bool(named & (GUARDRAIL_WORDS | extra)) or any(p <= named for p in _GUARDRAIL_PAIRS)


def _measures(name: str) -> bool:
    """Return whether a logged name is a metric, and no axis such as `time/step`."""
    group, _, last = name.lower().replace(" ", "_").rpartition("/")
    if not re.search("[A-Za-z]{2}", name):
        return False
    # `rewards/step` is the reward by steps.
    return last not in AXES or bool(set(words(group)) & (OUTCOME_WORDS | {"length", "lengths"}))


def is_outcome(name: str) -> bool:
    """Return whether a study could decide by a metric: success, return, score, length, error."""
    return len(promise(name, 1.0, 0)) > 1


def _decides(name: str) -> bool:
    """Return whether a name that is known in full is a success, a return or a score."""
    named = set(words(name))
    return "{" not in name and bool(named & (_PROMISING[0] | _PROMISING[1])) and is_outcome(name)


def promise(name: str, confidence: float, far: int, *, tested: bool = False) -> tuple[int, ...]:
    """Order names by how well a study could decide by them: evaluation, outcome, mean.

    Args:
        name: What is logged.
        confidence: How sure that is.
        far: How far that is from the commands.
        tested: Whether an evaluation logs it, whatever its name.
    """
    parts = words(name)
    named = set(parts)
    if named & NO_PRIMARY:
        return (9,)
    outcome = not (named & {"evaluation", "eval"} and named <= {"evaluation", "eval", "mean"})
    named |= set() if outcome else {"score"}  # `evaluation` alone is its outcome
    for rank, group in enumerate(_PROMISING):
        if named & group:
            held_out = not named & _HELD_OUT and not (tested and not named & {"train", "training"})
            whole = not named & _WHOLE_EPISODES
            extreme = bool(named & _EXTREME) - bool(named & _MEAN) + 2 * ("best" in named)
            unsure = 2 if "{" in name or not outcome else (confidence < 0.7) + (confidence < 0.6)
            late = held_out + 2 * (rank > 1)
            # A return beside it says more than a length, or than a name that is not known.
            far = max(far, 1) if rank > 1 or "{" in name else far
            return far, late, unsure, rank, extreme, whole, len(parts)
    return (8,)


# ---------------------------------------------------------------------- names made at run time


def filled(repo: Repository, found: Iterable[Found]) -> list[Found]:
    """Return names such as `{phase}/reward` with what calls and defaults put into their places."""
    open_names = [item for item in found if _PLACE.search(str(item.value))]
    if not open_names:
        return []
    values = _values(repo)
    plain = {str(item.value) for item in found if repo.distance(item.place) == 0}
    made = []
    for item in open_names:
        for name in _fill(str(item.value), values, plain):
            if is_metric(name):
                made.append(Found(name, item.place, min(item.confidence + 0.15, 0.9), item.note))
    return made


def _fill(name: str, values: dict[str, list[str]], plain: set[str]) -> list[str]:
    """Return what a name can become; none where a place stays open."""
    names = [name]
    for place in dict.fromkeys(_PLACE.findall(name)):
        known = values.get(place, [])
        if not known and _WHERE & set(words(_PLACE.sub("", name))):
            # `eval/episode_{key}`, where the rewards are among what is summed up.
            known = [outcome for outcome in _OUTCOMES if outcome in plain][:1]
        names = [n.replace(f"{{{place}}}", text) for n in names for text in known[:_VALUES]]
    return names


def _values(repo: Repository) -> dict[str, list[str]]:
    """Return the strings that arguments and variables get, by their names."""
    values: dict[str, dict[str, None]] = {}
    for fact in repo.relevant():
        for name, texts in fact.texts.items():
            if name not in _ANY:
                values.setdefault(name, {}).update(dict.fromkeys(texts))
        for call in fact.spoken:
            for argument, text in call.texts:
                if (
                    isinstance(argument, str)
                    and argument not in _ANY
                    and re.fullmatch(r"[\w-]+", text)
                ):
                    values.setdefault(argument, {}).setdefault(text)
    return {name: list(texts) for name, texts in values.items()}

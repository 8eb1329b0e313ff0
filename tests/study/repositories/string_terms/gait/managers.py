"""The shape of a term."""

from dataclasses import dataclass, field


@dataclass
class Term:
    func: str
    weight: float = 0.0
    params: dict = field(default_factory=dict)


class RewardTermCfg(Term):
    pass


class TerminationTermCfg(Term):
    pass


class CurriculumTermCfg(Term):
    pass


class RandomizationTermCfg(Term):
    pass

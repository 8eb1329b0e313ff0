"""The walking preset: terms name what they call as strings."""

from dataclasses import dataclass

from gait.managers import CurriculumTermCfg, RandomizationTermCfg, RewardTermCfg, TerminationTermCfg

rewards = {
    "upright": RewardTermCfg(func="gait.terms.rewards:upright", weight=1.0),
    "foot_slip": RewardTermCfg(func="gait.terms.rewards:FootSlip", weight=-0.1),
}
terminations = {"fallen": TerminationTermCfg(func="gait.terms.termination_fns:fallen")}
curriculum = {"slope": CurriculumTermCfg(func="gait.terms.slope:raise_slope")}
randomization = {
    "friction": RandomizationTermCfg(
        func="gait.terms.slope:draw_friction", params={"range": (0.5, 1)}
    ),
}


@dataclass
class Experiment:
    algo: str = "gait.ppo:PPO"
    checkpoint: str = ""

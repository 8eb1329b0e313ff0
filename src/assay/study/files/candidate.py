"""A candidate: a change, and how it is to be found out whether it is better."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from assay.study.files.base import Document, Kind, Name, Part, Text

LONGEST_ID = 46  # of a candidate; the names of its runs add phase, seed and attempt


class BudgetRequest(Part):
    """What a candidate asks for, per run."""

    wall_clock_hours: float = Field(gt=0, description="Of one run.")
    gpu_hours: float = Field(0.0, ge=0, description="Of one run.")


class Curriculum(Part):
    """What a curriculum candidate must say."""

    schedule: Text = Field(description="Weights or difficulty over progress.")
    final_distribution: Text = Field(description="What training ends on: the target task.")


class EnvironmentGeneration(Part):
    """What an environment-generation candidate must say."""

    learnability: Text = Field(description="Evidence that the new cases can be learned.")
    bridge: Text = Field(description="From which incumbent failures to which target cases.")
    diversity: Text = Field(description="Constraints that keep the cases varied.")
    held_out: Text = Field(description="What stays unseen, and stays unchanged.")


class Change(Part):
    """What differs from the incumbent."""

    parameters: dict[str, Any] = Field({}, description="Settings and their new values.")
    patch: str = Field("", description="A unified diff against the incumbent's commit.")


class Candidate(Document):
    """A change that is held to be better, and how that is to be found out."""

    id: Name
    task: Name
    study: Name
    kind: Kind
    hypothesis: Text = Field(description="What should happen, and why.")
    change: Change = Field(Change())
    command: tuple[str, ...] = Field(
        (), description="The contract's baseline command, if it is stated; no other is accepted."
    )
    seeds: tuple[int, ...] = Field(
        (), description="Promotion seeds, if they are stated; they must be the contract's pool."
    )
    budget: BudgetRequest
    expected: Text = Field(description="Which metric moves which way, and how far.")
    guardrails: tuple[str, ...] = Field((), description="What could get worse.")
    invariants: tuple[str, ...] = Field(
        (),
        description="What must stay as it is, in words for people; what is enforced are the "
        "contract's guardrails, scope and protected files.",
    )
    rollback: Text = Field(description="How it is undone.")
    proposer: str = Field("agent", description="Who proposed it.")
    evidence: tuple[str, ...] = Field((), description="Earlier runs and files it builds on.")
    reflection: str = Field("", description="Reward reflection it builds on.")
    probe: str = Field("", description="Probe summary it builds on.")
    why_none: str = Field(
        "",
        description="Why there is no reflection or probe; of a reflection the contract has to "
        "say so as well, in experiment.exceptions.reward-reflection.",
    )
    curriculum: Curriculum | None = Field(None)
    environment: EnvironmentGeneration | None = Field(None)

    @field_validator("id")
    @classmethod
    def _leaves_room(cls, name: str) -> str:
        if len(name) > LONGEST_ID:
            raise ValueError(
                f"it has {len(name)} characters; {LONGEST_ID} at most, as runs are named after it"
            )
        return name

    @model_validator(mode="after")
    def _complete(self) -> Candidate:
        missing = None
        if self.kind == "reward-tuning" and not self.reflection:
            missing = "reward tuning builds on a reward reflection; name it in 'reflection'"
        elif self.kind == "reward-engineering" and not (self.reflection or self.why_none):
            missing = "name a reward reflection, or say in 'why_none' why there is none"
        elif self.kind == "dr-tuning" and not (self.probe or self.why_none):
            missing = "name a probe summary, or say in 'why_none' why a probe is impossible"
        elif self.kind.startswith("curriculum") and self.curriculum is None:
            missing = "a curriculum candidate fills in 'curriculum'"
        elif self.kind == "environment-generation" and self.environment is None:
            missing = "an environment-generation candidate fills in 'environment'"
        elif self.kind == "baseline" and (self.change.parameters or self.change.patch):
            missing = "the baseline changes nothing"
        elif self.kind not in ("baseline", "dr-probe") and self.change == Change():
            missing = "it changes nothing; give parameters or a patch"
        if missing:
            raise ValueError(missing)
        return self

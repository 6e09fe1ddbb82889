"""The published scores of checkpoints, with their settings and sources. Does not import torch."""

from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ..config import checked, read_toml
from ..params import SampleParams
from ..spec import Loading

FILE = Path(__file__).with_name("published.toml")
# Points. Where one checkpoint and setting were measured twice, by two harnesses or two groups, the
# figures are up to 2.4 points apart (HumanEval of LLaDA-8B-Instruct and of Dream-v0-Instruct).
TOLERANCE = 3.0


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Score(_Table):
    """A published score, and how to measure it here: one sample per problem, without a push."""

    task: str
    protocol: str | None = None
    score: tuple[float, ...] = Field(min_length=1)  # per cent, one for each measurement
    problems: int = Field(ge=1)  # of each measurement
    settings: dict[str, Any]
    loading: Loading = Field(default_factory=lambda: Loading.model_validate({}))
    unpublished: tuple[str, ...] = ()  # settings that no source gives
    source: str
    settings_source: str | None = None
    measured_by: str = "the authors"
    differs: str | None = None  # from the published protocol
    tolerance: float = Field(TOLERANCE, ge=0)  # points

    @field_validator("score")
    @classmethod
    def _per_cent(cls, score: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 <= one <= 100 for one in score):
            raise ValueError(f"score must be in per cent, not {score}")
        return score

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := [name for name in self.unpublished if name not in self.settings]:
            raise ValueError(f"unpublished names {unknown[0]!r}, which is not a setting")
        checked(SampleParams, self._plain)
        return self

    @property
    def _plain(self) -> dict[str, Any]:
        return {"alpha": 0, **self.settings}

    @property
    def params(self) -> SampleParams:
        """The settings in full."""
        return checked(SampleParams, self._plain)

    @property
    def task_name(self) -> str:
        return self.task if self.protocol is None else f"{self.task}:{self.protocol}"


class Checkpoint(_Table):
    """What is known about a checkpoint, or about several of which the same is known."""

    names: tuple[str, ...] = Field(min_length=1)
    family: str
    scores: tuple[Score, ...] = ()
    missing: str | None = None  # why there is no score
    source: str | None = None  # of what `missing` says
    digest: str | None = None  # of the weights
    texts: tuple[tuple[str, str], ...] = ()  # prompts and answers that it was trained to read
    fingerprint: tuple[float, ...] = ()  # log-probabilities of hidden tokens of `texts`

    @model_validator(mode="after")
    def _either(self) -> Self:
        if bool(self.scores) == (self.missing is not None):
            raise ValueError(f"{self.names[0]} needs scores, or why there are none")
        if self.fingerprint and not self.texts:
            raise ValueError(f"{self.names[0]} has a fingerprint without the texts it is of")
        return self

    def score(self, task: str | None) -> Score:
        """Return the score on a task; without one, the first."""
        found = {one.task: one for one in self.scores}
        if task is None:
            return self.scores[0]
        if task not in found:
            known = ", ".join(found) or "none"
            raise ValueError(f"{self.names[0]} has no published score on {task!r}; known: {known}")
        return found[task]


class Published(_Table):
    checkpoint: tuple[Checkpoint, ...]

    @model_validator(mode="after")
    def _once(self) -> Self:
        names = [name for one in self.checkpoint for name in one.names]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is listed twice")
        return self


@cache
def published() -> tuple[Checkpoint, ...]:
    """Return all checkpoints of the table."""
    return checked(Published, read_toml(FILE)).checkpoint


def find_published(name: str) -> Checkpoint | None:
    """Return what is known about a checkpoint; None if it is not in the table."""
    return next((one for one in published() if name in one.names), None)

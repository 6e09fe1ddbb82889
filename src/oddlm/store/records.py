"""What the files of a run hold. Imports no torch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..spec import RunSpec
from ..versions import STORE

Stage = Literal["draw", "score"]
SPEC, ENVIRONMENT, SUMMARY, LOCK = "spec.json", "environment.json", "summary.json", "lock"
DRAWN, SCORES = "drawn.jsonl", "scores.jsonl"
FAILURES = "failures.jsonl"


class StoreError(ValueError):
    """A store that cannot be read or written as it is; the message says what to do."""


class RunHeldError(StoreError):
    """Another process is writing this run."""


class DamagedRunError(StoreError):
    """A file of one run cannot be read as what it should be; other runs are not concerned."""


def _storable(text: Any) -> Any:
    """A model may write half a surrogate pair, which no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_storable)]
Class = Annotated[int, Field(ge=0)]
Number = Annotated[
    float | None,
    BeforeValidator(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x),
]


class StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2] = STORE


class DrawnSample(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    text: Text
    length: int  # tokens before the first end token
    size: int  # all tokens
    ends: int  # end tokens among them
    finish_reason: str
    nfe: int  # network evaluations of its own
    logprob: Number = (
        None  # of the tokens before the end, under the network when they were written; rounded
    )
    tokens: tuple[int, ...] | None = None  # where they were asked for, as are
    logprobs: tuple[Number, ...] | None = None  # theirs


class Drawn(StoredFile):
    """The samples of one problem."""

    problem: Text
    digest: str  # of what was asked and what is right
    prompt: Text
    seed: int
    nfe: (
        int  # per sample that was kept, rounded up: those of a pool that were not have cost as much
    )
    seconds: float
    samples: tuple[DrawnSample, ...]


class Scored(StoredFile):
    """What can be said of the samples of one problem; column i is about sample i.

    Statistics need nothing else.
    """

    problem: Text
    correct: tuple[bool | None, ...]  # None: nothing scores it
    solutions: tuple[Class | None, ...]  # right samples of the same class have the same number
    diversity: Mapping[str, Number]
    nfe: int
    draw_seconds: float
    seconds: float
    answers: tuple[Text | None, ...]
    details: tuple[Text | None, ...]

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        if not len(self.correct) == len(self.solutions) == len(self.answers) == len(self.details):
            raise ValueError(
                f"problem {self.problem!r}: its columns are not about the same number of samples"
            )
        return self


class Statistics(BaseModel):
    """As much of a `Scored` as statistics need.

    Texts are the greater part of its line, and checks in Python of its time.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[2]
    problem: str
    correct: tuple[bool | None, ...]
    solutions: tuple[Class | None, ...]
    diversity: dict[str, float | None]  # what is not finite cannot be said
    nfe: int
    draw_seconds: float


class SampleRecord(DrawnSample):
    correct: bool | None = None
    answer: Text | None = None
    detail: Text | None = None


class Record(BaseModel):
    """One problem with all its samples, drawn and, as far as that was done, scored."""

    model_config = ConfigDict(frozen=True)

    problem: str
    prompt: str
    seed: int
    nfe: int
    seconds: float  # of drawing
    score_seconds: float
    diversity: Mapping[str, Number]
    samples: tuple[SampleRecord, ...]

    @classmethod
    def of(cls, drawn: Drawn, scored: Scored | None, folder: Path) -> "Record":
        if scored is not None and len(scored.correct) != len(drawn.samples):
            counts = f"{len(scored.correct)} verdicts on {len(drawn.samples)} samples"
            raise DamagedRunError(
                f"{folder / SCORES}: problem {drawn.problem!r} has {counts}; delete its line"
            )
        unknown: tuple[None, ...] = (None,) * len(drawn.samples)
        columns = (
            (unknown,) * 3 if scored is None else (scored.correct, scored.answers, scored.details)
        )
        return cls.model_construct(
            problem=drawn.problem,
            prompt=drawn.prompt,
            seed=drawn.seed,
            nfe=drawn.nfe,
            seconds=drawn.seconds,
            score_seconds=0.0 if scored is None else scored.seconds,
            diversity={} if scored is None else scored.diversity,
            samples=tuple(
                SampleRecord.model_construct(
                    **vars(sample), correct=correct, answer=answer, detail=detail
                )
                for sample, correct, answer, detail in zip(drawn.samples, *columns, strict=True)
            ),
        )

    @property
    def correct(self) -> list[bool]:
        return [bool(sample.correct) for sample in self.samples]


class Failure(StoredFile):
    """A problem that could not be drawn or scored, and why."""

    problem: Text
    stage: Stage
    error: Text  # one line
    traceback: Text


class Spec(StoredFile):
    id: str
    problems: int = Field(ge=1, lt=2**31)  # the most that were asked for
    spec: RunSpec


class Environment(StoredFile):
    starts: tuple[dict[str, Any], ...]


class Summary(StoredFile):
    id: str
    problems: int
    samples: int
    seconds: Number  # None: the log of an imported run does not say
    passed: Mapping[str, Number] | None  # None: nothing was scored
    diversity: Mapping[str, Number]
    imported: Text | None = (
        None  # the log that these numbers were taken from: the run has no records, and never had
    )


class Known(BaseModel):
    """As much of a line as tells whether it is there."""

    schema_version: Literal[2]
    problem: str
    digest: str = ""


class Place(NamedTuple):
    """Where the lines of a problem begin, in bytes."""

    drawn: int
    scored: int | None

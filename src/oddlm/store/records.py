"""The schema of the files of a run. Does not import torch."""

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
NETWORK = "network"  # key of a `Network` in a start


class StoreError(ValueError):
    """The store cannot be read or written as it is; the message says what to do."""


class RunHeldError(StoreError):
    """Another process is writing this run."""


class DamagedRunError(StoreError):
    """A file of one run is damaged or missing; other runs are not affected."""


def _storable(text: Any) -> Any:
    """Escape lone surrogates, which a model may write and UTF-8 cannot encode."""
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
    nfe: int  # network evaluations of this sample
    # sum over the tokens before the end, each under the network when it was committed; rounded
    logprob: Number = None
    tokens: tuple[int, ...] | None = None  # only with `keep_tokens`
    logprobs: tuple[Number, ...] | None = None  # of each token, likewise


class Drawn(StoredFile):
    """The samples of one problem."""

    problem: Text
    digest: str  # of the prompt and the target
    prompt: Text
    seed: int
    nfe: int  # per kept sample, rounded up; includes the cost of pool samples that were dropped
    seconds: float
    samples: tuple[DrawnSample, ...]


class Scored(StoredFile):
    """The verdicts and measures of one problem; entry i of each column belongs to sample i.

    Statistics need nothing else.
    """

    problem: Text
    correct: tuple[bool | None, ...]  # None: not scored
    solutions: tuple[Class | None, ...]  # correct samples of the same class share a number
    diversity: Mapping[str, Number]
    nfe: int
    draw_seconds: float
    seconds: float
    answers: tuple[Text | None, ...]
    details: tuple[Text | None, ...]

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        if not len(self.correct) == len(self.solutions) == len(self.answers) == len(self.details):
            raise ValueError(f"problem {self.problem!r}: its columns differ in length")
        return self


class Statistics(BaseModel):
    """The fields of a `Scored` that statistics need.

    Leaving out the texts skips most of the line; leaving out validators saves most of the time.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[2]
    problem: str
    correct: tuple[bool | None, ...]
    solutions: tuple[Class | None, ...]
    diversity: dict[str, float | None]  # None: not finite
    nfe: int
    draw_seconds: float


class SampleRecord(DrawnSample):
    correct: bool | None = None
    answer: Text | None = None
    detail: Text | None = None


class Record(BaseModel):
    """One problem with all its samples, and their scores if they have been scored."""

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
    problems: int = Field(ge=1, lt=2**31)  # largest number requested so far
    spec: RunSpec


class Network(BaseModel):
    """How busy the network was from the first drawing of a start to its end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(ge=0)
    busy: float = Field(ge=0, le=1)  # share of these seconds, mean over workers


class Environment(StoredFile):
    starts: tuple[dict[str, Any], ...]

    @model_validator(mode="after")
    def _networks(self) -> Self:
        for start in self.starts:
            if NETWORK in start:
                Network.model_validate(start[NETWORK])
        return self


class Summary(StoredFile):
    id: str
    problems: int
    samples: int
    seconds: Number  # None: missing from the log of an imported run
    passed: Mapping[str, Number] | None  # None: nothing was scored
    diversity: Mapping[str, Number]
    # the log that these numbers were imported from; such a run has no records
    imported: Text | None = None


class Known(BaseModel):
    """The fields of a line that identify its problem."""

    schema_version: Literal[2]
    problem: str
    digest: str = ""


class Place(NamedTuple):
    """The byte offsets of the lines of a problem."""

    drawn: int
    scored: int | None

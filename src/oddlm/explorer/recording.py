"""Recordings: a plain and a diverse run of one prompt with the same noise, as the explorer shows
them.

A recording holds the messages of `/v1/denoise` as they are, so that the page reads live runs and
recorded ones alike. The page makes recordings of what it shows (download); `oddlm record` makes
them here, beside a copy of the page that opens from disk.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .. import __version__
from ..files import write_whole
from ..lm import LM, encode_prompts
from ..params import SampleParams
from ..tasks import Problem, Task
from .assets import INDEX, STATIC, asset, embedded, write_static
from .frames import end_of, frames_of, start_of
from .messages import End, Start, StepFrame
from .usage import usage

RECORDINGS = "recordings.js"  # those that the page opens with
COPY_POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self' file:; \
style-src 'self' file:; img-src data:; base-uri 'none'; form-action 'none'">"""
REGISTER = "oddlm.register"  # the page's function that takes a recording


class Verdict(BaseModel):
    correct: bool | None = Field(
        description="null where the text could not be scored; `detail` says why."
    )
    answer: str | None
    detail: str


class TaskProblem(BaseModel):
    """Where a prompt comes from."""

    name: str
    problem: str
    question: str


class RecordedRun(BaseModel):
    """The messages of one run; without an end it broke off, and `error` says why."""

    start: Start
    steps: list[StepFrame]
    end: End | None
    verdicts: list[Verdict] | None
    error: str | None = None


class Recording(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal["oddlm-recording"] = "oddlm-recording"
    version: Literal[1] = 1
    oddlm: str = __version__
    title: str
    task: TaskProblem | None
    plain: RecordedRun
    diverse: RecordedRun

    @property
    def contrast(self) -> bool:
        """Does plain sampling repeat itself without solving the problem, where diverse sampling
        solves it?
        """
        plain, diverse = (
            [one.correct for one in run.verdicts or ()] for run in (self.plain, self.diverse)
        )
        texts = {sample.text for sample in self.plain.end.samples} if self.plain.end else set()
        return 2 * len(texts) <= self.plain.start.n and not any(plain) and any(diverse)


def record(
    lm: LM,
    model: str,
    prompt: str,
    n: int,
    params: SampleParams,
    task: Task | None,
    problem: Problem | None,
) -> Recording:
    """Both runs, with verdicts where a task can tell."""
    if params.plain:
        raise ValueError(
            "alpha 0 and objective 'none' push nothing apart: there is nothing to compare; give an alpha above 0"
        )
    if params.pool is not None:
        raise ValueError(
            "a recording shows every sample as it comes: there is no pool to choose from"
        )
    score = None if task is None or problem is None else lambda text: task.score(problem, text)
    plain = params.with_settings({"alpha": 0.0})
    origin = None
    if task is not None and problem is not None:
        origin = TaskProblem(name=task.name, problem=problem.id, question=task.question(problem))
    return Recording(
        title=prompt.strip() if origin is None else origin.question,
        task=origin,
        plain=_run(lm, model, prompt, n, plain, score),
        diverse=_run(lm, model, prompt, n, params, score),
    )


def _run(
    lm: LM,
    model: str,
    prompt: str,
    n: int,
    params: SampleParams,
    score: Callable[[str], Any] | None,
) -> RecordedRun:
    steps: list[StepFrame] = []
    (ids,) = encode_prompts(
        lm.tokenizer, [prompt], params.length, context=lm.info.context, raw=lm.raw
    )
    watch = frames_of(lm, positions=False)(steps.append)
    (samples,) = lm.generate([ids], n, params=params, observe=watch, progress=False)
    scores = (
        {} if score is None else {text: score(text) for text in {sample.text for sample in samples}}
    )
    verdicts = (
        [Verdict.model_validate(scores[sample.text], from_attributes=True) for sample in samples]
        if scores
        else None
    )
    return RecordedRun(
        start=start_of(model, lm.info, prompt, ids, n, params),
        steps=steps,
        end=end_of(samples, usage([ids], [samples], lm.info.end_ids), params.seed),
        verdicts=verdicts,
    )


def write_copy(folder: Path, recordings: Sequence[Recording]) -> Path:
    """The explorer with these recordings, to be opened from disk; gives the page's path."""
    try:
        write_static(INDEX, folder)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}") from None
    write_whole(folder / STATIC / RECORDINGS, as_script(recordings))
    for i, recording in enumerate(recordings):
        write_whole(folder / f"recording-{i + 1}.json", recording.model_dump_json().encode())
    page = folder / INDEX
    write_whole(
        page, asset(INDEX).replace(b'content="served">', f'content="copy">\n{COPY_POLICY}'.encode())
    )
    return page


def as_script(recordings: Iterable[Recording]) -> bytes:
    """A page from disk may load scripts but no JSON, so every recording is a call that registers
    it.
    """
    lines = (f"{REGISTER}({embedded(one.model_dump(mode='json'))});\n" for one in recordings)
    return "".join(lines).encode("ascii")

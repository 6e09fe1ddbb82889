"""Recordings: a plain and a diverse run of one prompt with the same noise, for the explorer.

A recording holds the unchanged messages of `/v1/denoise`, so that the page treats live and recorded
runs alike. The page can download a recording of the runs it shows. `oddlm record` makes recordings
with this module, together with a copy of the page that opens from disk.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .. import __version__
from ..files import write_whole
from ..lm import LM
from ..params import SampleParams
from ..prompts import encode_prompts
from ..tasks import Problem, Task
from .assets import INDEX, STATIC, asset, embedded, write_static
from .frames import end_of, frames_of, start_of
from .messages import End, Start, StepFrame
from .usage import usage

RECORDINGS = "recordings.js"  # the recordings that the page shows at first
COPY_POLICY = (
    """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; """
    """script-src 'self' file:; style-src 'self' file:; img-src data:; base-uri 'none'; """
    """form-action 'none'">"""
)
REGISTER = "oddlm.register"  # the page's function that takes a recording


class Verdict(BaseModel):
    correct: bool | None = Field(
        description="null if the text could not be scored; `detail` gives the reason."
    )
    answer: str | None
    detail: str


class TaskProblem(BaseModel):
    """The problem that a prompt comes from."""

    name: str
    problem: str
    question: str


class RecordedRun(BaseModel):
    """The messages of one run.

    If `end` is missing, the run failed, and `error` gives the reason.
    """

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
        """Whether only diverse sampling solves the problem, while plain sampling repeats itself.

        It repeats itself if at most half of its texts are distinct.
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
    """Record both runs, with verdicts if there is a task."""
    if params.plain:
        raise ValueError(
            "these settings have no repulsion (alpha 0 or objective 'none'), "
            "so there is nothing to compare: set alpha above 0"
        )
    if params.pool is not None:
        raise ValueError("a recording shows every sample, so it cannot use pool: leave pool out")
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
    """Write a copy of the explorer that opens from disk with these recordings; return its path."""
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
    """Return a script that registers each recording with a call.

    A page opened from disk may load scripts, but not JSON.
    """
    lines = (f"{REGISTER}({embedded(one.model_dump(mode='json'))});\n" for one in recordings)
    return "".join(lines).encode("ascii")

"""`oddlm sample` and `oddlm generate`: samples without scores."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app
from .bar import status_line
from .carry_out import carry_out, tell_trouble
from .options import (
    FOLDER,
    MODEL,
    ModelName,
    ModelOptions,
    Settings,
    StoreFolder,
    Work,
    check_out,
    grouped,
)

if TYPE_CHECKING:
    from ..core.step import StepEvent
    from ..spec import RunSpec
    from ..store import Record, SampleRecord


@app.command()
@grouped
def sample(
    prompt: Annotated[str, typer.Argument(help="What the samples answer.")],
    setting: Settings,
    model: ModelName = MODEL,
    n: Annotated[int, typer.Option(help="Samples.", min=1)] = 8,
    pause: Annotated[
        float, typer.Option(help="Seconds to look at each step, on a terminal.", min=0)
    ] = 0.05,
    store: StoreFolder = FOLDER,
    *,
    options: ModelOptions,
) -> None:
    """Draw samples of one prompt, and watch them come out of the noise.

    On a terminal the samples are drawn while they are denoised; tokens that plain sampling would
    not have written there and then are in colour, with a mark. Elsewhere the finished samples are
    printed, one after the other.

    The last line tells the seed S that this prompt derives from --seed: in Python,
    lm.generate(PROMPT, n, seed=S, ...) with the same settings gives the same samples.

    Example: oddlm sample "73,32,7,19,28" --length 24 --steps 12 --eos late
    """
    from rich.console import Console

    from ..experiments.executors.inline import InlineExecutor
    from ..experiments.run import Asked, Plan, run_plan
    from ..experiments.work import Batch, Options
    from ..lm import encode_prompts
    from ..store import Store
    from ..tasks import Problem
    from .views import Denoising

    digest = hashlib.sha256(prompt.encode("utf-8", "surrogateescape")).hexdigest()
    content = {"n": n, "seed": setting.seed, "params": setting.params(), "data_digest": digest}
    spec = _spec(model, options, content, [prompt])
    run = Asked(spec, (Problem("prompt", prompt, None),))
    Store(store).check()
    console = Console()
    steps_seen: list[Callable[[StepEvent], None]] = []  # filled in when the tokenizer is there

    def seen(event: "StepEvent") -> None:
        for see in steps_seen:
            see(event)

    executor = InlineExecutor(Options(**options.place, observe=(seen,)))
    with closing(executor):
        lm = executor.bench.lm(spec)
        encode_prompts(
            lm.tokenizer, [prompt], spec.params.length, context=lm.info.context, raw=lm.raw
        )  # or it is refused
        view = (
            Denoising(lm.tokenizer.decode, lm.info.end_ids, console)
            if console.is_terminal
            else None
        )
        steps_seen += [view, lambda _: time.sleep(pause)] if view else []
        with view.drawn() if view else nullcontext():
            known = Store(store).complete(spec)
            if known and view:
                executor.bench.run(
                    Batch(spec, run.problems)
                )  # it is stored, and to be watched all the same
            result = run_plan(Plan((run,)), Store(store), executor)
    for _, failure in result.failures:
        raise ValueError(failure.error.partition(": ")[2])
    for message in result.damaged:
        raise ValueError(message)
    (record,) = run.records(Store(store))
    if view:
        console.print(view.final())
    else:
        for one in record.samples:
            typer.echo(f"--- {one.index}\n{one.text}")
    typer.echo(f"--- seed {record.seed}")


@app.command()
@grouped
def generate(
    prompts: Annotated[
        Path,
        typer.Option("--in", help='JSONL of prompts: {"prompt": text}, with an "id" if you like.'),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="JSONL of samples, one per line, with the id of their prompt."),
    ],
    setting: Settings,
    work: Work,
    model: ModelName = MODEL,
    n: Annotated[int, typer.Option(help="Samples per prompt.", min=1)] = 16,
    *,
    options: ModelOptions,
) -> None:
    """Draw samples for every prompt of a file.

    The samples are stored prompt by prompt, and the same command resumes where it was stopped;
    --out is written when it ends, by Ctrl-C too. `oddlm score` takes that file as it is.

    Example: oddlm generate --in prompts.jsonl --out samples.jsonl --n 4 --length 24
    """
    from ..experiments.run import BOTH, Asked, Plan
    from ..store import Store
    from ..tasks import Problem
    from ..tasks.jsonl import digest, read_jsonl, text_field
    from ..text import number_of

    check_out(out)
    rows = read_jsonl(prompts, ("prompt",))
    problems = [
        Problem(str(row.get("id", i)), text_field(prompts, line, row, "prompt"), None)
        for i, (line, row) in enumerate(rows)
    ]
    content = {
        "n": n,
        "seed": setting.seed,
        "params": setting.params(),
        "data": str(prompts),
        "data_digest": digest(prompts),
    }
    spec = _spec(model, options, content, [problem.prompt for problem in problems])
    run = Asked(spec, tuple(problems))
    plan = Plan((run,))
    try:
        result = carry_out(plan, work, options, BOTH)
    finally:  # by Ctrl-C too
        drawn = run.records(Store(work.store)) if (work.store / spec.id).exists() else []
        if drawn:
            _write(out, drawn)
    typer.echo(f"{number_of(sum(len(record.samples) for record in drawn), 'sample')} in {out}")
    tell_trouble(plan, result, work.store)


def _spec(
    model: str, options: ModelOptions, content: dict[str, Any], prompts: Sequence[str]
) -> "RunSpec":
    """A run without a task, of the model as it is here and now; prompts that do not fit are
    refused.
    """
    from ..config import checked
    from ..experiments.run import check_spec, identified
    from ..spec import RunSpec

    spec = checked(RunSpec, {"model": model, "loading": options.loading, **content})
    check_spec(spec)
    options.check(model, prompts, spec.params.length)
    with status_line(f"looking for {model}"):
        return identified(spec)


def _write(out: Path, records: "Sequence[Record]") -> None:
    from ..files import write_whole

    lines = [
        json.dumps(
            {"id": record.problem, **_sample(sample), "seed": record.seed, "nfe": record.nfe}
        )
        for record in records
        for sample in record.samples
    ]
    write_whole(out, "".join(f"{line}\n" for line in lines).encode())


def _sample(sample: "SampleRecord") -> dict[str, Any]:
    kept = {"index", "text", "length", "finish_reason", "logprob", "tokens", "logprobs"}
    return sample.model_dump(include=kept, exclude_none=True)

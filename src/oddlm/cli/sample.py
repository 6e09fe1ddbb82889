"""`oddlm sample` and `oddlm generate`: samples without scores."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import DRAWING, app
from .bar import status_line
from .carry_out import carry_out, report_trouble
from .options import (
    FOLDER,
    MODEL,
    OUTPUT,
    SAMPLING,
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


@app.command(rich_help_panel=DRAWING)
@grouped
def sample(
    prompt: Annotated[str, typer.Argument(help="The prompt that the samples answer.")],
    *,
    n: Annotated[int, typer.Option(help="Samples to draw.", min=1, rich_help_panel=SAMPLING)] = 8,
    setting: Settings,
    model: ModelName = MODEL,
    pause: Annotated[
        float,
        typer.Option(
            help="Seconds to pause after each step, on a terminal.",
            min=0,
            rich_help_panel=OUTPUT,
        ),
    ] = 0.05,
    store: StoreFolder = FOLDER,
    options: ModelOptions,
) -> None:
    """Draw samples for one prompt, and watch them being denoised.

    On a terminal the samples are shown step by step; tokens that plain sampling would not have
    committed at that step are coloured and marked. Otherwise the finished samples are printed one
    after the other.

    The last line is the seed S derived from --seed and the prompt: in Python, lm.generate(PROMPT,
    n, seed=S, ...) with the same settings gives the same samples.

    Example: oddlm sample "73,32,7,19,28" --length 24 --steps 12 --eos late
    """
    from rich.console import Console

    from ..experiments.executors.inline import InlineExecutor
    from ..experiments.plan import Asked, Plan
    from ..experiments.run import run_plan
    from ..experiments.work import Batch, Options
    from ..prompts import encode_prompts
    from ..store import Store
    from ..tasks import Problem
    from .views import Denoising

    digest = hashlib.sha256(prompt.encode("utf-8", "surrogateescape")).hexdigest()
    content = {"n": n, "seed": setting.seed, "params": setting.params(), "data_digest": digest}
    spec = _spec(model, options, content, [prompt])
    run = Asked(spec, (Problem("prompt", prompt, None),))
    Store(store).check()
    console = Console()
    observers: list[Callable[[StepEvent], None]] = []  # filled once the tokenizer is loaded

    def observe(event: "StepEvent") -> None:
        for observer in observers:
            observer(event)

    executor = InlineExecutor(Options(**options.place, observe=(observe,)))
    with closing(executor):
        lm = executor.bench.lm(spec)
        # Raises ValueError if the prompt does not fit.
        encode_prompts(
            lm.tokenizer, [prompt], spec.params.length, context=lm.info.context, raw=lm.raw
        )
        view = None
        if console.is_terminal:
            view = Denoising(lm.tokenizer.decode, lm.info.end_ids, console)
            observers += [view, lambda _: time.sleep(pause)]
        with view.drawn() if view else nullcontext():
            if view and Store(store).complete(spec):
                executor.bench.run(Batch(spec, run.problems))  # stored already: run it to watch it
            result = run_plan(Plan((run,)), Store(store), executor)
    for _, failure in result.failures:
        raise ValueError(failure.error.partition(": ")[2])
    for message in result.damaged:
        raise ValueError(message)
    (record,) = run.records(Store(store))
    if view:
        console.print(view.final())
    else:
        for sample in record.samples:
            typer.echo(f"--- {sample.index}\n{sample.text}")
    typer.echo(f"--- seed {record.seed}")


@app.command(rich_help_panel=DRAWING)
@grouped
def generate(
    prompts: Annotated[
        Path,
        typer.Option(
            "--in",
            metavar="FILE",
            help='JSONL file of prompts: {"prompt": TEXT}, optionally with an "id".',
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="JSONL file to write: one sample per line, with the id of its prompt.",
        ),
    ],
    *,
    n: Annotated[
        int, typer.Option(help="Samples per prompt.", min=1, rich_help_panel=SAMPLING)
    ] = 16,
    setting: Settings,
    work: Work,
    model: ModelName = MODEL,
    options: ModelOptions,
) -> None:
    """Draw samples for every prompt of a file.

    Samples are stored prompt by prompt, and the same command resumes where it was stopped. The
    output file is written when the command ends, after Ctrl-C too; `oddlm score` reads it as it is.

    Example: oddlm generate --in prompts.jsonl --out samples.jsonl --n 4 --length 24
    """
    from ..experiments.plan import BOTH, Asked, Plan
    from ..store import Store
    from ..tasks import Problem
    from ..tasks.jsonl import digest, read_jsonl, text_field
    from ..text import number_of

    check_out(out)
    problems = [
        Problem(str(fields.get("id", i)), text_field(prompts, line, fields, "prompt"), None)
        for i, (line, fields) in enumerate(read_jsonl(prompts, ("prompt",)))
    ]
    content = {"n": n, "seed": setting.seed, "params": setting.params()}
    content |= {"data": str(prompts), "data_digest": digest(prompts)}
    spec = _spec(model, options, content, [problem.prompt for problem in problems])
    run = Asked(spec, tuple(problems))
    plan = Plan((run,))
    try:
        result = carry_out(plan, work, options, BOTH)
    finally:  # after Ctrl-C, too
        drawn = run.records(Store(work.store)) if (work.store / spec.id).exists() else []
        if drawn:
            _write(out, drawn)
    typer.echo(f"{number_of(sum(len(record.samples) for record in drawn), 'sample')} in {out}")
    report_trouble(plan, result, work.store)


def _spec(
    model: str, options: ModelOptions, content: dict[str, Any], prompts: Sequence[str]
) -> "RunSpec":
    """Return the spec of a run without a task; raise ValueError if a prompt does not fit."""
    from ..config import checked
    from ..experiments.identity import identified
    from ..experiments.plan import check_spec
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

"""`oddlm sample` and `oddlm generate`: samples without scores."""

import hashlib
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app
from .bar import problem_bar
from .options import (
    MODEL,
    Alpha,
    KeepTokens,
    Length,
    ModelName,
    ModelOptions,
    Objective,
    Seed,
    Settings,
    Steps,
    StoreFolder,
    Temperature,
    Together,
    check_out,
    sampling,
    takes_model,
)
from .runs import FOLDER

if TYPE_CHECKING:
    from ..core.step import Sample
    from ..evaluate import Runner
    from ..params import RunSpec
    from ..store import Row


@app.command()
@takes_model
def sample(
    prompt: Annotated[str, typer.Argument(help="What the samples answer.")],
    model: ModelName = MODEL,
    n: Annotated[int, typer.Option(help="Samples.", min=1)] = 8,
    alpha: Alpha = None,
    temperature: Temperature = None,
    objective: Objective = None,
    length: Length = None,
    steps: Steps = None,
    seed: Seed = 0,
    set_: Settings = None,
    pause: Annotated[float, typer.Option(help="Seconds to look at each step, on a terminal.", min=0)] = 0.05,
    store: StoreFolder = FOLDER,
    *,
    options: ModelOptions,
) -> None:
    """Draw samples of one prompt, and watch them come out of the noise.

    On a terminal the samples are drawn while they are denoised; tokens that plain sampling would not have written there and
    then are in colour, with a mark. Elsewhere the finished samples are printed, one after the other.

    The last line tells the seed S that this prompt derives from --seed: in Python, lm.generate(PROMPT, n, seed=S, ...) with the
    same settings gives the same samples.

    Example: oddlm sample "73,32,7,19,28" --length 24 --steps 12 --set eos=late
    """
    from rich.console import Console

    from ..evaluate import Runner, check_weights
    from ..store import Store
    from ..views import Denoising

    own = {"length": length, "steps": steps, "alpha": alpha, "temperature": temperature, "objective": objective}
    params = sampling(set_, **own)
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogateescape")).hexdigest()
    spec = _spec(model=model, loading=options.loading, n=n, seed=seed, params=params, data_digest=digest)
    spec = spec.model_copy(update={"model_digest": options.digest(model, [prompt], spec.params.length)})
    runner = Runner(Store(store), options.loader(model, [prompt], spec.params.length))
    runner.store.check()
    lm = runner.lm()
    check_weights(lm, spec)
    console = Console()
    began, derived = time.perf_counter(), spec.problem_seed("prompt")
    draw = partial(lm.generate, prompt, n, params=spec.params, seeds=[derived], progress=False)
    if console.is_terminal:
        view = Denoising(lm.tokenizer.decode, lm.info.end_ids, console)
        with view.drawn():
            samples = draw(observe=[view, lambda _: time.sleep(pause)])[0]
        console.print(view.final())
    else:
        samples = draw()[0]
        for one in samples:
            typer.echo(f"--- {one.index}\n{one.text}")
    typer.echo(f"--- seed {derived}")
    _keep(runner, spec, prompt, samples, time.perf_counter() - began)


@app.command()
@takes_model
def generate(
    prompts: Annotated[Path, typer.Option("--in", help='JSONL of prompts: {"prompt": text}, with an "id" if you like.')],
    out: Annotated[Path, typer.Option("--out", help="JSONL of samples, one per line, with the id of their prompt.")],
    model: ModelName = MODEL,
    n: Annotated[int, typer.Option(help="Samples per prompt.", min=1)] = 16,
    alpha: Alpha = None,
    temperature: Temperature = None,
    objective: Objective = None,
    length: Length = None,
    steps: Steps = None,
    seed: Seed = 0,
    set_: Settings = None,
    store: StoreFolder = FOLDER,
    together: Together = 1,
    keep_tokens: KeepTokens = False,
    *,
    options: ModelOptions,
) -> None:
    """Draw samples for every prompt of a file.

    The samples are stored prompt by prompt, and the same command goes on where it was stopped; --out is written when it ends,
    by Ctrl-C too. `oddlm score` takes that file as it is.

    Example: oddlm generate --in prompts.jsonl --out samples.jsonl --n 4 --length 24
    """
    from ..evaluate import Runner
    from ..store import Store
    from ..tasks import Problem
    from ..tasks.data import digest, read_jsonl, text_field
    from ..wording import number_of

    check_out(out)
    rows = read_jsonl(prompts, ("prompt",))
    problems = [
        Problem(str(row.get("id", i)), text_field(prompts, line, row, "prompt"), None) for i, (line, row) in enumerate(rows)
    ]
    own = {"length": length, "steps": steps, "alpha": alpha, "temperature": temperature, "objective": objective}
    params = sampling(set_, **own)
    what = {"model": model, "loading": options.loading, "n": n, "seed": seed, "params": params}
    spec = _spec(**what, data=str(prompts), data_digest=digest(prompts))
    shape = ([problem.prompt for problem in problems], spec.params.length)
    spec = spec.model_copy(update={"model_digest": options.digest(model, *shape)})
    runner = Runner(Store(store), options.loader(model, *shape), together=together, keep_tokens=keep_tokens)
    runner.store.check()
    done: list[Row] = []

    def watch(row: "Row", fresh: bool) -> None:
        done.append(row)
        tick("generating", fresh)

    try:
        with problem_bar(len(problems)) as tick:
            done = runner.run(spec, None, problems, watch)
    except KeyboardInterrupt:
        _write(out, done)
        message = f"stopped; {len(done)} of {len(problems)} prompts are in {out}. The same command goes on from there."
        typer.echo(f"oddlm: {message}", err=True)
        raise typer.Exit(130) from None
    _write(out, done)
    typer.echo(f"{number_of(len(done), 'prompt')}, {number_of(n, 'sample')} each: {out}; run {spec.id} in {store}")


def _spec(**content: Any) -> "RunSpec":
    from ..evaluate import check_spec
    from ..params import RunSpec, checked

    spec = checked(RunSpec, content)
    check_spec(spec)
    return spec


def _keep(runner: "Runner", spec: "RunSpec", prompt: str, samples: "Sequence[Sample]", seconds: float) -> None:
    """Store the samples of one prompt, unless they are there: the same spec gives the same ones."""
    from ..evaluate import Group, environment, make_row, summary
    from ..tasks import Problem

    with runner.store.open(spec, 1) as run:
        if "prompt" not in run.rows:
            run.start(environment(runner.lm(), spec.model_digest, spec.params))
            run.append(make_row(runner.lm(), spec, Group(Problem("prompt", prompt, None), prompt, samples, seconds), None))
        run.finish(summary(spec, list(run.rows.values()), scored=False))


def _write(out: Path, rows: "Sequence[Row]") -> None:
    from ..files import write_whole

    lines = [
        json.dumps({"id": row.problem, **sample.model_dump(exclude_none=True), "seed": row.seed, "nfe": row.nfe})
        for row in rows
        for sample in row.samples
    ]
    write_whole(out, "".join(f"{line}\n" for line in lines).encode())

"""`oddlm bench`: what things cost on this machine."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ..presets import PRESETS
from .app import App, app
from .bar import problem_bar
from .options import check_out, listed

bench_app = App(help="Measure what things cost on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Measure what things cost on this machine."""


@bench_app.command()
def draw(
    table: Annotated[Path, typer.Argument(help="The overhead.csv of `oddlm bench overhead`.")],
    out: Annotated[
        Path | None, typer.Option(help="The picture.", show_default="beside the table, as .png")
    ] = None,
) -> None:
    """Draw a table of `oddlm bench overhead` again: ODD's overhead over samples, tokens and steps.

    Example: oddlm bench draw benchmarks/results/overhead-h200.csv --out overhead.png
    """
    from ..bench.costs import draw as picture
    from ..bench.costs import read_csv

    check_out(out)
    path = out or table.with_suffix(".png")
    picture(read_csv(table), path)
    typer.echo(path)


@bench_app.command()
def overhead(
    model: Annotated[
        str | None,
        typer.Option(
            help="Shapes with random weights (llada-8b, dream-7b, 1b, tiny) or models' names, parted by commas. Default: "
            "llada-8b; the paper's grid takes dream-7b too."
        ),
    ] = None,
    n: Annotated[str, typer.Option("--n", help="Samples, parted by commas.")] = "16",
    length: Annotated[str, typer.Option(help="Tokens per sample, parted by commas.")] = "64",
    steps: Annotated[
        str, typer.Option(help="Network evaluations, parted by commas; never more than tokens.")
    ] = "8",
    grid: Annotated[
        str | None,
        typer.Option(
            help="'paper': n 4,16,64 x length 8,32,128 x steps 4,8,16; 'aims': the cells that have aims on an H200."
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Force of the push by the paper's ODD.", min=0)
    ] = PRESETS["paper"]["alpha"],
    temperature: Annotated[float, typer.Option(help="Of the choice of tokens.", min=0)] = 1.0,
    repeats: Annotated[
        int,
        typer.Option(help="Runs; in each, network, plain and ODD take their steps in turn.", min=1),
    ] = 5,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; default: a GPU where there is one.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bf16, fp16, fp32, nf4, int8, parted by commas.")
    ] = "bf16",
    compiled: Annotated[
        str,
        typer.Option(
            "--compile",
            help="torch.compile a shape's blocks: fixed (each cell anew), any (once) or none.",
        ),
    ] = "fixed",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for overhead.md and overhead.csv, written as they grow, and overhead.png."
        ),
    ] = None,
) -> None:
    """Time per step and memory of plain sampling and of ODD, beside the network alone.

    Times are medians over steps, which the three take in turn; the overhead is the median over
    neighbouring steps with its 95 % interval.
    """
    import torch

    from ..bench.costs import Cost, aims_table, claims, draw, markdown, write_csv
    from ..bench.overhead import (
        COMPILE,
        DTYPES,
        GRIDS,
        MODELS,
        build_model,
        expand,
        grid_cells,
        machine,
    )
    from ..bench.overhead import overhead as measure
    from ..checks import one_of, short_dtype
    from ..files import write_whole
    from ..text import number_of

    dtypes = listed("dtype", dtype, short_dtype)
    for one in dtypes:
        one_of("dtype", one, DTYPES)
    if grid is not None:
        one_of("grid", grid, GRIDS)
    one_of("compile", compiled, COMPILE)
    cells = (
        grid_cells(grid)
        if grid
        else expand(
            *(listed(o, v, int) for o, v in (("n", n), ("length", length), ("steps", steps)))
        )
    )
    where, called = machine(device)
    names = listed("model", model or MODELS[grid], str)
    about = (
        f"{datetime.now():%Y-%m-%d}, {called}, torch {torch.__version__}, temperature {temperature:g}, alpha {alpha:g}, "
        f"{number_of(repeats, 'run')}"
    )
    costs: list[Cost] = []

    def report() -> str:
        parts = [
            about,
            markdown(costs),
            aims_table(costs),
            "\n".join(f"- {claim}" for claim in claims(costs)),
        ]
        return "\n\n".join(part for part in parts if part)

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with problem_bar(len(names) * len(dtypes) * len(cells)) as tick:
        for name in names:
            for one in dtypes:
                built = build_model(name, where, one, compiled)
                for cost in measure(
                    built, cells, dtype=one, alpha=alpha, temperature=temperature, repeats=repeats
                ):
                    costs.append(cost)
                    if out is not None:
                        write_whole(out / "overhead.md", f"{report()}\n".encode())
                        write_csv(costs, out / "overhead.csv")
                    tick(f"{name} n={cost.n} S={cost.length} T={cost.steps}", True)
                del built
    typer.echo(report())
    if out is not None:
        draw(costs, out / "overhead.png")

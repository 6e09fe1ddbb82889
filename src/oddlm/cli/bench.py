"""`oddlm bench`: time and memory on this machine."""

from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from ..presets import PRESETS
from .app import PIECES, App, app
from .bar import problem_bar
from .options import NETWORK, OUTPUT, SAMPLING, Device, check_out, listed

bench_app = App(no_args_is_help=True)
app.add_typer(bench_app, name="bench", rich_help_panel=PIECES)


@bench_app.callback()
def bench() -> None:
    """Measure time and memory on this machine.

    Example: oddlm bench overhead --model tiny --compile none --n 4 --length 16 --steps 4
    """


@bench_app.command()
def draw(
    table: Annotated[Path, typer.Argument(help="The overhead.csv of `oddlm bench overhead`.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The picture to write.",
            show_default="the table's path, as .png",
        ),
    ] = None,
) -> None:
    """Plot a table of `oddlm bench overhead`: ODD's overhead by samples, tokens and steps.

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
            help="Shapes with random weights (llada-8b, dream-7b, 1b, tiny) or names of models, "
            "comma-separated.",
            show_default="llada-8b, and dream-7b with --grid paper",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    n: Annotated[
        str,
        typer.Option("--n", help="Samples per prompt, comma-separated.", rich_help_panel=SAMPLING),
    ] = "16",
    length: Annotated[
        str, typer.Option(help="Tokens per sample, comma-separated.", rich_help_panel=SAMPLING)
    ] = "64",
    steps: Annotated[
        str,
        typer.Option(
            help="Network evaluations per sample, comma-separated; at most one per token.",
            rich_help_panel=SAMPLING,
        ),
    ] = "8",
    grid: Annotated[
        str | None,
        typer.Option(
            help="Instead of --n, --length and --steps: paper (n 4,16,64, length 8,32,128, steps "
            "4,8,16) or aims (the shapes that have target times on an H200).",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(
            help="Strength of the push of the paper's ODD.", min=0, rich_help_panel=SAMPLING
        ),
    ] = PRESETS["paper"]["alpha"],
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature.", min=0, rich_help_panel=SAMPLING)
    ] = 1.0,
    repeats: Annotated[
        int, typer.Option(help="Runs per shape.", min=1, rich_help_panel=SAMPLING)
    ] = 5,
    device: Device = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Number formats, comma-separated: bf16, fp16, fp32, nf4, int8.",
            rich_help_panel=NETWORK,
        ),
    ] = "bf16",
    compiled: Annotated[
        str,
        typer.Option(
            "--compile",
            help="Whether to torch.compile random-weight networks: fixed (once per shape), any "
            "(once for all shapes) or none.",
            rich_help_panel=NETWORK,
        ),
    ] = "fixed",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for overhead.md and overhead.csv, updated after each shape, and "
            "overhead.png.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Measure time per step and memory of plain sampling and ODD, next to the network alone.

    In each run the three take their steps in turn. Times are medians over steps; the overhead is
    the median over neighbouring steps, with its 95 % interval.

    Example: oddlm bench overhead --model tiny --compile none --n 4 --length 16 --steps 4

    Example: oddlm bench overhead --grid paper --out bench
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
    for name in dtypes:
        one_of("dtype", name, DTYPES)
    if grid is not None:
        one_of("grid", grid, GRIDS)
    one_of("compile", compiled, COMPILE)
    sizes = {"n": n, "length": length, "steps": steps}
    cells = (
        grid_cells(grid)
        if grid
        else expand(*(listed(option, values, int) for option, values in sizes.items()))
    )
    place, machine_name = machine(device)
    names = listed("model", model or MODELS[grid], str)
    about = (
        f"{datetime.now():%Y-%m-%d}, {machine_name}, torch {torch.__version__}, "
        f"temperature {temperature:g}, alpha {alpha:g}, {number_of(repeats, 'run')}"
    )
    costs: list[Cost] = []

    def report() -> str:
        listed_claims = "\n".join(f"- {claim}" for claim in claims(costs))
        parts = [about, markdown(costs), aims_table(costs), listed_claims]
        return "\n\n".join(part for part in parts if part)

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with problem_bar(len(names) * len(dtypes) * len(cells)) as tick:
        for name, number_format in product(names, dtypes):
            built = build_model(name, place, number_format, compiled)
            for cost in measure(
                built,
                cells,
                dtype=number_format,
                alpha=alpha,
                temperature=temperature,
                repeats=repeats,
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

"""`oddlm bench`: time and memory on this machine."""

import json
from dataclasses import asdict
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from ..files import make_folder, write_whole
from ..presets import PRESETS
from .app import PIECES, App, app
from .bar import problem_bar
from .options import NETWORK, OUTPUT, SAMPLING, Device, JsonFile, check_out, listed

Alpha = Annotated[
    float,
    typer.Option(help="Strength of the push of the paper's ODD.", min=0, rich_help_panel=SAMPLING),
]
Temperature = Annotated[
    float, typer.Option(help="Sampling temperature.", min=0, rich_help_panel=SAMPLING)
]

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
    alpha: Alpha = PRESETS["paper"]["alpha"],
    temperature: Temperature = 1.0,
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
        make_folder(out)
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


@bench_app.command()
def answers(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--shape",
            help="A shape with random weights (llada-8b, dream-7b, 1b, tiny) or the name of a "
            "model.",
            rich_help_panel=NETWORK,
        ),
    ] = "mini",
    networks: Annotated[
        str | None,
        typer.Option(
            help="Ways to run the network, comma-separated: none (without a cache), prefix, dual, "
            "exact (block-causal models), compiled.",
            show_default="none and the caches; compiled, too, on a GPU",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    samplers: Annotated[
        str,
        typer.Option(
            help="Comma-separated: plain, odd, threshold (plain, and whatever is certain enough "
            "is written at once).",
            rich_help_panel=SAMPLING,
        ),
    ] = "plain,odd,threshold",
    n: Annotated[
        int, typer.Option("--n", help="Samples per run.", min=1, rich_help_panel=SAMPLING)
    ] = 16,
    length: Annotated[
        int, typer.Option(help="Tokens per sample.", min=1, rich_help_panel=SAMPLING)
    ] = 64,
    block_length: Annotated[
        int,
        typer.Option(
            help="Tokens per block; block-causal models have their own.",
            min=1,
            rich_help_panel=SAMPLING,
        ),
    ] = 16,
    steps: Annotated[
        int,
        typer.Option(
            help="Network evaluations per sample; at most one per token.",
            min=1,
            rich_help_panel=SAMPLING,
        ),
    ] = 32,
    start: Annotated[
        int, typer.Option("--prompt", help="Tokens of the prompt.", min=1, rich_help_panel=SAMPLING)
    ] = 150,
    alpha: Alpha = PRESETS["paper"]["alpha"],
    temperature: Temperature = 1.0,
    repeats: Annotated[
        int, typer.Option(help="Runs per lane.", min=1, rich_help_panel=SAMPLING)
    ] = 3,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Number format: bf16, fp16, fp32, nf4, int8.",
            show_default="bf16 on a GPU, fp32 on a CPU",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    json_out: JsonFile = None,
    csv_out: Annotated[
        Path | None,
        typer.Option("--csv", help="Write the results to this table.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Measure tokens per second and seconds per 16 answers, lane by lane.

    A lane is a way to run the network and a sampler. The lanes run in turns; ratios are medians
    over the turns, with their range. The floor is the time of the matrix products with weights
    alone, for the same positions and measured in the same turns. The host's time is that of the
    same steps of a network with as many layers that are too narrow to take any.

    Example: oddlm bench answers --model tiny --n 4 --length 16 --block-length 8 --steps 8

    Example: oddlm bench answers --shape llada-8b --length 256 --block-length 32 --steps 64
    """
    import torch

    from ..bench.answers import NETWORKS, SAMPLERS, Setting, usual_networks
    from ..bench.answers import answers as measure
    from ..bench.costs import write_csv
    from ..bench.overhead import DTYPES, build_model, machine
    from ..checks import one_of, short_dtype
    from .lanes import lanes_table
    from .views import open_console

    for path in (json_out, csv_out):
        check_out(path)
    place, machine_name = machine(device)
    number_format = short_dtype(dtype or ("bf16" if place.type == "cuda" else "fp32"))
    one_of("dtype", number_format, DTYPES)
    built = build_model(model, place, number_format, "none")
    ways = usual_networks(built) if networks is None else listed("networks", networks, str)
    chosen = listed("samplers", samplers, str)
    for name, names, known in (("networks", ways, NETWORKS), ("samplers", chosen, SAMPLERS)):
        for one in names:
            one_of(name, one, known)
    lanes = [(network, sampler) for sampler in chosen for network in ways]
    setting = Setting(n, length, steps, block_length, alpha, temperature)
    with problem_bar(len(lanes) * (repeats + 1)) as tick:
        found = measure(
            built,
            lanes,
            setting,
            dtype=number_format,
            repeats=repeats,
            start=start,
            tick=lambda words: tick(words, True),
        )
    about = {
        "time": f"{datetime.now():%Y-%m-%d}",
        "machine": machine_name,
        "threads": torch.get_num_threads() if place.type == "cpu" else None,
        "torch": torch.__version__,
        "prompt": start,
        "temperature": temperature,
        "alpha": alpha,
        "turns": repeats,
    }
    open_console().print(lanes_table(found, about))
    if csv_out is not None:
        write_csv(found, csv_out)
    if json_out is not None:
        content = {**about, "lanes": [asdict(lane) for lane in found]}
        write_whole(json_out, json.dumps(content, indent=2).encode() + b"\n")

"""`oddlm bench`: what things cost on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .bar import problem_bar
from .options import listed

bench_app = typer.Typer(help="Measure what things cost on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Measure what things cost on this machine."""


@bench_app.command()
def overhead(
    model: Annotated[
        str, typer.Option(help="Shapes with random weights (llada-8b, 1b, tiny) or models' names, parted by commas.")
    ] = "llada-8b",
    n: Annotated[str, typer.Option("--n", help="Samples, parted by commas.")] = "16",
    length: Annotated[str, typer.Option(help="Tokens per sample, parted by commas.")] = "64",
    steps: Annotated[str, typer.Option(help="Network evaluations, parted by commas; never more than tokens.")] = "8",
    grid: Annotated[str | None, typer.Option(help="'paper': n 4,16,64 x length 8,32,128 x steps 4,8,16.")] = None,
    alpha: Annotated[float, typer.Option(help="Force of the push.")] = 8.0,
    temperature: Annotated[float, typer.Option(help="Of the choice of tokens.")] = 1.0,
    repeats: Annotated[int, typer.Option(help="Pairs of runs, plain and ODD in turn.", min=1)] = 5,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: a GPU where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="torch.compile the blocks of a shape.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for overhead.md, overhead.csv and overhead.png.")] = None,
) -> None:
    """Time per step and memory of plain sampling and of ODD, beside the network alone.

    The overhead is the mean over pairs of runs with its 95 % interval; the times are medians over steps.
    """
    import torch

    from ..bench import build_model, claims, draw, expand, markdown, paper_grid, write_csv
    from ..bench import overhead as measure
    from ..checks import one_of

    one_of("dtype", dtype, ("bfloat16", "float16", "float32"))
    if grid is not None:
        one_of("grid", grid, ("paper",))
    cells = paper_grid() if grid else expand(*(listed(o, v, int) for o, v in (("n", n), ("length", length), ("steps", steps))))
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    names = listed("model", model, str)
    costs = []
    with problem_bar(len(names) * len(cells)) as tick:
        for name in names:
            built = build_model(name, where, getattr(torch, dtype), compiled)
            for cost in measure(built, cells, dtype=dtype, alpha=alpha, temperature=temperature, repeats=repeats):
                costs.append(cost)
                tick(f"{name} n={cost.n} S={cost.length} T={cost.steps}", True)
            del built
    machine = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    about = (
        f"{machine}, torch {torch.__version__}, {dtype}, temperature {temperature:g}, alpha {alpha:g}, {repeats} pairs of runs"
    )
    report = "\n".join([about, "", markdown(costs), "", *(f"- {claim}" for claim in claims(costs))])
    typer.echo(report)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "overhead.md").write_text(report + "\n")
        write_csv(costs, out / "overhead.csv")
        draw(costs, out / "overhead.png")

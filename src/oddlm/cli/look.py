"""`oddlm demo` and `oddlm names`."""

from typing import Annotated

import typer

from .app import app


@app.command()
def demo(
    n: Annotated[int, typer.Option(help="Samples per setting.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens per sample.")] = 24,
    steps: Annotated[int, typer.Option(help="Network evaluations.")] = 12,
    alpha: Annotated[float, typer.Option(help="Force of the repulsion.")] = 16.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
) -> None:
    """Plain, DPP and ODD sampling side by side, on an untrained toy network."""
    from ..demo import run_demo

    run_demo(n=n, length=length, steps=steps, alpha=alpha, seed=seed)


@app.command()
def names() -> None:
    """List the objectives, features, policies and schedules, with their options and defaults."""
    from rich.console import Console
    from rich.table import Table

    from ..diversity.features import FEATURE_OPTIONS, FEATURES
    from ..diversity.guide import SCHEDULES
    from ..diversity.objectives import OBJECTIVES
    from ..policies import POLICIES

    table = Table("kind", "name", "options", "what it does", show_lines=False, pad_edge=False)
    for registry in (OBJECTIVES, FEATURES, POLICIES, SCHEDULES):
        for name in registry.names:
            shared = FEATURE_OPTIONS if registry is FEATURES else {}
            options = ", ".join(f"{k}={v!r}" for k, v in {**registry.options(name), **shared}.items())
            table.add_row(registry.kind, name, options, (registry.find(name).__doc__ or "").split("\n")[0])
        table.add_section()
    Console().print(table)

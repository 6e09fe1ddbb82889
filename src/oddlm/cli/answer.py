"""`oddlm answer`: one answer out of many samples."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import checked, json_or_text
from .app import DRAWING, app
from .bar import status_line
from .options import (
    MODEL,
    SAMPLING,
    JsonFile,
    ModelName,
    ModelOptions,
    Settings,
    check_out,
    grouped,
)

if TYPE_CHECKING:
    from ..voting import Answer

SHOWN = 5  # candidates
WIDTH = 60  # characters of a candidate's text


@app.command(rich_help_panel=DRAWING)
@grouped
def answer(
    prompt: Annotated[str, typer.Argument(help="The prompt to answer.")],
    *,
    by: Annotated[
        str,
        typer.Option(
            help="The way to vote: majority, confidence, likelihood, likeliest, medoid, cloze, "
            "cloze_vote or self_certainty. The last three ask the network again. With options as "
            'JSON: {"name": "cloze", "rounds": 4}.',
            rich_help_panel=SAMPLING,
        ),
    ] = "majority",
    read: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Read answers as this task does: gsm8k, gsm8k:equations, math500, countdown, "
            "humaneval and others.",
            show_default="similar texts are one answer",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    n: Annotated[int, typer.Option(help="Samples to draw.", min=1, rich_help_panel=SAMPLING)] = 16,
    setting: Settings,
    model: ModelName = MODEL,
    options: ModelOptions,
    json_file: JsonFile = None,
) -> None:
    """Draw samples for one prompt and print the answer that wins a vote.

    The answer is on standard output; how sure the vote is, the other answers and the cost are on
    standard error.

    Example: oddlm answer "73,32,7,19,28" --read countdown --by cloze --length 24 --steps 12
    """
    from ..lm import check_vote, load
    from ..params import SampleParams

    check_out(json_file)
    way = json_or_text(by)
    check_vote(way, read)
    params = checked(SampleParams, {**setting.params(), "seed": setting.seed})
    options.check(model, [prompt], params.length)
    with status_line(f"loading {model}"):
        lm = load(model, **options.loading, **options.place)
    found = lm.answer(prompt, n, by=way, read=read, params=params)
    typer.echo(found.text)
    _tell(found, asked=read is not None)
    if json_file is not None:
        from ..files import write_whole

        write_whole(json_file, f"{json.dumps(as_json(found), indent=2)}\n".encode())


def _tell(found: "Answer", *, asked: bool) -> None:
    """Print the candidates and the cost; asked: answers were to be read."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..text import one_line

    table = Table(box=None, pad_edge=False)
    for header in ("weight", "votes"):
        table.add_column(header, justify="right")
    table.add_column(f"answer ({found.by})", no_wrap=True)
    for one in found.candidates[:SHOWN]:
        text = one_line(one.text)
        shown = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
        table.add_row(f"{one.weight:.2f}", str(one.votes), Text(shown))
    rest = len(found.candidates) - SHOWN
    silent = len(found.samples) - sum(one.votes for one in found.candidates)
    read = any(one.reading is not None for one in found.candidates)
    parts = [
        "" if read or not asked else "no answer could be read, so similar texts were one",
        f"and {rest} more" if rest > 0 else "",
        f"{silent} without an answer" if silent else "",
        f"{found.nfe} network evaluations",
    ]
    console = Console(stderr=True)
    console.print(table)
    console.print(Text("; ".join(part for part in parts if part)))


def as_json(found: "Answer") -> dict[str, object]:
    """Return an answer as plain data."""
    return {
        "text": found.text,
        "reading": found.reading,
        "weight": found.weight,
        "by": found.by,
        "nfe": found.nfe,
        "candidates": [
            {
                "text": one.text,
                "reading": one.reading,
                "votes": one.votes,
                "weight": one.weight,
                "sample": one.sample.index,
            }
            for one in found.candidates
        ],
    }

"""Tables, samples side by side, and samples being denoised, for the terminal. Imports no torch.

Texts come from models and may contain anything: control characters are made visible before they
reach the terminal.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ..metrics import Interval
from ..params import PUSH, SampleParams
from ..report.compare import Line
from ..store import Head, Record, SampleRecord
from ..store.query import Answer
from ..text import percent, setting_label, text_length, visible

if TYPE_CHECKING:
    from ..core.step import StepEvent

CHANGED, MASK, END = "◆", "·", "∎"
CHANGED_STYLE = "bold magenta"
CELL_LINES, CELL_WIDTH = 6, 30
UNBOUNDED = 1 << 20  # columns


def open_console() -> Console:
    """Return a console on standard output, as wide as the terminal or COLUMNS.

    In a pipe or a file it is so wide that nothing is cut or wrapped.
    """
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=UNBOUNDED)


def label(params: SampleParams) -> str:
    """Return a short name for settings, such as `odd + fork α4 T0.5`."""
    return setting_label(params.method, params.canonical().alpha, params.temperature)


def bare_table(*headers: str | Column) -> Table:
    return Table(*headers, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def _text(text: str) -> Text:
    """Return text literally: no markup, control characters made visible."""
    return Text(visible(text))


def _tail(name: str) -> Text:
    """Shorten a long name to its end, which tells more than its beginning."""
    return _text(name if len(name) <= 14 else "…" + name[-13:])


def results(lines: Sequence[Line], n: int, shown: Sequence[str]) -> Table:
    """Return a table of settings, in percent, with the difference to their plain baseline."""
    table = bare_table(Column("objective", overflow="fold"))
    votes = any(line.diversity.get(f"maj@{n}") is not None for line in lines)
    rates = ["Pass@1", *([f"Maj@{n}"] if votes else []), f"Pass@{n}"]
    for header in ("alpha", "T", *rates, "vs plain [95 %]"):
        table.add_column(header, justify="right", no_wrap=True)
    for name in shown:
        table.add_column(name.replace("_", " "), justify="right")
    temperature = None
    for line in lines:
        if temperature not in (None, line.params.temperature):
            table.add_section()
        temperature = line.params.temperature
        table.add_row(
            _text(line.params.method),
            "" if line.params.plain else f"{line.params.alpha:g}",
            f"{temperature:g}",
            _percent(*line.pass_1),
            *([_share(line.diversity.get(f"maj@{n}"))] if votes else []),
            _percent(*line.pass_n),
            _difference(line),
            *(
                "-" if (value := line.diversity.get(name)) is None else f"{value:.3g}"
                for name in shown
            ),
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _percent(mean: float, error: float) -> str:
    return percent(mean) + ("" if math.isnan(error) else f"±{percent(error)}")


def _difference(line: Line) -> Text:
    """Return the difference with its interval, in bold if the interval excludes 0."""
    if line.difference is None:
        return Text("baseline", style="dim")
    return _interval(line.difference, "+")


def _interval(interval: Interval, sign: str = "") -> Text:
    mean, low, high = (percent(x, sign=sign) for x in interval)
    if math.isnan(interval.low):
        return Text(mean)
    return Text(
        f"{mean} [{low}, {high}]",
        style="bold" if sign and (interval.low > 0 or interval.high < 0) else "",
    )


def tuned(
    rows: Sequence[tuple[SampleParams, Interval, Interval, float]],
    names: Sequence[str],
    metric: str,
) -> Table:
    """Return a table of settings, best first, in percent: metric, gap to the best, Pass@1."""
    table = bare_table()
    for header in (f"{metric.capitalize()} [95 %]", "vs best [95 %]", "Pass@1"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold")
    for i, (params, value, difference, right) in enumerate(rows):
        vs_best = Text("best", style="dim") if i == 0 else _interval(difference, "+")
        table.add_row(_interval(value), vs_best, percent(right), _text(searched(params, names)))
    return table


def searched(params: SampleParams, names: Sequence[str]) -> str:
    """Return some settings, without those that have no effect, as `alpha 8, temperature 0.5`."""
    used = params.canonical().model_dump()
    effective = {name: used[name] for name in names if not (params.plain and name in PUSH)}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in effective.items()
    )


def side_by_side(columns: Sequence[tuple[str, Record]], width: int) -> Group:
    """Show the samples of one problem under several settings, in tables that fit the width."""
    record = columns[0][1]
    parts: list[RenderableType] = [
        Text(visible(record.problem), style="bold"),
        Text(_clip(visible(record.prompt)), style="dim"),
    ]
    fit = max(1, (width - 5) // (CELL_WIDTH + 3))
    for first in range(0, len(columns), fit):
        some = columns[first : first + fit]
        table = Table("", pad_edge=False, show_lines=True)
        for name, _ in some:
            table.add_column(_text(name), overflow="fold", ratio=1)
        cells = [list(_cells(record.samples)) for _, record in some]
        for i in range(max(map(len, cells))):
            table.add_row(str(i), *(column[i] if i < len(column) else "" for column in cells))
        parts.append(table)
    return Group(*parts)


def _cells(samples: Sequence[SampleRecord]) -> Iterator[Text]:
    """Yield each text with its score; one that was seen before is `= i`."""
    first: dict[str, int] = {}
    for sample in samples:
        mark = {None: ("", ""), True: ("✓ ", "bold green"), False: ("✗ ", "red")}[sample.correct]
        if sample.text in first:
            yield Text.assemble(mark, (f"= {first[sample.text]}", "dim italic"))
        else:
            first[sample.text] = sample.index
            yield Text.assemble(mark, _clip(visible(sample.text)))


def _clip(text: str) -> str:
    lines = text.strip("\n").split("\n")
    kept = [line if len(line) <= 160 else line[:159] + "…" for line in lines[:CELL_LINES]]
    return "\n".join([*kept, "…"] if len(lines) > CELL_LINES else kept)


def runs_table(runs: Sequence[Head], *, whole: bool = False) -> Table:
    """Return a table of runs; if `whole`, long names of tasks and models are shown in full."""
    short = _text if whole else _tail
    names = [Column(header, overflow="fold") for header in ("task", "model")]
    table = bare_table(Column("run", no_wrap=True), *names, Column("setting", overflow="fold"))
    for header in ("n", "seed", "done", "busy", "Pass@1", "Maj@n", "Pass@n"):
        table.add_column(header, justify="right", no_wrap=True)
    for run in runs:
        spec = run.spec
        passed = (run.summary.passed if run.summary else None) or {}
        voted = run.summary.diversity.get(f"maj@{spec.n}") if run.summary else None
        shares = [passed.get("pass@1"), voted, passed.get(f"pass@{spec.n}")]
        table.add_row(
            _text(run.id),
            short(spec.task or "-"),
            short(spec.model),
            _text(label(spec.params)),
            str(spec.n),
            str(spec.seed),
            _state(run),
            _share(run.busy),
            *map(_share, shares),
        )
    notes = ["busy: % of the time that the network was drawing"]
    if not all(run.complete for run in runs):
        notes.insert(0, "done: scored/requested, or scored/drawn/requested")
    table.caption = "; ".join(notes)
    return table


def _state(run: Head) -> str:
    """Return `100` if complete, else scored/requested or scored/drawn/requested."""
    if run.complete:
        return str(run.problems)
    return (
        f"{run.scored}/{run.problems}"
        if run.scored == run.drawn
        else f"{run.scored}/{run.drawn}/{run.problems}"
    )


def run_details(run: Head) -> Group:
    """Show the spec without its defaults, the results, and each start with its machine."""
    params = run.spec.params.canonical().model_dump()
    defaults = {name: field.default for name, field in SampleParams.model_fields.items()}
    defaults["fork"] = False
    always = ("objective", "alpha", "temperature", "length")
    fields = run.spec.model_dump(exclude={"params"}).items()
    spec = {name: value for name, value in fields if value not in (None, False)}
    sampling = {
        name: value for name, value in params.items() if value != defaults[name] or name in always
    }
    state = "complete" if run.complete else "not complete: the command that began it resumes it"
    if run.drawn > run.scored:
        state = f"{run.drawn} drawn: `oddlm runs score {run.id}` scores the rest"
    if run.summary and run.summary.imported:
        state = f"without records: imported from {run.summary.imported}"
    parts: list[RenderableType] = [
        Text(visible(f"{run.id}: {run.scored} of {run.problems} problems, {state}"), style="bold"),
        _pairs("run", spec),
        _pairs("sampling", sampling),
    ]
    if run.summary:
        numbers = {**(run.summary.passed or {}), **run.summary.diversity}
        numbers["seconds"] = run.summary.seconds
        shown = {name: "-" if v is None else f"{v:.4g}" for name, v in numbers.items()}
        parts.append(_pairs("results", shown))
    parts += [_pairs(f"start {i}", _flat(start)) for i, start in enumerate(run.starts)]
    return Group(*parts)


def _pairs(title: str, values: Mapping[str, Any]) -> Table:
    table = bare_table(title, "")
    for name, value in values.items():
        table.add_row(_text(name), _text(str(value)))
    return table


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings; names are joined by spaces."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        flat |= _flat(value, f"{key} ") if isinstance(value, dict) else {key: value}
    return flat


def answer_table(answer: Answer) -> Table:
    """Return the result of a query as a table."""
    table = bare_table(*(Column(_text(name)) for name in answer.columns))
    for row in answer.rows:
        table.add_row(*("" if value is None else _text(str(value)) for value in row))
    return table


def pieces(
    decode: Callable[[Sequence[int]], str], tokens: Sequence[int | None]
) -> list[str | None]:
    """Return the text that each token adds to those before it.

    None (a masked position) stays None, and the text starts again after it.
    """
    found: list[str | None] = []
    run: list[int] = []
    before = ""
    for token in tokens:
        if token is None:
            run, before = [], ""
            found.append(None)
            continue
        run.append(token)
        now = decode(run)
        found.append(now.removeprefix(before) if now.startswith(before) else decode([token]))
        before = now
    return found


class Denoising:
    """An observer that shows the samples of one prompt while they are denoised."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], end_ids: Sequence[int], console: Console
    ) -> None:
        self._decode, self._end_ids, self._console = decode, frozenset(end_ids), console
        self._canvas: list[list[int | None]] = []  # [n][L]
        self._changed: list[list[bool]] = []
        self._progress = ""

    def __call__(self, event: "StepEvent") -> None:
        shown, tokens = event.shown.tolist(), event.prediction.tokens.tolist()
        gone = (event.step.masked & ~event.shown).tolist()  # a draft is shown until it is revised
        as_plain = event.plain.commit & (event.plain.tokens == event.prediction.tokens)
        changed = (event.commit & ~as_plain).tolist()
        if event.step.index == 0:
            self._canvas = [[None] * len(row) for row in shown]
            self._changed = [[False] * len(row) for row in shown]
        for i, row in enumerate(shown):
            for j in [j for j, now in enumerate(row) if now]:
                self._canvas[i][j], self._changed[i][j] = tokens[i][j], changed[i][j]
            for j in [j for j, now in enumerate(gone[i]) if now]:
                self._canvas[i][j] = None
        self._progress = f"step {event.step.index + 1} of {event.step.total}"

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Show the frames on the console for as long as the context is open."""
        from rich.live import Live

        with Live(
            get_renderable=self.frame, console=self._console, refresh_per_second=10, transient=True
        ):
            yield

    def frame(self) -> Group:
        """Return the samples as they are now, with as many lines each as the terminal allows."""
        n, height = max(1, len(self._canvas)), self._console.height - 3
        shown = min(n, height)
        lines = max(1, height // n)
        parts: list[RenderableType] = [
            Text(f"{self._progress}   {LEGEND}", style="dim", no_wrap=True, overflow="ellipsis")
        ]
        for i in range(min(shown, len(self._canvas))):
            text = Text.assemble((f"{i:>3} ", "dim"), self._sample(i, one_line=True))
            parts += list(text.wrap(self._console, self._console.width))[:lines]
        if shown < n:
            parts.append(Text(f"... and {n - shown} more", style="dim"))
        return Group(*parts)

    def final(self) -> Group:
        """Return all samples in full; duplicates are shown as `= i`."""
        first: dict[str, int] = {}
        parts: list[RenderableType] = []
        for i in range(len(self._canvas)):
            text = self._sample(i, one_line=False)
            plain = "".join(piece or "" for piece in pieces(self._decode, self._kept(i)))
            same = plain in first
            body = Text(f"= {first[plain]}", style="dim italic") if same else text
            first.setdefault(plain, i)
            parts.append(Text.assemble((f"{i:>3} ", "dim"), body))
        return Group(*parts, Text(LEGEND, style="dim"))

    def _kept(self, i: int) -> list[int | None]:
        """Return the tokens before the end token."""
        row = self._canvas[i]
        return row[: text_length(row, self._end_ids)]

    def _sample(self, i: int, *, one_line: bool) -> Text:
        tokens = self._canvas[i] if one_line else self._kept(i)
        text = Text()
        for token, piece, changed in zip(
            tokens, pieces(self._decode, tokens), self._changed[i], strict=False
        ):
            if piece is None:
                text.append(MASK, style="dim")
                continue
            words = END if token in self._end_ids else visible(piece)
            words = words.replace("\n", "⏎").replace("\t", " ") if one_line else words
            if changed:
                space = words[: len(words) - len(words.lstrip())]
                text.append(space).append(CHANGED + words.lstrip(), style=CHANGED_STYLE)
            else:
                text.append(words)
        return text


LEGEND = f"{CHANGED} changed by diversity   {MASK} masked   {END} end"

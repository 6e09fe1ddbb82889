"""Examples of problems where the plain batch collapsed and the diverse batch found a solution."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter

import numpy as np

from ..metrics.words import MOST_WORDS, in_common
from ..store import Record
from ..text import visible
from .cells import Benchmark, Cell, Results
from .intervals import best_alpha, compared, pairs

MOST = 3  # examples per benchmark
LOOKED_AT = 40  # candidates whose samples are read from disk
RULE = (
    "How the examples were picked: for the repulsive method with the largest mean gain, at its "
    "best alpha, take the problems that the method solves and plain sampling solves in no run "
    f"(up to {LOOKED_AT}, those with the most correct samples first). Of these, show the ones "
    "whose plain batch has the fewest distinct texts, at most half as many as samples. Both "
    "batches have the same noise. Marked words differ from the plain sample with the same index."
)

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
Piece = tuple[str, bool]  # a text, and whether it differs from the plain sample


@dataclass(frozen=True)
class Shown:
    """A distinct text of a batch."""

    pieces: tuple[Piece, ...]
    times: int
    correct: bool


@dataclass(frozen=True)
class Example:
    benchmark: str
    problem: str
    prompt: str
    setting: str
    seed: int
    plain: tuple[Shown, ...]
    diverse: tuple[Shown, ...]


def pick_examples(results: Results, bench: Benchmark) -> list[Example]:
    """Return up to MOST examples; none if the runs have no records or nothing fits the rule."""
    if not bench.problems:
        return []
    candidates = sorted(_candidates(bench), key=lambda one: (-one[0], one[1].temperature, one[3]))
    ranked = []
    for _, cell, plain, problem in candidates[:LOOKED_AT]:
        before, after = _by_seed(results, plain, problem), _by_seed(results, cell, problem)
        after = {seed: record for seed, record in after.items() if seed in before}
        if not after:
            continue
        seed = max(after, key=lambda seed: (sum(after[seed].correct), -seed))
        distinct = len({sample.text for sample in before[seed].samples})
        if any(after[seed].correct) and distinct <= cell.n / 2:
            ranked.append((distinct, problem, cell.label, seed, before[seed], after[seed]))
    chosen: dict[str, Example] = {}
    for _, problem, label, seed, old, new in sorted(ranked, key=lambda one: one[:3]):
        chosen.setdefault(problem, _example(bench, label, seed, old, new))
    return list(chosen.values())[:MOST]


def _by_seed(results: Results, cell: Cell, problem: str) -> dict[int, Record]:
    found = (
        (seed, results.record(run, problem))
        for seed, run in zip(cell.seeds, cell.runs, strict=True)
    )
    return {seed: record for seed, record in found if record is not None}


def _candidates(bench: Benchmark) -> list[tuple[int, Cell, Cell, str]]:
    """Return tuples (correct samples, cell, its baseline, problem)."""
    found = []
    for method in _strongest(bench):
        alpha = best_alpha(bench, method)
        for cell, plain in pairs(bench, method, alpha).values() if alpha is not None else ():
            if cell.right is None or plain.right is None:
                continue
            for i in np.flatnonzero((plain.right == 0) & (cell.right > 0)):
                found.append((int(cell.right[i]), cell, plain, bench.problems[i]))
    return found


def _strongest(bench: Benchmark) -> list[str]:
    """Return the repulsive method with the largest mean gain at its best alpha, if any."""
    gains = {}
    for method in {cell.method for cell in bench.main if not cell.plain} & set(compared(bench)):
        alpha = best_alpha(bench, method)
        found = list(pairs(bench, method, alpha).values()) if alpha is not None else []
        if found:
            gains[method] = sum(cell.gains[bench.n].difference for cell, _ in found) / len(found)
    return [max(gains, key=lambda method: (gains[method], method))] if gains else []


def _example(bench: Benchmark, label: str, seed: int, old: Record, new: Record) -> Example:
    before = [sample.text for sample in old.samples]
    pieces = [changed(text.text, before[i]) for i, text in enumerate(new.samples)]
    return Example(
        benchmark=bench.name,
        problem=new.problem,
        prompt=new.prompt,
        setting=label,
        seed=seed,
        plain=_shown([((text, False),) for text in before], old.correct),
        diverse=_shown(pieces, new.correct),
    )


def _shown(texts: list[tuple[Piece, ...]], correct: list[bool]) -> tuple[Shown, ...]:
    """Return each distinct text once, correct ones first, in the order of the samples."""
    whole = ["".join(text for text, _ in pieces) for pieces in texts]
    times = Counter(whole)
    first = {text: i for i, text in reversed(list(enumerate(whole)))}
    found = [Shown(texts[i], times[whole[i]], correct[i]) for i in sorted(first.values())]
    return tuple(sorted(found, key=lambda shown: not shown.correct))


def changed(text: str, plain: str) -> tuple[Piece, ...]:
    """Split a text into pieces, and mark the words that differ from the plain text."""
    words = _words(text)
    marked = zip(words, in_common(words, _words(plain)), strict=True)
    return tuple(
        ("".join(word for word, _ in some), not kept)
        for kept, some in groupby(marked, key=itemgetter(1))
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(match[0] for match in islice(_WORD.finditer(text), MOST_WORDS))


def as_markdown(found: list[Example]) -> str:
    """Return a Markdown page; the model's texts are escaped, so that they are only shown."""
    lines = ["# Examples: the plain batch collapsed, the diverse batch solved", "", RULE, ""]
    if not found:
        lines.append("No problem of these runs fits the rule, or their samples are not available.")
    for one in found:
        lines += [
            f"## {_safe(one.benchmark)}: {_safe(one.problem)}",
            "",
            f"{_safe(one.setting)}, seed {one.seed}",
            "",
        ]
        lines += [f"<pre>{_safe(one.prompt)}</pre>", "", "| plain | diverse |", "|---|---|"]
        width = max(len(one.plain), len(one.diverse))
        plain, diverse = (
            [_cell(shown) for shown in side] + [""] * (width - len(side))
            for side in (one.plain, one.diverse)
        )
        lines += [f"| {a} | {b} |" for a, b in zip(plain, diverse, strict=True)] + [""]
    return "\n".join([*lines, ""])


def _cell(shown: Shown) -> str:
    mark = "✓" if shown.correct else "✗"
    text = "".join(
        f"<ins>{_safe(piece)}</ins>" if new else _safe(piece) for piece, new in shown.pieces
    )
    return f"{mark} {shown.times}x {text or '(empty)'}"


def _safe(text: str) -> str:
    """Escape every character that could have a meaning in HTML or Markdown."""
    return re.sub(r"[^\w\s.,;:=+/()'-]", lambda sign: f"&#{ord(sign[0])};", visible(text)).replace(
        "\n", "<br>"
    )

"""Print the tables of docs/guides/answer.md from what draw.py noted.

    python recipes/answer/report.py recipes/answer/results

Plain sampling's temperature and ODD's alpha are chosen on the tune side, by the share of problems
whose majority answer is right; ways to vote are compared on the test side. Intervals are 95 %
bootstrap intervals over problems, and differences are paired by problem.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oddlm import metrics
from oddlm.report.tables import Table, signed
from oddlm.text import percent

N, FEWER = 16, 10  # samples that vote; samples for which cloze costs about as much as N cost alone
GREEDY, DEFAULT, ODD = "greedy", "default", "ODD, alpha 8"
PLAIN = {f"plain, temperature {t:g}": {"alpha": 0, "temperature": t} for t in (0.5, 1, 1.5)}
PUSHED = {f"ODD, alpha {a:g}": {"objective": "odd", "alpha": a, "fork": False} for a in (2, 8)}
WAYS = (
    "majority",
    "confidence",
    "likelihood",
    "likeliest",
    "medoid",
    "self_certainty",
    "cloze",
    "cloze_vote",
)
Line = Mapping[str, Any]


def path_of(folder: Path, model: str, bench: str, side: str) -> Path:
    return folder / f"{model}-{bench}-{side}.jsonl"


def lines(path: Path) -> Iterator[Line]:
    if path.exists():
        for text in path.read_text().splitlines():
            yield json.loads(text)


def methods(folder: Path, model: str, bench: str, side: str) -> dict[str, dict[str, Any]]:
    """Return the settings that are drawn on a side of a task, by name."""
    if side == "tune":
        return {**PLAIN, **PUSHED, DEFAULT: {}}
    known = {**PLAIN, **PUSHED}
    if model == "smol":
        names = list(PLAIN)
    else:
        names = list(roles(folder, model, bench).values())
    found = {name: known[name] for name in dict.fromkeys([*names, ODD])}
    return {GREEDY: {"alpha": 0, "temperature": 0}, **found, DEFAULT: {}}


def roles(folder: Path, model: str, bench: str) -> dict[str, str]:
    """Return the methods that are best on the tune side, by what they are best in."""
    cells = by_method(lines(path_of(folder, model, bench, "tune")))
    complete = max((len(cell) for cell in cells.values()), default=0)
    if not cells or any(len(cells.get(name, ())) < complete for name in (*PLAIN, *PUSHED)):
        raise ValueError(f"the tune side of {bench} is not complete: draw it first")

    def best(names: Sequence[str], measure: Any) -> str:
        return max(names, key=lambda name: float(np.mean(measure(cells[name]))))

    return {
        "plain, best in majority": best(list(PLAIN), lambda cell: picked(cell, "majority")),
        "plain, best in Pass@16": best(list(PLAIN), solved),
        "ODD, best in majority": best(list(PUSHED), lambda cell: picked(cell, "majority")),
    }


def by_method(some: Iterator[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in some:
        found.setdefault(line["method"], []).append(line)
    return {name: sorted(cell, key=lambda line: line["problem"]) for name, cell in found.items()}


def picked(cell: Sequence[Line], way: str) -> np.ndarray:
    """Return by problem whether the sample that a way to vote picks is right."""
    return np.array([float(line["correct"][line["picks"][way]]) for line in cell])


def solved(cell: Sequence[Line]) -> np.ndarray:
    return np.array([float("1" in line["correct"][:N]) for line in cell])


def right(cell: Sequence[Line]) -> np.ndarray:
    """Return by problem the share of right samples, which a random choice reaches."""
    return np.array([line["correct"][:N].count("1") / len(line["correct"][:N]) for line in cell])


def shortest(cell: Sequence[Line]) -> np.ndarray:
    return np.array([float(line["correct"][int(np.argmin(line["lengths"]))]) for line in cell])


def other(cell: Sequence[Line], name: str) -> np.ndarray:
    return np.array([float(line["correct"][line[name]]) for line in cell])


def shown(values: np.ndarray) -> str:
    (span,) = metrics.mean_intervals(values[:, None])
    return f"{percent(span.difference)} [{percent(span.low)}, {percent(span.high)}]"


def choice_table(bench: str, cells: Mapping[str, list[Line]], names: Mapping[str, str]) -> Table:
    """Every way to vote under every method."""
    marks = {name: [role for role, own in names.items() if own == name] for name in cells}
    rows = []
    for name, cell in cells.items():
        if name == GREEDY:
            rows.append((name, shown(right(cell)), *["-"] * (len(WAYS) + 1)))
            continue
        ways = [percent(picked(cell, way).mean()) for way in WAYS]
        label = f"{name} ({'; '.join(marks[name])})" if marks[name] else name
        rows.append((label, shown(right(cell)), *ways, percent(solved(cell).mean())))
    return Table(
        f"{bench}: the chosen sample is right",
        ("method", "random choice", *WAYS, "any of 16"),
        tuple(rows),
        f"Per cent of {len(cells[DEFAULT])} problems, 16 samples each.",
    )


def difference_table(
    bench: str, cells: Mapping[str, list[Line]], names: Mapping[str, str]
) -> Table:
    base = cells[names["plain, best in majority"]]
    rows = []
    for name, cell in cells.items():
        if name == GREEDY:
            continue
        votes = [picked(cell, way) for way in ("majority", "cloze")]
        against = [
            "-" if cell is base else signed(metrics.paired_interval(own, picked(base, way)))
            for own, way in zip(votes, ("majority", "cloze"), strict=True)
        ]
        gain = signed(metrics.paired_interval(votes[1], votes[0]))
        equal = signed(metrics.paired_interval(other(cell, f"cloze@{FEWER}"), votes[0]))
        cost = np.mean([(line["nfe"] + line["cloze_nfe"]) / line["nfe"] for line in cell])
        rows.append((name, *against, gain, f"{cost:.2f}", equal))
    return Table(
        f"{bench}: differences",
        (
            "method",
            "majority, minus plain's",
            "cloze, minus plain's",
            "cloze - majority",
            "cost of cloze",
            f"cloze of {FEWER} - majority",
        ),
        tuple(rows),
        "In points. Plain: at the temperature that is best for majority. Cost: network evaluations "
        f"with cloze, as a multiple of those of {N} samples; with {FEWER} samples it is "
        f"{FEWER / N:.2f} times that.",
    )


def control_table(bench: str, cells: Mapping[str, list[Line]]) -> Table:
    rows = [
        (
            name,
            percent(right(cell).mean()),
            percent(shortest(cell).mean()),
            percent(other(cell, "wrong_prompt").mean()),
            percent(picked(cell, "cloze").mean()),
        )
        for name, cell in cells.items()
        if name != GREEDY
    ]
    return Table(
        f"{bench}: controls",
        ("method", "random choice", "shortest", "cloze, wrong prompt", "cloze"),
        tuple(rows),
        "Per cent of the problems for which the chosen sample is right.",
    )


def sure_table(bench: str, cells: Mapping[str, list[Line]]) -> Table:
    """How often a vote of a certain weight is right."""
    rows = []
    for way in ("majority", "cloze"):
        cell = cells[DEFAULT]
        weights = np.array([line["weights"][way] for line in cell])
        verdicts, order = picked(cell, way), np.argsort(weights, kind="stable")
        for part in np.array_split(order, 4):
            low, high = weights[part].min(), weights[part].max()
            share = f"{percent(verdicts[part].mean())}"
            rows.append((way, f"{low:.2f} to {high:.2f}", share, str(len(part))))
    return Table(
        f"{bench}: how sure a vote is, default",
        ("way to vote", "weight", "right", "problems"),
        tuple(rows),
        "Problems in four parts of equal size, from the least to the most sure.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    paths = sorted(folder.glob("*-test.jsonl"))
    if not paths:
        raise SystemExit(
            f"{folder} holds no samples: python recipes/answer/draw.py {folder} --help"
        )
    for path in paths:
        model, _, rest = path.name.removesuffix("-test.jsonl").partition("-")
        cells = by_method(lines(path))
        names = {"plain, best in majority": "plain, temperature 0.5"}
        if path_of(folder, model, rest, "tune").exists():
            names = roles(folder, model, rest)
        title = f"{model}, {rest}"
        for table in (
            choice_table(title, cells, names),
            difference_table(title, cells, names),
            control_table(title, cells),
            sure_table(title, cells),
        ):
            print(table.markdown())


if __name__ == "__main__":
    main()

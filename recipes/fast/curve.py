"""Pass@16 against network evaluations: fixed schedules and parallel policies, plain and pushed.

    nice -n 10 python recipes/fast/curve.py draw recipes/fast/results --numbers 5 --problems 100
    python recipes/fast/curve.py report recipes/fast/results --numbers 5 --figure curve.png

`draw` notes a line per problem, method and seed in FOLDER/countdown-5.jsonl; lines that are there
are kept, so it resumes. It goes from problem to problem, so it can be stopped at any time. `report`
reads the problems that every method has drawn, writes FOLDER/countdown-5.csv, and prints a table.
Intervals are 95 % bootstrap intervals over problems, and differences are paired by problem.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlm import metrics
from oddlm.text import percent

N, TOGETHER = 16, 4
SEED = 2029  # of the generated problems, which no other study uses
HOT = {4: 1.25, 5: 0.75}  # where docs/results.md finds plain sampling best
FEW = {4: 8, 5: 12}  # steps of the shortest fixed schedule


Line = Mapping[str, Any]


def length_of(numbers: int) -> int:
    return 8 * (numbers - 1)


def reference(numbers: int) -> str:
    return f"plain, {length_of(numbers)} steps"  # one token at a time


def methods(numbers: int) -> dict[str, dict[str, Any]]:
    length = length_of(numbers)

    def threshold(value: float) -> dict[str, Any]:
        return {"steps": length, "policy": {"name": "threshold", "threshold": value}}

    plain = {"alpha": 0.0, "temperature": HOT[numbers]}
    return {
        **{f"plain, {s} steps": {**plain, "steps": s} for s in (length // 2, length)},
        "plain, threshold 0.7": {**plain, **threshold(0.7)},
        **{f"default, {s} steps": {"steps": s} for s in (FEW[numbers], length // 2, length)},
        **{f"default, threshold {t:g}": threshold(t) for t in (0.5, 0.6, 0.7)},
        "default, entropy bound 0.1": {"steps": length, "policy": "entropy_bound"},
    }


def file_of(folder: Path, numbers: int, kind: str = "jsonl") -> Path:
    return folder / f"countdown-{numbers}.{kind}"


def lines(folder: Path, numbers: int) -> Iterator[Line]:
    path = file_of(folder, numbers)
    for text in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(text)


def draw(folder: Path, numbers: int, problems: int, seeds: int) -> None:
    import oddlm
    from oddlm.tasks import find_task

    task, lm = find_task("countdown"), oddlm.load("mini", dtype="bf16")
    rows = task.problems(numbers=numbers, seed=SEED, count=500, split="test", limit=problems)
    folder.mkdir(parents=True, exist_ok=True)
    known = {(x["problem"], x["method"], x["seed"]) for x in lines(folder, numbers)}
    cells = [
        (seed, rows[i : i + TOGETHER], name)
        for seed in range(seeds)
        for i in range(0, len(rows), TOGETHER)
        for name in methods(numbers)
    ]
    with file_of(folder, numbers).open("a") as out:
        for seed, some, name in cells:
            left = [row for row in some if (row.id, name, seed) not in known]
            if not left:
                continue
            shape = {"length": length_of(numbers), "eos": "late", "seed": seed}
            settings = {**shape, **methods(numbers)[name]}
            drawn = lm.generate([task.prompt(row) for row in left], N, progress=False, **settings)
            for row, samples in zip(left, drawn, strict=True):
                right = "".join("01"[task.score(row, s.text).correct] for s in samples)
                used = [s.nfe for s in samples]
                line = {"problem": row.id, "method": name, "seed": seed, "correct": right}
                print(json.dumps({**line, "nfe": used}), file=out, flush=True)


def complete(folder: Path, numbers: int) -> dict[str, dict[str, list[Line]]]:
    """Return the lines of each method by problem, of the cells that all methods have drawn."""
    by_cell: dict[tuple[str, int], dict[str, Line]] = {}
    names = methods(numbers)
    for line in lines(folder, numbers):
        by_cell.setdefault((line["problem"], line["seed"]), {})[line["method"]] = line
    found: dict[str, dict[str, list[Line]]] = {name: {} for name in names}
    for (problem, _), cell in sorted(by_cell.items()):
        for name in names if names.keys() <= cell.keys() else ():
            found[name].setdefault(problem, []).append(cell[name])
    return found


def measures(problems: Mapping[str, list[Line]]) -> dict[str, NDArray[np.float64]]:
    """Return by problem, as means over seeds, the measures of a method."""

    def mean(measure: Any) -> NDArray[np.float64]:
        return np.array([np.mean([measure(x) for x in cell]) for cell in problems.values()])

    return {
        "evaluations": mean(lambda x: np.mean(x["nfe"])),
        "longest": mean(lambda x: max(x["nfe"])),
        "pass1": mean(lambda x: x["correct"].count("1") / N),
        "pass16": mean(lambda x: float("1" in x["correct"])),
    }


def report(folder: Path, numbers: int, figure: Path | None) -> None:
    found, base = complete(folder, numbers), reference(numbers)
    values = {name: measures(cell) for name, cell in found.items()}
    count, seeds = len(found[base]), {x["seed"] for x in lines(folder, numbers)}
    size = f"{N} samples of {length_of(numbers)} tokens"
    print(f"{count} problems, up to {len(seeds)} seeds, {size}\n")
    heads = ["method", "evaluations", "longest", "Pass@1", "Pass@16", f"Pass@16 - {base}"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    rows = []
    for name, own in values.items():
        (span,) = metrics.mean_intervals(own["pass16"][:, None])
        gap = metrics.paired_interval(own["pass16"], values[base]["pass16"])
        used, most, one = (float(own[k].mean()) for k in ("evaluations", "longest", "pass1"))
        rows.append((name, used, most, one, *span, *gap))
        shown = [
            f"{percent(x.difference)} [{percent(x.low)}, {percent(x.high)}]" for x in (span, gap)
        ]
        print(f"| {name} | {used:.1f} | {most:.1f} | {percent(one)} | {' | '.join(shown)} |")
    names = ["method", "evaluations", "longest", "pass1", "pass16", "low", "high"]
    with file_of(folder, numbers, "csv").open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow([*names, "gap", "gap_low", "gap_high"])
        table.writerows([row[0], *(f"{x:.4f}" for x in row[1:])] for row in rows)
    if figure is not None:
        plot(rows, figure)


def plot(rows: list[tuple[Any, ...]], path: Path) -> None:
    import matplotlib.pyplot as plt

    kinds = {"plain, * steps": "C0", "plain": "C1", "default, * steps": "C2", "default": "C3"}
    labels = ["plain, fixed", "plain, parallel", "default, fixed", "default, parallel"]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for kind, label in zip(kinds, labels, strict=True):
        fixed, start = kind.endswith("steps"), kind.partition(",")[0]
        own = sorted(
            (x for x in rows if x[0].startswith(start) and x[0].endswith("steps") == fixed),
            key=lambda x: x[1],
        )
        used, mean, low, high = (np.array([x[i] for x in own]) for i in (1, 4, 5, 6))
        bars = 100 * np.array([mean - low, high - mean])
        style = {"fmt": "o-" if fixed else "s", "color": kinds[kind], "capsize": 3}
        axes.errorbar(used, 100 * mean, yerr=bars, label=label, **style)
    axes.set(xlabel="network evaluations per sample", ylabel="Pass@16, per cent")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    stages = parser.add_subparsers(dest="stage", required=True)
    for name in ("draw", "report"):
        stage = stages.add_parser(name)
        stage.add_argument("folder", type=Path)
        stage.add_argument("--numbers", type=int, choices=tuple(HOT), required=True)
    stages.choices["draw"].add_argument("--problems", type=int, default=100)
    stages.choices["draw"].add_argument("--seeds", type=int, default=1)
    stages.choices["report"].add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.stage == "draw":
        draw(given.folder, given.numbers, given.problems, given.seeds)
    else:
        report(given.folder, given.numbers, given.figure)


if __name__ == "__main__":
    main()

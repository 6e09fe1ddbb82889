"""Plain sampling against everything that makes samples differ, on the mini model. `generate` runs anywhere and executes
nothing; `score` needs the sandbox for minicode. The base policy (what picks positions, and whether end tokens wait) is the one
that is best for plain sampling on the tune split; all methods are compared on it.

    python recipes/mini/compare.py generate countdown --split tune --methods plain --seeds 0 --device cuda --out a.jsonl.gz
    python recipes/mini/compare.py generate countdown --bases "low_confidence, eos late" --device cuda --out b.jsonl.gz
    python recipes/mini/compare.py score a.jsonl.gz b.jsonl.gz --out recipes/mini/results/countdown.json
    python recipes/mini/compare.py table recipes/mini/results/countdown.json
"""

import argparse
import gzip
import json
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

N = 16
SHAPES = {"countdown": {"length": 24, "steps": 12}, "minicode": {"length": 64, "steps": 32}}
TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"objective": "none"},
    **{f"odd, alpha {alpha}": {"objective": "odd", "alpha": alpha} for alpha in (2, 4, 6, 8, 12, 16)},
    **{f"odd_sequential, alpha {alpha}": {"objective": "odd_sequential", "alpha": alpha} for alpha in (8, 16)},
    **{f"dpp, alpha {alpha}": {"objective": "dpp", "alpha": alpha} for alpha in (8, 16)},
    "order temperature 1": {"objective": "none", "order_temperature": 1.0},
    "fork": {"objective": "none", "fork": True},
}
BASES = {f"{policy}, eos {eos}": {"policy": policy, "eos": eos}
         for policy, eos in product(("low_confidence", "margin", "entropy"), ("free", "late"))}  # fmt: skip


@cache
def problems_of(task: str, split: str, count: int, *, run: bool) -> list[Any]:
    """The same problems in both stages; only the one that runs programs asks for the sandbox."""
    from oddlm.tasks import countdown, minicode

    if task == "countdown":
        return countdown.load(split=split, count=count, seed=1)
    return minicode.load(split=split, count=count, seed=1, unsafe=not run)


def generate(args: argparse.Namespace) -> None:
    import torch

    from oddlm import LM
    from oddlm.models.mini import HERE, Mini
    from oddlm.tasks import find_task

    if args.device != "cpu":
        torch.set_float32_matmul_precision("high")
    model = Mini(args.weights or HERE, device=args.device)
    lm, task = LM(model, model.tokenizer), find_task(args.task)
    began = time.monotonic()

    problems = problems_of(args.task, args.split, args.problems, run=False)
    prompts = [task.prompt(problem) for problem in problems]
    with gzip.open(args.out, "wt") as file:
        for seed, base, temperature, method in product(args.seeds, args.bases, args.temperatures, args.methods):
            if (start := time.monotonic()) - began > args.within:
                return
            settings = {**SHAPES[args.task], **BASES[base], **METHODS[method], "temperature": temperature, "seed": seed}
            groups = lm.generate(prompts, N, max_rows=args.rows, progress=False, **settings)
            seconds = round(time.monotonic() - start, 2)
            what = {"task": args.task, "split": args.split, "count": args.problems, "base": base, "method": method}
            row = {**what, "temperature": temperature, "seed": seed, "seconds": seconds}
            print(json.dumps(row), flush=True)
            file.write(json.dumps({**row, "texts": [[sample.text for sample in group] for group in groups]}) + "\n")


def score(args: argparse.Namespace) -> None:
    from oddlm.tasks import find_task

    rows = []
    for path in args.texts:
        with gzip.open(path, "rt") as file:
            rows += [json.loads(line) for line in file]
    verdicts: dict[tuple[str, str], bool] = {}
    groups = defaultdict(list)
    for row in rows:
        groups[row["task"], row["split"], row["count"]].append(row)
    for (name, split, count), some in groups.items():
        task, problems = find_task(name), problems_of(name, split, count, run=True)
        by_id = {p.id: p for p in problems}
        answers = {(p.id, x) for row in some for p, own in zip(problems, row["texts"], strict=True) for x in own}
        todo = sorted(answers - verdicts.keys())
        print(f"{name} {split}: {len(todo)} different answers to score", flush=True)
        with ThreadPoolExecutor(args.workers) as pool:
            right = pool.map(lambda key, task=task, by_id=by_id: task.score(by_id[key[0]], key[1]).correct, todo)
            verdicts.update(zip(todo, right, strict=True))
        for row in some:
            pairs = list(zip(problems, row.pop("texts"), strict=True))
            row["right"] = [sum(verdicts[p.id, x] for x in own) for p, own in pairs]
            row["distinct"] = round(float(np.mean([len(set(own)) for _, own in pairs])), 2)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    show(rows)


def table(args: argparse.Namespace) -> None:
    show(json.loads(args.scores.read_text()))


def show(rows: list[dict[str, Any]]) -> None:
    """Markdown: the choice of the base policy, then every method on it."""
    tuned = defaultdict(list)
    for row in rows:
        if row["split"] == "tune":
            tuned[row["base"], row["method"]].append(float(np.mean([c > 0 for c in row["right"]])))
    print(f"\nTune split, Pass@{N} averaged over temperatures:\n")
    for (base, method), values in sorted(tuned.items(), key=lambda kv: -np.mean(kv[1])):
        print(f"- {method} on {base}: {np.mean(values):.1%} ({len(values)} runs)")
    base = max((b for b, method in tuned if method == "plain"), key=lambda b: np.mean(tuned[b, "plain"]))
    cells = defaultdict(list)
    for row in rows:
        if row["split"] == "test" and row["base"] == base:
            cells[row["method"], row["temperature"]].append(row)
    print(f"\nTest split, base policy {base}\n")
    print(f"| method | temperature | seeds | Pass@1 | Pass@{N} | distinct | Pass@{N} minus plain, 95 % interval |")
    print("|---|---|---|---|---|---|---|")
    for temperature in sorted({t for _, t in cells}):
        for method in [m for m in METHODS if (m, temperature) in cells]:
            own, plain = cells[method, temperature], cells["plain", temperature]
            difference = _difference(own, plain) if own is not plain else ""
            print(f"| {method} | {temperature:g} | {len(own)} | {_line(own)} | {difference} |")


def _line(own: list[dict[str, Any]]) -> str:
    right = np.array([row["right"] for row in own])
    ones, many = (right / N).mean(axis=1), (right > 0).mean(axis=1)
    return f"{_with_error(ones)} | {_with_error(many)} | {np.mean([row['distinct'] for row in own]):.1f}"


def _with_error(values: np.ndarray) -> str:
    error = f" ± {100 * values.std(ddof=1) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.1f}{error}"


def _difference(own: list[dict[str, Any]], plain: list[dict[str, Any]], draws: int = 10_000) -> str:
    """Paired by problem and averaged over the seeds that both have; the interval is a bootstrap over problems."""
    solved = [{row["seed"]: np.array(row["right"]) > 0 for row in some} for some in (own, plain)]
    seeds = sorted(solved[0].keys() & solved[1].keys())
    by_problem = np.mean([solved[0][s].astype(float) - solved[1][s] for s in seeds], axis=0)
    picks = np.random.default_rng(0).integers(len(by_problem), size=(draws, len(by_problem)))
    low, high = np.percentile(by_problem[picks].mean(axis=1), [2.5, 97.5])
    return f"{100 * by_problem.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    make = stages.add_parser("generate")
    make.add_argument("task", choices=list(SHAPES))
    make.add_argument("--out", type=Path, required=True)
    make.add_argument("--weights", type=Path, help="folder of a checkpoint; default: the one in the package")
    make.add_argument("--device", default="cpu")
    make.add_argument("--split", choices=["tune", "test"], default="test")
    make.add_argument("--problems", type=int, default=250)
    make.add_argument("--seeds", type=int, nargs="+", default=range(4))
    make.add_argument("--bases", nargs="+", choices=list(BASES), default=list(BASES))
    make.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    make.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    make.add_argument("--rows", type=int, default=4096, help="samples at a time")
    make.add_argument("--within", type=float, default=float("inf"), help="begin no run after so many seconds")
    make.set_defaults(stage=generate)
    judge = stages.add_parser("score")
    judge.add_argument("texts", type=Path, nargs="+")
    judge.add_argument("--out", type=Path, required=True)
    judge.add_argument("--workers", type=int, default=2)
    judge.set_defaults(stage=score)
    printer = stages.add_parser("table")
    printer.add_argument("scores", type=Path)
    printer.set_defaults(stage=table)
    args = parser.parse_args()
    args.stage(args)


if __name__ == "__main__":
    main()

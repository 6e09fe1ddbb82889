"""Plain sampling against everything that makes samples differ, on the mini model.

    python recipes/mini/compare.py generate countdown --out countdown.jsonl.gz --device cuda
    python recipes/mini/compare.py generate minicode --out minicode.jsonl.gz --device cuda
    python recipes/mini/compare.py score countdown.jsonl.gz --out recipes/mini/results/countdown.json
    python recipes/mini/compare.py table recipes/mini/results/countdown.json

`generate` runs anywhere and executes nothing; `score` needs the sandbox for minicode. The base policy (what picks positions, and
whether end tokens wait) is the one that is best for plain sampling on the tune split; all methods then run on it.
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
ALPHA = 16.0
SHAPES = {"countdown": {"length": 24, "steps": 12}, "minicode": {"length": 64, "steps": 32}}
TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"objective": "none"},
    "odd": {"objective": "odd", "alpha": ALPHA},
    "odd, alpha 8": {"objective": "odd", "alpha": 8.0},
    "order temperature 1": {"objective": "none", "order_temperature": 1.0},
    "fork": {"objective": "none", "fork": True},
    "dpp": {"objective": "dpp", "alpha": ALPHA},
    "odd_sequential": {"objective": "odd_sequential", "alpha": ALPHA},
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

    from oddlm import LM, noise
    from oddlm.kernels import closed_form
    from oddlm.models.mini import HERE, Mini
    from oddlm.tasks import find_task

    if args.device != "cpu":  # small tiles suit the caches of a CPU
        closed_form.TILE_ELEMENTS = noise.TILE_ELEMENTS = 1 << 27
        torch.set_float32_matmul_precision("high")
    model = Mini(args.weights or HERE, device=args.device)
    lm, task = LM(model, model.tokenizer), find_task(args.task)
    began = time.monotonic()

    def run(split: str, base: str, method: str, temperature: float, seed: int, count: int, file: Any) -> list[list[str]]:
        start, problems = time.monotonic(), problems_of(args.task, split, count, run=False)
        settings = {**SHAPES[args.task], **BASES[base], **METHODS[method]}
        groups = lm.generate(
            [task.prompt(p) for p in problems],
            N,
            max_rows=args.rows,
            temperature=temperature,
            seed=seed,
            progress=False,
            **settings,
        )
        texts = [[sample.text for sample in group] for group in groups]
        where = {"task": args.task, "split": split, "count": count, "base": base, "method": method}
        row = {**where, "temperature": temperature, "seed": seed, "seconds": round(time.monotonic() - start, 2), "texts": texts}
        file.write(json.dumps(row) + "\n")
        print(
            f"{time.monotonic() - began:6.0f} s  {split} {base} | {method} | {temperature} | seed {seed}: {row['seconds']} s",
            flush=True,
        )
        return texts

    def on_time() -> bool:
        return time.monotonic() - began < args.within

    with gzip.open(args.out, "wt") as file:
        bases = list(BASES) if args.task == "countdown" else ["low_confidence, eos free", "low_confidence, eos late"]
        tuned = {}
        for base in bases:
            texts = [run("tune", base, "plain", t, 0, args.tune, file) for t in args.temperatures]
            if args.task == "countdown":
                tuned[base] = float(np.mean([_solved(args.task, args.tune, x) for x in texts]))
                print(f"{base}: Pass@{N} {tuned[base]:.3f} on the tune split", flush=True)
        chosen = [max(tuned, key=tuned.__getitem__)] if tuned else bases
        for seed, base, temperature, method in product(range(args.seeds), chosen, args.temperatures, args.methods):
            if on_time():
                run("test", base, method, temperature, seed, args.problems, file)


def _solved(task: str, count: int, texts: list[list[str]]) -> float:
    from oddlm.tasks import countdown

    problems = problems_of(task, "tune", count, run=False)
    return float(
        np.mean([any(countdown.score(p, x).correct for x in set(own)) for p, own in zip(problems, texts, strict=True)])
    )


def score(args: argparse.Namespace) -> None:
    from oddlm.tasks import find_task

    with gzip.open(args.texts, "rt") as file:
        rows = [json.loads(line) for line in file]
    verdicts: dict[tuple[str, str], bool] = {}
    groups = defaultdict(list)
    for row in rows:
        groups[row["task"], row["split"], row["count"]].append(row)
    for (name, split, count), some in groups.items():
        task, problems = find_task(name), problems_of(name, split, count, run=True)
        by_id = {p.id: p for p in problems}
        todo = sorted(
            {(p.id, x) for row in some for p, own in zip(problems, row["texts"], strict=True) for x in own} - verdicts.keys()
        )
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
            tuned[row["base"]].append(float(np.mean([c > 0 for c in row["right"]])))
    print(f"\nTune split, plain, Pass@{N} averaged over temperatures: ", end="")
    print("; ".join(f"{base} {np.mean(values):.1%}" for base, values in sorted(tuned.items(), key=lambda kv: -np.mean(kv[1]))))
    base = max(tuned, key=lambda b: np.mean(tuned[b]))
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
            print(
                f"| {method} | {temperature:g} | {len(own)} | {_line(own)} | {_difference(own, plain) if own is not plain else ''} |"
            )


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
    make.add_argument("--problems", type=int, default=250)
    make.add_argument("--tune", type=int, default=250, help="problems of the tune split")
    make.add_argument("--seeds", type=int, default=4)
    make.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    make.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    make.add_argument("--rows", type=int, default=4096, help="samples at a time")
    make.add_argument("--within", type=float, default=float("inf"), help="begin no run after so many seconds")
    make.set_defaults(stage=generate)
    judge = stages.add_parser("score")
    judge.add_argument("texts", type=Path)
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

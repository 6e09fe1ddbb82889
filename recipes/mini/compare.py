"""Plain sampling against everything that makes samples differ, on the mini model. `generate` runs anywhere and executes
nothing; `score` needs the sandbox for minicode. The base policy (what picks positions, and whether end tokens wait) is the one
that is best for plain sampling on the tune split; all methods are compared on it. For each task:

    python recipes/mini/compare.py generate minicode-3 --split tune --methods plain --seeds 0 --problems 100 \\
        --device cuda --fast --out tune.jsonl.gz
    python recipes/mini/compare.py generate minicode-3 --bases "low_confidence, eos free" --problems 200 --methods plain \\
        "odd, alpha 8" "odd_sequential, alpha 8" "dpp, alpha 8" "order temperature 1" fork \\
        --device cuda --fast --out test.jsonl.gz
    python recipes/mini/compare.py score tune.jsonl.gz test.jsonl.gz --out recipes/mini/results/minicode-3.json
    python recipes/mini/compare.py table recipes/mini/results/minicode-3.json
"""

import argparse
import gzip
import json
import re
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

N = 16
SHAPES = {
    "countdown": {"length": 24, "steps": 12},
    "minicode": {"length": 64, "steps": 32},
    "minicode-3": {"length": 64, "steps": 16},  # three operations, and half the steps: see the model card
}
TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"objective": "none"},
    **{f"odd, alpha {alpha}": {"objective": "odd", "alpha": alpha} for alpha in (2, 4, 6, 8, 12, 16)},
    **{f"odd_sequential, alpha {alpha}": {"objective": "odd_sequential", "alpha": alpha} for alpha in (8, 16)},
    **{f"dpp, alpha {alpha}": {"objective": "dpp", "alpha": alpha} for alpha in (8, 16)},
    "order temperature 1": {"objective": "none", "order_temperature": 1.0},
    "fork": {"objective": "none", "fork": True},
}
NOISELESS = ("plain", "fork")  # at temperature 0: every seed gives the same samples, so seed 0 stands for all
BATCH = 128  # programs to a sandbox: as many verdicts as its answer has room for
CALL = """
LOADED = {}

def plain(value):
    return all(map(plain, value)) if type(value) is list else type(value) in (bool, int, float, str, type(None))

def call(which, arguments):
    try:
        if which not in LOADED:
            LOADED[which] = {}
            exec(PROGRAMS[which], LOADED[which])
        value = LOADED[which]["f"](*arguments)
    except BaseException:
        return [False, None]
    return [True, value] if plain(value) else [False, None]
"""
VERDICTS = """
right = [all(call(i, arguments) == [True, expected] for arguments, expected in CHECKS) for i in range(PROGRAMS)]
raise ValueError("".join("01"[r] for r in right))
"""
BASES = {f"{policy}, eos {eos}": {"policy": policy, "eos": eos}
         for policy, eos in product(("low_confidence", "margin", "entropy"), ("free", "late"))}  # fmt: skip


@cache
def problems_of(task: str, split: str, count: int, *, run: bool) -> list[Any]:
    """The same problems in both stages; only the one that runs programs asks for the sandbox."""
    from oddlm.tasks import countdown, minicode

    if task == "countdown":
        return countdown.load(split=split, count=count, seed=1)
    operations = {"minicode": None, "minicode-3": 3}[task]
    return minicode.load(operations=operations, split=split, count=count, seed=1, unsafe=not run)


def load_mini(args: argparse.Namespace) -> Any:
    import torch

    from oddlm import LM
    from oddlm.models.mini import HERE, Mini

    if args.device != "cpu":
        torch.set_float32_matmul_precision("high")
    model = Mini(args.weights or HERE, device=args.device)
    if args.fast:
        model.network.blocks = torch.nn.ModuleList(map(_half, model.network.blocks))
        model.network.compile(dynamic=False)
    return LM(model, model.tokenizer)


def _half(block: Any) -> Any:
    """The block with products in float16, whose mantissa is that of TF32; the stream between blocks stays float32."""
    import torch

    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Any, *others: Any) -> Any:
            with torch.autocast(x.device.type, torch.float16):
                return self.block(x, *others)

    return Half()


def generate(args: argparse.Namespace) -> None:
    lm = load_mini(args)
    began = time.monotonic()
    problems = problems_of(args.task, args.split, args.problems, run=False)
    prompts = [task_of(args.task).prompt(problem) for problem in problems]
    with gzip.open(args.out, "at") as file:
        for seed, base, temperature, method in product(args.seeds, args.bases, args.temperatures, args.methods):
            if seed > 0 and temperature == 0 and method in NOISELESS:
                continue
            if (start := time.monotonic()) - began > args.within:
                return
            how = {"fork": False, **METHODS[method], "temperature": temperature, "seed": seed}
            settings = {**SHAPES[args.task], **BASES[base], **how}
            groups = lm.generate(prompts, N, max_batch=args.rows, progress=False, **settings)
            seconds = round(time.monotonic() - start, 2)
            what = {"task": args.task, "split": args.split, "count": args.problems, "base": base, "method": method}
            row = {**what, "temperature": temperature, "seed": seed, "seconds": seconds}
            print(json.dumps(row), flush=True)
            file.write(json.dumps({**row, "texts": [[sample.text for sample in group] for group in groups]}) + "\n")
            file.flush()


def task_of(name: str) -> Any:
    from oddlm.tasks import find_task

    return find_task(name.partition("-")[0])


def score(args: argparse.Namespace) -> None:
    rows = []
    for path in args.texts:
        with gzip.open(path, "rt") as file:
            rows += [json.loads(line) for line in file]
    groups = defaultdict(list)
    for row in rows:
        groups[row["task"], row["split"], row["count"]].append(row)
    for (name, split, count), some in groups.items():
        task, problems = task_of(name), problems_of(name, split, count, run=True)
        answers = [sorted({text for row in some for text in row["texts"][i]}) for i in range(count)]
        print(f"{name} {split}: {sum(map(len, answers))} different answers to score", flush=True)
        with ThreadPoolExecutor(args.workers) as pool:
            right = list(pool.map(partial(right_answers, task), problems, answers))
        check_verdicts(task, problems, answers, right, args.check)
        for row in some:
            texts = row.pop("texts")
            row["right"] = [sum(text in good for text in own) for good, own in zip(right, texts, strict=True)]
            row["distinct"] = round(float(np.mean([len(set(own)) for own in texts])), 2)
    new = {_name(row) for row in rows}
    rows = [row for row in _scored(args.out) if _name(row) not in new] + rows
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    show(rows)


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("task", "split", "count", "base", "method", "temperature", "seed"))


def _scored(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def right_answers(task: Any, problem: Any, answers: list[str]) -> set[str]:
    """Those of the answers that are right; programs are run many to a sandbox, whose start costs more than they do."""
    if not task.code:
        return {text for text in answers if task.score(problem, text).correct}
    from oddlm.tasks.minicode.reading import read_answer

    programs = {text: read[1] for text in answers if (read := read_answer(text, problem.prompt))}
    different = sorted(set(programs.values()))
    right = {
        program for i in range(0, len(different), BATCH) for program in right_programs(task, problem, different[i : i + BATCH])
    }
    return {text for text, program in programs.items() if program in right}


def right_programs(task: Any, problem: Any, programs: list[str]) -> set[str]:
    """A batch that one of its programs breaks (no end, no memory) is halved; a program alone is the task's own business."""
    from oddlm.sandbox import run_python

    if len(programs) == 1:
        return set(programs) if task.score(problem, programs[0]).correct else set()
    tests = f"PROGRAMS, CHECKS = {len(programs)}, {problem.target.checks!r}\n{VERDICTS}"
    verdict = run_python(f"PROGRAMS = {programs!r}\n{CALL}", tests, functions=("call",))
    if found := re.match(rf"ValueError: ([01]{{{len(programs)}}});", verdict.detail):
        return {program for program, bit in zip(programs, found[1], strict=True) if bit == "1"}
    half = len(programs) // 2
    return right_programs(task, problem, programs[:half]) | right_programs(task, problem, programs[half:])


def check_verdicts(task: Any, problems: list[Any], answers: list[list[str]], right: list[set[str]], count: int) -> None:
    """The task itself must agree on some of the answers, half of them right ones."""
    pairs = [(i, text) for i, own in enumerate(answers) for text in own]
    random = Random(0)
    for wanted in (True, False):
        some = [(i, text) for i, text in pairs if (text in right[i]) == wanted]
        for i, text in random.sample(some, min(count // 2, len(some))):
            if task.score(problems[i], text).correct != wanted:
                raise RuntimeError(f"scored {wanted} in a batch, but not by the task: {problems[i].id}\n{text}")


def table(args: argparse.Namespace) -> None:
    show(_scored(args.scores))


def show(rows: list[dict[str, Any]]) -> None:
    """Markdown: the choice of the base policy, then every method on it."""
    tuned = defaultdict(list)
    for row in rows:
        if row["split"] == "tune":
            tuned[row["base"], row["method"]].append(float(np.mean([c > 0 for c in row["right"]])))
    print(f"\nTune split, Pass@{N} averaged over temperatures:\n")
    for (base, method), values in sorted(tuned.items(), key=lambda kv: -np.mean(kv[1])):
        print(f"- {method} on {base}: {np.mean(values):.1%} ({len(values)} runs)")
    choices = [b for b, method in tuned if method == "plain"] or [row["base"] for row in rows]
    base = max(choices, key=lambda b: np.mean(tuned[b, "plain"] or [0.0]))
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
            difference = _difference(own, plain) if plain and own is not plain else ""
            print(f"| {method} | {temperature:g} | {len(own)} | {_line(own)} | {difference} |")


def _line(own: list[dict[str, Any]]) -> str:
    right = np.array([row["right"] for row in own])
    ones, many = (right / N).mean(axis=1), (right > 0).mean(axis=1)
    return f"{_with_error(ones)} | {_with_error(many)} | {np.mean([row['distinct'] for row in own]):.1f}"


def _with_error(values: np.ndarray) -> str:
    error = f" ± {100 * values.std(ddof=1) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.1f}{error}"


def _difference(own: list[dict[str, Any]], plain: list[dict[str, Any]], draws: int = 10_000) -> str:
    """Paired by problem, averaged over seeds; the interval is a bootstrap over problems."""
    by_problem = np.subtract(*(np.mean([np.array(row["right"]) > 0 for row in some], axis=0) for some in (own, plain)))
    picks = np.random.default_rng(0).integers(len(by_problem), size=(draws, len(by_problem)))
    low, high = np.percentile(by_problem[picks].mean(axis=1), [2.5, 97.5])
    return f"{100 * by_problem.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    make = stages.add_parser("generate")
    make.add_argument("task", choices=list(SHAPES))
    make.add_argument("--out", type=Path, required=True, help="gzipped JSONL; runs are added at its end")
    make.add_argument("--weights", type=Path, help="folder of a checkpoint; default: the one in the package")
    make.add_argument("--device", default="cpu")
    make.add_argument("--split", choices=["tune", "test"], default="test")
    make.add_argument("--problems", type=int, default=250)
    make.add_argument("--seeds", type=int, nargs="+", default=range(4))
    make.add_argument("--bases", nargs="+", choices=list(BASES), default=list(BASES))
    make.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    make.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    make.add_argument("--rows", type=int, default=4096, help="samples at a time")
    make.add_argument("--fast", action="store_true", help="compiled, with the products of the blocks in float16")
    make.add_argument("--within", type=float, default=float("inf"), help="begin no run after so many seconds")
    make.set_defaults(stage=generate)
    judge = stages.add_parser("score")
    judge.add_argument("texts", type=Path, nargs="+")
    judge.add_argument(
        "--out", type=Path, required=True, help="JSON; what it holds already stays, but for the runs scored anew"
    )
    judge.add_argument("--workers", type=int, default=2)
    judge.add_argument("--check", type=int, default=200, help="answers that the task scores again, one by one")
    judge.set_defaults(stage=score)
    printer = stages.add_parser("table")
    printer.add_argument("scores", type=Path)
    printer.set_defaults(stage=table)
    args = parser.parse_args()
    args.stage(args)


if __name__ == "__main__":
    main()

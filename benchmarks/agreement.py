"""The same samples on CPU and GPU: the mini model on countdown with four numbers, float32 against float32, bfloat16 beside.

    python benchmarks/agreement.py generate --device cpu --out cpu.json
    python benchmarks/agreement.py generate --device cuda --out gpu.json
    python benchmarks/agreement.py generate --device cuda --dtype bfloat16 --out gpu16.json
    python benchmarks/agreement.py compare cpu.json gpu.json gpu16.json

The networks of the two devices round differently, and one token that falls the other way changes what is written after it. So
tokens are compared as whole samples, and the first differing samples say how many such falls there were.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oddlm import LM
from oddlm.models.mini import Mini
from oddlm.tasks import countdown

SETTINGS: dict[str, Any] = {"length": 24, "steps": 12, "temperature": 0.5, "alpha": 8.0}
N = 16


def generate(args: argparse.Namespace) -> None:
    problems = countdown.load(split="test", count=args.problems, seed=1)
    model = Mini(device=args.device, dtype=getattr(torch, args.dtype))
    found = LM(model, model.tokenizer).generate(
        [countdown.prompt(p) for p in problems], n=N, seeds=list(range(len(problems))), progress=False, **SETTINGS
    )
    rows = [
        {"tokens": [s.tokens for s in samples], "correct": [countdown.score(p, s.text).correct for s in samples]}
        for p, samples in zip(problems, found, strict=True)
    ]
    Path(args.out).write_text(json.dumps({"device": args.device, "dtype": args.dtype, "problems": rows}))


def compare(args: argparse.Namespace) -> None:
    runs = [json.loads(Path(path).read_text()) for path in args.files]
    count = min(len(run["problems"]) for run in runs)
    first = runs[0]["problems"][:count]
    print(f"mini, countdown-4, {count} problems, n={N}, {SETTINGS}\n")
    print("| run | samples as in the first | problems alike in all | Pass@1 | Pass@16 | Pass@16 less the first, 95 % |")
    print("|---|---|---|---|---|---|")
    for run in runs:
        rows = run["problems"][:count]
        same = np.array(
            [[a == b for a, b in zip(x["tokens"], y["tokens"], strict=True)] for x, y in zip(rows, first, strict=True)]
        )
        solved, before = (np.array([any(x["correct"]) for x in r], dtype=float) for r in (rows, first))
        single = np.mean([x["correct"] for x in rows])
        change, half = (solved - before).mean(), 1.96 * (solved - before).std() / count**0.5
        passes = f"{single:.1%} | {solved.mean():.1%} | {100 * change:+.1f} ± {100 * half:.1f} points"
        print(f"| {run['device']} {run['dtype']} | {same.mean():.2%} | {same.all(axis=1).mean():.1%} | {passes} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("generate")
    making.add_argument("--device", default="cpu")
    making.add_argument("--dtype", default="float32")
    making.add_argument("--problems", type=int, default=200)
    making.add_argument("--out", required=True)
    making.set_defaults(run=generate)
    comparing = commands.add_parser("compare")
    comparing.add_argument("files", nargs="+")
    comparing.set_defaults(run=compare)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

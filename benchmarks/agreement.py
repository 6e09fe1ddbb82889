"""Compare samples from CPU and GPU: the mini model on countdown with four numbers.

    python benchmarks/agreement.py generate --device cpu --out cpu.json
    python benchmarks/agreement.py generate --device cuda --out gpu.json
    python benchmarks/agreement.py generate --device cuda --dtype bfloat16 --rounds 8 \\
        --out gpu16.json
    python benchmarks/agreement.py compare cpu.json gpu.json gpu16.json

Networks round differently on the two devices, and a single different token changes everything
written after it. So the samples of the first round are compared as a whole. Pass@16 is compared
problem by problem, averaged over rounds with different seeds. `--head float32` computes the logits
of a bfloat16 network in float32.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oddlm import LM
from oddlm.models.mini import Mini
from oddlm.models.transformer import Transformer
from oddlm.tasks import countdown

SETTINGS: dict[str, Any] = {
    "length": 24,
    "steps": 12,
    "temperature": 0.5,
    "objective": "odd",
    "alpha": 8.0,
    "fork": False,
}
N = 16


def generate(args: argparse.Namespace) -> None:
    problems = countdown.load(split="test", count=args.problems, seed=1)
    model = Mini(device=args.device, dtype=getattr(torch, args.dtype))
    if args.head is not None:
        model.network.logits = partial(wide_logits, model.network, getattr(torch, args.head))
    lm, rounds = LM(model, model.tokenizer), []
    for i in range(args.rounds):
        seeds = [i * 1_000_000 + j for j in range(len(problems))]
        found = lm.generate(
            [countdown.prompt(p) for p in problems], n=N, seeds=seeds, progress=False, **SETTINGS
        )
        rounds.append(
            [
                [countdown.score(p, s.text).correct for s in samples]
                for p, samples in zip(problems, found, strict=True)
            ]
        )
        if i == 0:
            tokens = [[s.tokens for s in samples] for samples in found]
        numbers = args.dtype if args.head is None else f"{args.dtype}, head {args.head}"
        kept = {"device": args.device, "dtype": numbers, "tokens": tokens, "rounds": rounds}
        Path(args.out).write_text(json.dumps(kept))


def wide_logits(network: Transformer, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    head = network.embed if network.head is None else network.head
    return torch.nn.functional.linear(network.norm(x).to(dtype), head.weight.to(dtype))


def compare(args: argparse.Namespace) -> None:
    runs = [json.loads(Path(path).read_text()) for path in args.files]
    count, common = len(runs[0]["tokens"]), min(len(run["rounds"]) for run in runs)
    print(f"mini, countdown-4, {count} problems, n={N}, {common} rounds, {SETTINGS}\n")
    print(
        "| run | samples as in the first | problems alike | Pass@1 | Pass@16 | each round "
        "| Pass@16 less the first, 95 % |"
    )
    print("|---|---|---|---|---|---|---|")
    results = [np.array(run["rounds"][:common]) for run in runs]  # [rounds, problems, samples]
    before = results[0].any(axis=2).mean(axis=0)
    for run, result in zip(runs, results, strict=True):
        pairs = zip(run["tokens"], runs[0]["tokens"], strict=True)
        same = np.array([[a == b for a, b in zip(x, y, strict=True)] for x, y in pairs])
        solved = result.any(axis=2)
        change = solved.mean(axis=0) - before  # of each problem
        half = 1.96 * change.std(ddof=1) / count**0.5
        each = " ".join(f"{100 * share:.1f}" for share in solved.mean(axis=1))
        changed = f"{100 * change.mean():+.1f} ± {100 * half:.1f} points"
        passes = f"{result.mean():.1%} | {solved.mean():.1%} | {each} | {changed}"
        alike = f"{same.mean():.2%} | {same.all(axis=1).mean():.1%}"
        print(f"| {run['device']} {run['dtype']} | {alike} | {passes} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("generate")
    making.add_argument("--device", default="cpu")
    making.add_argument("--dtype", default="float32")
    making.add_argument("--head", help="dtype of the logits, if not --dtype")
    making.add_argument("--problems", type=int, default=200)
    making.add_argument("--rounds", type=int, default=1)
    making.add_argument("--out", required=True)
    making.set_defaults(run=generate)
    comparing = commands.add_parser("compare")
    comparing.add_argument("files", nargs="+")
    comparing.set_defaults(run=compare)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

"""Pass@16 of SGLang's own rule and of `Odd`, with mini as the network and no SGLang.

    python benchmarks/sglang_trial.py [--problems 10]

The loop is the stand-in of tests/integrations/sglang_engine.py: one block of 24 tokens behind each
prompt, committed by a threshold of 0.95. It shows what the rule does to samples; nothing of the
engine runs.
"""

import argparse
from typing import Any

import torch
from tests.integrations import sglang_engine as engine
from torch import Tensor

import oddlm
from oddlm.tasks import Problem, find_task

N, LENGTH = 16, 24


def network(model: Any) -> Any:
    """Return the network as a function of tokens [B, T]."""

    @torch.no_grad()
    def logits(tokens: Tensor) -> Tensor:
        found: Tensor = model.network(tokens, 0, torch.zeros(len(tokens), dtype=torch.long))
        return found

    return logits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=10)
    args = parser.parse_args()
    engine.install()
    from oddlm.integrations.sglang import Odd, register

    register()
    lm, task = oddlm.load("mini"), find_task("countdown")
    problems = task.problems(limit=args.problems)
    logits = network(lm.model)

    def texts(problem: Problem, cls: Any, temperature: float, given: dict[str, Any]) -> Any:
        settings = engine.config(LENGTH, lm.info.mask_id, **given)
        run = engine.Engine(logits, cls(settings), settings, aligned=False)
        ids = lm.tokenizer.encode(task.prompt(problem))
        requests = [engine.request(ids, temperature=temperature) for _ in range(N)]
        rows = run.generate(requests, LENGTH)
        ends = [next((i for i, t in enumerate(row) if t in lm.info.end_ids), None) for row in rows]
        return [lm.tokenizer.decode(r[:e]) for r, e in zip(rows, ends, strict=True)], run.forwards

    ends = {"end_ids": list(lm.info.end_ids)}
    plain: dict[str, Any] = {**ends, "alpha": 0.0, "fork": False}
    cells: list[tuple[str, Any, float, dict[str, Any]]] = [
        ("LowConfidence, which is greedy", engine.LowConfidence, 0.0, {}),
        ("the same rule, temperature 0.5", Odd, 0.5, plain),
        ("the same rule, temperature 1", Odd, 1.0, plain),
        ("Odd, default", Odd, 0.0, ends),
        ("Odd, default, temperature 0.5", Odd, 0.5, ends),
    ]
    print("| algorithm | Pass@1 | Pass@16 | distinct | evaluations |")
    print("| --- | --- | --- | --- | --- |")
    for name, cls, temperature, settings in cells:
        solved, right, distinct, forwards = 0, 0.0, 0, 0
        for problem in problems:
            found, passes = texts(problem, cls, temperature, settings)
            verdicts = [task.score(problem, text).correct for text in found]
            solved, right = solved + any(verdicts), right + sum(verdicts) / N
            distinct, forwards = distinct + len(set(found)), forwards + passes
        k = len(problems)
        print(
            f"| {name} | {100 * right / k:.1f} | {100 * solved / k:.1f} | {distinct / k:.1f} "
            f"| {forwards / k:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""How a network does on problems that it does not learn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.step import StepEvent
from ..lm import LM
from ..params import SampleParams
from ..rolling import rollouts
from ..tasks import Problem, Task
from ..train.loop import Place


def measure(
    lm: LM,
    task: Task,
    problems: Sequence[Problem],
    methods: Mapping[str, tuple[int, SampleParams]],
    place: Place,
) -> dict[str, Any]:
    """Draw samples of every problem with each method, a number and settings, from fixed seeds.

    Of each method: Pass@1, Pass@n, the share of problems with right and wrong samples, the mean
    entropy in nats of the network where it wrote tokens, and for each problem how many are right.
    """
    own = problems[place.rank :: place.world]
    seeds = range(place.rank, len(problems), place.world)
    found = {}
    for name, (n, params) in methods.items():
        watch = _Entropy()
        rolled = rollouts(lm, own, n, params=params, seeds=list(seeds), reward=task, observe=watch)
        assert rolled.rewards is not None
        counts = rolled.rewards.sum(dim=1).long().tolist()
        parts = place.gathered([(list(zip(seeds, counts, strict=True)), watch.total, watch.tokens)])
        by_problem = sorted(one for part, _, _ in parts for one in part)
        found[name] = _summary([count for _, count in by_problem], n) | {
            "entropy": round(sum(p[1] for p in parts) / max(1, sum(p[2] for p in parts)), 4)
        }
    return found


def _summary(right: list[int], n: int) -> dict[str, Any]:
    solved, mixed = (sum(map(test, right)) for test in (bool, lambda count: 0 < count < n))
    return {
        "pass@1": round(sum(right) / n / len(right), 4),
        f"pass@{n}": round(solved / len(right), 4),
        "mixed": round(mixed / len(right), 4),
        "n": n,
        "right": right,
    }


@dataclass
class _Entropy:
    """Adds up the entropy of the network, before any push, at the positions that are written."""

    total: float = 0.0
    tokens: int = 0

    def __call__(self, event: StepEvent) -> None:
        shares = event.base_logits[event.commit].float().softmax(dim=-1)
        self.total += float(torch.special.entr(shares).sum())
        self.tokens += len(shares)

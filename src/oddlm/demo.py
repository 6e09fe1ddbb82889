"""`oddlm demo`: what diversity does to a batch, on a network that needs no download."""

import time
from itertools import combinations

from rich.console import Console
from rich.table import Table
from torch import Tensor

from .diversity.guide import Repulsion
from .models.toy import Toy
from .sampler import denoise
from .types import StepEvent


def run_demo(*, n: int, length: int, steps: int, alpha: float, seed: int) -> None:
    console = Console()
    model = Toy()
    console.print(
        "An untrained toy network ([bold]random weights: it knows nothing[/bold]) stands in until a trained model ships here. "
        f"{n} samples of {length} tokens in {steps} steps; every setting spends the same network evaluations.\n"
    )
    table = Table("objective", "temp.", "distinct", "differing", "log p", "changed", "seconds")
    batches: dict[str, Tensor] = {}
    for temperature in (0.0, 0.5):
        for objective in ("none", "dpp", "odd"):
            watch = _Watch()
            began = time.perf_counter()
            guide = None if objective == "none" else Repulsion(objective, alpha=alpha)
            done = denoise(
                model,
                [[5, 6, 7]],
                n=n,
                length=length,
                steps=steps,
                temperature=temperature,
                guide=guide,
                seed=seed,
                observe=watch,
            )
            seconds = time.perf_counter() - began
            batches.setdefault(objective, done.tokens)
            table.add_row(
                "plain" if objective == "none" else objective,
                f"{temperature:g}",
                f"{len({tuple(row) for row in done.tokens.tolist()})} / {n}",
                f"{_difference(done.tokens):.0%}",
                f"{watch.log_probability / done.tokens.numel():.2f}",
                f"{watch.changed / done.tokens.numel():.0%}",
                f"{seconds:.2f}",
            )
        table.add_section()
    console.print(table)
    console.print(
        "differing: share of positions in which two samples differ, over all pairs. log p: mean over the written tokens, "
        "under the network before guidance. changed: share of tokens that plain sampling would not have written there "
        "and then.\n"
    )
    side_by_side = Table("sample", "plain, temperature 0", "odd, temperature 0", title="The first samples, token ids")
    for i in range(min(n, 8)):
        side_by_side.add_row(str(i), *(" ".join(map(str, batches[k][i, :10].tolist())) + " ..." for k in ("none", "odd")))
    console.print(side_by_side)


class _Watch:
    """An observer that adds up what guidance changed and what it cost."""

    def __init__(self) -> None:
        self.changed = 0
        self.log_probability = 0.0

    def __call__(self, event: StepEvent) -> None:
        chosen, plain = event.chosen, event.plain
        same = plain.commit & (plain.tokens == chosen.tokens)
        self.changed += int((event.commit & ~same).sum())
        self.log_probability += float(chosen.base_probability[event.commit].log().sum())


def _difference(tokens: Tensor) -> float:
    pairs = list(combinations(range(len(tokens)), 2))
    return sum(float((tokens[i] != tokens[j]).double().mean()) for i, j in pairs) / max(len(pairs), 1)

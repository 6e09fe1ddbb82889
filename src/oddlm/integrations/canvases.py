"""The push in a sampler that writes an answer canvas by canvas (block by block)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..checks import whole
from ..core import noise
from ..core.model import CPU
from ..diversity.diversify import Diversifier
from ..diversity.memory import Explored
from ..diversity.repulsion import Repulsion
from ..presets import Fork

NEVER = 2.0  # as a threshold: no confidence is above it


@dataclass
class Canvases:
    """Pushes the samples of a batch apart on one canvas after another.

    Each canvas is a run of its own: the schedule of alpha starts again, the seed has an address of
    its own, and samples are compared by what this canvas says, whatever they said before. Samples
    fork on the first canvas of a call only; after that their answers differ.

    Args:
        guide: How samples are pushed.
        n: Samples per prompt.
        steps: Planned steps of a canvas.
        seed: One, or one per prompt.
        fork: Whether the samples start from different tokens; "auto" does so if they are pushed.
    """

    guide: Repulsion
    n: int
    steps: int
    seed: int | Sequence[int] = 0
    fork: Fork = "auto"
    canvas: int = field(default=-1, init=False)  # in the present call
    _before: int = field(default=0, init=False)  # samples per prompt of the calls before
    _past: dict[int, Explored] = field(default_factory=dict, init=False)  # by canvas
    _push: Diversifier | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.n = whole("n", self.n)
        if not isinstance(self.fork, bool) and self.fork != "auto":
            raise ValueError(f"fork must be True, False or 'auto', not {self.fork!r}")
        self._make()  # checks steps and seed

    def begin(self, *, again: bool) -> None:
        """Begin a call; one with the prompts of the last call (`again`) avoids what that explored.

        Samples are remembered if the guide remembers.
        """
        self._keep()
        if again and self.guide.remember is not None:
            self._before += self.n
        else:
            self._before, self._past = 0, {}
        self.canvas, self._push = -1, None

    def turn(self) -> None:
        """Begin the next canvas of the call."""
        self._keep()
        self.canvas += 1
        self._push = self._make(self._past.get(self.canvas))

    def push(
        self, logits: Tensor, tokens: Tensor | None, masked: Tensor | None, step: int
    ) -> Tensor:
        """Return the pushed logits of a step of the canvas; arguments as for a `Diversifier`."""
        if self.n == 1 and self._before == 0 and self.guide.remember is None:
            return logits
        assert self._push is not None
        history = self._push.history
        if history is not None and step not in history.steps:
            # The calls before stopped earlier: they explored nothing from here on.
            self._keep()
            self._push = self._make()
        return self._push(logits, tokens, masked, step=step)

    def _make(self, history: Explored | None = None) -> Diversifier:
        return Diversifier(
            self.guide,
            n=self.n,
            steps=self.steps,
            seed=self._canvas_seed(),
            fork=self._forks,
            history=history,
        )

    @property
    def _forks(self) -> bool:
        wanted = not self.guide.idle and self.steps > 1 if self.fork == "auto" else self.fork
        return wanted and self.canvas == 0 and self.n + self._before > 1

    def _canvas_seed(self) -> int | list[int]:
        """Return the seed of the canvas, or those of the prompts; on the first canvas, as given."""
        seeds = self.seed if isinstance(self.seed, Sequence) else [self.seed]
        given = noise.seed_tensor(seeds, len(seeds), CPU)
        if self.canvas > 0:
            given = noise.key(given, self.canvas, 0, noise.Purpose.SEED)
        found = [int(seed) for seed in given]
        return found if isinstance(self.seed, Sequence) else found[0]

    def _keep(self) -> None:
        """Remember what the canvas explored, beside what earlier calls did."""
        if self._push is None or self._push.memory is None:
            return
        new, past = self._push.memory, self._past.get(self.canvas)
        steps = new.steps if past is None else {**past.steps, **new.steps}
        self._past[self.canvas] = Explored(new.form, new.feature, steps)


def check_batch(size: int, n: int) -> None:
    """Raise ValueError for a batch that cannot hold n samples of each of its prompts."""
    if size % n:
        raise ValueError(
            f"a batch of {size} does not hold n = {n} samples of each prompt: "
            f"repeat every prompt {n} times, repeats side by side"
        )


def check_order(prompts: Tensor, n: int) -> None:
    """Raise ValueError unless prompts [B, T] hold each prompt n times, side by side."""
    differs = (prompts.view(-1, n, prompts.shape[1]).diff(dim=1) != 0).any(dim=2)
    if bool(differs.any()):
        group, row = (int(i) for i in differs.nonzero()[0])
        raise ValueError(
            f"rows {group * n + row} and {group * n + row + 1} of the batch have different "
            f"prompts, but n = {n} samples of a prompt must be side by side: repeat with torch's "
            f"repeat_interleave({n}), not repeat({n})"
        )


def ended(tokens: Tensor, end_ids: Sequence[int]) -> Tensor:
    """Return which samples [B] bool have an end token among tokens [B, L]."""
    found = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for end in end_ids:  # a comparison with a plain number needs no transfer
        found |= (tokens == end).any(dim=1)
    return found

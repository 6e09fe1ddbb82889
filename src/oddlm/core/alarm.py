"""Errors during a run: bad numbers, and too little memory."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .model import ModelInfo

PATIENCE = 64  # checks that are collected before a GPU is read back
# Of a guide per sample and token of the vocabulary: feature, draw, pull, and a 16-bit owner.
GUIDE_BYTES = 14

Describe = Callable[[int, int, float], str]  # sample, position, value -> what is wrong there


@dataclass(frozen=True, slots=True)
class Check:
    """A check of values [B, L] where they count."""

    value: Tensor
    where: Tensor  # [B, L] bool
    bad: Callable[[Tensor], Tensor]
    describe: Describe

    def sound(self) -> None:
        """Raise an error that names the first bad value, if there is one."""
        wrong = self.where & self.bad(self.value)
        if wrong.any():
            sample, position = (int(i) for i in wrong.nonzero()[0])
            raise ValueError(self.describe(sample, position, self.value[sample, position].item()))


@dataclass(frozen=True, slots=True)
class Alarm:
    """Stops a run at bad numbers: at once on a CPU, and in batches of checks on a GPU.

    Reading a check back from a GPU waits for it, so there an error may come some steps late.
    """

    patient: bool
    pending: list[Check] = field(default_factory=list)

    def check(self, check: Check) -> None:
        """Register a check."""
        if not self.patient:
            check.sound()
            return
        self.pending.append(check)
        if len(self.pending) >= PATIENCE:
            self.sound()

    def sound(self) -> None:
        """Raise the first error, if there is one."""
        pending = self.pending[:]
        self.pending.clear()
        alike = defaultdict(list)
        for check in pending:
            alike[check.bad, check.value.shape, check.value.dtype].append(check)
        wrong = [
            (torch.stack([x.where for x in some]) & bad(torch.stack([x.value for x in some]))).any()
            for (bad, *_), some in alike.items()
        ]
        if wrong and torch.stack(wrong).any():
            for check in pending:
                check.sound()


@contextmanager
def memory_advice(info: ModelInfo, B: int, L: int, T: int) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into advice on what to lower and how much it saves.

    The run has B samples of T positions, L of which are generated.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        V, item = info.vocab_size, 4 if info.dtype is None else info.dtype.itemsize
        sample, position, guide = (_mib(x) for x in (L * V * item, B * V * item, V * GUIDE_BYTES))
        batch = min(B, info.max_batch or B)
        held = info.position_bytes
        each = "" if held is None else f", each about {_mib(T * held)}"
        raise ValueError(
            f"the GPU is out of memory with {B} samples of {L} positions over {V} tokens. "
            "Lower n, or the prompts at a time: "
            f"each sample takes {sample} of logits and {guide} of guidance. "
            f"Or lower length: each position takes {position}. "
            "Or lower max_batch: the network's activations grow with the "
            f"{batch} samples it sees at a time{each}"
        ) from error


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"

"""Trouble during a run: bad numbers, and too little memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .model import ModelInfo

PATIENCE = 64  # checks between two looks at a GPU
# of a guide per sample and token of the vocabulary: feature, draw, pull, and an owner of 16 bit
GUIDE_BYTES = 14

Describe = Callable[[int, int, float], str]  # sample, position, value -> what is wrong there
Pending = tuple[Tensor, Tensor, Tensor, Describe]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Bad numbers stop a run: at once on a CPU; on a GPU, where to look is to wait, after a while
    or at the end.
    """

    patient: bool
    pending: list[Pending] = field(default_factory=list)

    def check(self, bad: Tensor, value: Tensor, describe: Describe) -> None:
        """bad [B, L] bool, value [B, L]; the error names the first bad position."""
        self.pending.append((bad.any(), bad, value, describe))
        if not self.patient or len(self.pending) >= PATIENCE:
            self.sound()

    def sound(self) -> None:
        """Raise the first error, if there is one."""
        pending = self.pending[:]
        self.pending.clear()
        if not pending or not torch.stack([any_ for any_, *_ in pending]).any():
            return
        for any_, bad, value, describe in pending:
            if any_:
                row, position = (int(i) for i in bad.nonzero()[0])
                raise ValueError(describe(row, position, value[row, position].item()))


@contextmanager
def memory_advice(info: ModelInfo, B: int, L: int, T: int) -> Iterator[None]:
    """A GPU that runs out of memory says what to lower, and what that is worth: B samples, L of T
    positions to be written.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        V, item = info.vocab_size, 4 if info.dtype is None else info.dtype.itemsize
        sample, position, guide = (_mib(x) for x in (L * V * item, B * V * item, V * GUIDE_BYTES))
        rows = min(B, info.max_batch or B)
        raise ValueError(
            f"the GPU is out of memory with {B} samples of {L} positions over {V} tokens. Lower n, or the prompts at a time: "
            f"each sample takes {sample} of logits and {guide} of guidance. Or lower length: each position takes {position}. "
            f"Or lower max_batch: what the network holds beside its weights grows with the {rows} samples it sees at a time"
            + (
                ""
                if info.position_bytes is None
                else f", each about {_mib(T * info.position_bytes)}"
            )
        ) from error


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"

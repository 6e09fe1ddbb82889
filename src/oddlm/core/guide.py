"""The interface of guides, which change the logits of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .model import ModelInfo
from .step import Memory, Step


class Backend(Protocol):
    """The implementation that computes a run; `kernels.dispatch` chooses it once per run."""

    @property
    def name(self) -> str: ...

    @property
    def kernel(self) -> Any:
        """The module of the fused kernels, or None if they cannot run on the logits of this run."""

    @property
    def draws(self) -> bool:
        """Whether the fused kernel draws the tokens, too."""

    def to(self, device: torch.device) -> "Backend":
        """Return the choice for the same run on another device."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a guide: pushed logits, or the terms from which a fused kernel forms them."""

    logits: Tensor | None
    push: Any = None
    memory: Memory | None = None  # the guide's memory of the run, this step included


class RunGuide(Protocol):
    """A guide during one run: its settings are resolved, and it never changes.

    A guide that lasts only for the first part of a run has an `end`, a share of the planned steps.
    From that step on it is not called, and steps cost what they cost without a guide.
    """

    @property
    def fused(self) -> bool:
        """Whether it takes the network's logits of the queried `positions` and returns a `push`."""

    @property
    def memory(self) -> Memory | None:
        """Its memory before the first step; None if it keeps none."""

    @property
    def looks_back(self) -> bool:
        """Whether each sample depends only on the samples before it in the batch."""

    def __call__(
        self, logits: Tensor, step: Step, memory: Memory | None, positions: Tensor | None = None
    ) -> Pushed: ...

    def to(self, device: torch.device, backend: Backend) -> "RunGuide": ...


class Guide(Protocol):
    """An object for `guide=`; a plain function (logits [B, L, V], step) -> logits also works."""

    @property
    def backend(self) -> str:
        """The backend it requests; "auto" leaves the choice to the library."""

    @property
    def forms(self) -> Sequence[str]:
        """The backends that can compute it."""

    def begin(
        self, info: ModelInfo, backend: Backend, history: Memory | None, *, resumes: bool
    ) -> RunGuide | None:
        """Return the guide of one run, or None if it does nothing.

        Args:
            info: The model of the run.
            backend: The backend chosen for the run.
            history: The memory of the guide of earlier samples.
            resumes: Whether the run continues from earlier samples.

        Raises:
            ValueError: The guide does not fit the model.
        """


@dataclass(frozen=True, slots=True)
class FunctionGuide:
    """A plain function as a `Guide` and as a `RunGuide`."""

    function: Callable[[Tensor, Step], Tensor]
    backend: str = "auto"
    forms: tuple[str, ...] = ()
    fused: bool = False
    looks_back: bool = False
    memory: Memory | None = None

    def begin(
        self, info: ModelInfo, backend: Backend, history: Memory | None, *, resumes: bool
    ) -> "FunctionGuide":
        return self

    def __call__(
        self, logits: Tensor, step: Step, memory: Memory | None, positions: Tensor | None = None
    ) -> Pushed:
        return Pushed(self.function(logits, step))

    def to(self, device: torch.device, backend: Backend) -> "FunctionGuide":
        return self


def has_ended(guide: RunGuide | None, index: int, total: int) -> bool:
    """Return whether the guide no longer acts at this step of `total` planned ones."""
    end: float = getattr(guide, "end", 1.0)
    return end < 1 and index / total >= end


def as_guide(guide: Any) -> Guide | None:
    if guide is None or hasattr(guide, "begin"):
        return guide  # type: ignore[no-any-return]
    if not callable(guide):
        raise ValueError(
            "guide must be a Repulsion, another Guide, or a function of logits and step, "
            f"not {guide!r:.80}"
        )
    return FunctionGuide(guide)

"""What moves the logits of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .model import ModelInfo
from .step import Memory, Step


class Backend(Protocol):
    """Who computes: chosen once per run, by `kernels.dispatch`."""

    @property
    def name(self) -> str: ...

    @property
    def kernel(self) -> Any:
        """The module with the fused kernels, where they can run on the logits of this run, else
        None.
        """

    @property
    def draws(self) -> bool:
        """Does the fused kernel draw the tokens, too?"""

    def to(self, device: torch.device) -> "Backend":
        """The choice for the same run elsewhere."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a guide made of the logits of a step: the logits themselves, or what a fused kernel
    forms them from.
    """

    logits: Tensor | None
    push: Any = None
    memory: Memory | None = None  # what the guide remembers of the run, this step included


class RunGuide(Protocol):
    """A guide during one run: everything is resolved, nothing changes."""

    @property
    def fused(self) -> bool:
        """Does it take logits as the network gave them, for the `positions` that were asked, and
        return a `push`?
        """

    @property
    def memory(self) -> Memory | None:
        """What it remembers before the first step; None where it does not."""

    @property
    def looks_back(self) -> bool:
        """Does each sample depend on those before it alone, and not on those behind it?"""

    def __call__(
        self, logits: Tensor, step: Step, memory: Memory | None, positions: Tensor | None = None
    ) -> Pushed: ...

    def to(self, device: torch.device, backend: Backend) -> "RunGuide": ...


class Guide(Protocol):
    """What may be given as `guide=`, beside a plain function (logits [B, L, V], step) -> logits."""

    @property
    def backend(self) -> str:
        """The backend it asks for; "auto" leaves the choice."""

    @property
    def forms(self) -> Sequence[str]:
        """The backends that can compute it."""

    def begin(
        self, info: ModelInfo, backend: Backend, history: Memory | None, *, resumes: bool
    ) -> RunGuide | None:
        """The guide of one run, or None where it does nothing; ValueError where it does not fit the
        model.

        resumes: the run goes on from earlier samples, of which `history` is what their guide
        remembered.
        """


@dataclass(frozen=True, slots=True)
class FunctionGuide:
    """A plain function as a guide, and as the guide of a run."""

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


def as_guide(guide: Any) -> Guide | None:
    if guide is None or hasattr(guide, "begin"):
        return guide  # type: ignore[no-any-return]
    if not callable(guide):
        raise ValueError(
            f"guide must be a Repulsion, another Guide, or a function of logits and step, not {guide!r:.80}"
        )
    return FunctionGuide(guide)

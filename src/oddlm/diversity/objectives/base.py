"""The registry of objectives, the traits an objective can have, and what several of them share."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import torch
from torch import Tensor

from ...checks import finite, one_of
from ...kernels.contract import Batch, Coordinates, Need, Objective, Slope, Weigh, Weights
from ...kernels.directions import lengths
from ...registry import Registry

Quality = Literal["grad", "detached", "none"]

OBJECTIVES: Registry[Objective] = Registry("objective")
R = TypeVar("R", bound=Callable[..., Tensor])


def traits(
    *,
    sequential: bool = False,
    coupled: bool = False,
    slope: Callable[..., tuple[Tensor, Tensor]] | None = None,
    weigh: Callable[..., Weights] | None = None,
    need: Callable[..., Need | None] | None = None,
    probes: bool = False,
) -> Callable[[R], R]:
    """Declare what an objective can do.

    sequential: push one sample at a time, against the others as they are after their own push.
    coupled: a sample also depends on later ones, so a second batch cannot continue the first.
    slope: the derivative of the summed loss by features and quality, with the same options.
    weigh: the same derivative in coordinates.
    need: builds, from options of its own, the share of alpha that a sample needs.
    probes: in coordinates, the draws are the noise itself and not the feature times noise.
    """

    def declare(function: R) -> R:
        function.sequential = sequential  # type: ignore[attr-defined]
        function.coupled = coupled  # type: ignore[attr-defined]
        function.slope = slope  # type: ignore[attr-defined]
        function.weigh = weigh  # type: ignore[attr-defined]
        function.need = need  # type: ignore[attr-defined]
        function.probes = probes  # type: ignore[attr-defined]
        return function

    return declare


def build_objective(spec: str | Mapping[str, Any] | Objective) -> Objective:
    """Return an objective given by name, mapping, dotted path or function, its options checked."""
    objective = OBJECTIVES.build(spec)
    if str(getattr(objective, "__module__", None)).startswith(__package__ or ""):
        parameters = signature(objective).parameters
        for name, value in getattr(objective, "keywords", {}).items():
            kind = parameters[name].annotation
            if get_origin(kind) is Literal:
                one_of(f"objective {name}", value, get_args(kind))
            elif kind is float or (kind == float | None and value is not None):
                finite(f"objective {name}", value)
        need_of(objective)
    return objective


def slope_of(objective: Objective) -> Slope | None:
    """The slope of a built objective, with the same options."""
    return cast("Slope | None", _with_options("slope", objective))


def weigh_of(objective: Objective) -> Weigh | None:
    """The slope of a built objective in coordinates, with the same options."""
    return cast("Weigh | None", _with_options("weigh", objective))


def need_of(objective: Objective) -> Need | None:
    """How a built objective eases the push on samples that already differ; None if it does not."""
    make = _with_options("need", objective)
    return cast("Need | None", make and make())


def _with_options(name: str, objective: Objective) -> Any:
    """Return a trait of an objective with the objective's options.

    `need` gets the options that it declares, the other traits get the rest.
    """
    function, need = getattr(objective, name, None), getattr(objective, "need", None)
    if function is None:
        return None
    needed = () if need is None else signature(need).parameters
    options = getattr(objective, "keywords", {})
    return partial(
        function, **{k: v for k, v in options.items() if (k in needed) == (name == "need")}
    )


def until_enough(*, enough: float | None = None) -> Need | None:
    """A `need`: all of alpha at residual 0, none from residual `enough` on, linear in between."""
    if enough is None:
        return None
    if enough == 0:
        raise ValueError("objective enough must be above 0, or None to push every sample in full")
    return lambda residual: (1 - residual / enough).clamp(min=0)


def quality_of(batch: Batch | Coordinates, mode: Quality) -> Tensor:
    """[G, n]: the factor that a sample's confidence puts on its loss."""
    if mode == "none":
        return torch.ones_like(batch.quality)
    return batch.quality.detach() if mode == "detached" else batch.quality


def scaled(features: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return features [G, n, D], of unit norm if `normalize`, and their divisors [G, n]."""
    size = lengths(features) if normalize else torch.ones_like(features[..., 0])
    return features / size[..., None], size


def padded(own: Tensor, seen: Coordinates, before: int = 0) -> Tensor:
    """Coefficients of some rows, starting at row `before`, as coefficients of all rows."""
    return torch.nn.functional.pad(own, (before, seen.inner.shape[2] - own.shape[2] - before))

"""What makes a batch diverse: a loss per sample, small when the sample is unlike the others. A new one is one function here.

An objective sees a `Batch` (features, quality, the directions of earlier samples) and returns a loss [G, n]; autograd and
the guide do the rest. Its keyword-only arguments are its hyperparameters. One that also has a `slope`, the derivative of its
summed loss by features and quality with the same options, runs on the kernels without autograd. One with a `need` can spare
samples that are unlike the others already.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor

from ..checks import finite, one_of
from ..kernels.coordinates import Coordinates, Weigh, Weights
from ..kernels.directions import Directions, find_directions, lengths
from ..kernels.reference import Batch, Need, Objective, Slope
from ..registry import Registry

Quality = Literal["grad", "detached", "none"]
Kernel = Literal["authors", "paper"]

ROUGHEN = 1e-3  # relative noise on the features of duplicates, for objectives that know no directions

OBJECTIVES: Registry[Objective] = Registry("objective")
R = TypeVar("R", bound=Callable[..., Tensor])


def mark(
    *,
    sequential: bool = False,
    coupled: bool = False,
    slope: Callable[..., tuple[Tensor, Tensor]] | None = None,
    weigh: Callable[..., Weights] | None = None,
    need: Callable[..., Need | None] | None = None,
    probes: bool = False,
) -> Callable[[R], R]:
    """Declare what an objective is.

    sequential: it wants one sample at a time, against the others as they are after their own push. coupled: a sample depends
    on later ones too, so there is no going on from an earlier batch. slope: its derivative. weigh: the same in
    coordinates. need: what makes of its options how much of a push a sample needs. probes:
    its `weigh` wants each sample's noise itself among the rows, not the feature times it.
    """

    def mark(function: R) -> R:
        function.sequential = sequential  # type: ignore[attr-defined]
        function.coupled = coupled  # type: ignore[attr-defined]
        function.slope = slope  # type: ignore[attr-defined]
        function.weigh = weigh  # type: ignore[attr-defined]
        function.need = need  # type: ignore[attr-defined]
        function.probes = probes  # type: ignore[attr-defined]
        return function

    return mark


def build_objective(spec: str | Mapping[str, Any] | Objective) -> Objective:
    """An objective by name, mapping, dotted path or function, its options checked."""
    objective = OBJECTIVES.build(spec)
    options = getattr(objective, "keywords", {}) if getattr(objective, "__module__", None) == __name__ else {}
    for name, allowed in (("quality", get_args(Quality)), ("kernel", get_args(Kernel))):
        if name in options:
            one_of(f"objective {name}", options[name], allowed)
    for name in ("quality_scale", "jitter"):
        if name in options:
            finite(f"objective {name}", options[name])
    if (enough := options.get("enough")) is not None and finite("objective enough", enough) == 0:
        raise ValueError("objective enough must be above 0, or None to spare nobody")
    return objective


def slope_of(objective: Objective) -> Slope | None:
    """The slope of a built objective, with the same options."""
    return cast("Slope | None", _with_options("slope", objective))


def weigh_of(objective: Objective) -> Weigh | None:
    """The slope of a built objective in coordinates, with the same options."""
    return cast("Weigh | None", _with_options("weigh", objective))


def need_of(objective: Objective) -> Need | None:
    """How far a built objective spares samples that are unlike the others; None where it spares nobody."""
    make = _with_options("need", objective)
    return cast("Need | None", make and make())


def _with_options(name: str, objective: Objective) -> Any:
    """What an objective was marked with, given the objective's options: to `need` its own, to the others the rest."""
    function, need = getattr(objective, name, None), getattr(objective, "need", None)
    if function is None:
        return None
    needed = () if need is None else signature(need).parameters
    options = getattr(objective, "keywords", {})
    return partial(function, **{k: v for k, v in options.items() if (k in needed) == (name == "need")})


def _need(*, enough: float | None = None) -> Need | None:
    """All of the push where a sample says nothing new, none where its residual is `enough`, a straight line in between."""
    return None if enough is None else lambda residual: (1 - residual / enough).clamp(min=0)


def _odd_slope(
    batch: Batch, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    return _gain_slope(batch, batch.directions, normalize, quality, quality_scale)


def _probe_slope(
    batch: Batch, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    return _gain_slope(batch, _probe(batch), normalize, quality, quality_scale)


def _gain_slope(
    batch: Batch, found: Directions, normalize: bool, quality: Quality, quality_scale: float
) -> tuple[Tensor, Tensor]:
    """The derivative of `_gain`."""
    v = batch.features.to(torch.float64, copy=True)  # becomes the result: at V = 126464 each [n, V] is 16 MB
    size = lengths(v) if normalize else torch.ones_like(v[..., 0])
    gain = (v[..., None, :] @ found.vectors[..., None]).flatten(2).squeeze(2) / size  # [G, n]
    scale = torch.where(found.guided, -quality_scale, 0.0)
    inward = gain / size if normalize else torch.zeros_like(gain)  # a unit feature cannot grow
    by_feature = v.mul_(-inward[..., None]).add_(found.vectors).mul_((scale * _quality(batch, quality) / size)[..., None])
    return by_feature, scale * gain if quality == "grad" else torch.zeros_like(gain)


def _dpp_slope(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> tuple[Tensor, Tensor]:
    """d logdet(L + cI) = tr((L + cI)^-1 dL), for c = 1 + jitter less the same for c = jitter."""
    u, size = _features(batch, normalize, roughen=ROUGHEN)
    q = _quality(batch, quality).double()
    similarity, weight = u @ u.mT, _dpp_weight(q, quality_scale, kernel)
    values, vectors = torch.linalg.eigh(similarity * weight)
    by_kernel = vectors @ ((values + jitter) * (values + 1 + jitter)).reciprocal().neg().diag_embed() @ vectors.mT
    pull = 2 * by_kernel * weight  # [G, n, n]
    by_feature = pull @ u
    if normalize:
        by_feature -= torch.linalg.vecdot(pull, similarity)[..., None] * u
    by_feature = _roughness(batch, ROUGHEN) * by_feature / size[..., None]
    by_quality = 2 * quality_scale * ((by_kernel * similarity) @ q[..., None]).squeeze(-1)
    return by_feature, by_quality if quality == "grad" else torch.zeros_like(by_quality)


def _odd_weigh(seen: Coordinates, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0) -> Weights:
    """`_odd_slope` in coordinates."""
    n = seen.quality.shape[1]
    own = seen.inner[:, :n]
    size = own.diagonal(dim1=1, dim2=2).clamp(min=1e-24).sqrt() if normalize else torch.ones_like(seen.quality)
    gain = torch.linalg.vecdot(own, seen.basis) / size  # [G, n]
    scale = seen.guided * -quality_scale
    factor = scale * _quality(seen, quality) / size
    by_feature = seen.basis * factor[..., None]
    if normalize:
        by_feature.diagonal(dim1=1, dim2=2).addcmul_(factor, gain / size, value=-1)
    return Weights(by_feature, scale * gain if quality == "grad" else torch.zeros_like(gain))


def _probe_weigh(
    seen: Coordinates, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0
) -> Weights:
    """`_probe_slope` in coordinates: the draws are the probes, made orthogonal to the earlier rows in two passes."""
    n = seen.quality.shape[1]
    lengths = seen.inner.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    probe = _padded(lengths[:, n : 2 * n].reciprocal().diag_embed(), seen, before=n)
    for _ in range(2):
        probe = probe - _padded((probe @ seen.inner)[..., 2 * n :], seen, before=2 * n)
    left = torch.linalg.vecdot(probe @ seen.inner, probe).clamp(min=0).sqrt()
    guided = (left > seen.duplicates.tolerance) & (lengths[:, 2 * n :] > 0).any(dim=1, keepdim=True)
    aimed = replace(seen, basis=probe / left.clamp(min=1e-12)[..., None], guided=guided)
    return _odd_weigh(aimed, normalize=normalize, quality=quality, quality_scale=quality_scale)


def _dpp_weigh(
    seen: Coordinates,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> Weights:
    """`_dpp_slope` in coordinates; a roughened feature is the feature plus ROUGHEN times its draw."""
    n = seen.quality.shape[1]
    rough = torch.where(seen.duplicate & (seen.duplicates.mode == "break"), ROUGHEN, 0.0).double()
    u = _padded(torch.cat([torch.ones_like(rough).diag_embed(), rough.diag_embed()], dim=2), seen)
    if normalize:
        size = torch.linalg.vecdot(u @ seen.inner, u).clamp(min=0).sqrt().clamp(min=1e-12)
    else:
        size = torch.ones_like(seen.quality)
    u = u / size[..., None]
    q = _quality(seen, quality)
    similarity, weight = u @ seen.inner @ u.mT, _dpp_weight(q, quality_scale, kernel)
    eye = torch.eye(n, dtype=u.dtype, device=u.device)
    near, far = (torch.linalg.inv_ex(similarity * weight + c * eye).inverse for c in (jitter, 1 + jitter))
    by_kernel = far - near
    pull = 2 * by_kernel * weight
    by_feature = pull @ u
    if normalize:
        by_feature = by_feature - torch.linalg.vecdot(pull, similarity)[..., None] * u
    by_quality = 2 * quality_scale * ((by_kernel * similarity) @ q[..., None]).squeeze(-1)
    return Weights(by_feature / size[..., None], by_quality if quality == "grad" else torch.zeros_like(by_quality), rough)


def _padded(own: Tensor, seen: Coordinates, before: int = 0) -> Tensor:
    """Coefficients of some rows, the first or those behind `before` others, as coefficients of all rows."""
    return torch.nn.functional.pad(own, (before, seen.inner.shape[2] - own.shape[2] - before))


@OBJECTIVES.register
def none(batch: Batch) -> Tensor:
    """No repulsion: plain sampling."""
    return torch.zeros_like(batch.quality)


@OBJECTIVES.register
@mark(slope=_odd_slope, weigh=_odd_weigh, need=_need)
def odd(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    enough: float | None = None,
) -> Tensor:
    """Repel each sample from the span of the earlier ones: reward the part of its feature outside that span.

    enough: the residual (0 to 1) at which a sample is unlike enough to be left alone; below it alpha falls in a straight line.
    """
    return _gain(batch, batch.directions, normalize, quality, quality_scale)


@OBJECTIVES.register
@mark(sequential=True, slope=_odd_slope, weigh=_odd_weigh, need=_need)
def odd_sequential(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    enough: float | None = None,
) -> Tensor:
    """`odd` against the earlier samples as they are after their own push: n passes instead of one."""
    return _gain(batch, batch.directions, normalize, quality, quality_scale)


@OBJECTIVES.register
@mark(sequential=True, slope=_probe_slope, weigh=_probe_weigh, need=_need, probes=True)
def random_probe(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    enough: float | None = None,
) -> Tensor:
    """Push each sample along a random direction outside the span of the earlier ones: ODD without its aim."""
    return _gain(batch, _probe(batch), normalize, quality, quality_scale)


@OBJECTIVES.register
@mark(coupled=True, slope=_dpp_slope, weigh=_dpp_weigh)
def dpp(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> Tensor:
    """Likelihood of the whole batch under a determinantal point process (DiverseFlow's objective on text)."""
    u, _ = _features(batch, normalize, roughen=ROUGHEN)
    q = _quality(batch, quality)
    similarity = (u @ u.mT) * _dpp_weight(q, quality_scale, kernel)
    similarity = similarity.to(torch.promote_types(u.dtype, torch.float32))  # logdet knows no half precision
    eye = torch.eye(u.shape[1], dtype=similarity.dtype, device=u.device)
    loss = torch.logdet(similarity + (1 + jitter) * eye) - torch.logdet(similarity + jitter * eye)
    return loss[:, None] / u.shape[1] * torch.ones_like(q)


def _probe(batch: Batch) -> Directions:
    """A direction drawn for the one sample of a batch; none where the earlier samples fill the space."""
    probe = batch.noise(0, batch.features.shape[2]).to(batch.features)[:, None]
    return find_directions(probe, batch.earlier, replace(batch.duplicates, mode="skip"), batch.noise)


def _gain(batch: Batch, found: Directions, normalize: bool, quality: Quality, quality_scale: float) -> Tensor:
    u, _ = _features(batch, normalize)
    gain = (u * found.vectors).sum(dim=-1)
    return torch.where(found.guided, -gain * _quality(batch, quality) * quality_scale, 0.0)


def _dpp_weight(q: Tensor, scale: float, kernel: Kernel) -> Tensor:
    pairs = scale * q[:, :, None] * q[:, None, :]
    return pairs if kernel == "paper" else 1 + pairs


def _features(batch: Batch, normalize: bool, roughen: float = 0.0) -> tuple[Tensor, Tensor]:
    """Features as the algebra wants them, float64 (unless native) and of unit length (unless not), and what divided them."""
    v = batch.features if batch.duplicates.native else batch.features.double()
    v = v * _roughness(batch, roughen) if roughen else v
    size = lengths(v) if normalize else torch.ones_like(v[..., 0])
    return v / size[..., None], size


def _roughness(batch: Batch, roughen: float) -> Tensor:
    """[G, n, D] or 1: a factor that makes duplicates distinct where the rule is to break them, for want of directions."""
    one = torch.ones(
        (), dtype=torch.float64 if not batch.duplicates.native else batch.features.dtype, device=batch.features.device
    )
    if batch.duplicates.mode == "skip" or not batch.directions.duplicate.any():
        return one
    noise = torch.stack([batch.noise(k, batch.features.shape[2]) for k in range(batch.features.shape[1])], dim=1)
    return torch.where(batch.directions.duplicate[..., None], 1 + roughen * noise.to(one.dtype), one)


def _quality(batch: Batch | Coordinates, mode: Quality) -> Tensor:
    if mode == "none":
        return torch.ones_like(batch.quality)
    return batch.quality.detach() if mode == "detached" else batch.quality

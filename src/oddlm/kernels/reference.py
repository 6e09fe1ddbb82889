"""Repulsion by autograd: slow, short, and the oracle for every other kernel.

Shapes: G groups of n samples, S positions, V vocabulary, D feature size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..core.noise import normal, tile_elements
from ..core.step import id_tensor
from .coordinates import Coordinates, Weigh
from .directions import DirectionNoise, Directions, Duplicates, extend, find_directions

CELLS = 1 << 23  # of logits in a pass: autograd holds about a dozen arrays of that size
Extract = Callable[[Tensor], tuple[Tensor, Tensor]]  # soft canvas [G, n, S, V] -> (what of it counts, features [G, n, D])
Pull = Callable[[Tensor], Tensor]  # a derivative by features [G, n, D] -> by what of the canvas counts [G, n, S or 1, V]


@dataclass(frozen=True)
class Batch:
    """What an objective may look at."""

    features: Tensor  # [G, n, D], with gradient
    quality: Tensor  # [G, n], with gradient: mean probability of the likeliest token over masked positions
    earlier: Tensor | None  # [G, h, D]: orthonormal directions of earlier samples; zero rows count for nothing
    duplicates: Duplicates
    noise: DirectionNoise

    @cached_property
    def directions(self) -> Directions:
        """Where each sample is unlike the ones before it."""
        return find_directions(self.features, self.earlier, self.duplicates, self.noise)

    @property
    def residual(self) -> Tensor:
        """[G, n]: how much, from 0 to 1."""
        return self.directions.residual


Objective = Callable[[Batch], Tensor]  # -> loss [G, n], to be made small
Slope = Callable[[Batch], tuple[Tensor, Tensor]]  # -> derivatives of the summed loss: by features [G, n, D], by quality [G, n]
Need = Callable[[Tensor], Tensor]  # residuals [G, n], 0 to 1 -> the share of alpha [G, n] that each sample needs


@dataclass(frozen=True, slots=True)
class Repel:
    """Everything about a push but the logits."""

    extract: Extract
    trace: Callable[[Tensor], tuple[Tensor, Tensor, Pull]] | None  # the same and its derivative, for kernels without autograd
    top_k: int | None  # what `extract` truncates a position to, for kernels that do it themselves
    objective: Objective
    slope: Slope | None  # the objective's derivative, for kernels without autograd
    weigh: Weigh | None  # the same in coordinates, for kernels that keep the features to themselves
    need: Need | None  # how far a sample that is unlike the others already is spared; None: every push is a full one
    sequential: bool  # one sample at a time, each against the others as they are after their own push
    probes: bool  # in coordinates the draw of a sample is its noise itself, not its feature times noise
    duplicates: Duplicates
    raw_gradient: bool
    protected: tuple[int, ...]
    keys: Tensor  # [G, n] int64: of the directions drawn for duplicates
    remember: bool  # hand out the directions

    def noise(self, k: int, size: int) -> Tensor:
        """Standard normal [G, size] for sample k."""
        return normal(self.keys[:, k], size)

    def for_sample(self, k: int) -> "Repel":
        """The same push on a batch that holds sample k alone."""
        return replace(self, keys=self.keys[:, k : k + 1])

    def eased(self, alpha: Tensor, seen: Batch | Coordinates) -> Tensor:
        """Alpha [G, n], less where a sample needs less: of the step, since a factor on the loss is divided out again."""
        return alpha if self.need is None else alpha * self.need(seen.residual).to(alpha.dtype)

    def protected_on(self, device: torch.device) -> Tensor:
        return id_tensor(self.protected, device)


def repel(
    logits: Tensor, tokens: Tensor, masked: Tensor, alpha: Tensor, earlier: Tensor | None, how: Repel
) -> tuple[Tensor, Tensor | None]:
    """logits [G, n, S, V], tokens and masked [G, n, S], alpha [G, n], earlier [G, h, D] -> guided logits, and the directions
    [G, n, D] that these samples add to the earlier ones (None where nobody wants to remember them).

    Works under `no_grad` and `inference_mode`; the inputs are copied, never changed.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tokens, masked, alpha = tokens.clone(), masked.clone(), alpha.clone()
        earlier = None if earlier is None else earlier.clone()
        return by_groups(_all_at_once, _features, CELLS, logits.detach(), tokens, masked, alpha, earlier, how)


def by_groups(
    push: Callable[..., Tensor | None],
    look: Callable[..., Tensor],
    cells: int,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> tuple[Tensor, Tensor | None]:
    """`repel` with any `push` of a few groups, in passes over about so many cells of logits; `look` tells the features
    [G, n, D] of logits.
    """
    added = []
    guided = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for some in _groups(logits, how.sequential, cells):
        before, mine = None if earlier is None else earlier[some], replace(how, keys=how.keys[some])
        here = guided[some], logits[some], tokens[some], masked[some], alpha[some], before, mine
        added.append(_one_by_one(push, look, *here) if how.sequential else push(*here))
    return guided, torch.cat([x for x in added if x is not None]) if how.remember else None


def _groups(logits: Tensor, sequential: bool, cells: int) -> Iterator[slice]:
    """Slices of the groups: as many at a time as there is room for, at least one."""
    G, n, S, V = logits.shape
    some = max(1, tile_elements(logits.device, cells) // ((1 if sequential else n) * S * V))
    return (slice(i, i + some) for i in range(0, G, some))


def _all_at_once(
    guided: Tensor, logits: Tensor, tokens: Tensor, masked: Tensor, alpha: Tensor, earlier: Tensor | None, how: Repel
) -> Tensor | None:
    """Write the pushed `logits` into `guided`; the directions added, where wanted."""
    known = logits.masked_fill(~masked[..., None], 0.0)  # committed logits are undefined
    native = how.duplicates.native
    x = known.to(logits.dtype if native else torch.promote_types(logits.dtype, torch.float32)).requires_grad_()
    batch = _observe(x, tokens, masked, earlier, how)
    loss = how.objective(batch).sum()
    added = batch.directions.vectors if how.remember else None
    if not loss.requires_grad:
        guided.copy_(logits)
        return added
    (gradient,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        gradient = gradient.index_fill(-1, how.protected_on(x.device), 0.0).masked_fill(~masked[..., None], 0.0)
        if not how.raw_gradient:
            largest = gradient.norm(dim=-1).amax(dim=-1)  # [G, n]: each sample moves its most moved position by alpha
            gradient = gradient / largest.clamp(min=1e-8).where(largest > 0, 1.0)[..., None, None]
        moved = (x - how.eased(alpha, batch).to(x.dtype)[..., None, None] * gradient).to(logits.dtype)
        guided.copy_(torch.where(masked[..., None], moved, logits))
    return added


def _one_by_one(
    push: Callable[..., Tensor | None],
    look: Callable[..., Tensor],
    guided: Tensor,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> Tensor:
    basis_rule = Duplicates("skip", how.duplicates.tolerance, how.duplicates.native)
    n = logits.shape[1]
    for k in range(n):
        one, mine = slice(k, k + 1), how.for_sample(k)
        here = tokens[:, one], masked[:, one]
        push(guided[:, one], logits[:, one], *here, alpha[:, one], earlier, mine)
        after = look(guided[:, one], *here, mine)
        earlier = extend(earlier, find_directions(after, earlier, basis_rule, mine.noise).vectors)
    assert earlier is not None
    return earlier[:, -n:]


@torch.no_grad()
def _features(x: Tensor, tokens: Tensor, masked: Tensor, how: Repel) -> Tensor:
    return how.extract(soft_canvas(x, tokens, masked))[1]


def _observe(x: Tensor, tokens: Tensor, masked: Tensor, earlier: Tensor | None, how: Repel) -> Batch:
    counted, features = how.extract(soft_canvas(x, tokens, masked))
    likeliest = counted.max(dim=-1).values.where(masked, 0.0)  # [G, n, S]
    quality = likeliest.sum(dim=-1) / masked.sum(dim=-1).clamp(min=1)
    return Batch(features, quality, earlier, how.duplicates, how.noise)


def soft_canvas(logits: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
    """[..., S, V]: the softmax where masked, the token itself where committed, nothing where the token is ABSENT."""
    there = (tokens >= 0).to(logits.dtype)[..., None]
    committed = torch.zeros_like(logits).scatter(-1, tokens.where(~masked, 0).clamp(min=0)[..., None], there)
    return torch.where(masked[..., None], logits.softmax(dim=-1), committed)

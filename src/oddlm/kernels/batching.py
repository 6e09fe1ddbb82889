"""A push in parts that fit into memory: a few groups at a time, or one sample after the other."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..core.noise import tile_elements
from .contract import Repel
from .directions import Duplicates, extend, find_directions


def by_groups(
    push: Callable[..., Tensor | None],
    features_of: Callable[..., Tensor],
    elements: int,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> tuple[Tensor, Tensor | None]:
    """Run `push` over groups, about `elements` logits at a time.

    push(out, logits, tokens, masked, alpha, earlier, how) writes the pushed logits into `out` and
    returns the directions it added, if they are wanted. features_of(logits, tokens, masked, how)
    returns features [G, n, D].
    """
    added = []
    pushed = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for some in _groups(logits, how.sequential, elements):
        before = None if earlier is None else earlier[some]
        mine = replace(how, seeds=how.seeds[some])
        here = pushed[some], logits[some], tokens[some], masked[some], alpha[some], before, mine
        added.append(_one_by_one(push, features_of, *here) if how.sequential else push(*here))
    return pushed, torch.cat([x for x in added if x is not None]) if how.remember else None


def _groups(logits: Tensor, sequential: bool, elements: int) -> Iterator[slice]:
    """Yield slices of the groups: as many at a time as fit, at least one."""
    G, n, S, V = logits.shape
    some = max(1, tile_elements(logits.device, elements) // ((1 if sequential else n) * S * V))
    return (slice(i, i + some) for i in range(0, G, some))


def _one_by_one(
    push: Callable[..., Tensor | None],
    features_of: Callable[..., Tensor],
    pushed: Tensor,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> Tensor:
    """Push each sample against the earlier ones as they are after their own push."""
    basis_rule = Duplicates("skip", how.duplicates.tolerance, how.duplicates.native)
    n = logits.shape[1]
    for k in range(n):
        one, mine = slice(k, k + 1), how.for_sample(k)
        here = tokens[:, one], masked[:, one]
        push(pushed[:, one], logits[:, one], *here, alpha[:, one], earlier, mine)
        after = features_of(pushed[:, one], *here, mine)
        earlier = extend(earlier, find_directions(after, earlier, basis_rule, mine.noise).vectors)
    assert earlier is not None
    return earlier[:, -n:]

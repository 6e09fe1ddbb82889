"""MLPs made of experts: a router picks a few of them for every token.

The experts are stored stacked. Tokens are sorted by expert, so that each expert multiplies its own
in one product: all of them at once where torch has grouped products (bfloat16 on a GPU), one after
the other elsewhere.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPED_CAPABILITY = (8, 0)  # of a GPU that torch can run grouped products on
GROUPED_ALIGNMENT = 16  # bytes: rows of both factors must be multiples of this


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    count: int
    active: int  # experts per token
    hidden: int  # width of each
    shared: int = 0  # width of one more that every token uses; 0 if there is none
    scores: Literal["softmax", "sigmoid"] = "softmax"
    biased: bool = False  # a number per expert is added to the scores that decide on the choice
    groups: int = 1
    active_groups: int = 1  # groups per token, by the sum of their two best scores
    normalised: bool = True  # the weights of the active experts sum to 1 before scaling
    scale: float = 1.0


def choose_experts(
    scores: Tensor, bias: Tensor | None, config: ExpertConfig
) -> tuple[Tensor, Tensor]:
    """Return the active experts of each token and their weights, both [N, active].

    scores: [N, experts]. Equal scores are ranked by the number of the expert, on every device.
    """
    ranked = scores if bias is None else scores + bias
    if config.groups > 1:
        grouped = ranked.unflatten(-1, (config.groups, -1))  # [N, groups, experts per group]
        best = _highest(grouped.topk(2).values.sum(dim=-1), config.active_groups)
        outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        ranked = grouped.masked_fill(outside[..., None], -torch.inf).flatten(-2)
    chosen = _highest(ranked, config.active)
    weights = scores.gather(-1, chosen)
    if config.normalised:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return chosen, weights * config.scale


def _highest(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the highest scores; unlike with topk, the order of ties is defined."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]


class Router(nn.Module):
    """Scores the experts for every token, in float32 or wider."""

    def __init__(self, width: int, config: ExpertConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.count, width))
        self.bias = nn.Parameter(torch.zeros(config.count)) if config.biased else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the active experts of x [N, width] and their weights, both [N, active]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self.weight.to(wide))
        scores = logits.softmax(dim=-1) if self.config.scores == "softmax" else logits.sigmoid()
        return choose_experts(scores, self.bias, self.config)


def stored_dtype(parameter: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a parameter in a network of this dtype; router biases stay wide."""
    biased = parameter.endswith("experts.router.bias")
    return torch.promote_types(dtype, torch.float32) if biased else dtype


class StackedLinear(nn.Module):
    """A matrix per expert."""

    def __init__(self, count: int, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, rows, columns))
        nn.init.normal_(self.weight, std=0.02)

    def one(self, expert: int, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[expert])

    def grouped(self, x: Tensor, ends: Tensor) -> Tensor:
        """Multiply x [M, columns], sorted by expert; ends [experts] are the last rows plus one."""
        product: Any = F.grouped_mm  # type: ignore[attr-defined,unused-ignore]
        result: Tensor = product(x, self.weight.transpose(1, 2), offs=ends)
        return result


class SharedExpert(nn.Module):
    """A plain SwiGLU that every token uses."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(_swiglu(self.gate_up(x)))
        return result


class ExpertMLP(nn.Module):
    """The sum of the active experts of every token, weighted by the router, and the shared one."""

    def __init__(self, width: int, config: ExpertConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(width, config)
        self.gate_up = StackedLinear(config.count, width, 2 * config.hidden)
        self.down = StackedLinear(config.count, config.hidden, width)
        self.shared = SharedExpert(width, config.shared) if config.shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # [N, width]
        chosen, weights = self.router(tokens)
        order = chosen.flatten().argsort(stable=True)  # [N * active]: pairs, sorted by expert
        experts = torch.arange(self.config.count, device=x.device)
        ends = torch.searchsorted(
            chosen.flatten()[order], experts, right=True, out_int32=True
        )  # [experts]
        pairs = tokens[order // self.config.active]
        grouped = x.numel() > 0 and self._can_group(x.device, x.dtype)
        out = self.run_grouped(pairs, ends) if grouped else self.run_loop(pairs, ends)
        # unsorted and summed, not scattered: the order of a sum must not depend on the batch
        out = torch.empty_like(out).index_copy(0, order, out).unflatten(0, chosen.shape)
        mixed = (out.to(weights.dtype) * weights[..., None]).sum(dim=1).to(x.dtype)
        if self.shared is not None:
            mixed = mixed + self.shared(tokens)
        result: Tensor = mixed.view_as(x)
        return result

    def run_loop(self, pairs: Tensor, ends: Tensor) -> Tensor:
        """Run the experts one by one on pairs [M, width], sorted by expert.

        ends [experts]: the last row of each expert, plus one.
        """
        out = torch.empty_like(pairs)
        for expert, (low, high) in enumerate(pairwise([0, *ends.tolist()])):
            if high > low:
                hidden = _swiglu(self.gate_up.one(expert, pairs[low:high]))
                out[low:high] = self.down.one(expert, hidden)
        return out

    def run_grouped(self, pairs: Tensor, ends: Tensor) -> Tensor:
        """Do the same as `run_loop` in two grouped products, without waiting for the device."""
        return self.down.grouped(_swiglu(self.gate_up.grouped(pairs, ends)), ends)

    @property
    def waits(self) -> bool:
        """Whether a pass waits for the GPU."""
        weight = self.router.weight
        return weight.is_cuda and not self._can_group(weight.device, weight.dtype)

    def _can_group(self, device: torch.device, dtype: torch.dtype) -> bool:
        widths = self.router.weight.shape[1], self.config.hidden
        return (
            device.type == "cuda"
            and dtype == torch.bfloat16
            and isinstance(self.gate_up, StackedLinear)  # not quantised
            and hasattr(F, "grouped_mm")
            and not any(width * dtype.itemsize % GROUPED_ALIGNMENT for width in widths)
            and torch.cuda.get_device_capability(device) >= GROUPED_CAPABILITY
        )


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up

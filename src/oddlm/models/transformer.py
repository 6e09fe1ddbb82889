"""A bidirectional transformer in one file: RMSNorm, rotary positions, SwiGLU; its config covers
LLaDA, Dream and Qwen3 too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    vocab_size: int
    width: int
    layers: int
    heads: int
    hidden: int  # of the feed-forward part
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    kv_heads: int | None = None  # fewer than heads: each serves several of them
    head_size: int | None = None  # where it is not width / heads
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm on every head's queries and keys
    tied: bool = True  # the embedding is the output head
    wide_rotary: bool = False  # rotate in float32, whatever the network's type
    logit_scale: float = 1.0
    shift: bool = False  # position j is predicted by the output of position j - 1

    @property
    def head(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a canvas stand: what attention needs to know besides the tokens."""

    cos: Tensor  # [B, 1, T, head]; a single row where it serves all
    sin: Tensor
    mask: Tensor | None  # [B, 1, 1, T]: nobody listens to padding; None where there is none

    def to(self, device: torch.device) -> "Layout":
        if self.cos.device == device:
            return self
        return Layout(
            self.cos.to(device),
            self.sin.to(device),
            None if self.mask is None else self.mask.to(device),
        )

    def window(self, low: int, high: int) -> "Layout":
        """Some of the positions ask; all are heard."""
        return Layout(self.cos[:, :, low:high], self.sin[:, :, low:high], self.mask)

    def gather(self, rows: Tensor, positions: Tensor) -> "Layout":
        """Some samples, each with positions [R, W] of its own that ask."""
        mask = None if self.mask is None else self.mask[rows]
        cos, sin = (x if len(x) == 1 else x[rows] for x in (self.cos, self.sin))
        where = positions[:, None, :, None].expand(-1, 1, -1, cos.shape[3])
        cos, sin = (x.expand(len(positions), -1, -1, -1).gather(2, where) for x in (cos, sin))
        return Layout(cos, sin, mask)

    def unpadded(self) -> "Layout":
        return Layout(self.cos, self.sin, None)

    def take(self, rows: Tensor) -> "Layout":
        return (
            self if self.mask is None else Layout(self.cos[rows], self.sin[rows], self.mask[rows])
        )


Pair = tuple[Tensor, Tensor]  # keys and values, [B, key heads, T, head]


class Block(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.sizes = [
            config.heads * config.head,
            config.key_heads * config.head,
            config.key_heads * config.head,
        ]
        self.head, self.wide_rotary = config.head, config.wide_rotary
        self.shared = config.key_heads != config.heads
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.qkv = nn.Linear(config.width, sum(self.sizes), bias=config.qkv_bias)
        self.q_norm = RMSNorm(config.head, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head, config.norm_eps) if config.qk_norm else nn.Identity()
        self.attention_out = nn.Linear(self.sizes[0], config.width, bias=False)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.gate_up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        recall: Callable[[Tensor, Tensor], Pair] | None = None,
        asked: int = 0,
        fed: bool = True,
    ) -> Tensor:
        """asked: only the positions from there on answer; all are heard. fed: False leaves `feed`
        to the caller.
        """
        q, k, v = self.heard(x, layout)
        if recall is not None:
            k, v = recall(k, v)
        x = x[:, asked:] + self.attend(q[:, :, asked:], k, v, layout.mask)
        return self.feed(x) if fed else x

    def feed(self, x: Tensor) -> Tensor:
        """The part that looks at each position alone."""
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        result: Tensor = x + self.down(F.silu(gate) * up)
        return result

    def heard(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, heads, T, head], positions applied."""
        q, k, v = (
            part.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).split(self.sizes, -1)
        )
        return self.turn(self.q_norm(q), layout), self.turn(self.k_norm(k), layout), v

    def turn(self, x: Tensor, layout: Layout) -> Tensor:
        wide = x.to(layout.cos.dtype) if self.wide_rotary else x
        return rotate(wide, layout.cos, layout.sin).to(x.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        heard = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.shared)
        result: Tensor = self.attention_out(heard.transpose(1, 2).flatten(2))
        return result


class Transformer(nn.Module):
    """logits[:, j] predicts tokens[:, start + j]; the head runs on those positions alone, or on
    some of them.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        blocks = [Block(config) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.apply(_initialise)
        for (
            block
        ) in blocks:  # residual branches start small, so that depth does not blow up the stream
            for part in (block.attention_out, block.down):
                nn.init.normal_(part.weight, std=0.02 / (2 * config.layers) ** 0.5)

    @property
    def device(self) -> torch.device:
        """Where logits come out."""
        return self.norm.weight.device

    def forward(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        return self.predict(
            tokens,
            start,
            prompt_lengths,
            self.layout(tokens.shape[1], start, prompt_lengths),
            nudge,
        )

    def predict(
        self,
        tokens: Tensor,
        start: int,
        prompt_lengths: Tensor,
        layout: Layout,
        nudge: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """`forward`, with a layout that is known already; positions [B, m], counted from `start`:
        for these alone.
        """
        asked = start - 1 if self.config.shift and start > 0 else start
        x = self.outputs(tokens, layout, asked=asked, fed=False, nudge=nudge)
        return self.finish(x, start - asked, prompt_lengths, positions)

    def finish(
        self, x: Tensor, first: int, before: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Logits from what the last block says before its `feed`, of the positions from `first` on,
        or of some of them.

        before [B]: real tokens left of `first`. positions [B, m], counted from `first`.
        """
        x = self.predictors(x, first, before)
        if positions is not None:
            x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
        last: Block = self.blocks[-1]  # type: ignore[assignment]
        fed = last.feed(x.to(next(last.parameters()).device))
        return self.logits(fed.to(self.device))

    def outputs(
        self,
        tokens: Tensor,
        layout: Layout,
        recall: Callable[[int, Tensor, Tensor], Pair] | None = None,
        asked: int = 0,
        fed: bool = True,
        nudge: Tensor | None = None,
    ) -> Tensor:
        """What the last block says of the positions from `asked` on, [B, T - asked, width]; fed:
        after its `feed`.

        recall: (layer, keys, values) of these tokens -> the keys and values that they listen to, if
        not to each other's.
        nudge: added to the embeddings of the first tokens.
        """
        x: Tensor = self.embed(tokens.to(self.embed.weight.device))
        x = x if nudge is None else nudged(x, nudge)
        for i, block in enumerate(self.blocks):
            here = next(block.parameters()).device  # blocks may live on several devices
            x, layout = x.to(here), layout.to(here)
            last = i == len(self.blocks) - 1  # of the others every position is heard by the next
            x = block(
                x,
                layout,
                None if recall is None else partial(recall, i),
                asked if last else 0,
                fed or not last,
            )
        return x.to(self.device)

    def layout(self, T: int, start: int, prompt_lengths: Tensor) -> Layout:
        place = (
            torch.arange(T, device=prompt_lengths.device) - (start - prompt_lengths)[:, None]
        )  # [B, T], negative on padding
        dtype = self.embed.weight.dtype
        wide = torch.promote_types(dtype, torch.float32) if self.config.wide_rotary else dtype
        cos, sin = rotary(place.clamp(min=0), self.config.head, self.config.rope_theta, wide)
        return Layout(cos, sin, (place >= 0)[:, None, None])

    def predictors(self, x: Tensor, first: int, before: Tensor) -> Tensor:
        """The outputs from which the positions from `first` on are predicted.

        before [B]: real tokens left of `first`; where there is none, that position predicts itself.
        """
        if not self.config.shift:
            return x[:, first:]
        if first == 0:
            return torch.cat([x[:, :1], x[:, :-1]], dim=1)
        own, left = x[:, first : first + 1], x[:, first - 1 : first]
        return torch.cat(
            [torch.where((before == 0)[:, None, None], own, left), x[:, first:-1]], dim=1
        )

    def logits(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        logits = F.linear(x, self.embed.weight) if self.head is None else self.head(x)
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale


def nudged(x: Tensor, nudge: Tensor) -> Tensor:
    """x [B, T, H] with `nudge` [B, start, H] added to the first positions."""
    start = nudge.shape[1]
    return torch.cat([x[:, :start] + nudge.to(x.device, x.dtype), x[:, start:]], dim=1)


def rotary(place: Tensor, head: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, [B, 1, T, head], for rotate-half rotary positions; angles in float32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    frequency = theta ** (-torch.arange(0, head, 2, device=place.device, dtype=wide) / head)
    angle = place[:, None, :, None].to(wide) * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

"""A bidirectional transformer with RMSNorm, rotary positions and SwiGLU.

Its config covers the architectures in `families`; blocks may have experts (`moe`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log, pi

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .moe import ExpertConfig, ExpertMLP


@dataclass(frozen=True, slots=True)
class Yarn:
    """RoPE stretched to longer texts (YaRN: Peng et al. 2023, arXiv:2309.00071)."""

    factor: float
    original: int  # positions of the texts before
    fast: float = 32.0  # turns over these positions, from which on features keep their speed
    slow: float = 1.0  # turns, up to which features are slowed down by the factor


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    vocab_size: int
    width: int
    layers: int
    heads: int
    hidden: int  # width of the MLP
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    kv_heads: int | None = None  # fewer than heads: grouped-query attention
    head_size: int | None = None  # None: width / heads
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm on the queries and keys of every head
    tied: bool = True  # the output head shares the embedding matrix
    wide_rotary: bool = False  # apply RoPE in float32, whatever the dtype of the network
    logit_scale: float = 1.0
    shift: bool = False  # position j is predicted by the hidden state of position j - 1
    # block-causal attention over blocks of this length, counted from the first token
    block_length: int | None = None
    # finished blocks are read causally, so that the open one may begin and end anywhere
    causal_context: bool = False
    yarn: Yarn | None = None
    rotary_size: int | None = None  # RoPE turns this many features of a head; None: all of them
    experts: ExpertConfig | None = None  # in place of one MLP, except in `dense_layers`
    dense_layers: tuple[int, ...] = ()

    @property
    def head(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def rotary(self) -> int:
        return self.head if self.rotary_size is None else self.rotary_size

    def experts_of(self, layer: int) -> ExpertConfig | None:
        """Return the experts of a block; None if it has one MLP."""
        return None if layer in self.dense_layers else self.experts


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Layout:
    """The rotary angles and the padding mask of a batch: all attention needs besides the tokens."""

    cos: Tensor  # [B, 1, T, rotary], or [1, 1, T, rotary] if all samples share it
    sin: Tensor
    # [B, 1, 1, T]: False on padding; [B, 1, T, T] if it depends on the query; None: all visible
    mask: Tensor | None

    def to(self, device: torch.device) -> "Layout":
        if self.cos.device == device:
            return self
        mask = None if self.mask is None else self.mask.to(device)
        return Layout(self.cos.to(device), self.sin.to(device), mask)

    def mask_from(self, query_start: int) -> Tensor | None:
        """Return the mask of the queries from `query_start` on."""
        if self.mask is None or self.mask.shape[2] == 1:
            return self.mask
        return self.mask[:, :, query_start:]

    def window(self, low: int, high: int) -> "Layout":
        """Restrict the queries to positions low to high - 1; the keys still cover all positions."""
        return Layout(self.cos[:, :, low:high], self.sin[:, :, low:high], self.mask)

    def gather(self, samples: Tensor, positions: Tensor) -> "Layout":
        """Select samples [R], each with its own query positions [R, W]."""
        mask = None if self.mask is None else self.mask[samples]
        cos, sin = (x if len(x) == 1 else x[samples] for x in (self.cos, self.sin))
        index = positions[:, None, :, None].expand(-1, 1, -1, cos.shape[3])
        cos, sin = (x.expand(len(positions), -1, -1, -1).gather(2, index) for x in (cos, sin))
        return Layout(cos, sin, mask)

    def unpadded(self) -> "Layout":
        return Layout(self.cos, self.sin, None)

    def take(self, samples: Tensor) -> "Layout":
        if self.mask is None or len(self.cos) == 1:
            return self
        return Layout(self.cos[samples], self.sin[samples], self.mask[samples])


KV = tuple[Tensor, Tensor]  # keys and values, [B, key heads, T, head]
# Queries [B, heads, Q, head], keys and values of these tokens -> the result of attention.
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Block(nn.Module):
    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
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
        experts = config.experts_of(layer)
        self.experts = None if experts is None else ExpertMLP(config.width, experts)
        if experts is None:
            self.gate_up = nn.Linear(config.width, 2 * config.hidden, bias=False)
            self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        update_kv: Callable[[Tensor, Tensor], KV] | None = None,
        query_start: int = 0,
        run_mlp: bool = True,
        attention: Attention | None = None,
    ) -> Tensor:
        """Return the hidden states of the positions from `query_start` on.

        update_kv: takes the keys and values of x and returns those to attend to.
        query_start: earlier positions contribute keys and values only.
        run_mlp: False leaves `mlp` to the caller.
        attention: used instead of `attend`.
        """
        q, k, v = self.project_qkv(x, layout)
        if update_kv is not None:
            k, v = update_kv(k, v)
        q = q[:, :, query_start:]
        if attention is None:
            attended = self.attend(q, k, v, layout.mask_from(query_start))
        else:
            attended = attention(q, k, v)
        return self.merge(x[:, query_start:], attended, run_mlp)

    def merge(self, x: Tensor, attended: Tensor, run_mlp: bool = True) -> Tensor:
        """Add the result of attention [B, heads, Q, head] and the MLP to the residual stream x."""
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        return self.mlp(x) if run_mlp else x

    def compile_around_attention(self) -> None:
        """Compile what comes before and after attention, which a cache leaves as it is.

        Once for all shapes: every prompt has a fill of its own.
        """
        self.project_qkv = torch.compile(self.project_qkv, dynamic=True)  # type: ignore[method-assign]
        if self.experts is None:
            self.merge = torch.compile(self.merge, dynamic=True)  # type: ignore[method-assign]

    def mlp(self, x: Tensor) -> Tensor:
        """Add the MLP branch to the residual stream; every position is computed independently."""
        if self.experts is not None:
            mixed: Tensor = x + self.experts(self.mlp_norm(x))
            return mixed
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        result: Tensor = x + self.down(F.silu(gate) * up)
        return result

    @property
    def residual_weights(self) -> list[Tensor]:
        """The matrices whose products are added to the residual stream."""
        if self.experts is None:
            return [self.attention_out.weight, self.down.weight]
        shared = self.experts.shared
        own = [self.attention_out.weight, self.experts.down.weight]
        return own if shared is None else [*own, shared.down.weight]

    def project_qkv(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, heads, T, head], with RoPE applied."""
        q, k, v = (
            part.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).split(self.sizes, -1)
        )
        return self.apply_rope(self.q_norm(q), layout), self.apply_rope(self.k_norm(k), layout), v

    def apply_rope(self, x: Tensor, layout: Layout) -> Tensor:
        wide = x.to(layout.cos.dtype) if self.wide_rotary else x
        return rotate(wide, layout.cos, layout.sin).to(x.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        shared = self.shared
        if shared and mask is not None and q.is_cuda:
            # No fast kernel takes both a mask and shared keys: repeat the keys instead.
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
            shared = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=shared)


class Transformer(nn.Module):
    """A masked diffusion network: logits[:, j] predicts tokens[:, start + j].

    The output head runs only on the positions from `start` on, or on the requested ones.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        blocks = [Block(config, layer) for layer in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.apply(_initialise)
        # residual branches start small, so that the stream does not grow with depth
        for block in blocks:
            for weight in block.residual_weights:
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5)

    @property
    def device(self) -> torch.device:
        """The device of the logits."""
        return self.norm.weight.device

    @property
    def replayable(self) -> bool:
        """Whether a pass can be recorded: it is on one device, and never waits for it."""
        places = {parameter.device for parameter in self.parameters()}
        waits = any(module.waits for module in self.modules() if isinstance(module, ExpertMLP))
        return len(places) == 1 and not waits

    def forward(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        T = tokens.shape[1]
        inside = (torch.arange(T, device=tokens.device) >= start)[None]  # one block
        layout = self.layout(T, start, prompt_lengths, inside)
        return self.predict(tokens, start, prompt_lengths, layout, nudge)

    def predict(
        self,
        tokens: Tensor,
        start: int,
        prompt_lengths: Tensor,
        layout: Layout,
        nudge: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Run `forward` with a precomputed layout.

        positions [B, m], counted from `start`: return logits for these only.
        """
        first = start - 1 if self.config.shift and start > 0 else start
        x = self.hidden_states(tokens, layout, query_start=first, last_mlp=False, nudge=nudge)
        return self.finish(x, start - first, prompt_lengths, positions)

    def finish(
        self, x: Tensor, first: int, before: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the positions from `first` on, or of `positions` among them.

        x: hidden states of the last block before its MLP.
        before [B]: number of real tokens left of `first`.
        positions [B, m]: counted from `first`.
        """
        x = self.predictors(x, first, before)
        if positions is not None:
            x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
        last: Block = self.blocks[-1]  # type: ignore[assignment]
        x = last.mlp(x.to(next(last.parameters()).device))
        return self.logits(x.to(self.device))

    def hidden_states(
        self,
        tokens: Tensor,
        layout: Layout,
        update_kv: Callable[[int, Tensor, Tensor], KV] | None = None,
        query_start: int = 0,
        last_mlp: bool = True,
        nudge: Tensor | None = None,
        attention: Callable[[int, Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the hidden states of the positions from `query_start` on after the last block.

        The result has shape [B, T - query_start, width].
        update_kv: maps (layer, keys, values) of these tokens to the keys and values to attend to.
        last_mlp: False leaves the MLP of the last block to the caller.
        nudge: added to the embeddings of the first tokens.
        attention: an `Attention` that is also given the layer, used instead of `Block.attend`.
        """
        x: Tensor = self.embed(tokens.to(self.embed.weight.device))
        x = x if nudge is None else nudged(x, nudge)
        for i, block in enumerate(self.blocks):
            here = next(block.parameters()).device  # blocks may live on several devices
            x, layout = x.to(here), layout.to(here)
            last = i == len(self.blocks) - 1  # earlier blocks feed keys and values to the next one
            x = block(
                x,
                layout,
                None if update_kv is None else partial(update_kv, i),
                query_start if last else 0,
                last_mlp or not last,
                None if attention is None else partial(attention, i),
            )
        return x.to(self.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return the result of attention in a layer."""
        block: Block = self.blocks[layer]  # type: ignore[assignment]
        return block.attend(q, k, v, None if mask is None else mask.to(q.device))

    def layout(
        self, T: int, start: int, prompt_lengths: Tensor, inside: Tensor | None = None
    ) -> Layout:
        """Return the layout of left-padded prompts and their answers.

        inside: [B or 1, T], the open block; only read if the context is causal.
        """
        index = torch.arange(T, device=prompt_lengths.device)
        position_ids = index - (start - prompt_lengths)[:, None]  # [B, T], negative on padding
        real, position_ids = (position_ids >= 0)[:, None, None], position_ids.clamp(min=0)
        return Layout(*self.rope(position_ids), self.visible(position_ids, real, inside))

    def visible(self, position_ids: Tensor, real: Tensor, inside: Tensor | None = None) -> Tensor:
        """Return the attention mask of positions [B, T], of which only the real ones are seen.

        real: [B, 1, 1, T]. Padding sees the first block, because a softmax over nothing is NaN.
        inside: [B or 1, T], the open block; only read if the context is causal.
        """
        if self.config.block_length is None:
            return real
        if self.config.causal_context:
            seen = position_ids[:, None, None] <= position_ids[:, None, :, None]
            if inside is not None:
                seen = seen | (inside[:, None, None] & inside[:, None, :, None])
            return real & seen
        block = position_ids // self.config.block_length
        return real & (block[:, None, None] <= block[:, None, :, None])

    def rope(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of positions [B, T]."""
        dtype = self.embed.weight.dtype
        wide = torch.promote_types(dtype, torch.float32) if self.config.wide_rotary else dtype
        config = self.config
        return rope_cos_sin(position_ids, config.rotary, config.rope_theta, wide, config.yarn)

    def predictors(self, x: Tensor, first: int, before: Tensor) -> Tensor:
        """Return the hidden states that predict the positions from `first` on.

        before [B]: number of real tokens left of `first`; if 0, that position predicts itself.
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
    """Add `nudge` [B, start, H] to the first positions of x [B, T, H]."""
    start = nudge.shape[1]
    return torch.cat([x[:, :start] + nudge.to(x.device, x.dtype), x[:, start:]], dim=1)


def rope_cos_sin(
    position_ids: Tensor, size: int, theta: float, dtype: torch.dtype, yarn: Yarn | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin, [B, 1, T, size], for rotate-half RoPE of `size` features.

    Angles are computed in float32 or wider.
    """
    wide = torch.promote_types(dtype, torch.float32)
    frequency = theta ** (-torch.arange(0, size, 2, device=position_ids.device, dtype=wide) / size)
    if yarn is not None:
        frequency = stretched(frequency, theta, yarn)
    angle = position_ids[:, None, :, None].to(wide) * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def stretched(frequency: Tensor, theta: float, yarn: Yarn) -> Tensor:
    """Divide low frequencies [size / 2] by the factor, high ones by 1, and others by less."""

    def feature(turns: float) -> float:
        """Return the number of the feature that turns so often over the original positions."""
        return len(frequency) * log(yarn.original / (turns * 2 * pi)) / log(theta)

    first = max(floor(feature(yarn.fast)), 0)
    last = min(ceil(feature(yarn.slow)), 2 * len(frequency) - 1)
    index = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
    slowed = ((index - first) / max(last - first, 0.001)).clamp(0, 1)
    return frequency * (1 - slowed) + frequency / yarn.factor * slowed


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first features of every head, as many as cos and sin have."""
    size = cos.shape[-1]
    if size < x.shape[-1]:
        return torch.cat([rotate(x[..., :size], cos, sin), x[..., size:]], dim=-1)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

"""A bidirectional transformer in one file: RMSNorm, rotary positions, SwiGLU, tied embeddings."""

from dataclasses import dataclass

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


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attention_out = nn.Linear(config.width, config.width, bias=False)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.gate_up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [B, heads, T, head]
        heard = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask)
        x = x + self.attention_out(heard.transpose(1, 2).reshape(B, T, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        result: Tensor = x + self.down(F.silu(gate) * up)
        return result


class Transformer(nn.Module):
    """logits[:, j] predicts tokens[:, start + j]; the head runs on those positions alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        blocks = [Block(config) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.apply(_initialise)
        for block in blocks:  # residual branches start small, so that depth does not blow up the stream
            for part in (block.attention_out, block.down):
                nn.init.normal_(part.weight, std=0.02 / (2 * config.layers) ** 0.5)

    def forward(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        T = tokens.shape[1]
        place = torch.arange(T, device=tokens.device) - (start - prompt_lengths)[:, None]  # [B, T], negative on padding
        x = self.embed(tokens)
        cos, sin = rotary(place.clamp(min=0), self.config.width // self.config.heads, self.config.rope_theta, x.dtype)
        mask = (place >= 0)[:, None, None]  # [B, 1, 1, T]: nobody listens to padding
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return F.linear(self.norm(x[:, start:]), self.embed.weight)


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

"""A tiny DiffusionGemma that has learnt twelve right answers to each of a few prompts.

An answer is a canvas of random tokens. One answer of a prompt has a quarter of the mass, the others
share the rest, as a model that has seen one way to say something too often. An answer is right as a
whole or not at all.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
)

PAD, EOS, BOS, FIRST = 0, 1, 2, 8  # answers are made of the ids from FIRST on
PROMPTS, ANSWERS, CANVAS, VOCABULARY = 8, 12, 8, 64
FAVOURED = 0.25
BATCH, RATE, WARMUP = 128, 3e-3, 100
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention"] * 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": 1,
    "head_dim": 32,
    "global_head_dim": 32,
    "num_experts": 2,
    "top_k_experts": 1,
    "moe_intermediate_size": 32,
}
VISION = {  # never used, but part of every DiffusionGemma
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "position_embedding_size": 16,
}


@dataclass(frozen=True)
class World:
    """A trained network, and what it was taught."""

    model: DiffusionGemmaForBlockDiffusion
    answers: Tensor  # [PROMPTS, ANSWERS, CANVAS]

    def judge(self, written: Tensor, n: int) -> tuple[list[int], list[int]]:
        """Return how many right answers the n samples of each prompt hold, and how many are right.

        written [PROMPTS * n, CANVAS] is in the order of the prompts.
        """
        samples = written.view(PROMPTS, n, 1, CANVAS)
        right = (samples == self.answers[:, None]).all(dim=-1)  # [PROMPTS, n, ANSWERS]
        return right.any(dim=1).sum(dim=1).tolist(), right.any(dim=2).sum(dim=1).tolist()


def prompts_of(numbers: Tensor) -> Tensor:
    """Return the token ids [B, 2] of prompts by number [B]."""
    return torch.stack([torch.full_like(numbers, BOS), FIRST + numbers], dim=1)


def build(seed: int) -> DiffusionGemmaForBlockDiffusion:
    torch.manual_seed(seed)
    text = DiffusionGemmaTextConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        **TEXT,
    )
    config = DiffusionGemmaConfig(
        text_config=text,
        vision_config=VISION,
        canvas_length=CANVAS,
        boi_token_id=3,
        eoi_token_id=4,
        image_token_id=5,
    )
    return DiffusionGemmaForBlockDiffusion(config)


def train(seed: int, steps: int) -> World:
    """Train on noisy canvases: of a random share, every token is replaced by a random one."""
    model = build(seed).train()
    generator = torch.Generator().manual_seed(seed)
    shape = (PROMPTS, ANSWERS, CANVAS)
    answers = torch.randint(FIRST, VOCABULARY, shape, generator=generator)
    mass = torch.full((ANSWERS,), (1 - FAVOURED) / (ANSWERS - 1))
    mass[0] = FAVOURED
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    for step in range(steps):
        rate = RATE * min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        numbers = torch.randint(PROMPTS, (BATCH,), generator=generator)
        clean = answers[numbers, torch.multinomial(mass, BATCH, True, generator=generator)]
        loss = _loss(model, prompts_of(numbers), clean, generator, conditioned=step % 2 == 1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return World(model.eval(), answers)


def _loss(
    model: DiffusionGemmaForBlockDiffusion,
    prompts: Tensor,
    clean: Tensor,
    generator: torch.Generator,
    *,
    conditioned: bool,
) -> Tensor:
    """Return the cross-entropy; if conditioned, after a first look, as in sampling."""
    share = torch.rand(len(clean), 1, generator=generator)
    noise = torch.randint(VOCABULARY, clean.shape, generator=generator)
    noisy = torch.where(torch.rand(clean.shape, generator=generator) < share, noise, clean)
    first = None
    if conditioned:
        with torch.no_grad():
            first = model(input_ids=prompts, decoder_input_ids=noisy).logits
    logits = model(
        input_ids=prompts, decoder_input_ids=noisy, self_conditioning_logits=first
    ).logits
    return cross_entropy(logits.flatten(0, 1), clean.flatten())

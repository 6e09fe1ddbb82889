"""A tiny random DiffusionGemma as a checkpoint, and transformers' own sampler with our noise."""

from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSampler

from oddlm.core import noise

from . import published_layout as layout

CANVAS, WINDOW = 8, 12  # the window is shorter than a prompt with its answer
SPECIAL = ["<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>"]
PAD, EOS, BOS, TURN, END = (len(layout.vocabulary()) + i for i in range(len(SPECIAL)))
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|turn>' + message['role'] + '\n' "
    "+ message['content'] | trim + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
TEXT = {
    "vocab_size": layout.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
    "sliding_window": WINDOW,
    "max_position_embeddings": 512,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
}
VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 8,
    "pooling_kernel_size": 2,
}
# As published with google/diffusiongemma-26B-A4B-it, but less certain when a canvas is finished.
GENERATION = {
    "max_denoising_steps": 8,
    "max_new_tokens": 256,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 4.0},
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 1.0,
    "eos_token_id": [EOS, END],
    "pad_token_id": PAD,
}


def make(seed=0, canvas=CANVAS, **changes):
    """Return a network whose weights are large enough for tokens to matter and to settle."""
    config = DiffusionGemmaConfig(
        text_config=TEXT | changes, vision_config=VISION, canvas_length=canvas
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = DiffusionGemmaForBlockDiffusion(config).eval()
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            parameter.data *= 40.0 if "embed_tokens" in name else 4.0
    return network


def write(folder: Path, network=None, **generation):
    network = network or make()
    network.save_pretrained(folder)
    layout.write_json(folder / "generation_config.json", {**GENERATION, **generation})
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, more=()):
    backend = Tokenizer(models.BPE(vocab=layout.vocabulary(), merges=layout.PAIRS))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (*SPECIAL, *more)]
    )
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    layout.write_json(folder / "tokenizer_config.json", names)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


class Replay:
    """Our noise, in the order in which transformers draws its own."""

    def __init__(self, n: int, seed: int, canvas: int, steps: int, vocab_size: int) -> None:
        self.n, self.seed, self.length, self.steps, self.V = n, seed, canvas, steps, vocab_size
        self.canvas, self.step, self.renoising = -1, 0, False

    def keys(self, purpose: noise.Purpose) -> torch.Tensor:
        """Return the keys [n, canvas] of the positions of this canvas at this step."""
        positions = self.canvas * self.length + torch.arange(self.length)
        index = self.canvas * self.steps + self.step
        samples = torch.arange(self.n)[:, None]
        return noise.key(torch.tensor([[self.seed]]), samples, index, purpose, positions)

    def fill(self, sampler, batch_size, device):
        """Stand in for `initialize_canvas`, which also draws what renoises."""
        assert batch_size == self.n
        if not self.renoising:
            self.canvas, self.step = self.canvas + 1, 0
        self.renoising = False
        return (self.keys(noise.Purpose.CANVAS) >> 1).bitwise_and((1 << 62) - 1) % self.V

    def renoise(self, sampler, accepted_canvas, cur_step):
        self.renoising = True
        return RENOISE(sampler, accepted_canvas, cur_step)

    def multinomial(self, shares, num_samples):
        keys = self.keys(noise.Purpose.TOKEN).flatten()
        self.step += 1
        return (shares.log() + noise.gumbel(keys, self.V)).argmax(dim=-1, keepdim=True)


RENOISE = EntropyBoundSampler.renoise_canvas


def generated(network, prompt, *, n, seed, canvases, steps, **settings):
    """Return what transformers' `generate` writes with our noise: [n, length], and its passes."""
    config = network.config
    replay = Replay(n, seed, config.canvas_length, steps, config.text_config.vocab_size)
    with (
        patch.object(
            EntropyBoundSampler, "initialize_canvas", lambda *a, **k: replay.fill(*a, **k)
        ),
        patch.object(
            EntropyBoundSampler, "renoise_canvas", lambda *a, **k: replay.renoise(*a, **k)
        ),
        patch.object(torch, "multinomial", replay.multinomial),
        patch.object(torch.compiler, "cudagraph_mark_step_begin", lambda: None),  # loads inductor
    ):
        output = network.generate(
            torch.tensor([prompt] * n),
            max_new_tokens=canvases * config.canvas_length,
            max_denoising_steps=steps,
            **settings,
        )
    tokens = output.sequences[:, len(prompt) :]
    return tokens, (tokens.shape[1] / output.tokens_per_forward).round().long()

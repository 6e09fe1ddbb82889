"""Measure what the logits processor for transformers adds to a step of DiffusionGemma's generate.

    python benchmarks/processor.py                                   # on a CPU: tiny, small
    python benchmarks/processor.py --shape 26b-a4b --device cuda     # the published size, bf16

Networks have random weights. In one call of generate every step is pushed, and timed in two parts:
the push, and all the rest of the step (network, softmax, draws, acceptance), which is what a plain
step costs. Times are medians over steps; on a CPU they are processor time of one thread. The share
of a run is that of the default, which pushes the first quarter of the steps.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    LogitsProcessorList,
)

from oddlm import Repulsion
from oddlm.integrations.transformers import DiverseLogitsProcessor
from oddlm.kernels import dispatch
from oddlm.presets import ALPHA_END

ENDS = (0, 1)
PERIOD = 6  # every sixth layer of the published network attends to everything
VISION = {  # not measured
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
SHAPES: dict[str, tuple[int, dict[str, int]]] = {  # canvas, then the text network
    "tiny": (
        32,
        {
            "vocab_size": 2048,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_global_key_value_heads": 1,
            "head_dim": 64,
            "global_head_dim": 64,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
        },
    ),
    "small": (
        64,
        {
            "vocab_size": 32768,
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 2,
            "head_dim": 64,
            "global_head_dim": 128,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 256,
        },
    ),
    "26b-a4b": (  # config.json of google/diffusiongemma-26B-A4B-it
        256,
        {
            "vocab_size": 262144,
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "num_hidden_layers": 30,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
            "sliding_window": 1024,
        },
    ),
}


class Timed(DiverseLogitsProcessor):
    """Notes when it is entered and left."""

    def __init__(self, n: int, steps: int, device: str) -> None:
        super().__init__(n, steps, end_ids=ENDS, alpha_end=1.0, fork=False)
        self.cuda = device == "cuda"
        self.times: list[tuple[float, float]] = []

    def now(self) -> float:
        if not self.cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def __call__(self, input_ids: Tensor, scores: Tensor, cur_step: int | Tensor) -> Tensor:
        entered = self.now()
        pushed = super().__call__(input_ids, scores, cur_step)
        self.times.append((entered, self.now()))
        return pushed


def build(shape: str, device: str) -> DiffusionGemmaForBlockDiffusion:
    """Build the network in place on its device, in bf16 on a GPU."""
    canvas, sizes = SHAPES[shape]
    layers, V = sizes["num_hidden_layers"], sizes["vocab_size"]
    kinds = [
        "full_attention" if i % PERIOD == PERIOD - 1 or i == layers - 1 else "sliding_attention"
        for i in range(layers)
    ]
    text = DiffusionGemmaTextConfig(layer_types=kinds, **sizes)
    config = DiffusionGemmaConfig(
        text_config=text,
        vision_config=VISION,
        canvas_length=canvas,
        boi_token_id=V - 1,
        eoi_token_id=V - 2,
        image_token_id=V - 3,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            return DiffusionGemmaForBlockDiffusion(config).eval()
    finally:
        torch.set_default_dtype(before)


def measure(shape: str, device: str, n: int, prompt: int, steps: int) -> tuple[float, float]:
    """Return the seconds of the processor, and of the rest of a step."""
    model = build(shape, device)
    ids = torch.full((n, prompt), 5, device=device)
    settings = {"max_new_tokens": SHAPES[shape][0], "confidence_threshold": 1e-9}
    for count in (2, steps):  # kernels are compiled and caches filled by the first
        timed = Timed(n, count, device)
        processors = LogitsProcessorList([timed])
        model.generate(ids, max_denoising_steps=count, logits_processor=processors, **settings)
    pushes = [left - entered for entered, left in timed.times]
    rests = [
        later - left for (_, left), (later, _) in zip(timed.times, timed.times[1:], strict=False)
    ]
    return statistics.median(pushes[1:]), statistics.median(rests)


def row(shape: str, device: str, given: argparse.Namespace) -> str:
    canvas, sizes = SHAPES[shape]
    push, rest = measure(shape, device, given.n, given.prompt, given.steps)
    ended = push * ALPHA_END
    cells: list[Any] = [
        shape,
        f"{given.n} x {canvas} x {sizes['vocab_size']}",
        f"{rest * 1e3:.1f} ms",
        f"{push * 1e3:.1f} ms",
        f"{push / (push + rest):.1%}",
        f"{ended / (ended + rest):.1%}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=tuple(SHAPES), action="append")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--n", type=int, default=16, help="samples of the prompt")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU, 1 thread"
    forms = Repulsion().forms
    backend = dispatch.choose(torch.device(given.device), torch.float32, forms=forms)
    print(f"{where}, torch {torch.__version__}, push: {backend.push}\n")
    names = ("network", "n x canvas x vocabulary", "rest of a step", "push")
    print(f"| {' | '.join(names)} | share of a pushed step | share of a run |")
    print("|---|---|---|---|---|---|")
    for shape in given.shape or ("tiny", "small"):
        print(row(shape, given.device, given), flush=True)


if __name__ == "__main__":
    main()

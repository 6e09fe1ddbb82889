"""Load an 8B LLaDA from disk and sample from it, with random weights in the published layout.

    python benchmarks/llada_8b.py --folder /scratch/llada [--tiny]
        [--out benchmarks/results/llada-8b.md]

The shapes, files and types of the weights are those of LLaDA-8B. Plain and ODD sampling write
16 x 64 tokens in 32 steps after a prompt of 150 tokens. Time per step is the median over the steps
after the first; peak memory is what torch allocated.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import oddlm
from oddlm.models.families.llada import LLADA
from oddlm.models.families.published import LLADA_8B
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.quant import QUANTIZATIONS
from oddlm.models.transformer import Transformer

N, LENGTH, STEPS, PROMPT = 16, 64, 32, 150
TINY = {"d_model": 128, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 256}
GB = 1e9


def write_checkpoint(folder: Path, config: dict[str, Any], device: str, shards: int = 6) -> int:
    """Write random bf16 weights with the published names in indexed shards; return the bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    keys = Keys("config.json", config)
    with torch.device("meta"):
        network = Transformer(LLADA.config(keys))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in network.state_dict().items():
        sources = LLADA.sources(keys, name)
        shapes |= {
            source: (parameter.shape[0] // len(sources), *parameter.shape[1:]) for source in sources
        }
    names, where, size = list(shapes), {}, 0
    for shard in range(shards):
        own = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        tensors = {
            n: torch.randn(shapes[n], device=device, dtype=torch.bfloat16) * 0.02 for n in own
        }
        size += sum(t.nbytes for t in tensors.values())
        save_file(
            {n: t.cpu() for n, t in tensors.items()}, folder / file, metadata={"format": "pt"}
        )
        where |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": where})
    )
    (folder / "config.json").write_text(json.dumps(config))
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(1000)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return size


class Clock:
    """An observer that notes when each step ends."""

    def __init__(self, device: str) -> None:
        self.device, self.ends = device, [time.perf_counter()]

    def __call__(self, _: Any) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    @property
    def step_ms(self) -> float:
        pairs = zip(self.ends[1:], self.ends[2:], strict=False)
        return 1000 * statistics.median(after - before for before, after in pairs)


def measure(folder: Path, device: str, quantize: str | None) -> list[str]:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    lm = oddlm.load(str(folder), device=device, dtype="bf16", quantize=quantize)
    if device == "cuda":
        torch.cuda.synchronize()
    loaded = time.perf_counter() - began
    held = torch.cuda.memory_allocated() / GB if device == "cuda" else float("nan")
    loading = torch.cuda.max_memory_allocated() / GB if device == "cuda" else float("nan")
    rows = []
    prompt = " ".join(f"w{i}" for i in range(PROMPT))
    for objective in ("none", "odd"):
        shape = {
            "length": LENGTH,
            "steps": STEPS,
            "objective": objective,
            "alpha": 8.0,
            "fork": False,
            "progress": False,
        }
        lm.generate(prompt, N, **{**shape, "steps": 1})  # warms up
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        clock = Clock(device)
        (samples,) = lm.generate(prompt, N, observe=clock, **shape)
        assert len(samples) == N
        peak = torch.cuda.max_memory_allocated() / GB if device == "cuda" else float("nan")
        total = clock.ends[-1] - clock.ends[0]
        cells = [
            quantize or "bf16",
            objective,
            f"{loaded:.1f} s",
            f"{held:.1f} GB",
            f"{loading:.1f} GB",
            f"{peak:.1f} GB",
        ]
        rows.append(f"| {' | '.join(cells)} | {clock.step_ms:.1f} ms | {total:.2f} s |")
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="where the checkpoint is written; removed at the end",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a network of two narrow layers, to see that this runs"
    )
    parser.add_argument(
        "--quantize", nargs="*", default=[], choices=QUANTIZATIONS, help="measure these, too"
    )
    parser.add_argument("--out", type=Path, help="write the table there")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LLADA_8B | (TINY if args.tiny else {})
    began = time.perf_counter()
    size = write_checkpoint(args.folder, config, device)
    made = time.perf_counter() - began
    name = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    which = "A tiny" if args.tiny else "An 8B"
    shape = f"{N} samples x {LENGTH} tokens in {STEPS} steps, prompt of {PROMPT} tokens"
    heads = ["weights", "objective", "load", "weights in memory", "peak while loading"]
    heads += ["peak while sampling", "per step", "all steps"]
    lines = [
        f"# {which} LLaDA with random weights, {size / GB:.2f} GB on disk, on {name}",
        "",
        f"{shape}; torch {torch.__version__}.",
        f"Written in {made:.1f} s (so the files are in the page cache when they are loaded).",
        "",
        f"| {' | '.join(heads)} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    try:
        for quantize in (None, *args.quantize):
            lines += measure(args.folder, device, quantize)
    finally:
        shutil.rmtree(args.folder)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

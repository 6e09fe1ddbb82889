"""Load an 8B LLaDA from disk, with random weights in the published layout.

    python benchmarks/llada_8b.py --folder /scratch/llada [--tiny]
        [--out benchmarks/results/llada-8b.md]

The shapes, files and types of the weights are those of LLaDA-8B. Peak memory is what torch
allocated. `oddlm bench answers --shape llada-8b` times sampling.
"""

import argparse
import json
import shutil
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


def measure(folder: Path, device: str, quantize: str | None) -> str:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    lm = oddlm.load(str(folder), device=device, dtype="bf16", quantize=quantize)
    if device == "cuda":
        torch.cuda.synchronize()
    loaded = time.perf_counter() - began
    held = torch.cuda.memory_allocated() / GB if device == "cuda" else float("nan")
    peak = torch.cuda.max_memory_allocated() / GB if device == "cuda" else float("nan")
    del lm
    row = f"| {quantize or 'bf16'} | {loaded:.1f} s | {held:.1f} GB | {peak:.1f} GB |"
    print(row, flush=True)
    return row


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
    heads = ["weights", "load", "weights in memory", "peak while loading"]
    lines = [
        f"# {which} LLaDA with random weights, {size / GB:.2f} GB on disk, on {name}",
        "",
        f"torch {torch.__version__}.",
        f"Written in {made:.1f} s (so the files are in the page cache when they are loaded).",
        "",
        f"| {' | '.join(heads)} |",
        "|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    try:
        for quantize in (None, *args.quantize):
            lines.append(measure(args.folder, device, quantize))
    finally:
        shutil.rmtree(args.folder)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

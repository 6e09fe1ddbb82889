"""The card of an adapted model: what it was made of, how, and how well it predicts."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..models.loading.checkpoint import Description
from .loop import Progress
from .pairs import Pairs

if TYPE_CHECKING:
    from .adapt import AdaptConfig


def write_card(
    path: Path,
    config: "AdaptConfig",
    described: Description,
    pairs: Pairs,
    progress: Progress,
    held_out: dict[str, float],
) -> None:
    shape = described.config
    attention = f"opened over {config.anneal} steps" if config.anneal else "opened at once"
    weights = "all matrices" if config.rank is None else f"factors of rank {config.rank}"
    stored = (
        "whole"
        if config.three_levels_from is None
        else f"in three levels, trained so from {config.three_levels_from:.0%} of the steps on"
    )
    rows = {
        "base": config.base.name,
        "layout": f"{described.architecture.name}: {shape.layers} layers, width {shape.width}, "
        f"{shape.heads} heads, vocabulary {shape.vocab_size}",
        "pairs": f"{len(pairs):,} of {config.data.name}; {pairs.too_long:,} were too long",
        "canvas": f"prompts of up to {config.prompt} tokens, answers of {config.length}",
        "attention": attention,
        "trained": f"{weights}, embedding rows: {config.embedding}",
        "difference to the base": stored,
        "steps": f"{progress.step:,} of {config.batch} pairs per process",
        "tokens": f"{progress.tokens:,}",
        "learning rate": f"{config.learning_rate:g}, warm-up {config.warmup} steps, "
        f"falling to 0 over the last {config.decay:.0%}",
        "time": f"{progress.seconds:,.0f} s",
        "held-out pairs": f"bound {held_out['bound']:.4f} nats per token, "
        f"{held_out['right']:.1%} of masked tokens right",
    }
    lines = [
        "# A masked diffusion model, adapted from a causal one",
        "",
        "Made with `oddlm adapt`; load it with `oddlm.load` and this folder.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
    ]
    path.write_text("\n".join(lines) + "\n")

"""How the samples of a run are drawn: every setting with its check."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import finite, ids, one_of, whole
from ..presets import POLICY, TEMPERATURE
from .choose import CONFIDENCES
from .model import ModelInfo
from .policies import POLICIES
from .step import Policy

HOTTEST = 1000.0  # beyond, Gumbel noise would overflow where it matters


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the samples of a run are drawn.

    n, length: samples per prompt, tokens per sample.
    steps: network evaluations; they divide evenly over the blocks. Parallel policies may need
    fewer.
    temperature: of the Gumbel-max choice; 0 is the argmax.
    policy: which positions to commit (`core.policies`): a name, {"name": ..., option: ...}, a
    dotted path or a function.
    confidence: what the policy's confidence, margin or entropy is taken from. "full": the pushed
    distribution, before filters
        and temperature. "sampled": the one that tokens are drawn from, which then is Dream's,
        temperature before filters, all in the precision of the logits. None: the model's own
        (Dream's is "sampled", all others' "full"), or "full" for a parallel policy, whose bounds a
        sampled distribution would pass everywhere.
    seed: one for all (each prompt derives its own, the first keeps it) or one per prompt.
    block_length: decode blocks of this length from left to right; None is one block.
    top_k, top_p: filters on the pushed distribution, before temperature (after it where confidence
    is "sampled").
    suppress: ids that are never written (MASK never is). suppress_confidence: ids that are written
    late.
    order_temperature: Gumbel noise on the log-score that picks positions.
    fork: step 0 commits one cell per sample, the j-th likeliest (position, token) for sample j.
    fork_temperature: of the fork: its cells are drawn without replacement, not ranked.
    prompt_noise: noise on the embeddings of the prompt, as a share of their length, that fades over
    the steps.
    stop_at_end: ask no more about a sample once an end token is written and everything up to the
    end of its block; the rest
        is filled with that token. The tokens before it are the same. `LM.generate` has it on where
        blocks are decoded.
    """

    n: int
    length: int
    steps: int
    temperature: float = TEMPERATURE
    policy: str | Mapping[str, Any] | Policy = POLICY
    confidence: str | None = None
    seed: int | Sequence[int] = 0
    block_length: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    suppress: Collection[int] = ()
    suppress_confidence: Collection[int] = ()
    order_temperature: float = 0.0
    fork: bool = False
    fork_temperature: float = 0.0
    prompt_noise: float = 0.0
    stop_at_end: bool = False

    def __post_init__(self) -> None:
        whole("n", self.n)
        for name in ("temperature", "order_temperature", "fork_temperature", "prompt_noise"):
            finite(name, getattr(self, name), most=HOTTEST)
        if self.top_k is not None:
            whole("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1] or be None, not {self.top_p!r}")
        if self.confidence is not None:
            one_of("confidence", self.confidence, CONFIDENCES)

    def check(self, info: ModelInfo) -> None:
        """ValueError for what this model cannot do."""
        V, masks = info.vocab_size, () if info.mask_id is None else (info.mask_id,)
        ids("mask_id", masks, V)
        ids("end_ids", info.end_ids, V)
        ids("protected_ids", info.protected, V)
        ids("suppress_confidence", self.suppress_confidence, V)
        if len({*masks, *ids("suppress", self.suppress, V)}) == V:
            raise ValueError("suppress holds the whole vocabulary: nothing is left to write")
        if self.prompt_noise and not (info.nudges and info.embedding is not None):
            raise ValueError(
                "prompt_noise needs a model whose prompt embeddings can be nudged: mini, toy, or a checkpoint, loaded "
                f"without a cache, not {info.name}"
            )

    def sampled(self, info: ModelInfo) -> bool:
        """Is confidence that of the sampled distribution?"""
        if self.confidence is None:
            parallel = getattr(POLICIES.build(self.policy), "parallel", False)
            return info.confidence == "sampled" and not parallel
        return self.confidence == "sampled"

    def filtered(self, info: ModelInfo) -> bool:
        """Is anything done to the distribution before tokens are drawn from it?"""
        return self.top_k is not None or self.top_p is not None or self.sampled(info)

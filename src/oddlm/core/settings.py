"""The settings of a run, with their checks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import finite, ids, one_of, whole
from ..presets import POLICY, TEMPERATURE
from .choose import CONFIDENCES
from .model import ModelInfo
from .policies import POLICIES
from .step import Policy

HOTTEST = 1000.0  # Gumbel noise scaled by a higher temperature could overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the samples of a run are drawn.

    Args:
        n: Samples per prompt.
        length: Tokens per sample.
        steps: Network evaluations, divided evenly over the blocks. Parallel policies may need
            fewer.
        temperature: Temperature of the Gumbel-max choice; 0 is the argmax.
        policy: Which positions to commit (`core.policies`): a name, {"name": ..., option: ...}, a
            dotted path or a function.
        confidence: The distribution from which the policy's confidence, margin or entropy is
            computed. "full" is the pushed distribution before filters and temperature. "sampled" is
            the one that tokens are drawn from; as in Dream, temperature then comes before the
            filters, all in the precision of the logits. None is the model's own rule ("sampled" for
            Dream and DiffusionGemma, "full" for all others), or "full" for a parallel policy, whose
            thresholds a sampled distribution would pass everywhere, unless the model drafts.
        seed: One for all prompts (the first uses it, the others derive theirs) or one per prompt.
        block_length: Decode blocks of this length from left to right; None is one block, or the
            blocks of a block-causal model.
        top_k: Filter on the pushed distribution, before temperature (after it if confidence is
            "sampled").
        top_p: Like top_k.
        suppress: Ids that are never written (MASK never is).
        suppress_confidence: Ids that are committed late.
        order_temperature: Gumbel noise on the log-score that ranks the positions.
        fork: Step 0 commits one token per sample: the j-th most likely (position, token) pair for
            sample j.
        fork_temperature: Draw the pairs of the fork without replacement at this temperature
            instead of ranking them.
        prompt_noise: Noise on the prompt's embeddings, relative to their norm, that fades over the
            steps.
        stop_at_end: Stop computing a sample once it has an end token and everything up to the end
            of its block is written; the rest is filled with that token. The tokens before it are
            the same. `LM.generate` enables it when decoding in blocks.
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
        """Raise ValueError for settings that this model does not support."""
        V, masks = info.vocab_size, () if info.mask_id is None else (info.mask_id,)
        ids("mask_id", masks, V)
        ids("end_ids", info.end_ids, V)
        ids("protected_ids", info.protected, V)
        ids("suppress_confidence", self.suppress_confidence, V)
        if len({*masks, *ids("suppress", self.suppress, V)}) == V:
            raise ValueError("suppress holds the whole vocabulary: no token is left to write")
        if self.prompt_noise and not (info.nudges and info.embedding is not None):
            raise ValueError(
                "prompt_noise needs a model that takes noise on its prompt embeddings (mini, toy, "
                f"or a checkpoint, loaded without a cache), not {info.name}"
            )

    def sampled(self, info: ModelInfo) -> bool:
        """Whether confidence is computed from the sampled distribution."""
        if self.confidence is None:
            parallel = getattr(POLICIES.build(self.policy), "parallel", False)
            return info.confidence == "sampled" and not (parallel and info.drafting is None)
        return self.confidence == "sampled"

    @property
    def edits(self) -> bool:
        """Whether the policy may replace written tokens."""
        return bool(getattr(POLICIES.build(self.policy), "edits", False))

    def filtered(self, info: ModelInfo) -> bool:
        """Whether the distribution is changed before tokens are drawn from it."""
        return self.top_k is not None or self.top_p is not None or self.sampled(info)

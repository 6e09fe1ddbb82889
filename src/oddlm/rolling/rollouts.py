"""Groups of samples as tensors, and the importance weights of pushed ones."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..checks import finite, one_of

Against = Literal["pushed", "drawn"]
AGAINST = ("pushed", "drawn")


@dataclass(frozen=True)
class Rollouts:
    """Groups of n samples per prompt: row g * n + j is sample j of prompt g.

    B rows of G prompts, P positions of the longest prompt, S of the longest answer. Everything is
    on the device of the model. A log-probability is that of a token at the step that wrote it for
    good, in natural logarithms and float32, given the canvas before that step:

    - `base_logprobs` is the network's own (with classifier-free guidance if `cfg_scale` asks for
      it, and noise on the prompt if `prompt_noise` does), at temperature 1 and without filters. Ids
      that are never written are left out of the distribution.
    - `pushed_logprobs` is the same after the push; it is equal to the former where nothing is
      pushed. The push of a sample depends on the samples before it in its group, so this is
      conditional on them.
    - `drawn_logprobs` is that of the draw itself: after the push, filters and temperature. At
      temperature 0 it is 0. It is NaN for tokens that were not drawn: a fork's first token, which
      is chosen by rank, the tokens of a model that drafts, which are the likeliest ones, given
      ones, and those past the end.

    All three are about which token was written, not where: the choice of positions, and the order
    noise on it, have no part in them. A policy that prefers confident tokens looks at the draws of
    all open positions, so only under the policy `random` is `drawn_logprobs` exactly the
    probability of the written token; otherwise it is the usual approximation.
    """

    n: int  # samples per prompt
    prompt_ids: Tensor  # [B, P] int64, left-padded
    prompt_mask: Tensor  # [B, P] bool: False on the padding
    tokens: Tensor  # [B, S] int64: the answers
    mask: Tensor
    """[B, S] bool: the tokens that count, which are those up to and with the first end token. Of
    templates, only what was written, up to and with the first end token of each hole."""
    commit_step: Tensor  # [B, S] int64: the step that wrote each token; -1 if no step did
    base_logprobs: Tensor  # [B, S] float32; 0 where no step wrote a token
    pushed_logprobs: Tensor  # [B, S] float32; 0 where no step wrote a token
    drawn_logprobs: Tensor  # [B, S] float32; NaN for tokens that were not drawn
    seeds: Tensor  # [G] int64: with its seed and index, a sample can be drawn again
    nfe: Tensor  # [B] int64: network evaluations
    rewards: Tensor | None = None  # [G, n] float32
    canvases: Tensor | None = None
    """[steps, B, S] int64: the answers as the network saw them at each step, if asked for. A sample
    that ended earlier repeats its tokens."""

    @property
    def step_map(self) -> Tensor:
        """[B, S]: the step of each token counted from 1, 0 for tokens that no step wrote."""
        return self.commit_step + 1

    @property
    def groups(self) -> Tensor:
        """[B]: the index of each row's prompt."""
        prompts = torch.arange(len(self.seeds), device=self.seeds.device)
        return prompts.repeat_interleave(self.n)

    @property
    def drawn(self) -> Tensor:
        """[B, S] bool: the tokens that count and whose draw has a probability."""
        return self.mask & ~self.drawn_logprobs.isnan()

    def log_ratio(self, against: Against = "pushed") -> Tensor:
        """Return how much likelier the network alone makes each token, [B, S], as a logarithm.

        It is 0 for tokens that do not count or were not drawn. At temperature 0 there is no such
        ratio: the numbers say what the push did, but weigh nothing.

        Args:
            against: "pushed" compares before and after the push, both at temperature 1: the part of
                the mismatch that the push alone is to blame for. "drawn" compares with the draw
                itself, so that temperature and filters count, too: exact for a trainer whose
                policy is the network at temperature 1. They are equal at temperature 1 without
                filters.
        """
        one_of("against", against, AGAINST)
        other = self.pushed_logprobs if against == "pushed" else self.drawn_logprobs
        return torch.where(self.drawn, self.base_logprobs - other, 0.0)

    def token_weights(self, clip: float | None = None, against: Against = "pushed") -> Tensor:
        """Return the importance weight of each token, [B, S]: `log_ratio` as a factor.

        An expectation over pushed tokens, weighted by it, is one over the network's own. It is 1
        for tokens without a draw, and 0 for those that do not count.

        Args:
            clip: The largest weight (truncated importance sampling), which bounds the variance.
            against: As in `log_ratio`.
        """
        return _clipped(self.log_ratio(against), clip) * self.mask

    def sample_weights(self, clip: float | None = None, against: Against = "pushed") -> Tensor:
        """Return the importance weight of each sample, [B]: the product of its tokens' weights.

        It is unbiased where that of single tokens is not, since later tokens are drawn given pushed
        ones, but it grows and shrinks exponentially with the length.

        Args:
            clip: The largest weight.
            against: As in `log_ratio`.
        """
        return _clipped(self.log_ratio(against).sum(dim=1), clip)

    def to(self, device: str | torch.device) -> "Rollouts":
        """Return the rollouts on another device."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: x.to(device) for k, x in held.items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def _clipped(logs: Tensor, clip: float | None) -> Tensor:
    weights = logs.exp()
    if clip is None:
        return weights
    if not finite("clip", clip):
        raise ValueError("clip must be a number above 0, not 0")
    return weights.clamp(max=clip)

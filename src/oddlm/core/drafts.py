"""Drafts: a block is revised as a whole at every step, and written when it is finished.

DiffusionGemma is sampled like this. Each step proposes a token at every position of the open block,
and the policy accepts some of the proposals. Those are what the network sees there at the next
step; all other positions get new noise. A finished block is written at once, with the likeliest
token at every position.

All samples open a block with the same step. One that finishes early waits for the others, and costs
nothing meanwhile. So the steps of a sample, their temperature and their noise depend on no other.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .choose import Outlook, probability, row_tiles, sampled_distribution
from .model import Drafting, ModelInfo
from .settings import Settings
from .step import Decision, Draft, Prediction, Step


@dataclass(frozen=True, slots=True)
class Reviser:
    """The revision of drafts in one run."""

    rule: Drafting
    block_length: int
    temperature: float
    top_k: int | None
    top_p: float | None

    @classmethod
    def of(cls, info: ModelInfo, settings: Settings) -> "Reviser | None":
        """Return the reviser of a run, or None if the model does not draft."""
        if info.drafting is None:
            return None
        if info.process != "uniform" or info.block_length is None or info.align != "answer":
            raise ValueError(
                f"{info.name} has drafting: it needs process='uniform', align='answer' and a "
                "block_length"
            )
        return cls(
            info.drafting,
            info.block_length,
            settings.temperature,
            settings.top_k,
            settings.top_p,
        )

    def heat(self, step: Step) -> float:
        """Return the temperature of a step, which falls linearly over the steps of a block."""
        done, planned = step.clock
        return self.temperature * (1 - (1 - self.rule.cooling) * done / planned)

    def quota(self, step: Step) -> Tensor | int:
        """Return how many positions a step accepts: more at each, and all of them at the last.

        A parallel policy decides this alone.
        """
        if step.parallel:
            return 0
        done, planned = step.clock
        quota: Tensor = (step.open.sum(dim=1) * (done + 1) + planned - 1) // planned
        return quota

    @torch.no_grad()
    def revise(
        self, prediction: Prediction, accepted: Tensor, outlook: Outlook, *, pushing: bool
    ) -> tuple[Prediction, Decision]:
        """Hold the accepted tokens [B, L], or write the block where it is finished.

        While a guide acts, only the last step finishes a block: what a push moves is not settled.
        """
        step, rule = outlook.step, self.rule
        assert step.draft is not None
        likeliest, entropy, echo = self._survey(outlook)
        same = ((likeliest == step.draft.likeliest) | ~step.open).all(dim=1)
        stable = torch.where(same, step.draft.stable + 1, 0)
        mean = entropy.sum(dim=1) / step.open.sum(dim=1).clamp(min=1)
        finished = (stable >= rule.stable) & (mean < rule.certain)
        done, planned = step.clock
        if done + 1 == planned or pushing:
            finished = torch.full_like(finished, done + 1 == planned)
        commit = step.open & finished[:, None]
        prediction = replace(
            prediction,
            tokens=torch.where(commit, likeliest, prediction.tokens),
            confidence=torch.where(
                commit,
                probability(outlook.pushed_logits, likeliest, commit),
                prediction.confidence,
            ),
            logprobs=None,
        )
        draft = Draft(accepted & ~commit, likeliest, stable, echo)
        return prediction, Decision(commit, draft=draft)

    def _survey(self, outlook: Outlook) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return likeliest tokens and entropies [B, L] of what was drawn from, and its echo."""
        step, logits, heat = outlook.step, outlook.pushed_logits, self.heat(outlook.step)
        (B, L, V), C = logits.shape, self.block_length
        flat, likeliest = logits.reshape(-1, V), step.tokens.flatten().clone()
        entropy = torch.zeros(B * L, dtype=torch.float64, device=logits.device)
        echo = None
        if self.rule.echo is not None:
            echo = torch.zeros(B * C, V, dtype=self.rule.echo, device=logits.device)
        for rows in row_tiles(step.open.flatten().nonzero().squeeze(1), V):
            x, shares = sampled_distribution(flat[rows], heat, self.top_k, self.top_p)
            likeliest[rows] = x.argmax(dim=-1)
            entropy[rows] = torch.special.entr(shares).sum(dim=-1).double()
            if echo is not None:
                echo[rows // L * C + rows % C] = x.to(echo.dtype)
        shaped = likeliest.view(B, L), entropy.view(B, L)
        return *shaped, None if echo is None else echo.view(B, C, V)

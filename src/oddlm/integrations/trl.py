"""Diverse rollouts inside TRL's `GRPOTrainer`, for masked diffusion networks of transformers.

    trainer = DiffusionGRPOTrainer(
        model=network, rollout_func=DiverseRollouts(alpha=4.0), reward_funcs=..., args=...
    )

TRL (1.16) draws through `rollout_func`, but computes the log-probabilities in its loss as those of
a causal model: `DiffusionGRPOTrainer` replaces them by an estimate for masked diffusion.
"""

import inspect
from typing import Any, Unpack

import torch
from torch import Tensor

from ..checks import whole
from ..config import checked
from ..core import noise
from ..core.step import id_tensor
from ..lm import LM, wrap
from ..params import SampleParams, SampleSettings
from .groups import Row, counted, draw_groups, fresh_seeds, stacked

try:
    from trl import GRPOTrainer
except ImportError as error:
    raise ImportError("oddlm.integrations.trl needs TRL: pip install 'oddlm[trl]'") from error

CLIP = 2.0


class DiverseRollouts:
    """A `rollout_func`: draws the completions of a batch on the network that is being trained.

    The samples of a prompt form a group if they are neighbours in the batch of one process, as TRL
    lays them. `max_completion_length`, `temperature`, `top_k` and `top_p` of the trainer's
    arguments hold unless settings of the same meaning are given here.

    Args:
        params: Base settings; keyword arguments override them.
        mask_id: Id of the mask token; by default the tokenizer's.
        shift: The output at position j - 1 predicts position j.
        clip: The largest importance weight of a token (`Rollouts.token_weights`).
        max_batch: Samples per network call.
        **settings: Fields of `SampleParams`. Every call draws new seeds from `seed`; by default it
            is that of the trainer's arguments.
    """

    def __init__(
        self,
        *,
        params: SampleParams | None = None,
        mask_id: int | None = None,
        shift: bool = False,
        clip: float | None = CLIP,
        max_batch: int | None = None,
        **settings: Unpack[SampleSettings],
    ) -> None:
        self.params, self.settings = params, settings
        self.mask_id, self.shift, self.clip, self.max_batch = mask_id, shift, clip, max_batch
        self._calls = 0
        self._held: tuple[Any, LM] | None = None

    def lm(self, trainer: Any) -> LM:
        """Return the LM around the network of a trainer, which shares its weights."""
        network = trainer.accelerator.unwrap_model(trainer.model)
        if self._held is None or self._held[0] is not network:
            lm = wrap(
                network, trainer.processing_class, mask_id=self.mask_id, shift=self.shift, raw=True
            )
            if lm.info.mask_id is None:
                raise ValueError(f"{lm.info.name} has no mask token to hide answers with")
            self._held = network, lm
        return self._held[1]

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return one completion per prompt, as TRL's `rollout_func` does.

        `logprobs` are those of the draws (of the network where there was no draw); `step_maps`, the
        1-based steps of the tokens, and `importance_weights` go to the reward functions, too.
        """
        ids = prompt_ids(prompts, trainer)
        self._calls += 1
        call = (trainer.state.global_step, self._calls)
        seeds = fresh_seeds(self.settings.get("seed", trainer.args.seed), call, len(ids))
        rows = draw_groups(
            self.lm(trainer),
            ids,
            seeds,
            params=self._params(trainer),
            max_batch=self.max_batch,
        )
        return {
            "prompt_ids": ids,
            "completion_ids": [counted(row, "tokens") for row in rows],
            "logprobs": [_logprobs(row) for row in rows],
            "step_maps": [counted(row, "step_map") for row in rows],
            "importance_weights": [self._weights(row) for row in rows],
        }

    def _params(self, trainer: Any) -> SampleParams:
        args = trainer.args
        own: dict[str, Any] = {
            "length": args.max_completion_length,
            "temperature": args.temperature,
            "top_k": args.top_k or None,
            "top_p": args.top_p,
        }
        if self.params is not None:
            return self.params.with_settings(self.settings)
        return checked(SampleParams, {**own, **self.settings})

    def _weights(self, row: Row) -> list[float]:
        rolled, i = row
        weights: list[float] = rolled.token_weights(self.clip)[i][rolled.mask[i]].tolist()
        return weights


class MaskedLogProbs:
    """A mixin for `GRPOTrainer`: log-probabilities of a masked diffusion network in the loss.

    The log-probability of a token is that under a pass that hides it and a random share of the
    completion beside it. Passes come in pairs that hide complementary parts, so that each token is
    scored once per pair (coupled sampling: Gong et al. 2025, arXiv:2506.20639). What is hidden
    depends on the tokens of a completion and on the round of generation alone: policy, old policy
    and reference are compared under the same masks, in whatever batch.

    The advantages are multiplied by the importance weights of the rollouts, token by token.
    """

    mask_pairs = 1

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        diverse_rollouts(self)
        parts: tuple[Any, ...] = super()._generate(prompts)  # type: ignore[misc]
        (extra,) = (part for part in parts if isinstance(part, dict))
        self._importance_weights = extra["importance_weights"]
        return parts

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self.model.training:  # type: ignore[attr-defined]
            self._round = getattr(self, "_round", 0) + 1
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        advantages = batch["advantages"]
        width = batch["completion_ids"].shape[1]
        weights = stacked(self._importance_weights, width, 1.0).to(advantages)
        batch["advantages"] = advantages.reshape(len(advantages), -1) * weights
        return batch

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        if compute_aux_loss:
            raise ValueError(
                "the estimate for masked diffusion has no load-balancing loss: set "
                "router_aux_loss_coef to 0"
            )
        diverse = diverse_rollouts(self)
        info = diverse.lm(self).info
        if info.block_length is not None:
            raise ValueError(
                f"{info.name} is causal over blocks of {info.block_length}: the estimate for "
                "masked diffusion needs a network that attends in both directions"
            )
        assert info.mask_id is not None
        logps, entropies = [], []
        for ids, seen in zip(
            input_ids.split(batch_size or len(input_ids)),
            attention_mask.split(batch_size or len(input_ids)),
            strict=True,
        ):
            with self.accelerator.autocast():  # type: ignore[attr-defined]
                logp, entropy = masked_logprobs(
                    model,
                    ids,
                    seen,
                    logits_to_keep,
                    mask_id=info.mask_id,
                    shift=diverse.shift,
                    pairs=self.mask_pairs,
                    seed=getattr(self, "_round", 0),
                    entropy=compute_entropy,
                )
            logps.append(logp)
            entropies.append(entropy)
        found = [x for x in entropies if x is not None]
        return torch.cat(logps), torch.cat(found) if found else None, None


class DiffusionGRPOTrainer(MaskedLogProbs, GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer` for a masked diffusion network, with `rollout_func=DiverseRollouts()`."""


def diverse_rollouts(trainer: Any) -> DiverseRollouts:
    """Return the `rollout_func` of a trainer; ValueError if it is not ours."""
    if not isinstance(trainer.rollout_func, DiverseRollouts):
        raise ValueError(
            f"rollout_func is {trainer.rollout_func!r:.80}: pass "
            "rollout_func=oddlm.integrations.trl.DiverseRollouts(...)"
        )
    return trainer.rollout_func


def masked_logprobs(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    size: int,
    *,
    mask_id: int,
    shift: bool = False,
    pairs: int = 1,
    seed: int = 0,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities [B, size] of the last `size` tokens, each hidden from its pass.

    Args:
        model: The network, called as transformers calls it.
        input_ids: [B, T], left-padded prompts and right-padded completions.
        attention_mask: [B, T]: 0 on the padding, whose tokens are not hidden and get 0.
        size: The tokens of the completions.
        mask_id: Id of the mask token.
        shift: The output at position j - 1 predicts position j.
        pairs: How often each token is scored; the mean of the log-probabilities is returned.
        seed: With the tokens of a row it determines what is hidden.
        entropy: Return the entropies, too.
    """
    tokens, counts = input_ids[:, -size:], attention_mask[:, -size:].bool()
    logps = torch.zeros(tokens.shape, device=tokens.device)
    entropies = torch.zeros_like(logps)
    never = id_tensor((mask_id,), tokens.device)
    for pair in range(whole("pairs", pairs)):
        some = hidden_part(tokens, counts, seed, pair)
        for hidden in (some, counts & ~some):
            logits = _outputs(model, input_ids, attention_mask, hidden, mask_id, shift)[hidden]
            x = logits.float().index_fill(-1, never, -torch.inf).log_softmax(dim=-1)  # [hidden, V]
            chosen = x.gather(-1, tokens[hidden][:, None])[:, 0]
            logps = logps + torch.zeros_like(logps).masked_scatter(hidden, chosen)
            if entropy:
                spread = torch.special.entr(x.detach().exp()).sum(dim=-1)
                entropies.masked_scatter_(hidden, spread + entropies[hidden])
    return logps / pairs, entropies / pairs if entropy else None


def hidden_part(tokens: Tensor, counts: Tensor, seed: int, pair: int) -> Tensor:
    """Return which tokens [B, L] the first pass of a pair hides: a random share of each row.

    It depends on those tokens of a row that count, not on the padding or on other rows.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    row = (noise.key(tokens, places, seed, noise.Purpose.HIDE) * counts).sum(dim=1)  # wraps around
    share = noise.uniform(noise.key(row, pair, 0, noise.Purpose.HIDE), 1)
    drawn = noise.uniform(noise.key(row, pair, 1, noise.Purpose.HIDE), tokens.shape[1])
    return (drawn < share) & counts


def prompt_ids(prompts: list[Any], trainer: Any) -> list[list[int]]:
    """Return the token ids of texts or conversations, as the trainer itself encodes them."""
    if isinstance(prompts[0], str):
        return list(trainer.processing_class(text=prompts)["input_ids"])
    encoded = trainer.processing_class.apply_chat_template(
        conversation=prompts,
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )
    return list(encoded["input_ids"])


def _logprobs(row: Row) -> list[float]:
    rolled, i = row
    drawn = rolled.drawn_logprobs[i]
    values = torch.where(drawn.isnan(), rolled.base_logprobs[i], drawn)
    found: list[float] = values[rolled.mask[i]].tolist()
    return found


def _outputs(
    model: Any, input_ids: Tensor, attention_mask: Tensor, hidden: Tensor, mask_id: int, shift: bool
) -> Tensor:
    """Return the logits [B, size, V] with which a network would write the hidden tokens."""
    size = hidden.shape[1]
    canvas = torch.cat(
        [input_ids[:, :-size], input_ids[:, -size:].masked_fill(hidden, mask_id)], dim=1
    )
    inner = getattr(model, "module", model)  # of a parallel wrapper
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    takes = inspect.signature(inner.forward).parameters
    options: dict[str, Any] = {}
    if "position_ids" in takes:  # counted from the first real token
        options["position_ids"] = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    logits: Tensor = model(input_ids=canvas, attention_mask=attention_mask, **options).logits
    return logits[:, -size - 1 : -1] if shift else logits[:, -size:]

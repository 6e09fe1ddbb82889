"""Diverse samples from SGLang's diffusion models, LLaDA2 and SDAR. Experimental.

    ODDLM_SGLANG=1 sglang serve --dllm-algorithm Odd --max-running-requests 16 ...

Written against the published code of SGLang 0.5.23; it has not run on a GPU.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import noise
from ..core.step import ABSENT
from ..diversity.repulsion import Repulsion
from ..models.families.published import LLADA2_MASK_ID, SDAR_MASK_ID
from ..presets import ALPHA_END, FORK
from .canvases import NEVER, Canvases

try:
    from sglang.srt.dllm.algorithm import algo_name_to_cls
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
except ImportError as error:
    raise ImportError("oddlm.integrations.sglang needs sglang 0.5.23 or newer") from error

NAME, ASKED = "Odd", "oddlm_asked"  # of the algorithm, and of what is noted on a batch
HOOKED = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"
END_IDS = {LLADA2_MASK_ID: (156892,), SDAR_MASK_ID: (151643, 151645)}  # by mask id


def register() -> None:
    """Make `--dllm-algorithm Odd` known to SGLang."""
    algo_name_to_cls[NAME] = Odd
    HookRegistry.register(HOOKED, note_requests, HookType.AFTER)


@dataclass(frozen=True)
class Asked:  # by a request
    prompt: bytes  # a digest
    length: int  # of the prompt
    seed: int | None
    temperature: float  # 0 takes the most likely token


def note_requests(forward_batch: Any, _: Any, batch: Any, *__: Any, **___: Any) -> None:
    """Note on a batch what its requests ask for: it holds nothing else that shows siblings.

    The n samples of a prompt are requests with unrelated ids.
    """
    if getattr(batch.dllm_config, "algorithm", None) == NAME:
        setattr(forward_batch, ASKED, [_asked(request) for request in batch.reqs])


def _asked(request: Any) -> Asked:
    ids, sampling = request.origin_input_ids, request.sampling_params
    digest = hashlib.sha256(torch.tensor(list(ids)).numpy().tobytes()).digest()
    temperature = 0.0 if sampling.top_k == 1 else sampling.temperature  # SGLang spells 0 this way
    return Asked(digest, len(ids), sampling.sampling_seed, temperature)


@dataclass
class Block:  # that a batch is writing
    asked: Sequence[Asked]
    positions: Tensor  # [B, S]
    groups: list[tuple[list[int], Canvases]]  # rows of siblings
    step: int = field(default=0, init=False)


class Odd(DllmAlgorithm):  # type: ignore[misc]
    """Pushes the samples of a prompt apart; commits what is confident, as `LowConfidence` does.

    A push makes tokens look certain, so a step that pushes commits the best token of a sample only.
    The keys of --dllm-algorithm-config are settings of `Repulsion`, and `threshold`, `steps` (of a
    block, as the schedule of alpha counts them), `fork`, `seed` and `end_ids`.
    """

    supported_architectures = ("LLaDA2MoeModelLM", "SDARForCausalLM", "SDARMoeForCausalLM")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if self.fdfo:
            raise ValueError("Odd needs the samples of a prompt in one batch: omit --dllm-fdfo")
        given = {k: v for k, v in config.algorithm_config.items() if k != "block_size"}
        self.threshold, self.seed = given.pop("threshold", 0.95), given.pop("seed", 0)
        self.steps, self.fork = given.pop("steps", self.block_size), given.pop("fork", FORK)
        ends = tuple(given.pop("end_ids", END_IDS.get(self.mask_id, ())))
        self.guide = Repulsion(**{"alpha_end": ALPHA_END, "protected": ends, **given})

    def init_step_state(self, forward_batch: Any) -> list[Block]:
        """Find the siblings of a batch, and begin a block."""
        asked: list[Asked] = getattr(forward_batch, ASKED)
        positions = forward_batch.positions.view(len(asked), self.block_size)
        siblings: dict[tuple[bytes, int | None, int], list[int]] = {}
        for row, (one, start) in enumerate(zip(asked, positions[:, 0].tolist(), strict=True)):
            first = one.length // self.block_size * self.block_size  # of the answer's blocks
            canvas = max(0, start - first) // self.block_size
            siblings.setdefault((one.prompt, one.seed, canvas), []).append(row)
        groups = []
        for (prompt, seed, canvas), rows in siblings.items():
            if seed is None:
                seed = (self.seed + int.from_bytes(prompt[:8], "big")) % 2**63
            pushing = Canvases(self.guide, len(rows), self.steps, seed, self.fork)
            pushing.canvas = canvas - 1
            pushing.turn()
            groups.append((rows, pushing))
        return [Block(asked, positions, groups)] * len(asked)

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Block]) -> list[bool]:
        """Commit tokens of every block; return which blocks were finished before."""
        block, S = states[0], self.block_size
        ids = forward_batch.input_ids.view(-1, S)
        logits = full_logits.view(*ids.shape, -1).clone()
        logits[..., self.mask_id] = -torch.inf  # never written
        lengths = torch.tensor([one.length for one in block.asked], device=ids.device)
        answer = block.positions >= lengths[:, None]  # [B, S]
        masked = answer & (ids == self.mask_id)
        tokens = ids.masked_fill(~answer, ABSENT)
        threshold = torch.full((len(ids), 1), float(self.threshold), device=ids.device)
        for rows, pushing in block.groups:
            before = logits[rows]
            if block.step < self.steps:
                pushed = pushing.push(before, tokens[rows], masked[rows], block.step)
                if pushed is not before:
                    logits[rows], threshold[rows] = pushed, NEVER
        chosen = self._choose(block, logits)
        confidence = logits.float().softmax(dim=-1).gather(-1, chosen[..., None])[..., 0]
        confidence = confidence.masked_fill(~masked, -1.0)
        best = torch.zeros_like(masked).scatter(1, confidence.argmax(dim=1, keepdim=True), True)
        commit = masked & (best | (confidence > threshold))
        forward_batch.input_ids.copy_(torch.where(commit, chosen, ids).view(-1))
        block.step += 1
        return [not row for row in masked.any(dim=1).tolist()]

    def _choose(self, block: Block, logits: Tensor) -> Tensor:
        """Return the token of each position [B, S], drawn at the temperature of its request."""
        chosen = logits.argmax(dim=-1)
        for rows, pushing in block.groups:
            seed = noise.seed_tensor(pushing.seed, 1, logits.device)
            for index, row in enumerate(rows):
                if (temperature := block.asked[row].temperature) > 0:
                    place = block.positions[row]
                    keys = noise.key(seed, index, block.step, noise.Purpose.TOKEN, place)
                    drawn = logits[row].float() / temperature
                    chosen[row] = (drawn + noise.gumbel(keys, drawn.shape[1])).argmax(dim=-1)
        return chosen

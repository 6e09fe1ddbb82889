"""Rollouts as the responses that DARE reads its trajectories from.

DARE (github.com/yjyddq/DARE, commit 83ae8a3 of 30 July 2026) replays the steps of block-causal
models in its CJ-GRPO. It reads, from each response of its rollout engine, the text up to its end,
the tokens of all finished blocks, and the step of each of these tokens: counted from 1, and in each
block anew. Its checks (`post_process_dllm_replay_metadata`) define this form.
"""

from typing import Any

import torch
from torch import Tensor

from ..checks import whole
from ..rolling import Rollouts

CONTRACT = 1  # the version of the form, dllm_replay_contract_version


def dare_responses(rolled: Rollouts, block_length: int) -> list[dict[str, Any]]:
    """Return a response for every sample, in the order of the rollouts.

    A block that the length cut short is left out, as it would be by DARE's own budget: no token
    before it depends on it.

    Args:
        rolled: Rollouts of a block-causal model, or in such blocks, without remasking or editing.
        block_length: The blocks, counted from the first token of the prompt.

    Raises:
        ValueError: A sample has no whole block, or a block with a token that no step wrote.
    """
    size = whole("block_length", block_length)
    lengths = rolled.prompt_mask.sum(dim=1).tolist()
    return [_response(rolled, i, length, size) for i, length in enumerate(lengths)]


def _response(rolled: Rollouts, row: int, prompt: int, size: int) -> dict[str, Any]:
    stop = int(rolled.mask[row].sum())
    full = len(rolled.tokens[row])
    whole_blocks = full - (prompt + full) % size
    replay = min(whole_blocks, stop + -(prompt + stop) % size)
    stop = min(stop, replay)
    if replay <= 0:
        raise ValueError(
            f"sample {row} has {full} tokens after a prompt of {prompt}: no block of {size} ends "
            "there; raise length"
        )
    steps = rolled.commit_step[row, :replay]
    if (steps < 0).any():
        raise ValueError(
            f"sample {row} holds tokens that no step wrote: give no template, and block_length="
            f"{size}"
        )
    tokens = rolled.tokens[row, :replay].tolist()
    local = _within_blocks(steps, prompt, size).tolist()
    return {
        "token_ids": tokens[:stop],
        "meta_info": {
            "step_maps": local[:stop],
            "dllm_replay_token_ids": tokens,
            "dllm_replay_step_maps": local,
            "dllm_stop_length": stop,
            "dllm_replay_contract_version": CONTRACT,
        },
    }


def _within_blocks(steps: Tensor, prompt: int, size: int) -> Tensor:
    """Count the steps [S] of each block from 1, without those that wrote nothing in it."""
    blocks = (torch.arange(len(steps), device=steps.device) + prompt) // size
    local = torch.zeros_like(steps)
    for block in blocks.unique():
        here = blocks == block
        local[here] = steps[here].unique(return_inverse=True)[1] + 1
    return local

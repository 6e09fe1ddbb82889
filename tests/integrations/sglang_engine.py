"""The part of SGLang that a diffusion algorithm meets, in our own words, after release 0.5.23.

`modules()` stands in for the package: the table of algorithms, their base class and its synchronous
loop over one block, and the registry of hooks. `Engine` stands in for the scheduler: it writes the
answers of requests block by block, with blocks counted from the first token of the prompt.
"""

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import ClassVar
from uuid import uuid4

import torch
from torch import Tensor

VERSION = "0.5.23"


class DllmAlgorithm:
    """Base of all algorithms: a subclass has `step`, and may have `init_step_state`."""

    supported_architectures: tuple[str, ...] = ()

    def __init__(self, config):
        self.block_size, self.mask_id = config.block_size, config.mask_id
        self.fdfo = config.first_done_first_out_mode

    def init_step_state(self, forward_batch):
        return [None] * forward_batch.batch_size

    def run(self, model_runner, forward_batch, algo_states=None):
        """Return what a block became: its new tokens by request; [] for a block of the prompt."""
        blocks = forward_batch.input_ids.view(-1, self.block_size)
        starts = (blocks != self.mask_id).sum(dim=1).tolist()
        states = self.init_step_state(forward_batch)
        out = model_runner.forward(forward_batch, pp_proxy_tensors=None)
        if all(start == self.block_size for start in starts):
            return out.logits_output, [], None, None, False
        for _ in range(self.block_size + 1):
            if all(self.step(forward_batch, out.logits_output.full_logits, states)):
                break
            out = model_runner.forward(forward_batch, pp_proxy_tensors=None)
        new = [row[start:] for row, start in zip(blocks, starts, strict=True)]
        return out.logits_output, new, None, None, False


class LowConfidence(DllmAlgorithm):
    """SGLang's own: the most likely tokens, whatever the temperature."""

    def __init__(self, config):
        super().__init__(config)
        self.threshold = config.algorithm_config.get("threshold", 0.95)

    def step(self, forward_batch, full_logits, states):
        ids = forward_batch.input_ids.view(-1, self.block_size)
        masked = ids == self.mask_id
        confidence, chosen = full_logits.view(*ids.shape, -1).softmax(dim=-1).max(dim=-1)
        confidence = confidence.masked_fill(~masked, -1.0)
        above = confidence > self.threshold
        best = torch.zeros_like(masked).scatter(1, confidence.argmax(dim=1, keepdim=True), True)
        commit = masked & torch.where(above.any(dim=1, keepdim=True), above, best)
        forward_batch.input_ids.copy_(torch.where(commit, chosen, ids).view(-1))
        return (~masked.any(dim=1)).tolist()


class HookType(Enum):
    AFTER = "after"


class HookRegistry:
    hooks: ClassVar[dict[str, Callable]] = {}

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER):
        cls.hooks[target] = hook


def modules() -> dict[str, ModuleType]:
    """Return stand-ins for the modules of SGLang, by name."""
    names = ("sglang", "srt", "dllm", "algorithm", "base"), ("plugins", "hook_registry")
    paths = [".".join(names[0][:i]) for i in range(1, 6)]
    paths += [f"sglang.srt.{'.'.join(names[1][:i])}" for i in (1, 2)]
    found = {path: ModuleType(path) for path in paths}
    found["sglang.srt.dllm.algorithm"].algo_name_to_cls = {"LowConfidence": LowConfidence}
    found["sglang.srt.dllm.algorithm.base"].DllmAlgorithm = DllmAlgorithm
    registry = found["sglang.srt.plugins.hook_registry"]
    registry.HookRegistry, registry.HookType = HookRegistry, HookType
    return found


def install() -> None:
    sys.modules.update(modules())


def config(block_size: int, mask_id: int, **algorithm_config):
    return SimpleNamespace(
        algorithm="Odd",
        block_size=block_size,
        mask_id=mask_id,
        algorithm_config=algorithm_config,
        first_done_first_out_mode=False,
    )


def request(prompt: Sequence[int], *, temperature=0.0, seed=None):
    """A request as SGLang has it: temperature 0 is temperature 1 with top_k 1."""
    greedy = temperature == 0
    sampling = SimpleNamespace(
        temperature=1.0 if greedy else temperature,
        top_k=1 if greedy else 1 << 30,
        sampling_seed=seed,
    )
    return SimpleNamespace(
        rid=uuid4().hex, origin_input_ids=list(prompt), output_ids=[], sampling_params=sampling
    )


class Engine:
    """Writes answers with a network(tokens [B, T]) -> logits [B, T, V].

    aligned: blocks are counted from the prompt's first token; False begins one behind each prompt,
    for a network that knows no blocks.
    """

    def __init__(self, network: Callable[[Tensor], Tensor], algorithm, settings, *, aligned=True):
        self.network, self.algorithm, self.settings = network, algorithm, settings
        self.aligned, self.forwards = aligned, 0

    def generate(self, requests, length: int) -> list[list[int]]:
        """Write at least `length` tokens for each request; their prompts have one length."""
        while len(requests[0].output_ids) < length:
            for one, new in zip(requests, self._block(requests), strict=True):
                one.output_ids.extend(new.tolist())
        return [one.output_ids for one in requests]

    def _block(self, requests) -> list[Tensor]:
        S = self.settings.block_size
        known = torch.tensor([one.origin_input_ids + one.output_ids for one in requests])
        start = known.shape[1] // S * S if self.aligned else known.shape[1]
        block = torch.full((len(requests), S), self.settings.mask_id)
        block[:, : known.shape[1] - start] = known[:, start:]
        batch = SimpleNamespace(
            batch_size=len(requests),
            input_ids=block.reshape(-1),
            positions=torch.arange(start, start + S, dtype=torch.int32).repeat(len(requests)),
            rids=[one.rid for one in requests],
            dllm_prompt_mask=None,
        )
        schedule = SimpleNamespace(reqs=requests, dllm_config=self.settings)
        for hook in HookRegistry.hooks.values():
            hook(batch, type(batch), schedule, self)

        def forward(forward_batch, pp_proxy_tensors):
            self.forwards += 1
            tokens = torch.cat([known[:, :start], forward_batch.input_ids.view(-1, S)], dim=1)
            logits = self.network(tokens)[:, start:].reshape(len(requests) * S, -1)
            output = SimpleNamespace(full_logits=logits)
            return SimpleNamespace(logits_output=output, can_run_graph=False)

        return self.algorithm.run(SimpleNamespace(forward=forward), batch)[1]

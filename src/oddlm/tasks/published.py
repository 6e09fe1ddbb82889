"""How published models are evaluated by their authors: settings of the sampler, for protocols.

The prompts stay ours. docs/guides/evaluate.md has the table, with the sources.
"""

from typing import Any

Protocol = dict[str, Any]


def llada(length: int, *, block: int | None = None, eos: str = "free") -> Protocol:
    """LLaDA-8B-Instruct (arXiv:2502.09992; EVAL.md of ML-GSAI/LLaDA)."""
    params = {"temperature": 0.0, "policy": "low_confidence", "eos": eos}
    blocks = {} if block is None else {"block_length": block}
    return {"length": length, "steps": length, "params": params | blocks}


def dream(length: int) -> Protocol:
    """Dream-v0-Instruct-7B (arXiv:2508.15487; eval_instruct/eval.sh of DreamLM/Dream)."""
    params = {"temperature": 0.1, "top_p": 0.9, "policy": "entropy"}
    return {"length": length, "steps": length, "params": params}


def fast_dllm(length: int) -> Protocol:
    """LLaDA-8B-Instruct in parallel (arXiv:2505.22618; llada/eval.md of NVlabs/Fast-dLLM)."""
    policy = {"name": "threshold", "threshold": 0.9}
    return {"length": length, "params": {"temperature": 0.0, "policy": policy, "block_length": 32}}


def d1(length: int) -> Protocol:
    """d1-LLaDA and what follows it (arXiv:2504.12216; eval/eval.py of dllm-reasoning/d1)."""
    params = {"temperature": 0.0, "policy": "low_confidence", "block_length": 32}
    return {"length": length, "steps": length // 2, "params": params}

"""Rollouts: groups of samples as tensors, for trainers that learn from them.

rolled = oddlm.rollouts(lm, prompts, n=8, length=64, temperature=1.0, reward=score)
advantages = rolled.rewards - rolled.rewards.mean(dim=1, keepdim=True)  # [prompts, n]
"""

from .draw import as_lm, rollouts
from .rewards import Reward
from .rollouts import Against, Rollouts
from .weights import sync

__all__ = ["Against", "Reward", "Rollouts", "as_lm", "rollouts", "sync"]

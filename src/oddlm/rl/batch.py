"""What an update learns from: rollouts with their advantages and weights."""

from dataclasses import dataclass, fields, replace

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B samples of S tokens, after prompts of P positions."""

    prompts: Tensor  # [B, P] int64, left-padded
    lengths: Tensor  # [B]: real tokens of each prompt
    tokens: Tensor  # [B, S] int64
    counted: Tensor  # [B, S] bool: the tokens to learn from
    commit_step: Tensor  # [B, S]: the step that wrote each token, -1 if none did
    canvases: Tensor  # [B, steps, S]: the answers as the network saw them at each step
    advantages: Tensor  # [B]
    weights: Tensor  # [B, S] importance weights; 0 for tokens that do not count
    mask_id: int

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, some: slice) -> "Batch":
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "mask_id"}
        return replace(self, **{name: x[some] for name, x in tensors.items()})

"""The description of a published architecture: how its config and tensors map to ours.

Each file in `families` defines one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...checks import whole
from ..moe import ExpertConfig
from ..transformer import TransformerConfig

MOST_LAYERS = 1000
MOST_EXPERTS = 4096
MOST_BLOCK_LENGTH = 4096
# elements of one matrix: larger ones do not exist, and torch cannot handle sizes beyond 64 bits
MOST_WEIGHTS = 1 << 42


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read the checkpoints of one architecture.

    `outer` and `block` map each of our parameters to the checkpoint tensors stacked in it. In the
    name of a tensor that exists once per expert, {} stands for the number of the expert.
    """

    name: str
    model_types: tuple[str, ...]  # values of model_type in config.json
    config: Callable[["Keys"], TransformerConfig]
    context: str  # the config key of the maximum sequence length; a dot leads into a table
    outer: Mapping[str, tuple[str, ...]]
    # without `blocks.{i}.` in our names, and without the prefix in the checkpoint's
    block: Mapping[str, tuple[str, ...]]
    prefix: Callable[["Keys", int], str]  # of the tensors of block i
    confidence: str = "full"  # as in the authors' sampler (`oddlm.denoise_steps`)
    mask_id: int | None = None  # for checkpoints that do not name their mask token
    # other tensors of `block` that some checkpoints have instead
    alternatives: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def sources(self, keys: "Keys", parameter: str) -> tuple[str, ...]:
        """Return the names of the checkpoint tensors that make up one of our parameters."""
        return self.layouts(keys, parameter)[0]

    def layouts(self, keys: "Keys", parameter: str) -> list[tuple[str, ...]]:
        """Return `sources`, and the tensors that may be there instead."""
        if not parameter.startswith("blocks."):
            return [self.outer[parameter]]
        _, number, name = parameter.split(".", 2)
        prefix = self.prefix(keys, int(number))
        ways = (self.block[name], *self.alternatives.get(name, ()))
        return [tuple(prefix + source for source in way) for way in ways]


@dataclass(frozen=True)
class Keys:
    """Checked access to config.json; errors name the key that is missing or not supported."""

    where: str
    values: Mapping[str, Any]

    def whole(
        self, key: str, default: int | None = None, most: int | None = None, least: int = 1
    ) -> int:
        value = self.get(key, default)
        if value is None:
            raise ValueError(f"{self.where} has no {key}")
        number = whole(f"{self.where}: {key}", value, least)
        if most is not None and number > most:
            raise ValueError(f"{self.where}: {key} must be at most {most}, not {number}")
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value < float("inf")
        ):
            raise ValueError(f"{self.where}: {key} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {key} must be true or false, not {value!r}")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self.get(key, [])
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {key} must be a list, not {value!r}")
        return tuple(whole(f"{self.where}: {key}", item, 0) for item in value)

    def table(self, key: str) -> "Keys":
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: {key} must be a table, not {value!r}")
        return Keys(f"{self.where}: {key}", value)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def only(self, **allowed: Any) -> None:
        """Raise ValueError if a key has any value other than the given one or null.

        This is for keys that change the network and must not be ignored.
        """
        for key, value in allowed.items():
            if (found := self.get(key, value)) != value:
                raise ValueError(
                    f"{self.where}: {key} {found!r} is not supported, only {value!r} is"
                )


def checked_shape(keys: Keys, config: TransformerConfig) -> TransformerConfig:
    """Return the config; raise ValueError if its sizes contradict each other."""
    if config.head_size is None and config.width % config.heads:
        raise ValueError(
            f"{keys.where}: a width of {config.width} is not divisible by {config.heads} heads"
        )
    if config.heads % config.key_heads:
        raise ValueError(
            f"{keys.where}: {config.heads} query heads cannot be divided among "
            f"{config.key_heads} key heads"
        )
    if config.head % 2:
        raise ValueError(f"{keys.where}: the head size must be even for RoPE, not {config.head}")
    if config.rotary % 2 or not 0 < config.rotary <= config.head:
        raise ValueError(
            f"{keys.where}: RoPE cannot turn {config.rotary} of {config.head} features of a head"
        )
    rows = max(config.vocab_size, 2 * config.hidden, 3 * config.heads * config.head)
    if rows * config.width > MOST_WEIGHTS:
        raise ValueError(
            f"{keys.where} describes a matrix of {rows} x {config.width}, which is too large"
        )
    if config.experts is not None:
        _check_experts(keys, config.experts, config.width)
    return config


def _check_experts(keys: Keys, experts: ExpertConfig, width: int) -> None:
    if experts.count % experts.groups or experts.active_groups > experts.groups:
        raise ValueError(
            f"{keys.where}: {experts.active_groups} of {experts.groups} groups cannot be chosen "
            f"from {experts.count} experts"
        )
    size = experts.count // experts.groups
    if experts.groups > 1 and size < 2:
        raise ValueError(f"{keys.where}: groups of {size} expert are too small, they need two")
    if experts.active > experts.active_groups * size:
        raise ValueError(
            f"{keys.where}: {experts.active} experts per token cannot be chosen from "
            f"{experts.active_groups * size}"
        )
    rows = max(2 * experts.count * experts.hidden, 2 * experts.shared)
    if rows * width > MOST_WEIGHTS:
        raise ValueError(
            f"{keys.where} describes experts of {rows} x {width} in all, which is too large"
        )

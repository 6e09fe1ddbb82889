"""How a published checkpoint is read: its config.json as ours, its tensors as ours.

One file per architecture uses this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...checks import whole
from ..transformer import TransformerConfig

MOST_LAYERS = 1000
MOST_WEIGHTS = (
    1 << 42
)  # of one matrix: larger ones do not exist, and sizes beyond 64 bits cannot be computed with


@dataclass(frozen=True, slots=True)
class Architecture:
    """Tensors are named by templates: our parameter -> the checkpoint's tensors that are stacked in
    it.
    """

    name: str
    model_types: tuple[str, ...]  # as config.json says it
    config: Callable[["Keys"], TransformerConfig]
    context: str  # the key of the longest sequence
    outer: Mapping[str, tuple[str, ...]]
    block: Mapping[
        str, tuple[str, ...]
    ]  # behind `blocks.{i}.`, and behind the prefix in the checkpoint
    prefix: Callable[["Keys", int], str]  # of a block's tensors
    confidence: str = (
        "full"  # what its authors' sampler takes confidence from (`oddlm.denoise_steps`)
    )

    def sources(self, keys: "Keys", parameter: str) -> tuple[str, ...]:
        """The checkpoint's tensors that make one of our parameters."""
        if not parameter.startswith("blocks."):
            return self.outer[parameter]
        _, number, name = parameter.split(".", 2)
        prefix = self.prefix(keys, int(number))
        return tuple(prefix + source for source in self.block[name])


@dataclass(frozen=True)
class Keys:
    """config.json, read with care: what is missing or cannot be honoured is named."""

    where: str
    values: Mapping[str, Any]

    def whole(self, key: str, default: int | None = None, most: int | None = None) -> int:
        value = self.get(key, default)
        if value is None:
            raise ValueError(f"{self.where} has no {key}")
        number = whole(f"{self.where}: {key}", value)
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

    def table(self, key: str) -> "Keys":
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: {key} must be a table, not {value!r}")
        return Keys(f"{self.where}: {key}", value)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def only(self, **allowed: Any) -> None:
        """Keys that change the network: any value but the one given (or null) is refused, not
        ignored.
        """
        for key, value in allowed.items():
            if (found := self.get(key, value)) != value:
                raise ValueError(
                    f"{self.where}: {key} {found!r} is not supported, only {value!r} is"
                )


def checked_shape(keys: Keys, config: TransformerConfig) -> TransformerConfig:
    """The sizes fit each other."""
    if config.head_size is None and config.width % config.heads:
        raise ValueError(
            f"{keys.where}: {config.heads} heads do not divide a width of {config.width}"
        )
    if config.heads % config.key_heads:
        raise ValueError(
            f"{keys.where}: {config.key_heads} heads of keys do not divide {config.heads} of queries"
        )
    if config.head % 2:
        raise ValueError(
            f"{keys.where}: a head of {config.head} cannot be rotated, its size must be even"
        )
    rows = max(config.vocab_size, 2 * config.hidden, 3 * config.heads * config.head)
    if rows * config.width > MOST_WEIGHTS:
        raise ValueError(
            f"{keys.where} describes a matrix of {rows} x {config.width}, which no machine can hold"
        )
    return config

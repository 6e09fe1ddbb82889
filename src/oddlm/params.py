"""`SampleParams`, the settings of a sampling run on the command line, in files, HTTP and Python.

This module does not import torch.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .config import Seed, checked, no_flag
from .presets import (
    ALPHA,
    ALPHA_END,
    ALPHA_SCHEDULE,
    ARITHMETIC,
    FEATURE,
    FORK,
    GRADIENT,
    LENGTH,
    OBJECTIVE,
    POLICY,
    SELECTOR,
    TEMPERATURE,
    Arithmetic,
    Fork,
    PresetName,
    expanded,
)

Named = str | dict[str, Any]  # "odd", or {"name": "odd", "normalize": false}
NAMED = ("policy", "objective", "feature", "alpha_schedule", "selector")
# How samples are pushed; alpha is the strength.
PUSH = (
    "objective",
    "feature",
    "alpha_schedule",
    "alpha_end",
    "duplicates",
    "tolerance",
    "gradient",
    "arithmetic",
)


def check_arithmetic(
    arithmetic: Arithmetic, duplicates: str | None, tolerance: float | None
) -> None:
    """Raise ValueError if duplicates or tolerance is set although `published` fixes both."""
    if arithmetic == "published" and (duplicates, tolerance) != (None, None):
        raise ValueError(
            "arithmetic 'published' fixes duplicates and tolerance: leave them out, or use 'exact'"
        )


class SampleParams(BaseModel):
    """The settings that determine the samples of a prompt.

    `n` is deliberately not a field: sample i is identical for every n > i. Objectives, features,
    policies, alpha schedules and selectors are given by name, as `{"name": ..., option: ...}`, as a
    dotted path, or as a function that has one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    length: int = Field(LENGTH, ge=1, description="Tokens per sample.")
    steps: int | None = Field(
        None, ge=1, description="Network evaluations per sample; default: one per token."
    )
    block_length: int | None = Field(
        None, ge=1, description="Decode blocks of this many tokens from left to right."
    )
    temperature: float = Field(
        TEMPERATURE, ge=0, le=1000, description="Sampling temperature; 0 takes the argmax."
    )
    top_k: int | None = Field(None, ge=1, description="Sample from the k most likely tokens.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Sample from the most likely tokens that hold this mass."
    )
    policy: Named = Field(POLICY, description="Which positions to commit at each step.")
    confidence: Literal["full", "sampled"] | None = Field(
        None,
        description="What the policy reads: the full distribution, or the one after temperature "
        "and filters; default: the model's own rule.",
    )
    order_temperature: float = Field(
        0.0, ge=0, le=1000, description="Noise on the order in which positions are committed."
    )
    fork: Fork = Field(
        FORK,
        description="Start sample j from the j-th most likely single token; 'auto' does so if "
        "samples are pushed and every block has a step to spare.",
    )
    fork_temperature: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Draw the fork's tokens, all different, at this temperature.",
    )
    prompt_noise: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Noise on the prompt's embeddings that fades over the steps.",
    )
    stop_at_end: bool | None = Field(
        None,
        description="Stop computing a sample at its end token; default: when decoding in blocks.",
    )
    eos: Literal["free", "late", "never"] = Field(
        "free", description="When end tokens may be committed."
    )
    cfg_scale: float = Field(
        0.0, ge=0, description="Classifier-free guidance; doubles the network evaluations."
    )
    objective: Named = Field(
        dict(OBJECTIVE), description="What pushes samples apart; 'none' is plain sampling."
    )
    feature: Named = Field(FEATURE, description="What is compared between samples.")
    alpha: float = Field(ALPHA, ge=0, description="Strength of the push; 0 is plain sampling.")
    alpha_schedule: Named = Field(ALPHA_SCHEDULE, description="How alpha falls over the steps.")
    alpha_end: float = Field(
        ALPHA_END,
        gt=0,
        le=1,
        description="Share of the steps, from the first on, in which samples are pushed; the alpha "
        "schedule ends with it. An alpha that is set without it lasts for all steps.",
    )
    duplicates: Literal["break", "skip"] | None = Field(
        None,
        description="Push duplicates of earlier samples in a random direction, or leave them; "
        "default: break.",
    )
    tolerance: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Residual up to which a sample is a duplicate; default: 0.001.",
    )
    gradient: Literal["normalized", "raw"] = Field(
        GRADIENT, description="Whether alpha is a distance in logits or a plain step size."
    )
    pool: int | None = Field(
        None, ge=1, description="Draw this many samples and keep n of them; default: n."
    )
    selector: Named = Field(SELECTOR, description="Which samples of the pool to keep.")
    arithmetic: Arithmetic = Field(
        ARITHMETIC,
        description="How the push is computed: exact, or as in the paper's code (published), in "
        "the precision of the logits.",
    )
    preset: PresetName | None = Field(
        None,
        exclude=True,
        description="A name for several settings; settings given beside it win.",
    )
    seed: Seed = Field(0, description="The same seed gives the same samples.")

    _numbers = field_validator(
        "length", "steps", "block_length", "top_k", "pool", "seed", mode="before"
    )(no_flag)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        """Expand a preset on input; only the resulting settings are stored."""
        return expanded(given) if isinstance(given, Mapping) else given

    @field_validator(*NAMED, mode="before")
    @classmethod
    def _by_path(cls, given: Any) -> Any:
        """Replace a function by its dotted path, since settings are stored as text."""
        if not callable(given):
            return given
        module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "")
        found = getattr(sys.modules.get(str(module)), name, None) if name.isidentifier() else None
        if found is not given:
            raise ValueError(
                f"{given!r:.100} cannot be found by a dotted path, and settings are stored as "
                "text: define the function by name at the top level of a module or script"
            )
        return f"{module}.{name}"

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.block_length is not None and self.length % self.block_length:
            raise ValueError(
                f"block_length {self.block_length} does not divide length {self.length}"
            )
        check_arithmetic(self.arithmetic, self.duplicates, self.tolerance)
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # an objective with options is an unhashable dict

    @property
    def plain(self) -> bool:
        """Whether nothing is pushed apart."""
        return self.alpha == 0 or _bare(self.objective) == "none"

    @property
    def forks(self) -> bool:
        """Whether the samples fork, with `fork="auto"` resolved."""
        return self._forkable if self.fork == "auto" else self.fork

    @property
    def stops(self) -> bool:
        """Whether a sample stops at its end token, with the default of `stop_at_end` resolved."""
        if self.stop_at_end is None:
            return (self.block_length or self.length) < self.length
        return self.stop_at_end

    @property
    def _forkable(self) -> bool:
        """Whether samples are pushed and every block has a step to spare."""
        block = self.block_length or self.length
        steps_per_block = min(self.steps or self.length, self.length) * block // self.length
        return not self.plain and steps_per_block >= min(2, block)

    def drawn(self, n: int) -> int:
        """Return how many samples are drawn in order to keep n."""
        if self.pool is not None and self.pool < n:
            raise ValueError(
                f"pool must be at least n, since n of its samples are kept: {self.pool} < {n}"
            )
        return n if self.pool is None else self.pool

    @property
    def objective_name(self) -> str:
        """The objective without its options."""
        objective = self.objective
        return objective if isinstance(objective, str) else str(objective.get("name"))

    @property
    def method(self) -> str:
        """The name of the method in tables: `plain`, `odd (enough 0.5) + fork`."""
        words: dict[str, Any] = {"fork": True} if self.forks else {}
        if self.plain:
            return method_name("plain", words)
        if self.alpha_end < 1:
            words["alpha_end"] = self.alpha_end
        return method_name(self.objective, words)

    def with_settings(self, settings: Mapping[str, Any]) -> "SampleParams":
        """Return a copy with some settings replaced.

        Disabling repulsion, or leaving no step to spare, also disables the fork of pushed samples
        unless `settings` sets one. The fork of plain samples was set explicitly and is kept.
        """
        present = self.model_dump()
        if self.fork is True and self._forkable:
            present["fork"] = "auto"
        return checked(type(self), {**present, **expanded(settings)})

    def canonical(self) -> "SampleParams":
        """Return the canonical form: defaults filled in, unused settings reset.

        Parameters that describe the same sampling have the same canonical form.
        """
        changes: dict[str, Any] = {name: _bare(getattr(self, name)) for name in NAMED}
        changes |= {"steps": self.steps or self.length, "fork": self.forks, "stop_at_end": None}
        if not self.forks:
            changes["fork_temperature"] = 0.0
        if self.pool is None:
            changes["selector"] = type(self).model_fields["selector"].default
        if self.plain:
            changes |= {name: type(self).model_fields[name].default for name in PUSH} | {
                "objective": "none",
                "alpha": 0.0,
                "alpha_end": 1.0,
            }
        return self.model_copy(update=changes)


# A name, a name with options, or the function itself.
Piece = str | Mapping[str, Any] | Callable[..., Any]


class SampleSettings(TypedDict, total=False):
    """The fields of `SampleParams`, as keyword arguments."""

    length: int
    steps: int | None
    block_length: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    policy: Piece
    confidence: Literal["full", "sampled"] | None
    order_temperature: float
    fork: Fork
    fork_temperature: float
    prompt_noise: float
    stop_at_end: bool | None
    eos: Literal["free", "late", "never"]
    cfg_scale: float
    objective: Piece
    feature: Piece
    alpha: float
    alpha_schedule: Piece
    alpha_end: float
    duplicates: Literal["break", "skip"] | None
    tolerance: float | None
    gradient: Literal["normalized", "raw"]
    pool: int | None
    selector: Piece
    arithmetic: Arithmetic
    preset: PresetName | None
    seed: int


def method_name(objective: Named, settings: Mapping[str, Any]) -> str:
    """Describe an objective with its options and some settings in one line.

    For example `odd (enough 0.5) + fork + order_temperature=0.5`.
    """
    name, options = (
        (objective, {}) if isinstance(objective, str) else (objective.get("name"), objective)
    )
    described = ", ".join(
        f"{option} {short(value)}" for option, value in options.items() if option != "name"
    )
    words = [
        setting if value is True else f"{setting}={short(value)}"
        for setting, value in settings.items()
    ]
    return " + ".join([f"{name} ({described})" if described else str(name), *words])


def short(value: Any) -> str:
    """Format a value the way people write it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _bare(named: Named) -> Named:
    """Replace {"name": "odd"} by "odd"."""
    return named["name"] if isinstance(named, dict) and set(named) == {"name"} else named

"""`RunSpec`, which identifies a run: model, loading options, task, settings and seed.

This module does not import torch.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .checks import short_dtype
from .config import Seed, no_flag
from .params import SampleParams
from .versions import SAMPLER


class Loading(BaseModel):
    """The loading options of a model that may change its output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    revision: str | None = Field(None, description="Branch, tag or commit of a model on the hub.")
    dtype: Literal["bf16", "fp16", "fp32", "fp64"] | None = Field(
        None, description="Number format of the weights; default: bf16 on a GPU, fp32 on a CPU."
    )
    quantize: Literal["nf4", "int8"] | None = Field(None, description="Weights in 4 or 8 bits.")
    raw: bool = Field(False, description="Prompts without the chat template.")
    cache: Literal["prefix", "dual"] | None = Field(
        None, description="Keys and values kept between steps: an approximation."
    )
    block_size: int | None = Field(
        None,
        ge=1,
        description="Block length that a block-causal checkpoint was trained with, if its config "
        "does not say.",
    )

    _number = field_validator("block_size", mode="before")(no_flag)

    @field_validator("dtype", mode="before")
    @classmethod
    def _one_spelling(cls, dtype: Any) -> Any:
        return short_dtype(dtype)

    def options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, as arguments of `oddlm.load`."""
        return self.model_dump(exclude_defaults=True)


class RunSpec(BaseModel):
    """One sampler setting on a task, for any number of its problems.

    Runs with the same content have the same id, wherever and whenever they are made.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(
        description="A model's name or dotted path, a checkpoint's folder or its name on the hub."
    )
    model_digest: str | None = Field(
        None,
        description="Digest of the model's weights (`oddlm.models.model_digest`): other weights "
        "make another run.",
    )
    sampler_version: int = Field(
        SAMPLER, description="Version of the sampler: another one may write other tokens."
    )
    task: str | None = Field(
        None,
        description="A task's name, dotted path or .jsonl file; "
        "None draws samples without scoring.",
    )
    task_version: int | None = Field(
        None, description="Version of the task's problems and prompts."
    )
    scorer_version: str | None = Field(
        None, description="Version of verdicts and measures: another scorer makes another run."
    )
    protocol: str | None = Field(None, description="A named variant of the task.")
    scorer: str | None = Field(None, description="How the samples of a .jsonl task are scored.")
    exclude_train: bool = Field(False, description="Leave out problems of the training side.")
    split: str | None = Field(
        None,
        description="A part of the problems, such as 'tune'; None is what the task reports on.",
    )
    data: str | None = Field(
        None, description="The file that the problems come from, if not the task's own."
    )
    data_digest: str | None = Field(
        None,
        description="SHA-256 of the problems' data: changed data make another run.",
    )
    n: int = Field(16, ge=1, le=1 << 20, description="Samples per problem.")
    params: SampleParams = Field(
        default_factory=lambda: SampleParams.model_validate({}),
        validate_default=True,
        description="How samples are drawn.",
    )
    seed: Seed = Field(0, description="Every problem derives its own from this and its id.")
    loading: Loading = Field(
        default_factory=lambda: Loading.model_validate({}), description="How the model is loaded."
    )

    _numbers = field_validator("n", "seed", mode="before")(no_flag)

    @field_validator("params")
    @classmethod
    def _one_spelling(cls, params: SampleParams) -> SampleParams:
        """Store the settings in canonical form, whichever command made them."""
        if params.seed != 0:
            raise ValueError("the seed of a run is its own field: set seed, not params.seed")
        return params.canonical()

    @model_validator(mode="after")
    def _enough(self) -> Self:
        self.params.drawn(self.n)
        return self

    @property
    def drawn(self) -> int:
        """Samples drawn per problem, including those that are not kept."""
        return self.params.drawn(self.n)

    def canonical(self) -> dict[str, Any]:
        """Return the content that the id is computed from; files count by content, not by path."""
        content = {
            **self.model_dump(mode="json"),
            "params": self.params.canonical().model_dump(mode="json"),
        }
        # A digest of source code does not cover all of a model.
        if self.model_digest is not None and not self.model_digest.startswith("source:"):
            content["model"] = content["loading"]["revision"] = None
        del content["params"]["stop_at_end"]  # it does not change the text
        if content["params"]["alpha_end"] == 1:  # older runs, which lack it, keep their ids
            del content["params"]["alpha_end"]
        if self.loading.block_size is None:  # likewise
            del content["loading"]["block_size"]
        if self.data_digest is not None:
            content["data"] = None
            is_file = self.task and self.task.endswith(".jsonl")
            content["task"] = Path(self.task).name if self.task and is_file else self.task
        return content

    @property
    def draw_id(self) -> str:
        """Id of the samples: runs that differ only in their scorer share it."""
        content = self.canonical()
        del content["scorer_version"]
        return _digest(content)[:8]

    @property
    def id(self) -> str:
        """Id of the run: the id of its samples, then four characters that include the scorer."""
        return self.draw_id + _digest(self.canonical())[:4]

    def draws_like(self, other: "RunSpec") -> bool:
        """Whether the other run has the same samples as this one."""
        return self.canonical() == {**other.canonical(), "scorer_version": self.scorer_version}

    def problem_seed(self, problem: str) -> int:
        """Return the seed of one problem, which depends on the run's seed and its id alone."""
        return derived_seed(self.seed, problem)


def derived_seed(seed: int, name: str) -> int:
    """Return the seed of something with a name under a seed."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

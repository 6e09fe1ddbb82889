"""The messages of `/v1/denoise` and of recordings: `start`, one `step` per step, `end`.

Tokens are ids. The text of an id is in `pieces` of the first message that uses it; mask and end
tokens have no text.
"""

from typing import Literal, TypeAlias

from pydantic import BaseModel, Field

from ..params import SampleParams

FinishReason: TypeAlias = Literal["stop", "length"]


class Usage(BaseModel):
    prompt_tokens: int = Field(description="Tokens of all prompts, each counted once.")
    completion_tokens: int = Field(description="Tokens of all samples, up to the first end token.")
    total_tokens: int


class Vote(BaseModel):
    """An answer that was voted on."""

    text: str = Field(description="Of the sample that stands for it.")
    reading: str | None = Field(description="The answer as the task reads it.")
    votes: int = Field(description="Samples that give it.")
    weight: float = Field(description="From 0 to 1.")
    sample: int = Field(description="The index of the sample that stands for it.")


class Extra(BaseModel):
    """Information that OpenAI's format has no field for."""

    seed: int = Field(description="The seed that reproduces the answer.")
    nfe: int = Field(description="Network evaluations per sample.")
    diversity: list[dict[str, float]] = Field(
        description="How different the samples are, for each prompt."
    )
    filled: list[str] | None = Field(
        None,
        description="With a template or suffix: each sample including the fixed texts, not cut at "
        "stop texts.",
    )
    votes: list[list[Vote]] | None = Field(
        default=None, description="With `answer`: for each prompt the answers, the winner first."
    )


class Start(BaseModel):
    """The first message."""

    model: str
    prompt: str
    prompt_tokens: int
    n: int
    params: SampleParams = Field(description="All settings, including the seed.")
    mask_id: int = Field(
        description="The id in `tokens` of positions that are not written yet; -1 if the model has "
        "no mask token."
    )
    end_ids: list[int] = Field(description="A sample's text ends before the first of these.")


class Likely(BaseModel):
    token: int
    probability: float = Field(description="After repulsion.")
    base_probability: float = Field(description="Under the network.")


class Spot(BaseModel):
    """A position at which this step writes, or would have written without repulsion."""

    position: int
    by: Literal["both", "pushed", "plain"] = Field(
        description="Who writes here and now; only 'plain' leaves it masked."
    )
    token: int = Field(description="What diverse sampling takes here.")
    probability: float = Field(description="Of `token`, after repulsion.")
    base_probability: float = Field(description="Of `token`, under the network.")
    plain_token: int = Field(description="What plain sampling takes here, with the same noise.")
    plain_probability: float = Field(description="Of `plain_token`, after repulsion.")
    plain_base_probability: float = Field(description="Of `plain_token`, under the network.")
    top: list[Likely] = Field(description="The five most probable tokens after repulsion.")


class SampleStep(BaseModel):
    tokens: list[int] = Field(
        description="The sample after this step, with tokens that a model without masks has only "
        "accepted for the next step."
    )
    spots: list[Spot]
    mean_entropy: float = Field(description="In nats, over the positions open before this step.")
    mean_force: float = Field(
        description="Norm of the push on a position's logits, over the masked positions."
    )
    entropy: list[float] | None = Field(description="Of every position; 0 if it is not open.")
    force: list[float] | None = Field(description="Of every position; 0 if it is not masked.")


class StepFrame(BaseModel):
    """The message of a step."""

    step: int
    total: int = Field(description="Planned steps; parallel policies may end earlier.")
    samples: list[SampleStep]
    pieces: dict[int, str]


class EndSample(BaseModel):
    index: int
    text: str
    tokens: list[int]
    commit_steps: list[int] = Field(description="The step at which each token was written.")
    finish_reason: FinishReason


class End(BaseModel):
    """The last message."""

    samples: list[EndSample]
    usage: Usage
    oddlm: Extra

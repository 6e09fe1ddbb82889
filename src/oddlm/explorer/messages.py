"""What `/v1/denoise` sends and recordings hold: `start`, one `step` per step, `end`.

Tokens are ids. The text of an id comes in `pieces` of the first message that uses it; masks and
end tokens have none.
"""

from typing import Literal, TypeAlias

from pydantic import BaseModel, Field

from ..params import SampleParams

FinishReason: TypeAlias = Literal["stop", "length"]


class Usage(BaseModel):
    prompt_tokens: int = Field(description="Of all prompts, each counted once.")
    completion_tokens: int = Field(description="Of all samples, up to the first end token.")
    total_tokens: int


class Extra(BaseModel):
    """What OpenAI's answers have no place for."""

    seed: int = Field(description="Repeats the answer.")
    nfe: int = Field(description="Network evaluations per sample.")
    diversity: list[dict[str, float]] = Field(
        description="How different the samples are, for each prompt."
    )
    filled: list[str] | None = Field(
        None,
        description="Of a template or suffix: each sample with what was given, as a whole, whatever stop texts it holds.",
    )


class Start(BaseModel):
    """The first message."""

    model: str
    prompt: str
    prompt_tokens: int
    n: int
    params: SampleParams = Field(description="All settings, the seed among them.")
    mask_id: int = Field(description="What `tokens` hold where nothing is written yet.")
    end_ids: list[int] = Field(description="A sample's text ends before the first of these.")


class Likely(BaseModel):
    token: int
    probability: float = Field(description="After the push.")
    base_probability: float = Field(description="Of the network.")


class Spot(BaseModel):
    """A position at which this step writes, or would have written without the push."""

    position: int
    by: Literal["both", "pushed", "plain"] = Field(
        description="Who writes here and now; only 'plain' leaves it masked."
    )
    token: int = Field(description="What pushed sampling takes here.")
    probability: float = Field(description="Of `token`, after the push.")
    base_probability: float = Field(description="Of `token`, of the network.")
    plain_token: int = Field(description="What plain sampling takes here, with the same noise.")
    plain_probability: float = Field(description="Of `plain_token`, after the push.")
    plain_base_probability: float = Field(description="Of `plain_token`, of the network.")
    top: list[Likely] = Field(description="The five likeliest tokens after the push.")


class SampleStep(BaseModel):
    tokens: list[int] = Field(description="The sample after this step.")
    spots: list[Spot]
    mean_entropy: float = Field(description="Nats, over the open positions before this step.")
    mean_force: float = Field(
        description="Size of the push on a position's logits, over the masked positions."
    )
    entropy: list[float] | None = Field(description="Of every position; 0 where it is not open.")
    force: list[float] | None = Field(description="Of every position; 0 where it is not masked.")


class StepFrame(BaseModel):
    """One per step."""

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

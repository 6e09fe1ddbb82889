"""The one description of a sampling run, for the command line, files, HTTP and Python alike. Imports no torch."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Named = str | dict[str, Any]  # "odd", or {"name": "odd", "normalize": false}


class SampleParams(BaseModel):
    """How to draw the samples of a prompt. How many (n) is not part of it: sample i is the same for every n above i."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    length: int = Field(64, ge=1, description="Tokens per sample.")
    steps: int | None = Field(None, ge=1, description="Network evaluations; default: one per token.")
    block_length: int | None = Field(None, ge=1, description="Decode blocks of this length from left to right.")
    temperature: float = Field(0.5, ge=0, le=1000, description="Of the choice of tokens; 0 is the argmax.")
    top_k: int | None = Field(None, ge=1, description="Choose among the k likeliest tokens.")
    top_p: float | None = Field(None, gt=0, le=1, description="Choose within the likeliest tokens of this mass.")
    policy: Named = Field("low_confidence", description="Which positions to commit.")
    order_temperature: float = Field(0.0, ge=0, le=1000, description="Noise on the order in which positions are committed.")
    fork: bool = Field(False, description="Sample j starts from the j-th likeliest single token.")
    eos: Literal["free", "late", "never"] = Field("free", description="When end tokens may be written.")
    guidance: float = Field(0.0, ge=0, description="Classifier-free guidance scale; doubles the network evaluations.")
    objective: Named = Field("odd", description="What pushes samples apart; 'none' is plain sampling.")
    feature: Named = Field("max_pool", description="What of a sample is compared.")
    alpha: float = Field(16.0, ge=0, description="Force of the push; 0 is plain sampling.")
    schedule: Named = Field("linear", description="How alpha falls over the steps.")
    duplicates: Literal["break", "skip"] | None = Field(None, description="What to do with samples that say nothing new.")
    tolerance: float | None = Field(None, ge=0, lt=1, description="Residual below which a sample says nothing new.")
    gradient: Literal["normalized", "raw"] = Field("normalized", description="Whether alpha is a distance or a step size.")
    preset: Literal["paper"] | None = Field(None, description="The published arithmetic.")
    seed: int = Field(0, description="The same seed gives the same samples.")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.block_length is not None and self.length % self.block_length:
            raise ValueError(f"block_length {self.block_length} does not divide length {self.length}")
        if self.preset is not None and (self.duplicates, self.tolerance) != (None, None):
            raise ValueError("preset 'paper' fixes duplicates and tolerance: give the preset or those, not both")
        return self

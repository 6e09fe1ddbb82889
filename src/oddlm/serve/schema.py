"""The bodies of requests and answers: OpenAI's formats plus the sampler's own settings."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)
from pydantic_core import PydanticCustomError, to_json

from ..config import Seed
from ..explorer.messages import End, Extra, FinishReason, Start, StepFrame, Usage
from ..params import SampleParams
from .settings import Limits


def _sound(text: str) -> str:
    if "\0" in text:
        raise ValueError("NUL characters are not allowed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid Unicode ({error.reason})") from None
    return text


Text = Annotated[str, AfterValidator(_sound)]
RENAMED = ("length", "seed")  # defined below: max_tokens, and a seed the server draws if missing


def _optional(name: str) -> Any:
    """Return a field of SampleParams as an optional field of a request."""
    info = SampleParams.model_fields[name]
    kind: Any = info.annotation
    for constraint in info.metadata:
        kind = Annotated[kind, constraint]
    told, _, own = (info.description or "").partition("; default: ")
    default = own.rstrip(".") if info.default is None else json.dumps(info.default)
    usual = f" Default: {default}, unless the server was started with another." if default else ""
    return kind | None, Field(None, description=f"{told.rstrip('.')}.{usual}")


LOGPROBS = """Log-probabilities of the written tokens under the network, before repulsion, at
temperature 1 and without filters, at the step at which each was written. Alternatives to the
written tokens are not reported."""


def _without_alternatives(count: int) -> int:
    if count > 1:
        raise PydanticCustomError(
            "unsupported",
            "logprobs above 1 is not supported: only written tokens are reported",
        )
    return count


class Only(GroupedMetadata):
    """Restricts an unsupported OpenAI field to the values that change nothing, and null."""

    def __init__(self, *same: Any) -> None:
        self.same = same

    def __iter__(self) -> Iterator[Any]:
        return iter((AfterValidator(self.check), WithJsonSchema({"enum": [None, *self.same]})))

    def check(self, value: Any, info: ValidationInfo) -> Any:
        if value is None or any(
            isinstance(value, bool) == isinstance(one, bool) and value == one for one in self.same
        ):
            return value
        ways = ["leave it out", *(f"send {to_json(one).decode()}" for one in self.same)]
        context = {"name": info.field_name, "advice": " or ".join(ways)}
        raise PydanticCustomError("unsupported", "{name} is not supported: {advice}", context)


Ignored = Annotated[Any, Field(description="Accepted and ignored; it has no effect on the answer.")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


if TYPE_CHECKING:

    class SamplerFields(_Strict):
        """Every setting of the sampler, under its own name; all are optional."""

else:
    OWN = [name for name in SampleParams.model_fields if name not in RENAMED]
    SamplerFields = create_model(
        "SamplerFields", __base__=_Strict, **{name: _optional(name) for name in OWN}
    )


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class _Sampled(SamplerFields):
    model: Text = Field(description="The served model's name.")
    n: int = Field(
        1,
        ge=1,
        description="Samples per prompt; they are drawn together and pushed apart.",
    )
    max_tokens: int | None = Field(None, ge=1, description="Tokens per sample.")
    seed: Seed | None = Field(
        None, description="The same seed gives the same samples. If missing, the server draws one."
    )
    template: Annotated[list[Text | Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = (
        Field(
            None,
            description="A form that every sample fills in: a list of fixed texts, and of numbers "
            "of tokens to write between them.",
        )
    )

    @property
    def given_texts(self) -> list[str]:
        """The fixed texts of the template."""
        return [part for part in self.template or () if isinstance(part, str)]

    def settings(self) -> Mapping[str, Any]:
        """Return the sampler's settings in the request."""
        given = {name: getattr(self, name) for name in SamplerFields.model_fields}
        given |= {"length": self.max_tokens, "seed": self.seed}
        return {name: value for name, value in given.items() if value is not None}


class _Common(_Sampled):
    answer: Literal["majority", "confidence", "likelihood", "likeliest", "medoid"] | None = Field(
        None,
        description="Return one choice per prompt: the answer that wins this vote of the n "
        "samples. `oddlm.votes` has the others. Not for streams.",
    )
    read: Text | None = Field(
        None,
        description="With `answer`: the task whose answers these are (gsm8k, gsm8k:equations, "
        "math500, ...), so that equal answers can be told. By default similar texts are one "
        "answer.",
    )
    stop: Text | list[Text] | None = Field(
        None, description="Up to four texts; a sample ends before the first one that occurs in it."
    )
    stream: bool | None = Field(False, description="Send every block as soon as it is finished.")
    stream_options: StreamOptions | None = None
    user: Text | None = None
    presence_penalty: Annotated[Any, Only(0)] = None
    frequency_penalty: Annotated[Any, Only(0)] = None
    logit_bias: Annotated[Any, Only({})] = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None

    @property
    def stops(self) -> list[str]:
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return list(found)


class CompletionRequest(_Common):
    prompt: Text | list[Text] = Field(description="A text, or a list of texts.")
    echo: Annotated[Any, Only(False)] = None
    best_of: Annotated[Any, Only(1)] = None
    logprobs: Annotated[int, Field(ge=0), AfterValidator(_without_alternatives)] | None = Field(
        None, description=LOGPROBS
    )
    suffix: Text | None = Field(
        None, description="Text after each sample; short for the template [max_tokens, suffix]."
    )

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)

    @property
    def given_texts(self) -> list[str]:
        return [*super().given_texts, *([self.suffix] if self.suffix else [])]


class TextPart(_Strict):
    type: Literal["text"]
    text: Text


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]
    name: Text | None = None
    tool_calls: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only()] = None
    refusal: Annotated[Any, Only()] = None
    audio: Annotated[Any, Only()] = None
    annotations: Ignored = None

    @property
    def text(self) -> str:
        return (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )


class ChatRequest(_Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(
        None, ge=1, description="Another name for max_tokens."
    )
    logprobs: bool | None = Field(None, description=LOGPROBS)
    top_logprobs: Annotated[Any, Only(0)] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None
    modalities: Annotated[Any, Only(["text"])] = None
    tools: Annotated[Any, Only([])] = None
    tool_choice: Annotated[Any, Only("auto", "none")] = None
    parallel_tool_calls: Ignored = None
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("auto", "none")] = None
    audio: Annotated[Any, Only()] = None
    prediction: Ignored = None
    reasoning_effort: Annotated[Any, Only("none")] = None
    verbosity: Annotated[Any, Only("medium")] = None
    web_search_options: Annotated[Any, Only()] = None

    @property
    def prompts(self) -> list[str]:
        return [message.text for message in self.messages]

    def settings(self) -> Mapping[str, Any]:
        length = (
            {} if self.max_completion_tokens is None else {"length": self.max_completion_tokens}
        )
        return {**super().settings(), **length}


class DenoiseRequest(_Sampled):
    """A prompt whose denoising is streamed step by step."""

    prompt: Text
    positions: bool = Field(
        True, description="Send entropy and force of every position; if false, only their means."
    )

    @property
    def prompts(self) -> list[str]:
        return [self.prompt]


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float] = Field(description=LOGPROBS)
    top_logprobs: None = None
    text_offset: list[int] = Field(description="The offset in the text at which each token begins.")


class CompletionChoice(BaseModel):
    index: int = Field(description="Sample j of prompt i has the index i * n + j.")
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None


class CompletionAnswer(BaseModel):
    """A complete answer, or a chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    oddlm: Extra | None = None


class ChatMessage(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class TokenLogprob(BaseModel):
    token: str
    logprob: float = Field(description=LOGPROBS)
    bytes: list[int]
    top_logprobs: list[None] = Field(default_factory=list, max_length=0)


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    oddlm: Extra


class ChatDelta(BaseModel):
    index: int
    delta: ChatMessage
    finish_reason: FinishReason | None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDelta]
    usage: Usage | None = None
    oddlm: Extra | None = None


class NamedSettings(BaseModel):
    about: str
    settings: dict[str, Any]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "oddlm"
    version: str = Field(description="The version of oddlm.")
    context: int | None = Field(
        None, description="The maximum number of tokens of prompt and sample together."
    )
    limits: Limits = Field(description="Limits on requests.")
    defaults: SampleParams = Field(description="Settings used for fields missing from a request.")
    given: dict[str, Any] = Field(description="The defaults that the operator set.")
    names: dict[str, list[str]] = Field(
        description="The available objectives, features, policies and schedules."
    )
    presets: dict[str, NamedSettings] = Field(
        description="The settings of each preset; settings sent along with a preset override it."
    )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok", "down"]
    model: str
    queued: int
    rows: int
    replicas: int = Field(1, description="Copies of the model that answered.")


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    error: ErrorBody


EVENTS: Mapping[str, type[BaseModel]] = {
    "start": Start,
    "step": StepFrame,
    "end": End,
    "error": ErrorAnswer,
}

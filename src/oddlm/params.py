"""The one description of a sampling run, for the command line, files, HTTP and Python alike. Imports no torch."""

import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .checks import short_dtype
from .presets import (
    ALPHA,
    ALPHA_SCHEDULE,
    FEATURE,
    FORK,
    GRADIENT,
    LENGTH,
    OBJECTIVE,
    POLICY,
    SELECTOR,
    TEMPERATURE,
    Fork,
    PresetName,
    expanded,
)
from .versions import SAMPLER

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what the noise, databases and HTTP can all hold
Named = str | dict[str, Any]  # "odd", or {"name": "odd", "normalize": false}
Checked = TypeVar("Checked", bound=BaseModel)
T = TypeVar("T")
NAMED = ("policy", "objective", "feature", "alpha_schedule", "selector")
PUSH = (
    "objective",
    "feature",
    "alpha_schedule",
    "duplicates",
    "tolerance",
    "gradient",
    "preset",
)  # how, where alpha says how hard
DEEPEST = 32
TOO_DEEP = f"lists and tables are nested more than {DEEPEST} deep"


def _no_flag(given: Any) -> Any:
    """pydantic would read true as 1, and a seed that is true is a mistake."""
    if isinstance(given, bool):
        raise ValueError(f"must be a number, not {json.dumps(given)}")
    return given


class SampleParams(BaseModel):
    """How to draw the samples of a prompt. How many (n) is not part of it: sample i is the same for every n above i."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    length: int = Field(LENGTH, ge=1, description="Tokens per sample.")
    steps: int | None = Field(None, ge=1, description="Network evaluations; default: one per token.")
    block_length: int | None = Field(None, ge=1, description="Decode blocks of this length from left to right.")
    temperature: float = Field(TEMPERATURE, ge=0, le=1000, description="Of the choice of tokens; 0 is the argmax.")
    top_k: int | None = Field(None, ge=1, description="Choose among the k likeliest tokens.")
    top_p: float | None = Field(None, gt=0, le=1, description="Choose within the likeliest tokens of this mass.")
    policy: Named = Field(POLICY, description="Which positions to commit.")
    confidence: Literal["full", "sampled"] | None = Field(
        None, description="From the full distribution, or the sampled one, after temperature and filters; default: the model's."
    )
    order_temperature: float = Field(0.0, ge=0, le=1000, description="Noise on the order in which positions are committed.")
    fork: Fork = Field(
        FORK,
        description="Sample j starts from the j-th likeliest single token. 'auto': where samples are pushed and every "
        "block has a step to spare.",
    )
    fork_temperature: float = Field(0.0, ge=0, le=1000, description="Of the fork: its tokens are drawn, all different.")
    prompt_noise: float = Field(0.0, ge=0, le=1000, description="Noise on the prompt's embeddings, fading over the steps.")
    stop_at_end: bool | None = Field(
        None, description="Spend nothing on a sample behind its end token; default: where blocks are decoded."
    )
    eos: Literal["free", "late", "never"] = Field("free", description="When end tokens may be written.")
    cfg_scale: float = Field(0.0, ge=0, description="Classifier-free guidance scale; doubles the network evaluations.")
    objective: Named = Field(
        dict(OBJECTIVE), description="What pushes samples apart; 'auto' is what we advise, 'none' plain sampling."
    )
    feature: Named = Field(FEATURE, description="What of a sample is compared.")
    alpha: float = Field(ALPHA, ge=0, description="Force of the push; 0 is plain sampling.")
    alpha_schedule: Named = Field(ALPHA_SCHEDULE, description="How alpha falls over the steps.")
    duplicates: Literal["break", "skip"] | None = Field(None, description="What to do with samples that say nothing new.")
    tolerance: float | None = Field(None, ge=0, lt=1, description="Residual below which a sample says nothing new.")
    gradient: Literal["normalized", "raw"] = Field(GRADIENT, description="Whether alpha is a distance or a step size.")
    pool: int | None = Field(None, ge=1, description="Samples drawn per prompt, of which n are kept; default: n.")
    selector: Named = Field(SELECTOR, description="Which samples of the pool to keep.")
    preset: PresetName | None = Field(None, description="Settings under one name; 'paper' is the published arithmetic.")
    seed: Seed = Field(0, description="The same seed gives the same samples.")

    _numbers = field_validator("length", "steps", "block_length", "top_k", "pool", "seed", mode="before")(_no_flag)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        """Presets are expanded on input; only the resulting settings are kept."""
        return expanded(given) if isinstance(given, Mapping) else given

    @field_validator(*NAMED, mode="before")
    @classmethod
    def _by_path(cls, given: Any) -> Any:
        """A function is kept as its dotted path, since settings are text; one that has none is refused."""
        if not callable(given):
            return given
        module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "")
        if not name.isidentifier() or getattr(sys.modules.get(str(module)), name, None) is not given:
            raise ValueError(
                "settings are kept as text, so a function must be found by its dotted path: define it by name at the top of "
                f"a module or script, unlike {given!r:.100}"
            )
        return f"{module}.{name}"

    @field_validator("preset", mode="before")
    @classmethod
    def _no_objective(cls, preset: Any) -> Any:
        if preset == "auto":
            raise ValueError(
                f"'auto' is an objective, objective='auto', and the default; presets: {', '.join(get_args(PresetName))}"
            )
        return preset

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.block_length is not None and self.length % self.block_length:
            raise ValueError(f"block_length {self.block_length} does not divide length {self.length}")
        if self.preset is not None and (self.duplicates, self.tolerance) != (None, None):
            raise ValueError("preset 'paper' fixes duplicates and tolerance: give the preset or those, not both")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # an objective with options is a dict, which has none

    @property
    def plain(self) -> bool:
        """Is nothing pushed apart?"""
        return self.alpha == 0 or _bare(self.objective) == "none"

    @property
    def forks(self) -> bool:
        """Does every sample have a start of its own? Says what fork "auto" comes to."""
        return self._forkable if self.fork == "auto" else self.fork

    @property
    def stops(self) -> bool:
        """What `stop_at_end` comes to."""
        return (self.block_length or self.length) < self.length if self.stop_at_end is None else self.stop_at_end

    @property
    def _forkable(self) -> bool:
        """Is something pushed, and is there a step to spare in every block?"""
        block = self.block_length or self.length
        return not self.plain and min(self.steps or self.length, self.length) * block // self.length >= min(2, block)

    def drawn(self, n: int) -> int:
        """How many samples are drawn where n are kept."""
        if self.pool is not None and self.pool < n:
            raise ValueError(f"pool must be at least n, as n of its samples are kept: {self.pool} < {n}")
        return n if self.pool is None else self.pool

    @property
    def objective_name(self) -> str:
        """The objective without its options."""
        return self.objective if isinstance(self.objective, str) else str(self.objective.get("name"))

    @property
    def method(self) -> str:
        """How samples are made to differ, as tables say it: `plain`, `odd (enough 0.5) + fork`."""
        return method_name("plain" if self.plain else self.objective, {"fork": True} if self.forks else {})

    def with_settings(self, settings: Mapping[str, Any]) -> "SampleParams":
        """These with other settings in place of their own.

        A fork goes with the push: without one, or without a step to spare, there is no fork unless the settings name one. The
        fork of plain samples is a choice of its own, and stays.
        """
        own = self.model_dump()
        if self.fork is True and self._forkable:
            own["fork"] = "auto"
        return checked(type(self), {**own, **expanded(settings)})

    def canonical(self) -> "SampleParams":
        """The same sampling in its one spelling: plain runs alike whatever their unused settings say, defaults filled in."""
        changes: dict[str, Any] = {name: _bare(getattr(self, name)) for name in NAMED}
        changes |= {"steps": self.steps or self.length, "fork": self.forks, "stop_at_end": None}
        if not self.forks:
            changes["fork_temperature"] = 0.0
        if self.pool is None:
            changes["selector"] = type(self).model_fields["selector"].default
        if self.plain:
            changes |= {name: type(self).model_fields[name].default for name in PUSH} | {"objective": "none", "alpha": 0.0}
        return self.model_copy(update=changes)


Piece = str | Mapping[str, Any] | Callable[..., Any]  # by name, with options, or the function itself


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
    duplicates: Literal["break", "skip"] | None
    tolerance: float | None
    gradient: Literal["normalized", "raw"]
    pool: int | None
    selector: Piece
    preset: PresetName | None
    seed: int


class Loading(BaseModel):
    """How a model is loaded, as far as it may change what it says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    revision: str | None = Field(None, description="Branch, tag or commit of a model on the hub.")
    dtype: Literal["bf16", "fp16", "fp32", "fp64"] | None = Field(None, description="Default: bf16 on a GPU, fp32 on a CPU.")
    quantize: Literal["nf4", "int8"] | None = Field(None, description="Weights in 4 or 8 bits.")
    raw: bool = Field(False, description="Prompts without the chat template.")
    cache: Literal["prefix", "dual"] | None = Field(None, description="Keys and values kept between steps: an approximation.")

    @field_validator("dtype", mode="before")
    @classmethod
    def _one_spelling(cls, dtype: Any) -> Any:
        return short_dtype(dtype)

    def options(self) -> dict[str, Any]:
        """What differs from the defaults, as keyword arguments of `oddlm.load`."""
        return self.model_dump(exclude_defaults=True)


class RunSpec(BaseModel):
    """One setting of a sampler on a task, on however many of its problems. Runs with the same content have the same id,
    wherever and whenever they are made.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(description="A model's name or dotted path, a checkpoint's folder or its name on the hub.")
    model_digest: str | None = Field(
        None, description="What tells the model's weights from others (`oddlm.models.model_digest`): others make another run."
    )
    sampler_version: int = Field(SAMPLER, description="Of the sampler: another one may write other tokens.")
    task: str | None = Field(None, description="A task's name, dotted path or .jsonl file; None draws samples without scoring.")
    task_version: int | None = Field(None, description="Of the task's problems and prompts.")
    scorer_version: str | None = Field(None, description="Of verdicts and measures: another scorer makes another run.")
    protocol: str | None = Field(None, description="A named variant of the task.")
    scorer: str | None = Field(None, description="How a .jsonl of one's own is scored.")
    exclude_train: bool = Field(False, description="Leave out problems of the training side.")
    split: str | None = Field(None, description="A part of the problems, such as 'tune'; None is what the task reports on.")
    data: str | None = Field(None, description="The file that the problems come from, if not the task's own.")
    data_digest: str | None = Field(
        None, description="SHA-256 of what the problems come from: data that change make another run."
    )
    n: int = Field(16, ge=1, le=1 << 20, description="Samples per problem.")
    params: SampleParams = Field(
        default_factory=lambda: SampleParams.model_validate({}), validate_default=True, description="How samples are drawn."
    )
    seed: Seed = Field(0, description="Every problem derives its own from this and its id.")
    loading: Loading = Field(default_factory=lambda: Loading.model_validate({}), description="How the model is loaded.")

    _numbers = field_validator("n", "seed", mode="before")(_no_flag)

    @field_validator("params")
    @classmethod
    def _one_spelling(cls, params: SampleParams) -> SampleParams:
        """Stored settings say all that they come to, whichever command made them."""
        if params.seed != 0:
            raise ValueError("the seed of a run is its own field: seed, not params.seed")
        return params.canonical()

    @model_validator(mode="after")
    def _enough(self) -> Self:
        self.params.drawn(self.n)
        return self

    @property
    def drawn(self) -> int:
        """Samples per problem, those that are not kept among them."""
        return self.params.drawn(self.n)

    def canonical(self) -> dict[str, Any]:
        """What the id is made of: paths count by what the files hold."""
        content = {**self.model_dump(mode="json"), "params": self.params.canonical().model_dump(mode="json")}
        if self.model_digest is not None and not self.model_digest.startswith("source:"):  # which is not all of a model
            content["model"] = content["loading"]["revision"] = None
        del content["params"]["stop_at_end"]  # a text is the same with and without
        if self.data_digest is not None:
            content["data"] = None
            content["task"] = Path(self.task).name if self.task and self.task.endswith(".jsonl") else self.task
        return content

    @property
    def draw_id(self) -> str:
        """What the samples depend on: runs that differ in their scorer alone have it in common."""
        content = self.canonical()
        del content["scorer_version"]
        return _digest(content)[:8]

    @property
    def id(self) -> str:
        return self.draw_id + _digest(self.canonical())[:4]

    def draws_like(self, other: "RunSpec") -> bool:
        """Are the samples of the other run those of this one?"""
        return self.canonical() == {**other.canonical(), "scorer_version": self.scorer_version}

    def problem_seed(self, problem: str) -> int:
        """The seed of one problem: order and the other problems do not matter to it, nor do the parameters."""
        digest = hashlib.sha256(f"{self.seed}\0{problem}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") >> 1


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def method_name(objective: Named, settings: Mapping[str, Any]) -> str:
    """`odd (enough 0.5) + fork + order_temperature=0.5`: an objective with its options, and settings that are to be told."""
    name, options = (objective, {}) if isinstance(objective, str) else (objective.get("name"), objective)
    told = ", ".join(f"{option} {short(value)}" for option, value in options.items() if option != "name")
    words = [setting if value is True else f"{setting}={short(value)}" for setting, value in settings.items()]
    return " + ".join([f"{name} ({told})" if told else str(name), *words])


def short(value: Any) -> str:
    """A value as people write it."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def read_toml(path: Path) -> dict[str, Any]:
    """ValueError for what cannot be read, or is no TOML."""
    try:
        return _shallow(tomllib.loads(path.read_text()))
    except RecursionError:
        raise ValueError(f"{path}: {TOO_DEEP}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def json_or_text(text: str) -> Any:
    """`8`, `true` or `{"name": "odd"}` as JSON; whatever is none is text."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text


def parse_json(text: str) -> Any:
    """JSON as people write it."""
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError(f"{text[:30]}...: {TOO_DEEP}") from None


def _shallow(value: T) -> T:
    """The same; RecursionError for lists and tables inside each other beyond anything that a setting needs."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            inner for one in level if isinstance(one, list | dict) for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise RecursionError


def checked(cls: type[Checked], content: Mapping[str, Any]) -> Checked:
    """cls(**content); what is wrong is a ValueError in one line that says what is allowed."""
    try:
        return cls.model_validate(content)
    except ValidationError as error:
        raise _complaints(cls, error.errors(include_url=False)) from None


def check_fields(cls: type[BaseModel], content: Mapping[str, Any]) -> None:
    """ValueError for values that are wrong by themselves; whether they go together is not asked."""
    try:
        cls.model_validate(content)
    except ValidationError as error:
        if alone := [e for e in error.errors(include_url=False) if e["loc"]]:
            raise _complaints(cls, alone) from None


def _complaints(cls: type[BaseModel], errors: Sequence[Any]) -> ValueError:
    return ValueError("; ".join(_complaint(cls, e) for e in errors))


def _complaint(cls: type[BaseModel], error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        said = error["msg"].removeprefix("Value error, ")
        given = "" if error["type"] == "value_error" else f", not {error['input']!r:.100}"  # validators of ours say it all
        return f"{where}: {said}{given}" if where else said
    for part in error["loc"][:-1]:
        field = cls.model_fields.get(str(part))
        cls = field.annotation if field is not None and isinstance(field.annotation, type) else cls
    return f"unknown field {where!r}; known: {', '.join(cls.model_fields)}"


def _bare(named: Named) -> Named:
    """{"name": "odd"} is "odd"."""
    return named["name"] if isinstance(named, dict) and set(named) == {"name"} else named

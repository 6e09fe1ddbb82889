"""The recipe of a run: which model learns which task, from which rollouts, and how."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ..checks import whole
from ..config import checked, json_or_text, read_toml
from ..params import Named, SampleParams
from ..rolling import Against
from ..train.loop import LoopConfig, Strict
from .estimators import ESTIMATORS
from .losses import ADVANTAGES, LOSSES, USUAL


def _settings(given: Any) -> Any:
    """Keep settings as they were given, so that defaults can be filled in later."""
    checked(SampleParams, given)
    return given


def _method(given: Any) -> Any:
    if isinstance(given, dict):
        whole("n", given.get("n", 1))
        _settings({name: value for name, value in given.items() if name != "n"})
    return given


def name_of(named: Named) -> str:
    """Return the name in a name with options."""
    return named if isinstance(named, str) else str(named.get("name"))


Settings = Annotated[dict[str, Any], BeforeValidator(_settings)]
Method = Annotated[dict[str, Any], BeforeValidator(_method)]


class RolloutConfig(Strict):
    prompts: int = Field(64, ge=1, description="Problems per batch of rollouts and process.")
    n: int = Field(16, ge=2, description="Samples per problem.")
    settings: Settings = Field(
        default_factory=lambda: {"alpha": 0.0},
        description="How they are drawn, beside the run's `settings`; default: plain sampling.",
    )
    weights: Literal["none", "tokens", "samples"] = Field(
        "tokens", description="Importance weights of pushed rollouts: of each token or sample."
    )
    clip: float | None = Field(2.0, gt=0, description="The largest importance weight.")
    against: Against = Field(
        "pushed", description="Whether weights undo the push alone, or temperature as well (drawn)."
    )


class EvaluateConfig(Strict):
    problems: dict[str, Any] = Field(
        default_factory=lambda: {"split": "tune", "count": 128},
        description="Options of the task; the problems must not be trained on.",
    )
    n: int = Field(16, ge=1, description="Samples per problem, the k of Pass@k.")
    methods: dict[str, Method] = Field(
        default_factory=lambda: {"plain": {"alpha": 0.0}, "default": {}},
        description="By name: how they are drawn, beside the run's `settings`; an `n` of its own "
        "may be among them.",
        min_length=1,
    )


class RlConfig(LoopConfig):
    model: str = Field("mini", description="mini, smol, or a checkpoint of our own networks.")
    task: str
    protocol: str | None = None
    problems: dict[str, Any] = Field(
        default_factory=lambda: {"split": "train", "count": 4096},
        description="Options of the task for the problems to learn from.",
    )
    settings: Settings = Field(
        default_factory=dict, description="What all samples share: length, steps, temperature, ..."
    )
    rollouts: RolloutConfig = Field(default_factory=lambda: checked(RolloutConfig, {}))
    evaluate: EvaluateConfig = Field(default_factory=lambda: checked(EvaluateConfig, {}))
    reuse: int = Field(1, ge=1, description="Steps of the optimiser on each batch of rollouts.")
    max_batch: int = Field(1024, ge=1, description="Samples per network call when drawing.")
    rows: int = Field(256, ge=1, description="Samples per pass with gradients.")
    recompute: bool = Field(
        True, description="Keep no activations: less memory for a third more time."
    )
    estimator: Named = "trace"
    loss: Named = "grpo"
    advantage: Named | None = Field(
        None, description="Default: `softmax` for the loss wd1, `group` for all others."
    )
    negative_weight: float = Field(
        1.0, ge=0, description="Factor on the advantage of samples worse than their group."
    )
    kl: float = Field(0.0, ge=0, description="Penalty on the divergence from the first weights.")
    # Few steps, each of which costs a batch of rollouts: other defaults than for pairs.
    warmup: int = Field(0, ge=0)
    decay: float = Field(0.0, ge=0, le=1)
    weight_decay: float = Field(0.0, ge=0)
    precision: Literal["bf16", "fp32"] = "fp32"
    log_every: int = Field(1, ge=1)
    check_every: int = Field(10, ge=1, description="Steps between measurements on other problems.")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.steps % self.reuse:
            raise ValueError(f"reuse {self.reuse} does not divide steps {self.steps}")
        drawn = self.params(self.rollouts.settings)
        if drawn.pool is not None:
            raise ValueError("rollouts.settings has a pool, whose selection no weight could undo")
        if self.rollouts.weights != "none" and drawn.temperature == 0:
            raise ValueError(
                "rollouts at temperature 0 have no importance weights: raise temperature, or set "
                "rollouts.weights to 'none'"
            )
        ESTIMATORS.build(self.estimator)
        LOSSES.build(self.loss)
        ADVANTAGES.build(self.used_advantage)
        return self

    @property
    def estimator_name(self) -> str:
        return name_of(self.estimator)

    @property
    def used_advantage(self) -> Named:
        return self.advantage or USUAL.get(name_of(self.loss), "group")

    @property
    def methods(self) -> dict[str, tuple[int, SampleParams]]:
        """The number of samples and the settings of each method to measure with."""
        found = {}
        for name, given in self.evaluate.methods.items():
            settings = dict(given)
            n = settings.pop("n", self.evaluate.n)
            found[name] = n, self.params(settings)
        return found

    def params(self, settings: Mapping[str, Any]) -> SampleParams:
        """Return the settings of one method, beside those of the run."""
        return checked(SampleParams, {**self.settings, **settings})


def read_rl_config(path: Path, changes: Sequence[str] = ()) -> RlConfig:
    """Read a recipe. A change is `key=value` with dots for tables: `rollouts.settings.alpha=8`."""
    content = read_toml(path)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise ValueError(f"--set takes key=value, not {change!r}: --set rollouts.n=8")
        *tables, name = key.split(".")
        inner = content
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ValueError(f"--set {change}: {table} is not a table of {path}")
        inner[name] = json_or_text(value)
    return checked(RlConfig, content)

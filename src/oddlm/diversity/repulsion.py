"""`Repulsion`, the guide that pushes the samples of a prompt apart."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import finite, ids, one_of
from ..core.guide import Backend, Pushed, has_ended
from ..core.model import CPU, ModelInfo
from ..core.step import Memory, Step
from ..kernels import dispatch
from ..kernels.contract import Objective, Repel
from ..kernels.directions import Duplicates, extend
from ..params import check_arithmetic
from ..presets import (
    ALPHA_SCHEDULE,
    ARITHMETIC,
    FEATURE,
    GRADIENT,
    OBJECTIVE,
    PRESETS,
    Arithmetic,
    PresetName,
    expanded,
    push_of,
)
from .alpha import ALPHA_SCHEDULES, AlphaSchedule
from .features import FEATURES, Feature, Pooling, build_feature
from .memory import Explored, Form
from .objectives import OBJECTIVES, build_objective, need_of, slope_of, weigh_of

DuplicateMode = Literal["break", "skip"]
Gradient = Literal["normalized", "raw"]
ROUNDING = 1e-9  # no more time left than this is none


@dataclass(frozen=True, slots=True)
class Repulsion:
    """The guide that pushes samples apart: `denoise(..., guide=Repulsion(alpha=16))`.

    Args:
        objective: What is maximized: odd (default, with `enough=0.5`), odd_sequential, dpp,
            random_probe or none. Also {"name": ..., option: ...}, a dotted path, or a function.
        feature: What is compared between samples: max_pool (default), mean_pool, positional or
            ngrams. Also with options, as a dotted path, or a function.
        alpha: The distance in logits by which the most moved position of a sample moves; with
            `gradient="raw"` a plain step size. The default is 16 in the first quarter of the steps.
        alpha_schedule: How alpha falls over the steps; default linear.
        alpha_end: The share of the planned steps that are pushed, in (0, 1]: 1 for an alpha of your
            own. The schedule is compressed into it, and the steps after it are those of plain
            sampling.
        duplicates: What happens to a sample whose unit feature lies within `tolerance` of the span
            of the earlier ones. "break" (default) pushes it along a seeded random direction, "skip"
            leaves it.
        tolerance: Residual up to which a sample is a duplicate; default 1e-3.
        gradient: "normalized" (default) or "raw"; see alpha.
        protected: Ids that are never pushed; by default the model's.
        embedding: Embedding matrix [V, H] for features in embedding space; by default the model's.
        arithmetic: "published" computes as the paper's code does: in the precision of the logits,
            skipping residuals up to 1e-6. The default is "exact".
        backend: "auto" uses closed forms without autograd for all built-in features and objectives
            (for max_pool on a GPU as fused Triton kernels), and autograd for your own functions.
            "triton", "closed_form" and "reference" request one of them.
        remember: Keep the directions that the batch explores, so that
            `denoise(..., history=first.history)` continues from them: "exact", or "sparse" for
            large vocabularies (see `oddlm.diversity.memory`).
    """

    objective: str | Mapping[str, Any] | Objective = field(default_factory=lambda: dict(OBJECTIVE))
    feature: str | Mapping[str, Any] | Pooling | Feature = FEATURE
    alpha: float | None = None
    alpha_schedule: str | Mapping[str, Any] | AlphaSchedule = ALPHA_SCHEDULE
    alpha_end: float | None = None
    duplicates: DuplicateMode | None = None
    tolerance: float | None = None
    gradient: Gradient = GRADIENT
    protected: Collection[int] | None = None
    embedding: Tensor | None = None
    arithmetic: Arithmetic = ARITHMETIC
    backend: dispatch.Asked = "auto"
    remember: Form | None = None

    @classmethod
    def preset(cls, name: PresetName, **settings: Any) -> "Repulsion":
        """Make the guide of a preset, with some settings replaced.

        For example `Repulsion.preset("paper", alpha=16)`.
        """
        one_of("preset", name, tuple(PRESETS))
        # The fork belongs to the sampler, not to the guide.
        own = expanded({"preset": name, **settings})
        return cls(**{key: value for key, value in own.items() if key != "fork"})

    def __post_init__(self) -> None:
        """Fill in the push; raise ValueError for bad settings here, not at the first step."""
        build_objective(self.objective)
        build_feature(self.feature)
        ALPHA_SCHEDULES.build(self.alpha_schedule)
        alpha, end = self.push
        finite("alpha", alpha)
        if not 0 < finite("alpha_end", end) <= 1:
            raise ValueError(f"alpha_end must lie in (0, 1], not {end!r}")
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "alpha_end", end)
        for name, value, allowed in (
            ("duplicates", self.duplicates, get_args(DuplicateMode)),
            ("gradient", self.gradient, get_args(Gradient)),
            ("arithmetic", self.arithmetic, get_args(Arithmetic)),
            ("backend", self.backend, get_args(dispatch.Asked)),
            ("remember", self.remember, get_args(Form)),
        ):
            if value is not None:
                one_of(name, value, allowed)
        check_arithmetic(self.arithmetic, self.duplicates, self.tolerance)
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must lie in [0, 1), not {self.tolerance!r}")
        if self.backend == "closed_form" and len(self.forms) == 1:
            raise ValueError(
                f"backend 'closed_form' needs a feature with a trace ({', '.join(_traced())}), "
                f"an objective with a slope ({', '.join(_having(slope_of))}) "
                "and arithmetic 'exact'"
            )
        if self.backend == "triton" and "triton" not in self.forms:
            raise ValueError(
                "backend 'triton' needs feature max_pool over probs without top_k, an objective "
                f"with a slope in coordinates ({', '.join(_having(weigh_of))}) "
                "and arithmetic 'exact'"
            )
        if self.remember is not None:
            self.check_memory()

    def check_memory(self) -> None:
        """Raise ValueError if, with these settings, a batch cannot continue from an earlier one."""
        if getattr(OBJECTIVES.build(self.objective), "coupled", False):
            raise ValueError(
                f"objective {self.objective!r} couples all samples of a batch, so it cannot "
                "continue from a history"
            )
        if self.arithmetic == "published":
            raise ValueError("arithmetic 'published' has no memory of earlier batches")

    @property
    def push(self) -> tuple[float, float]:
        """Alpha and `alpha_end`."""
        return push_of(self.alpha, self.alpha_end)

    @property
    def idle(self) -> bool:
        """Whether this is plain sampling."""
        return self.push[0] == 0 or OBJECTIVES.build(self.objective) is OBJECTIVES.find("none")

    @property
    def forms(self) -> tuple[dispatch.Form, ...]:
        """The backends that can compute it, fastest first.

        Closed forms without autograd need the derivatives of feature and objective. They run tile
        by tile for max-pooled probabilities, and fused if the objective also has its slope in
        coordinates.
        """
        objective, feature = OBJECTIVES.build(self.objective), build_feature(self.feature)
        if not feature.traced or slope_of(objective) is None or self.arithmetic == "published":
            return ("reference",)
        pooled = feature.pooling is FEATURES.find("max_pool") and feature.space == "probs"
        if not pooled or feature.rank is not None or feature.ignore_ids:
            return "analytic", "reference"
        fusible = feature.top_k is None and weigh_of(objective) is not None
        return ("triton", "closed_form", "reference") if fusible else ("closed_form", "reference")

    @property
    def duplicate_rule(self) -> Duplicates:
        """`duplicates` and `tolerance` with their defaults filled in."""
        if self.arithmetic == "published":
            return Duplicates("skip", tolerance=1e-6, native=True)
        return Duplicates(
            self.duplicates or "break", 1e-3 if self.tolerance is None else self.tolerance
        )

    def begin(
        self, info: ModelInfo, backend: Backend, history: Memory | None, *, resumes: bool
    ) -> "Repelling | None":
        """Return the guide of one run with this model, or None for plain sampling.

        It avoids the directions that earlier batches explored, and remembers its own if requested.
        """
        return None if self.idle else self.resolve(info, backend, history, resumes=resumes)

    def resolve(
        self, info: ModelInfo, backend: Backend, history: Memory | None, *, resumes: bool
    ) -> "Repelling":
        """Like `begin`, but also for plain sampling, if only the explored directions matter."""
        feature = build_feature(self.feature)
        embedding = info.embedding if self.embedding is None else self.embedding
        feature.check(info.vocab_size, embedding)
        protected = info.protected if self.protected is None else tuple(self.protected)
        ids("protected", protected, info.vocab_size)
        memory = None
        if resumes or self.remember is not None:
            self.check_memory()
            if resumes and not isinstance(history, Explored):
                raise ValueError(
                    "history holds no directions: make the first batch with "
                    "Repulsion(..., remember='exact')"
                )
            memory = Explored(
                self.remember or (history.form if isinstance(history, Explored) else "exact")
            )
        held = embedding if feature.space != "probs" else None
        lean = replace(self, embedding=held, protected=protected)
        assert isinstance(backend, dispatch.Backend)
        return Repelling(lean, backend, history if isinstance(history, Explored) else None, memory)

    @torch.no_grad()
    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        """Return the pushed logits of a single step.

        The input is not changed; it is returned itself if there is nothing to push.
        """
        info = ModelInfo(logits.shape[-1], None, step.protected, embedding=self.embedding)
        backend = dispatch.choose(logits.device, logits.dtype, asked=self.backend, forms=self.forms)
        guide = self.begin(info, backend, None, resumes=False)
        if guide is None or has_ended(guide, *step.clock):
            return logits
        return guide.pushed_logits(logits, step, None)[0]


def _traced() -> list[str]:
    return [name for name in FEATURES.names if build_feature(name).traced]


def _having(form: Callable[[Objective], Any]) -> list[str]:
    """Names of the objectives that have this form, without `none`."""
    return [
        name
        for name in OBJECTIVES.names
        if name != "none" and form(OBJECTIVES.build(name)) is not None
    ]


@dataclass(frozen=True)
class Repelling:
    """A Repulsion during one run; feature, objective and kernel are resolved once."""

    repulsion: Repulsion
    backend: dispatch.Backend
    earlier: Explored | None  # directions that earlier batches explored
    memory: Explored | None  # this batch's memory at its start; None if it keeps none

    @property
    def fused(self) -> bool:
        return self.backend.push == "triton"

    @cached_property
    def end(self) -> float:
        return self.repulsion.push[1]

    @property
    def looks_back(self) -> bool:
        return not getattr(self._objective, "coupled", False)

    def __call__(
        self, logits: Tensor, step: Step, memory: Memory | None, positions: Tensor | None = None
    ) -> Pushed:
        assert memory is None or isinstance(memory, Explored)
        call = (
            partial(self._kernel.plan, positions=positions, never=step.never)
            if self.fused
            else self._kernel.repel
        )
        result, memory = self._run(call, logits, step, memory)
        return (
            Pushed(None, result, memory)
            if self.fused
            else Pushed(result.flatten(0, 1), None, memory)
        )

    def pushed_logits(
        self, logits: Tensor, step: Step, memory: Explored | None
    ) -> tuple[Tensor, Explored | None]:
        """Return the pushed logits [B, S, V], and the memory with the explored directions."""
        result, memory = self._run(self._kernel.repel, logits, step, memory)
        return result.flatten(0, 1), memory

    def to(self, device: torch.device, backend: Backend) -> "Repelling":
        assert isinstance(backend, dispatch.Backend)
        held = self.repulsion.embedding
        lean = (
            self.repulsion if held is None else replace(self.repulsion, embedding=held.to(device))
        )
        memories = {
            name: None if (x := getattr(self, name)) is None else x.to(device)
            for name in ("earlier", "memory")
        }
        return replace(self, repulsion=lean, backend=backend, **memories)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("repulsion", "backend", "earlier", "memory")}

    def _run(
        self, call: Callable[..., Any], logits: Tensor, step: Step, memory: Explored | None
    ) -> tuple[Any, Explored | None]:
        """Return the result of the kernel's `call`, and the memory with the explored directions."""
        how = replace(
            self._how,
            remember=memory is not None,
            seeds=step.seeds,
            first_sample=step.first_sample,
            step=step.index,
        )
        inputs = logits, step.tokens, step.masked, self._alpha(step)
        grouped = [x.unflatten(0, (-1, step.n)) for x in inputs]
        earlier, label = None, self._feature.label
        if self.earlier is not None:
            earlier = self.earlier.rows(step.index, label, len(step.seeds)).to(logits.device)
        result, added = call(*grouped, earlier, how)
        if memory is not None:
            assert added is not None
            memory = memory.with_step(step.index, label, extend(earlier, added))
        return result, memory

    def _alpha(self, step: Step) -> Tensor:
        """Return alpha [B] at this step; exactly 0 for samples whose push has ended."""
        share, planned = step.share_left, step.clock[1]
        if share is None:
            return self._scheduled(step.time_left, planned)
        # One number for all samples: computed on the host.
        left = torch.full((1,), share, dtype=torch.float64, device=CPU)
        alpha, (B, _) = float(self._scheduled(left, planned)), step.tokens.shape
        return torch.full((B,), alpha, dtype=torch.float64, device=step.tokens.device)

    def _scheduled(self, time_left: Tensor, planned: int) -> Tensor:
        alpha, end = self.repulsion.push
        if end == 1:
            return alpha * self._schedule(time_left, planned)
        time_left = 1 - (1 - time_left) / end
        factor = self._schedule(time_left.clamp(min=0), max(1, round(end * planned)))
        return alpha * factor.where(time_left > ROUNDING, 0.0)

    @cached_property
    def _feature(self) -> Feature:
        return build_feature(self.repulsion.feature)

    @cached_property
    def _objective(self) -> Objective:
        return OBJECTIVES.build(self.repulsion.objective)

    @cached_property
    def _schedule(self) -> AlphaSchedule:
        return ALPHA_SCHEDULES.build(self.repulsion.alpha_schedule)

    @cached_property
    def _kernel(self) -> Any:
        assert self.backend.push is not None
        return dispatch.module(self.backend.push)

    @cached_property
    def _how(self) -> Repel:
        """The parts of the push that do not change with the step."""
        repulsion, feature, objective = self.repulsion, self._feature, self._objective
        return Repel(
            extract=partial(feature.extract, embedding=repulsion.embedding),
            trace=partial(feature.trace, embedding=repulsion.embedding) if feature.traced else None,
            top_k=feature.top_k,
            objective=objective,
            slope=slope_of(objective),
            weigh=weigh_of(objective),
            need=need_of(objective),
            sequential=getattr(objective, "sequential", False),
            probes=getattr(objective, "probes", False),
            duplicates=repulsion.duplicate_rule,
            raw_gradient=repulsion.gradient == "raw",
            protected=tuple(repulsion.protected or ()),
            remember=False,
            seeds=torch.empty(0),
            first_sample=0,
            step=0,
        )

"""`Repulsion`, the guide that makes samples differ, and `diversify`, the same thing for anybody's own loop."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from .. import noise
from ..checks import finite, ids, one_of, whole
from ..kernels import choice, reference
from ..kernels.choice import Backend
from ..kernels.directions import Duplicates, extend
from ..kernels.reference import Objective
from ..presets import ALPHA, FEATURE, GRADIENT, OBJECTIVE, SCHEDULE, expanded
from ..registry import Registry
from ..sampling import check_logits
from ..types import History, Model, Step
from .features import FEATURES, Feature, Pooling, build_feature
from .memory import Explored, Form
from .objectives import OBJECTIVES, build_objective, need_of, slope_of, weigh_of

AlphaSchedule = Callable[[Tensor, int], Tensor]  # time left [B] (1 to 0), planned steps -> factor on alpha [B]
SCHEDULES: Registry[AlphaSchedule] = Registry("schedule")

DuplicateMode = Literal["break", "skip"]
Gradient = Literal["normalized", "raw"]
Preset = Literal["paper"]
OPEN: Any = None  # not given: what the preset says, else the default of every door (`oddlm.presets`)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@SCHEDULES.register
def linear(time_left: Tensor, total: int) -> Tensor:
    """Full force at the start, falling in a straight line (the published code)."""
    return time_left


@SCHEDULES.register
def constant(time_left: Tensor, total: int) -> Tensor:
    """The same force at every step."""
    return torch.ones_like(time_left)


@SCHEDULES.register
def cosine(time_left: Tensor, total: int) -> Tensor:
    """Slow to fall, slow to end."""
    return 0.5 * (1 - (math.pi * time_left).cos())


@SCHEDULES.register
def paper(time_left: Tensor, total: int) -> Tensor:
    """1 - 1/t with t steps left (the paper's Algorithm 1): full force almost to the end."""
    return 1 - 1 / (time_left * total).clamp(min=1)


@dataclass(frozen=True, slots=True)
class Repulsion:
    """A guide: `denoise(..., guide=Repulsion(alpha=16))`.

    objective: odd, odd_sequential, dpp, random_probe, none, or "auto" (default), which is {"name": "odd", "enough": 0.5};
    feature: max_pool (default), mean_pool, positional or ngrams; both also as {"name": ..., option: ...}, a dotted path, or a
    function. alpha (default 4): how far the most moved position of a sample moves (with gradient="raw": the bare step size).
    schedule (default linear): how alpha falls over the steps. duplicates: what
    happens to a sample whose unit feature lies within `tolerance` (default 1e-3) of the span of the earlier ones: "break"
    (default) pushes it along a seeded random direction, "skip" leaves it. protected ids and the embedding come from the model
    unless given here.
    preset="paper" is the published method (odd with alpha 8, unless others are given) in its own arithmetic: the precision of
    the logits, residuals up to 1e-6 skipped.
    backend: "auto" does without autograd in all features and objectives of ours (for max_pool as fused Triton kernels on a
    GPU), and with it for functions of your own; "triton", "closed_form" and "reference" can be asked for by name.
    remember: keep what the batch explores, so that `denoise(..., history=first.history)` goes on from there: "exact", or
    "sparse" for large vocabularies (see `oddlm.diversity.memory`).
    """

    objective: str | Mapping[str, Any] | Objective = OPEN
    feature: str | Mapping[str, Any] | Pooling | Feature = FEATURE
    alpha: float = OPEN
    schedule: str | Mapping[str, Any] | AlphaSchedule = SCHEDULE
    duplicates: DuplicateMode | None = None
    tolerance: float | None = None
    gradient: Gradient = GRADIENT
    protected: Collection[int] | None = None
    embedding: Tensor | None = None
    preset: Preset | None = None
    backend: Backend = "auto"
    remember: Form | None = None

    def __post_init__(self) -> None:
        """Settle what is open, and refuse bad settings at once, not at the first step."""
        named = {name: getattr(self, name) for name in ("objective", "alpha", "preset")}
        settled = {"objective": OBJECTIVE, "alpha": ALPHA, **expanded({k: v for k, v in named.items() if v is not OPEN})}
        for name in ("objective", "alpha"):
            object.__setattr__(self, name, settled[name])
        build_objective(self.objective)
        build_feature(self.feature)
        SCHEDULES.build(self.schedule)
        finite("alpha", self.alpha)
        for name, value, allowed in (
            ("duplicates", self.duplicates, get_args(DuplicateMode)),
            ("gradient", self.gradient, get_args(Gradient)),
            ("preset", self.preset, get_args(Preset)),
            ("backend", self.backend, get_args(Backend)),
            ("remember", self.remember, get_args(Form)),
        ):
            if value is not None:
                one_of(name, value, allowed)
        if self.preset is not None and (self.duplicates, self.tolerance) != (None, None):
            raise ValueError("preset 'paper' fixes duplicates and tolerance: give the preset or those, not both")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must lie in [0, 1), not {self.tolerance!r}")
        if self.backend == "closed_form" and not self.traced:
            raise ValueError(
                f"backend 'closed_form' needs a feature with a trace ({', '.join(_traced())}), an objective with a slope "
                f"({', '.join(_having(slope_of))}), no preset"
            )
        if self.backend == "triton" and not self.fusible:
            raise ValueError(
                "backend 'triton' needs feature max_pool over probs without top_k, an objective with a slope in "
                f"coordinates ({', '.join(_having(weigh_of))}), no preset"
            )
        if self.remember is not None:
            self.check_memory()

    def check_memory(self) -> None:
        """Refuse settings under which a batch cannot go on from an earlier one."""
        if getattr(OBJECTIVES.build(self.objective), "coupled", False):
            raise ValueError(f"objective {self.objective!r} couples all samples of a batch: none goes on from another")
        if self.preset is not None:
            raise ValueError(f"preset {self.preset!r} has no memory of earlier batches")

    @property
    def idle(self) -> bool:
        """Is this plain sampling?"""
        return self.alpha == 0 or OBJECTIVES.build(self.objective) is OBJECTIVES.find("none")

    @property
    def traced(self) -> bool:
        """Can it do without autograd?"""
        sloped = slope_of(OBJECTIVES.build(self.objective)) is not None
        return build_feature(self.feature).traced and sloped and self.preset is None

    @property
    def closed(self) -> bool:
        """Does the closed form for max-pooled probabilities apply?"""
        feature = build_feature(self.feature)
        pooled = (
            feature.pooling is FEATURES.find("max_pool")
            and feature.space == "probs"
            and feature.rank is None
            and not feature.ignore_ids
        )
        return pooled and self.traced

    @property
    def fusible(self) -> bool:
        """Does it apply as fused kernels?"""
        whole = build_feature(self.feature).top_k is None
        return self.closed and whole and weigh_of(OBJECTIVES.build(self.objective)) is not None

    def session(self, model: Model, history: History | None) -> "Repulsion | Remembering | None":
        """The guide of one run with this model: this one, or one that reads what earlier batches explored and remembers
        what it adds; None for plain sampling.
        """
        if self.idle:
            return None
        embedding = getattr(model, "embedding", None) if self.embedding is None else self.embedding
        build_feature(self.feature).check(model.vocab_size, embedding)
        if self.protected is not None:
            ids("protected", self.protected, model.vocab_size)
        if history is None and self.remember is None:
            return self
        self.check_memory()
        earlier = None if history is None else history.memory
        if history is not None and not isinstance(earlier, Explored):
            raise ValueError("history holds no directions: make the first batch with Repulsion(..., remember='exact')")
        form = self.remember or (earlier.form if isinstance(earlier, Explored) else "exact")
        return Remembering(self, cast("Explored | None", earlier), Explored(form))

    @property
    def duplicate_rule(self) -> Duplicates:
        if self.preset == "paper":
            return Duplicates("skip", tolerance=1e-6, native=True)
        return Duplicates(self.duplicates or "break", 1e-3 if self.tolerance is None else self.tolerance)

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        """Guided logits; the input is not changed, and comes back itself where there is nothing to do."""
        return logits if self.idle else self.push(logits, step)

    def push(self, logits: Tensor, step: Step, history: Explored | None = None, record: Explored | None = None) -> Tensor:
        """Guided logits; repels from what `history` holds of this step too, and writes what is explored into `record`."""
        kernel = choice.choose(self.backend, logits, traced=self.traced, closed=self.closed, fused=self.fusible)
        guided: Tensor = self._run(kernel, kernel.repel, logits, step, history, record)
        return guided.flatten(0, 1)

    def fused(
        self,
        logits: Tensor,
        positions: Tensor | None,
        step: Step,
        history: Explored | None = None,
        record: Explored | None = None,
    ) -> Any:
        """`push` as a `kernels.triton.Push`, which forms the guided logits where they are needed; None where that cannot be.

        positions [B, m]: whose logits these are; None: all.
        """
        kernel = choice.choose(self.backend, logits, traced=self.traced, closed=self.closed, fused=self.fusible)
        if not hasattr(kernel, "plan"):
            return None
        return self._run(kernel, partial(kernel.plan, positions=positions, never=step.never), logits, step, history, record)

    @torch.no_grad()
    def _run(
        self,
        kernel: Any,
        call: Callable[..., Any],
        logits: Tensor,
        step: Step,
        history: Explored | None,
        record: Explored | None,
    ) -> Any:
        """What `call` of a kernel makes of these logits; what it explored goes into `record`."""
        objective, feature = OBJECTIVES.build(self.objective), build_feature(self.feature)
        embedding = step.embedding if self.embedding is None else self.embedding
        keys_of = getattr(kernel, "keys_of", reference.keys_of)
        how = reference.Repel(
            extract=partial(feature.extract, embedding=embedding),
            trace=partial(feature.trace, embedding=embedding) if feature.traced else None,
            top_k=feature.top_k,
            objective=objective,
            slope=slope_of(objective),
            weigh=weigh_of(objective),
            need=need_of(objective),
            sequential=getattr(objective, "sequential", False),
            probes=getattr(objective, "probes", False),
            duplicates=self.duplicate_rule,
            raw_gradient=self.gradient == "raw",
            protected=step.protected if self.protected is None else tuple(self.protected),
            keys=keys_of(step, noise.Purpose.DIRECTION, 1).view(-1, step.n),
            remember=record is not None,
        )
        alpha = self.alpha * SCHEDULES.build(self.schedule)(step.time_left, step.total)
        grouped = [x.unflatten(0, (-1, step.n)) for x in (logits, step.tokens, step.masked, alpha)]
        earlier = None if history is None else history.rows(step.index, feature.label, len(step.seeds)).to(logits.device)
        result, added = call(*grouped, earlier, how)
        if record is not None:
            assert added is not None
            record.add(step.index, feature.label, extend(earlier, added))
        return result


def _traced() -> list[str]:
    return [name for name in FEATURES.names if build_feature(name).traced]


def _having(form: Callable[[Objective], Any]) -> list[str]:
    """The objectives that have one, save the one that pushes nothing."""
    return [name for name in OBJECTIVES.names if name != "none" and form(OBJECTIVES.build(name)) is not None]


@dataclass(frozen=True, slots=True)
class Remembering:
    """A Repulsion during one run: repels from earlier batches too, and remembers this one for later ones."""

    repulsion: Repulsion
    earlier: Explored | None
    memory: Explored

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        return self.repulsion.push(logits, step, self.earlier, self.memory)

    def fused(self, logits: Tensor, positions: Tensor | None, step: Step) -> Any:
        return self.repulsion.fused(logits, positions, step, self.earlier, self.memory)


def diversify(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    *,
    alpha: float,
    objective: str | Mapping[str, Any] | Objective = OPEN,
    feature: str | Mapping[str, Any] | Pooling | Feature = FEATURE,
    n: int | None = None,
    protected: Collection[int] = (),
    duplicates: DuplicateMode | None = None,
    tolerance: float | None = None,
    gradient: Gradient = GRADIENT,
    seed: int | Sequence[int] = 0,
    step: int = 0,
    embedding: Tensor | None = None,
    preset: Preset | None = None,
    backend: Backend = "auto",
    history: Explored | None = None,
    record: Explored | None = None,
) -> Tensor:
    """Push the samples of a batch apart: the one line to add to a sampling loop of your own, before it picks tokens.

    logits [B, S, V] of the generated positions, tokens [B, S] as they stand, masked [B, S] bool. B = groups x n, the samples
    of one prompt being neighbours (n=None: one group). alpha is used as it is: multiply it with a schedule of your own. Where
    a duplicate is broken the direction depends on seed (one, or one per group) and step. `protected` ids (EOS, PAD) are
    never pushed. To go on in a second batch, give the first one `record=Explored()` and the second the same object as
    `history`. The other arguments are those of `Repulsion`. Returns new logits of the same dtype; committed positions and
    all other inputs stay as they are.
    """
    finite("alpha", alpha)
    guide = Repulsion(
        objective=objective,
        feature=feature,
        alpha=alpha,
        schedule="constant",
        duplicates=duplicates,
        tolerance=tolerance,
        gradient=gradient,
        embedding=embedding,
        preset=preset,
        backend=backend,
    )
    n = _check_batch(logits, tokens, masked, n, protected)
    build_feature(guide.feature).check(logits.shape[-1], embedding)
    for name, value in (("history", history), ("record", record)):
        if value is not None and not isinstance(value, Explored):
            raise ValueError(f"{name} must be an oddlm.Explored, not {type(value).__name__}")
    check_logits(logits, masked)
    here = Step(
        index=step,
        total=1,
        tokens=tokens.long(),
        masked=masked,
        open=masked,
        n=n,
        first_sample=0 if history is None else history.samples_at(step),
        seeds=noise.seed_tensor(seed, len(logits) // n, logits.device),
        parallel=False,
        protected=tuple(protected),
        embedding=embedding,
    )
    if history is None and record is None:
        return guide(logits, here)
    guide.check_memory()
    return guide.push(logits, here, history, record)


def _check_batch(logits: Tensor, tokens: Tensor, masked: Tensor, n: int | None, protected: Collection[int]) -> int:
    if logits.dim() != 3 or logits.dtype not in FLOATS or 0 in logits.shape:
        known = ", ".join(str(f).removeprefix("torch.") for f in FLOATS)
        raise ValueError(f"logits must be {known} of shape [B, S, V], not {logits.dtype} {tuple(logits.shape)}")
    B, S, V = logits.shape
    for name, value in (("tokens", tokens), ("masked", masked)):
        if value.shape != (B, S):
            raise ValueError(f"{name} must have shape {(B, S)} like logits, not {tuple(value.shape)}")
    if tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens must be int64 or int32, not {tokens.dtype}")
    if masked.dtype != torch.bool:
        raise ValueError(f"masked must be bool, not {masked.dtype}")
    n = B if n is None else whole("n", n)
    if B % n:
        raise ValueError(f"n must divide the batch of {B} rows, not {n}")
    committed = tokens[~masked]
    if committed.numel() and not 0 <= int(committed.min()) <= int(committed.max()) < V:
        raise ValueError(f"tokens holds a committed id outside the vocabulary 0..{V - 1}")
    ids("protected", protected, V)
    return n

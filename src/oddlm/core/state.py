"""The state of a run between two steps, and the plan that is made once per run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .alarm import Alarm, Check
from .blocks import Blocks
from .choose import Outlook
from .drafts import Reviser
from .explore import prompt_nudge
from .guide import Backend, RunGuide, has_ended
from .model import ModelInfo, Query
from .process import Editing, Process
from .quota import Moment, Quota, quotas
from .settings import Settings
from .step import Denoised, Draft, History, Memory, Policy, Prediction, Step

VERSION = 4  # of a pickled State: raise it whenever its fields change


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided once per run."""

    run: str  # id of the run
    settings: Settings
    info: ModelInfo
    quota: Quota
    total: int  # the most steps; reviews of edited blocks come on top
    schedule: tuple[Moment, ...] | None  # every step; None if not known in advance
    ends: Tensor  # the step by which each block of each sample is written
    policy: Policy
    parallel: bool
    process: Process
    drafts: Reviser | None  # None if the model does not draft
    guide: RunGuide | None
    backend: Backend
    predict: Callable[[Outlook], Prediction]
    stops: bool
    seeds: Tensor  # [G]
    first_sample: int
    prompts: Tensor  # [B, start], left-padded
    prompt_lengths: Tensor  # [B]
    given: Tensor | None  # [B, L] bool: tokens of a template
    never: tuple[int, ...]  # ids that are never written
    late: Tensor  # ids that are committed late
    made_with: Mapping[str, Any]

    @property
    def remasks(self) -> bool:
        return bool(getattr(self.policy, "remasks", False))

    @property
    def edits(self) -> bool:
        return isinstance(self.process, Editing)

    def guide_at(self, index: int) -> RunGuide | None:
        """Return the guide that acts at a step, if one does."""
        planned = self.total
        if self.drafts is not None:
            planned = self.quota.steps_per_block
            index %= planned
        return None if has_ended(self.guide, index, planned) else self.guide

    def guide_from(self, index: int) -> RunGuide | None:
        """Return the guide that acts at a step or at a later one, if one does."""
        later = self.total - self.quota.steps_per_block
        return self.guide_at(index if self.drafts is None or index >= later else later)

    def to(self, device: torch.device) -> "Plan":
        backend = self.backend.to(device)
        moved: dict[str, Any] = {
            f.name: x.to(device)
            for f in fields(self)
            if isinstance(x := getattr(self, f.name), Tensor)
        }
        embedding = None if self.info.embedding is None else self.info.embedding.to(device)
        guide = None if self.guide is None else self.guide.to(device, backend)
        return replace(
            self,
            info=replace(self.info, device=device, embedding=embedding),
            backend=backend,
            guide=guide,
            **moved,
        )


@dataclass(frozen=True)
class State:
    """A run between two steps. It is immutable and can be pickled."""

    plan: Plan
    index: int  # of the next step
    tokens: Tensor  # [B, L]
    blocks: Blocks
    commit_step: Tensor  # [B, L] int64: the step that wrote each token; -1 if none did
    confidence: Tensor | None
    """[B, L] float64: confidence of each token when it was written; only if a policy remasks."""
    nfe: Tensor  # [B] int64: network evaluations of each sample
    live: Tensor | None  # [R]: indices of the samples that still need the network; None means all
    done: bool
    memory: Memory | None  # the guide's memory
    reviews: Tensor | None = None
    """[B, blocks]: steps in which each block was open without a mask; only if a policy edits."""
    draft: Draft | None = None  # of a model that drafts
    alarms: tuple[Check, ...] = ()  # checks of logits that have not been read back yet
    version: int = field(default=VERSION, init=False)

    @property
    def backend(self) -> Backend:
        """The implementation that computes this run."""
        return self.plan.backend

    @cached_property
    def guide(self) -> RunGuide | None:
        """The guide of the next step; None without one, and once it has ended."""
        return self.plan.guide_at(self.index)

    @property
    def masked(self) -> Tensor:
        """[B, L] bool: not yet committed."""
        return self.blocks.masked

    @cached_property
    def step(self) -> Step:
        """The next step as policies and guides see it."""
        plan = self.plan
        step = Step(
            index=self.index,
            total=max(plan.total, self.index + 1),
            tokens=self.tokens,
            blocks=self.blocks,
            n=plan.settings.n,
            first_sample=plan.first_sample,
            seeds=plan.seeds,
            given=plan.given,
            parallel=plan.parallel,
            protected=plan.info.protected,
            never=plan.never,
            draft=self.draft,
            block_steps=None if plan.drafts is None else plan.quota.steps_per_block,
        )
        if plan.edits:
            return self._with_editing(step)
        if not plan.remasks:
            return step
        here = self.blocks.inside
        target = step.open.sum(dim=1) - quota_of(plan, step)
        return replace(
            step,
            confidence=self.confidence,
            revisable=here & (self.commit_step >= 0),
            target=target,
        )

    def _with_editing(self, step: Step) -> Step:
        assert self.reviews is not None
        blocks = self.blocks
        block = blocks.current.clamp(max=blocks.count - 1)[:, None]
        return replace(
            step,
            editable=blocks.inside & blocks.unfinished & ~blocks.masked,
            reviews=self.reviews.gather(1, block)[:, 0],
            reviewed=self.reviews.sum(dim=1),
        )

    @property
    def open_only(self) -> bool:
        """Whether only the logits of open positions are read.

        A guide reads those of all masked positions, unless those of pending ones mean nothing.
        """
        info = self.plan.info
        return info.open_only or (info.selective and self.guide is None)

    @property
    def answered(self) -> Tensor:
        """[B, L]: positions whose logits are read."""
        read = self.blocks.open if self.open_only else self.masked
        return read if self.step.editable is None else read | self.step.editable

    @cached_property
    @torch.no_grad()
    def query(self) -> Query | None:
        """The logits that the run needs next; None when it is finished."""
        if self.done:
            return None
        plan, live = self.plan, self.live
        positions, nudge = self._positions(), None
        if plan.settings.prompt_noise and plan.prompts.shape[1]:
            assert plan.info.embedding is not None
            scale, embedding = plan.settings.prompt_noise, plan.info.embedding
            nudge = prompt_nudge(plan.prompts, plan.prompt_lengths, self.step, scale, embedding)
        tokens = torch.cat([plan.prompts, self.tokens], dim=1)
        lengths, blocks = plan.prompt_lengths, self.blocks
        echo = None if self.draft is None else self.draft.echo
        if live is not None:
            tokens, lengths, blocks = tokens[live], lengths[live], blocks[live]
            positions, nudge, echo = (
                None if x is None else x[live] for x in (positions, nudge, echo)
            )
        start = plan.prompts.shape[1]
        return Query(
            plan.run,
            self.index,
            tokens,
            start,
            lengths,
            live,
            positions,
            nudge,
            blocks,
            low=None if plan.schedule is None else plan.schedule[self.index].low,
            echo=echo,
        )

    def _positions(self) -> Tensor | None:
        """Return the answered positions [B, m], ascending, or None for all.

        A sample with fewer than m of them is filled up with other positions.
        """
        plan = self.plan
        if not plan.info.selective:
            return None
        if plan.schedule is None:
            # Waits for a GPU, which costs less than the output head at all positions.
            m = int(self.answered.sum(dim=1).max())
        else:
            moment = plan.schedule[self.index]
            m = moment.open if self.open_only else moment.masked
        if m == self.tokens.shape[1]:
            return None
        flags = self.answered.view(torch.uint8)
        return flags.argsort(dim=1, descending=True, stable=True)[:, :m].contiguous()

    @property
    def result(self) -> Denoised:
        """The finished batch; ValueError before the end of the run."""
        if not self.done:
            raise ValueError(
                f"the run is not finished: step {self.index} of at most {self.plan.total} is next"
            )
        plan = self.plan
        history = History(plan.first_sample + plan.settings.n, plan.made_with, self.memory)
        return Denoised(
            self.tokens, self.commit_step, self.nfe, plan.seeds, plan.settings.n, history
        )

    def to(self, device: str | torch.device) -> "State":
        """Return the run on another device.

        With the same logits it writes the same tokens, apart from rounding in the guide.
        """
        Alarm(patient=False, pending=list(self.alarms)).sound()
        place = torch.device(device)
        moved: dict[str, Any] = {
            f.name: x.to(place)
            for f in fields(self)
            if isinstance(x := getattr(self, f.name), Tensor)
        }
        memory = None if self.memory is None else self.memory.to(place)
        draft = None if self.draft is None else self.draft.to(place)
        return replace(
            self,
            plan=self.plan.to(place),
            blocks=self.blocks.to(place),
            memory=memory,
            draft=draft,
            alarms=(),
            **moved,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle tensors on the CPU; unpickling returns them to their device, if it exists."""
        here = self.to("cpu")
        held = {f.name: getattr(here, f.name) for f in fields(here) if f.init}
        return _restore, (VERSION, str(self.tokens.device), held)


def _restore(version: int, device: str, held: dict[str, Any]) -> State:
    if version != VERSION:
        raise ValueError(
            f"the state has version {version}, but this oddlm reads version {VERSION}: finish the "
            "run with the oddlm that began it"
        )
    state = State(**held)
    there = torch.device(device).type != "cuda" or torch.cuda.is_available()
    return state.to(device) if there and device != "cpu" else state


def quota_of(plan: Plan, step: Step) -> Tensor | int:
    """Return how many positions a step commits, or would commit without a fork."""
    if plan.drafts is not None:
        return plan.drafts.quota(step)
    schedule, index = plan.schedule, step.index
    if schedule is not None and not (plan.settings.fork and index == 0):
        left = schedule[index + 1].masked if index + 1 < len(schedule) else 0
        return schedule[index].masked - left
    return quotas(step, plan.ends, down=plan.quota.down)

"""What follows from a step: which samples still need the network, and whether the run is done."""

from dataclasses import replace

import torch

from .process import Editing
from .state import State
from .step import Decision, Draft, Step


def settled(state: State) -> State:
    """Update which samples still need the network, and whether the run is done.

    This waits for a GPU only if the answer cannot be known in advance.
    """
    plan = state.plan
    schedule = plan.schedule
    if state.index >= (plan.total if schedule is None else len(schedule)) and not plan.edits:
        return replace(state, done=True)
    if plan.drafts is not None:
        return _opened(_stopped(state) if plan.stops else state)
    if schedule is not None and not (plan.stops and state.index and schedule[state.index].opens):
        return state
    if plan.stops:
        state = _stopped(state)
    busy = state.blocks.unfinished.any(dim=1)
    live = busy.nonzero().squeeze(1)
    if len(live) == len(busy):
        return replace(state, live=None)
    if state.live is not None and len(live) == len(state.live):
        live = state.live  # the same samples, which sessions know by this tensor
    return replace(state, live=live, done=not len(live))


def _opened(state: State) -> State:
    """Open the next block of a model that drafts once no sample has any left in the present one."""
    plan, steps = state.plan, state.plan.quota.steps_per_block
    while state.index < plan.total:
        block, done = divmod(state.index, steps)
        blocks = replace(state.blocks, front=block)
        busy = blocks.open.any(dim=1)
        if busy.any():
            live = None if busy.all() else busy.nonzero().squeeze(1)
            draft = state.draft if done else Draft.empty(state.tokens)
            return replace(state, blocks=blocks, live=live, draft=draft)
        state = replace(state, index=(block + 1) * steps)
    return replace(state, done=True)


def _stopped(state: State) -> State:
    """Fill the samples whose text ended in a finished block with the token that ended it."""
    plan, blocks, guide = state.plan, state.blocks, state.plan.guide_from(state.index)
    ends = torch.isin(state.tokens, torch.tensor(plan.info.end_ids, device=state.tokens.device))
    ends &= (state.commit_step >= 0) & (blocks.ids < blocks.current[:, None])
    stopped = ends.any(dim=1)
    if guide is not None:  # samples that are pushed away from this one need its logits
        later = stopped.view(-1, plan.settings.n).flip(1).long().cumprod(dim=1).flip(1).bool()
        stopped = (
            later if guide.looks_back else later.all(dim=1, keepdim=True).expand_as(later)
        ).flatten()
    fill = state.tokens.gather(1, ends.byte().argmax(dim=1, keepdim=True))
    here = stopped[:, None] & state.masked
    return replace(
        state,
        tokens=torch.where(here, fill, state.tokens),
        blocks=blocks.with_masked(state.masked & ~here).settle(stopped[:, None]),
    )


def reviewed(state: State, step: Step, decision: Decision) -> State:
    """Settle the blocks that a step found finished; nothing changes if no token is edited."""
    process, before = state.plan.process, step.blocks
    if not isinstance(process, Editing):
        return state
    assert state.reviews is not None
    settled = process.settled(step, decision.commit)
    here = torch.arange(before.count, device=settled.device) == before.current[:, None]
    return replace(
        state,
        blocks=state.blocks.settle(settled[:, None] & before.inside),
        reviews=state.reviews + (here & step.reviewing[:, None]),
    )


def blanked(state: State) -> State:
    """Fill the masked positions with the process's blank tokens (MASK or noise)."""
    if state.done or (state.index and not state.plan.process.renews):
        return state
    blank = state.plan.process.blank(state.step)
    return replace(state, tokens=torch.where(state.masked, blank, state.tokens))

"""A run of the reverse diffusion, as an immutable value.

    state = begin(...)                          # checks, canvas, blocks, seeds, backend
    while (query := state.query) is not None:   # the logits that the run needs next
        logits = session(query)                 # the only network call, made by the caller
        state, event = advance(state, logits)   # push, choose, commit
    result = state.result

A `State` can be pickled between two steps and continued elsewhere, and two calls of `advance` with
the same state and logits give the same result. (On a GPU, bad logits are reported some steps late,
because checking them at once would make the CPU wait.)
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .agree import agreed
from .alarm import Alarm
from .choose import Outlook, delay, look, probability
from .explore import fork_cells, order_noise
from .model import ModelInfo, Query
from .quota import select
from .settle import blanked, reviewed, settled
from .state import Plan, State, quota_of
from .step import (
    ABSENT,
    Decision,
    Prediction,
    Proposal,
    Step,
    StepEvent,
)


@torch.no_grad()
def advance(state: State, logits: Tensor, *, query: Query | None = None) -> tuple[State, StepEvent]:
    """Take one step with the answer to `state.query`, and return the new state and what happened.

    The old state is not changed.

    Args:
        state: The run before the step.
        logits: [R, m, V] for the m positions of the query, or [R, L, V] if it asks for all.
        query: The query that the logits answer; if given, it must be the current one.

    Raises:
        ValueError: The run is finished, or the logits do not answer its current query.
    """
    plan, current = state.plan, state.query
    if current is None:
        raise ValueError("the run is finished: there is no query to answer")
    if query is not None and (query.run, query.number) != (current.run, current.number):
        same_run = query.run == current.run
        given = f"query {query.number} of this run" if same_run else "a query of another run"
        raise ValueError(
            f"the logits answer {given}, but query {current.number} is the current one"
        )
    check_answer(logits, current, plan.info)
    alarm = Alarm(state.tokens.is_cuda, list(state.alarms))
    step = state.step
    answer, positions = logits, current.positions
    if state.live is not None:  # nothing is read of the other samples
        place = torch.zeros(len(step.tokens), dtype=torch.long, device=logits.device)
        place[state.live] = torch.arange(len(logits), device=logits.device)
        answer, positions = logits[place], None if positions is None else positions[place]
    outlook = Outlook(answer, positions, state.answered, step, alarm, plan.backend)
    outlook, memory = look(outlook, state.guide, state.memory, _as_seen(plan, step))
    forks = plan.settings.fork and state.index == 0
    if forks:
        prediction, decision = _fork(plan, outlook)
        if plan.drafts is not None:
            prediction, decision = plan.drafts.revise(
                prediction, decision.commit, outlook, pushing=True
            )
    else:
        prediction, decision = _propose(plan, step, outlook)
    draft = decision.draft
    shown = decision.commit if draft is None else decision.commit | draft.held
    tokens = torch.where(shown, prediction.tokens, step.tokens)
    masked = step.masked > decision.commit  # masked and not committed, in one operation
    commit_step = state.commit_step.masked_fill(decision.commit, state.index)
    confidence = state.confidence
    if decision.remask is not None:
        masked, commit_step = masked | decision.remask, commit_step.masked_fill(decision.remask, -1)
    if confidence is not None:
        confidence = torch.where(decision.commit, prediction.confidence, confidence)
    passes = plan.info.passes
    nfe = (
        state.nfe + passes
        if state.live is None
        else state.nfe.index_add(0, state.live, torch.full_like(state.live, passes))
    )
    after = replace(
        state,
        index=state.index + 1,
        tokens=tokens,
        blocks=state.blocks.with_masked(masked),
        commit_step=commit_step,
        confidence=confidence,
        nfe=nfe,
        memory=memory,
        draft=draft,
        alarms=tuple(alarm.pending),
    )
    after = reviewed(after, step, decision)
    changed = forks or outlook.pushed is not None
    plain = partial(_plain, plan, step, outlook) if changed else None
    event = StepEvent(step, prediction, decision, outlook, after.blocks, plain)
    after = blanked(settled(after))
    if after.done:
        alarm.sound()
        after = replace(after, alarms=())
    return after, event


def _as_seen(plan: Plan, step: Step) -> Step:
    """Return the step as a guide sees it: without given tokens and unanswered positions."""
    if plan.given is not None:
        step = replace(step, tokens=step.tokens.masked_fill(plan.given, ABSENT))
    if not plan.info.open_only:
        return step
    tokens = step.tokens.masked_fill(step.blocks.pending, ABSENT)
    return replace(step, tokens=tokens, open_only=True)


def check_answer(logits: Any, query: Query, info: ModelInfo) -> None:
    """Raise ValueError for logits that cannot be the answer to this query."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"the model returned {type(logits).__name__}, not a tensor of logits")
    R, T = query.tokens.shape
    m = T - query.start if query.positions is None else query.positions.shape[1]
    expected = (R, m, info.vocab_size)
    if logits.shape != expected:
        raise ValueError(f"model returned logits {tuple(logits.shape)}, expected {expected}")
    if logits.device != query.tokens.device:
        raise ValueError(
            f"model returned logits on {logits.device}, but the run is on {query.tokens.device}"
        )
    if not logits.is_floating_point() or (info.dtype is not None and logits.dtype != info.dtype):
        wanted = "floating-point numbers" if info.dtype is None else str(info.dtype)
        raise ValueError(f"model returned logits of {logits.dtype}, expected {wanted}")


def _propose(plan: Plan, step: Step, outlook: Outlook) -> tuple[Prediction, Decision]:
    """Return the tokens that a step proposes with these logits, and where it writes them."""
    settings, drafts = plan.settings, plan.drafts
    heat = {} if drafts is None else {"temperature": drafts.heat(step)}
    prediction, proposal = asked = _ask(plan, step, outlook, heat)
    quota = quota_of(plan, step)
    score, remask, edit = proposal.score, proposal.remask, proposal.edit
    if plan.parallel and drafts is None and outlook.pushed is not None:
        score = agreed(asked, _ask(plan, step, outlook.without_guide(), heat))
    if settings.order_temperature > 0:
        score = score + order_noise(step, settings.order_temperature)
    if remask is not None:
        if step.revisable is None:
            raise ValueError(
                "a policy that remasks tokens must be declared with @oddlm.policy(remasks=True)"
            )
        assert step.target is not None
        remask = remask & step.revisable
        # At most as many as may be masked after this step.
        remask = remask & (remask.cumsum(dim=1) <= step.target[:, None])
        quota = quota + remask.sum(dim=1)
    chosen = select(score, quota, step, outlook.alarm)
    if drafts is not None:
        pushing = plan.guide_at(step.index) is not None
        return drafts.revise(prediction, chosen, outlook, pushing=pushing)
    if edit is not None:
        if step.editable is None:
            raise ValueError(
                "a policy that edits tokens must be declared with @oddlm.policy(edits=True)"
            )
        chosen = chosen | (edit & step.editable & (prediction.tokens != step.tokens))
    return prediction, Decision(chosen, remask)


def _plain(plan: Plan, step: Step, outlook: Outlook) -> tuple[Prediction, Decision]:
    """Return what `_propose` would without the guide."""
    return _propose(plan, step, outlook.without_guide())


def _ask(
    plan: Plan, step: Step, outlook: Outlook, heat: Mapping[str, float]
) -> tuple[Prediction, Proposal]:
    """Return the tokens that are drawn from these logits, and what the policy says to them."""
    prediction = plan.predict(outlook, **heat)
    answer = plan.policy(delay(prediction, plan.late, step.open), step)
    return prediction, answer if isinstance(answer, Proposal) else Proposal(answer)


def _fork(plan: Plan, outlook: Outlook) -> tuple[Prediction, Decision]:
    """Take the first step of a fork: it writes one token in each sample, all different."""
    tokens, commit = fork_cells(outlook.base, outlook.step, plan.settings.fork_temperature)
    prediction = plan.predict(outlook)
    tokens = torch.where(commit, tokens, prediction.tokens)
    confidence = torch.where(
        commit, probability(outlook.pushed_logits, tokens, commit), prediction.confidence
    )
    prediction = replace(prediction, tokens=tokens, confidence=confidence, logprobs=None)
    return prediction, Decision(commit)

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

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import noise
from .agree import agreed
from .alarm import Alarm
from .blocks import Blocks
from .canvas import Prompt, Template, lay_prompts, lay_templates
from .choose import Outlook, delay, look, predict, probability
from .drafts import Reviser
from .explore import fork_cells, order_noise
from .guide import Backend, Guide
from .model import ModelInfo, Query
from .policies import POLICIES
from .process import Absorbing, Editing, Process, Remasking, Renoising, Uniform
from .quota import Moment, Quota, plan_quota, select
from .settings import Settings
from .state import Plan, State, quota_of
from .step import (
    ABSENT,
    Decision,
    Draft,
    History,
    Prediction,
    Proposal,
    Step,
    StepEvent,
)


def begin(
    prompts: Sequence[Prompt],
    settings: Settings,
    info: ModelInfo,
    *,
    backend: Backend,
    guide: Guide | None = None,
    history: History | None = None,
    templates: Sequence[Template] | None = None,
) -> State:
    """Begin a run and return its first state.

    Args:
        prompts: Token ids of each prompt, of any lengths; each gets settings.n samples.
        settings: How the samples are drawn.
        info: The model that will answer the queries.
        backend: The implementation that computes the run.
        guide: Changes the logits at every step.
        history: That of a `Denoised` with the same prompts and settings, to continue from it with
            n more samples per prompt.
        templates: For each prompt `length` tokens, with None for each token to be written.

    Raises:
        ValueError: Arguments that do not fit each other or the model.
    """
    settings.check(info)
    policy = POLICIES.build(settings.policy)
    parallel, remasks, edits = (
        bool(getattr(policy, name, False)) for name in ("parallel", "remasks", "edits")
    )
    quota = plan_quota(
        settings.length,
        settings.steps,
        settings.block_length,
        info,
        fork=settings.fork,
        remasks=remasks,
    )
    left, lengths = lay_prompts(prompts, settings.n, info)
    B, L = len(left), quota.length
    answers, given = lay_templates(templates, settings.n, L, len(prompts), info)
    masked = torch.ones(B, L, dtype=torch.bool, device=left.device) if given is None else ~given
    blocks = Blocks.lay(masked, quota.block_length, lengths, info.align)
    blocks = replace(blocks, unsettled=masked) if edits else blocks
    ends = quota.ends(blocks)
    aligned = info.align == "answer"
    seeds = noise.seed_tensor(settings.seed, len(prompts), left.device)
    made_with = {
        "model": info.identity,
        "length": L,
        "steps": quota.steps,
        "block_length": quota.block_length,
        "prompts": [[int(t) for t in p] for p in prompts],
        "seed": seeds.tolist(),
        "templates": None if templates is None else [list(t) for t in templates],
    }
    drafts = Reviser.of(info, settings)
    untimed = parallel and drafts is None  # samples end at steps of their own
    _check_history(history, made_with, untimed)
    earlier = None if history is None else history.memory
    running = (
        None if guide is None else guide.begin(info, backend, earlier, resumes=history is not None)
    )
    memory = None if running is None else running.memory
    if untimed and memory is not None:
        raise ValueError(
            "guide cannot remember a history with a parallel policy: samples end at different steps"
        )
    if settings.stop_at_end and memory is not None:
        raise ValueError(
            "guide cannot remember a history with stop_at_end: samples end at different steps"
        )
    masks = set() if info.mask_id is None else {info.mask_id}
    never = tuple(sorted({*settings.suppress} | masks))
    confidence = "sampled" if settings.sampled(info) else "full"
    plan = Plan(
        run=uuid.uuid4().hex,
        settings=settings,
        # A state is pickled, so it holds the embedding only if it needs it.
        info=info if settings.prompt_noise else replace(info, embedding=None),
        quota=quota,
        total=quota.steps if aligned else quota.most_steps(fork=settings.fork),
        schedule=None
        if parallel or edits or given is not None or drafts is not None
        else _schedule(quota, prompts, info, fork=settings.fork),
        ends=ends,
        policy=policy,
        parallel=parallel,
        process=_process(info, never, remasks=remasks, edits=edits),
        drafts=drafts,
        guide=running,
        backend=backend,
        predict=partial(
            predict,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            needs=getattr(policy, "needs", None),
            confidence=confidence,
        ),
        stops=settings.stop_at_end and bool(info.end_ids),
        seeds=seeds,
        first_sample=0 if history is None else history.samples,
        prompts=left,
        prompt_lengths=lengths,
        given=given,
        never=never,
        late=torch.tensor(
            sorted(settings.suppress_confidence), dtype=torch.long, device=left.device
        ),
        made_with=made_with,
    )
    tokens = torch.zeros(B, L, dtype=torch.long, device=left.device) if answers is None else answers
    state = State(
        plan=plan,
        index=0,
        tokens=tokens,
        blocks=blocks,
        commit_step=torch.full((B, L), -1, device=left.device),
        confidence=torch.zeros(B, L, dtype=torch.float64, device=left.device) if remasks else None,
        nfe=torch.zeros(B, dtype=torch.long, device=left.device),
        live=None,
        done=False,
        memory=memory,
        reviews=torch.zeros(B, blocks.count, dtype=torch.long, device=left.device)
        if edits
        else None,
    )
    return _blanked(_settled(state))


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
    after = _reviewed(after, step, decision)
    changed = forks or outlook.pushed is not None
    plain = partial(_plain, plan, step, outlook) if changed else None
    event = StepEvent(step, prediction, decision, outlook, after.blocks, plain)
    after = _blanked(_settled(after))
    if after.done:
        alarm.sound()
        after = replace(after, alarms=())
    return after, event


def _as_seen(plan: Plan, step: Step) -> Step:
    """Return the step as a guide sees it: without given tokens and unanswered positions."""
    if plan.given is not None:
        step = replace(step, tokens=step.tokens.masked_fill(plan.given, ABSENT))
    if plan.info.block_length is None:
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


def _reviewed(state: State, step: Step, decision: Decision) -> State:
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


def _blanked(state: State) -> State:
    """Fill the masked positions with the process's blank tokens (MASK or noise)."""
    if state.done or (state.index and not state.plan.process.renews):
        return state
    blank = state.plan.process.blank(state.step)
    return replace(state, tokens=torch.where(state.masked, blank, state.tokens))


def _settled(state: State) -> State:
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
    return replace(state, live=None if len(live) == len(busy) else live, done=not len(live))


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


def _schedule(
    quota: Quota, prompts: Sequence[Prompt], info: ModelInfo, *, fork: bool
) -> tuple[Moment, ...] | None:
    """Return the schedule of the samples, or None if their blocks differ."""
    if info.align == "answer":
        return quota.schedule(0, fork=fork)
    before = {len(prompt) % quota.block_length for prompt in prompts}
    return quota.schedule(before.pop(), fork=fork) if len(before) == 1 else None


def _process(info: ModelInfo, never: tuple[int, ...], *, remasks: bool, edits: bool) -> Process:
    if remasks and info.drafting is not None:
        raise ValueError(
            f"{info.identity} writes a block as a whole, once it is finished, so a policy has no "
            "token to remask"
        )
    if edits and (remasks or info.process == "uniform"):
        raise ValueError(
            "a policy that edits tokens can neither remask them nor run on a uniform model"
        )
    if info.process == "uniform":
        kind = Uniform if info.drafting is None else Renoising
        return kind(info.vocab_size, never)
    if info.mask_id is None:
        raise ValueError(f"{info.name} has no mask_id: an absorbing model needs one")
    if edits:
        return Editing(info.mask_id)
    return Remasking(info.mask_id) if remasks else Absorbing(info.mask_id)


def _check_history(history: History | None, made_with: Mapping[str, Any], parallel: bool) -> None:
    if history is None:
        return
    if parallel:
        raise ValueError(
            "a parallel policy cannot continue from a history: samples end at different steps"
        )
    for name, value in made_with.items():
        if (was := history.made_with[name]) != value:
            raise ValueError(f"history was made with {name} {was}, not {value}")

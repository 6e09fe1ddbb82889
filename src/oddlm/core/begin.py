"""The first state of a run: checks, canvas, blocks, seeds, and the plan of all its steps."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from . import noise
from .blocks import Blocks
from .canvas import Prompt, Template, lay_prompts, lay_templates
from .choose import predict
from .drafts import Reviser
from .guide import Backend, Guide
from .model import ModelInfo
from .policies import POLICIES
from .process import Absorbing, Editing, Process, Remasking, Renoising, Uniform
from .quota import Moment, Quota, plan_quota
from .settings import Settings
from .settle import blanked, settled
from .state import Plan, State
from .step import History


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
    return blanked(settled(state))


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

"""The reverse diffusion: a masked canvas in, tokens out. Everything else in the package serves this loop."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Required, TypedDict, Unpack

import torch
from torch import Tensor

from . import noise
from .alarm import Alarm, memory_advice
from .checks import finite, ids, one_of, whole
from .policies import POLICIES
from .presets import POLICY, TEMPERATURE
from .progress import step_progress
from .prompt_noise import prompt_nudge
from .sampling import CONFIDENCES, Outlook, delay, fork_cells, look, predict, probability
from .schedule import Schedule, select
from .types import (
    Denoised,
    Guide,
    History,
    Model,
    Network,
    Observer,
    Policy,
    Prediction,
    Step,
    StepEvent,
    called,
    check_protocol,
    identity,
    is_selective,
    open_session,
    protected_ids,
)

Prompt = Sequence[int] | Tensor
HOTTEST = 1000.0  # beyond, Gumbel noise would overflow where it matters


class Options(TypedDict, total=False):
    """The keyword arguments that `denoise` shares with `denoise_steps`."""

    n: Required[int]
    length: Required[int]
    steps: Required[int]
    temperature: float
    policy: str | Mapping[str, Any] | Policy
    confidence: str | None
    guide: Guide | None
    seed: int | Sequence[int]
    block_length: int | None
    top_k: int | None
    top_p: float | None
    suppress: Collection[int]
    suppress_confidence: Collection[int]
    order_temperature: float
    fork: bool
    fork_temperature: float
    prompt_noise: float
    history: History | None


def denoise(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    observe: Observer | Sequence[Observer] | None = None,
    progress: bool | None = None,
    **options: Unpack[Options],
) -> Denoised:
    """Draw n samples of `length` tokens for every prompt, in `steps` network evaluations.

    n, length, steps and all other options are those of `denoise_steps`. Observers are called with a StepEvent after every
    step. `progress` draws a bar on stderr (None: where that is a terminal and the run takes longer than a moment).
    """
    observers = (observe,) if callable(observe) else tuple(observe or ())
    run = denoise_steps(model, prompts, **options)
    with step_progress(progress) as tick:
        while True:
            try:
                event = next(run)
            except StopIteration as end:
                result: Denoised = end.value
                return result
            for observer in (*observers, tick):
                observer(event)
            del event  # it holds arrays as large as the logits, and the next pass needs their room


def denoise_steps(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    n: int,
    length: int,
    steps: int,
    temperature: float = TEMPERATURE,
    policy: str | Mapping[str, Any] | Policy = POLICY,
    confidence: str | None = None,
    guide: Guide | None = None,
    seed: int | Sequence[int] = 0,
    block_length: int | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    suppress: Collection[int] = (),
    suppress_confidence: Collection[int] = (),
    order_temperature: float = 0.0,
    fork: bool = False,
    fork_temperature: float = 0.0,
    prompt_noise: float = 0.0,
    history: History | None = None,
) -> Generator[StepEvent, None, Denoised]:
    """`denoise`, one step per `next()`, so that a caller can stop between two. Arguments are checked at once.

    prompts: token ids, of any lengths; each gets n samples.
    steps: network evaluations; they divide evenly over the blocks. Parallel policies may need fewer.
    temperature: of the Gumbel-max choice; 0 is the argmax.
    policy: which positions to commit (`oddlm.policies`): a name, {"name": ..., option: ...}, a dotted path or a function.
    confidence: what the policy's confidence, margin or entropy is taken from. "full": the guided distribution, before filters
        and temperature. "sampled": the one that tokens are drawn from, which then is Dream's, temperature before filters, all
        in the precision of the logits. Default: the model's own (Dream's is "sampled", all others' "full"), or "full" for a
        parallel policy, whose bounds a sampled distribution would pass everywhere.
    guide: logits -> logits at every step, for instance `oddlm.Repulsion(alpha=16)`; default: none, plain sampling.
    seed: one for all (each prompt derives its own, the first keeps it) or one per prompt.
    block_length: decode blocks of this length from left to right; default is one block.
    top_k, top_p: filters on the guided distribution, before temperature (after it where confidence is "sampled").
    suppress: ids that are never written (MASK never is). suppress_confidence: ids that are written late.
    order_temperature: Gumbel noise on the log-score that picks positions.
    fork: step 0 commits one cell per sample, the j-th likeliest (position, token) for sample j.
    fork_temperature: of the fork: its cells are drawn without replacement, not ranked.
    prompt_noise: noise on the embeddings of the prompt, as a share of their length, that fades over the steps (models with
        `nudges`: those of this package, without a cache).
    history: `history` of a Denoised with the same prompts and settings; the samples go on from there, n more per prompt.
    """
    check_protocol(model)
    schedule = Schedule.plan(length, steps, block_length, fork=fork)
    _check_blocks(model, schedule)
    policy = POLICIES.build(policy)
    n = whole("n", n)
    heats = {"temperature": temperature, "order_temperature": order_temperature, "fork_temperature": fork_temperature}
    for name, value in heats.items():
        finite(name, value, most=HOTTEST)
    _check_filters(top_k, top_p)
    _check_prompt_noise(model, prompt_noise)
    _check_ids(model, suppress, suppress_confidence)
    canvas, prompt_lengths = lay_canvas(model, prompts, n, schedule.length)
    seeds = noise.seed_tensor(seed, len(prompts), canvas.device)
    parallel = getattr(policy, "parallel", False)
    if confidence is None:
        confidence = "full" if parallel else getattr(model, "confidence", "full")
    one_of("confidence", confidence, CONFIDENCES)
    made_with = {
        "model": identity(model),
        "length": schedule.length,
        "steps": schedule.steps,
        "block_length": schedule.block_length,
        "prompts": [[int(t) for t in p] for p in prompts],
        "seed": seeds.tolist(),
    }
    _check_history(history, made_with, parallel)
    session = getattr(guide, "session", None)
    guide = guide if session is None else session(model, history)
    if parallel and hasattr(guide, "memory"):
        raise ValueError("a parallel policy ends at steps of its own: there is no history to remember")
    reverse = _Reverse(
        model=model,
        schedule=schedule,
        policy=policy,
        parallel=parallel,
        counts=None if parallel else schedule.counts(fork=fork),
        guide=guide,
        n=n,
        seeds=seeds,
        first_sample=0 if history is None else history.samples,
        predict=partial(
            predict,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            needs=getattr(policy, "needs", None),
            confidence=confidence,
        ),
        never=tuple(sorted({model.mask_id, *suppress})),
        late=torch.tensor(sorted(suppress_confidence), dtype=torch.long, device=canvas.device),
        order_temperature=order_temperature,
        fork=fork,
        fork_temperature=fork_temperature,
        prompt_noise=prompt_noise,
        made_with=made_with,
    )
    return reverse.run(canvas, prompt_lengths)


@dataclass(frozen=True, slots=True)
class _Reverse:
    """The reverse diffusion itself, all arguments checked."""

    model: Model
    schedule: Schedule
    policy: Policy
    parallel: bool
    counts: list[int] | None  # masked positions of every row before each step; a parallel policy's are not known
    guide: Guide | None
    n: int
    seeds: Tensor
    first_sample: int
    predict: Callable[[Outlook], Prediction]
    never: tuple[int, ...]  # ids that are never written
    late: Tensor  # ids that are written late
    order_temperature: float
    fork: bool
    fork_temperature: float
    prompt_noise: float
    made_with: Mapping[str, Any]

    def run(self, canvas: Tensor, prompt_lengths: Tensor) -> Generator[StepEvent, None, Denoised]:
        start, nfe, alarm = canvas.shape[1] - self.schedule.length, 0, Alarm(patient=canvas.is_cuda)
        with torch.no_grad():
            model = open_session(self.model, start, prompt_lengths, self.schedule.length, self.schedule.block_length)
        masked = torch.ones_like(canvas[:, start:], dtype=torch.bool)
        commit_step = torch.full_like(canvas[:, start:], -1)
        for index in range(self.schedule.steps):
            if self.parallel and not masked.any():  # waits for a GPU, which is less than a network evaluation too many
                break
            step = self.step(index, canvas[:, start:], masked)
            event = self.take(model, canvas, start, prompt_lengths, step, alarm)
            nfe += getattr(self.model, "passes", 1)
            yield event

            canvas = torch.cat([canvas[:, :start], torch.where(event.commit, event.prediction.tokens, step.tokens)], dim=1)
            commit_step = commit_step.masked_fill(event.commit, index)
            masked = masked & ~event.commit
            del event  # it holds arrays as large as the logits, and the next pass needs their room
        alarm.sound()
        history = History(self.first_sample + self.n, self.made_with, getattr(self.guide, "memory", None))
        return Denoised(canvas[:, start:], commit_step, nfe, self.seeds, self.n, history)

    @torch.no_grad()  # and not of run(): torch keeps what a generator yielded until it yields again
    def take(self, network: Network, canvas: Tensor, start: int, prompt_lengths: Tensor, step: Step, alarm: Alarm) -> StepEvent:
        """One step: what it writes and where."""
        with memory_advice(step, self.model.vocab_size, _item_bytes(self.model), *_network_rows(self.model, canvas)):
            outlook = look(*self.ask(network, canvas, start, prompt_lengths, step), step, self.guide, alarm)
            forced = fork_cells(outlook.base, step, self.fork_temperature) if self.fork and step.index == 0 else None
            prediction, commit = self.propose(outlook) if forced is None else self.begin(outlook, *forced)
        plain = None if forced is None and not outlook.is_guided else partial(self.propose, outlook.without_guide())
        return StepEvent(step, prediction, commit, outlook, plain)

    def ask(
        self, network: Network, canvas: Tensor, start: int, prompt_lengths: Tensor, step: Step
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, m, V] and their positions [B, m]: the masked ones, where network and schedule allow, else all (None)."""
        B, L = step.tokens.shape
        m = self.counts[step.index] if self.counts is not None and is_selective(network) else L
        positions = None if m == L else step.masked.byte().argsort(dim=1, descending=True, stable=True)[:, :m].contiguous()
        aside = {} if positions is None else {"positions": positions}
        if self.prompt_noise and start:
            aside["nudge"] = prompt_nudge(canvas[:, :start], prompt_lengths, step, self.prompt_noise)
        logits = network(canvas, start, prompt_lengths, **aside)
        if logits.shape != (expected := (B, m, self.model.vocab_size)):
            raise ValueError(f"model returned logits {tuple(logits.shape)}, expected {expected}")
        return logits, positions

    def begin(self, outlook: Outlook, tokens: Tensor, commit: Tensor) -> tuple[Prediction, Tensor]:
        """The step of a fork: it writes these tokens, and where."""
        prediction = self.predict(outlook)
        tokens = torch.where(commit, tokens, prediction.tokens)
        confidence = torch.where(commit, probability(outlook.guided, tokens, commit), prediction.confidence)
        return replace(prediction, tokens=tokens, confidence=confidence, logprobs=None), commit

    def propose(self, outlook: Outlook) -> tuple[Prediction, Tensor]:
        """What a step writes with these logits, and where."""
        step, prediction = outlook.step, self.predict(outlook)
        score = self.policy(delay(prediction, self.late), step)
        if self.order_temperature > 0:
            keys = noise.key(*step.address(), step.index, noise.Purpose.ORDER)
            score = score + self.order_temperature * noise.gumbel(keys, self.schedule.length)
        return prediction, select(score, self.quota(step), step, outlook.alarm)

    def quota(self, step: Step) -> Tensor | int:
        """How many positions the policy commits, or would in place of a fork."""
        if self.counts is None or (self.fork and step.index == 0):
            return self.schedule.quota(step)
        return self.counts[step.index] - self.counts[step.index + 1]

    def step(self, index: int, tokens: Tensor, masked: Tensor) -> Step:
        return Step(
            index=index,
            total=self.schedule.steps,
            tokens=tokens,
            masked=masked,
            open=self.schedule.open(masked),
            n=self.n,
            first_sample=self.first_sample,
            seeds=self.seeds,
            parallel=self.parallel,
            protected=protected_ids(self.model),
            embedding=getattr(self.model, "embedding", None),
            never=self.never,
        )


def lay_canvas(model: Model, prompts: Sequence[Prompt], n: int, length: int) -> tuple[Tensor, Tensor]:
    """Left-padded prompts, each n times, then `length` masks: canvas [B, start + length], prompt lengths [B]."""
    if not len(prompts):
        raise ValueError("prompts is empty: give at least one prompt")
    device = torch.device(getattr(model, "device", "cpu"))
    rows = [_prompt(i, prompt, model.vocab_size).to(device) for i, prompt in enumerate(prompts)]
    start = max(len(row) for row in rows)
    canvas = torch.full((len(rows), start + length), model.mask_id, device=device)  # what fills the padding is never read
    for i, row in enumerate(rows):
        canvas[i, start - len(row) : start] = row
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return canvas.repeat_interleave(n, dim=0), lengths.repeat_interleave(n)


def _prompt(i: int, prompt: Prompt, vocab_size: int) -> Tensor:
    try:
        row = torch.as_tensor(prompt)
        if row.dim() != 1 or (len(row) and (row.is_floating_point() or row.dtype == torch.bool)):
            raise TypeError(f"{row.dtype} of shape {tuple(row.shape)}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"prompts[{i}] must be a flat sequence of token ids, not {error}") from error
    row = row.long()
    if len(row) and not 0 <= int(row.min()) <= int(row.max()) < vocab_size:
        raise ValueError(f"prompts[{i}] holds a token id outside the vocabulary 0..{vocab_size - 1}")
    return row


def _check_blocks(model: Model, schedule: Schedule) -> None:
    """A network that is causal over blocks cannot write across the border of two."""
    own, asked = getattr(model, "block_length", None), schedule.block_length
    if own is not None and own % asked and (asked < schedule.length or asked > own):
        raise ValueError(
            f"{identity(model)} is block-causal, in blocks of {own} tokens, and {asked} were to be written as one block: "
            f"give block_length={own} or a divisor of it"
        )


def _check_ids(model: Model, suppress: Collection[int], suppress_confidence: Collection[int]) -> None:
    ids("mask_id", [model.mask_id], model.vocab_size)
    ids("end_ids", model.end_ids, model.vocab_size)
    ids("protected_ids", protected_ids(model), model.vocab_size)
    ids("suppress_confidence", suppress_confidence, model.vocab_size)
    if len({model.mask_id, *ids("suppress", suppress, model.vocab_size)}) == model.vocab_size:
        raise ValueError("suppress holds the whole vocabulary: nothing is left to write")


def _check_filters(top_k: int | None, top_p: float | None) -> None:
    if top_k is not None:
        whole("top_k", top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1] or be None, not {top_p!r}")


def _check_prompt_noise(model: Model, scale: float) -> None:
    if finite("prompt_noise", scale, most=HOTTEST) and not getattr(model, "nudges", False):
        raise ValueError(
            "prompt_noise needs a model whose prompt embeddings can be nudged: mini, toy, or a checkpoint, loaded "
            f"without a cache, not {called(model)}"
        )


def _check_history(history: History | None, made_with: Mapping[str, Any], parallel: bool) -> None:
    if history is None:
        return
    if parallel:
        raise ValueError("a parallel policy ends at steps of its own: it cannot go on from a history")
    for name, value in made_with.items():
        if (was := history.made_with[name]) != value:
            raise ValueError(f"history was made with {name} {was}, not {value}")


def _item_bytes(model: Model) -> int:
    """Of a logit, as far as a model's embedding shows it."""
    embedding = getattr(model, "embedding", None)
    return 4 if embedding is None else int(embedding.element_size())


def _network_rows(model: Model, canvas: Tensor) -> tuple[int, int | None]:
    """How many rows the network sees at a time, and the bytes it holds of each, where it says so."""
    B, T = canvas.shape
    row_bytes: Callable[[int], int] | None = getattr(model, "row_bytes", None)
    return min(B, getattr(model, "max_batch", B)), None if row_bytes is None else row_bytes(T)

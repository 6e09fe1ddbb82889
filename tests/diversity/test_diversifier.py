"""`Diversifier`: what `diversify` does, made once for all steps of a loop, and a fork."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import oddlm
from oddlm import Diversifier, Explored, Repulsion, diversify
from oddlm.diversity import repulsion

from ..registered import FEATURES, UNCOUPLED

N, S, V, STEPS = 4, 6, 30, 8


def loop(seed: int = 0, batch: int = 2 * N) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Logits, tokens and masked positions of a loop that writes from left to right."""
    g = torch.Generator().manual_seed(seed)
    steps = []
    for step in range(STEPS):
        masked = (torch.arange(S) >= step // 2).expand(batch, S)
        logits = 2 * torch.randn(batch, S, V, generator=g)
        steps.append((logits, torch.randint(V, (batch, S), generator=g), masked))
    return steps


@pytest.mark.parametrize("end", [1.0, 0.5])
@pytest.mark.parametrize("backend", ["closed_form", "reference"])
def test_it_is_diversify_at_every_step(backend, end):
    push = Diversifier(
        Repulsion("odd", alpha=8, alpha_end=end, protected=[3], backend=backend),
        n=N,
        steps=STEPS,
        seed=7,
    )
    for step, batch in enumerate(loop()):
        time_left = 1 - step / (end * STEPS)
        expected = diversify(
            *batch,
            alpha=8 * max(time_left, 0),
            objective="odd",
            n=N,
            protected=[3],
            seed=7,
            step=step,
            backend=backend,
        )
        pushed = push(*batch, step=step)
        torch.testing.assert_close(pushed, expected, rtol=0, atol=0)
        assert (pushed is batch[0]) == (time_left <= 0)


def test_it_is_the_guide_of_a_run(toy):
    """The same logits, pushed by a run and by hand."""
    guide, events = Repulsion("odd", alpha=8), []
    oddlm.denoise(toy, [[5]], n=N, length=S, steps=S, seed=3, guide=guide, observe=events.append)
    push = Diversifier(replace(guide, protected=toy.end_ids), n=N, steps=S, seed=3)
    assert len(events) == S
    for step, event in enumerate(events):
        here = event.step
        pushed = push(event.base_logits, here.tokens, here.masked, step=step)
        assert torch.equal(pushed[here.masked], event.pushed_logits[here.masked])


@pytest.mark.parametrize("objective", UNCOUPLED)
def test_a_second_batch_continues(objective):
    """The later half of one batch is a second batch that knows the directions of the first."""
    guide = Repulsion(objective, alpha=8, alpha_end=0.5, remember="exact")
    whole, first = (Diversifier(guide, n=n, steps=STEPS) for n in (2 * N, N))
    batches = loop(batch=2 * N)
    together = [whole(*batch, step=step) for step, batch in enumerate(batches)]
    ones = [first(*(x[:N] for x in batch), step=step) for step, batch in enumerate(batches)]
    second = Diversifier(guide, n=N, steps=STEPS, history=first.memory)
    for step, (one, both, batch) in enumerate(zip(ones, together, batches, strict=True)):
        if step == STEPS // 2:  # nothing is pushed or remembered any more
            break
        later = second(*(x[N:] for x in batch), step=step)
        torch.testing.assert_close(torch.cat([one, later]), both, rtol=1e-5, atol=1e-5)
    assert sorted(first.memory.steps) == sorted(second.memory.steps) == list(range(STEPS // 2))
    assert second.memory.samples_at(0) == 2 * N


def test_without_tokens_written_ones_do_not_count():
    logits, tokens, masked = loop()[4]
    push = Diversifier(Repulsion("odd", alpha=8), n=N, steps=STEPS)
    assert not masked.all()
    absent = torch.full_like(tokens, -1)
    assert torch.equal(push(logits, None, masked, step=4), push(logits, absent, masked, step=4))
    assert not torch.equal(push(logits, None, masked, step=4), push(logits, tokens, masked, step=4))
    everywhere = torch.ones_like(masked)
    assert torch.equal(push(logits, step=4), push(logits, tokens, everywhere, step=4))


def test_a_sample_without_open_positions_is_none_of_the_others_business():
    logits = loop()[0][0][:N]
    masked = torch.ones(N, S, dtype=torch.bool)
    masked[1] = False
    for fork in (False, True):
        push = Diversifier(Repulsion("odd", alpha=8), n=N, steps=STEPS, fork=fork)
        pushed = push(logits, None, masked, step=0)
        assert torch.equal(pushed[1], logits[1])
        others = [0, 2, 3]
        alone = Diversifier(Repulsion("odd", alpha=8), n=3, steps=STEPS)(logits[others], step=0)
        torch.testing.assert_close(pushed[others].isfinite().all(), torch.tensor(not fork))
        if not fork:
            torch.testing.assert_close(pushed[others], alone)


def test_a_fork_leaves_one_token_at_one_position():
    logits = loop()[0][0]
    push = Diversifier(Repulsion("odd", alpha=8, protected=[2]), n=N, steps=STEPS, fork=True)
    plain = Diversifier(Repulsion("odd", alpha=8, protected=[2]), n=N, steps=STEPS)
    pushed, expected = push(logits, step=0), plain(logits, step=0).clone()
    for row in range(2 * N):
        cells = logits[row].log_softmax(dim=-1)
        cells[:, 2] = -torch.inf
        position, token = divmod(int(cells.flatten().argsort(descending=True)[row % N]), V)
        expected[row, position] = -torch.inf
        expected[row, position, token] = logits[row, position, token]
    assert torch.equal(pushed, expected)
    assert torch.equal(push(logits, step=1), plain(logits, step=1))


def test_a_fork_needs_no_push_and_goes_on_after_a_history():
    logits = loop()[0][0][:N]
    plain = Diversifier(Repulsion(alpha=0), n=N, steps=STEPS, fork=True)
    forked = plain(logits, step=0)
    assert (forked.isneginf().any(dim=2).sum(dim=1) == 1).all()
    assert torch.equal(logits, loop()[0][0][:N])
    assert plain(logits, step=1) is logits
    first = Diversifier(Repulsion("odd", alpha=8, remember="exact"), n=N, steps=STEPS, fork=True)
    first(logits, step=0)
    second = Diversifier(
        Repulsion("odd", alpha=8), n=N, steps=STEPS, fork=True, history=first.memory
    )
    cells = set()
    for row in [*first(logits, step=0), *second(logits, step=0)]:
        position = int(row.isneginf().any(dim=1).int().argmax())
        cells.add((position, int(row[position].argmax())))
    assert len(cells) == 2 * N


def test_settings_are_resolved_once(monkeypatch):
    built = []
    feature = repulsion.build_feature
    monkeypatch.setattr(repulsion, "build_feature", lambda f: built.append(f) or feature(f))
    push = Diversifier(Repulsion("odd", alpha=8), n=N, steps=STEPS)
    batches = loop()
    push(*batches[0], step=0)
    built.clear()
    for step, batch in enumerate(batches):
        push(*batch, step=step)
    assert built == []


@pytest.mark.parametrize("feature", FEATURES)
def test_dtypes_may_change_between_calls(feature):
    logits = loop()[0][0]
    push = Diversifier(Repulsion("odd", alpha=8, feature=feature), n=N, steps=STEPS)
    for dtype in (torch.float32, torch.float64, torch.float32):
        pushed = push(logits.to(dtype), step=0)
        assert pushed.dtype == dtype
        torch.testing.assert_close(pushed.float(), push(logits, step=0), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"n": 0}, "n must be .* not 0"),
        ({"steps": 0}, "steps must be .* not 0"),
        ({"seed": "x"}, "seed .* 'x'"),
        ({"guide": "odd"}, "guide .* str"),
        ({"history": {}}, "history .* dict"),
        ({"guide": Repulsion("dpp"), "history": Explored()}, "couples"),
    ],
)
def test_bad_settings_are_refused_when_it_is_made(settings, told):
    with pytest.raises(ValueError, match=told):
        Diversifier(**{"n": N, "steps": STEPS, **settings})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"step": STEPS}, f"0..{STEPS - 1}, not {STEPS}"),
        ({"step": -1}, "not -1"),
        ({"logits": torch.zeros(6, S, V)}, f"6 samples, not {N}"),
        ({"logits": torch.zeros(N, V)}, r"\(4, 30\)"),
        ({"masked": torch.ones(N, S, dtype=torch.bool)}, "masked"),
        ({"tokens": torch.zeros(2 * N, S)}, "tokens"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_call(change, told):
    logits, tokens, masked = loop()[0]
    batch = {"logits": logits, "tokens": tokens, "masked": masked, "step": 0, **change}
    if change.get("logits") is not None:
        del batch["tokens"], batch["masked"]
    with pytest.raises(ValueError, match=told):
        Diversifier(n=N, steps=STEPS)(**batch)


def test_the_fused_kernels_do_the_same(monkeypatch):
    """With absent tokens, a sample that has ended, a fork and a history."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    logits, _, masked = loop(batch=N)[4]
    masked = masked.clone()
    masked[2] = False
    results = []
    for backend in ("triton", "closed_form"):
        guide = Repulsion("odd", alpha=8, protected=[3], backend=backend, remember="exact")
        with np.errstate(all="ignore"):  # numpy warns of inf - inf; a GPU does not
            first = Diversifier(guide, n=N, steps=STEPS, fork=True)
            earlier = first(logits, None, masked, step=0)
            second = Diversifier(guide, n=N, steps=STEPS, fork=True, history=first.memory)
            results.append(torch.cat([earlier, second(logits, None, masked, step=0)]))
    assert (results[0] != logits.repeat(2, 1, 1)).any()
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_call_waits_for_no_gpu():
    logits = torch.randn(2 * N, S, V, device="cuda")
    push = Diversifier(Repulsion("odd", alpha=8, protected=[3]), n=N, steps=STEPS, fork=True)
    push(logits, step=0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(STEPS):
            push(logits, step=step)
    finally:
        torch.cuda.set_sync_debug_mode("default")

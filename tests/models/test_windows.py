"""Windows of several runs, computed together: each gets what it gets alone."""

from itertools import product

import pytest
import torch

import oddlm
from oddlm.core.run import advance
from oddlm.models.native import Native
from oddlm.models.windows import joined
from oddlm.sampler import begin

from .test_cache import CLOSE, SHAPES, model

SIZE, WIDTH = 4, 20  # rows of a pass, and positions that windows are padded to
RUNS = [([[5, 6, 7]], 12, 4), ([[8, 9, 10, 11, 12], [13]], 16, 4), ([[]], 8, 2), ([[14]], 9, 3)]


def begun(tiny):
    """Return runs with different prompts, lengths and blocks, at different steps, and sessions."""
    found = []
    for late, (prompts, length, block) in enumerate(RUNS):
        state = begin(
            tiny,
            prompts,
            n=3,
            length=length,
            steps=length,
            block_length=block,
            temperature=1.0,
            guide=oddlm.Repulsion(alpha=4),
            seed=late,
        )
        session = tiny.session(state.query)
        for _ in range(2 * late):
            state, _ = advance(state, session(state.query))
        found.append((state, session))
    return found


def sizes_of(windows):
    return [SIZE] * -(-sum(len(window.tokens) for window in windows) // SIZE)


@pytest.mark.parametrize(("shape", "cache"), list(product(SHAPES, ["prefix", "dual"])))
def test_joined_windows_say_what_windows_alone_say(shape, cache):
    tiny = model(shape, cache=cache)
    alone, together = begun(tiny), begun(tiny)
    shared = 0
    while any(not state.done for state, _ in alone):
        running = [i for i, (state, _) in enumerate(alone) if not state.done]
        steps = [together[i][1].prepare(together[i][0].query) for i in running]
        windows = [window for step in steps for window in step.windows]
        shared = max(shared, len(windows))
        rest = joined(tiny.network, windows, WIDTH, sizes_of(windows)) if windows else []
        for i, step in zip(running, steps, strict=True):
            own, rest = rest[: len(step.windows)], rest[len(step.windows) :]
            (state, session), (other, _) = alone[i], together[i]
            logits, again = session(state.query), step.finish(own)
            assert (logits - again).abs().max() < CLOSE
            alone[i] = advance(state, logits)[0], session
            together[i] = advance(other, again)[0], together[i][1]
    assert shared >= len(RUNS) - 1
    for (state, _), (other, _) in zip(alone, together, strict=True):
        assert torch.equal(state.result.tokens, other.result.tokens)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_company_and_place_change_no_bit(cache):
    """Passes of the same size, in single precision; some windows are divided among two of them."""
    tiny = model("grouped", cache=cache)
    tiny = Native(tiny.network.float(), name="tiny", mask_id=49, end_ids=(1,), cache=cache)
    windows = []
    for state, session in begun(tiny):
        state, _ = advance(state, session(state.query))
        windows += session.prepare(state.query).windows
    assert len(windows) > 2
    alone = [joined(tiny.network, [one], WIDTH, sizes_of([one]))[0] for one in windows]
    for some in (windows, windows[::-1], windows[1:]):
        for one, found in zip(some, joined(tiny.network, some, WIDTH, sizes_of(some)), strict=True):
            assert torch.equal(found, alone[windows.index(one)])

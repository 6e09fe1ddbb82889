"""Inside a block the host asks the device nothing: neither the run for a query nor the session."""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import oddlm
from oddlm.core.model import info_of
from oddlm.core.run import advance
from oddlm.sampler import begin

from .test_cache import model

# what a GPU must finish before the host can go on
WAITING = ("_local_scalar_dense", "nonzero", "unique_dim", "_unique2", "equal", "masked_select")
STEPS, BLOCKS = 12, 3
CASES = list(product((None, "prefix", "dual"), (False, True)))


class Waits(TorchDispatchMode):
    """Counts the operations whose result or shape the host has to know."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        tolist = torch.Tensor.tolist
        monkeypatch.setattr(
            torch.Tensor, "tolist", lambda x: self.seen.append("tolist") or tolist(x)
        )

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in WAITING:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("cache", "pushed"), list(product((None, "prefix", "dual"), (False, True)))
)
def test_a_step_inside_a_block_waits_for_nothing(cache, pushed, monkeypatch):
    tiny = model("grouped", cache=cache)
    state = begin(
        info_of(tiny),
        [[5, 6, 7], [8, 9]],
        n=4,
        length=12,
        steps=STEPS,
        block_length=12 // BLOCKS,
        temperature=1.0,
        guide=oddlm.Repulsion(alpha=4) if pushed else None,
    )
    session, waits = tiny.session(state.query), []
    while not state.done:
        with monkeypatch.context() as patch, Waits(patch) as counted:
            logits = session(state.query)
        waits.append(counted.seen)
        state, _ = advance(state, logits)
    assert len(waits) == STEPS
    assert waits[0]  # the counter counts: the first step finds out which samples are alike
    fills = set() if cache is None else set(range(0, STEPS, STEPS // BLOCKS))
    assert {i for i, seen in enumerate(waits) if seen} <= {0} | fills

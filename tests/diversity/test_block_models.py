"""Repulsion with block-causal models: what is compared is the answer so far, which is what is
written and the open block, without the blocks that the network has not answered for.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from oddlm import ModelInfo, Repulsion, advance, begin, denoise
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig

V, MASK, END, L, N = 23, 22, 1, 10, 4
INFO = ModelInfo(
    V, MASK, (END,), dtype=torch.float64, block_length=4, align="absolute", selective=True
)
POOLS = {
    "max_pool": lambda canvas: canvas.amax(dim=0),
    "mean_pool": lambda canvas: canvas.sum(dim=0) / L,
}


def brute_force(logits, tokens, written, open_, alpha, pool):
    """Push the samples [n, L, V] of one prompt apart, one position after the other."""
    x = logits.clone().requires_grad_()
    basis, losses = [], []
    for i in range(len(x)):
        probs = [x[i, j].softmax(dim=-1) for j in range(L) if open_[i, j]]
        known = [one_hot(tokens[i, j], V).double() for j in range(L) if written[i, j]]
        feature = pool(torch.stack(known + probs))
        unit = feature / feature.norm()
        direction = unit.detach().clone()
        for earlier in basis:
            direction = direction - (direction @ earlier) * earlier
        direction = direction / direction.norm()
        quality = torch.stack([p.max() for p in probs]).mean()
        if basis:
            losses.append(-quality * (unit @ direction))
        basis.append(direction)
    (gradient,) = torch.autograd.grad(sum(losses), x)
    gradient[..., END] = 0.0
    largest = gradient.norm(dim=-1).amax(dim=-1)
    scale = alpha / largest.where(largest > 0, 1.0)
    return logits - scale[:, None, None] * gradient


@pytest.mark.parametrize("policy", ["random", {"name": "threshold", "threshold": 0.3}], ids=str)
@pytest.mark.parametrize(
    ("pool", "backend"),
    [("max_pool", "reference"), ("max_pool", "closed_form"), ("mean_pool", "auto")],
)
def test_the_answer_so_far_is_compared(pool, backend, policy):
    """With a parallel policy, samples are in different blocks."""
    guide = Repulsion("odd", alpha=5, feature=pool, backend=backend, tolerance=1e-9)
    options = {"n": N, "length": L, "steps": L, "temperature": 1.0, "policy": policy}
    state = begin(INFO, [[5, 6, 7]], guide=guide, **options)
    generator, compared, apart = torch.Generator().manual_seed(0), 0, False
    while (query := state.query) is not None and query.samples is None:
        step = state.step
        everything = 3 * torch.randn(N, L, V, generator=generator, dtype=torch.float64)
        everything[..., MASK] = -torch.inf
        positions = torch.arange(L).expand(N, -1) if query.positions is None else query.positions
        answer = everything.gather(1, positions[..., None].expand(-1, -1, V))
        alpha = 5 * step.time_left
        state, event = advance(state, answer)
        open_ = step.blocks.open
        expected = brute_force(
            everything, step.tokens, ~step.blocks.masked, open_, alpha, POOLS[pool]
        )
        difference = (event.pushed_logits - expected)[open_].nan_to_num(nan=0.0)
        assert difference.abs().max() < 1e-9
        assert (event.force[~open_] == 0).all()
        assert (event.force[1:][open_[1:]].max()) > 0.1
        compared += int(step.blocks.current.max() > 0)
        apart |= len(set(step.blocks.current.tolist())) > 1
    assert compared > 2
    assert apart == isinstance(policy, dict)


def tiny():
    torch.manual_seed(0)
    config = TransformerConfig(V, width=16, layers=2, heads=2, hidden=24, block_length=4)
    network = Transformer(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return Native(network, name="tiny", mask_id=MASK, end_ids=(END,))


def test_the_fused_kernels_do_the_same(monkeypatch):
    options = {"n": 2, "length": 4, "steps": 4, "temperature": 0.7}
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
    expected = denoise(tiny(), prompts, guide=Repulsion(alpha=6), **options)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    guide = Repulsion(alpha=6, backend="triton")
    with np.errstate(all="ignore"):  # numpy warns of inf - inf; a GPU does not
        assert begin(tiny(), prompts, guide=guide, **options).backend.name == "triton"
        fused = denoise(tiny(), prompts, guide=guide, **options)
    assert torch.equal(fused.tokens, expected.tokens)
    assert torch.equal(fused.commit_step, expected.commit_step)

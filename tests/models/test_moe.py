"""Experts: the published choice, and the same sums one by one, grouped, and by brute force."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from oddlm.models.moe import ExpertConfig, ExpertMLP, choose_experts

SOFTMAX = ExpertConfig(count=8, active=3, hidden=24)
SIGMOID = ExpertConfig(
    count=8,
    active=3,
    hidden=24,
    shared=16,
    scores="sigmoid",
    biased=True,
    groups=4,
    active_groups=2,
    scale=2.5,
)
WIDTH = 16


def made(config, dtype=torch.float32, width=WIDTH, seed=0):
    torch.manual_seed(seed)
    mlp = ExpertMLP(width, config)
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.3)
    return mlp.to(dtype).eval()


def brute_choice(scores, bias, config):
    """Return the weight of every expert for one token; scores and bias are lists."""
    ranked = [s + b for s, b in zip(scores, bias, strict=True)]
    size = config.count // config.groups
    groups = [range(g * size, (g + 1) * size) for g in range(config.groups)]
    # sorted is stable: of equal scores, the first stays first
    best = sorted(groups, key=lambda g: -sum(sorted(ranked[e] for e in g)[-2:]))
    kept = sorted(e for group in best[: config.active_groups] for e in group)
    chosen = sorted(kept, key=lambda e: -ranked[e])[: config.active]
    total = sum(scores[e] for e in chosen) if config.normalised else 1
    return [config.scale * scores[e] / total if e in chosen else 0.0 for e in range(config.count)]


def spread_out(chosen, weights, count):
    """Return the weights [N, active] as a table [N, count]."""
    return torch.zeros(len(chosen), count, dtype=weights.dtype).scatter(1, chosen, weights)


@pytest.mark.parametrize(
    "config",
    [SOFTMAX, replace(SOFTMAX, normalised=False), SIGMOID, replace(SIGMOID, active=4, scale=1.0)],
)
def test_the_choice_is_the_published_one(config):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(50, 8, generator=generator, dtype=torch.float64)
    bias = torch.randn(8, generator=generator, dtype=torch.float64) * config.biased
    chosen, weights = choose_experts(scores, bias if config.biased else None, config)
    expected = [brute_choice(row.tolist(), bias.tolist(), config) for row in scores]
    ours = spread_out(chosen, weights, 8)
    assert torch.allclose(ours, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("config", [SOFTMAX, SIGMOID])
def test_ties_go_to_the_first(config):
    equal = torch.full((3, 8), 0.5)
    chosen, weights = choose_experts(equal, torch.zeros(8), config)
    assert chosen.tolist() == [[0, 1, 2]] * 3
    assert torch.allclose(weights.sum(dim=1), torch.full((3,), config.scale))
    # few different values: ties everywhere
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(1, 4, (200, 8), generator=generator).double() / 4
    ours = spread_out(*choose_experts(scores, None, config), 8)
    expected = [brute_choice(row.tolist(), [0.0] * 8, config) for row in scores]
    assert torch.allclose(ours, torch.tensor(expected, dtype=torch.float64))


def test_a_bias_decides_on_the_choice_and_not_on_the_weight():
    config = replace(SIGMOID, groups=1, active_groups=1)
    scores = torch.linspace(0.1, 0.8, 8)[None]
    bias = torch.tensor([5.0, 0, 0, 0, 0, 0, 0, -5])
    chosen, weights = choose_experts(scores, bias, config)
    assert chosen.tolist() == [[0, 6, 5]]
    assert torch.allclose(weights[0], 2.5 * torch.tensor([0.1, 0.7, 0.6]) / 1.4)


def test_groups_of_negative_scores_are_not_mistaken_for_none():
    config = replace(SIGMOID, active=4)
    bias = torch.full((8,), -3.0)  # what lies outside the groups must not win with 0
    chosen, _ = choose_experts(torch.linspace(0.1, 0.8, 8)[None], bias, config)
    assert sorted(chosen[0].tolist()) == [4, 5, 6, 7]


@pytest.mark.parametrize("config", [SOFTMAX, SIGMOID])
@torch.no_grad()
def test_the_sum_is_that_over_all_experts(config):
    mlp = made(config, torch.float64)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    flat = x.flatten(0, 1)
    table = spread_out(*mlp.router(flat), 8)  # [N, experts]
    expected = torch.zeros_like(flat)
    for e in range(8):
        gate, up = (flat @ mlp.gate_up.weight[e].T).chunk(2, dim=-1)
        expected += table[:, e : e + 1] * ((F.silu(gate) * up) @ mlp.down.weight[e].T)
    if config.shared:
        gate, up = mlp.shared.gate_up(flat).chunk(2, dim=-1)
        expected += mlp.shared.down(F.silu(gate) * up)
    assert (mlp(x) - expected.view_as(x)).abs().max() < 1e-12


@torch.no_grad()
def test_a_router_works_in_float32():
    mlp = made(replace(SOFTMAX, count=64), torch.bfloat16)
    x = torch.randn(40, WIDTH).bfloat16()
    chosen, weights = mlp.router(x)
    assert weights.dtype == torch.float32
    scores = F.linear(x.float(), mlp.router.weight.float()).softmax(dim=-1)
    assert torch.equal(chosen, scores.topk(3).indices)
    assert mlp(x).dtype == torch.bfloat16


@torch.no_grad()
def test_no_tokens():
    assert made(SIGMOID)(torch.empty(2, 0, WIDTH)).shape == (2, 0, WIDTH)


LOADS = {  # tokens per expert
    "even": [3] * 8,
    "some idle": [0, 5, 0, 0, 7, 1, 0, 0],
    "all to the first": [13, 0, 0, 0, 0, 0, 0, 0],
    "all to the last": [0, 0, 0, 0, 0, 0, 0, 13],
    "one token": [0, 0, 1, 0, 0, 0, 0, 0],
}


def compare(mlp, load, device, atol):
    x = torch.randn(sum(load), mlp.down.weight.shape[1]).to(device, mlp.down.weight.dtype)
    ends = torch.tensor(load, device=device).cumsum(0).int()
    loop, grouped = mlp.run_loop(x, ends), mlp.run_grouped(x, ends)
    assert grouped.shape == loop.shape
    assert loop.abs().max() > 0.1
    assert (grouped - loop).abs().max() < atol


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("load", LOADS)
@torch.no_grad()
def test_grouped_products_are_those_of_the_loop(load):
    compare(made(SOFTMAX), LOADS[load], "cpu", 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("load", LOADS)
@torch.no_grad()
def test_grouped_products_are_those_of_the_loop_on_a_gpu(load):
    compare(made(SOFTMAX, torch.bfloat16).cuda(), LOADS[load], "cuda", 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [SOFTMAX, SIGMOID, replace(SOFTMAX, hidden=23)])
@torch.no_grad()
def test_a_gpu_gives_what_a_cpu_gives(config):
    mlp = made(config, torch.bfloat16)
    x = torch.randn(3, 17, WIDTH).bfloat16()
    expected = mlp(x)
    assert mlp.cuda().waits != (config.hidden % 8 == 0 and hasattr(F, "grouped_mm"))
    for rows in (x, x[:1, :1], x[:0]):
        ours = mlp(rows.cuda())
        assert ours.shape == rows.shape
        assert torch.allclose(
            ours.cpu(), expected[: len(rows), : rows.shape[1]], atol=0.1, rtol=0.05
        )

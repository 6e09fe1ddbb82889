"""Noise on the prompt's embeddings: each sample its own, the same in every batch, gone at the end,
and none by default.
"""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from scipy import stats

import oddlm
from oddlm import denoise
from oddlm.core import noise
from oddlm.core.blocks import Blocks
from oddlm.core.explore import annealed, prompt_nudge
from oddlm.core.step import Step
from oddlm.models.mini import Mini
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.models.wrappers import ClassifierFree, MicroBatch

from ..queries import query
from ..tolerances import P_VALUE

SHAPE = {"length": 12, "steps": 6}
PROMPTS = [[5, 6, 7, 8, 9], [11, 12]]
SHAPES = {
    "llada": {"kv_heads": 2, "tied": False},
    "dream": {"kv_heads": 1, "qkv_bias": True, "shift": True},
    "qwen3": {"qk_norm": True, "head_size": 12},
}


def native(shape="llada", **options):
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=50, width=32, layers=2, heads=4, hidden=48, **SHAPES[shape]
    )
    network = Transformer(config).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return Native(network, name="tiny", mask_id=49, end_ids=(1,), **options)


def step_of(model, index=0, total=8, n=2, groups=1, first_sample=0, parallel=False):
    tokens = torch.full((n * groups, 4), model.mask_id)
    masked = torch.ones_like(tokens, dtype=torch.bool)
    seeds = torch.arange(groups) + 7
    return Step(
        index,
        total,
        tokens,
        Blocks(torch.zeros(1, 4).long(), 1, masked),
        n,
        first_sample,
        seeds,
        parallel,
        (1,),
    )


def nudge_of(model, canvas, step, scale):
    return prompt_nudge(*canvas, step, scale, model.embedding)


def canvas_of(*prompts):
    start = max(map(len, prompts))
    rows = [[0] * (start - len(p)) + p for p in prompts]
    return torch.tensor(rows), torch.tensor([len(p) for p in prompts])


def test_a_token_keeps_its_length_and_turns_by_the_scale(toy):
    tokens, lengths = canvas_of([5, 6, 7], [5, 6, 7])
    before = toy.embedding[tokens]
    for scale in (0.1, 1.0, 100.0):
        after = before + nudge_of(toy, (tokens, lengths), step_of(toy), scale)
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))
        cosines = torch.cosine_similarity(after, before, dim=-1)
        tangent = scale * math.cos(math.pi / 16)
        assert cosines.mean() == pytest.approx(1 / math.hypot(1, tangent), abs=0.12)


def test_the_noise_is_standard_normal(toy):
    keys = noise.key(
        torch.tensor([7]), torch.tensor([0]), 0, noise.Purpose.PROMPT, torch.arange(500)
    )
    drawn = noise.normal(keys, 32).flatten()
    assert stats.kstest(drawn.double().numpy(), "norm").pvalue > P_VALUE


def test_it_fades_like_a_quarter_of_a_cosine_and_is_gone_at_the_last_step(toy):
    tokens, lengths = canvas_of([5, 6, 7], [5, 6, 7])
    steps = [step_of(toy, index) for index in range(8)]
    expected = [math.cos(math.pi / 2 * (i + 1) / 8) for i in range(8)]
    assert [annealed(step)[0].item() for step in steps] == pytest.approx(expected)
    assert nudge_of(toy, (tokens, lengths), steps[7], 5.0).abs().max() < 1e-14
    assert len({nudge_of(toy, (tokens, lengths), s, 1.0).sum().item() for s in steps}) == 8, (
        "every step draws anew"
    )


def test_where_the_end_is_not_known_the_masked_share_is_the_clock(toy):
    step = step_of(toy, index=1, total=4, parallel=True)
    masked = torch.tensor([[True, True, True, True], [True, False, False, False]])
    expected = [math.cos(math.pi / 2 * 0.25), math.cos(math.pi / 2)]
    assert annealed(
        replace(step, blocks=step.blocks.with_masked(masked))
    ).tolist() == pytest.approx(expected, abs=1e-12)


def test_a_prompt_is_moved_alike_alone_and_beside_longer_ones(toy):
    alone = nudge_of(toy, canvas_of([5, 6], [5, 6]), step_of(toy), 1.0)
    both = nudge_of(
        toy, canvas_of([5, 6], [5, 6], [7, 8, 9, 10], [7, 8, 9, 10]), step_of(toy, groups=2), 1.0
    )
    assert torch.equal(both[:2, 2:], alone)
    assert not torch.equal(alone[0], alone[1]), "samples have noise of their own"
    assert torch.equal(
        nudge_of(toy, canvas_of([5, 6]), step_of(toy, n=1, first_sample=1), 1.0)[0], alone[1]
    )


def test_large_prompts_are_walked_in_tiles_without_a_change(toy, monkeypatch):
    canvas, step = canvas_of(*[[5, 6, 7]] * 6), step_of(toy, n=6)
    whole = nudge_of(toy, canvas, step, 1.0)
    monkeypatch.setattr(noise, "TILE_ELEMENTS", 200)
    assert torch.equal(nudge_of(toy, canvas, step, 1.0), whole)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_network_hears_the_embeddings_moved(shape):
    """A nudge from one token's embedding to another's is the other token."""
    model = native(shape)
    tokens, lengths = canvas_of([5, 6, 7], [8, 9])
    other = torch.tensor([[5, 20, 7], [0, 8, 30]])
    tail = torch.full((2, 6), 49)
    nudge = model.embedding[other] - model.embedding[tokens]
    moved = model(torch.cat([tokens, tail], 1), 3, lengths, nudge=nudge)
    torch.testing.assert_close(moved, model(torch.cat([other, tail], 1), 3, lengths))
    asked = query(model.info, torch.cat([tokens, tail], 1), lengths, 6, 6, nudge=nudge)
    torch.testing.assert_close(model.session(asked)(asked), moved)


def test_the_toy_hears_it_too(toy):
    tokens, lengths = canvas_of([5, 6, 7])
    other, tail = torch.tensor([[5, 20, 7]]), torch.full((1, 6), toy.mask_id)
    moved = toy(
        torch.cat([tokens, tail], 1), 3, lengths, nudge=toy.embedding[other] - toy.embedding[tokens]
    )
    torch.testing.assert_close(moved, toy(torch.cat([other, tail], 1), 3, lengths))


@pytest.mark.parametrize("shape", SHAPES)
def test_without_temperature_samples_part(shape):
    still, noisy = (
        denoise(native(shape), PROMPTS, n=8, temperature=0.0, prompt_noise=x, **SHAPE).tokens
        for x in (0.0, 1.0)
    )
    assert [len(set(map(tuple, group.tolist()))) for group in still.split(8)] == [1, 1]
    assert all(len(set(map(tuple, group.tolist()))) > 4 for group in noisy.split(8))


WRAPPED = {
    "micro": lambda m: MicroBatch(m, 3),
    "guided": lambda m: ClassifierFree(m, 0.0),
    "both": lambda m: ClassifierFree(MicroBatch(m, 5), 0.0),
}


@pytest.mark.parametrize(("shape", "wrapped"), list(product(SHAPES, WRAPPED)))
def test_wrappers_hand_it_on(shape, wrapped):
    options = {"n": 4, "temperature": 1.0, "prompt_noise": 0.7, "seed": [3, 4], **SHAPE}
    expected = denoise(native(shape), PROMPTS, **options).tokens
    assert torch.equal(
        denoise(WRAPPED[wrapped](native(shape)), PROMPTS, **options).tokens, expected
    )


def test_guidance_nudges_the_pass_that_sees_the_prompt_alone(toy):
    tokens, lengths = canvas_of([5, 6, 7])
    full = torch.cat([tokens, torch.full((1, 6), toy.mask_id)], 1)
    blind = torch.full_like(full, toy.mask_id)
    nudge = nudge_of(toy, (tokens, lengths), step_of(toy, n=1), 1.0)
    seen, unseen = toy(full, 3, lengths, nudge=nudge), toy(blind, 3, lengths)
    torch.testing.assert_close(
        ClassifierFree(toy, 1.5)(full, 3, lengths, nudge=nudge), unseen + 2.5 * (seen - unseen)
    )


def test_sample_i_is_the_same_for_every_n_and_batch(toy):
    options = {"temperature": 1.0, "prompt_noise": 0.5, **SHAPE}
    many = denoise(toy, PROMPTS, n=7, seed=[3, 4], **options)
    few = denoise(toy, PROMPTS[1:], n=3, seed=[4], **options)
    assert torch.equal(few.tokens, many.tokens[7:10])
    more = denoise(toy, PROMPTS[1:], n=4, seed=[4], history=few.history, **options)
    assert torch.equal(more.tokens, many.tokens[10:])


def test_none_of_it_is_the_run_as_it_was(toy):
    class Old:
        """A model that has never heard of a nudge."""

        mask_id, vocab_size, end_ids = toy.mask_id, toy.vocab_size, toy.end_ids

        def __call__(self, tokens, start, prompt_lengths):
            return toy(tokens, start, prompt_lengths)

    options = {"n": 4, "temperature": 1.0, **SHAPE}
    expected = denoise(Old(), PROMPTS, **options)
    assert torch.equal(denoise(toy, PROMPTS, prompt_noise=0.0, **options).tokens, expected.tokens)
    with pytest.raises(ValueError, match=r"prompt_noise needs a model .* not Old"):
        denoise(Old(), PROMPTS, prompt_noise=0.1, **options)


def test_an_empty_prompt_has_nothing_to_move(toy):
    options = {"n": 2, "temperature": 1.0, **SHAPE}
    assert torch.equal(
        denoise(toy, [[]], prompt_noise=1.0, **options).tokens, denoise(toy, [[]], **options).tokens
    )


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cache_refuses(cache):
    model = native(cache=cache)
    with pytest.raises(ValueError, match=r"prompt_noise .*tiny, \w+ cache"):
        denoise(model, PROMPTS, n=2, prompt_noise=0.1, **SHAPE)
    tokens, lengths = canvas_of([5, 6])
    full = torch.cat([tokens, torch.full((1, 4), 49)], 1)
    asked = query(model.info, full, lengths, 4, 4, nudge=torch.zeros(1, 2, 32))
    session = model.session(asked)
    with pytest.raises(ValueError, match=r"nudge.* without cache"):
        session(asked)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.5", 1001])
def test_a_bad_scale_is_refused(toy, bad):
    with pytest.raises(ValueError, match="prompt_noise must be a number from 0 to 1000, not"):
        denoise(toy, PROMPTS, n=2, prompt_noise=bad, **SHAPE)


def test_the_mini_model_through_generate():
    lm = oddlm.LM(model := Mini(), model.tokenizer)
    options = {"n": 4, "length": 8, "steps": 4, "alpha": 0, "temperature": 0, "eos": "never"}
    plain = lm.generate("3 5 8 =>", **options)[0]
    noisy = lm.generate("3 5 8 =>", prompt_noise=1.0, **options)[0]
    assert len({s.tokens for s in plain}) == 1 < len({s.tokens for s in noisy})

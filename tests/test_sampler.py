"""The loop: schedules, groups, blocks, invariances, explorers."""

import os
import pty
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import oddlm
from oddlm import Repulsion, denoise, denoise_steps
from oddlm.core.blocks import Blocks
from oddlm.core.choose import filter_logits
from oddlm.core.quota import Quota
from oddlm.models.toy import Toy
from oddlm.models.wrappers import ClassifierFree, MicroBatch

from .registered import POLICIES, UNCOUPLED
from .tolerances import P_VALUE

PROMPTS = [[5, 6, 7], [9], [3, 4, 5, 8, 11, 12]]
SHAPE = {"n": 4, "length": 12, "steps": 6}


class Fixed:
    """A network that says the same whatever it sees."""

    end_ids: tuple[int, ...] = ()

    def __init__(self, logits: Tensor, mask_id: int | None = None) -> None:
        self.logits, self.vocab_size = logits, logits.shape[-1]
        self.mask_id = self.vocab_size - 1 if mask_id is None else mask_id

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        return self.logits.expand(len(tokens), -1, -1)


def rows(done: oddlm.Denoised) -> list[tuple[int, ...]]:
    return [tuple(row) for row in done.tokens.tolist()]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4))
def test_quota_is_the_even_share_the_first_steps_taking_the_rest(
    block_length, steps_per_block, blocks
):
    steps_per_block = min(steps_per_block, block_length)
    length, steps = block_length * blocks, steps_per_block * blocks
    model = Fixed(torch.randn(length, 7, generator=torch.Generator().manual_seed(0)))
    done = denoise(model, [[1]], n=2, length=length, steps=steps, block_length=block_length)
    share, rest = divmod(block_length, steps_per_block)
    expected = ([share + 1] * rest + [share] * (steps_per_block - rest)) * blocks
    for row in done.commit_step:
        assert torch.bincount(row, minlength=steps).tolist() == expected
        assert (row // steps_per_block).tolist() == [p // block_length for p in range(length)]
    assert done.nfe == steps


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block_length", [None, 4])
def test_every_position_is_filled_and_never_with_mask(toy, policy, block_length):
    seen: list[Tensor] = []
    reviews = torch.zeros(len(PROMPTS) * SHAPE["n"])

    def watch(event: oddlm.StepEvent) -> None:
        before = event.step
        reviews.add_(before.reviewing)
        assert not (event.commit & ~before.writable).any()
        assert (before.tokens[before.masked] == toy.mask_id).all()
        if seen:
            assert torch.equal(before.tokens[~before.masked], seen[-1][~before.masked])
        seen.append(torch.where(event.commit, event.prediction.tokens, before.tokens))

    options = {"policy": policy, "block_length": block_length, "temperature": 1.0, "observe": watch}
    done = denoise(toy, PROMPTS, guide=Repulsion(alpha=8), **options, **SHAPE)
    assert torch.equal(seen[-1], done.tokens)
    assert (done.tokens != toy.mask_id).all()
    assert ((done.commit_step >= 0) & (done.commit_step < done.nfe)).all()
    assert (done.evaluations <= SHAPE["steps"] + reviews).all()


def test_mask_is_never_sampled_even_when_the_network_wants_it():
    logits = torch.zeros(5, 9)
    logits[:, 4] = 50.0
    done = denoise(Fixed(logits, mask_id=4), [[1]], n=50, length=5, steps=5, temperature=2.0)
    assert (done.tokens != 4).all()


NETWORK_LACKS = "the model is a function without mask_id, vocab_size, end_ids: "


def test_a_network_that_is_no_model_is_told_what_it_lacks(toy):
    def network(tokens, start, prompt_lengths):
        return toy(tokens, start, prompt_lengths)

    for draw in (denoise, denoise_steps):
        with pytest.raises(ValueError, match=re.escape(NETWORK_LACKS)):
            draw(network, [[5]], n=1, length=4, steps=2)
    network.mask_id, network.vocab_size = toy.mask_id, toy.vocab_size
    with pytest.raises(ValueError, match=r"without end_ids: .* \(see oddlm\.Model\)"):
        denoise(network, [[5]], n=1, length=4, steps=2)
    network.end_ids = toy.end_ids
    assert denoise(network, [[5]], n=1, length=4, steps=2).nfe == 2
    with pytest.raises(ValueError, match="the model is a SimpleNamespace without __call__"):
        denoise(SimpleNamespace(**vars(network)), [[5]], n=1, length=4, steps=2)


def test_steps_beyond_length_are_clamped_and_said(toy):
    with pytest.warns(UserWarning, match="steps 50 clamped to length 12"):
        done = denoise(toy, [[5]], n=1, length=12, steps=50)
    assert done.nfe == 12
    lm = oddlm.load("toy")
    calls = (
        lambda: denoise(toy, [[5]], n=1, length=12, steps=50),
        lambda: denoise_steps(toy, [[5]], n=1, length=12, steps=50),
        lambda: lm.generate("t5", n=1, length=12, steps=50),
        lambda: lm.generate("t5", n=1, length=12, steps=50, until=lambda _: True),
    )
    for call in calls:
        with pytest.warns(UserWarning, match="steps 50 clamped to length 12") as said:
            call()
        assert (said[0].filename, said[0].lineno) == (__file__, call.__code__.co_firstlineno)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert denoise(toy, [[5]], n=1, length=12, steps=12).nfe == 12


def test_a_prompt_gives_the_same_samples_alone_and_among_longer_ones(toy):
    options = {
        "temperature": 1.0,
        "guide": Repulsion(alpha=16),
        "fork": True,
        "order_temperature": 0.5,
        **SHAPE,
    }
    together = denoise(toy, PROMPTS, seed=[3, 4, 5], **options)
    for prompt, seed, group in zip(PROMPTS, [3, 4, 5], together.groups(), strict=True):
        assert torch.equal(denoise(toy, [prompt], seed=seed, **options).tokens, group)


@pytest.mark.parametrize("objective", UNCOUPLED)
@pytest.mark.parametrize("policy", POLICIES)
def test_sample_i_is_the_same_for_every_n_above_i(toy, objective, policy):
    options = {
        "temperature": 1.0,
        "fork": True,
        "order_temperature": 0.5,
        "policy": policy,
        "length": 12,
        "steps": 6,
    }
    few, many = (
        denoise(toy, [[5, 6]], n=n, guide=Repulsion(objective, alpha=16), **options).tokens
        for n in (5, 11)
    )
    assert torch.equal(few, many[:5])
    assert len({tuple(row) for row in many.tolist()}) > 5


def test_alpha_zero_is_plain(toy):
    plain = denoise(toy, PROMPTS, temperature=1.0, **SHAPE)
    for guide in (Repulsion(alpha=0), Repulsion("none", alpha=16), None):
        assert torch.equal(
            plain.tokens, denoise(toy, PROMPTS, temperature=1.0, guide=guide, **SHAPE).tokens
        )


def test_odd_never_moves_sample_0(toy):
    for temperature in (0.0, 1.0):
        plain, diverse = (
            denoise(toy, PROMPTS, temperature=temperature, guide=guide, **SHAPE)
            for guide in (None, Repulsion(alpha=64))
        )
        first = [0, 4, 8]
        assert torch.equal(plain.tokens[first], diverse.tokens[first])
        assert not torch.equal(plain.tokens, diverse.tokens)


def test_sixteen_identical_samples_part_at_temperature_zero():
    options = {"n": 16, "length": 24, "steps": 12, "temperature": 0.0}
    model = Toy()
    assert len(set(rows(denoise(model, [[5, 6, 7]], **options)))) == 1
    broken = denoise(
        model, [[5, 6, 7]], guide=Repulsion(alpha=16, duplicates="break"), seed=1, **options
    )
    assert len(set(rows(broken))) >= 15
    again, other = (
        denoise(model, [[5, 6, 7]], guide=Repulsion(alpha=16), seed=seed, **options)
        for seed in (1, 2)
    )
    assert rows(again) == rows(broken)
    assert rows(other)[1:] != rows(broken)[1:]
    skipped = denoise(model, [[5, 6, 7]], guide=Repulsion(alpha=16, duplicates="skip"), **options)
    assert len(set(rows(skipped))) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_gumbel_sampling_has_the_softmax_distribution(temperature):
    logits = torch.tensor(
        [[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, -torch.inf, 9.0]]
    )  # the last is MASK
    done = denoise(
        Fixed(logits), [[0]], n=20_000, length=1, steps=1, temperature=temperature, seed=11
    )
    counts = np.bincount(done.tokens.flatten().numpy(), minlength=9)
    expected = (logits[0, :7].double() / temperature).softmax(0).numpy() * 20_000
    assert counts[7:].sum() == 0
    assert stats.chisquare(counts[:7], expected).pvalue > P_VALUE


def test_positions_are_sampled_independently():
    logits = torch.zeros(2, 6)
    done = denoise(Fixed(logits), [[0]], n=20_000, length=2, steps=2, temperature=1.0)
    pairs = np.bincount((done.tokens[:, 0] * 5 + done.tokens[:, 1]).numpy(), minlength=25)
    assert stats.chisquare(pairs).pvalue > P_VALUE


def test_temperature_zero_is_argmax_and_ties_go_to_the_lowest_id_and_position():
    logits = torch.zeros(6, 9)
    logits[:, [3, 5]] = 4.0
    done = denoise(Fixed(logits), [[0]], n=2, length=6, steps=3, temperature=0.0)
    assert (done.tokens == 3).all()
    assert done.commit_step.tolist() == [[0, 0, 1, 1, 2, 2]] * 2


def test_confidences_near_one_keep_their_order():
    logits = torch.zeros(4, 5)
    logits[torch.arange(4), 1] = torch.tensor([20.0, 30.0, 25.0, 34.0])  # all 1.0 in float32
    done = denoise(Fixed(logits), [[0]], n=1, length=4, steps=4, temperature=0.0)
    assert done.commit_step.tolist() == [[3, 1, 2, 0]]


@pytest.mark.parametrize(
    ("filters", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.75}, {0, 1, 2}),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 5e-324}, {0}),
    ],
)
def test_filters(filters, allowed):
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1, 1e-9]).log().expand(8, -1)
    done = denoise(Fixed(logits), [[0]], n=200, length=8, steps=8, temperature=1.0, **filters)
    assert set(done.tokens.flatten().tolist()) == allowed


@pytest.mark.parametrize("size", [5, 41, 401])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(3, None), (100, 0.9), (None, 0.3), (None, 0.95), (None, 1.0)]
)
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
def test_filters_keep_what_a_stable_sort_puts_first(size, top_k, top_p, sharpness):
    logits = (
        torch.randn(30, size, generator=torch.Generator().manual_seed(size)) * sharpness * 2
    ).round() / 2  # with ties
    logits[:, : size // 3] = -torch.inf
    order = logits.sort(dim=1, descending=True, stable=True)
    before = order.values.double().softmax(dim=1).cumsum(dim=1) - order.values.double().softmax(
        dim=1
    )
    first = torch.arange(size) < (size if top_k is None else top_k)
    inside = first & (before < (2.0 if top_p in (None, 1.0) else top_p))
    kept = filter_logits(logits, top_k, top_p).isfinite()
    assert torch.equal(
        kept, torch.zeros_like(inside).scatter(1, order.indices, inside) & logits.isfinite()
    )


def test_suppression():
    eos = 2
    logits = torch.randn(8, 9, generator=torch.Generator().manual_seed(1))
    logits[3:, eos] = 8.0
    model = Fixed(logits)
    free, never, late = (
        denoise(model, [[0]], n=1, length=8, steps=8, temperature=0.0, **options)
        for options in ({}, {"suppress": [eos]}, {"suppress_confidence": [eos]})
    )
    assert (free.tokens[0, 3:] == eos).all()
    assert free.commit_step[0, 3:].max() < 5
    assert (never.tokens != eos).all()
    assert torch.equal(late.tokens, free.tokens)
    assert late.commit_step[0, 3:].min() >= 3


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "random"])
def test_late_ids_are_late_under_every_policy(policy):
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    logits[2:, 1] = 9.0
    done = denoise(
        Fixed(logits),
        [[0]],
        n=1,
        length=6,
        steps=6,
        temperature=0.0,
        suppress_confidence=[1],
        policy=policy,
    )
    assert done.commit_step[0, 2:].min() == 2


def test_order_temperature_changes_where_not_what():
    logits = torch.randn(10, 20, generator=torch.Generator().manual_seed(2)) * 3
    shape = {"n": 12, "length": 10, "steps": 10, "temperature": 0.0}
    still, noisy = (denoise(Fixed(logits), [[0]], **shape, order_temperature=t) for t in (0.0, 1.0))
    assert torch.equal(still.tokens, noisy.tokens)
    assert len({tuple(r) for r in still.commit_step.tolist()}) == 1
    assert len({tuple(r) for r in noisy.commit_step.tolist()}) > 8


def test_order_noise_draws_the_first_position_in_proportion_to_confidence():
    """Gumbel-max on the log-confidence: p is first with probability confidence[p] / sum."""
    logits = torch.tensor([[3.0, 0, 0], [1.0, 0, 0], [0.5, 0, 0]])
    logits = torch.cat([logits, torch.zeros(3, 1)], dim=1)
    done = denoise(
        Fixed(logits), [[0]], n=20_000, length=3, steps=3, temperature=0.0, order_temperature=1.0
    )
    confidence = logits[:, :3].double().softmax(dim=1)[:, 0]
    first = np.bincount((done.commit_step == 0).long().argmax(dim=1).numpy(), minlength=3)
    assert stats.chisquare(first, (confidence / confidence.sum()).numpy() * 20_000).pvalue > P_VALUE


@pytest.mark.parametrize("guide", [None, Repulsion(alpha=16)])
def test_fork_gives_sample_j_the_jth_likeliest_cell(toy, guide):
    events: list[oddlm.StepEvent] = []
    done = denoise(
        toy, [[5, 6]], n=20, length=8, steps=4, fork=True, guide=guide, observe=events.append
    )
    cells = events[0].base_logits[0].log_softmax(dim=-1)
    cells[:, list(toy.end_ids)] = -torch.inf
    ranked = cells.flatten().argsort(descending=True, stable=True)[:20]
    first = events[0].commit.nonzero()
    assert first[:, 0].tolist() == list(range(20))
    assert first[:, 1].tolist() == (ranked // toy.vocab_size).tolist()
    assert (
        events[0].prediction.tokens[events[0].commit].tolist() == (ranked % toy.vocab_size).tolist()
    )
    assert done.nfe == 4


def first_cells(model, **options):
    """(position, token) of every row's first commit."""
    events: list[oddlm.StepEvent] = []
    denoise(model, **{"length": 8, "steps": 4, "fork": True, "observe": events.append, **options})
    positions = events[0].commit.long().argmax(dim=1)
    return list(
        zip(positions.tolist(), events[0].prediction.tokens[events[0].commit].tolist(), strict=True)
    )


def test_a_warm_fork_draws_cells_without_replacement(toy):
    cold, warm, hot = (
        first_cells(toy, prompts=[[5, 6]], n=30, fork_temperature=t, seed=2)
        for t in (0.0, 1.0, 500.0)
    )
    assert len(set(warm)) == len(set(hot)) == 30
    assert len(set(cold) & set(warm)) > len(set(cold) & set(hot)), (
        "the warmer, the less the ranks count"
    )
    assert cold == first_cells(toy, prompts=[[5, 6]], n=30, seed=2)
    assert first_cells(toy, prompts=[[5, 6]], n=7, fork_temperature=1.0, seed=2) == warm[:7], (
        "the same for every n"
    )
    assert first_cells(toy, prompts=[[5, 6]], n=30, fork_temperature=1.0, seed=3) != warm


def test_warm_forks_of_prompts_are_their_own_and_the_same_in_every_batch(toy):
    both = first_cells(toy, prompts=[[5, 6], [5, 6]], n=6, fork_temperature=1.0, seed=[2, 3])
    assert both[:6] != both[6:]
    assert both[6:] == first_cells(
        MicroBatch(toy, 4), prompts=[[5, 6]], n=6, fork_temperature=1.0, seed=[3]
    )


def test_a_warm_fork_draws_the_first_cell_in_proportion_to_its_probability():
    """Gumbel-max over all cells; a group is one draw of the first, sample by sample of the rest."""
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.0], [1.0, 0.5, 0.0, 0.0]])
    found = first_cells(
        Fixed(logits), prompts=[[0]] * 5000, n=2, length=2, steps=2, fork_temperature=1.0
    )
    cells = torch.tensor([position * 3 + token for position, token in found]).view(-1, 2)
    weights = logits[:, :3].double().softmax(dim=-1).flatten() / 2
    first = np.bincount(cells[:, 0].numpy(), minlength=6)
    assert stats.chisquare(first, weights.numpy() * 5000).pvalue > P_VALUE
    expected = (weights[:, None] * weights / (1 - weights[:, None])).fill_diagonal_(0)
    pairs = np.bincount((cells[:, 0] * 6 + cells[:, 1]).numpy(), minlength=36)
    off = ~np.eye(6, dtype=bool).flatten()
    assert (pairs[~off] == 0).all()
    assert stats.chisquare(pairs[off], expected.flatten().numpy()[off] * 5000).pvalue > P_VALUE


def test_more_samples_than_cells_begin_again():
    logits = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0]])
    cells = first_cells(Fixed(logits), prompts=[[0]], n=9, length=2, steps=2, fork_temperature=1.0)
    assert cells[:4] == cells[4:8]
    assert cells[8] == cells[0]
    assert len(set(cells[:4])) == 4


def test_fork_stays_inside_the_first_block_and_needs_two_steps(toy):
    done = denoise(toy, [[5]], n=9, length=8, steps=4, block_length=4, fork=True)
    assert ((done.commit_step == 0).long().argmax(dim=1) < 4).all()
    with pytest.raises(ValueError, match=r"fork .* needs steps >= 4, not 2"):
        denoise(toy, [[5]], n=9, length=8, steps=2, block_length=4, fork=True)


def test_fork_when_only_protected_ids_are_left():
    class OnlyEos(Fixed):
        end_ids = (1,)

    logits = torch.full((4, 3), -torch.inf)
    logits[:, 1] = 0.0
    done = denoise(OnlyEos(logits), [[0]], n=3, length=4, steps=2, fork=True)
    assert (done.tokens == 1).all()


def test_wrappers_are_invisible(toy):
    options = {"temperature": 1.0, "guide": Repulsion(alpha=16), **SHAPE}
    plain = denoise(toy, PROMPTS, **options)
    assert torch.equal(denoise(MicroBatch(toy, 5), PROMPTS, **options).tokens, plain.tokens)
    unguided = denoise(ClassifierFree(toy, 0.0), PROMPTS, **options)
    assert torch.equal(unguided.tokens, plain.tokens)
    assert unguided.nfe == 2 * plain.nfe
    assert not torch.equal(
        denoise(ClassifierFree(toy, 3.0), PROMPTS, **options).tokens, plain.tokens
    )


def test_classifier_free_guidance_is_the_extrapolation(toy):
    tokens = torch.randint(0, 59, (2, 7), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([3, 2])
    blind = tokens.clone()
    blind[:, :3] = toy.mask_id
    with_prompt, without = toy(tokens, 3, lengths), toy(blind, 3, lengths)
    torch.testing.assert_close(
        ClassifierFree(toy, 1.5)(tokens, 3, lengths), without + 2.5 * (with_prompt - without)
    )


def test_guidance_leaves_impossible_tokens_impossible():
    logits = torch.randn(12, 9, generator=torch.Generator().manual_seed(0))
    logits[:, 3] = -torch.inf
    done = denoise(
        ClassifierFree(Fixed(logits), 1.0), [[1]], n=20, temperature=2.0, length=12, steps=6
    )
    assert (done.tokens != 3).all()


def test_fork_with_blocks_of_one_token(toy):
    done = denoise(toy, [[5]], n=6, length=4, steps=4, block_length=1, fork=True)
    assert len(set(done.tokens[:, 0].tolist())) == 6


def test_a_run_can_be_stopped_between_two_steps(toy):
    run = denoise_steps(toy, [[5]], **SHAPE)
    assert next(run).step.index == 0
    assert next(run).step.index == 1
    run.close()
    with pytest.raises(StopIteration):
        next(run)


def test_inputs_are_never_changed(toy):
    prompts = [torch.tensor(p) for p in PROMPTS]
    before = [p.clone() for p in prompts]
    logits = torch.randn(12, 9)
    held = logits.clone()
    denoise(toy, prompts, guide=Repulsion(alpha=8), **SHAPE)
    denoise(Fixed(logits), [[0]], temperature=1.0, suppress=[3], guide=Repulsion(alpha=8), **SHAPE)
    assert all(torch.equal(a, b) for a, b in zip(prompts, before, strict=True))
    assert torch.equal(logits, held)


def test_an_empty_prompt_is_unconditional(toy):
    done = denoise(toy, [[]], **SHAPE)
    assert done.tokens.shape == (4, 12)


def test_low_precision_logits(toy):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        done = denoise(
            Toy(dtype=dtype), [[5, 6]], temperature=1.0, guide=Repulsion(alpha=16), **SHAPE
        )
        assert (done.commit_step >= 0).all()


PROGRAM = """
import oddlm
from oddlm.models.toy import Toy
oddlm.denoise(Toy(), [[5]], n=2, length=12, steps=6, progress={progress})
"""


@pytest.mark.parametrize(("progress", "drawn"), [("True", True), ("None", False), ("False", False)])
def test_progress_on_a_terminal(progress, drawn):
    """None waits a moment before it draws; this run is over sooner."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM.format(progress=progress)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=120)
    os.write(theirs, b"end")
    os.close(theirs)
    assert done.stdout == b""
    assert (b"6/6" in os.read(ours, 65536)) is drawn


def test_progress_is_silent_off_a_terminal(toy, capfd):
    denoise(toy, [[5]], **SHAPE)
    assert capfd.readouterr() == ("", "")


def test_schedule_divides_blocks_at_each_rows_own_pace():
    """A row that a parallel policy carried into block 2 works there while its neighbour finishes
    block 1.
    """
    quota = Quota.plan(8, 4, 4, fork=False)
    masked = torch.tensor(
        [[1, 0, 1, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1], [0] * 8], dtype=torch.bool
    )
    blocks = Blocks.lay(masked, 4, torch.zeros(3, dtype=torch.long), "answer")
    assert quota.ends(blocks).tolist() == [[2, 4]]
    assert blocks.open.long().tolist() == [
        [1, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 1],
        [0] * 8,
    ]

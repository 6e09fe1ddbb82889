"""Blocks: what is committed, open and pending, counted from the answer or from the first token of
the prompt.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from oddlm import ModelInfo, Repulsion, advance, begin, denoise, open_session
from oddlm.core.blocks import Blocks
from oddlm.core.quota import Quota
from oddlm.models.toy import Toy


@given(
    st.integers(1, 4),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.sampled_from(["answer", "absolute"]),
    st.data(),
)
def test_every_position_is_committed_open_or_pending(size, prompts, align, data):
    B, L = len(prompts), 8
    masked = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=L, max_size=L), min_size=B, max_size=B))
    )
    blocks = Blocks.lay(masked, size, torch.tensor(prompts), align)
    assert torch.equal(
        blocks.committed.int() + blocks.open.int() + blocks.pending.int(),
        torch.ones(B, L, dtype=torch.int),
    )
    for row, (prompt, here) in enumerate(zip(prompts, masked.tolist(), strict=True)):
        before = prompt % size if align == "absolute" else 0
        block = [(before + j) // size for j in range(L)]
        first = next((b for b, is_masked in zip(block, here, strict=True) if is_masked), None)
        assert blocks.open[row].tolist() == [
            m and b == first for b, m in zip(block, here, strict=True)
        ]
        assert blocks[row : row + 1].open.tolist() == blocks.open[row : row + 1].tolist()


def test_blocks_that_are_cut_short_have_fewer_steps():
    masked = torch.ones(3, 8, dtype=torch.bool)
    blocks = Blocks.lay(masked, 4, torch.tensor([4, 5, 7]), "absolute")
    assert blocks.ids.tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 1, 1, 2],
        [0, 1, 1, 1, 1, 2, 2, 2],
    ]
    assert Quota.plan(8, 4, 4, fork=False).ends(blocks).tolist() == [
        [2, 4, 4],
        [2, 4, 5],
        [1, 3, 5],
    ]


@given(st.integers(1, 7), st.integers(1, 12), st.integers(1, 14), st.booleans())
def test_the_most_steps_are_those_of_the_worst_prompt(size, length, steps, fork):
    """The answer may be shorter than a block, and steps may be more than tokens."""
    assume(steps * size % length == 0)
    quota = Quota(length, steps, size)
    masked = torch.ones(size, length, dtype=torch.bool)
    blocks = Blocks.lay(masked, size, torch.arange(size), "absolute")
    late = fork and quota.steps_per_block < size
    assert quota.most_steps(fork=fork) == int(quota.ends(blocks)[:, -1].max()) + late


class Absolute(Toy):
    """A model whose blocks are counted from the first token of the prompt."""

    block = 4

    @property
    def info(self):
        own = super().info
        return ModelInfo(
            own.vocab_size,
            own.mask_id,
            dtype=own.dtype,
            name="absolute",
            block_length=self.block,
            align="absolute",
        )


@pytest.mark.parametrize("policy", ["low_confidence", "threshold"])
def test_each_sample_has_blocks_of_its_own_in_a_padded_batch(policy):
    model = Absolute(vocab_size=60)
    prompts = [[5] * 4, [6] * 5, [7] * 7]
    options = {
        "n": 2,
        "length": 8,
        "steps": 8,
        "block_length": 4,
        "policy": policy,
        "temperature": 0.5,
    }
    state = begin(model, prompts, seed=[1, 2, 3], **options)
    session, written = open_session(model, state.query), []
    while (query := state.query) is not None:
        state, event = advance(state, session(query), query=query)
        written.append(event.commit)
    first = torch.stack(written).int().argmax(dim=0)  # the step of each position
    for row in range(6):
        for a in range(8):
            for b in range(a + 1, 8):
                block = [(len(prompts[row // 2]) + j) // 4 for j in (a, b)]
                assert block[0] == block[1] or first[row, a] < first[row, b]
    for i, prompt in enumerate(prompts):
        alone = begin(model, [prompt], seed=[i + 1], **options)
        while (query := alone.query) is not None:
            alone, _ = advance(alone, session(query), query=query)
        assert torch.equal(alone.result.tokens, state.result.tokens[2 * i : 2 * i + 2])


@pytest.mark.parametrize(
    ("length", "steps", "block"), [(12, 6, 4), (10, 5, 4), (3, 3, 4), (4, 1, 8), (13, 13, 4)]
)
@pytest.mark.parametrize("fork", [False, True])
def test_the_steps_of_a_sample_do_not_depend_on_the_prompts_beside_it(length, steps, block, fork):
    """An answer may also end inside a block, and everything is written in time."""
    options = {"n": 1, "length": length, "steps": steps, "fork": fork, "temperature": 0.0}
    model, totals = Absolute(vocab_size=60), set()
    model.block = block
    for prompts in ([[5] * 4], [[5] * 5], [[5] * 6, [6] * 7]):
        state = begin(model, prompts, **options)
        assert state.plan.quota.block_length == block
        totals.add(state.plan.total)
        done = denoise(model, prompts, **options)
        assert (done.tokens != model.mask_id).all()
        assert done.nfe <= state.plan.total
    assert len(totals) == 1


@pytest.mark.parametrize(
    ("length", "steps", "block"), [(12, 6, 4), (10, 5, 4), (3, 3, 4), (4, 1, 8), (13, 13, 4)]
)
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("fork", [False, True])
def test_blocks_that_are_alike_are_scheduled_in_advance(length, steps, block, before, fork):
    model = Absolute(vocab_size=60)
    model.block = block
    prompts = [[5] * (block + before), [6] * (2 * block + before)]
    state = begin(model, prompts, n=2, length=length, steps=steps, fork=fork, temperature=1.0)
    schedule, seen = state.plan.schedule, 0
    session = open_session(model, state.query)
    while (query := state.query) is not None:
        moment, blocks = schedule[seen], state.blocks
        assert blocks.masked.sum(dim=1).tolist() == [moment.masked] * 4
        assert blocks.open.sum(dim=1).tolist() == [moment.open] * 4
        assert blocks.inside.int().argmax(dim=1).tolist() == [moment.low] * 4
        assert moment.opens == bool((blocks.inside == blocks.open).all())
        state, _ = advance(state, session(query))
        seen += 1
    assert seen == len(schedule)
    different = begin(model, [*prompts, [7] * (before + 1)], n=2, length=length, steps=steps)
    assert different.plan.schedule is None


def test_one_sample_has_absolute_blocks_too():
    state = begin(Absolute(vocab_size=60), [[5] * 3], n=1, length=9, steps=9)
    assert state.blocks.ids.tolist() == [[0, 1, 1, 1, 1, 2, 2, 2, 2]]
    assert state.query.blocks.open.sum() == 1


def test_a_network_in_blocks_is_asked_about_the_open_one():
    class Selective(Absolute):
        @property
        def info(self):
            return replace(super().info, selective=True)

    for guide in (None, Repulsion(alpha=4)):
        state = begin(Selective(vocab_size=60), [[5] * 6], n=2, length=9, steps=9, guide=guide)
        assert state.query.positions.tolist() == [[0, 1]] * 2


def test_a_block_across_two_of_the_networks_is_refused():
    model, options = Absolute(vocab_size=60), {"n": 1, "length": 16, "steps": 16}
    for block_length in (8, 3, 16):
        with pytest.raises(ValueError, match=f"block_length {block_length} .*block_length=4"):
            begin(model, [[5]], block_length=block_length, **options)
    assert begin(model, [[5]], block_length=2, **options).plan.quota.steps_per_block == 2
    with pytest.raises(ValueError, match="block_length=4"):
        begin(model, [[5]], n=1, length=3, steps=3, block_length=3)
    with pytest.raises(ValueError, match=r"steps 4 .* 2\.5 blocks; use a multiple of 5"):
        begin(model, [[5]], n=1, length=10, steps=4)
    with pytest.raises(ValueError, match="steps >= 6, not 3"):
        begin(model, [[5]], n=1, length=12, steps=3, fork=True)

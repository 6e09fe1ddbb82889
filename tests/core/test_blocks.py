"""Blocks: what is committed, open and pending, counted from the answer or from the first token of
the prompt.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm import ModelInfo, advance, begin, open_session
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


class Absolute(Toy):
    """A model whose blocks are counted from the first token of the prompt."""

    @property
    def info(self):
        own = super().info
        return ModelInfo(
            own.vocab_size,
            own.mask_id,
            dtype=own.dtype,
            name="absolute",
            block_length=4,
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


def test_a_block_across_two_of_the_networks_is_refused():
    with pytest.raises(ValueError, match="block_length=4"):
        begin(Absolute(vocab_size=60), [[5]], n=1, length=16, steps=16, block_length=8)

"""`wrap` detects whether a network is bidirectional, autoregressive or block-causal."""

import warnings

import pytest
import torch

import oddlm
from oddlm.models.toy import ToyTokenizer
from oddlm.models.wrappers import MicroBatch

from . import published_layout as layout

MASK = 3
SHAPE = {"steps": 8, "temperature": 0, "alpha": 0, "progress": False}


def network(block, *, dtype=torch.float32, context=2048, **changes):
    """Return a random network that is bidirectional within blocks and causal across them.

    block: None makes it bidirectional everywhere. `widths` records the length of every call.
    """
    one = layout.llama(max_position_embeddings=context, **changes).to(dtype)
    forward = one.forward
    one.widths = []

    def masked(input_ids, logits_to_keep=0):
        T = input_ids.shape[1]
        assert context >= T
        one.widths.append(T)
        place = torch.arange(T) // (block or T)
        attends = place[:, None] >= place
        bias = torch.zeros(1, 1, T, T, dtype=dtype).masked_fill(~attends, torch.finfo(dtype).min)
        return forward(
            input_ids=input_ids,
            attention_mask=bias.expand(len(input_ids), -1, -1, -1),
            logits_to_keep=logits_to_keep,
        )

    one.forward = masked
    return one


def wrap(one, **options):
    return oddlm.wrap(one, ToyTokenizer(layout.VOCABULARY), mask_id=MASK, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shift", [False, True], ids=["", "shift"])
@pytest.mark.parametrize("context", [2048, 150, 149, 131])
@pytest.mark.parametrize("block", [2, 4, 5, 8, 16, 32, 48, 64, 100])
def test_blocks_are_found(block, context, shift, dtype):
    one = network(block, dtype=dtype, context=context)
    with pytest.warns(
        UserWarning,
        match=rf"LlamaForCausalLM is block-causal, in blocks of {block} .* block_length={block}",
    ):
        lm = wrap(one, shift=shift)
    assert lm.model.block_length == block
    assert len(one.widths) <= 5
    assert max(one.widths) <= 160, "the network may be large"


def test_the_longest_block():
    with pytest.warns(UserWarning, match="block-causal, in blocks of 128"):
        assert wrap(network(128)).model.block_length == 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("context", [2048, 150, 149, 40, 5, 2])
@pytest.mark.parametrize("shift", [False, True], ids=["", "shift"])
def test_a_bidirectional_network_gives_no_warning(context, shift, dtype):
    one = network(None, dtype=dtype, context=context)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wrap(one, shift=shift).model.block_length is None
    assert len(one.widths) <= 3


@pytest.mark.parametrize("context", [2048, 150, 149, 40, 5])
@pytest.mark.parametrize("shift", [False, True], ids=["", "shift"])
def test_an_autoregressive_network_is_refused(context, shift):
    with pytest.raises(ValueError, match="LlamaForCausalLM is autoregressive"):
        wrap(network(1, context=context), shift=shift)


@pytest.mark.parametrize(("block", "context"), [(4, 12), (8, 20), (16, 40), (2, 7)])
def test_small_contexts(block, context):
    with pytest.warns(UserWarning, match=f"block-causal, in blocks of {block} "):
        assert wrap(network(block, context=context)).model.block_length == block


@pytest.mark.parametrize("block", [None, 1, 32])
def test_dropout_that_was_left_on_misleads_nobody(block):
    """Nor does it affect samples, and the mode of the network is left unchanged."""
    one = network(block, attention_dropout=0.5)
    one.train()
    one.model.norm.eval()
    if block == 1:
        with pytest.raises(ValueError, match="is autoregressive"):
            wrap(one)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = wrap(one)
    assert [str(block) in str(w.message) for w in caught] == ([] if block is None else [True])
    assert lm.model.block_length == block
    one_run, another = (lm.generate("t5 t6", 2, length=8, **SHAPE)[0] for _ in range(2))
    assert [s.tokens for s in one_run] == [s.tokens for s in another]
    assert one.training
    assert one.model.layers[0].training
    assert not one.model.norm.training


@pytest.mark.parametrize("block", [None, 1, 4, 32])
def test_kernels_that_do_not_repeat_themselves_mislead_nobody(block):
    one = network(block)
    forward, draw = one.forward, torch.Generator().manual_seed(0)

    def nondeterministic(input_ids, logits_to_keep=0):
        output = forward(input_ids, logits_to_keep)
        output.logits = output.logits + 1e-5 * torch.rand(output.logits.shape, generator=draw)
        return output

    one.forward = nondeterministic
    if block == 1:
        with pytest.raises(ValueError, match="is autoregressive"):
            wrap(one)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert wrap(one).model.block_length == block
    assert len(caught) == (0 if block is None else 1)


@pytest.mark.parametrize("reach", [1, 7, 31, 42])
def test_a_sliding_window_is_not_a_block(reach):
    """Not even if it seems to have a border."""
    one = layout.llama().float()
    forward = one.forward

    def near(input_ids):
        place = torch.arange(input_ids.shape[1])
        far = (place[:, None] - place).abs() > reach
        bias = torch.zeros(1, 1, *far.shape).masked_fill(far, torch.finfo(torch.float32).min)
        return forward(input_ids=input_ids, attention_mask=bias)

    one.forward = near
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wrap(one).model.block_length is None


def blocks_of(block):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return wrap(network(block))


@pytest.mark.parametrize(
    ("block", "length", "block_length"),
    [(32, 64, None), (32, 64, 64), (8, 48, 16), (8, 12, 6), (8, 24, 24), (4, 6, 6), (4, 8, None)],
)
def test_blocks_that_contradict_the_networks_are_refused(block, length, block_length):
    lm = blocks_of(block)
    for model in (lm.model, MicroBatch(lm.model, 1)):
        with pytest.raises(ValueError, match=rf"in blocks of {block}.*block_length={block}"):
            oddlm.denoise(
                model, [[5, 6]], n=2, length=length, steps=length, block_length=block_length
            )
    with pytest.raises(ValueError, match=rf"in blocks of {block}.*block_length={block}"):
        lm.generate("t5", 2, length=length, block_length=block_length, **SHAPE | {"steps": None})


@pytest.mark.parametrize(
    ("block", "length", "block_length"),
    [(4, 16, 4), (4, 16, 2), (4, 9, 1), (32, 64, 32), (32, 24, None), (32, 24, 8), (8, 8, None)],
)
def test_blocks_that_fit_are_written(block, length, block_length):
    (samples,) = blocks_of(block).generate(
        "t5 t6", 2, length=length, block_length=block_length, **SHAPE | {"steps": None}
    )
    for sample in samples:
        steps, size = sample.commit_steps, block_length or length
        ends = [max(steps[i : i + size]) for i in range(0, length, size)]
        assert ends == sorted(ends)

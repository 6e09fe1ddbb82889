"""Quantised layers: close to the originals, and as small as predicted."""

import sys

import pytest
import torch
from torch import nn

from oddlm.models.families import published
from oddlm.models.families.llada import LLADA
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.quant import QUANTIZATIONS, assign, footprint, prepare
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig

TINY = TransformerConfig(
    vocab_size=100, width=64, layers=2, heads=4, kv_heads=2, hidden=192, qkv_bias=True, tied=False
)
LLADA_8B = LLADA.config(Keys("LLADA_8B", published.LLADA_8B))


@pytest.fixture(scope="module")
def exact():
    torch.manual_seed(0)
    network = Transformer(TINY)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    return network.to(torch.bfloat16).eval()


def loaded(exact, quantize):
    """Load as a loader does: a network on meta, and its parameters one by one."""
    with torch.device("meta"):
        network = Transformer(TINY).to(torch.bfloat16)
    prepare(network, quantize)
    for name, value in exact.state_dict().items():
        owner, _, attribute = name.rpartition(".")
        assert network.get_parameter(name).shape == value.shape
        assign(network.get_submodule(owner), attribute, value.clone())
    return network.eval()


def stored_bytes(module):
    """Return the bytes of every tensor a network holds, inside and outside its parameters."""
    total = 0
    for parameter in module.parameters():
        state = getattr(parameter, "quant_state", None)
        beside = [getattr(parameter, "SCB", None)]
        if state is not None:
            beside += [
                state.absmax,
                state.code,
                state.offset,
                state.state2.absmax,
                state.state2.code,
            ]
        total += parameter.nbytes + sum(tensor.nbytes for tensor in beside if tensor is not None)
    return total


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
@torch.no_grad()
def test_logits_correlate(exact, quantize):
    tokens = torch.randint(100, (4, 20), generator=torch.Generator().manual_seed(1))
    arguments = tokens, 5, torch.tensor([5, 3, 5, 0])
    network = loaded(exact, quantize)
    ours, theirs = network(*arguments), exact(*arguments)
    assert ours.dtype == torch.bfloat16
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]).double())[0, 1] > 0.99
    assert not torch.equal(ours, theirs)
    names = {
        name for name, parameter in network.named_parameters() if parameter.dtype != torch.bfloat16
    }
    assert names == {
        f"blocks.{i}.{part}.weight"
        for i in range(2)
        for part in ("qkv", "attention_out", "gate_up", "down")
    }


@pytest.mark.parametrize("quantize", [None, *QUANTIZATIONS])
def test_the_footprint_is_what_is_stored(exact, quantize):
    network = exact if quantize is None else loaded(exact, quantize)
    predicted, parts = (
        footprint(TINY, quantize),
        (network.embed, network.blocks[0], network.norm, network.head),
    )
    embed, block, norm, head = (stored_bytes(part) for part in parts)
    assert (predicted.embed, predicted.block, predicted.head) == (embed, block, norm + head)
    assert predicted.total == stored_bytes(network)


def test_footprint_of_8b():
    sizes = {
        quantize: footprint(LLADA_8B, quantize).total / 2**30 for quantize in (None, *QUANTIZATIONS)
    }
    assert {name: round(size, 2) for name, size in sizes.items()} == {
        None: 14.93,
        "int8": 8.44,
        "nf4": 5.28,
    }


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
def test_a_quantised_model_samples(exact, quantize):
    import oddlm

    model = Native(loaded(exact, quantize), name="tiny", mask_id=99, end_ids=(1,), cache="dual")
    done = oddlm.denoise(
        model, [[5, 6, 7], [8]], n=2, length=8, steps=4, block_length=4, temperature=1.0
    )
    assert done.tokens.shape == (4, 8)
    assert (done.tokens < 99).all()


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with torch.device("meta"):
        network = Transformer(TINY)
    with pytest.raises(
        ValueError, match=r"quantize='nf4' needs bitsandbytes: pip install 'oddlm\[quant\]'"
    ):
        prepare(network, "nf4")
    assert prepare(network, None) is network


def test_unknown_quantisation():
    with pytest.raises(ValueError, match="quantize must be one of nf4, int8, not 'fp4'"):
        footprint(TINY, "fp4")
    with (
        torch.device("meta"),
        pytest.raises(ValueError, match="quantize must be one of nf4, int8, not 'int4'"),
    ):
        prepare(Transformer(TINY), "int4")

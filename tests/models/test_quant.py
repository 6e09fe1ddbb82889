"""Quantised layers: close to the originals, and as small as predicted."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from oddlm.models.families import published
from oddlm.models.families.llada import LLADA
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.quant import QUANTIZATIONS, assign, footprint, prepare
from oddlm.models.moe import ExpertConfig, stored_dtype
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig

TINY = TransformerConfig(
    vocab_size=100, width=64, layers=2, heads=4, kv_heads=2, hidden=192, qkv_bias=True, tied=False
)
SPARSE = replace(
    TINY,
    layers=3,
    experts=ExpertConfig(
        count=6, active=2, hidden=128, shared=64, scores="sigmoid", biased=True, scale=2.5
    ),
    dense_layers=(0,),
)
LLADA_8B = LLADA.config(Keys("LLADA_8B", published.LLADA_8B))


@pytest.fixture(scope="module", params=[TINY, SPARSE], ids=["dense", "experts"])
def exact(request):
    torch.manual_seed(0)
    network = Transformer(request.param)
    for name, parameter in network.named_parameters():
        nn.init.normal_(parameter, std=0.1)
        parameter.data = parameter.data.to(stored_dtype(name, torch.bfloat16))
    return network.eval()


def loaded(exact, quantize):
    """Load as a loader does: a network on meta, and its parameters one by one."""
    with torch.device("meta"):
        network = Transformer(exact.config).to(torch.bfloat16)
    prepare(network, quantize)
    for name, value in exact.state_dict().items():
        owner, _, attribute = name.rpartition(".")
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
        name for name, parameter in network.named_parameters() if not parameter.is_floating_point()
    }
    linear = {
        name
        for name, parameter in exact.named_parameters()
        if name.startswith("blocks.") and parameter.dim() == 2 and "router" not in name
    }
    experts = {
        f"{name.removesuffix('.weight')}.layers.{e}.weight"
        for name, parameter in exact.named_parameters()
        if parameter.dim() == 3
        for e in range(6)
    }
    assert names == linear | experts
    assert len(experts) == (0 if exact.config is TINY else 2 * 2 * 6)


@pytest.mark.parametrize("quantize", [None, *QUANTIZATIONS])
def test_the_footprint_is_what_is_stored(exact, quantize):
    network = exact if quantize is None else loaded(exact, quantize)
    predicted = footprint(exact.config, quantize)
    embed, norm, head = map(stored_bytes, (network.embed, network.norm, network.head))
    assert (predicted.embed, predicted.head) == (embed, norm + head)
    assert predicted.blocks == tuple(map(stored_bytes, network.blocks))
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

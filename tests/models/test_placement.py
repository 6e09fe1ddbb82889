"""Layer placement agrees with brute force, and activations follow it."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm.models.families import published
from oddlm.models.families.llada import LLADA
from oddlm.models.families.llada2 import LLADA2
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.placement import home, loads, place, spread
from oddlm.models.loading.quant import Footprint, footprint
from oddlm.models.transformer import Transformer, TransformerConfig

TINY = TransformerConfig(vocab_size=40, width=32, layers=4, heads=4, hidden=48, tied=False)
LLADA_8B = LLADA.config(Keys("LLADA_8B", published.LLADA_8B))
GIB = 2**30


def fullest(size, counts, room, tied):
    return max(load / have for load, have in zip(loads(size, counts, tied=tied), room, strict=True))


@given(
    size=st.builds(
        Footprint,
        st.integers(1, 50),
        st.lists(st.integers(1, 50), min_size=1, max_size=6).map(tuple),
        st.integers(1, 50),
    ),
    room=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    tied=st.booleans(),
)
def test_no_plan_leaves_the_fullest_device_emptier(size, room, tied):
    counts = spread(size, room, tied=tied)
    layers = len(size.blocks)
    assert sum(counts) == layers
    others = (c for c in product(range(layers + 1), repeat=len(room)) if sum(c) == layers)
    best = min(fullest(size, c, room, tied) for c in others)
    assert fullest(size, counts, room, tied) == pytest.approx(best)


def test_an_8b_network_on_two_cards_of_12_gib():
    placement = place(LLADA_8B, "auto", room={"cuda:0": 12 * GIB, "cuda:1": 12 * GIB})
    assert [str(placement[f"blocks.{i}"]) for i in range(32)] == ["cuda:0"] * 16 + ["cuda:1"] * 16
    assert str(placement["embed"]) == "cuda:0"
    assert str(placement["head"]) == str(placement["norm"]) == "cuda:1"
    assert str(home(placement, "blocks.31.qkv.weight")) == "cuda:1"
    assert str(home(placement, "embed.weight")) == "cuda:0"


def test_experts_count_where_they_are():
    mini = LLADA2.config(Keys("LLADA2_MINI", published.LLADA2_MINI))
    size = footprint(mini)
    dense, *sparse = size.blocks
    assert len(set(sparse)) == 1
    assert sparse[0] > 15 * dense
    placement = place(mini, "auto", room={"cuda:0": 16 * GIB, "cuda:1": 16 * GIB})
    assert [str(placement[f"blocks.{i}"]) for i in range(20)] == ["cuda:0"] * 10 + ["cuda:1"] * 10
    with pytest.raises(ValueError, match=r"\(cuda:0: 30\.28 GiB of 24\.00 GiB\)") as error:
        place(mini, "auto", room={"cuda:0": 24 * GIB})
    assert str(error.value).endswith(
        "would fit: quantize='nf4' (8.72 GiB in total), quantize='int8' (15.80 GiB in total)"
    )


def test_every_parameter_has_a_home():
    for tied in (True, False):
        config = TransformerConfig(
            vocab_size=40, width=32, layers=4, heads=4, hidden=48, tied=tied, qkv_bias=True
        )
        placement = place(config, "auto", room={"cpu": GIB, "meta": GIB})
        homes = {name: home(placement, name) for name in Transformer(config).state_dict()}
        assert {str(device) for device in homes.values()} == {"cpu", "meta"}
        assert not tied or str(homes["embed.weight"]) == "meta"  # where the head is


def test_too_little_memory_says_what_would_fit():
    with pytest.raises(ValueError, match=r"\(cuda:0: 14\.93 GiB of 10\.00 GiB\)") as error:
        place(LLADA_8B, "auto", room={"cuda:0": 10 * GIB})
    assert str(error.value).endswith(
        "would fit: quantize='nf4' (5.28 GiB in total), quantize='int8' (8.44 GiB in total)"
    )
    with pytest.raises(ValueError, match=r"would fit: quantize='nf4' \(5\.28 GiB in total\)$"):
        place(LLADA_8B, "auto", quantize="int8", room={"cuda:0": 4 * GIB, "cuda:1": 3 * GIB})
    with pytest.raises(ValueError, match="would fit: no quantisation"):
        place(LLADA_8B, "auto", room={"cuda:0": GIB, "cuda:1": 0})
    each = footprint(LLADA_8B, "nf4").total
    assert place(LLADA_8B, "auto", quantize="nf4", room={"cuda:0": each})
    with pytest.raises(ValueError, match="more memory"):
        place(LLADA_8B, "auto", quantize="nf4", room={"cuda:0": each - 1})


def test_bad_input(monkeypatch):
    with pytest.raises(ValueError, match="device_map must be 'auto' or None, not 'balanced'"):
        place(TINY, "balanced")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="use device='cpu'"):
        place(TINY, "auto")


@pytest.mark.parametrize("other", ["meta", *(["cuda"] if torch.cuda.is_available() else [])])
@torch.no_grad()
def test_activations_follow_the_blocks(other):
    torch.manual_seed(0)
    network = Transformer(TINY).double().eval()
    tokens, lengths = torch.randint(40, (3, 10)), torch.tensor([4, 2, 4])
    expected = network(tokens, 4, lengths)
    size = footprint(TINY, dtype=torch.float64).total
    placement = place(TINY, "auto", dtype=torch.float64, room={"cpu": size, other: size})
    for name in ("embed", *(f"blocks.{i}" for i in range(4)), "norm", "head"):
        network.get_submodule(name).to(home(placement, name + ".weight"))
    visits = []

    def visit(block, arguments):
        x, layout, *_ = arguments
        own = next(block.parameters()).device
        assert x.device == layout.cos.device == layout.mask.device == own
        visits.append(own.type)

    for block in network.blocks:
        block.register_forward_pre_hook(visit)
    logits = network(tokens, 4, lengths)
    assert visits == ["cpu", "cpu", other, other]
    assert logits.device.type == network.device.type == other
    assert logits.shape == expected.shape
    assert other == "meta" or (logits.cpu() - expected).abs().max() < 1e-9

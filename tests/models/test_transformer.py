"""The transformer: padding changes nothing, and attention is bidirectional."""

import pytest
import torch

from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig

from ..queries import query


@pytest.fixture
def network():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=50, width=32, layers=3, heads=4, hidden=48)
    return Transformer(config).double().eval()


@pytest.mark.parametrize("padding", [1, 5])
@torch.no_grad()
def test_padding_changes_nothing(network, padding):
    generator = torch.Generator().manual_seed(padding)
    tokens = torch.randint(50, (3, 12), generator=generator)
    lengths = torch.full((3,), 5)
    bare = network(tokens, 5, lengths)
    noise = torch.randint(50, (3, padding), generator=generator)
    padded = network(torch.cat([noise, tokens], dim=1), 5 + padding, lengths)
    assert bare.shape == (3, 7, 50)
    assert (bare - padded).abs().max() < 1e-9


@torch.no_grad()
def test_every_position_attends_to_every_other(network):
    tokens = torch.zeros(1, 8, dtype=torch.long)
    before = network(tokens, 0, torch.zeros(1, dtype=torch.long))
    for changed in (0, 7):
        other = tokens.clone()
        other[0, changed] = 9
        after = network(other, 0, torch.zeros(1, dtype=torch.long))
        assert ((before - after).abs().amax(dim=-1) > 1e-6).all()


@torch.no_grad()
def test_order_matters(network):
    tokens = torch.tensor([[1, 2, 3, 4, 7]])
    swapped = torch.tensor([[2, 1, 3, 4, 7]])
    lengths = torch.tensor([4])
    assert (network(tokens, 4, lengths) - network(swapped, 4, lengths)).abs().max() > 1e-6


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("start", [0, 1, 5])
@torch.no_grad()
def test_the_last_block_skips_the_prompt(start, shift):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=50, width=32, layers=3, heads=4, hidden=48, shift=shift)
    network = Transformer(config).double().eval()
    tokens, lengths = torch.randint(50, (3, 12)), torch.tensor([start, start, max(start - 1, 0)])
    everything = network.hidden_states(tokens, network.layout(12, start, lengths))
    expected = network.logits(network.predictors(everything, start, lengths))
    assert (network(tokens, start, lengths) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("shift", [False, True])
@torch.no_grad()
def test_block_causal_attention(shift):
    """Blocks count from the first real token, and later blocks are not seen."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=50, width=32, layers=3, heads=4, hidden=48, shift=shift, block_length=4
    )
    network = Transformer(config).double().eval()
    lengths, start, T = torch.tensor([6, 3, 0]), 6, 12
    mask = network.layout(T, start, lengths).mask
    for b, length in enumerate(lengths.tolist()):
        for q in range(start - length, T):
            for k in range(T):
                i, j = q - (start - length), k - (start - length)
                assert mask[b, 0, q, k] == (j >= 0 and j // 4 <= i // 4)
    tokens = torch.randint(50, (3, T))
    states = network.hidden_states(tokens, network.layout(T, start, lengths))
    assert states.isfinite().all(), "padding, too"
    logits = network(tokens, start, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = network(tokens[b : b + 1, start - length :], length, lengths[b : b + 1])
        assert (alone[0] - logits[b]).abs().max() < 1e-12
        border = 4 - length % 4  # answer positions in the block that the prompt ends in
        other = tokens.clone()
        other[b, start + border :] = (tokens[b, start + border :] + 1) % 50
        moved = (network(other, start, lengths) - logits)[b].abs().amax(dim=-1)
        assert (moved[:border] == 0).all()
        assert (moved[border + shift :] > 1e-6).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compiled": True}, "compiled .* fixed, any, not True"),
    ],
)
def test_what_cannot_be_compiled(network, options, message):
    with pytest.raises(ValueError, match=message):
        Native(network, name="x", mask_id=0, end_ids=(), **options)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", ["fixed", "any"])
@torch.no_grad()
def test_compiled_blocks_say_the_same(network, compiled):
    canvases = [
        (torch.randint(50, (n, 5 + length)), torch.full((n,), 5)) for n, length in ((2, 7), (3, 9))
    ]
    expected = [network(tokens, 5, lengths) for tokens, lengths in canvases]
    model = Native(network, name="x", mask_id=0, end_ids=(), compiled=compiled)
    for (tokens, lengths), wanted in zip(canvases, expected, strict=True):
        first = query(model.info, tokens, lengths, tokens.shape[1] - 5, tokens.shape[1] - 5)
        assert (model.session(first)(first) - wanted).abs().max() < 1e-12

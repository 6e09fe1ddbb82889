"""The transformer: padding changes nothing, and what is not masked listens to both sides."""

import pytest
import torch

from oddlm.models.transformer import Transformer, TransformerConfig


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
def test_every_position_hears_every_other(network):
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

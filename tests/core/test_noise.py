import numpy as np
import pytest
import torch
from scipy import stats

from oddlm.core import noise
from oddlm.core.noise import Purpose

from ..tolerances import P_VALUE

PINNED_KEYS = [237186757798809528, -6388207425837910797, 5791519133407218652]
PINNED_BITS = [
    [1746816833, -443887906, -169227238],
    [1592248412, -220588984, -1271373577],
    [526319851, 542414769, -2006440042],
]


def test_the_bits_are_pinned():
    """A changed stream changes every published sample: change these numbers only on purpose."""
    keys = noise.key(torch.tensor([0, 1, -1]), torch.tensor([0, 3, 5]), 2, Purpose.TOKEN, 7)
    assert keys.tolist() == PINNED_KEYS
    assert noise._bits(keys, 3).tolist() == PINNED_BITS


@pytest.mark.parametrize("change", ["seed", "sample", "step", "purpose", "position"])
def test_every_part_of_an_address_counts(change):
    address = {
        "seed": torch.tensor(3),
        "sample": 1,
        "step": 2,
        "purpose": Purpose.ORDER,
        "position": 4,
    }
    other = address | {change: Purpose.TOKEN if change == "purpose" else address[change] + 1}
    a, b = (noise.gumbel(noise.key(**x), 1000) for x in (address, other))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.15
    assert torch.equal(a, noise.gumbel(noise.key(**address), 1000))


def test_a_row_does_not_depend_on_its_neighbours_or_on_the_size():
    keys = noise.key(torch.tensor([3]), torch.arange(6), 0, Purpose.TOKEN)
    together = noise.gumbel(keys, 500)
    assert torch.equal(together[4], noise.gumbel(keys[4], 500))
    assert torch.equal(together[:, :77], noise.gumbel(keys, 77))


@pytest.mark.parametrize(
    ("draw", "law"), [(noise.gumbel, stats.gumbel_r), (noise.normal, stats.norm)]
)
def test_laws(draw, law):
    for keys in (
        noise.key(torch.tensor(5), 0, 0, Purpose.DIRECTION),
        noise.key(torch.arange(200_000), 1, 1, Purpose.TOKEN),
    ):
        values = draw(keys, 200_000 if keys.dim() == 0 else 1).flatten().double().numpy()
        assert np.isfinite(values).all()
        assert stats.kstest(values, law.cdf).pvalue > P_VALUE


def test_neighbouring_tokens_and_rows_are_independent():
    keys = noise.key(torch.arange(300), 2, 3, Purpose.TOKEN)
    u = stats.gumbel_r.cdf(noise.gumbel(keys, 301).double().numpy())
    bins = (u * 8).astype(int)
    for a, b in ((bins[:, :-1], bins[:, 1:]), (bins[:-1], bins[1:])):
        table = np.histogram2d(a.ravel(), b.ravel(), bins=8)[0]
        assert stats.chisquare(table.ravel()).pvalue > P_VALUE


def test_the_tail_is_there():
    """Large Gumbels decide between many unlikely tokens; a 24-bit uniform would end at 16.6."""
    values = noise.gumbel(noise.key(torch.arange(40), 0, 0, Purpose.TOKEN), 1_000_000)
    assert 15 < values.max() < 23
    expected = 40e6 * -np.expm1(-np.exp(-12.0))
    assert abs(int((values > 12).sum()) - expected) < 5 * expected**0.5


def test_seeds():
    derived = noise.seed_tensor(7, 5, torch.device("cpu")).tolist()
    assert derived[0] == 7
    assert len(set(derived)) == 5
    assert noise.seed_tensor([2**64 - 1, 3], 2, torch.device("cpu")).tolist() == [-1, 3]
    assert noise.seed_tensor(2**70 + 1, 1, torch.device("cpu")).tolist() == [1]
    with pytest.raises(ValueError, match="one per group: got 2 for 3"):
        noise.seed_tensor([1, 2], 3, torch.device("cpu"))

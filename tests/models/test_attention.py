"""Attention to several sources: its kernel against the plain operations."""

import pytest
import torch

from oddlm.models import attention
from oddlm.models.fused_softmax import fused_weights

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = [
    # samples, key heads, heads per key, queries, positions of each source
    (1, 1, 1, 1, (1,)),
    (3, 2, 1, 4, (5, 3)),
    (2, 2, 3, 2, (7, 1, 9)),
    (2, 1, 2, 5, (16,)),
    (1, 2, 4, 1, (1030, 300, 4)),
]


pytestmark = pytest.mark.usefixtures("interpreted")


def products(R, heads, rows, sizes, dtype):
    """Products of shared keys are not in the order of samples, so the first has other strides."""
    made = [torch.randn(R, heads, rows, size, device=DEVICE).to(dtype) for size in sizes]
    made[0] = made[0].transpose(0, 1).contiguous().transpose(0, 1)
    return made


def masks(R, queries, size):
    generator = torch.Generator().manual_seed(1)
    yield None
    for rows in (1, queries):
        mask = torch.rand(R, 1, rows, size, generator=generator) < 0.6
        mask[..., 0] = True
        yield mask.to(DEVICE)
    mask = torch.zeros(R, 1, 1, size, dtype=torch.bool)
    mask[..., -1] = True  # whole blocks are hidden
    yield mask.expand(-1, -1, queries, -1).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("R", "heads", "group", "queries", "sizes"), CASES)
def test_the_kernel_computes_the_same_weights(R, heads, group, queries, sizes, dtype):
    torch.manual_seed(0)
    given = products(R, heads, group * queries, sizes, dtype)
    for mask in masks(R, queries, sum(sizes)):
        expected = attention.weights_of(given, mask, queries, 0.3)
        found = fused_weights(given, mask, queries, 0.3, attention.ALIGNED)
        assert found.dtype == dtype
        tolerance = 1e-6 if dtype is torch.float32 else 2**-8
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        assert (found.float().sum(dim=-1) - 1).abs().max() < 0.02
        assert not found[..., sum(sizes) :].any()


def test_a_query_that_sees_nothing_is_nan_as_before():
    """Such rows are padding, and nobody may take them for numbers."""
    given = products(1, 1, 2, (4,), torch.float32)
    mask = torch.tensor([[True] * 4, [False] * 4], device=DEVICE)[None, None]
    found = fused_weights(given, mask, 2, 1.0, attention.ALIGNED)
    assert found[0, 0, 1].isnan().all()
    assert torch.equal(found.isnan(), attention.weights_of(given, mask, 2, 1.0).isnan())

"""Who computes: by device, dtype and what is installed; and what is said where the fast way is closed."""

import warnings

import pytest
import torch

from oddlm import Repulsion, denoise, diversify
from oddlm.kernels import dispatch, closed_form, reference
from oddlm.models.toy import Toy


class OnGpu:
    """Logits as the choice sees them."""

    is_cuda, device = True, torch.device("cuda")

    def __init__(self, dtype=torch.bfloat16):
        self.dtype = dtype


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU of a given compute capability; nothing runs on it."""

    def install(capability):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU of the test")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    for cached in (choice._too_old, choice._say):
        cached.cache_clear()
    yield install
    for cached in (choice._too_old, choice._say):
        cached.cache_clear()


def test_a_gpu_gets_the_fused_kernels(gpu):
    gpu((9, 0))
    assert choice.choose("auto", OnGpu(), traced=True, closed=True, fused=True).__name__ == "oddlm.kernels.triton"
    assert choice.choose("auto", OnGpu(), traced=True, closed=True, fused=False) is closed_form
    assert choice.choose("closed_form", OnGpu(), traced=True, closed=True, fused=True) is closed_form
    assert choice.choose("reference", OnGpu(), traced=True, closed=True, fused=True) is reference
    assert choice.choose("auto", OnGpu(torch.float64), traced=True, closed=True, fused=True) is closed_form


def test_an_old_gpu_gets_torch_and_is_told_once(gpu):
    gpu((7, 0))
    with pytest.warns(UserWarning, match=r"GPU of the test has compute capability 7\.0, below 8\.0"):
        assert choice.choose("auto", OnGpu(), traced=True, closed=True, fused=True) is closed_form
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choice.triton_kernel(OnGpu()) is None


def test_without_triton_a_gpu_gets_torch_and_is_told_once(gpu, monkeypatch):
    gpu((9, 0))
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert choice.triton_kernel(OnGpu()) is None
    assert choice.triton_kernel(OnGpu()) is None


def test_a_cpu_is_told_nothing():
    assert choice.triton_kernel(torch.zeros(1)) is None
    done = denoise(Toy(), [[5]], n=2, length=4, steps=2, guide=Repulsion(alpha=4))
    assert (done.commit_step >= 0).all()


def test_triton_by_name_says_why_it_cannot_be_had():
    batch = torch.zeros(2, 3, 9), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="backend 'triton' is not to be had: it needs a GPU, the logits are on cpu"):
        diversify(*batch, alpha=1.0, backend="triton")
    with pytest.raises(ValueError, match=r"it computes in single precision, the logits are torch\.float64"):
        diversify(batch[0].double(), *batch[1:], alpha=1.0, backend="triton")
    for options in ({"feature": "mean_pool"}, {"feature": {"name": "max_pool", "top_k": 3}}, {"preset": "paper"}):
        with pytest.raises(ValueError, match="backend 'triton' needs feature max_pool"):
            diversify(*batch, alpha=1.0, backend="triton", **options)

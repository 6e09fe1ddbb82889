"""Who computes: by device, dtype and what is installed; and what is said where the fast way is
closed.
"""

import warnings

import pytest
import torch

from oddlm import Repulsion, advance, begin, denoise, diversify
from oddlm.diversity import repulsion
from oddlm.diversity.features import FEATURES
from oddlm.kernels import dispatch
from oddlm.models.toy import Toy

GPU = torch.device("cuda")
FORMS = ("triton", "closed_form", "reference")


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU of a given compute capability; nothing runs on it."""

    def install(capability):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU of the test")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    for cached in (dispatch._too_old, dispatch._warn_slow):
        cached.cache_clear()
    yield install
    for cached in (dispatch._too_old, dispatch._warn_slow):
        cached.cache_clear()


def chosen(dtype=torch.bfloat16, forms=FORMS, **options):
    return dispatch.choose(GPU, dtype, forms=forms, **options)


def test_a_gpu_gets_the_fused_kernels(gpu):
    gpu((9, 0))
    assert (chosen().push, chosen().draws, str(chosen())) == ("triton", True, "triton")
    assert dispatch.module(chosen().push).__name__ == "oddlm.kernels.fused.launch"
    assert (chosen(forms=()).push, chosen(forms=()).draws) == (None, True)
    assert chosen(forms=("closed_form", "reference")).push == "closed_form"
    assert chosen(forms=("analytic", "reference")).push == "analytic"
    assert chosen(asked="closed_form").push == "closed_form"
    assert chosen(asked="closed_form", forms=("analytic", "reference")).push == "analytic"
    assert chosen(asked="reference").push == "reference"
    assert chosen(torch.float64).push == "closed_form"
    assert chosen(torch.float64).kernel is None
    filtered = chosen(filtered=True)
    assert (filtered.push, filtered.draws, filtered.kernel.__name__) == (
        "triton",
        False,
        "oddlm.kernels.fused.launch",
    )
    assert str(filtered) == "triton, torch"


def test_elsewhere_the_choice_is_made_anew(gpu):
    gpu((9, 0))
    here = chosen().to(torch.device("cpu"))
    assert (here.push, here.draws) == ("closed_form", False)
    assert here.to(GPU) == chosen()
    asked = chosen(asked="triton").to(torch.device("cpu"))
    assert asked.push == "closed_form"
    assert asked.to(GPU).push == "triton"


def test_an_old_gpu_gets_torch_and_is_told_once(gpu):
    gpu((7, 0))
    with pytest.warns(
        UserWarning, match=r"GPU of the test has compute capability 7\.0, below 8\.0"
    ):
        assert chosen().push == "closed_form"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen(forms=()).kernel is None


def test_without_triton_a_gpu_gets_torch_and_is_told_once(gpu, monkeypatch):
    gpu((9, 0))
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert chosen(forms=()).kernel is None
    assert chosen(forms=()).kernel is None


def test_a_cpu_is_told_nothing():
    assert dispatch.choose(torch.device("cpu"), torch.float32).kernel is None
    done = denoise(Toy(), [[5]], n=2, length=4, steps=2, guide=Repulsion(alpha=4))
    assert (done.commit_step >= 0).all()


def test_a_run_chooses_once_and_tells(monkeypatch):
    calls = []
    real = dispatch.choose
    monkeypatch.setattr(
        dispatch, "choose", lambda *args, **options: calls.append(options) or real(*args, **options)
    )
    state = begin(toy := Toy(), [[5]], n=2, length=6, steps=6, guide=Repulsion(alpha=4))
    assert str(state.backend) == "closed_form"
    while (query := state.query) is not None:
        state, _ = advance(state, toy(query.tokens, query.start, query.prompt_lengths))
    assert len(calls) == 1
    assert str(begin(toy, [[5]], n=2, length=6, steps=6).backend) == "torch"


def test_features_and_objectives_are_built_once_per_run(monkeypatch):
    built = []
    for module in (repulsion.OBJECTIVES, repulsion.ALPHA_SCHEDULES, FEATURES):
        real = module.build
        monkeypatch.setattr(
            module, "build", lambda spec, real=real: built.append(spec) or real(spec)
        )
    counts = []
    for steps in (2, 12):
        built.clear()
        denoise(Toy(), [[5]], n=2, length=12, steps=steps, guide=Repulsion(alpha=4))
        counts.append(len(built))
    assert counts[0] == counts[1]


def test_triton_by_name_says_why_it_cannot_be_had():
    batch = (
        torch.zeros(2, 3, 9),
        torch.zeros(2, 3, dtype=torch.long),
        torch.ones(2, 3, dtype=torch.bool),
    )
    with pytest.raises(
        ValueError, match="backend 'triton' is not available: it needs a GPU, the logits are on cpu"
    ):
        diversify(*batch, alpha=1.0, backend="triton")
    with pytest.raises(
        ValueError, match=r"it computes in single precision, the logits are torch\.float64"
    ):
        diversify(batch[0].double(), *batch[1:], alpha=1.0, backend="triton")
    for options in (
        {"feature": "mean_pool"},
        {"feature": {"name": "max_pool", "top_k": 3}},
        {"arithmetic": "published"},
    ):
        with pytest.raises(ValueError, match="backend 'triton' needs feature max_pool"):
            diversify(*batch, alpha=1.0, backend="triton", **options)

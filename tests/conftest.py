"""Shared by all tests: hypothesis profiles, one thread per worker, a toy network, a browser.

Without a GPU, Triton's kernels are interpreted. Triton decides that when a kernel is defined, so
the modules that define some are imported here, before any test can import them.
"""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from oddlm.models.toy import Toy

from .browser import browse, chromium

__all__ = ["browse", "chromium", "toy"]

SLOW_STARTS = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "default", max_examples=60, deadline=None, derandomize=True, suppress_health_check=SLOW_STARTS
)
settings.register_profile(
    "soak", max_examples=2000, deadline=None, suppress_health_check=SLOW_STARTS
)
settings.load_profile("default")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    import oddlm.kernels.fused.launch
    import oddlm.models.fused_softmax  # noqa: F401
    import tests.kernels.noise_kernel  # noqa: F401

    del os.environ["TRITON_INTERPRET"]

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's kernels run without a GPU; numpy warns of inf - inf there, a GPU does not."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy(vocab_size=60, dtype=torch.float64)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(
                    pytest.mark.skip(reason="needs an NVIDIA GPU; its log is in benchmarks/results")
                )

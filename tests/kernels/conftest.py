"""Without a GPU, Triton's kernels are interpreted: it has to know before anybody imports it."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    import oddlm.kernels.fused.launch  # noqa: F401
    import tests.kernels.noise_kernel  # noqa: F401

    del os.environ["TRITON_INTERPRET"]

"""Repulsion and sampling as Triton kernels; `launch` calls `passes` and `algebra` on the GPU."""

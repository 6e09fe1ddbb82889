"""Repulsion and sampling as Triton kernels: `launch` is the door, `passes` and `algebra` run on the
GPU.
"""

"""The noise of the kernels, made visible."""

import triton
import triton.language as tl

from oddlm.kernels.fused import passes as triton_device


@triton.jit
def noise_kernel(keys, seconds, bits, gumbel, normal, SIZE: tl.constexpr):
    column = tl.arange(0, SIZE)
    key, second = tl.load(keys), tl.load(seconds)
    tl.store(bits + column, triton_device.bits(key, column).to(tl.int32, bitcast=True))
    tl.store(gumbel + column, triton_device.gumbel(key, column))
    tl.store(normal + column, triton_device.normal(key, second, column))


@triton.jit(do_not_specialize=["sample", "step"])
def key_kernel(seed, sample, step, keys, purpose: tl.constexpr, SIZE: tl.constexpr):
    position = tl.arange(0, SIZE)
    key = triton_device.key_of(tl.load(seed), sample, step, purpose, position)
    tl.store(keys + position, key)

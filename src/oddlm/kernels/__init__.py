"""Numerical kernels: `reference` is written for reading, and every faster one is tested against it."""

"""Numerical kernels: `reference` is written for reading; faster ones are tested against it."""

"""Numerical cores. `reference` is written for reading; every faster one is compared with it."""

"""A program, tests for it, and how the two meet."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    program: str
    tests: str
    by_reference: tuple[str, ...] = ()
    timeout_s: float = 10.0

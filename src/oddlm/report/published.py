"""The paper's published numbers (LLaDA-8B-Instruct in 4 bits, 16 samples, 64 tokens, 32 steps)."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .cells import Benchmark, Cell

WHOSE = "Lamont et al., LLaDA-8B-Instruct in 4 bits, 16 samples of 64 tokens in 32 steps, 8 runs"
N = 16


@dataclass(frozen=True)
class Latency:
    plain: tuple[float, float]  # seconds per batch: mean and standard error
    odd: tuple[float, float]
    overhead_percent: float


def pass_16(bench: Benchmark, cell: Cell) -> tuple[float, float] | None:
    """Return the published Pass@16 in percent (mean, standard error) of the same setting.

    The task, objective, alpha and temperature must match.
    """
    bare = cell.method == ("plain" if cell.plain else cell.objective)
    if cell.n != N or not bare:
        return None
    return _pass_16().get((bench.task, cell.objective, cell.alpha, cell.temperature))


def solved(bench: Benchmark, method: str, alpha: float) -> int | None:
    """Return the published number of problems solved by some sample at some temperature.

    Alpha 0 is plain sampling, the others are ODD.
    """
    if bench.n != N or method not in ("plain", "odd"):
        return None
    return _solved().get((bench.task, alpha))


def latency(bench: Benchmark) -> Latency | None:
    return _latency().get(bench.task) if bench.n == N else None


@cache
def _pass_16() -> Mapping[tuple[str, str, float, float], tuple[float, float]]:
    return {
        (row["task"], row["objective"], float(row["alpha"]), float(row["temperature"])): (
            float(row["mean"]),
            float(row["se"]),
        )
        for row in _rows("pass16.csv")
    }


@cache
def _solved() -> Mapping[tuple[str, float], int]:
    return {(row["task"], float(row["alpha"])): int(row["solved"]) for row in _rows("coverage.csv")}


@cache
def _latency() -> Mapping[str, Latency]:
    return {
        row["task"]: Latency(
            (float(row["baseline_s"]), float(row["baseline_se"])),
            (float(row["odd_s"]), float(row["odd_se"])),
            float(row["overhead_percent"]),
        )
        for row in _rows("latency.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    text = (files(__package__) / "paper" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))

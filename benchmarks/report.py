"""A report from 1,000,000 sample rows: seconds and memory of `oddlm report`, in a process of its own.

python benchmarks/report.py [--samples 1000000]
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from oddlm.metrics import BATCH_METRICS
from oddlm.params import RunSpec, SampleParams
from oddlm.store import ROWS, SCHEMA, SPEC, SUMMARY, Spec, Summary

N, PROBLEMS, SEEDS = 16, 200, 8
TEMPERATURES = (0.0, 0.5, 1.0, 1.5, 2.0)
LIMITS = "the promise: under 60 s and 2 GB on two cores"


def settings() -> list[SampleParams]:
    """Plain sampling, and four objectives at growing alphas, at every temperature: as many as are asked for."""
    axes = [("none", 0.0), *((name, 2.0**i) for i in range(1, 9) for name in ("odd", "dpp", "odd_sequential", "random_probe"))]
    shape = {"fork": False, "length": 64, "steps": 32}
    return [SampleParams(objective=o, alpha=a, temperature=t, **shape) for o, a in axes for t in TEMPERATURES]


def write_run(folder: Path, spec: RunSpec, rng: np.random.Generator) -> int:
    """A run with made-up answers of the length that GSM8K's have; gives the bytes of its rows."""
    home = folder / spec.id
    home.mkdir(parents=True)
    text = " ".join(f"word{i}" for i in range(40))
    measures = dict.fromkeys(BATCH_METRICS, 0.5)
    with (home / ROWS).open("w") as file:
        for problem, right in enumerate(rng.random((PROBLEMS, N)) < rng.uniform(0.05, 0.3)):
            verdicts = enumerate(right.tolist())
            samples = [
                {"index": i, "text": f"{text} {i}", "length": 60, "finish_reason": "stop", "correct": c} for i, c in verdicts
            ]
            row = {
                "schema_version": SCHEMA,
                "problem": f"p/{problem}",
                "prompt": text,
                "seed": problem,
                "nfe": 32,
                "seconds": 1.5,
            }
            file.write(json.dumps(row | {"score_seconds": 0.1, "diversity": measures, "samples": samples}) + "\n")
    passed = {"pass@16": 0.5}
    summary = Summary(id=spec.id, problems=PROBLEMS, samples=PROBLEMS * N, seconds=320, passed=passed, diversity={})
    (home / SUMMARY).write_text(summary.model_dump_json() + "\n")
    (home / SPEC).write_text(Spec(id=spec.id, problems=PROBLEMS, spec=spec).model_dump_json() + "\n")
    return (home / ROWS).stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    wanted = parser.parse_args().samples
    runs = [RunSpec(model="made-up", task="gsm8k", n=N, params=p, seed=s) for p in settings() for s in range(SEEDS)]
    runs = runs[: -(-wanted // (PROBLEMS * N))]
    with tempfile.TemporaryDirectory() as folder:
        store, out = Path(folder) / "runs", Path(folder) / "report"
        size = sum(write_run(store, spec, np.random.default_rng(i)) for i, spec in enumerate(runs))
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "oddlm", "report", str(store), "--out", str(out)], check=True, stdout=subprocess.PIPE
        )
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    print(f"{platform.machine()}, {os.cpu_count()} cores; {LIMITS}\n")
    print("| samples | runs | rows on disk | seconds | CPU seconds | peak memory | report |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    samples, cpu = len(runs) * PROBLEMS * N, used.ru_utime + used.ru_stime
    memory = used.ru_maxrss / 1e6
    written = f"{len(sizes)} files, {sum(sizes) / 1e6:.0f} MB"
    print(f"| {samples:,} | {len(runs)} | {size / 1e6:.0f} MB | {seconds:.1f} | {cpu:.1f} | {memory:.2f} GB | {written} |")


if __name__ == "__main__":
    main()

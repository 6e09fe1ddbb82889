"""Time and memory of writing, listing, querying and reporting millions of stored samples.

    python benchmarks/store.py [--samples 1000000 10000000] [--folder /tmp]
        [--out benchmarks/results/store.md]

The runs have 200 problems with 16 samples each, over settings and seeds, so that `oddlm report`
makes a realistic table. Texts are as long as GSM8K's answers. A part of every store is written
through `Store.open` and timed; the rest is written as bytes in the same format. Every figure is of
a separate process, including start-up and imports; memory is the peak of its resident set.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oddlm.experiments.stages import summarise
from oddlm.metrics import BATCH_METRICS
from oddlm.params import SampleParams
from oddlm.spec import RunSpec
from oddlm.store import DRAWN, SCORES, SPEC, SUMMARY, Drawn, DrawnSample, Scored, Spec, Store

N, PROBLEMS, SEEDS = 16, 200, 8
APPENDED = 8  # runs that are written through the store
TOGETHER = (1, 16)  # records per call
TEMPERATURES = (0.0, 0.5, 1.0, 1.5, 2.0)
WORDS = " ".join(f"word{i}" for i in range(40))
METHOD = " ".join(str(__doc__).rpartition("\n\n")[2].split())
QUERIES = (
    "select run, avg(correct::int) from samples group by run",
    "select task, count(*), avg(seconds) from runs group by task",
)


def settings() -> list[SampleParams]:
    """Plain sampling, and four objectives at growing alphas, at every temperature."""
    axes = [
        ("none", 0.0),
        *(
            (name, 2.0**i)
            for i in range(1, 9)
            for name in ("odd", "dpp", "odd_sequential", "random_probe")
        ),
    ]
    shape = {"fork": False, "length": 64, "steps": 32}
    return [
        SampleParams(objective=o, alpha=a, temperature=t, **shape)
        for o, a in axes
        for t in TEMPERATURES
    ]


def specs(samples: int) -> list[RunSpec]:
    """Return runs with this number of samples in total; if settings run out, add seeds."""
    runs, params = -(-samples // (PROBLEMS * N)), settings()
    seeds = range(max(SEEDS, -(-runs // len(params))))
    known = {
        "model": "made-up",
        "model_digest": "0" * 64,
        "task": "gsm8k",
        "task_version": 1,
        "scorer_version": "1",
        "n": N,
    }
    return [RunSpec(**known, params=p, seed=s) for p in params for s in seeds][:runs]


def drawn() -> list[Drawn]:
    numbers = {
        "length": 60,
        "size": 64,
        "ends": 4,
        "finish_reason": "stop",
        "nfe": 32,
        "logprob": -31.25,
    }
    samples = tuple(DrawnSample(index=i, text=f"{WORDS} {i}", **numbers) for i in range(N))
    shared = {"digest": "0" * 64, "prompt": WORDS, "nfe": 32, "seconds": 1.5, "samples": samples}
    return [Drawn(problem=f"p/{i}", seed=i, **shared) for i in range(PROBLEMS)]


def scores(seed: int) -> Iterator[Scored]:
    """Make the verdicts of a run, whose quality depends on its seed."""
    rng = np.random.default_rng(seed)
    shared = {
        "diversity": dict.fromkeys(BATCH_METRICS, 0.5),
        "nfe": 32,
        "draw_seconds": 1.5,
        "seconds": 0.01,
    }
    share = rng.uniform(0.05, 0.3)
    for problem in range(PROBLEMS):
        right = (rng.random(N) < share).tolist()
        yield Scored(
            problem=f"p/{problem}",
            correct=tuple(right),
            solutions=tuple(0 if one else None for one in right),
            answers=tuple("42" if one else "17" for one in right),
            details=tuple("" if one else "the target is 42" for one in right),
            **shared,
        )


def append(folder: Path, samples: int, together: int) -> None:
    """Write runs as the driver does; print the seconds, without those for making the records."""
    store, seconds = Store(folder), 0.0
    for seed, spec in enumerate(specs(samples)[:APPENDED]):
        records, verdicts = drawn(), list(scores(seed))
        began = time.perf_counter()
        with store.open(spec, PROBLEMS) as writer:
            for first in range(0, PROBLEMS, together):
                writer.draw(*records[first : first + together])
                writer.score(*verdicts[first : first + together])
            writer.finish(summarise(spec, verdicts))
        seconds += time.perf_counter() - began
    print(seconds)


def put(folder: Path, runs: Sequence[RunSpec]) -> None:
    """Write the same runs as bytes: the lines are those of the store, but made only once."""
    lines = b"".join(
        record.model_dump_json(exclude_none=True).encode() + b"\n" for record in drawn()
    )
    verdicts = [list(scores(seed)) for seed in range(100)]
    scored = [b"".join(one.model_dump_json().encode() + b"\n" for one in some) for some in verdicts]
    for number, spec in enumerate(runs):
        if (home := folder / spec.id).exists():
            continue
        home.mkdir(parents=True)
        (home / SPEC).write_text(
            Spec(id=spec.id, problems=PROBLEMS, spec=spec).model_dump_json() + "\n"
        )
        (home / DRAWN).write_bytes(lines)
        (home / SCORES).write_bytes(scored[number % 100])
        summary = summarise(spec, verdicts[number % 100])
        (home / SUMMARY).write_text(summary.model_dump_json() + "\n")


# A process begins with its parent's peak, so that of this one, with all its imports, must not start
# the others.
LAUNCH = """
import json, os, subprocess, sys
from time import perf_counter
began = perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as file:
    json.dump([perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3], file)
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Used(NamedTuple):
    seconds: float
    cpu: float
    megabytes: float


def measure(*command: str) -> tuple[Used, str]:
    """Measure a separate Python process; return its cost and its output."""
    with tempfile.NamedTemporaryFile() as file:
        launch = [sys.executable, "-S", "-c", LAUNCH, file.name, sys.executable, *command]
        done = subprocess.run(launch, check=True, stdout=subprocess.PIPE, text=True)
        return Used(*json.load(file)), done.stdout


def cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def table(samples: int, home: Path, repeats: int) -> Iterator[str]:
    """Yield the lines of the report on one store, as they are measured."""
    store, runs = home / "runs", specs(samples)
    own = min(APPENDED, len(runs)) * PROBLEMS
    appended = []
    for together in TOGETHER:  # the last of them stays a part of the store
        where = store if together == TOGETHER[-1] else home / f"together-{together}"
        used, output = measure(
            __file__, "--append", str(where), "--samples", str(samples), "--together", str(together)
        )
        seconds = float(output)
        rate = f"{own * N / seconds:,.0f} samples/s, {2 * own / together / seconds:,.0f} calls/s"
        name = f"append {own * N:,} samples, {together} record{'s' * (together > 1)} per call"
        appended.append(
            f"| {name}: {rate} | {seconds:.1f} | {used.cpu:.1f} | {used.megabytes:,.0f} |"
        )
    put(store, runs)
    sizes = {
        name: sum(path.stat().st_size for path in store.glob(f"*/{name}"))
        for name in (DRAWN, SCORES)
    }
    yield (
        f"\n## {len(runs) * PROBLEMS * N:,} samples\n\n{len(runs):,} runs; "
        f"drawn.jsonl {sizes[DRAWN] / 1e9:.2f} GB, scores.jsonl {sizes[SCORES] / 1e9:.2f} GB\n\n"
        "| what | seconds | CPU seconds | peak MB |\n|---|---:|---:|---:|"
    )
    yield from appended
    commands = {
        "oddlm runs": ("runs", "--store", str(store)),
        **{
            f'oddlm runs sql "{query}"': ("runs", "--store", str(store), "sql", query)
            for query in QUERIES
        },
        "oddlm report": ("report", str(store), "--out", str(home / "report")),
    }
    for name, command in commands.items():
        found = [measure("-m", "oddlm", *command)[0] for _ in range(repeats)]
        seconds, cpu, memory = (
            " / ".join(f"{getattr(one, key):,.{digits}f}" for one in found)
            for key, digits in (("seconds", 1), ("cpu", 1), ("megabytes", 0))
        )
        yield f"| `{name}` | {seconds} | {cpu} | {memory} |"
    files = [path.stat().st_size for path in (home / "report").rglob("*") if path.is_file()]
    yield f"\nThe report: {len(files):,} files, {sum(files) / 1e6:.0f} MB."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the stores are made, and deleted; a sample takes 500 bytes",
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file for the tables, beside standard output")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the file")
    parser.add_argument("--append", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--together", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.append:
        append(args.append, args.samples[0], args.together)
        return
    machine = f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        f"# python benchmarks/store.py --samples {' '.join(map(str, args.samples))}",
        f"\n{machine}. {args.note}",
        f"\n{METHOD}",
    ]
    print("\n".join(lines), flush=True)
    for samples in args.samples:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="store-") as home:
            for line in table(samples, Path(home), args.repeats):
                print(line, flush=True)
                lines.append(line)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

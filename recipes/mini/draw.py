"""Draw the samples of many runs and nothing else: no verdicts, no sandbox, files small enough to carry. `gather.py` makes a
store of them where programs can be run. Runs come from a sweep's TOML file or from RunSpecs, one JSON object a line:

    python recipes/mini/draw.py experiments/mini.toml --device cuda --dtype fp16 --compiled fixed --workers 4 --out drawn/
    python recipes/mini/gather.py drawn/ --store runs
"""

import argparse
import json
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oddlm.evaluate import check_weights, draw, environment, identified
from oddlm.experiments.grid import read_grid
from oddlm.params import RunSpec
from oddlm.tasks import Problem, Task, find_task


def specs_of(path: Path) -> list[RunSpec]:
    if path.suffix == ".toml":
        return [identified(spec) for spec in read_grid(path)]
    return [RunSpec.model_validate_json(line) for line in path.read_text().splitlines() if line.strip()]


def problems_of(spec: RunSpec, *, run: bool) -> tuple[Task, list[Problem]]:
    """The task and its problems; only who runs programs (run=True) asks for the sandbox."""
    task = find_task(spec.task or "").under(spec.protocol)
    unsafe = {"unsafe": True} if not run and "unsafe" in task.options else {}
    return task, task.problems(split=spec.split, limit=spec.limit, **unsafe)


Source = tuple[Any, ...]


def source_of(spec: RunSpec) -> Source:
    return (spec.task, spec.protocol, spec.split, spec.limit)


def write_problems(runs: Path) -> None:
    """The prompts of all runs beside their file: making up minicode's problems takes longer than answering some."""
    known = {}
    for spec in specs_of(runs):
        if (key := json.dumps(source_of(spec))) not in known:
            known[key] = [[problem.id, problem.prompt] for problem in problems_of(spec, run=False)[1]]
    runs.with_suffix(".problems.json").write_text(json.dumps(known))


def read_problems(runs: Path) -> dict[Source, tuple[Task, list[Problem]]]:
    path, found = runs.with_suffix(".problems.json"), {}
    for key, problems in (json.loads(path.read_text()) if path.exists() else {}).items():
        source = tuple(json.loads(key))
        found[source] = (find_task(source[0]).under(source[1]), [Problem(*each, target=None) for each in problems])
    return found


@dataclass
class Drawn:
    """Token sequences by problem, each different one once, and which of them every sample of every run is."""

    meta: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)  # [problems, n, length] of each run

    def save(self, path: Path) -> None:
        """A file per set of problems and length: runs that share them compress together."""
        sets: dict[str, list[int]] = {}
        for i, row in enumerate(self.meta):
            spec = row["spec"]
            same = [spec[k] for k in ("task", "protocol", "split", "limit", "n")] + [self.tokens[i].shape[2]]
            sets.setdefault(json.dumps(same), []).append(i)
        arrays: dict[str, np.ndarray] = {}
        for number, some in enumerate(sets.values()):
            stacked = np.stack([self.tokens[i] for i in some], axis=1).astype(np.uint16)  # [problems, runs, n, length]
            P, R, n, L = stacked.shape
            texts, which, counts = [], [], []
            for rows in stacked.reshape(P, R * n, L):
                different, inverse = np.unique(rows, axis=0, return_inverse=True)
                texts.append(different)
                which.append(inverse.astype(np.uint32).reshape(R, n))
                counts.append(len(different))
            arrays |= {
                f"texts{number}": np.concatenate(texts),
                f"which{number}": np.stack(which),
                f"counts{number}": np.array(counts),
                f"meta{number}": np.frombuffer(json.dumps([self.meta[i] for i in some]).encode(), dtype=np.uint8),
            }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)


def shares(specs: list[RunSpec], workers: int) -> list[list[RunSpec]]:
    """The runs of each worker, in their order. Problems keep to few workers, since every shape is compiled anew."""
    costs: dict[Source, float] = {}
    for spec in specs:
        work = spec.n * (spec.limit or 1) * spec.params.length * (spec.params.steps or spec.params.length)
        costs[source_of(spec)] = costs.get(source_of(spec), 0.0) + work
    loads, mine = [0.0] * workers, [set[Source]() for _ in range(workers)]
    for source in sorted(costs, key=costs.__getitem__, reverse=True):
        crew = max(1, round(workers * costs[source] / sum(costs.values())))
        for i in sorted(range(workers), key=loads.__getitem__)[:crew]:
            loads[i] += costs[source] / crew
            mine[i].add(source)
    crews = {source: [i for i in range(workers) if source in mine[i]] for source in costs}
    turns, found = dict.fromkeys(costs, 0), [list[RunSpec]() for _ in range(workers)]
    for spec in specs:
        crew = crews[source_of(spec)]
        found[crew[turns[source_of(spec)] % len(crew)]].append(spec)
        turns[source_of(spec)] += 1
    return found


def work(args: argparse.Namespace, part: int) -> None:
    import torch

    import oddlm

    specs = shares(specs_of(args.runs), args.workers)[part]
    if not specs:
        return
    if args.device != "cpu":
        torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    dtype = {"dtype": args.dtype} if args.dtype else {}
    lm = oddlm.load("mini", device=args.device, compiled=args.compiled, **dtype)
    about = {**environment(lm), "dtype": str(lm.model.embedding.dtype), "compiled": args.compiled}
    for spec in specs:
        check_weights(lm, spec)
    drawn, known = Drawn(), read_problems(args.runs)
    for number, spec in enumerate(specs):
        task, problems = known.get(source_of(spec)) or known.setdefault(source_of(spec), problems_of(spec, run=False))
        if time.monotonic() - args.began > args.within:
            print(f"part {part}: time is up, {len(specs) - number} of {len(specs)} runs are missing", flush=True)
            break
        start, groups = time.monotonic(), []
        try:
            for first in range(0, len(problems), args.together):
                groups += draw(lm, spec, task, problems[first : first + args.together])
        except Exception as error:  # one run that fails does not take the others with it
            print(f"part {part} failed: {spec.model_dump_json()}: {error}", flush=True)
            continue
        seconds = time.monotonic() - start
        drawn.tokens.append(np.array([[sample.tokens for sample in group.samples] for group in groups]))
        nfe = groups[0].samples[0].nfe
        drawn.meta.append({"spec": spec.model_dump(mode="json"), "seconds": seconds, "nfe": nfe, "environment": about})
        done = spec.params.model_dump(mode="json", exclude_defaults=True)
        print(f"part {part} {number + 1}/{len(specs)} {seconds:.2f} s {spec.task} {json.dumps(done)} {spec.seed}", flush=True)
    drawn.save(args.out / f"{args.runs.stem}-{part}.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a sweep's .toml, or a .jsonl of RunSpecs")
    parser.add_argument("--out", type=Path, default=Path("drawn"), help="folder; a file per worker")
    parser.add_argument("--problems", action="store_true", help="draw nothing: write the prompts beside the file of runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--compiled", choices=["fixed", "any"])
    parser.add_argument("--workers", type=int, default=1, help="processes, all on the one device")
    parser.add_argument("--together", type=int, default=500, help="problems at a time")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no run after so many seconds")
    args = parser.parse_args()
    args.began = time.monotonic()
    if args.problems:
        return write_problems(args.runs)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=work, args=(args, part)) for part in range(args.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a worker failed")
    return None


if __name__ == "__main__":
    main()

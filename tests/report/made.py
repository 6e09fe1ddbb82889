"""Stores with known numbers: runs with made-up samples, written through the store."""

from pathlib import Path
from typing import Any

import numpy as np

from oddlm.config import checked
from oddlm.spec import RunSpec
from oddlm.store import Drawn, Scored, Store, Summary


def spec(
    seed: int = 0, task: str = "countdown", model: str = "mini", n: int = 4, **params: Any
) -> RunSpec:
    content = {
        "length": 8,
        "temperature": 1.0,
        "objective": "odd",
        "alpha": 8.0,
        "fork": False,
    } | params
    return checked(RunSpec, {"model": model, "task": task, "n": n, "params": content, "seed": seed})


def write_run(
    folder: Path,
    what: RunSpec,
    correct: Any,
    *,
    texts: Any = None,
    seconds: float = 1.0,
    finish: bool = True,
) -> str:
    """Write a run. correct and texts: [problems, n]; by default, sample i of problem p is `p i`."""
    table = np.asarray(correct, dtype=bool)
    with Store(folder).open(what, len(table)) as run:
        run.start({"time": "then"})
        for p, verdicts in enumerate(table):
            shape = {"length": 2, "size": 2, "ends": 0, "finish_reason": "stop", "nfe": 8}
            written = [texts[p][i] if texts else f"{p} {i}" for i in range(len(verdicts))]
            samples = [{"index": i, "text": text, **shape} for i, text in enumerate(written)]
            diversity = {
                "distinct_texts": float(len(set(written))),
                "vendi_ngram": len(set(written)) * 0.9,
            }
            drawn = {"problem": f"p/{p}", "digest": "", "prompt": f"ask {p}", "seed": 1}
            drawn |= {"nfe": 8, "seconds": seconds, "samples": samples}
            if drawn["problem"] not in run.digests:  # another run may share the samples
                run.draw(checked(Drawn, drawn))
            right = [bool(verdict) for verdict in verdicts]
            columns = {"correct": right, "solutions": [0 if one else None for one in right]}
            columns |= {"answers": [None] * len(right), "details": [None] * len(right)}
            measured = {
                "problem": f"p/{p}",
                "nfe": 8,
                "draw_seconds": seconds,
                "seconds": 0.0,
                "diversity": diversity,
            }
            run.score(checked(Scored, measured | columns))
        if finish:
            total = {"problems": len(table), "samples": table.size, "seconds": seconds * len(table)}
            run.finish(
                checked(
                    Summary, {"id": what.id, "passed": {"pass@1": 0.5}, "diversity": {}} | total
                )
            )
    return what.id


def grid(
    folder: Path, *, problems: int = 12, seeds: int = 2, task: str = "countdown", **more: Any
) -> None:
    """Write plain and odd runs at two alphas and temperatures; odd solves twice as many."""
    rng = np.random.default_rng(0)
    for temperature in (0.5, 2.0):
        for alpha, chance in ((0.0, 0.1), (8.0, 0.5), (32.0, 0.3)):
            for seed in range(seeds):
                what = spec(seed, task, temperature=temperature, alpha=alpha, **more)
                write_run(
                    folder,
                    what,
                    rng.random((problems, 4)) < chance,
                    seconds=1.0 + 0.1 * (alpha > 0) + 0.01 * seed,
                )


RELEASED = (
    "name,model,steps,strategy,batch_size,gen_length,n_problems,temperature,_timestamp,avg_time,avg_diversity,results_table,"
    "pass_at_1,pass_at_2"
)


def released(
    name: str = "baseline",
    alpha: float = 0,
    temperature: object = 0.5,
    when: int = 1,
    **fields: object,
) -> list[object]:
    strategy = {
        "name": name,
        "pool": "max",
        "alpha": alpha,
        "top_k": 0,
        "target": "logits",
        "quality_scale": 1,
    }
    row: dict[str, object] = {
        "name": f"trial_{when}",
        "model": {"name": "some/model", "load_in_4bit": True},
        "steps": 32,
        "strategy": strategy,
        "batch_size": 2,
        "gen_length": 64,
        "n_problems": 300,
        "temperature": temperature,
        "_timestamp": when,
        "avg_time": 20.0,
        "avg_diversity": 0.1,
        "results_table": {"nrows": 400},
        "pass_at_1": 0.5,
        "pass_at_2": 0.6,
    }
    return list((row | fields).values())


def write_released(path: Path, rows: list[list[object]], header: str = RELEASED) -> Path:
    import csv

    with path.open("w", newline="") as file:
        file.write(header + "\n")
        csv.writer(file).writerows(rows)
    return path

"""Results with known verdicts, as `oddlm runs export` would write them."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oddlm.report.result_files import Result


def result(
    where: str,
    settings: Mapping[str, Any],
    correct: Any,
    *,
    seed: int = 0,
    ids: Sequence[str] | None = None,
) -> Result:
    """where: model, task and protocol; correct: [problems, n], in the order of the sorted ids."""
    model, task, protocol = where.split()
    right = np.asarray(correct, dtype=bool)
    known = sorted(ids if ids is not None else (f"{task}/{i}" for i in range(len(right))))
    named = {"objective": "none", "alpha": 0.0, "alpha_end": 1.0, "fork": False, "temperature": 0.5}
    params = {**named, **settings}
    run = hashlib.sha256(f"{where}{params}{seed}{known}{right.shape}".encode()).hexdigest()[:12]
    origin = {"date": None, "device": None, "dtype": None, "oddlm": None, "torch": None}
    return Result.model_validate(
        {
            "run": run,
            "model": model,
            "model_digest": None,
            "task": task,
            "protocol": protocol,
            "split": None,
            "task_version": 1,
            "scorer_version": "1",
            "sampler_version": 1,
            "problems": len(right),
            "problems_digest": hashlib.sha256("\n".join(known).encode()).hexdigest(),
            "n": right.shape[1],
            "seed": seed,
            "method": "made",
            "params": params,
            "nfe": 8.0,
            "distinct": (right.shape[1],) * len(right),
            "verdicts": tuple("".join("01"[int(one)] for one in row) for row in right),
            "origin": origin,
        }
    )


def write(folder: Path, results: Sequence[Result]) -> Path:
    """Write results as a folder of files, one per task."""
    folder.mkdir(parents=True, exist_ok=True)
    for where in {one.where for one in results}:
        lines = [one.model_dump_json() + "\n" for one in results if one.where == where]
        (folder / f"{where}.jsonl").write_text("".join(lines))
    return folder

"""Imports the authors' exported run logs, one CSV row per run, into a store.

The logs only hold means over the problems of a run, so an imported run has a summary, but no
records. Their pass_at_1 is the share of problems whose *first* sample is correct, not the share of
correct samples: at temperature 0 it is the same for all alphas of ODD, as repulsion never moves
sample 0. It is stored as `first_right`; Pass@1 is not known. Nor are the seeds, so a run's id is
derived from the content of its row.
"""

import ast
import csv
import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..config import checked
from ..spec import RunSpec
from ..store import Store, Summary

STRATEGIES = {
    "baseline": "none",
    "joint": "dpp",
    "batched_orth": "odd",
    "orthogonal_projection": "odd_sequential",
}
# the settings of the four strategies above
USUAL = {"pool": "max", "top_k": 0, "target": "logits", "quality_scale": 1}
SETTINGS = (
    *("name", "model", "strategy", "steps"),
    *("batch_size", "gen_length", "temperature", "_timestamp"),
)
MEASURES = ("avg_time", "avg_diversity", "results_table", "n_problems", "pass_at_1")


@dataclass(frozen=True)
class Released:
    """A run read from a row of the log."""

    spec: RunSpec
    summary: Summary
    start: Mapping[str, Any]


@dataclass(frozen=True)
class Imported:
    new: int
    known: int  # already in the store
    empty: tuple[str, ...]  # names of rows without a result, i.e. of failed runs


def import_released(path: Path, store: Store, task: str) -> Imported:
    """Import all runs of the file into the store, or none if the file has an error."""
    runs, empty = read_released(path, task)
    store.check()
    new = [run for run in runs if not store.complete(run.spec)]
    begun: list[Path] = []
    try:
        for run in new:
            begun.append(store.folder / run.spec.id)
            with store.open(run.spec, run.summary.problems) as writer:
                writer.start(run.start)
                writer.finish(run.summary)
    except BaseException:
        for folder in begun:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Imported(len(new), len(runs) - len(new), empty)


def read_released(path: Path, task: str) -> tuple[list[Released], tuple[str, ...]]:
    """Return the runs of the file, and the names of rows without a result.

    Raise ValueError, with the number of the line, if the file has an error.
    """
    rows = _rows(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    runs: dict[str, tuple[int, Released]] = {}
    empty = []
    for line, row in rows:
        try:
            run = _run(path.name, digest, line, row, task)
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}; nothing was imported") from error
        if run is None:
            empty.append(row["name"])
            continue
        if run.spec.id in runs:
            first = runs[run.spec.id][0]
            raise ValueError(
                f"{path}: lines {first} and {line} are the same run; nothing was imported"
            )
        runs[run.spec.id] = line, run
    if not runs:
        raise ValueError(f"{path}: none of its {len(rows)} rows has a result; nothing was imported")
    return [run for _, run in runs.values()], tuple(empty)


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return (line, row) pairs; every row has all required columns."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or ()
            missing = [name for name in (*SETTINGS, *MEASURES) if name not in columns]
            if missing:
                raise ValueError(
                    f"{path} is not a released run log: it has no column {', '.join(missing)}; "
                    "nothing was imported"
                )
            rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not a CSV file in UTF-8 ({error}); nothing was imported"
        ) from error
    if not rows:
        raise ValueError(f"{path} has no rows; nothing was imported")
    short = [line for line, row in rows if None in row or None in row.values()]
    if short:
        raise ValueError(
            f"{path}, line {short[0]}: it has more or fewer fields than the header; "
            "nothing was imported"
        )
    return rows


def _run(file: str, digest: str, line: int, row: Mapping[str, str], task: str) -> Released | None:
    shares = {k: _share(row, f"pass_at_{k}") for k in _ks(row)}
    known = {k: share for k, share in shares.items() if share is not None}
    if not known:
        return None
    n = int(_number(row, "batch_size"))
    samples = _literal(row, "results_table").get("nrows")
    if not isinstance(samples, int) or n < 1 or samples < n or samples % n:
        raise ValueError(
            f"nrows of results_table must be the number of samples, a multiple of {n}, "
            f"not {samples!r}"
        )
    problems = samples // n
    spec = _spec(row, task, n)
    agrees = float(row["n_problems"] or "nan") == problems
    remark = "" if agrees else f", which claims {row['n_problems']} problems per run"
    passed = {f"pass@{k}": share for k, share in known.items() if 1 < k <= n}
    summary = Summary(
        id=spec.id,
        problems=problems,
        samples=samples,
        seconds=None if (seconds := _maybe(row, "avg_time")) is None else seconds * problems,
        passed=passed | ({"first_right": known[1]} if 1 in known else {}),
        diversity={"embedding_diversity": _maybe(row, "avg_diversity")},
        imported=file + remark,
    )
    start = {"imported": file, "sha256": digest, "line": line, "name": row["name"]}
    logged = datetime.fromtimestamp(_number(row, "_timestamp"), UTC).isoformat(timespec="seconds")
    return Released(spec, summary, start | {"logged": logged})


def _spec(row: Mapping[str, str], task: str, n: int) -> RunSpec:
    model, strategy = _literal(row, "model"), _literal(row, "strategy")
    if strategy.get("name") not in STRATEGIES:
        raise ValueError(
            f"unknown strategy {strategy.get('name')!r}; known: {', '.join(STRATEGIES)}"
        )
    odd = {
        name: strategy[name] for name, value in USUAL.items() if strategy.get(name, value) != value
    }
    if odd:
        raise ValueError(
            f"strategy {strategy['name']} with {odd} is not supported; it must have {USUAL}"
        )
    content = json.dumps(dict(row), sort_keys=True).encode()
    params = {
        "length": int(_number(row, "gen_length")),
        "steps": int(_number(row, "steps")),
        "temperature": _number(row, "temperature"),
        "objective": STRATEGIES[strategy["name"]],
        "alpha": strategy.get("alpha"),
        "fork": False,
        "arithmetic": "published",
    }
    spec = {
        "model": f"{model.get('name')}{' 4-bit' if model.get('load_in_4bit') else ''}",
        "task": task,
        "n": n,
        "params": params,
        # not the seed of the run, which was not logged
        "seed": int(hashlib.sha256(content).hexdigest()[:12], 16),
    }
    return checked(RunSpec, spec)


def _ks(row: Mapping[str, str]) -> Sequence[int]:
    return sorted(
        int(name.removeprefix("pass_at_"))
        for name in row
        if name.startswith("pass_at_") and name[8:].isdecimal()
    )


def _share(row: Mapping[str, str], name: str) -> float | None:
    share = _maybe(row, name)
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, not {row[name]!r:.60}")
    return share


def _maybe(row: Mapping[str, str], name: str) -> float | None:
    """Return a number, or None if the field is empty or NaN."""
    return None if row[name].strip().lower() in ("", "nan") else _number(row, name)


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        number = float(row[name])
    except ValueError:
        raise ValueError(f"{name} must be a number, not {row[name]!r:.60}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {row[name]!r:.60}")
    return number


def _literal(row: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a dict from a Python literal; no code is run."""
    try:
        found = ast.literal_eval(row[name])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a Python dict literal, not {row[name]!r:.60}")
    return found

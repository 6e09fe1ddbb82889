"""Compact result files for a repository: a line per run, with verdicts, but without texts.

    export(Store(Path("runs")), Path("results/mini"))   # results/mini/countdown.jsonl, ...
    for result in read_folder(Path("results/mini")):
        print(result.method, result.correct.any(axis=1).mean())

results/README.md documents the fields. This module does not import torch.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..files import make_folder, write_whole
from ..store import Head, Store
from .load import LeftOut, RunData, read_runs

FORMAT: Literal[1] = 1  # of a line; other formats are refused


class Origin(BaseModel):
    """The machine and versions that drew the samples of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str | None = Field(description="When drawing began, as YYYY-MM-DD.")
    device: str | None = Field(description="The GPU's name, or 'cpu'.")
    dtype: str | None = Field(
        description="The network's dtype if the run set it; null is the model's default."
    )
    oddlm: str | None = Field(description="Version of this package.")
    torch: str | None = Field(description="Version of PyTorch.")


class Result(BaseModel):
    """One run: a setting of the sampler on a task, with one seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = FORMAT
    run: str = Field(description="The run's id in the store it came from.")
    model: str = Field(description="The model's name; for a folder, its last part.")
    model_digest: str | None = Field(description="Digest of the weights.")
    task: str
    protocol: str | None = Field(
        description="The named variant of the task; null is the task itself."
    )
    split: str | None = Field(
        description="'tune', or null for the problems that results are reported on."
    )
    task_version: int | None
    scorer_version: str | None
    sampler_version: int
    problems: int = Field(ge=1, description="Number of problems.")
    problems_digest: str = Field(
        description="SHA-256 of their sorted ids; runs with the same digest can be paired."
    )
    n: int = Field(ge=1, description="Samples per problem.")
    seed: int
    method: str = Field(description="How samples are made to differ, in short.")
    params: dict[str, Any] = Field(
        description="All settings of the sampler, with the names of that version."
    )
    nfe: float = Field(ge=0, description="Network evaluations per kept sample.")
    distinct: tuple[int, ...] = Field(
        description="By problem, the number of distinct texts among its n samples."
    )
    verdicts: tuple[str, ...] = Field(
        description="By problem, in the order of sorted ids: n characters, 1 if correct, else 0."
    )
    origin: Origin

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not self.problems == len(self.verdicts) == len(self.distinct):
            counts = f"{len(self.verdicts)} verdicts and {len(self.distinct)} counts of texts"
            raise ValueError(f"run {self.run} has {self.problems} problems, {counts}")
        if any(len(one) != self.n or one.strip("01") for one in self.verdicts):
            raise ValueError(
                f"run {self.run}: the verdicts of a problem must be {self.n} characters, 0 or 1"
            )
        return self

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each sample is correct: [problems, n]."""
        flat = np.frombuffer("".join(self.verdicts).encode(), dtype=np.uint8)
        right: NDArray[np.bool_] = flat.reshape(self.problems, self.n) == ord("1")
        return right

    @property
    def ids(self) -> list[str] | None:
        """The ids of the problems in their order if they are counted from 0; None if not.

        The digest tells which.
        """
        ids = sorted(f"{self.task}/{i}" for i in range(self.problems))
        return ids if _digest(ids) == self.problems_digest else None

    def first(self, count: int) -> "Result":
        """Return the run on the problems with the numbers below `count` alone."""
        if self.ids is None:
            raise ValueError(f"run {self.run}: the problems are not counted, so none is the first")
        kept = [i for i, one in enumerate(self.ids) if int(one.rpartition("/")[2]) < count]
        changes = {
            "problems": len(kept),
            "problems_digest": _digest([self.ids[i] for i in kept]),
            "verdicts": tuple(self.verdicts[i] for i in kept),
            "distinct": tuple(self.distinct[i] for i in kept),
        }
        return self.model_copy(update=changes)

    @property
    def where(self) -> str:
        """The task and its variant, as a file name."""
        return re.sub(
            r"[^\w.+-]+", "_", f"{self.task}-{self.protocol}" if self.protocol else self.task
        )


@dataclass(frozen=True)
class Exported:
    files: Mapping[Path, int]  # path -> number of runs it holds now
    runs: int  # written
    left_out: tuple[LeftOut, ...]


def export(store: Store, out: Path, runs: Collection[str] | None = None) -> Exported:
    """Write the complete runs of a store, or those named in `runs`, to a folder, a file per task.

    Runs that a file already holds are replaced, its others are kept. Raise ValueError if the folder
    would hold more than one model.
    """
    found, left_out = read_runs(store)
    wanted = [run for run in found if runs is None or run.id in runs]
    results: dict[Path, list[Result]] = {}
    skipped = [one for one in left_out if runs is None or one.run in runs]
    for run in wanted:
        if run.imported or run.spec.task is None:
            skipped.append(LeftOut(run.id, "it has no verdicts"))
            continue
        result = _result(run, store.exact_head(run.id))
        results.setdefault(out / f"{result.where}.jsonl", []).append(result)
    known = {path: read_file(path) for path in out.glob("*.jsonl")}
    _check_one_model([one for some in (*known.values(), *results.values()) for one in some], out)
    files = {}
    for path, some in results.items():
        together = {one.run: one for one in (*known.get(path, ()), *some)}
        files[path] = len(together)
        make_folder(out)
        write_whole(path, b"".join(_line(one) for one in sorted(together.values(), key=_order)))
    return Exported(files, sum(map(len, results.values())), tuple(skipped))


def read_folder(folder: Path) -> list[Result]:
    """Return all results in a folder, which holds one model."""
    return [result for path in sorted(folder.glob("*.jsonl")) for result in read_file(path)]


def read_file(path: Path) -> list[Result]:
    """Return the results in a file.

    Raise ValueError, with the line, if one is invalid or a run occurs twice.
    """
    results: dict[str, Result] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            result = Result.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{path}, line {number}: {where}: {first['msg']}") from error
        if result.run in results:
            raise ValueError(f"{path}, line {number}: run {result.run} occurs twice")
        results[result.run] = result
    return list(results.values())


def _result(run: RunData, head: Head) -> Result:
    spec, order = run.spec, sorted(range(run.count), key=run.problems.__getitem__)
    if np.isnan(run.diversity["distinct_texts"]).any():
        raise ValueError(f"run {run.id} has no distinct_texts: score it with `oddlm runs score`")
    return Result(
        run=run.id,
        model=Path(spec.model).name,
        model_digest=spec.model_digest,
        task=spec.task or "",
        protocol=spec.protocol,
        split=spec.split,
        task_version=spec.task_version,
        scorer_version=spec.scorer_version,
        sampler_version=spec.sampler_version,
        problems=run.count,
        problems_digest=_digest([run.problems[i] for i in order]),
        n=spec.n,
        seed=spec.seed,
        method=spec.params.method,
        params=spec.params.canonical().model_dump(mode="json", exclude={"seed"}),
        nfe=round(float(run.nfe.mean()), 3),
        distinct=tuple(int(run.diversity["distinct_texts"][i]) for i in order),
        verdicts=tuple("".join("01"[right] for right in run.correct[i].astype(int)) for i in order),
        origin=_origin(head),
    )


def _origin(head: Head) -> Origin:
    """Return the origin from the first start that drew, without names of machines or folders."""
    drew: Mapping[str, Any] = next((one for one in head.starts if one.get("stage") == "draw"), {})
    versions = drew.get("versions") or {}
    return Origin(
        date=str(drew["time"])[:10] if drew.get("time") else None,
        device=drew.get("device"),
        dtype=head.spec.loading.dtype,
        oddlm=versions.get("oddlm"),
        torch=versions.get("torch"),
    )


def _check_one_model(results: Sequence[Result], out: Path) -> None:
    models = {one.model_digest or one.model: one.model for one in results}
    if len(models) > 1:
        listed = ", ".join(f"{name} ({digest[:12]})" for digest, name in models.items())
        raise ValueError(
            f"{out} can hold only one model, but these runs have {listed}: "
            "name the runs to export, or another --out"
        )


def _order(result: Result) -> tuple[Any, ...]:
    settings = result.params
    return (
        result.split or "",
        result.method,
        settings["alpha"],
        settings["temperature"],
        str(settings),
        result.seed,
    )


def _line(result: Result) -> bytes:
    return result.model_dump_json().encode() + b"\n"


def by_model(folder: Path) -> dict[str, list[Result]]:
    """Return the results of every model below a folder, by the name of the model's folder."""
    found: Iterable[Path] = (
        sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    )
    return {path.name: results for path in found if (results := read_folder(path))}


def _digest(ids: Sequence[str]) -> str:
    """Return the digest of sorted ids."""
    return hashlib.sha256("\n".join(ids).encode("utf-8", "surrogatepass")).hexdigest()

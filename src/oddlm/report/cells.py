"""The data model of a report: runs -> benchmarks -> cells.

A benchmark is one model on one set of problems. A cell is one setting on it, over all its seeds.
Shares lie between 0 and 1.

    results = read_results(Path("runs"))
    for benchmark in results.benchmarks:
        for cell in benchmark.cells:
            print(cell.label, cell.passed[cell.n], cell.gains.get(cell.n))
    results.record(run, problem)   # the samples of one problem, read from disk on demand
"""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..params import PUSH, SampleParams, method_name
from ..store import Place, Record, Store, StoreError
from ..text import number_of, one_line, setting_label
from .compare import Done, baseline, measured_beside, unpushed
from .load import LeftOut, RunData, Watch, read_runs

AXES = ("objective", "alpha", "temperature")
BARE = {"fork": False, "alpha_end": 1.0}  # method names mention other values
By = Literal["problems", "runs"]


@dataclass(frozen=True)
class Estimate:
    """A mean over runs with its standard error (nan with one run), and a 95 % interval.

    `by` is what the interval resamples.
    """

    mean: float
    se: float
    low: float = np.nan
    high: float = np.nan
    by: By = "runs"


@dataclass(frozen=True)
class Gain:
    """A cell's Pass@k or Maj@k minus that of its baseline, with the 95 % interval.

    By problems: paired bootstrap over problems, for the variation between problems. By runs:
    Welch's t over runs, if only means of runs are known, for the variation between seeds on the
    same problems.
    """

    baseline: str  # the key of the cell compared with
    difference: float
    low: float
    high: float
    by: By


@dataclass(frozen=True)
class Cell:
    """A setting, over all its runs."""

    key: str  # unique among all cells; usable as a file name
    # "plain", "odd (enough 0.5) + fork": the objective, and the settings that differ between the
    # methods of this benchmark
    method: str
    objective: str  # none, odd, dpp, ...
    alpha: float
    temperature: float
    settings: Mapping[str, Any]  # the other settings that differ between cells of this benchmark
    n: int
    runs: tuple[str, ...]
    seeds: tuple[int, ...]  # empty for imported runs, whose seeds are not known
    problems: int
    passed: Mapping[int, Estimate]  # by k, as far as known
    gains: Mapping[int, Gain]  # by k; empty without a baseline
    voted: Mapping[int, Estimate]  # Maj@k by k; empty if the runs are older than votes
    vote_gains: Mapping[int, Gain]  # in Maj@k
    diversity: Mapping[str, Estimate]
    seconds: Estimate | None  # per problem (a batch of n samples)
    run_passed: Mapping[int, tuple[float, ...]]  # by k: Pass@k of every run
    run_seconds: tuple[float, ...]  # per problem, of every run
    nfe: float | None
    # The next two are None for imported runs, which have no records.
    curves: NDArray[np.float64] | None  # [problems, n]: Pass@k for k = 1 to n, mean over runs
    right: NDArray[np.int64] | None  # [problems]: correct samples among `tried`, over all runs
    tried: int
    solved: int | None  # problems with a correct sample in some run

    @property
    def plain(self) -> bool:
        return self.objective == "none"

    @property
    def label(self) -> str:
        return setting_label(self.method, self.alpha, self.temperature)


@dataclass(frozen=True)
class Benchmark:
    """A model on a set of problems. All cells have the problems in the same order."""

    name: str  # the task, with additions if it is not unique
    task: str
    protocol: str | None
    model: str
    imported: str | None  # the log that its runs come from
    problems: tuple[str, ...]  # ids; empty for imported runs
    count: int  # problems
    common: Mapping[str, Any]  # settings that all its runs share and that are not the default
    cells: tuple[Cell, ...]
    n: int  # samples per problem of most cells: the k of its Pass@k table

    @property
    def main(self) -> tuple[Cell, ...]:
        """The cells with the usual n, which are comparable in one table."""
        return tuple(cell for cell in self.cells if cell.n == self.n)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.method for cell in self.cells))

    def cell(self, key: str) -> Cell:
        return next(cell for cell in self.cells if cell.key == key)


@dataclass(frozen=True)
class Results:
    store: Store
    benchmarks: tuple[Benchmark, ...]
    left_out: tuple[LeftOut, ...]
    _places: dict[str, Mapping[str, Place]] = field(default_factory=dict)

    def record(self, run: str, problem: str) -> Record | None:
        """Return the samples of a problem.

        If they cannot be read, return None and warn once for the whole run.
        """
        try:
            if run not in self._places:
                self._places[run] = self.store.places(run)
            place = self._places[run].get(problem)
            return None if place is None else self.store.record(run, problem, place)
        except StoreError as error:
            self._places[run] = {}
            warnings.warn(f"the samples of run {run} are not shown: {error}", stacklevel=2)
            return None


def read_results(folder: Path, watch: Watch = lambda _: None, *, beside: bool = False) -> Results:
    """Return the results of all runs in a folder. `watch` is called while problems are read.

    beside: include novelty, which compares the texts of a cell with those of plain sampling, and
        has to read them.
    """
    store = Store(folder)
    runs, left_out = read_runs(store, watch)
    if not runs:
        reasons = Counter(one.why for one in left_out)
        listed = "; ".join(
            f"{why} ({count})" if count > 1 else why for why, count in reasons.most_common(3)
        )
        raise StoreError(f"{folder} has no run to report: {listed or 'it is empty'}")
    together: dict[str, list[RunData]] = {}
    first: dict[tuple[str, int], str] = {}  # a cell and a seed -> the run that is used
    for run in _on_shared_problems(runs):
        bench = _bench_key(run)
        same = first.setdefault(
            (_cell_key(bench, run.spec.params, run.spec.n), run.spec.seed), run.id
        )
        if same == run.id:
            together.setdefault(bench, []).append(run)
        else:
            why = f"run {same} has the same setting, seed and problems"
            left_out.append(LeftOut(run.id, why))
    texts = store if beside else None
    benchmarks = [_benchmark(key, some, texts) for key, some in together.items()]
    return Results(store, tuple(_named(benchmarks)), tuple(left_out))


def _on_shared_problems(runs: Sequence[RunData]) -> Iterator[RunData]:
    """Yield every run on its own problems, and on each smaller set of problems it includes.

    So a setting that was tried on few problems is compared with runs on more problems.
    """
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(_task_key(run), []).append(run)
    for some in groups.values():
        sets = {frozenset(run.problems): run.problems for run in some}
        if len(sets) == 1 or some[0].imported:
            yield from some
            continue
        for wanted, order in sets.items():
            yield from (run.on(order) for run in some if wanted <= set(run.problems))


def _bench_key(run: RunData) -> str:
    """Return a key for the model, the task and the problems."""
    return json.dumps([_task_key(run), sorted(run.problems), run.count])


def _task_key(run: RunData) -> str:
    content = run.spec.canonical()
    known = {name: value for name, value in content.items() if name not in ("params", "n", "seed")}
    return json.dumps([known, run.imported is not None], sort_keys=True)


def _named(benchmarks: Sequence[Benchmark]) -> Iterator[Benchmark]:
    """Name each benchmark by its task, with additions that make the name unique."""
    tasks = [one_line(f"{b.task} ({b.protocol})" if b.protocol else b.task) for b in benchmarks]
    more = [
        (f"{t}, {b.model}", f"{t}, {b.model}, {number_of(b.count, 'problem')}")
        for t, b in zip(tasks, benchmarks, strict=True)
    ]
    forms = [(task, *some) for task, some in zip(tasks, more, strict=True)]
    counts = Counter(form for some in forms for form in some)
    seen: Counter[str] = Counter()
    for bench, some in zip(benchmarks, forms, strict=True):
        name = next((form for form in some if counts[form] == 1), some[-1])
        seen[name] += 1
        yield replace(bench, name=name if seen[name] == 1 else f"{name} ({seen[name]})")


def _benchmark(key: str, runs: Sequence[RunData], texts: Store | None) -> Benchmark:
    usual, common = _settings(runs)
    settings: dict[str, list[RunData]] = {}
    for run in (run.on(runs[0].problems) for run in runs):
        settings.setdefault(_cell_key(key, run.spec.params, run.spec.n), []).append(run)
    cells = [_cell(name, some, settings, key, usual, texts) for name, some in settings.items()]
    cells.sort(
        key=lambda cell: (
            not cell.plain,
            _rank(cell.objective),
            cell.method,
            cell.alpha,
            cell.temperature,
            cell.n,
        )
    )
    spec = runs[0].spec
    return Benchmark(
        name="",
        task=spec.task or "none",
        protocol=spec.protocol,
        model=spec.model,
        imported=runs[0].imported,
        problems=runs[0].problems,
        count=runs[0].count,
        common=common,
        cells=tuple(cells),
        n=max(Counter(cell.n for cell in cells).items(), key=lambda item: (item[1], item[0]))[0],
    )


def _rank(objective: str) -> int:
    known = ("none", "dpp", "odd", "odd_sequential")
    return known.index(objective) if objective in known else len(known)


def _flat(run: RunData) -> dict[str, Any]:
    """Return all settings but the axes of the table, in canonical form."""
    params = run.spec.params.canonical()
    found = {**params.model_dump(mode="json", exclude={*AXES, "seed"}), "n": run.spec.n}
    if isinstance(params.objective, dict):  # {"name": "odd", ...}: its options are settings, too
        found |= {
            f"{params.objective_name}.{name}": value
            for name, value in params.objective.items()
            if name != "name"
        }
    return {name: value for name, value in found.items() if not (params.plain and name in PUSH)}


def _settings(runs: Sequence[RunData]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the usual values of settings that differ, and the common values of those that do not.

    The usual value, which method names omit, is the default if some run has it, else the most
    frequent value. Common values that equal the default are left out.
    """
    tables = [_flat(run) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    counts = {
        name: Counter(json.dumps(t.get(name), sort_keys=True) for t in tables if _says(t, name))
        for name in names
    }
    usual, common = {}, {}
    for name, found in counts.items():
        default = json.dumps(_default(name), sort_keys=True)
        value = json.loads(default if default in found else found.most_common(1)[0][0])
        if len(found) > 1:
            usual[name] = value
        elif value != _default(name) or name in ("length", "steps", "n"):
            common[name] = value
    return usual, common


def _says(table: Mapping[str, Any], name: str) -> bool:
    return name in table or name not in PUSH


def _default(name: str) -> Any:
    if name in BARE:
        return BARE[name]
    field = SampleParams.model_fields.get(name)
    return None if field is None else field.default


def _cell_key(bench: str, params: SampleParams, n: int) -> str:
    params = params.canonical()
    return hashlib.sha256(f"{bench}\0{params.model_dump_json()}\0{n}".encode()).hexdigest()[:12]


def _cell(
    key: str,
    runs: Sequence[RunData],
    settings: Mapping[str, list[RunData]],
    bench: str,
    usual: Mapping[str, Any],
    texts: Store | None,
) -> Cell:
    first = runs[0]
    params = first.spec.params.canonical()
    own = {name: value for name, value in _flat(first).items() if name in usual}
    other = _compared(key, params, first.spec.n, settings, bench, usual)
    measured = first.imported is None
    passed, gains = (_passes if measured else _run_level)(
        runs, settings[other] if other else [], other
    )
    voted, vote_gains = _votes(runs, settings[other] if other else [], other)
    curves = _curves(runs) if measured else None
    right = np.sum([run.correct.sum(axis=1) for run in runs], axis=0) if measured else None
    names = sorted(
        {name for run in runs for name in (run.diversity or run.means)} & set(metrics.BATCH_METRICS)
    )
    diversity = {name: _mean_by_run(runs, name) for name in names}
    if measured:
        n = first.spec.n
        diversity[f"solutions@{n}"] = tuple(
            float(metrics.solutions_at_k(run.solutions, n).mean()) for run in runs
        )
        diversity[f"maj@{n}"] = _mean_by_run(runs, f"maj@{n}")
    if texts is not None and measured and not params.plain:
        plain = settings.get(_cell_key(bench, baseline(params), first.spec.n))
        diversity |= _novelty(texts, runs, plain) if plain else {}
    seconds, nfe = _mean_by_run(runs, "seconds"), _mean_by_run(runs, "nfe")
    objective = params.objective_name
    return Cell(
        key=key,
        method=_method(params, own, usual),
        objective=objective,
        alpha=params.alpha,
        temperature=params.temperature,
        settings=own,
        n=first.spec.n,
        runs=tuple(run.id for run in runs),
        seeds=tuple(run.spec.seed for run in runs) if measured else (),
        problems=first.count,
        passed=passed,
        gains=gains,
        voted=voted,
        vote_gains=vote_gains,
        diversity={name: _estimate(values) for name, values in diversity.items() if values},
        seconds=_estimate(seconds) if seconds else None,
        run_passed={k: _passed_by_run(runs, k) for k in passed},
        run_seconds=seconds,
        nfe=sum(nfe) / len(nfe) if nfe else None,
        curves=curves,
        right=right,
        tried=first.spec.n * len(runs),
        solved=None if right is None else int((right > 0).sum()),
    )


def _novelty(
    store: Store, runs: Sequence[RunData], plain: Sequence[RunData]
) -> dict[str, tuple[float, ...]]:
    """Return, by measure, the mean over problems of every run with a plain run of its seed."""

    def done(run: RunData) -> Done:
        found = {record.problem: record for record in store.records(run.id)}
        return run.spec, [found[problem] for problem in run.problems]

    known = {run.spec.seed: run for run in plain}
    measured = [
        measured_beside([done(run)], [done(known[run.spec.seed])])
        for run in runs
        if run.spec.seed in known
    ]
    names = ("novelty", "new_texts") if measured else ()
    return {
        name: tuple(float(np.mean([one[name] for one in run])) for run in measured)
        for name in names
    }


def _method(params: SampleParams, own: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Return the name of a method, without settings that have their usual value."""
    extra = {name: value for name, value in own.items() if value != usual[name]}
    name, prefix = "plain" if params.plain else params.objective_name, f"{params.objective_name}."
    options = {
        key.removeprefix(prefix): extra.pop(key) for key in list(extra) if key.startswith(prefix)
    }
    return one_line(method_name({"name": name, **options}, extra))


def _compared(
    key: str,
    params: SampleParams,
    n: int,
    settings: Mapping[str, Any],
    bench: str,
    usual: Mapping[str, Any],
) -> str | None:
    """Return the key of the cell to compare with: the same without repulsion, else plain sampling.

    A plain cell with unusual settings is compared with the usual one.
    """
    if not params.plain:
        alike = [_cell_key(bench, plain, n) for plain in (unpushed(params), baseline(params))]
        return next((other for other in alike if other in settings), None)
    values = {name: value for name, value in usual.items() if name in SampleParams.model_fields}
    other = _cell_key(bench, params.model_copy(update=values), n)
    return other if other != key and other in settings else None


def _passes(
    mine: Sequence[RunData], theirs: Sequence[RunData], other: str | None
) -> tuple[dict[int, Estimate], dict[int, Gain]]:
    """Return Pass@k and its gain over the baseline for every k, paired by problem."""
    by_run = {k: _passed_by_run(mine, k) for k in range(1, mine[0].spec.n + 1)}
    return _by_problem(by_run, _curves(mine), _curves(theirs) if theirs else None, other)


def _votes(
    mine: Sequence[RunData], theirs: Sequence[RunData], other: str | None
) -> tuple[dict[int, Estimate], dict[int, Gain]]:
    """Return Maj@k and its gain over the baseline for every k that all runs have."""
    ks = [k for k in range(2, mine[0].spec.n + 1) if _have_votes(mine, k)]
    if not ks:
        return {}, {}
    names = [f"maj@{k}" for k in ks]
    by_run = {k: _mean_by_run(mine, f"maj@{k}") for k in ks}
    both = bool(theirs) and all(_have_votes(theirs, k) for k in ks)
    return _by_problem(by_run, _means(mine, names), _means(theirs, names) if both else None, other)


def _have_votes(runs: Sequence[RunData], k: int) -> bool:
    columns = [run.diversity.get(f"maj@{k}") for run in runs]
    return all(column is not None and np.isfinite(column).all() for column in columns)


def _means(runs: Sequence[RunData], names: Sequence[str]) -> NDArray[np.float64]:
    """Return measures of each problem, averaged over the runs: [problems, names]."""
    table = [[run.diversity[name] for name in names] for run in runs]
    means: NDArray[np.float64] = np.mean(table, axis=0).T
    return means


def _by_problem(
    by_run: Mapping[int, Sequence[float]],
    mine: NDArray[np.float64],
    theirs: NDArray[np.float64] | None,
    other: str | None,
) -> tuple[dict[int, Estimate], dict[int, Gain]]:
    """Return estimates by k, and gains, from values [problems, ks]; gains are paired by problem."""
    columns = mine if theirs is None else np.hstack([mine, mine - theirs])
    intervals = metrics.mean_intervals(columns)
    estimates = {
        k: Estimate(*metrics.mean_se(values), span.low, span.high, "problems")
        for (k, values), span in zip(by_run.items(), intervals, strict=False)
    }
    gains = {
        k: Gain(str(other), *span, "problems")
        for k, span in zip(by_run, intervals[len(by_run) :], strict=False)
    }
    return estimates, gains


def _run_level(
    mine: Sequence[RunData], theirs: Sequence[RunData], other: str | None
) -> tuple[dict[int, Estimate], dict[int, Gain]]:
    """Return the same as `_passes` if only the means of runs are known."""
    passed, gains = {}, {}
    for k in range(1, mine[0].spec.n + 1):
        values, before = _passed_by_run(mine, k), _passed_by_run(theirs, k)
        if values:
            passed[k] = _estimate(values)
        if values and before:
            gains[k] = Gain(str(other), *metrics.run_interval([values, before], [1, -1]), "runs")
    return passed, gains


def _curves(runs: Sequence[RunData]) -> NDArray[np.float64]:
    """Return Pass@k of each problem for k = 1 to n, averaged over the runs: [problems, n]."""
    table = [[metrics.pass_at_k(run.correct, k) for k in range(1, run.spec.n + 1)] for run in runs]
    curves: NDArray[np.float64] = np.mean(table, axis=0).T
    return curves


def _passed_by_run(runs: Sequence[RunData], k: int) -> tuple[float, ...]:
    return tuple(value for run in runs if (value := run.passed(k)) is not None)


def _mean_by_run(runs: Sequence[RunData], name: str) -> tuple[float, ...]:
    return tuple(value for run in runs if (value := run.mean(name)) is not None)


def _estimate(values: Sequence[float]) -> Estimate:
    span = metrics.run_interval([values], [1])
    return Estimate(*metrics.mean_se(values), span.low, span.high, "runs")

"""Write docs/results.md, and every block of figures that other pages take from the same results.

    python recipes/results/page.py            # or `make results`
    python recipes/results/page.py --out DIR  # writes a copy of the pages, as a preview or test

A page includes figures between two comments. The text between them is replaced:

    <!-- results:begin summary -->             table: plain sampling and the presets on every task
    <!-- results:begin summary mini -->        the same for one model
    <!-- results:begin gain mini countdown --> sentence: the default against tuned plain sampling
    <!-- results:end -->
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from oddlm import SampleParams, metrics
from oddlm.report.result_files import Result, by_model
from oddlm.text import fixed, named, number_of, percent

ROOT = Path(__file__).parents[2]
PAGE = Path("docs/results.md")
BLOCK = re.compile(
    r"(<!-- results:begin(?P<what>[^\n]*?) *-->\n).*?(<!-- results:end -->)", re.DOTALL
)
NOTHING = "*No results are stored yet.*"
# Settings that depend on the task and model; a method is recognised by all others.
SHAPE = {"length", "steps", "block_length", "eos"}
SHAPE |= {"temperature", "confidence", "stop_at_end", "seed"}
PLAIN, FORK, DEFAULT = "plain", "plain + fork", "default (`auto`)"
PAPER, CAREFUL = "ODD as published (`paper`)", "`careful`"
METHODS: dict[str, dict[str, Any]] = {  # in the order of the tables
    PLAIN: {"objective": "none", "fork": False},
    FORK: {"objective": "none", "fork": True},
    "plain + order temperature 1": {"objective": "none", "fork": False, "order_temperature": 1.0},
    "DPP, alpha 8": {"objective": "dpp", "fork": False, "alpha": 8.0},
    PAPER: {"preset": "paper"},
    "ODD, alpha 8": {"objective": "odd", "fork": False, "alpha": 8.0},
    "former default (alpha 4)": {"alpha": 4.0},
    DEFAULT: {},
    CAREFUL: {"preset": "careful"},
}
TASKS = {  # in the order of the page
    "countdown": "countdown, 4 numbers",
    "countdown-5_numbers": "countdown, 5 numbers",
    "minicode": "minicode, one to three operations",
    "minicode-3_operations": "minicode, three operations",
}


@dataclass(frozen=True)
class Cell:
    """One setting on one set of problems, over its seeds."""

    runs: tuple[Result, ...]

    @property
    def params(self) -> Mapping[str, Any]:
        return self.runs[0].params

    @property
    def n(self) -> int:
        return self.runs[0].n

    @property
    def temperature(self) -> float:
        return float(self.params["temperature"])

    @cached_property
    def name(self) -> str:
        """The name in METHODS, or else a description of the settings."""
        return method_of(self.params) or spelled(self.runs[0])

    @property
    def plain(self) -> bool:
        return self.name == PLAIN

    def passed(self, k: int) -> np.ndarray:
        """Return Pass@k, [problems], averaged over the seeds."""
        return np.mean([metrics.pass_at_k(run.correct, k) for run in self.runs], axis=0)

    @property
    def distinct(self) -> float:
        return float(np.mean([run.distinct for run in self.runs]))

    @property
    def nfe(self) -> float:
        return float(np.mean([run.nfe for run in self.runs]))


@dataclass(frozen=True)
class Bench:
    """One model on one task: the runs that choose a baseline, and those that are reported."""

    model: str
    where: str
    tune: tuple[Cell, ...]
    test: tuple[Cell, ...]

    @property
    def title(self) -> str:
        return TASKS.get(self.where, self.where)

    @property
    def n(self) -> int:
        return self.test[0].n

    @cached_property
    def baseline(self) -> Cell | None:
        """Plain sampling at the temperature with the largest Pass@n on the tune split.

        Pass@1 breaks ties.
        """
        plain = [cell for cell in self.tune if cell.plain]
        if not plain:
            return None
        best = max(plain, key=lambda cell: (cell.passed(cell.n).mean(), cell.passed(1).mean()))
        found = [cell for cell in self.test if cell.plain and cell.temperature == best.temperature]
        if not found:
            chosen = f"temperature {best.temperature:g} was chosen"
            raise ValueError(f"{self.model}, {self.where}: {chosen}, but not run on the test split")
        return found[0]

    def find(self, name: str) -> Cell | None:
        return next((cell for cell in self.test if cell.name == name), None)


def method_of(params: Mapping[str, Any]) -> str | None:
    """Return the name in METHODS with these settings, completed by the current defaults."""
    for name, settings in METHODS.items():
        shape = {key: params[key] for key in ("length", "steps") if key in params}
        wanted = (
            SampleParams.model_validate({**shape, **settings}).canonical().model_dump(mode="json")
        )
        if all(
            params[key] == value for key, value in wanted.items() if key in params.keys() - SHAPE
        ):
            return name
    return None


def spelled(run: Result) -> str:
    parts = [run.method]
    if run.params["alpha"]:
        parts.append(f"alpha {run.params['alpha']:g}")
    if run.params["order_temperature"]:
        parts.append(f"order temperature {run.params['order_temperature']:g}")
    return ", ".join(parts)


def benches(results: Mapping[str, Sequence[Result]]) -> list[Bench]:
    found = []
    for model, runs in results.items():
        wheres = {run.where for run in runs}
        known = [where for where in TASKS if where in wheres]
        for where in [*known, *sorted(wheres - TASKS.keys())]:
            some = [run for run in runs if run.where == where]
            test = _cells([run for run in some if run.split is None], model, where)
            tune = _cells([run for run in some if run.split == "tune"], model, where)
            if test:
                found.append(Bench(model, where, tune, test))
    return found


def _cells(runs: Iterable[Result], model: str, where: str) -> tuple[Cell, ...]:
    """Group the runs of a split, in the order of METHODS and by temperature.

    Raises ValueError if they differ in problems or n.
    """
    cells: dict[str, list[Result]] = {}
    for run in runs:
        cells.setdefault(json.dumps(run.params, sort_keys=True), []).append(run)
    same = {(run.problems_digest, run.n) for some in cells.values() for run in some}
    if len(same) > 1:
        raise ValueError(f"{model}, {where}: runs of one split differ in problems or n")
    order = {name: place for place, name in enumerate(METHODS)}
    found = [Cell(tuple(some)) for some in cells.values()]
    return tuple(
        sorted(found, key=lambda c: (order.get(c.name, len(order)), c.name, c.temperature))
    )


def page(results: Mapping[str, Sequence[Result]]) -> str:
    found = benches(results)
    parts = [HEAD]
    if not found:
        parts.append(NOTHING)
    for model in dict.fromkeys(bench.model for bench in found):
        own = [bench for bench in found if bench.model == model]
        runs = [run for bench in own for cell in bench.test for run in cell.runs]
        parts += [f"## {model}", _origin(runs), summary(own)]
        for bench in own:
            parts += [f"### {model}: {bench.title}", _setting(bench), _table(bench)]
        if any(bench.tune for bench in own):
            parts += [f"### {model}: what was chosen on the tune split", *_tuning(own)]
    return "\n\n".join(parts) + "\n"


HEAD = """\
<!-- Written by `make results` from results/: edit recipes/results/page.py instead. -->

# Results

One protocol for every model, task and method. The folder `results/` of the repository holds the
verdict on every sample, and `make results` writes this page from it.

## Protocol

- **Problems.** The test side of each task, which training has not seen. The baseline is tuned on
  another side. Alpha 8 is not blind: [an earlier study](mini-grid.md) picked it on problems that
  are partly the same. The default was chosen on [other problems](default.md), and so was `careful`
  ([how](exploration.md)).
- **Samples.** Every method draws the same number of samples per problem, with the same number of
  network evaluations and the same seeds.
- **Pass@1** is the share of right samples. **Pass@16** is the share of problems that one of the
  first 16 samples solves.
- **Baseline.** Plain sampling runs at six temperatures. The one with the largest Pass@16 on the
  tune split of a task is the *tuned baseline* of that task, and all differences are to it. Every
  other method has one setting for all tasks. That favours the baseline.
- **Intervals** are 95 % bootstrap intervals over problems. Each problem counts with its mean over
  the seeds. Differences are paired by problem.
- **Distinct** is the mean number of different texts among the samples of a problem.
  **Evaluations** counts calls of the network per sample.

To reproduce the results of the mini model, draw on a GPU, score where the sandbox is, and export:

```sh {.needs-gpu}
for grid in results_tune results; do
    oddlm sweep grids/$grid.toml --only draw --device cuda --workers 6 --together 200
done
for grid in results_tune results; do
    oddlm sweep grids/$grid.toml --only score --workers 4
done
oddlm runs export --out results/mini
make results
```

Two older studies have protocols of their own, and their figures differ from these:
[the search for the default](exploration.md) and
[the paper's grid on the mini model](mini-grid.md)."""


def _origin(runs: Sequence[Result]) -> str:
    def listed(name: str) -> str:
        values = {getattr(run.origin, name) for run in runs} - {None}
        return ", ".join(sorted(map(str, values))) or "unknown"

    digest = next((run.model_digest for run in runs if run.model_digest), None)
    weights = f"Weights `{digest[:19]}`. " if digest else ""
    return (
        f"{weights}Drawn on {listed('device')} in {listed('dtype')}, {listed('date')}, "
        f"{_source(runs)} and PyTorch {listed('torch')}."
    )


def _source(runs: Sequence[Result]) -> str:
    versions = sorted({run.origin.oddlm for run in runs if run.origin.oddlm is not None})
    return f"with oddlm {', '.join(versions)}" if versions else "with oddlm from its source tree"


def _setting(bench: Bench) -> str:
    run = bench.test[0].runs[0]
    seeds = sorted({run.seed for cell in bench.test for run in cell.runs})
    protocol = f" --protocol {run.protocol}" if run.protocol else ""
    return (
        f"`oddlm eval {run.task}{protocol}`: {number_of(run.problems, 'problem')}, "
        f"{number_of(run.n, 'sample')} each, "
        f"{number_of(run.params['length'], 'token')} in {number_of(run.params['steps'], 'step')}, "
        f"end tokens {run.params['eos']}, {named('seed', seeds)}."
    )


def _table(bench: Bench) -> str:
    n, base = bench.n, bench.baseline
    head = [
        "method",
        "temperature",
        "Pass@1",
        f"Pass@{n}",
        "distinct",
        f"Pass@{n} - tuned plain",
        "Pass@1 - tuned plain",
        "evaluations",
    ]
    rows = []
    seeds = max(len(cell.runs) for cell in bench.test)
    for cell in bench.test:
        name = cell.name + (
            "" if len(cell.runs) == seeds else f" ({number_of(len(cell.runs), 'seed')})"
        )
        differences = [
            _difference(cell, base, k) if base is not None and cell is not base else ""
            for k in (n, 1)
        ]
        numbers = [_interval(cell, 1), _interval(cell, n), fixed(cell.distinct)]
        name = (
            f"**{name}, tuned baseline**"
            if cell is base
            else f"**{name}**"
            if cell.name == DEFAULT
            else name
        )
        rows.append([name, f"{cell.temperature:g}", *numbers, *differences, f"{cell.nfe:g}"])
    return _markdown(head, rows)


def _tuning(own: Sequence[Bench]) -> Iterator[str]:
    yield (
        f"Pass@1 / Pass@{own[0].n} in per cent on the tune split. These figures choose the "
        "temperature of plain sampling (bold). The rows of the other methods show how far their "
        "one setting is from the best."
    )
    names = {(cell.name, cell.temperature): None for bench in own for cell in bench.tune}
    order = list(METHODS)
    keys = sorted(
        names, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key)
    )
    rows = []
    for name, temperature in keys:
        row = [name, f"{temperature:g}"]
        for bench in own:
            cell = next(
                (c for c in bench.tune if (c.name, c.temperature) == (name, temperature)), None
            )
            text = (
                ""
                if cell is None
                else f"{percent(cell.passed(1).mean())} / {percent(cell.passed(cell.n).mean())}"
            )
            chosen = (
                name == PLAIN
                and bench.baseline is not None
                and bench.baseline.temperature == temperature
            )
            row.append(f"**{text}**" if chosen else text)
        rows.append(row)
    yield _markdown(["method", "temperature", *(bench.title for bench in own)], rows)


def summary(found: Sequence[Bench]) -> str:
    """Return a table of plain sampling and the presets, with a row per task."""
    if not found:
        return NOTHING
    several = len({bench.model for bench in found}) > 1
    wanted = (FORK, PAPER, DEFAULT, CAREFUL)
    names = [name for name in wanted if any(bench.find(name) for bench in found)]
    head = [
        *(["model"] if several else []),
        "task",
        "tuned plain sampling",
        *names,
        f"Pass@{found[0].n}: default - tuned plain",
    ]
    rows = []
    for bench in found:
        cells = [bench.baseline, *(bench.find(name) for name in names)]
        default = bench.find(DEFAULT)
        gain = _difference(default, bench.baseline, bench.n) if default and bench.baseline else ""
        numbers = [
            ""
            if c is None
            else f"{percent(c.passed(1).mean())} / {percent(c.passed(bench.n).mean())}"
            for c in cells
        ]
        rows.append([*([bench.model] if several else []), bench.title, *numbers, gain])
    legend = f"Pass@1 / Pass@{found[0].n} in per cent; in brackets the 95 % interval over problems."
    return f"{_markdown(head, rows)}\n\n{legend}"


def gain(found: Sequence[Bench]) -> str:
    """Return a sentence on what the default gains on one task."""
    default, base = (found[0].find(DEFAULT), found[0].baseline) if found else (None, None)
    if default is None or base is None:
        return NOTHING
    bench = found[0]
    return (
        f"On {bench.title}, the default solves {percent(default.passed(bench.n).mean())} % of "
        f"{number_of(bench.test[0].runs[0].problems, 'problem')} with {bench.n} samples; "
        f"tuned plain sampling solves {percent(base.passed(bench.n).mean())} % "
        f"({_difference(default, base, bench.n)} points). Of single samples, "
        f"{percent(default.passed(1).mean())} % and {percent(base.passed(1).mean())} % are right."
    )


KINDS = {"summary": summary, "gain": gain}


def filled(text: str, found: Sequence[Bench], where: Path) -> str:
    """Return a page with its blocks replaced."""

    def block(match: re.Match[str]) -> str:
        kind, *about = match["what"].split() or ["summary"]
        if kind not in KINDS or len(about) > 2:
            known = f"{', '.join(KINDS)} [MODEL [TASK]]"
            raise ValueError(f"{where}: unknown block {match['what'].strip()!r}; known: {known}")
        model, task = [*about, None, None][:2]
        own = [
            bench for bench in found if model in (None, bench.model) and task in (None, bench.where)
        ]
        return f"{match[1]}\n{KINDS[kind](own)}\n\n{match[3]}"

    done = BLOCK.sub(block, text)
    begun, ended = text.count("<!-- results:begin"), len(BLOCK.findall(text))
    if begun != ended:
        raise ValueError(
            f"{where}: only {ended} of {begun} blocks end: each needs <!-- results:end -->"
        )
    return done


def pages(root: Path) -> list[Path]:
    """Return all pages that may have blocks."""
    found = [
        root / "README.md",
        *root.glob("docs/**/*.md"),
        *root.glob("src/oddlm/models/*/README.md"),
    ]
    return sorted(
        path.relative_to(root) for path in found if path.exists() and path.relative_to(root) != PAGE
    )


def write(root: Path, out: Path) -> list[Path]:
    """Write the pages of `root` that have figures to `out`, from the results of `root`."""
    results = by_model(root / "results")
    found = benches(results)
    texts = {PAGE: page(results)}
    for path in pages(root):
        text = (root / path).read_text()
        if "<!-- results:begin" in text:
            texts[path] = filled(text, found, path)
    for path, text in texts.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)
    return list(texts)


def _interval(cell: Cell, k: int) -> str:
    mean, low, high = metrics.mean_intervals(cell.passed(k)[:, None])[0]
    return f"{percent(mean)} [{percent(low)}, {percent(high)}]"


def _difference(cell: Cell, base: Cell, k: int) -> str:
    mean, low, high = metrics.paired_interval(cell.passed(k), base.passed(k))
    return f"{percent(mean, sign='+')} [{percent(low, sign='+')}, {percent(high, sign='+')}]"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=ROOT,
        help="the repository, or a folder with its results/ and pages",
    )
    parser.add_argument(
        "--out", type=Path, help="where the pages go; default: over those of the repository"
    )
    given = parser.parse_args()
    for path in write(given.root, given.out or given.root):
        print(path)


if __name__ == "__main__":
    main()

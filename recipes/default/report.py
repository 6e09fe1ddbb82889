"""Print the test side of the study that chose the default, as the tables of docs/default.md.

    python recipes/default/report.py RESULTS... --tune TUNE...

RESULTS are folders that `oddlm runs export` wrote from runs on the sides to report on, TUNE those
of the sides to tune on, as for choose.py. From TUNE come the temperature of plain sampling on each
task, and the chosen setting.

Each problem counts with its mean over its seeds, and two methods are compared on the problems and
seeds that both have. Intervals are 95 % bootstrap intervals over problems. A difference is called
better or worse if its interval excludes zero.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from choose import Setting, baselines, candidates, choose, described, is_plain, present, rates
from choose import setting_of as setting
from choose import task_of as task

from oddlm import metrics
from oddlm.report.result_files import Result, read_folder
from oddlm.report.tables import Table, signed
from oddlm.text import fixed, number_of, percent

N = 16
ODD_8: Setting = ((("name", "odd"),), 8.0, 1.0, False, 0.5)
PLAIN, ODD, FORMER, DEFAULT = "tuned plain", "ODD, alpha 8", "former default", "default"
VERDICTS = ("better", "worse", "no difference shown")
Values = dict[tuple[str, int], float]  # by problem and seed


def methods(tune: Sequence[Result]) -> dict[str, dict[str, Setting]]:
    """Return by task the settings to report, by name; none twice."""
    by_task = rates(list(tune))
    found = candidates(by_task)
    winner, branches = choose(found)
    named = {}
    for name, (plain, _) in baselines(by_task).items():
        own = branches.get(name.split()[0], winner).setting
        others = {PLAIN: plain, ODD: ODD_8, FORMER: present(found).setting}
        named[name] = {key: one for key, one in others.items() if one != own} | {DEFAULT: own}
    return named


def problems_of(run: Result) -> list[str]:
    """Return the ids of a run's problems in their order if they are counted, else stand-ins.

    Runs with the same stand-ins have the same problems.
    """
    return run.ids or [f"{run.problems_digest}/{i}" for i in range(run.problems)]


def check_problems(runs: Sequence[Result]) -> None:
    """Raise ValueError if runs of a task have different problems, and it is unknown which."""
    sets = {run.problems_digest: problems_of(run) for run in runs}
    unknown = [digest for digest, ids in sets.items() if ids[0].startswith(digest)]
    if len(sets) > 1 and unknown:
        raise ValueError(
            f"{task(runs[0])}: the runs have {len(sets)} sets of problems, which cannot be paired: "
            "export runs with the same problems"
        )


def values(runs: Sequence[Result], k: int | None) -> Values:
    """Return Pass@k, or the number of distinct texts for None. The longest run of a seed counts."""
    found: Values = {}
    for run in sorted(runs, key=lambda run: run.problems):
        column = run.distinct if k is None else metrics.pass_at_k(run.correct, k)
        found |= {
            (problem, run.seed): float(value)
            for problem, value in zip(problems_of(run), column, strict=True)
        }
    return found


def by_problem(found: Values) -> np.ndarray:
    """Return the mean over the seeds of each problem: [problems]."""
    together: dict[str, list[float]] = {}
    for (problem, _), value in sorted(found.items()):
        together.setdefault(problem, []).append(value)
    return np.array([np.mean(some) for some in together.values()])


def paired(own: Values, other: Values) -> Values:
    """Return the differences on the problems and seeds that both have."""
    return {key: own[key] - other[key] for key in own.keys() & other.keys()}


def span(found: Values) -> metrics.Interval:
    return metrics.mean_intervals(by_problem(found)[:, None])[0]


def verdict(found: metrics.Interval) -> str:
    better, worse, neither = VERDICTS
    return better if found.low > 0 else worse if found.high < 0 else neither


def sizes(found: Values) -> str:
    """Say how many problems and seeds there are: `500 x 3`, `1319, 200 of them x 3`."""
    counts: dict[str, int] = {}
    for problem, _ in found:
        counts[problem] = counts.get(problem, 0) + 1
    seeds = list(counts.values())
    several = f" x {max(seeds)}" if max(seeds) > 1 else ""
    if min(seeds) == max(seeds):
        return f"{len(seeds)}{several}"
    return f"{len(seeds)}, {seeds.count(max(seeds))} of them{several}"


def same(one: Setting, other: Setting) -> bool:
    """Return whether two settings sample alike; without a push, its other settings do nothing."""
    plain = is_plain(one) and is_plain(other)
    return one[-1] == other[-1] if plain else one == other


Runs = Mapping[str, Mapping[str, Sequence[Result]]]  # by task and method


def grouped(results: Sequence[Result], named: Mapping[str, Mapping[str, Setting]], n: int) -> Runs:
    """Return the runs with n samples of the methods to report, in the order of their tasks."""
    found: dict[str, dict[str, list[Result]]] = {}
    for name, settings in named.items():
        own = [run for run in results if task(run) == name and run.n == n]
        drawn = {
            method: [run for run in own if same(setting(run), one)]
            for method, one in settings.items()
        }
        check_problems([run for some in drawn.values() for run in some])
        found[name] = {method: some for method, some in drawn.items() if some}
    return {name: found[name] for name in sorted(found) if found[name]}


def rates_table(runs: Runs, named: Mapping[str, Mapping[str, Setting]], n: int) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, drawn in runs.items():
        rows.append((name,))
        for method, some in drawn.items():
            single, many = (_share(span(values(some, k))) for k in (1, n))
            temperature = f", temperature {named[name][PLAIN][-1]:g}" if method == PLAIN else ""
            texts = fixed(float(by_problem(values(some, None)).mean()))
            rows.append((method + temperature, single, many, texts, sizes(values(some, n))))
    note = (
        "Per cent, with 95 % intervals over problems. Problems x seeds; each problem counts with "
        "its mean over its seeds. Rows on different problems are compared below, on shared ones."
    )
    columns = ("method", "Pass@1", f"Pass@{n}", "distinct texts", "problems")
    return Table("The test side", columns, tuple(rows), note)


@dataclass(frozen=True)
class Gain:
    """What the default has more than another method."""

    many: metrics.Interval  # of Pass@n
    single: metrics.Interval  # of Pass@1
    sizes: str


Gains = Mapping[tuple[str, str], Gain]  # by task and other method


def gains(runs: Runs, n: int) -> Gains:
    found = {}
    for name, drawn in runs.items():
        for method in [method for method in drawn if method != DEFAULT and DEFAULT in drawn]:
            many, single = (
                paired(values(drawn[DEFAULT], k), values(drawn[method], k)) for k in (n, 1)
            )
            if many:
                found[name, method] = Gain(span(many), span(single), sizes(many))
    return found


def gains_table(found: Gains, n: int) -> Table:
    rows = [
        (name, method, _judged(gain.many), _judged(gain.single), gain.sizes)
        for (name, method), gain in found.items()
    ]
    note = (
        "In points, paired by problem and seed, with 95 % intervals over problems. Better, worse: "
        "the interval excludes zero. Nothing is corrected for the number of comparisons."
    )
    columns = ("task", "default minus", f"Pass@{n}", "Pass@1", "problems")
    return Table("What the default gains", columns, tuple(rows), note)


def sentences(found: Gains, n: int) -> list[str]:
    """Say on which tasks the default is better and worse than each other method."""
    lines = []
    for other in dict.fromkeys(method for _, method in found):
        own = {name: gain for (name, method), gain in found.items() if method == other}
        for what, spans in (
            (f"Pass@{n}", {name: gain.many for name, gain in own.items()}),
            ("Pass@1", {name: gain.single for name, gain in own.items()}),
        ):
            judged: dict[str, list[str]] = {word: [] for word in VERDICTS}
            for name, one in spans.items():
                judged[verdict(one)].append(name)
            told = (
                f"{word} on {len(names)} of {len(own)} ({', '.join(names)})"
                for word, names in judged.items()
                if names
            )
            lines.append(f"- {what}, default against {other}: {'; '.join(told)}.")
    return lines


def page(tune: Sequence[Result], test: Sequence[Result], n: int = N) -> str:
    named = methods(tune)
    runs = grouped(test, named, n)
    missing = [
        f"{name}: {method}"
        for name, settings in named.items()
        for method in settings
        if method not in runs.get(name, {})
    ]
    settings = dict.fromkeys(
        f"- {method}{_whose(name, method, named)}: {described(one)}"
        for name, some in sorted(named.items())
        for method, one in some.items()
        if method != PLAIN
    )
    parts = [*settings, "", rates_table(runs, named, n).markdown()]
    found = gains(runs, n)
    parts += [gains_table(found, n).markdown(), *sentences(found, n)]
    if missing:
        parts += ["", f"Not drawn ({number_of(len(missing), 'cell')}): {'; '.join(missing)}."]
    return "\n".join(parts)


def _whose(name: str, method: str, named: Mapping[str, Mapping[str, Setting]]) -> str:
    """Name the model if the method depends on it."""
    several = len({some.get(method) for some in named.values()}) > 1
    return f" of {name.split()[0]}" if several else ""


def _share(found: metrics.Interval) -> str:
    mean, low, high = (percent(value) for value in found)
    return f"{mean} [{low}, {high}]"


def _judged(found: metrics.Interval) -> str:
    return f"{signed(found)}: {verdict(found)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="folders of the test side")
    parser.add_argument("--tune", type=Path, nargs="+", required=True, help="those of the other")
    parser.add_argument("-n", type=int, default=N, help="samples per problem of the runs to report")
    args = parser.parse_args()
    test, tune = (
        [result for folder in folders for result in read_folder(folder)]
        for folders in (args.results, args.tune)
    )
    print(page(tune, test, args.n))


if __name__ == "__main__":
    main()

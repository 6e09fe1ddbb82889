"""Print the paper's study on smol from its stored results, as the tables of docs/smol.md.

    python recipes/smol/study.py RESULTS              # plain sampling, ODD and DPP; 64 samples
    python recipes/smol/study.py RESULTS --out DIR    # the curve of 64 samples as a figure, too
    python recipes/smol/study.py RESULTS --ids        # the ids of the study's runs

RESULTS is the folder that `oddlm runs export` wrote from the runs of grids/smol_paper.toml; runs of
other settings in it are left out, except for the default. Runs on the whole test split have tables
of their own. `oddlm report` writes the Pareto figures, coverage and the paper's claims from a store
that holds the runs of --ids alone.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from oddlm import metrics
from oddlm.presets import PRESETS
from oddlm.report.result_files import Result, read_file
from oddlm.report.tables import Table, percent, signed
from oddlm.text import fixed, number_of
from oddlm.text import percent as share

FILE, N, PROBLEMS = "gsm8k-equations.jsonl", 16, 200
METHODS = ("none", "odd", "dpp", "default")  # in the order of the tables
AUTO = {**PRESETS["auto"], "fork": True}
FIGURE = "smol-gsm8k-depth.png"

Key = tuple[str, float, float]  # method, alpha, temperature
Cells = Mapping[Key, Sequence[Result]]


def key_of(run: Result) -> Key | None:
    """Return where a run stands in the table; None if it has other settings as well."""
    params = {"alpha_end": 1.0, **run.params}
    if all(params.get(name) == value for name, value in AUTO.items() if name in params):
        return "default", params["alpha"], params["temperature"]
    constant = params["alpha_end"] == 1 or not params["alpha"]
    bare = params["objective"] in METHODS and not params["fork"] and constant
    return (params["objective"], params["alpha"], params["temperature"]) if bare else None


def cells(results: Sequence[Result], n: int) -> Cells:
    found: dict[Key, list[Result]] = {}
    for run in results:
        key = key_of(run)
        if key is not None and run.n == n:
            found.setdefault(key, []).append(run)
    return {key: found[key] for key in sorted(found, key=lambda k: (METHODS.index(k[0]), *k[1:]))}


def of_the_study(results: Sequence[Result], problems: int) -> list[Result]:
    """Return the runs in the tables, on the first problems.

    A run of the grid may have been continued with more problems. Plain sampling has also been run
    at other temperatures, on all problems, for other studies.
    """
    own = [run for run in results if run.problems >= problems and key_of(run) is not None]
    temperatures = {run.params["temperature"] for run in own if run.params["alpha"]}
    found = {
        (key_of(run), run.n, run.seed): run.first(problems)
        for run in sorted(own, key=lambda run: -run.problems)  # the one without others, if any
        if run.params["temperature"] in temperatures
    }
    if not found:
        raise ValueError(f"no run has {number_of(problems, 'problem')} and a setting of the study")
    return list(found.values())


def whole_tables(results: Sequence[Result], problems: int) -> list[Table]:
    """Return the rates of the runs on more problems than the study's, and their differences."""
    found = sorted(
        (run for run in results if run.problems > problems),
        key=lambda run: (run.n, -metrics.pass_at_k(run.correct, 1).mean()),
    )
    if not found:
        return []
    rates = tuple(
        (
            _setting(run),
            *(_interval(metrics.mean_intervals(curve([run], k)[:, None])[0]) for k in (1, run.n)),
            fixed(float(np.mean(run.distinct))),
        )
        for run in found
    )
    usual = [run for run in found if run.n == N]
    plain = [run for run in usual if run.params["alpha"] == 0 and not run.params["fork"]]
    gains = tuple(
        (
            _setting(run),
            _setting(one),
            *(signed(metrics.paired_interval(curve([run], k), curve([one], k))) for k in (N, 1)),
        )
        for run in usual
        if run not in plain
        for one in plain
    )
    size = number_of(found[0].problems, "problem")
    note = f"Per cent, {size}, one seed, with 95 % bootstrap intervals over problems."
    points = "In points, paired by problem."
    columns = ("setting", "Pass@1", f"Pass@{N}", "distinct")
    return [
        Table("The whole test split", columns, rates, note),
        Table("Differences on it", ("setting", "minus", f"Pass@{N}", "Pass@1"), gains, points),
    ]


def _setting(run: Result) -> str:
    params = run.params
    if params["alpha"] == 0 and not params["fork"]:
        return f"plain, θ = {params['temperature']:g}"
    return f"{run.method}, alpha {params['alpha']:g}, θ = {params['temperature']:g}"


def curve(runs: Sequence[Result], k: int) -> np.ndarray:
    """Return Pass@k of each problem, averaged over the seeds: [problems]."""
    averaged: np.ndarray = np.mean([metrics.pass_at_k(run.correct, k) for run in runs], axis=0)
    return averaged


def rates_table(found: Cells) -> Table:
    """Return Pass@n, Pass@1 and distinct texts: a row per alpha, columns per temperature."""
    n = next(iter(found.values()))[0].n
    temperatures = sorted({temperature for _, _, temperature in found})
    rows: list[tuple[str, ...]] = []
    for method in dict.fromkeys(method for method, _, _ in found):
        rows.append(("smol, plain" if method == "none" else method,))
        for alpha in sorted({alpha for name, alpha, _ in found if name == method}):
            some = [found.get((method, alpha, temperature), ()) for temperature in temperatures]
            rows.append((f"{alpha:g}", *(text for runs in some for text in _numbers(runs, n))))
    counts = sorted({len(runs) for runs in found.values()})
    each = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    problems = next(iter(found.values()))[0].problems
    note = (
        f"Per cent, mean ± standard error over {each} runs of {number_of(problems, 'problem')} "
        f"with {number_of(n, 'sample')}. Distinct: different texts among the samples of a problem."
    )
    names = (f"Pass@{n}", "Pass@1", "distinct")
    columns = ("alpha", *(f"{name}, θ = {t:g}" for t in temperatures for name in names))
    return Table("Plain sampling, ODD and DPP on smol", columns, tuple(rows), note)


def _numbers(runs: Sequence[Result], n: int) -> tuple[str, str, str]:
    if not runs:
        return "-", "-", "-"
    many, single = (
        percent(*metrics.mean_se([metrics.pass_at_k(run.correct, k).mean() for run in runs]))
        for k in (n, 1)
    )
    return many, single, fixed(float(np.mean([run.distinct for run in runs])))


def gains_table(found: Cells) -> Table:
    """Return the differences to plain sampling at the same temperature, on shared seeds."""
    rows = []
    for (method, alpha, temperature), runs in found.items():
        plain = found.get(("none", 0.0, temperature), ())
        seeds = {run.seed for run in runs} & {run.seed for run in plain}
        if method == "none" or not seeds:
            continue
        own, base = ([run for run in some if run.seed in seeds] for some in (runs, plain))
        spans = [metrics.paired_interval(curve(own, k), curve(base, k)) for k in (runs[0].n, 1)]
        setting = (f"{method}, alpha {alpha:g}", f"{temperature:g}")
        rows.append((*setting, *map(signed, spans), str(len(seeds))))
    note = (
        "In points; each problem counts with its mean over the seeds that both have, with 95 % "
        "bootstrap intervals over problems."
    )
    n = next(iter(found.values()))[0].n
    columns = ("method", "θ", f"Pass@{n} - plain", "Pass@1 - plain", "seeds")
    return Table(
        "Differences to plain sampling at the same temperature", columns, tuple(rows), note
    )


def depth_table(found: Cells) -> Table:
    """Return Pass@k of the deep runs for powers of two, with intervals over problems."""
    n = next(iter(found.values()))[0].n
    ks = [2**i for i in range(n.bit_length()) if 2**i <= n]
    rows = [
        (_label(key), *(_interval(metrics.mean_intervals(curve(runs, k)[:, None])[0]) for k in ks))
        for key, runs in found.items()
    ]
    for key, runs in found.items():
        plain = found.get(("none", 0.0, key[2]))
        if key[0] != "none" and plain is not None:
            spans = (metrics.paired_interval(curve(runs, k), curve(plain, k)) for k in ks)
            rows.append((f"{_label(key)} - plain", *map(signed, spans)))
    note = "Per cent and points, with 95 % bootstrap intervals over problems."
    columns = ("method", *(f"k = {k}" for k in ks))
    return Table(f"Pass@k of {n} samples on smol", columns, tuple(rows), note)


def _label(key: Key) -> str:
    method, alpha, temperature = key
    return f"{'plain' if method == 'none' else f'{method}, alpha {alpha:g}'}, θ = {temperature:g}"


def _interval(span: metrics.Interval) -> str:
    mean, low, high = (share(value) for value in span)
    return f"{mean} [{low}, {high}]"


def draw(found: Cells, path: Path) -> None:
    """Draw Pass@k of the deep runs over k."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from oddlm.files import save_figure
    from oddlm.report.plots import COLOURS, PLAIN, STYLE

    with rc_context(STYLE):
        figure = Figure(figsize=(3.8, 2.6), layout="constrained")
        panel = figure.subplots()
        for i, (key, runs) in enumerate(found.items()):
            ks = range(1, runs[0].n + 1)
            spans = metrics.mean_intervals(np.stack([curve(runs, k) for k in ks], axis=1))
            mean, low, high = (100 * np.array(part) for part in zip(*spans, strict=True))
            colour = PLAIN["color"] if key[0] == "none" else COLOURS[i % len(COLOURS)]
            line = PLAIN["linestyle"] if key[0] == "none" else "-"
            panel.plot(ks, mean, color=colour, linestyle=line, label=_label(key))
            panel.fill_between(ks, low, high, color=colour, alpha=0.12, linewidth=0)
        panel.set_xscale("log", base=2)
        ticks = [2**i for i in range(runs[0].n.bit_length())]
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
        panel.set(xlabel="k", ylabel="Pass@k (%)")
        panel.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, path, dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="those of the study")
    parser.add_argument("--ids", action="store_true", help="print the ids of the runs alone")
    parser.add_argument("--out", type=Path, help=f"folder for {FIGURE}")
    args = parser.parse_args()
    results = read_file(args.results / FILE)
    runs = of_the_study(results, args.problems)
    if args.ids:
        print("\n".join(run.run for run in runs))
        return
    usual = cells(runs, N)
    deep = cells(runs, max(run.n for run in runs))
    tables = [
        rates_table(usual),
        gains_table(usual),
        *([depth_table(deep)] if deep != usual else []),
        *whole_tables(results, args.problems),
    ]
    print("\n".join(table.markdown() for table in tables))
    if args.out is not None and deep != usual:
        draw(deep, args.out / FIGURE)


if __name__ == "__main__":
    main()

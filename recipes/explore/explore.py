"""The experiments behind docs/exploration.md, stage by stage. Only drawing needs a GPU.

Run these in this folder. `plan`, `refine` and `report` draw and score runs, except those that are
already in the store:

    python explore.py plan --store runs --executor local:workers=7 --device cuda \\
        --compiled fixed --together 300
    python explore.py tune --store runs     # the random search of every method: results/tune.json
    python explore.py refine --store runs   # the second look, or the third with --look third;
                                            # takes the options of plan
    python explore.py look --store runs     # results/refine.json, results/third.json
    python explore.py choose                # results/chosen.json, from the tuning split alone
    python explore.py report --store runs   # the report split; takes the options of plan
                                            # (--together 500)
    python explore.py collect --store runs  # results/report.npz: a bit for every sample
    python explore.py clock --problems 8    # results/timing.json: time next to plain sampling
    python tables.py                        # every number of docs/exploration.md, and its figures

On a GPU machine without a sandbox, add `--only draw`; then copy the store to a machine that has one
and use `--only score` there. To try it on a CPU, where float16 is slow:

    python explore.py plan --store try --dtype fp32 --limit 2 --runs 60
    python explore.py tune --store try --dtype fp32 --limit 2 --out tried
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from choosing import chosen_of
from methods import METHODS, PAIR, TASKS, UNSAID, base_space, base_start, refined, steps_of, third

from oddlm import metrics
from oddlm.cli.views import label
from oddlm.config import checked
from oddlm.core.step import Sample
from oddlm.experiments.executors import find_executor
from oddlm.experiments.grid import Wanted
from oddlm.experiments.identity import identified
from oddlm.experiments.plan import BOTH, Asked, make_plan
from oddlm.experiments.run import Progress, run_plan
from oddlm.experiments.stages import draw, drawing_environment
from oddlm.experiments.tune import search as tune
from oddlm.experiments.tune.space import read_space
from oddlm.experiments.work import Options
from oddlm.params import SampleParams
from oddlm.selection import SELECTORS
from oddlm.spec import RunSpec
from oddlm.store import Record, Store
from oddlm.tasks import Problem, Task, find_task

RESULTS = Path(__file__).parent / "results"
N = 16
TRIALS = 16
LIMIT, REPORT_LIMIT = 300, 500  # problems of a trial and of the report; each split has 500
DTYPE = "fp16"
SEEDS = range(8)
SOME = range(4)  # seeds for runs with 64 samples, with half the steps, or with detuned settings
SLOW = ("odd_sequential", "random_probe", "odd_semantic", "odd_reduced", "odd_ngrams")
DEEP = ("plain", "order", "odd")  # also with 64 samples, on countdown-4, as are the presets
SHAKEN = (*DEEP, "odd_enough", "odd_fork")  # also with detuned settings, as are the presets
HALF = "half the steps"
POOLS = (17, 32)
POOLED = (("countdown-4", "plain"), ("minicode", "plain"))  # with enough samples for a pool


def task_of(task: str) -> Task:
    name, protocol, _, _ = TASKS[task]
    return find_task(name).under(protocol)


@cache
def base_of(task: str, split: str, dtype: str) -> RunSpec:
    name, protocol, _, _ = TASKS[task]
    fields = {"model": "mini", "loading": {"dtype": dtype}, "task": name, "protocol": protocol}
    return identified(checked(RunSpec, {**fields, "split": split, "n": N}))


@cache
def problems_of(task: str, split: str, limit: int | None) -> tuple[Problem, ...]:
    """Return the problems of a split, which must not share any with the reported split."""
    if split == tune.REPORTED:
        return tuple(task_of(task).problems(split=split, limit=limit))
    return tuple(tune.tuning_problems(task_of(task), split, limit=limit))


def make(args: argparse.Namespace, wanted: Sequence[Wanted]) -> None:
    """Draw and score the runs that the store does not have, in this order."""
    stages = (args.only,) if args.only else BOTH
    runs = make_plan([Wanted(spec, fewer(limit, args)) for spec, limit in wanted], stages=stages)
    runs = replace(runs, runs=runs.runs[: args.runs])
    left = Counter({run.spec.id: len(run.problems) for run in runs.runs})

    def show(progress: Progress) -> None:
        spec = progress.spec
        left[spec.id] -= progress.problems
        if progress.fresh and not left[spec.id]:
            print(
                f"{spec.id}: {spec.task} {spec.protocol}, {label(spec.params)}, seed {spec.seed}",
                flush=True,
            )

    options = Options(device=args.device, compiled=args.compiled, scorers=args.scorers)
    with closing(find_executor(args.executor, options)) as executor:
        result = run_plan(
            runs, Store(args.store), executor, stages=stages, together=args.together, watch=show
        )
    done = "drawn" if args.only == "draw" else "scored"
    print(f"{result.complete} of {len(runs.runs)} runs are {done} in {args.store}")
    trouble = [
        *result.damaged,
        *(f"run {spec.id}, problem {one.problem}: {one.error}" for spec, one in result.failures),
    ]
    if trouble:
        raise SystemExit("\n".join(trouble[:20]))


def fewer(limit: int | None, args: argparse.Namespace) -> int | None:
    return args.limit if limit is None else min(limit, args.limit or limit)


def verdicts(store: Store, run: Asked) -> np.ndarray | None:
    """Return the verdicts, [problems, n]; None if some problems are not scored."""
    known = {scored.problem: scored.correct for scored in store.scores(run.spec.id)}
    whole = all(problem.id in known for problem in run.problems)
    return np.array([known[problem.id] for problem in run.problems], dtype=bool) if whole else None


def plan_of(task: str, method: str, dtype: str) -> tune.Plan:
    what = METHODS[method]
    fixed = {"length": TASKS[task][2], "steps": steps_of(task), "fork": False, **what.fixed}
    axes = {**base_space(task, what), **what.space}
    space = read_space(
        [f"{axis}={json.dumps(v) if isinstance(v, list) else v}" for axis, v in axes.items()], fixed
    )
    base, first = base_of(task, "tune", dtype), (base_start(task, what),)
    return tune.Plan(base, LIMIT, fixed, space, (0,), N, {}, search="random", first=first)


def plan(args: argparse.Namespace) -> None:
    """Make the runs of the search, by trial: if time runs out, all methods have as many trials."""
    trials = [
        tune.planned(plan_of(task, method, args.dtype), TRIALS)
        for task in TASKS
        for method in METHODS
    ]
    make(
        args,
        [Wanted(spec, LIMIT) for place in range(TRIALS) for own in trials for spec in own[place]],
    )


def search(args: argparse.Namespace) -> None:
    """Write results/tune.json, with as many trials of each method as the store has of all."""
    found, store = [], Store(args.store)
    for task in TASKS:
        problems = problems_of(task, "tune", fewer(LIMIT, args))
        trials = {
            method: list(tried(store, task, method, problems, args.dtype)) for method in METHODS
        }
        count = min(map(len, trials.values()))
        for method, own in trials.items():
            different = {str(row["params"]): row for row in reversed(own[:count]) if row}.values()
            rows = sorted(
                different, key=lambda row: (-row[f"pass@{N}"], -row["pass@1"], row["place"])
            )
            found += [{"task": task, "method": method, **row} for row in rows]
            best = ", ".join(f"pass@{k} {rows[0][f'pass@{k}']:.3f}" for k in (1, N)) if rows else ""
            print(f"{task:12} {method:15} {count} trials, the best {best}", flush=True)
    write_rows(args.out / "tune.json", found)


def tried(
    store: Store, task: str, method: str, problems: tuple[Problem, ...], dtype: str
) -> Iterator[dict[str, Any]]:
    """Yield the trials up to the first that is missing; empty if its settings are incompatible."""
    for place, specs in enumerate(tune.planned(plan_of(task, method, dtype), TRIALS)):
        row: dict[str, Any] = {}
        for spec in specs:
            if (right := verdicts(store, Asked(spec, problems))) is None:
                return
            row = {"place": place, **passed(right), "params": stated(spec.params)}
        yield row


def passed(right: np.ndarray) -> dict[str, float]:
    return {f"pass@{k}": float(metrics.pass_at_k(right, k).mean()) for k in (1, N)}


@dataclass(frozen=True)
class Look:
    """Hand-picked settings to try on the tuning split of the pair of tasks."""

    settings: Callable[[str], dict[str, list[dict[str, Any]]]]  # of a task, by "plain" and "ours"
    limit: int
    seeds: tuple[int, ...]  # number of seeds, by task of the pair

    def runs(self, task: str, dtype: str) -> Iterator[tuple[str, int, list[RunSpec]]]:
        """Yield the method and index of each setting, and its runs, one per seed."""
        for method, settings in self.settings(task).items():
            for place, given in enumerate(settings):
                params = SampleParams.model_validate(
                    {**UNSAID, "steps": steps_of(task), **given}
                ).canonical()
                base = base_of(task, "tune", dtype).model_copy(update={"params": params})
                seeds = range(self.seeds[PAIR.index(task)])
                yield method, place, [base.model_copy(update={"seed": seed}) for seed in seeds]


LOOKS = {"refine": Look(refined, LIMIT, (1, 1)), "third": Look(third, 500, (4, 1))}


def refine(args: argparse.Namespace) -> None:
    """Make the runs of a look."""
    own = LOOKS[args.look]
    make(
        args,
        [
            Wanted(s, own.limit)
            for task in PAIR
            for _, _, specs in own.runs(task, args.dtype)
            for s in specs
        ],
    )


def look(args: argparse.Namespace) -> None:
    """Write the results of a look: results/refine.json, results/third.json."""
    store, own, found = Store(args.store), LOOKS[args.look], []
    for task in PAIR:
        problems = problems_of(task, "tune", fewer(own.limit, args))
        for method, place, specs in own.runs(task, args.dtype):
            right = [verdicts(store, Asked(spec, problems)) for spec in specs]
            if all(one is not None for one in right):
                share = passed(np.concatenate([one for one in right if one is not None]))
                found.append(
                    {
                        "task": task,
                        "method": method,
                        "place": place,
                        **share,
                        "params": stated(specs[0].params),
                    }
                )
    write_rows(args.out / f"{args.look}.json", found)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def stated(params: SampleParams) -> dict[str, Any]:
    usual = {
        name: field.default
        for name, field in SampleParams.model_fields.items()
        if name != "objective"
    } | UNSAID
    return {
        k: v
        for k, v in params.model_dump(mode="json", exclude={"seed"}).items()
        if k not in usual or v != usual[k]
    }


def choose(args: argparse.Namespace) -> None:
    """Choose settings by the three looks at the tuning split: results/chosen.json."""
    looks = (
        json.loads((RESULTS / name).read_text())
        for name in ("tune.json", "refine.json", "third.json")
    )
    found = chosen_of(*looks)
    (RESULTS / "chosen.json").write_text(json.dumps(found, indent=1) + "\n")
    print(
        json.dumps(
            {name: [found[task][name] for task in PAIR] for name in found["presets"]}, indent=1
        )
    )


@dataclass(frozen=True)
class Named:
    """A run of the report and its purpose."""

    task: str
    method: str
    variant: str  # "" as tuned, or the setting that is detuned
    seed: int
    spec: RunSpec


def report_runs(dtype: str = DTYPE) -> Iterator[Named]:
    """Yield the runs of the report, the most important first, as time may run out."""
    chosen = json.loads((RESULTS / "chosen.json").read_text())
    presets, run = list(chosen["presets"]), partial(named, dtype)
    for seed in SEEDS:
        for task in TASKS:
            for method, params in chosen[task].items():
                deep = task == "countdown-4" and method in (*DEEP, *presets) and seed in SOME
                n = 64 if deep else 32 if (task, method) in POOLED else N
                if method not in SLOW:
                    yield run(task, method, "", seed, params, n)
    for task in PAIR:
        half = {**chosen[task]["plain"], "steps": steps_of(task) // 2}
        for seed in SOME:
            yield run(task, "plain", HALF, seed, half, max(POOLS))
    for seed in SEEDS:
        for task in TASKS:
            for method in SLOW:
                yield run(task, method, "", seed, chosen[task][method], N)
            if task in PAIR and seed in SOME:
                for method in (*SHAKEN, *presets):
                    for variant, params in shaken(chosen[task][method]).items():
                        yield run(task, method, variant, seed, params, N)


def shaken(params: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Detune settings: alpha by a factor of 4, temperature by a factor of 2, half the steps."""
    full = SampleParams.model_validate({**UNSAID, **params})
    found: dict[str, dict[str, Any]] = {}
    if not full.plain:
        found |= {
            f"alpha x {factor:g}": {**params, "alpha": full.alpha * factor}
            for factor in (0.25, 4.0)
        }
    if full.temperature > 0:
        found |= {
            f"temperature x {f:g}": {**params, "temperature": full.temperature * f}
            for f in (0.5, 2.0)
        }
    return found | {HALF: {**params, "steps": (full.steps or full.length) // 2}}


def named(
    dtype: str, task: str, method: str, variant: str, seed: int, params: dict[str, Any], n: int
) -> Named:
    settings = SampleParams.model_validate({**UNSAID, **params}).canonical()
    spec = base_of(task, tune.REPORTED, dtype).model_copy(
        update={"n": n, "seed": seed, "params": settings}
    )
    return Named(task, method, variant, seed, spec)


def report(args: argparse.Namespace) -> None:
    """Make the runs of the report."""
    make(args, [Wanted(run.spec, REPORT_LIMIT) for run in report_runs(args.dtype)])


def clock(args: argparse.Namespace) -> None:
    """Time each method next to plain sampling, all in turn, several times: results/timing.json."""
    import oddlm

    chosen = json.loads((RESULTS / "chosen.json").read_text())["countdown-4"]
    lm, task = oddlm.load("mini", device=args.device), task_of("countdown-4")
    problems = task.problems(split="tune", limit=args.problems)
    rows = []
    for turn in range(-1, args.turns):  # the first warms up
        for method, params in chosen.items():
            spec = named("fp32", "countdown-4", method, "", turn, params, N).spec
            began = time.perf_counter()
            draw(lm, spec, task, problems)
            if turn >= 0:
                rows.append(
                    {
                        "method": method,
                        "seconds": round(time.perf_counter() - began, 4),
                        "problems": args.problems,
                    }
                )
    about = drawing_environment(lm)
    write_rows(
        args.out / "timing.json",
        [{**row, "device": about["device"], "torch": about["versions"]["torch"]} for row in rows],
    )


def collect(args: argparse.Namespace) -> None:
    """Collect a bit for every sample, correct or not, and the number of distinct texts."""
    store = Store(args.store)
    meta, right, distinct = [], [], []
    for run in report_runs(args.dtype):
        asked = Asked(run.spec, problems_of(run.task, tune.REPORTED, fewer(REPORT_LIMIT, args)))
        all_right = verdicts(store, asked)
        if all_right is None:
            print(f"missing: {run.task} {run.method} {run.variant} seed {run.seed}")
            continue
        records = asked.records(store)
        seconds = sum(record.seconds for record in records)
        for name, chosen in selections(run, records, all_right).items():
            about = {
                "task": run.task,
                "method": name,
                "variant": run.variant,
                "seed": run.seed,
                "seconds": round(seconds, 3),
            }
            meta.append(
                {
                    **about,
                    "nfe": records[0].nfe,
                    "n": chosen.shape[1],
                    "params": stated(run.spec.params),
                }
            )
            right.append(np.packbits(np.take_along_axis(all_right, chosen, axis=1), axis=1))
            both = zip(records, chosen, strict=True)
            distinct.append(
                np.array([len({record.samples[i].text for i in own[:N]}) for record, own in both])
            )
    arrays = {f"right{i}": x for i, x in enumerate(right)} | {
        f"distinct{i}": x.astype(np.uint8) for i, x in enumerate(distinct)
    }
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out / "report.npz",
        meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
        **arrays,
    )
    print(f"{len(meta)} runs in {args.out / 'report.npz'}")


def selections(run: Named, records: Sequence[Record], right: np.ndarray) -> dict[str, np.ndarray]:
    """Return the samples of a run, [problems, n], and those that k-centre keeps of its pools."""
    problems, n = right.shape
    everything = np.tile(np.arange(n), (problems, 1))
    if run.method != "plain" or n < max(POOLS):
        return {run.method: everything}
    kept = {}
    if run.variant == "":
        kept["plain"] = everything
    for pool in POOLS:
        if run.variant == "" or pool == max(POOLS):
            kept[f"k_centre_{pool}"] = np.array([centres(record, pool) for record in records])
            kept[f"pool_{pool}"] = everything[:, :pool]
    return kept


def centres(record: Record, pool: int) -> list[int]:
    texts = [sample.text for sample in record.samples[:pool]]
    seen = [
        Sample(0, i, text, (), (), (), (), record.seed, "stop", record.nfe)
        for i, text in enumerate(texts)
    ]
    return list(SELECTORS.find("k_centre")(seen, N))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    stages = parser.add_subparsers(required=True)
    makers = {"plan": plan, "refine": refine, "report": report}
    readers = {"tune": search, "look": look, "collect": collect}
    for name, stage in {**makers, **readers, "choose": choose, "clock": clock}.items():
        own = stages.add_parser(name, help=(stage.__doc__ or "").partition("\n")[0])
        own.set_defaults(stage=stage)
        if name in makers or name in readers:
            own.add_argument("--store", type=Path, required=True)
            own.add_argument(
                "--limit",
                type=int,
                help="at most the first LIMIT problems of a run, for a trial",
            )
            own.add_argument(
                "--dtype",
                default=DTYPE,
                help="part of a run's id; default: that of the results",
            )
        if name in makers:
            own.add_argument("--runs", type=int, help="only the first RUNS runs, for a trial")
            own.add_argument("--only", choices=BOTH, help="only this stage")
            own.add_argument(
                "--executor", default="inline", help="as for `oddlm sweep`, such as local:workers=7"
            )
            own.add_argument("--device")
            own.add_argument("--compiled", choices=["fixed", "any"])
            own.add_argument(
                "--together", type=int, default=1, help="problems drawn at a time: many on a GPU"
            )
            own.add_argument(
                "--scorers", type=int, default=2, help="answers scored at a time by each worker"
            )
        if name in readers or name == "clock":
            own.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
        if name in ("refine", "look"):
            own.add_argument("--look", choices=LOOKS, default="refine")
        if name == "clock":
            own.add_argument("--problems", type=int, default=500)
            own.add_argument("--turns", type=int, default=5)
            own.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.stage(args)


if __name__ == "__main__":
    main()

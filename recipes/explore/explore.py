"""The experiments behind docs/exploration.md, stage by stage. Drawing wants a GPU, the rest does not.

In this folder: `plan`, `refine` and `report` write files of runs; `draw.py` and `gather.py` of recipes/mini do them:

    python explore.py plan --out tune.jsonl
    python ../mini/draw.py tune.jsonl --device cuda --dtype fp16 --compiled fixed --workers 7 --together 300 --out drawn
    python ../mini/gather.py drawn --bare --store runs
    python explore.py tune --store runs            # the random search of every method: results/tune.json
    python explore.py refine --out refine.jsonl    # a second look, drawn and gathered as above; so is a third (--look third)
    python explore.py look --store runs            # results/refine.json, results/third.json
    python explore.py choose                       # results/chosen.json, from the tuning split alone
    python explore.py report --out report.jsonl    # the report split, drawn (--together 500) and gathered as above
    python explore.py collect --store runs         # results/report.npz: a bit for every sample
    python explore.py clock --problems 8           # results/timing.json: time beside plain sampling
    python tables.py                               # every number of docs/exploration.md, and its figures
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from choosing import chosen_of
from methods import METHODS, PAIR, TASKS, UNSAID, base_space, base_start, refined, steps_of, third

from oddlm import metrics, tune
from oddlm.core.step import Sample
from oddlm.evaluate import Runner, draw, environment
from oddlm.models import model_digest
from oddlm.params import RunSpec, SampleParams
from oddlm.selection import SELECTORS
from oddlm.space import read_space
from oddlm.store import Row, Store
from oddlm.tasks import find_task
from oddlm.trackers import tracking

RESULTS = Path(__file__).parent / "results"
N = 16
TRIALS = 16
LIMIT = 300  # problems of a trial; the split has 500
SEEDS = range(8)
SOME = range(4)  # seeds of 64 samples, of half the steps, of what is put off
SLOW = ("odd_sequential", "random_probe", "odd_semantic", "odd_reduced", "odd_ngrams")
DEEP = ("plain", "order", "odd")  # also with 64 samples, on countdown-4, as are the presets
SHAKEN = (*DEEP, "odd_enough", "odd_fork")  # with settings that are off, as are the presets
HALF = "half the steps"
POOLS = (17, 32)
POOLED = tuple((task, "plain") for task in ("countdown-4", "minicode"))  # drawn so often that there is a pool


@cache
def mini() -> str:
    return model_digest("mini")


def plan_of(task: str, method: str) -> tune.Plan:
    name, protocol, length, _ = TASKS[task]
    what = METHODS[method]
    fixed = {"length": length, "steps": find_task(name).under(protocol).steps, "fork": False, **what.fixed}
    axes = {**base_space(task, what), **what.space}
    space = read_space([f"{axis}={json.dumps(v) if isinstance(v, list) else v}" for axis, v in axes.items()], fixed)
    base = RunSpec(model="mini", model_digest=mini(), task=name, protocol=protocol, split="tune", n=N, limit=LIMIT)
    return tune.Plan(base, fixed, space, (0,), N, {}, search="random", first=(base_start(task, what),))


def plan(args: argparse.Namespace) -> None:
    """Trial by trial, so that what is drawn until time runs out are as many trials of every method."""
    trials = {(task, method): tune.planned(plan_of(task, method), TRIALS) for task in TASKS for method in METHODS}
    write_specs([run for place in range(TRIALS) for own in trials.values() for run in own[place]], args.out)


def write_specs(runs: list[RunSpec], path: Path) -> None:
    different = {run.id: run for run in runs}
    path.write_text("".join(run.model_dump_json() + "\n" for run in different.values()))
    print(f"{len(different)} runs in {path}")


def search(args: argparse.Namespace) -> None:
    """The search of every method on every task: what the store holds is not drawn again."""
    import oddlm

    found, store = [], Store(args.store)
    for name in TASKS:
        task, protocol, _, _ = TASKS[name]
        trials = TRIALS if args.draw else min(leading(store, plan_of(name, method)) for method in METHODS)
        problems = tune.tuning_problems(find_task(task).under(protocol), "tune", limit=LIMIT)
        for method in METHODS:
            aim = plan_of(name, method)
            with tempfile.TemporaryDirectory() as folder:
                study = tune.open_study(f"sqlite:///{folder}/study.db", "study", aim)
                runner = Runner(store, lambda: oddlm.load("mini", device=args.device), together=LIMIT)
                with tracking((), args.store) as tracker:
                    tune.tune(aim, study, trials, runner, find_task(task).under(protocol), problems, tracker)
                outcomes = tune.outcomes(study)
            best = outcomes[0]
            print(f"{name:12} {method:15} pass@1 {best.passed['pass@1']:.3f} pass@16 {best.passed['pass@16']:.3f}", flush=True)
            found += [
                {"task": name, "method": method, "place": place_of(aim, o), **o.passed, "params": stated(o.params)}
                for o in outcomes
            ]
    write_rows(RESULTS / "tune.json", found)


@dataclass(frozen=True)
class Look:
    """Settings that are tried by hand on the tuning split, on the pair of tasks."""

    settings: Callable[[str], dict[str, list[dict[str, Any]]]]  # of a task, by "plain" and "ours"
    limit: int
    seeds: tuple[int, ...]  # how many, by task of the pair

    def runs(self, task: str) -> Iterator[tuple[str, int, list[RunSpec]]]:
        """Whose setting, which, and its run with each seed."""
        name, protocol, _, _ = TASKS[task]
        base = RunSpec(model="mini", model_digest=mini(), task=name, protocol=protocol, split="tune", n=N, limit=self.limit)
        for method, settings in self.settings(task).items():
            for place, given in enumerate(settings):
                params = SampleParams.model_validate({**UNSAID, "steps": steps_of(task), **given}).canonical()
                seeds = range(self.seeds[PAIR.index(task)])
                yield method, place, [base.model_copy(update={"params": params, "seed": seed}) for seed in seeds]


LOOKS = {"refine": Look(refined, LIMIT, (1, 1)), "third": Look(third, 500, (4, 1))}


def refine(args: argparse.Namespace) -> None:
    """The runs of a look."""
    write_specs([spec for task in PAIR for _, _, specs in LOOKS[args.look].runs(task) for spec in specs], args.out)


def look(args: argparse.Namespace) -> None:
    """What came out of it: results/refine.json, results/third.json."""
    store, found = Store(args.store), []
    for task in PAIR:
        for method, place, specs in LOOKS[args.look].runs(task):
            if all(map(store.complete, specs)):
                correct = [row.correct for spec in specs for row in store.read(spec.id).rows]
                passed = {f"pass@{k}": float(metrics.pass_at_k(correct, k).mean()) for k in (1, N)}
                found.append({"task": task, "method": method, "place": place, **passed, "params": stated(specs[0].params)})
    write_rows(RESULTS / f"{args.look}.json", found)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def leading(store: Store, aim: tune.Plan) -> int:
    """How many of the first trials the store holds."""
    held = [all(map(store.complete, specs)) for specs in tune.planned(aim, TRIALS)]
    return [*held, False].index(False)


def place_of(aim: tune.Plan, outcome: tune.Outcome) -> int:
    """Which trial it was: the same method tries the same at the same place of every task."""
    ids = [tuple(spec.id for spec in specs) for specs in tune.planned(aim, TRIALS)]
    return ids.index(outcome.runs)


def stated(params: SampleParams) -> dict[str, Any]:
    usual = {name: field.default for name, field in SampleParams.model_fields.items() if name != "objective"} | UNSAID
    return {k: v for k, v in params.model_dump(mode="json", exclude={"seed"}).items() if k not in usual or v != usual[k]}


def choose(args: argparse.Namespace) -> None:
    """What follows from the three looks at the tuning split: results/chosen.json."""
    looks = (json.loads((RESULTS / name).read_text()) for name in ("tune.json", "refine.json", "third.json"))
    found = chosen_of(*looks)
    (RESULTS / "chosen.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: [found[task][name] for task in PAIR] for name in found["presets"]}, indent=1))


@dataclass(frozen=True)
class Named:
    """A run of the report and what it is for."""

    task: str
    method: str
    variant: str  # "" as tuned, or what is put off
    seed: int
    spec: RunSpec


def report_runs() -> Iterator[Named]:
    """What matters most first: time may run out."""
    chosen = json.loads((RESULTS / "chosen.json").read_text())
    presets = list(chosen["presets"])
    for seed in SEEDS:
        for task in TASKS:
            for method, params in chosen[task].items():
                deep = task == "countdown-4" and method in (*DEEP, *presets) and seed in SOME
                if method not in SLOW:
                    yield named(task, method, "", seed, params, 64 if deep else 32 if (task, method) in POOLED else N)
    for task in PAIR:
        half = {**chosen[task]["plain"], "steps": steps_of(task) // 2}
        for seed in SOME:
            yield named(task, "plain", HALF, seed, half, max(POOLS))
    for seed in SEEDS:
        for task in TASKS:
            for method in SLOW:
                yield named(task, method, "", seed, chosen[task][method], N)
            if task in PAIR and seed in SOME:
                for method in (*SHAKEN, *presets):
                    for variant, params in shaken(chosen[task][method]).items():
                        yield named(task, method, variant, seed, params, N)


def shaken(params: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings that are off: alpha by 4, temperature by 2, half the steps."""
    full = SampleParams.model_validate({**UNSAID, **params})
    found = {}
    if not full.plain:
        found |= {f"alpha x {factor:g}": {**params, "alpha": full.alpha * factor} for factor in (0.25, 4.0)}
    if full.temperature > 0:
        found |= {f"temperature x {f:g}": {**params, "temperature": full.temperature * f} for f in (0.5, 2.0)}
    return found | {HALF: {**params, "steps": (full.steps or full.length) // 2}}


def named(task: str, method: str, variant: str, seed: int, params: dict[str, Any], n: int) -> Named:
    name, protocol, _, _ = TASKS[task]
    spec = RunSpec(
        model="mini",
        model_digest=mini(),
        task=name,
        protocol=protocol,
        split="test",
        n=n,
        limit=500,
        seed=seed,
        params=SampleParams.model_validate({**UNSAID, **params}),
    )
    return Named(task, method, variant, seed, spec)


def report(args: argparse.Namespace) -> None:
    write_specs([run.spec for run in report_runs()], args.out)


def clock(args: argparse.Namespace) -> None:
    """How long each method takes beside plain sampling: all of them in turn, several times. Writes results/timing.json."""
    import oddlm

    chosen = json.loads((RESULTS / "chosen.json").read_text())["countdown-4"]
    name, protocol, _, _ = TASKS["countdown-4"]
    lm, task = oddlm.load("mini", device=args.device), find_task(name).under(protocol)
    problems = task.problems(split="tune", limit=args.problems)
    rows = []
    for turn in range(-1, args.turns):  # the first is for warming up
        for method, params in chosen.items():
            spec = named("countdown-4", method, "", turn, params, N).spec
            began = time.perf_counter()
            draw(lm, spec, task, problems)
            if turn >= 0:
                rows.append({"method": method, "seconds": round(time.perf_counter() - began, 4), "problems": args.problems})
    about = environment(lm)
    write_rows(
        RESULTS / "timing.json", [{**row, "device": about["device"], "torch": about["versions"]["torch"]} for row in rows]
    )


def collect(args: argparse.Namespace) -> None:
    """A bit for every sample, right or not, and how many of a problem's texts are different."""
    store = Store(args.store)
    meta, right, distinct = [], [], []
    for run in report_runs():
        if not store.complete(run.spec):
            print(f"missing: {run.task} {run.method} {run.variant} seed {run.seed}")
            continue
        rows = store.read(run.spec.id).rows
        seconds = sum(row.seconds for row in rows)
        verdicts = np.array([row.correct for row in rows])
        for name, chosen in selections(run, rows, verdicts).items():
            about = {"task": run.task, "method": name, "variant": run.variant, "seed": run.seed, "seconds": round(seconds, 3)}
            meta.append({**about, "nfe": rows[0].nfe, "n": chosen.shape[1], "params": stated(run.spec.params)})
            right.append(np.packbits(np.take_along_axis(verdicts, chosen, axis=1), axis=1))
            distinct.append(
                np.array([len({row.samples[i].text for i in own[:N]}) for row, own in zip(rows, chosen, strict=True)])
            )
    arrays = {f"right{i}": x for i, x in enumerate(right)} | {
        f"distinct{i}": x.astype(np.uint8) for i, x in enumerate(distinct)
    }
    np.savez_compressed(RESULTS / "report.npz", meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)
    print(f"{len(meta)} runs in {RESULTS / 'report.npz'}")


def selections(run: Named, rows: tuple[Row, ...] | list[Row], verdicts: np.ndarray) -> dict[str, np.ndarray]:
    """The samples of a run, [problems, n], and of plain sampling's pools those that k-centre keeps."""
    problems, n = verdicts.shape
    everything = np.tile(np.arange(n), (problems, 1))
    if run.method != "plain" or n < max(POOLS):
        return {run.method: everything}
    kept = {}
    if run.variant == "":
        kept["plain"] = everything
    for pool in POOLS:
        if run.variant == "" or pool == max(POOLS):
            kept[f"k_centre_{pool}"] = np.array([centres(row, pool) for row in rows])
            kept[f"pool_{pool}"] = everything[:, :pool]
    return kept


def centres(row: Row, pool: int) -> list[int]:
    seen = [Sample(0, i, s.text, (), (), (), (), row.seed, "stop", row.nfe) for i, s in enumerate(row.samples[:pool])]
    return list(SELECTORS.find("k_centre")(seen, N))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    for name, stage in (
        ("plan", plan),
        ("tune", search),
        ("refine", refine),
        ("look", look),
        ("choose", choose),
        ("report", report),
        ("collect", collect),
        ("clock", clock),
    ):
        own = stages.add_parser(name)
        own.set_defaults(stage=stage)
        if name in ("plan", "refine", "report"):
            own.add_argument("--out", type=Path, required=True, help=".jsonl of RunSpecs")
        if name in ("tune", "look", "collect"):
            own.add_argument("--store", type=Path, required=True)
        if name in ("refine", "look"):
            own.add_argument("--look", choices=LOOKS, default="refine")
        if name == "clock":
            own.add_argument("--problems", type=int, default=500)
            own.add_argument("--turns", type=int, default=5)
            own.add_argument("--device", default="cpu")
        if name == "tune":
            own.add_argument(
                "--draw", action="store_true", help="draw what the store lacks; else all methods have as many trials"
            )
            own.add_argument("--device", default="cpu")
    args = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    args.stage(args)


if __name__ == "__main__":
    main()

"""Tune the settings of a sampler by Optuna's TPE or by random search.

The problems are never those that results are reported on. A study is kept in a database. Its trials
are ordinary runs in the store; a trial that was killed resumes.
"""

import hashlib
import json
import math
import os
import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ... import metrics
from ...config import check_fields, checked
from ...drawing import check_params
from ...params import NAMED, SampleParams
from ...presets import expanded
from ...spec import RunSpec
from ...store import RunHeldError, Store
from ...store.records import FAILURES
from ...tasks import Problem, Task
from ..plan import Asked, check_spec
from ..plan import Plan as Runs
from ..run import Progress, Result, run_plan
from ..trackers import Tracker
from ..work import Executor
from .space import Axis, draw
from .study import (
    PROCESS,
    fail_dead_trials,
    open_storage,
    optuna_library,
    place_of,
    process_identity,
    retry,
)

if TYPE_CHECKING:
    import optuna

REPORTED = "test"
PLAN, RESULT, REASON = "plan", "result", "reason"  # attributes of a study and its trials
Search = Literal["tpe", "random"]
Watch = Callable[[Progress], None]
Ended = Callable[["optuna.Study", "optuna.trial.FrozenTrial"], None]


@dataclass(frozen=True)
class Plan:
    """The definition of a study."""

    base: RunSpec  # of every run, except for params and seed
    limit: int | None  # number of problems; None: all
    fixed: Mapping[str, Any]  # settings that are not searched
    space: tuple[Axis, ...]
    seeds: tuple[int, ...]  # every trial runs once with each
    k: int  # Pass@k is maximised
    floors: Mapping[int, float]  # the lowest acceptable Pass@k, by k
    seed: int = 0  # of the search
    search: Search = "tpe"  # the settings of a "random" trial depend on seed and place only
    # settings to try before the search; those they do not name are drawn
    first: tuple[Mapping[str, Any], ...] = ()

    def content(self) -> dict[str, Any]:
        """Return everything that processes which share a study must agree on."""
        base = {**self.base.canonical(), "limit": self.limit}
        return {
            **{
                name: value
                for name, value in base.items()
                if name not in ("params", "seed") and value is not None
            },
            "metric": f"pass@{self.k}",
            "floors": {f"pass@{k}": floor for k, floor in sorted(self.floors.items())},
            "seeds": list(self.seeds),
            "space": sorted(map(str, self.space)),
            "fixed": dict(sorted(self.fixed.items())),
            "seed": self.seed,
            "search": self.search,
            "first": [dict(sorted(settings.items())) for settings in self.first],
        }

    @property
    def name(self) -> str:
        """The default name of the study. Equal plans have equal names."""
        digest = hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{Path(self.base.task or 'none').stem}-{self.base.model}-{digest}"

    @property
    def longest(self) -> int:
        """The length of the longest samples of any trial, in tokens."""
        lengths = [axis.examples() for axis in self.space if axis.name == "length"]
        default = self.fixed.get("length", SampleParams.model_fields["length"].default)
        return int(max((value for values in lengths for value in values), default=default))

    def about(self, base: RunSpec) -> "Plan":
        """Return the same plan with another base, such as one from `identity.identified`."""
        return replace(self, base=base)

    def specs(self, params: SampleParams) -> list[RunSpec]:
        """Return the runs of a trial, one per seed."""
        return [
            self.base.model_copy(update={"params": params.canonical(), "seed": seed})
            for seed in self.seeds
        ]

    def check(self) -> None:
        """Raise ValueError for names and values that sampling would refuse on their own."""
        check_fields(SampleParams, self.fixed)
        values = [(axis.name, value) for axis in self.space for value in axis.examples()]
        for name, value in [*values, *self.fixed.items()]:
            if name in NAMED:
                check_params(checked(SampleParams, {name: value}))
        for k in (self.k, *self.floors):
            if k > self.base.n:
                raise ValueError(
                    f"pass@{k} needs at least {k} samples per problem, not {self.base.n}: "
                    "use a larger --n"
                )
        for settings in self.first:
            check_fields(SampleParams, settings)
            self.suggested(settings)
            if {axis.name for axis in self.space} <= settings.keys():
                check_spec(self.specs(checked(SampleParams, {**self.fixed, **settings}))[0])

    def suggested(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's parameters of a trial with these settings.

        Raises ValueError if no trial of this plan can have them.
        """
        axes = {axis.name: axis for axis in self.space}
        fixed = expanded(self.fixed)
        found: dict[str, Any] = {}
        for name, value in settings.items():
            always = fixed.get(name, SampleParams.model_fields[name].default)
            if name in axes:
                found |= axes[name].suggested(value)
            elif value != always:
                raise ValueError(
                    f"{name} is {always!r} in every trial, but {value!r} in settings to try "
                    "first: add it to the space"
                )
        return found


@dataclass(frozen=True)
class Outcome:
    """A finished trial."""

    params: SampleParams
    runs: tuple[str, ...]
    passed: Mapping[str, float]
    solved: tuple[float, ...]  # the metric per problem, averaged over the seeds
    short: float  # by how much it misses the floors, in total

    @property
    def value(self) -> float:
        return sum(self.solved) / len(self.solved)


def parse_metric(text: str) -> int:
    """Return 16 for `pass@16`."""
    match = re.fullmatch(r"pass@([1-9]\d{0,5})", text)
    if match is None:
        raise ValueError(f"a metric must be pass@k, such as pass@1 or pass@16, not {text!r}")
    return int(match[1])


def parse_floor(text: str) -> tuple[int, float]:
    """Return k and the floor, a share from 0 to 1, of a text such as `pass@1=0.3`."""
    metric, _, share = text.partition("=")
    try:
        floor = float(share)
    except ValueError:
        floor = -1.0
    if not 0 <= floor <= 1:
        raise ValueError(
            f"a floor must be a metric and a share from 0 to 1, such as pass@1=0.3, not {text!r}"
        )
    return parse_metric(metric), floor


def tuning_problems(task: Task, split: str, *, limit: int | None, **options: Any) -> list[Problem]:
    """Return the problems of a split.

    Raises ValueError if the task has no such split, or if it shares problems with the split that
    results are reported on.
    """
    if split == REPORTED:
        raise ValueError(
            f"results are reported on the {REPORTED} split: tune on another, such as --split tune"
        )
    if "split" not in task.options:
        raise ValueError(
            f"task {task.name!r} has no tuning split: its load() needs a keyword `split` that "
            f"takes {split!r} and {REPORTED!r}; or tune on other problems in a .jsonl file "
            "(with --scorer)"
        )
    problems = task.problems(split=split, limit=limit, **options)
    reported = task.problems(split=REPORTED, **options)
    prompts = {task.prompt(problem) for problem in problems}
    if shared := prompts & {task.prompt(problem) for problem in reported}:
        raise ValueError(
            f"{len(shared)} problems of split {split!r} of task {task.name!r} are also in "
            f"split {REPORTED!r}"
        )
    return problems


def open_study(url: str, name: str, plan: Plan) -> "optuna.Study":
    """Open the study of that name, new or existing.

    Raises ValueError if the storage does not answer, or if the study has another plan.
    """
    library = optuna_library()
    sampler = library.samplers.TPESampler(multivariate=False)
    study: optuna.Study = library.create_study(
        study_name=name,
        storage=open_storage(url),
        sampler=sampler,
        direction="maximize",
        load_if_exists=True,
    )
    # Read before the plan: our studies get their plan before their first trial.
    begun = bool(study.get_trials(deepcopy=False))
    wanted, found = plan.content(), study.user_attrs.get(PLAN)
    if found is None and begun:
        raise ValueError(f"study {name!r} was not made by oddlm tune: use another --study")
    if found is None:
        study.set_user_attr(PLAN, wanted)
    elif different := [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]:
        key = different[0]
        raise ValueError(
            f"study {name!r} has {key} {found.get(key)!r}, not {wanted.get(key)!r}: "
            "use another --study, or none for a name derived from the plan"
        )
    fail_dead_trials(study)
    return study


def planned(plan: Plan, trials: int) -> list[tuple[RunSpec, ...]]:
    """Return the runs of the first `trials` trials of a random search.

    A trial whose settings are incompatible has no runs. The runs may be made anywhere and in any
    order: a search over a store that already holds them draws nothing.
    """
    if plan.search != "random":
        raise ValueError(
            "the trials of a tpe search depend on earlier results: only those of a random search "
            "are known beforehand"
        )
    found: list[tuple[RunSpec, ...]] = []
    for place in range(trials):
        try:
            found.append(tuple(_propose(plan, _rehearsal(plan, place))))
        except ValueError:
            found.append(())
    return found


def foreseen(plan: Plan, trials: int, store: Store) -> bool:
    """Return whether the store is known to hold everything that the search will request."""
    return plan.search == "random" and all(
        store.complete(spec) for specs in planned(plan, trials) for spec in specs
    )


def tune(
    plan: Plan,
    study: "optuna.Study",
    trials: int,
    store: Store,
    executor: Executor,
    problems: Sequence[Problem],
    tracker: Tracker | None = None,
    watch: Watch = lambda _: None,
    ended: Ended = lambda *_: None,
    *,
    together: int = 1,
) -> None:
    """Run until the study has `trials` trials, counting those running in other processes.

    With w concurrent processes, the total may overshoot by up to w - 1. After Ctrl-C, the next
    start resumes the trial.

    watch: called with the progress of a trial, problem by problem. ended: called after every trial.
    """
    run = partial(
        run_plan, store=store, executor=executor, together=together, tracker=tracker, watch=watch
    )
    attempt = partial(_attempt, plan, store, tuple(problems), run)
    while counted(study) < trials:
        study.optimize(attempt, n_trials=1, callbacks=[ended], catch=(RunHeldError,))


def counted(study: "optuna.Study") -> int:
    """Count the trials that are finished, or running in a known process."""
    states = optuna_library().trial.TrialState
    trials = study.get_trials(deepcopy=False)
    return sum(
        t.state in (states.COMPLETE, states.PRUNED)
        or (t.state == states.RUNNING and PROCESS in t.user_attrs)
        for t in trials
    )


def outcomes(study: "optuna.Study") -> list[Outcome]:
    """Return the outcomes of the complete trials, best first, each setting once.

    Pass@1 breaks ties. Outcomes that miss a floor come last.
    """
    found: dict[tuple[str, ...], Outcome] = {}
    complete = optuna_library().trial.TrialState.COMPLETE
    for trial in study.get_trials(deepcopy=False, states=(complete,)):
        result = trial.user_attrs[RESULT]
        short = sum(max(0.0, missing) for missing in trial.constraints.values())
        outcome = Outcome(
            checked(SampleParams, result["params"]),
            tuple(result["runs"]),
            result["passed"],
            tuple(result["solved"]),
            short,
        )
        found.setdefault(outcome.runs, outcome)
    return sorted(
        found.values(),
        key=lambda outcome: (outcome.short, -outcome.value, -outcome.passed["pass@1"]),
    )


def interval(outcome: Outcome, other: Outcome | None = None) -> metrics.Interval:
    """Return a 95 % interval over the problems: of the metric, or of its difference to another."""
    reference = other.solved if other else [0.0] * len(outcome.solved)
    return metrics.paired_interval(outcome.solved, reference)


def commands(plan: Plan, params: SampleParams, split: str | None) -> tuple[str, str]:
    """Return how to evaluate a setting on the command line, and how to use it from Python."""
    base, own = plan.base, ("alpha", "temperature", "objective", "length", "steps")
    changed = {
        name: value
        for name, value in params.canonical().model_dump(mode="json", exclude={"seed"}).items()
        if value != SampleParams.model_fields[name].default or name in own
    }
    words = ["oddlm", "eval", base.task or "", "--model", base.model, "--n", str(base.n)]
    given = {"protocol": base.protocol, "data": base.data, "scorer": base.scorer, "split": split}
    for name, value in {**given, **{name: changed[name] for name in own}}.items():
        words += (
            []
            if value is None
            else [_flag(name), value if isinstance(value, str) else json.dumps(value)]
        )
    words += ["--exclude-train"] if base.exclude_train else []
    for name, value in base.loading.options().items():
        words += [f"--{name}"] if value is True else [f"--{name}", value]
    for name in [name for name in changed if name not in own]:
        value = changed[name]
        words += [_flag(name), value if isinstance(value, str) else json.dumps(value)]
    settings = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    model = ", ".join(
        [repr(base.model), *(f"{name}={value!r}" for name, value in base.loading.options().items())]
    )
    return shlex.join(words), f"oddlm.load({model}).generate(prompts, n={base.n}, {settings})"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def as_data(plan: Plan, study: "optuna.Study", found: Sequence[Outcome]) -> dict[str, Any]:
    """Return the results of a study as JSON data, with None in place of nan."""

    def ends(bounds: metrics.Interval) -> dict[str, float | None]:
        return {name: None if math.isnan(x) else x for name, x in bounds._asdict().items()}

    return {
        "study": study.study_name,
        **plan.content(),
        "trials": tally(study),
        "settings": [
            {
                "params": outcome.params.model_dump(mode="json", exclude={"seed"}),
                "runs": list(outcome.runs),
                **outcome.passed,
                "interval": [ends(interval(outcome))[end] for end in ("low", "high")],
                "difference": ends(interval(outcome, found[0])),  # to the first
                "keeps_floors": not outcome.short,
            }
            for outcome in found
        ],
    }


def tally(study: "optuna.Study") -> dict[str, int]:
    """Count the trials by state."""
    states = [trial.state.name.lower() for trial in study.get_trials(deepcopy=False)]
    return {
        state: states.count(state) for state in ("complete", "pruned", "fail", "running", "waiting")
    }


def _attempt(
    plan: Plan,
    store: Store,
    problems: tuple[Problem, ...],
    run: Callable[[Runs], Result],
    trial: "optuna.Trial",
) -> float:
    """Run one trial and return its metric."""
    optuna = optuna_library()
    trial.set_user_attr(PROCESS, process_identity(os.getpid()))
    trial.study.sampler = _sampler(plan, place_of(trial.study, trial))
    try:
        specs = _propose(plan, trial)
    except ValueError as error:  # incompatible settings
        trial.set_user_attr(REASON, str(error))
        raise optuna.TrialPruned(str(error)) from error
    runs = Runs(tuple(Asked(spec, problems) for spec in specs))
    try:
        result = run(runs)
    except KeyboardInterrupt:
        retry(trial.study, trial)
        raise
    # Another process runs the same settings: this trial fails, and the next may find them done.
    except RunHeldError:
        time.sleep(1)
        raise
    for spec, failure in result.failures:
        raise ValueError(
            f"run {spec.id}, problem {failure.problem}: {failure.error}; "
            f"see {store.folder / spec.id / FAILURES}"
        )
    for message in result.damaged:
        raise ValueError(message)
    correct = [_verdicts(store, run) for run in runs.runs]
    by_seed = [metrics.pass_at_k(verdicts, plan.k) for verdicts in correct]
    solved = np.mean(by_seed, axis=0)  # [problems]
    passed = {k: _mean_pass(correct, k) for k in sorted({1, plan.k, plan.base.n, *plan.floors})}
    trial.set_user_attr(
        RESULT,
        {
            "params": specs[0].params.model_dump(mode="json"),
            "runs": [spec.id for spec in specs],
            "passed": {f"pass@{k}": share for k, share in passed.items()},
            "solved": solved.tolist(),
        },
    )
    for k, floor in plan.floors.items():
        trial.set_constraint(f"pass@{k}", floor - passed[k])
    return passed[plan.k]


def _verdicts(store: Store, run: Asked) -> list[list[bool]]:
    """Return the verdicts of a run, [problems, n]."""
    known = {
        record.problem: [bool(right) for right in record.correct]
        for record in store.scores(run.spec.id)
    }
    return [known[problem.id] for problem in run.problems]


def _mean_pass(correct: Sequence[Sequence[Sequence[bool]]], k: int) -> float:
    return float(sum(metrics.pass_at_k(verdicts, k).mean() for verdicts in correct) / len(correct))


def _propose(plan: Plan, trial: "optuna.Trial") -> list[RunSpec]:
    """Return the runs of a trial; raise ValueError if its settings are incompatible."""
    specs = plan.specs(checked(SampleParams, draw(plan.space, plan.fixed, trial)))
    check_spec(specs[0])
    return specs


def _sampler(plan: Plan, place: int) -> Any:
    """Return the sampler of one trial.

    Its settings depend on the seed, the place and, for tpe, the trials before it, but not on which
    processes were killed when.
    """
    if plan.search == "random":
        # Fix all settings at once: a trial killed while drawing them already has some of them.
        trial = _rehearsal(plan, place)
        draw(plan.space, plan.fixed, trial)
        return _fixing(trial.params, optuna_library().samplers.RandomSampler(seed=0))
    tpe = optuna_library().samplers.TPESampler(
        seed=_search_seed(plan.seed, place), multivariate=False
    )
    return _fixing(_first(plan, place), tpe)


def _rehearsal(plan: Plan, place: int) -> "optuna.Trial":
    """Return a trial of a random search in memory, without a database."""
    library = optuna_library()
    sampler = library.samplers.RandomSampler(seed=_search_seed(plan.seed, place))
    trial: optuna.Trial = library.create_study(sampler=_fixing(_first(plan, place), sampler)).ask()
    return trial


def _first(plan: Plan, place: int) -> dict[str, Any]:
    return plan.suggested(plan.first[place]) if place < len(plan.first) else {}


def _fixing(known: dict[str, Any], rest: Any) -> Any:
    """Return a sampler that suggests the known values and leaves the others to `rest`."""
    library = optuna_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
        return library.samplers.PartialFixedSampler(known, rest) if known else rest


def _search_seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{place}".encode()).digest()[:4], "big")

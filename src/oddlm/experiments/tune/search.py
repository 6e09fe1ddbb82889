"""Tuning: Optuna's TPE, or chance, over the settings of a sampler, on problems that are never
reported on.

A study lives in a database. Its trials are runs in the store like any other; a killed trial is
taken up where it was.
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
from ...lm import check_params
from ...params import NAMED, SampleParams
from ...presets import expanded
from ...spec import RunSpec
from ...store import RunHeldError, Store
from ...tasks import Problem, Task
from ..run import Asked, Progress, Result, check_spec, run_plan
from ..run import Plan as Runs
from ..trackers import Tracker
from ..work import Executor
from .space import Axis, draw
from .study import PROCESS, bury, living_process, open_storage, optuna_library, place_of, retry

if TYPE_CHECKING:
    import optuna

REPORTED = "test"
PLAN, RESULT, REASON = "plan", "result", "reason"  # attributes of a study and its trials
Search = Literal["tpe", "random"]
Watch = Callable[[Progress], None]
Ended = Callable[["optuna.Study", "optuna.trial.FrozenTrial"], None]


@dataclass(frozen=True)
class Plan:
    """What a study is about."""

    base: RunSpec  # of every run, but for params and seed
    limit: int | None  # the first so many problems
    fixed: Mapping[str, Any]  # settings that are not searched
    space: tuple[Axis, ...]
    seeds: tuple[int, ...]  # every trial runs once with each
    k: int  # Pass@k is to be large
    floors: Mapping[int, float]  # by k, the least Pass@k may be
    seed: int = 0  # of the search
    search: Search = "tpe"  # "random": what a trial tries depends on the seed and its place alone
    first: tuple[
        Mapping[str, Any], ...
    ] = ()  # settings to try before the search; what they leave open is drawn

    def content(self) -> dict[str, Any]:
        """What processes that share a study must agree on."""
        base = {
            name: value
            for name, value in self.base.canonical().items()
            if name not in ("params", "seed")
        }
        return {
            **{
                name: value
                for name, value in {**base, "limit": self.limit}.items()
                if value is not None
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
        """For a study without one: the same plan, the same study."""
        digest = hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{Path(self.base.task or 'none').stem}-{self.base.model}-{digest}"

    @property
    def longest(self) -> int:
        """Of the samples of all trials, in tokens."""
        searched = [
            value for axis in self.space if axis.name == "length" for value in axis.examples()
        ]
        return int(
            max(
                searched,
                default=self.fixed.get("length", SampleParams.model_fields["length"].default),
            )
        )

    def about(self, base: RunSpec) -> "Plan":
        """The same plan for a model and a task as they are here and now
        (`experiments.run.identified`).
        """
        return replace(self, base=base)

    def specs(self, params: SampleParams) -> list[RunSpec]:
        return [
            self.base.model_copy(update={"params": params.canonical(), "seed": seed})
            for seed in self.seeds
        ]

    def check(self) -> None:
        """ValueError for names and values that sampling would refuse, each by itself."""
        check_fields(SampleParams, self.fixed)
        values = [(axis.name, value) for axis in self.space for value in axis.examples()]
        for name, value in [*values, *self.fixed.items()]:
            if name in NAMED:
                check_params(checked(SampleParams, {name: value}))
        for k in (self.k, *self.floors):
            if k > self.base.n:
                raise ValueError(
                    f"pass@{k} needs at least {k} samples per problem, not {self.base.n}: give a larger --n"
                )
        for settings in self.first:
            check_fields(SampleParams, settings)
            self.suggested(settings)
            if {axis.name for axis in self.space} <= settings.keys():
                check_spec(self.specs(checked(SampleParams, {**self.fixed, **settings}))[0])

    def suggested(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What a trial suggests that draws these settings; ValueError where none of this plan can."""
        axes = {axis.name: axis for axis in self.space}
        fixed = expanded(self.fixed)
        for name in [name for name in settings if name not in axes]:
            always = fixed.get(name, SampleParams.model_fields[name].default)
            if settings[name] != always:
                raise ValueError(
                    f"{name} is {always!r} in every trial, and {settings[name]!r} in one to try first: search it too"
                )
        return {
            k: v
            for name, value in settings.items()
            if name in axes
            for k, v in axes[name].suggested(value).items()
        }


@dataclass(frozen=True)
class Outcome:
    """A finished trial."""

    params: SampleParams
    runs: tuple[str, ...]
    passed: Mapping[str, float]
    solved: tuple[float, ...]  # the metric by problem, mean over the seeds
    short: float  # by how much it misses the floors, all together

    @property
    def value(self) -> float:
        return sum(self.solved) / len(self.solved)


def parse_metric(text: str) -> int:
    """`pass@16` is 16."""
    match = re.fullmatch(r"pass@([1-9]\d{0,5})", text)
    if match is None:
        raise ValueError(f"a metric is pass@k, such as pass@1 or pass@16, not {text!r}")
    return int(match[1])


def parse_floor(text: str) -> tuple[int, float]:
    """`pass@1=0.3`: a share, not per cent."""
    metric, _, share = text.partition("=")
    try:
        floor = float(share)
    except ValueError:
        floor = -1.0
    if not 0 <= floor <= 1:
        raise ValueError(
            f"a floor is a metric and a share from 0 to 1, such as pass@1=0.3, not {text!r}"
        )
    return parse_metric(metric), floor


def tuning_problems(task: Task, split: str, *, limit: int | None, **options: Any) -> list[Problem]:
    """The problems of a split that shares none with the reported one; ValueError where there is no
    such thing.
    """
    if split == REPORTED:
        raise ValueError(
            f"the {REPORTED} split is what results are reported on: tune on another, such as --split tune"
        )
    if "split" not in task.options:
        raise ValueError(
            f"task {task.name!r} has no tuning split: its load() needs a keyword `split` that takes {split!r}, {REPORTED!r}; "
            "or tune on a .jsonl of other problems (--scorer says how they are scored)"
        )
    problems = task.problems(split=split, limit=limit, **options)
    reported = task.problems(split=REPORTED, **options)
    shared = {task.prompt(problem) for problem in problems} & {
        task.prompt(problem) for problem in reported
    }
    if shared:
        raise ValueError(
            f"{len(shared)} problems of split {split!r} of task {task.name!r} are in split {REPORTED!r} too"
        )
    return problems


def open_study(url: str, name: str, plan: Plan) -> "optuna.Study":
    """The study of that name, new or as it was left.

    ValueError where the storage does not answer or the plan is another.
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
    begun = bool(
        study.get_trials(deepcopy=False)
    )  # asked first: a study of ours has its plan before its first trial
    wanted, found = plan.content(), study.user_attrs.get(PLAN)
    if found is None and begun:
        raise ValueError(f"study {name!r} was not made by oddlm tune: give another --study")
    if found is None:
        study.set_user_attr(PLAN, wanted)
    elif different := [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]:
        raise ValueError(
            f"study {name!r} has {different[0]} {found.get(different[0])!r}, not {wanted.get(different[0])!r}: "
            "give another --study, or none for one of its own"
        )
    bury(study)
    return study


def planned(plan: Plan, trials: int) -> list[tuple[RunSpec, ...]]:
    """The runs of the first so many trials, which a random search knows before it begins; none
    where settings do not go together. They may be made anywhere, in any order: a search over a
    store that holds them draws nothing.
    """
    if plan.search != "random":
        raise ValueError(
            "what tpe tries depends on what came out before: only a random search is known beforehand"
        )
    found: list[tuple[RunSpec, ...]] = []
    for place in range(trials):
        try:
            found.append(tuple(_propose(plan, _rehearsal(plan, place))))
        except ValueError:
            found.append(())
    return found


def foreseen(plan: Plan, trials: int, store: Store) -> bool:
    """Does the store hold everything that the search will ask for, as far as that can be known?"""
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
    """Go on until the study has so many trials, those that other processes are running among them
    (w of them that look at the same moment may end with w - 1 more).

    watch: told of every problem of a trial; ended: after every trial. Ctrl-C leaves the trial to
    the next start.
    """
    run = partial(
        run_plan, store=store, executor=executor, together=together, tracker=tracker, watch=watch
    )
    attempt = partial(_attempt, plan, store, tuple(problems), run)
    while counted(study) < trials:
        study.optimize(attempt, n_trials=1, callbacks=[ended], catch=(RunHeldError,))


def counted(study: "optuna.Study") -> int:
    """Trials that are finished, or running in a process that said so."""
    states = optuna_library().trial.TrialState
    trials = study.get_trials(deepcopy=False)
    return sum(
        t.state in (states.COMPLETE, states.PRUNED)
        or (t.state == states.RUNNING and PROCESS in t.user_attrs)
        for t in trials
    )


def outcomes(study: "optuna.Study") -> list[Outcome]:
    """Of the trials that have ended, best first (Pass@1 decides among equals), the same setting
    once; those that miss a floor come last.
    """
    found: dict[tuple[str, ...], Outcome] = {}
    for trial in study.get_trials(
        deepcopy=False, states=(optuna_library().trial.TrialState.COMPLETE,)
    ):
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
    """95 % over the problems: of the metric, or of how much it differs from another's."""
    return metrics.paired_interval(
        outcome.solved, other.solved if other else [0.0] * len(outcome.solved)
    )


def commands(plan: Plan, params: SampleParams, split: str | None) -> tuple[str, str]:
    """How to report on a setting: on the command line, and from Python."""
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
    """For JSON, which has no nan."""

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
    """How many trials there are of each kind."""
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
    optuna = optuna_library()
    trial.set_user_attr(PROCESS, living_process(os.getpid()))
    trial.study.sampler = _sampler(plan, place_of(trial.study, trial))
    try:
        specs = _propose(plan, trial)
    except ValueError as error:  # settings that do not go together
        trial.set_user_attr(REASON, str(error))
        raise optuna.TrialPruned(str(error)) from error
    runs = Runs(tuple(Asked(spec, problems) for spec in specs))
    try:
        result = run(runs)
    except KeyboardInterrupt:
        retry(trial.study, trial)
        raise
    except (
        RunHeldError
    ):  # the same settings in another process: this trial fails, and the next may find them done
        time.sleep(1)
        raise
    for spec, failure in result.failures:
        raise ValueError(
            f"run {spec.id}, problem {failure.problem}: {failure.error}; {store.folder / spec.id} says more"
        )
    for message in result.damaged:
        raise ValueError(message)
    correct = [_verdicts(store, one) for one in runs.runs]
    solved = np.mean(
        [metrics.pass_at_k(verdicts, plan.k) for verdicts in correct], axis=0
    )  # [problems]
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
    """[problems, n]"""
    known = {
        record.problem: [bool(right) for right in record.correct]
        for record in store.scores(run.spec.id)
    }
    return [known[problem.id] for problem in run.problems]


def _mean_pass(correct: Sequence[Sequence[Sequence[bool]]], k: int) -> float:
    return float(sum(metrics.pass_at_k(verdicts, k).mean() for verdicts in correct) / len(correct))


def _propose(plan: Plan, trial: "optuna.Trial") -> list[RunSpec]:
    """The runs of what a trial draws; ValueError for settings that do not go together."""
    specs = plan.specs(checked(SampleParams, draw(plan.space, plan.fixed, trial)))
    check_spec(specs[0])
    return specs


def _sampler(plan: Plan, place: int) -> Any:
    """Of one trial: what it draws depends on seed, place and, for tpe, the trials before it, not on
    who was killed when.
    """
    if (
        plan.search == "random"
    ):  # all of it: a trial that was killed while it drew has some already, and goes on with the rest
        trial = _rehearsal(plan, place)
        draw(plan.space, plan.fixed, trial)
        return _fixing(trial.params, optuna_library().samplers.RandomSampler(seed=0))
    tpe = optuna_library().samplers.TPESampler(
        seed=_search_seed(plan.seed, place), multivariate=False
    )
    return _fixing(_first(plan, place), tpe)


def _rehearsal(plan: Plan, place: int) -> "optuna.Trial":
    """A trial of a random search, in no database."""
    library = optuna_library()
    chance = library.samplers.RandomSampler(seed=_search_seed(plan.seed, place))
    trial: optuna.Trial = library.create_study(sampler=_fixing(_first(plan, place), chance)).ask()
    return trial


def _first(plan: Plan, place: int) -> dict[str, Any]:
    return plan.suggested(plan.first[place]) if place < len(plan.first) else {}


def _fixing(known: dict[str, Any], rest: Any) -> Any:
    """A sampler that suggests what is known, and leaves the rest to another."""
    library = optuna_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
        return library.samplers.PartialFixedSampler(known, rest) if known else rest


def _search_seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{place}".encode()).digest()[:4], "big")

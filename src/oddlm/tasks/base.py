"""A task is data plus functions; how tasks are found and identified."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..registry import find_dotted, is_dotted
from ..sandbox import require_sandbox
from ..versions import SCORING
from .jsonl import digest

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the repr of a function; differs between processes
_DEFINED = re.compile(r"^TASK\b[^=\n]*=", re.MULTILINE)


@cache
def task_names() -> tuple[str, ...]:
    """Return the names of the modules of this package that define TASK.

    Their source is searched, not imported, because some of them import a lot.
    """
    found = []
    for entry in files(__package__).iterdir():
        source = entry / "__init__.py" if entry.is_dir() else entry
        if (
            source.name.endswith(".py")
            and source.is_file()
            and _DEFINED.search(source.read_text(encoding="utf-8"))
        ):
            found.append(entry.name.removesuffix(".py"))
    return tuple(sorted(found))


def describe(name: str) -> str:
    """Return the one-line description of a known task, from the docstring of its module."""
    docstring = import_module(f".{name}", __package__).__doc__ or ""
    return docstring.partition("\n")[0].partition(": ")[2]


@dataclass(frozen=True, slots=True)
class Problem:
    id: str
    prompt: str  # the problem itself; Task.prompt turns it into the text for the model
    target: Any


@dataclass(frozen=True, slots=True)
class Score:
    correct: bool
    answer: str | None  # what was extracted from the text
    detail: str  # why the answer counts or not, for a person


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks of one kind, each named TASK:MEMBER."""

    names: Callable[[], Sequence[str]]
    find: Callable[[str], "Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark: problems, prompts and a scorer.

    load(**options) returns the problems, prompt(problem) the text for the model, and
    score(problem, text) the verdict. `protocols` are named variants of the task: each maps the
    fields that differ to their values.
    """

    name: str
    load: Callable[..., list[Problem]]
    prompt: Callable[[Problem], str]
    score: Callable[[Problem, str], Score]
    length: int  # tokens of an answer
    steps: int | None = None  # network evaluations, if the protocol fixes them
    # Other settings of the sampler that the protocol fixes, unless others are given.
    params: Mapping[str, Any] = field(default_factory=dict)
    # A form to fill in: fixed texts, and for each hole its number of tokens.
    template: Callable[[Problem], Sequence[str | int]] | None = None
    # The answer in a text, in a form in which equal answers are equal; None if there is none. Such
    # answers can be counted (a majority vote), so it must not depend on the problem's target.
    read: Callable[[str], str | None] | None = None
    # The problem in words, for tasks whose prompt is hard for a person to read.
    ask: Callable[[Problem], str] | None = None
    code: bool = False  # answers are programs; they are compared regardless of names and layout
    version: int = 1  # of problems and prompts; raising it makes new runs
    scorer_version: int = 1  # of verdicts; raising it scores stored samples again
    # The data come from a package or the hub, so a digest of them is part of a run's spec.
    outside: bool = False
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    family: Family | None = None  # a task with members has no problems of its own

    def under(self, protocol: str | None) -> "Task":
        """Return this task under one of its protocols; None is the task itself."""
        if protocol is None:
            return self
        if protocol not in self.protocols:
            known = ", ".join(sorted(self.protocols)) or "none"
            raise ValueError(f"task {self.name!r} has no protocol {protocol!r}; known: {known}")
        return replace(self, **self.protocols[protocol])

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings of the sampler, unless others are given."""
        steps = {} if self.steps is None else {"steps": self.steps}
        return {"length": self.length, **steps, **self.params}

    def question(self, problem: Problem) -> str:
        """Return the problem in words for a person."""
        return self.prompt(problem).strip() if self.ask is None else self.ask(problem)

    @property
    def options(self) -> list[str]:
        """The names of load()'s keyword-only parameters."""
        parameters = inspect.signature(self.load).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    def problems(self, **options: Any) -> list[Problem]:
        """Call load() with the options that are not None.

        Raise ValueError for an option that this task does not have, unless its value is False.
        """
        known = self.options
        given = {name: value for name, value in options.items() if value is not None}
        for name in [name for name in given if name not in known]:
            if given.pop(name) is not False:
                options_text = ", ".join(known) or "none"
                raise ValueError(
                    f"task {self.name!r} has no option {name!r}; options: {options_text}"
                )
        return self.load(**given)


def check_scoring(task: Task | None, *, unsafe: bool) -> None:
    """Raise SandboxError if answers are programs and there is no sandbox to run them in."""
    if task is not None and task.code:
        require_sandbox(unsafe=unsafe)


def problem_digest(task: Task | None, problem: Problem) -> str:
    """Return a digest of the model's prompt and the target."""
    target = _ADDRESS.sub("", repr(problem.target))
    shown = problem.prompt if task is None else task.prompt(problem)
    return sha256(f"{shown}\0{target}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def task_identity(name: str, task: Task, data: Path | None, split: str | None) -> dict[str, Any]:
    """Return the fields of a run's spec that identify its task: source of the data and versions.

    A task given by its dotted path needs no version numbers: a digest of its file is part of the
    scorer version.
    """
    source = data or (Path(name) if name.endswith(".jsonl") else None)
    found = None if source is None else digest(source)
    if source is None and task.outside:
        lines = [
            f"{problem.id} {problem_digest(task, problem)}"
            for problem in task.problems(split=split)
        ]
        found = sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
    code = None
    packaged = name.partition(":")[0] in task_names()
    if is_dotted(name) and not name.endswith(".jsonl") and not packaged:
        module = sys.modules.get(name.replace(":", ".").rpartition(".")[0])
        code = getattr(module, "__file__", None)
    mark = "" if code is None else f"+{digest(Path(code))[:12]}"
    return {
        "data": None if data is None else str(data),
        "data_digest": found,
        "task_version": task.version,
        "scorer_version": f"{SCORING}.{task.scorer_version}{mark}",
    }


def find_task(name: str, *, scorer: str | None = None) -> Task:
    """Return a task by name, by dotted path, or from a JSONL file of prompts and targets.

    A JSONL file needs the name of a scorer.
    """
    if name.endswith(".jsonl"):
        from .custom import jsonl_task, scorer_names

        if scorer is None and not Path(name).is_file():
            raise ValueError(f"there is no file {name}")
        if scorer is None:
            raise ValueError(f"{name} needs a scorer; known: {', '.join(scorer_names())}")
        return jsonl_task(Path(name), score=scorer)
    if scorer is not None:
        raise ValueError(
            f"scorer {scorer!r} is for a .jsonl file only; task {name!r} has its own scorer"
        )
    own, _, member = name.partition(":")
    if own in task_names():
        task = import_module(f".{own}", __package__).TASK
        if member and task.family is None:
            raise ValueError(
                f"task {own!r} has no members such as {name!r}; choose a variant by --protocol"
            )
        task = task.family.find(member) if member else task
    else:
        if not is_dotted(name):
            known = ", ".join(task_names())
            raise ValueError(
                f"unknown task {name!r}; known: {known}; "
                "or give the dotted path of a Task, or a .jsonl file"
            )
        task = find_dotted("task", name)
    if not isinstance(task, Task):
        raise ValueError(f"{name!r} is not a Task but {type(task).__name__}")
    return task

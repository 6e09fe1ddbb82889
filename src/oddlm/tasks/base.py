"""What a task is: data plus functions."""

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

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function, another one in every process
_DEFINED = re.compile(r"^TASK\b[^=\n]*=", re.MULTILINE)


@cache
def task_names() -> tuple[str, ...]:
    """The modules of this package that define TASK.

    Their source is read, not run: some import much.
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
    """The first line of a known task's own description."""
    return (
        (import_module(f".{name}", __package__).__doc__ or "").partition("\n")[0].partition(": ")[2]
    )


@dataclass(frozen=True, slots=True)
class Problem:
    id: str
    prompt: str  # the problem itself; Task.prompt makes of it what the model is shown
    target: Any


@dataclass(frozen=True, slots=True)
class Score:
    correct: bool
    answer: str | None  # what was read out of the text
    detail: str  # why it counts or not, for a person


@dataclass(frozen=True, slots=True)
class Task:
    """load(**options) gives the problems, prompt(problem) the text for the model, score(problem,
    text) the verdict.

    `protocols` are named variants of the task, each with its own differing fields.
    """

    name: str
    load: Callable[..., list[Problem]]
    prompt: Callable[[Problem], str]
    score: Callable[[Problem, str], Score]
    length: int  # tokens of an answer
    steps: int | None = None  # network evaluations, where the protocol fixes them
    template: Callable[[Problem], Sequence[str | int]] | None = (
        None  # a form to fill in: texts, and holes of so many tokens
    )
    ask: Callable[[Problem], str] | None = (
        None  # the problem in words for a person, where the prompt is not for reading
    )
    code: bool = False  # answers are programs, alike when they differ in names and layout alone
    version: int = 1  # of its problems and prompts: a higher one makes other runs
    scorer_version: int = 1  # of its verdicts: a higher one scores what was drawn anew
    outside: bool = (
        False  # its data come from a package or the hub, so that runs are known by a digest of them
    )
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def under(self, protocol: str | None) -> "Task":
        """This task under one of its protocols; None is the task itself."""
        if protocol is None:
            return self
        if protocol not in self.protocols:
            known = ", ".join(sorted(self.protocols)) or "none"
            raise ValueError(f"task {self.name!r} has no protocol {protocol!r}; known: {known}")
        return replace(self, **self.protocols[protocol])

    def question(self, problem: Problem) -> str:
        """The problem in words for a person."""
        return self.prompt(problem).strip() if self.ask is None else self.ask(problem)

    @property
    def options(self) -> list[str]:
        """Of load()."""
        return [
            p.name
            for p in inspect.signature(self.load).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        ]

    def problems(self, **options: Any) -> list[Problem]:
        """load() with the options that are not None; one that this task does not have is an error,
        False apart.
        """
        known = self.options
        given = {name: value for name, value in options.items() if value is not None}
        for name in [name for name in given if name not in known]:
            if given.pop(name) is not False:
                raise ValueError(
                    f"task {self.name!r} has no option {name!r}; options: {', '.join(known) or 'none'}"
                )
        return self.load(**given)


def check_scoring(task: Task | None, *, unsafe: bool) -> None:
    """ValueError where answers are programs and there is no sandbox to run them in."""
    if task is not None and task.code:
        require_sandbox(unsafe=unsafe)


def problem_digest(task: Task | None, problem: Problem) -> str:
    """Of what the model is shown and what is right."""
    target = _ADDRESS.sub("", repr(problem.target))
    shown = problem.prompt if task is None else task.prompt(problem)
    return sha256(f"{shown}\0{target}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def task_identity(name: str, task: Task, data: Path | None, split: str | None) -> dict[str, Any]:
    """What a run's spec says of its task: where the problems come from, and the versions of those
    and of the verdicts.

    Whoever names a task of his own by its dotted path need not count versions: the verdicts are
    known by its file.
    """
    source = data or (Path(name) if name.endswith(".jsonl") else None)
    found = None if source is None else digest(source)
    if source is None and task.outside:
        lines = [
            f"{problem.id} {problem_digest(task, problem)}"
            for problem in task.problems(split=split)
        ]
        found = sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
    own = is_dotted(name) and not name.endswith(".jsonl")
    code = (
        getattr(sys.modules.get(name.replace(":", ".").rpartition(".")[0]), "__file__", None)
        if own
        else None
    )
    mark = "" if code is None else f"+{digest(Path(code))[:12]}"
    return {
        "data": None if data is None else str(data),
        "data_digest": found,
        "task_version": task.version,
        "scorer_version": f"{SCORING}.{task.scorer_version}{mark}",
    }


def find_task(name: str, *, scorer: str | None = None) -> Task:
    """A known task, the dotted path of somebody's own Task, or a JSONL of prompts and targets with
    the name of a scorer.
    """
    if name.endswith(".jsonl"):
        from .custom import jsonl_task, scorer_names

        if scorer is None and not Path(name).is_file():
            raise ValueError(f"there is no file {name}")
        if scorer is None:
            raise ValueError(f"{name} needs a scorer; known: {', '.join(scorer_names())}")
        return jsonl_task(Path(name), score=scorer)
    if scorer is not None:
        raise ValueError(f"a scorer goes with a JSONL of your own; task {name!r} has its own")
    if name in task_names():
        task = import_module(f".{name}", __package__).TASK
    else:
        if not is_dotted(name):
            known = ", ".join(task_names())
            raise ValueError(
                f"unknown task {name!r}; known: {known}, the dotted path of a Task, or a .jsonl file"
            )
        task = find_dotted("task", name)
    if not isinstance(task, Task):
        raise ValueError(f"{name!r} is not a Task but {type(task).__name__}")
    return task

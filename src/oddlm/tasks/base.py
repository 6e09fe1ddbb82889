"""What a task is: data plus functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

KNOWN = ("countdown", "gsm8k", "humaneval", "minicode")


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
    """load(**options) gives the problems, prompt(problem) the text for the model, score(problem, text) the verdict.

    `protocols` are named variants of the task, each with its own differing fields.
    """

    name: str
    load: Callable[..., list[Problem]]
    prompt: Callable[[Problem], str]
    score: Callable[[Problem, str], Score]
    length: int  # tokens of an answer
    steps: int | None = None  # network evaluations, where the protocol fixes them
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def under(self, protocol: str | None) -> "Task":
        """This task under one of its protocols; None is the task itself."""
        if protocol is None:
            return self
        if protocol not in self.protocols:
            known = ", ".join(sorted(self.protocols)) or "none"
            raise ValueError(f"task {self.name!r} has no protocol {protocol!r}; known: {known}")
        return replace(self, **self.protocols[protocol])


def find_task(name: str) -> Task:
    """A known task, or the dotted path of somebody's own Task object."""
    if name in KNOWN:
        task = import_module(f".{name}", __package__).TASK
    else:
        module, _, attribute = name.replace(":", ".").rpartition(".")
        if not module:
            raise ValueError(f"unknown task {name!r}; known: {', '.join(KNOWN)}, or the dotted path of a Task")
        try:
            task = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"task {name!r} cannot be imported: {error}") from error
    if not isinstance(task, Task):
        raise ValueError(f"{name!r} is not a Task but {type(task).__name__}")
    return task

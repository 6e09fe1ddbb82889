"""Options that several commands share, in groups: a command takes a group as one parameter.

A group is either a dataclass of options or a subclass of `FieldOptions`, which takes the names,
help texts and defaults of its options from the fields of a pydantic model.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    get_args,
    get_origin,
)

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..config import json_or_text
from ..params import PUSH, SampleParams, method_name, short
from ..spec import Loading
from .bar import status_line

if TYPE_CHECKING:
    from ..experiments.work import Executor
    from ..tasks import Problem, Task

MODEL = "mini"  # the default of every command: a trained model that comes with the package
FOLDER = Path("runs")
PROBLEMS, SAMPLING, DIVERSITY, NETWORK, WORK, OUTPUT = (
    f"{name} options"
    for name in ("Problem", "Sampling", "Diversity", "Model", "Execution", "Output")
)
DEFAULT = re.compile(r"(?:(?P<text>.*?)[;.] )?[Dd]efault: (?P<default>.*?)\.?")

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="A model with a name (mini, smol, toy; see `oddlm models list`), a checkpoint folder, "
        "a model on the hub (organisation/model), or a dotted path.",
        rich_help_panel=NETWORK,
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="A named variant of the task, such as 'paper' (see `oddlm tasks`).",
        rich_help_panel=PROBLEMS,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Which part of the problems to use, such as tune or test.",
        show_default="the problems that results are reported on",
        rich_help_panel=PROBLEMS,
    ),
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox",
        help="Run code written by the model WITHOUT a sandbox.",
        rich_help_panel=WORK,
    ),
]
StoreFolder = Annotated[
    Path, typer.Option("--store", help="The folder that holds the runs.", rich_help_panel=WORK)
]
MaxBatch = Annotated[
    int | None,
    typer.Option(
        "--max-batch",
        help="Most samples per network pass.",
        min=1,
        show_default="256",
        rich_help_panel=NETWORK,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where to run: cpu, cuda, cuda:1.",
        show_default="a GPU, if there is one",
        rich_help_panel=NETWORK,
    ),
]
FailFast = Annotated[
    bool,
    typer.Option(
        "--fail-fast",
        help="Stop at the first problem that cannot be drawn or scored, instead of listing all "
        "of them at the end. Finished problems are kept.",
        rich_help_panel=WORK,
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", help="Write the results to this file.", rich_help_panel=OUTPUT),
]

T = TypeVar("T")
Command = Callable[..., None]


class FieldOptions:
    """Options made from the fields of a pydantic model; `given` holds those on the command line."""

    model: ClassVar[type[BaseModel]]
    left_out: ClassVar[frozenset[str]] = frozenset()
    first: ClassVar[Sequence[str]] = ()  # the fields that the help lists first
    usual: ClassVar[Mapping[str, str]] = {}  # defaults that differ from the field's, in words

    def __init__(self, **values: Any) -> None:
        self.given = {
            name: self._read(value)
            for name, value in values.items()
            if name in self.model.model_fields and value not in (None, False)
        }

    def _read(self, value: Any) -> Any:
        return json_or_text(value) if isinstance(value, str) else value

    @classmethod
    def panel(cls, name: str) -> str:  # noqa: ARG003 -- groups with several panels look at it
        """Return the help panel that a field belongs to."""
        return "Options"

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return one parameter per option."""
        known = cls.model.model_fields
        names = [name for name in (*cls.first, *known) if name not in cls.left_out]
        return [_option(cls, name, known[name]) for name in dict.fromkeys(names)]


def _option(group: type[FieldOptions], name: str, field: FieldInfo) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    panel = group.panel(name)
    if field.annotation is bool:
        option = typer.Option(flag, help=field.description, rich_help_panel=panel)
        return _parameter(name, Annotated[bool, option], False)
    description = field.description or ""
    found = DEFAULT.fullmatch(description)
    text, own = (found["text"] or "", found["default"]) if found else (description, None)
    option = typer.Option(
        flag,
        metavar=_metavar(field.annotation),
        help=f"{text.rstrip('.')}.",
        show_default=group.usual.get(name) or _default_text(field.default) or own or False,
        rich_help_panel=panel,
    )
    return _parameter(name, Annotated[str | None, option], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _default_text(default: Any) -> str | None:
    """Return a default as the help states it."""
    if default is None:
        return None
    return method_name(default, {}) if isinstance(default, dict) else short(default)


def _metavar(kind: Any) -> str:
    """Return what stands for a value in the help: INT, full|sampled, NAME."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    words = {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false", dict: "NAME"}
    if (name := words.get(get_origin(kind) or kind)) is not None:
        return name
    parts = [_metavar(part) for part in get_args(kind) if part is not NoneType]
    return "NAME" if "NAME" in parts else "|".join(parts)


class Settings(FieldOptions):
    """One value for each setting of the sampler (the fields of `SampleParams`)."""

    model = SampleParams
    first = ("preset", "objective", "alpha")
    usual: ClassVar[Mapping[str, str]] = {"preset": "auto"}

    @classmethod
    def panel(cls, name: str) -> str:
        return DIVERSITY if name in (*PUSH, *DIVERSE) else SAMPLING

    @property
    def seed(self) -> Any:
        return self.given.get("seed", 0)

    def params(self, **more: Any) -> dict[str, Any]:
        """Return fields of `SampleParams` without the seed; `more` fills in those not given."""
        return {**more, **{name: value for name, value in self.given.items() if name != "seed"}}


TASKS_OWN = {"length": "the task's", "steps": "the task's"}
DIVERSE = ("preset", "alpha", "fork", "fork_temperature", "order_temperature", "prompt_noise")


class FixedSettings(Settings):
    """Settings without a seed, for commands that set the seed in another way."""

    left_out = frozenset({"seed"})


class TaskSettings(FixedSettings):
    """Settings without a seed, for commands with a task."""

    usual: ClassVar[Mapping[str, str]] = {**Settings.usual, **TASKS_OWN}


class Grid(Settings):
    """Settings of the sampler as comma-separated values, used in all combinations."""

    left_out = frozenset({"seed"})
    usual: ClassVar[Mapping[str, str]] = {**Settings.usual, **TASKS_OWN}

    def __init__(self, *, n: int, seeds: str, **values: Any) -> None:
        super().__init__(**values)
        self.n = n
        self.seeds = list(dict.fromkeys(listed("seeds", seeds, int)))

    def _read(self, value: Any) -> list[Any]:
        """Split a value at its commas, unless it is JSON: a piece with options is one value."""
        if value.lstrip().startswith(("{", "[")):
            return [json_or_text(value)]
        parts = [part.strip() for part in value.split(",")]
        return [json_or_text(part) for part in parts]

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        count = typer.Option("--n", help="Samples per problem.", min=1, rich_help_panel=SAMPLING)
        seeds = typer.Option(
            "--seeds",
            help="Comma-separated seeds; each setting runs once per seed.",
            rich_help_panel=SAMPLING,
        )
        own = [
            _parameter("n", Annotated[int, count], 16),
            _parameter("seeds", Annotated[str, seeds], "0"),
        ]
        return [*own, *super().parameters()]

    def combinations(self, task: "Task") -> "list[SampleParams]":
        """Return all combinations, each preceded by its plain baseline."""
        from ..report.compare import grid

        for name, values in self.given.items():
            if "" in values:
                raise ValueError(
                    f"--{name.replace('_', '-')} takes comma-separated values; one is empty"
                )
        first = ("preset", "temperature", "objective")  # orders the lines of tables
        names = sorted(self.given, key=lambda name: first.index(name) if name in first else 9)
        return grid(task.defaults, {name: self.given[name] for name in names})


class Loaded(FieldOptions):
    """How a model is loaded (the fields of `Loading`), and where it runs."""

    model = Loading

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.values = values
        if values["verbose"]:
            log_to_stderr()

    @classmethod
    def panel(cls, name: str) -> str:  # noqa: ARG003
        return NETWORK

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        device = typer.Option(
            "--device",
            help="Where to run: cpu, cuda, cuda:1, or auto (spread over all GPUs).",
            show_default="a GPU, if there is one",
            rich_help_panel=NETWORK,
        )
        verbose = typer.Option(
            "--verbose",
            help="Log which model runs where, and on which kernels.",
            rich_help_panel=NETWORK,
        )
        return [
            _parameter("device", Annotated[str | None, device], None),
            *super().parameters(),
            _parameter("verbose", Annotated[bool, verbose], False),
        ]

    @property
    def loading(self) -> dict[str, Any]:
        """Options that may change samples, and so are part of a run."""
        return self.given

    @property
    def place(self) -> dict[str, Any]:
        """Options that change samples only by rounding."""
        return present(**{name: self.values.get(name) for name in ("device", "max_batch")})


class ModelOptions(Loaded):
    """How a model is loaded and where it runs, with a bound on the batch size."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        return [*super().parameters(), _parameter("max_batch", MaxBatch, None)]

    def check(self, model: str, prompts: Sequence[str] = (), length: int = 0) -> None:
        """Raise ValueError if the model is not available or cannot take the prompts.

        No weights are read or downloaded.
        """
        from ..prompts import check_prompts

        options = {**self.loading, **self.place}
        options.pop("max_batch", None)
        with status_line(f"looking for {model}"):
            check_prompts(model, prompts, length, **options)


@dataclass(frozen=True)
class Problems:
    """A task, and which of its problems to use."""

    task: Annotated[
        str,
        typer.Argument(help="A task (see `oddlm tasks`), a dotted path, or your own .jsonl file."),
    ]
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Use the first N problems only.",
            rich_help_panel=PROBLEMS,
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="Read the task's problems from this JSONL file.", rich_help_panel=PROBLEMS
        ),
    ] = None
    protocol: Protocol = None
    scorer: Annotated[
        str | None,
        typer.Option(
            help="How to score your own .jsonl file: exact, number or python.",
            rich_help_panel=PROBLEMS,
        ),
    ] = None
    exclude_train: Annotated[
        bool,
        typer.Option(
            "--exclude-train",
            help="With --data: leave out problems of the training split (countdown).",
            rich_help_panel=PROBLEMS,
        ),
    ] = False

    def find(self) -> "Task":
        from ..tasks import find_task

        return find_task(self.task, scorer=self.scorer).under(self.protocol)

    def load(self, *, unsafe: bool, limit: int | None = None) -> "list[Problem]":
        """Read the problems; `limit` applies if the command line gives none."""
        given = limit if self.limit is None else self.limit
        return self.find().problems(
            data=self.data, limit=given, exclude_train=self.exclude_train, unsafe=unsafe
        )

    def spec(self) -> dict[str, Any]:
        """Return the fields of a `RunSpec` that name the problems."""
        own = {
            "task": self.task,
            "protocol": self.protocol,
            "scorer": self.scorer,
            "exclude_train": self.exclude_train,
        }
        return own | {"data": None if self.data is None else str(self.data)}


@dataclass(frozen=True)
class Workers:
    """The processes that execute a plan."""

    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What runs the work: inline (this process), local (worker processes, such as "
            "local:workers=4,timeout=60), ray (a cluster, such as ray:address=HOST:6379), or a "
            "dotted path.",
            rich_help_panel=WORK,
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Workers, each with a copy of the model; several are processes or Ray actors.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = None
    scorers: Annotated[
        int,
        typer.Option(
            help="Answers that each worker scores at a time, while it draws others.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = 2
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            help="Report runs to wandb, mlflow, tensorboard (extras) or a dotted path. Repeatable.",
            rich_help_panel=WORK,
        ),
    ] = None

    def find(self, usual: str = "inline", **options: Any) -> "Executor":
        """Return the executor.

        usual: its name, if there is one worker and no --executor.
        options: further fields of `Options`.
        """
        from ..experiments.executors import find_executor
        from ..experiments.work import Options

        name = self.executor or (usual if self.workers in (None, 1) else "local")
        return find_executor(
            name, Options(**options, scorers=self.scorers), **present(workers=self.workers)
        )


@dataclass(frozen=True)
class Work(Workers):
    """The processes that execute a plan, and where its records are stored."""

    store: StoreFolder = FOLDER
    together: Annotated[
        int,
        typer.Option(
            help="Problems denoised at a time; use many on a GPU. A killed process loses as many.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = 1
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens",
            help="Store token ids and log-probabilities of the samples drawn now, too.",
            rich_help_panel=WORK,
        ),
    ] = False


def grouped(command: Command) -> Command:
    """Let the parameters of a command be groups, whose options become options of the command."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        p.name: p.annotation
        for p in signature.parameters.values()
        if is_dataclass(p.annotation) or hasattr(p.annotation, "parameters")
    }
    inside = {name: _parameters(group) for name, group in groups.items()}
    flat: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        own = inside.get(name, [parameter])
        flat += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]

    @wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in inside[name]})
        command(**given)

    call.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _parameters(group: Any) -> list[inspect.Parameter]:
    if not is_dataclass(group):
        found: list[inspect.Parameter] = group.parameters()
        return found
    return [_parameter(field.name, field.type, _default(field)) for field in fields(group)]


def _default(field: "Field[Any]") -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def log_to_stderr() -> None:
    """Print the package's log messages to stderr, each of them once."""
    import logging

    seen: set[str] = set()

    class Once(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            fresh = record.getMessage() not in seen
            seen.add(record.getMessage())
            return fresh

    handler = logging.StreamHandler()
    handler.addFilter(Once())
    handler.setFormatter(logging.Formatter("oddlm: %(message)s"))
    log = logging.getLogger("oddlm")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


def listed(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """Convert the comma-separated values of an option; raise ValueError that names the option."""
    parts = [part.strip() for part in text.split(",")]
    try:
        return [kind(part) for part in parts if part] if all(parts) else [kind("")]
    except ValueError:
        what = {int: "whole numbers", float: "numbers"}.get(kind, "names")  # type: ignore[call-overload]
        raise ValueError(f"--{option} takes comma-separated {what}, not {text!r}") from None


def present(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_out(path: Path | None) -> None:
    """Raise ValueError if the file cannot be written; call this before anything is computed.

    If the file is standard output, messages for people go to stderr until the command ends.
    """
    from ..files import check_target, is_stdout

    if path is None:
        return
    check_target(path)
    if is_stdout(path):
        sys.stdout = sys.stderr  # `main` restores it

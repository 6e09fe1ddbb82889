"""Options that several commands share, in groups: a command takes a group as one parameter.

A group is a dataclass of options, or is made from the fields of a pydantic model (`FieldOptions`): the
names, help texts and defaults on the command line are then those of the model.
"""

import inspect
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

MODEL = "mini"  # the default of every command: it comes with the package, and it knows something
FOLDER = Path("runs")
PROBLEMS, SAMPLING, DIVERSITY, NETWORK, WORK = (
    f"{name} options" for name in ("Problem", "Sampling", "Diversity", "Model", "Execution")
)

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="mini, toy, a checkpoint folder, a name on the hub (organisation/model), or a dotted "
        "path.",
        rich_help_panel=NETWORK,
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(help="A named variant of the task, such as 'paper'.", rich_help_panel=PROBLEMS),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Which problems, such as tune or test; default: the task's reported ones.",
        rich_help_panel=PROBLEMS,
    ),
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox",
        help="Run code written by the model WITHOUT protection.",
        rich_help_panel=WORK,
    ),
]
StoreFolder = Annotated[
    Path, typer.Option("--store", help="The folder of runs.", rich_help_panel=WORK)
]

MaxBatch = Annotated[
    int | None,
    typer.Option("--max-batch", help="Samples per network pass.", min=1, rich_help_panel=NETWORK),
]

T = TypeVar("T")
Command = Callable[..., None]


class FieldOptions:
    """Options made from the fields of a pydantic model; `given` holds those that were used."""

    model: ClassVar[type[BaseModel]]
    left_out: ClassVar[frozenset[str]] = frozenset()
    usual: ClassVar[Mapping[str, str]] = {}  # defaults that are not the field's own, in words

    def __init__(self, **values: Any) -> None:
        self.given = {
            name: self._read(value)
            for name, value in values.items()
            if name in self.model.model_fields and value not in (None, False)
        }

    def _read(self, value: Any) -> Any:
        return json_or_text(value) if isinstance(value, str) else value

    @classmethod
    def panel(cls, name: str) -> str:
        """Which part of the help a field belongs to."""
        raise NotImplementedError

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        known = cls.model.model_fields
        return [_option(cls, name, known[name]) for name in known if name not in cls.left_out]


def _option(group: type[FieldOptions], name: str, field: FieldInfo) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    panel = group.panel(name)
    if field.annotation is bool:
        option = typer.Option(flag, help=field.description, rich_help_panel=panel)
        return _parameter(name, Annotated[bool, option], False)
    told, _, own = (field.description or "").partition("; default: ")
    default = group.usual.get(name) or _told(field.default) or own.rstrip(".")
    words = [told.rstrip(".") + ".", *([f"Default: {default}."] if default else [])]
    option = typer.Option(
        flag,
        metavar=_metavar(field.annotation),
        help=" ".join(words),
        show_default=False,
        rich_help_panel=panel,
    )
    return _parameter(name, Annotated[str | None, option], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _told(default: Any) -> str | None:
    """A default as the help shows it."""
    if default is None:
        return None
    return method_name(default, {}) if isinstance(default, dict) else short(default)


def _metavar(kind: Any) -> str:
    """What a value looks like: INT, full|sampled, NAME."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    words = {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false", dict: "NAME"}
    if (name := words.get(get_origin(kind) or kind)) is not None:
        return name
    parts = [_metavar(part) for part in get_args(kind) if part is not NoneType]
    return "NAME" if "NAME" in parts else "|".join(parts)


class Settings(FieldOptions):
    """One setting of the sampler: the fields of `SampleParams`."""

    model = SampleParams
    usual: ClassVar[Mapping[str, str]] = {"preset": "auto"}

    @classmethod
    def panel(cls, name: str) -> str:
        return DIVERSITY if name in (*PUSH, *DIVERSE) else SAMPLING

    @property
    def seed(self) -> Any:
        return self.given.get("seed", 0)

    def params(self, **more: Any) -> dict[str, Any]:
        """Fields of `SampleParams`, without the seed; `more` is used where nothing was given."""
        return {**more, **{name: value for name, value in self.given.items() if name != "seed"}}


DIVERSE = ("preset", "alpha", "fork", "fork_temperature", "order_temperature", "prompt_noise")


class FixedSettings(Settings):
    """Settings without a seed, for commands that have seeds of their own."""

    left_out = frozenset({"seed"})


class Grid(Settings):
    """Settings of the sampler, in all combinations of comma-separated values."""

    left_out = frozenset({"seed"})
    usual: ClassVar[Mapping[str, str]] = {
        "length": "the task's",
        "steps": "the task's",
        "preset": "auto",
    }

    def __init__(self, *, n: int, seeds: str, **values: Any) -> None:
        super().__init__(**values)
        self.n = n
        self.seeds = list(dict.fromkeys(listed("seeds", seeds, int)))

    def _read(self, value: Any) -> list[Any]:
        """Values parted at commas; one in JSON, with its options, is one value."""
        if value.lstrip().startswith(("{", "[")):
            return [json_or_text(value)]
        parts = [part.strip() for part in value.split(",")]
        return [json_or_text(part) for part in parts]

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        count = typer.Option("--n", help="Samples per problem.", min=1, rich_help_panel=SAMPLING)
        seeds = typer.Option(
            "--seeds", help="Each setting runs once per seed.", rich_help_panel=SAMPLING
        )
        own = [
            _parameter("n", Annotated[int, count], 16),
            _parameter("seeds", Annotated[str, seeds], "0"),
        ]
        return [*own, *super().parameters()]

    def combinations(self, task: "Task") -> "list[SampleParams]":
        """All combinations, each beside its plain baseline."""
        from ..report.compare import grid

        usual = present(length=task.length, steps=task.steps)
        for name, values in self.given.items():
            if "" in values:
                raise ValueError(
                    f"--{name.replace('_', '-')} takes comma-separated values; one is empty"
                )
        first = ("preset", "temperature", "objective")  # the order of lines in tables
        names = sorted(self.given, key=lambda name: first.index(name) if name in first else 9)
        return grid(usual, {name: self.given[name] for name in names})


class Loaded(FieldOptions):
    """How a model is loaded (the fields of `Loading`), and where it runs."""

    model = Loading

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.values = values
        if values["verbose"]:
            tell_all()

    @classmethod
    def panel(cls, name: str) -> str:
        return NETWORK

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        device = typer.Option(
            "--device",
            help="cpu, cuda, cuda:1, or auto (over all GPUs); default: a GPU, if any.",
            rich_help_panel=NETWORK,
        )
        verbose = typer.Option(
            "--verbose",
            help="Print which model runs where, and what computes it.",
            rich_help_panel=NETWORK,
        )
        return [
            _parameter("device", Annotated[str | None, device], None),
            *super().parameters(),
            _parameter("verbose", Annotated[bool, verbose], False),
        ]

    @property
    def loading(self) -> dict[str, Any]:
        """What may change samples, and is part of a run."""
        return self.given

    @property
    def place(self) -> dict[str, Any]:
        """What changes no sample, except by rounding."""
        return present(**{name: self.values.get(name) for name in ("device", "max_batch")})


class ModelOptions(Loaded):
    """The same, with a bound on the batch."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        return [*super().parameters(), _parameter("max_batch", MaxBatch, None)]

    def check(self, model: str, prompts: Sequence[str] = (), length: int = 0) -> None:
        """ValueError for a model that is not available or prompts it cannot take.

        No weights are read or downloaded.
        """
        from ..lm import check_prompts

        options = {**self.loading, **self.place}
        options.pop("max_batch", None)
        with status_line(f"looking for {model}"):
            check_prompts(model, prompts, length, **options)


@dataclass(frozen=True)
class Problems:
    """Which problems of which task."""

    task: Annotated[
        str,
        typer.Argument(help="A task (see `oddlm tasks`), a dotted path, or your own .jsonl file."),
    ]
    limit: Annotated[
        int | None, typer.Option(help="The first so many problems.", rich_help_panel=PROBLEMS)
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(help="Read the problems from this JSONL file.", rich_help_panel=PROBLEMS),
    ] = None
    protocol: Protocol = None
    scorer: Annotated[
        str | None,
        typer.Option(
            help="How your own .jsonl is scored: exact, number or python.", rich_help_panel=PROBLEMS
        ),
    ] = None
    exclude_train: Annotated[
        bool,
        typer.Option(
            "--exclude-train",
            help="Leave out problems of the training side (countdown).",
            rich_help_panel=PROBLEMS,
        ),
    ] = False

    def find(self) -> "Task":
        from ..tasks import find_task

        return find_task(self.task, scorer=self.scorer).under(self.protocol)

    def load(self, *, unsafe: bool, limit: int | None = None) -> "list[Problem]":
        """limit: where none is given."""
        given = limit if self.limit is None else self.limit
        return self.find().problems(
            data=self.data, limit=given, exclude_train=self.exclude_train, unsafe=unsafe
        )

    def spec(self) -> dict[str, Any]:
        """Fields of a `RunSpec`."""
        own = {
            "task": self.task,
            "protocol": self.protocol,
            "scorer": self.scorer,
            "exclude_train": self.exclude_train,
        }
        return own | {"data": None if self.data is None else str(self.data)}


@dataclass(frozen=True)
class Workers:
    """Who carries a plan out."""

    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where to run: inline (this process), local (processes, such as local:workers=4,timeout=60), ray (a cluster, "
            "such as ray:address=HOST:6379), or a dotted path of your own.",
            rich_help_panel=WORK,
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Copies of the model: more than one are processes of this machine, or actors of Ray.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = None
    scorers: Annotated[
        int,
        typer.Option(
            help="Answers scored at a time by each worker, while it draws others.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = 2
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            help="Tell wandb, mlflow, tensorboard (extras) or a dotted path how runs go. Repeatable.",
            rich_help_panel=WORK,
        ),
    ] = None

    def find(self, usual: str = "inline", **options: Any) -> "Executor":
        """usual: the executor of one worker; options: further fields of `Options`."""
        from ..experiments.executors import find_executor
        from ..experiments.work import Options

        name = self.executor or (usual if self.workers in (None, 1) else "local")
        return find_executor(
            name, Options(**options, scorers=self.scorers), **present(workers=self.workers)
        )


@dataclass(frozen=True)
class Work(Workers):
    """The same, and where its records go."""

    store: StoreFolder = FOLDER
    together: Annotated[
        int,
        typer.Option(
            help="Problems denoised at a time: many on a GPU. As many are lost with a killed process.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = 1
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens",
            help="Store token ids and their log-probabilities beside the texts, of what is drawn now.",
            rich_help_panel=WORK,
        ),
    ] = False


def grouped(command: Command) -> Command:
    """A command whose parameters may be groups: the options of a group are options of the command."""
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


def tell_all() -> None:
    """What the package logs goes to stderr, each line once."""
    import logging

    said: set[str] = set()

    class Once(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            fresh = record.getMessage() not in said
            said.add(record.getMessage())
            return fresh

    handler = logging.StreamHandler()
    handler.addFilter(Once())
    handler.setFormatter(logging.Formatter("oddlm: %(message)s"))
    log = logging.getLogger("oddlm")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


def listed(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """`0,8,16` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    try:
        return [kind(part) for part in parts if part] if all(parts) else [kind("")]
    except ValueError:
        what = {int: "whole numbers", float: "numbers"}.get(kind, "names")  # type: ignore[call-overload]
        raise ValueError(f"--{option} takes comma-separated {what}, not {text!r}") from None


def present(**values: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in values.items() if value is not None}


def check_out(path: Path | None) -> None:
    """Can the file be written?

    Asked before anything is computed. Where it is our own output, words for people go to stderr.
    """
    from ..files import check_target, is_stdout

    if path is None:
        return
    check_target(path)
    if is_stdout(path):
        sys.stdout = sys.stderr  # until the command ends, see `main`

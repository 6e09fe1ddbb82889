"""Options that several commands share, and what is made of their values."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..presets import ALPHA, LENGTH, TEMPERATURE
from .bar import status_line

if TYPE_CHECKING:
    from ..experiments.work import Executor
    from ..tasks import Problem, Task

Protocol = Annotated[str | None, typer.Option(help="A named variant of the task, such as 'paper'.")]
Split = Annotated[
    str | None, typer.Option(help="A part of the problems, such as tune or test; default: what the task reports on.")
]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-sandbox", help="Run model-written code WITHOUT protection.")]
ModelName = Annotated[
    str,
    typer.Option("--model", help="mini, toy, a checkpoint's folder or name on the hub (organisation/model), or a dotted path."),
]
MODEL = "mini"  # of every command: it is in the package, and it knows something
FOLDER = Path("runs")
StoreFolder = Annotated[Path, typer.Option("--store", help="The folder of runs.")]
Length = Annotated[int | None, typer.Option(help=f"Tokens per sample; default: what the task says, or {LENGTH}.", min=1)]
Steps = Annotated[int | None, typer.Option(help="Network evaluations per sample; default: one per token.", min=1)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of the sampler, such as policy=margin; preset=NAME is a set of them. Repeatable.",
    ),
]
MaxBatch = Annotated[int | None, typer.Option(help="Samples that the network sees at a time.", min=1)]

PLACE = ("device", "max_batch")
OWN = ("length", "steps", "alpha", "temperature", "objective", "seed")  # settings that have options of their own

T = TypeVar("T")
Command = Callable[..., None]


@dataclass(frozen=True)
class Loading:
    """How a model is loaded."""

    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, or auto: over all GPUs; default: one GPU, if any.")] = (
        None
    )
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16, fp32 or fp64; default: bf16 on a GPU, fp32 on a CPU.")] = None
    quantize: Annotated[str | None, typer.Option(help="nf4 or int8: weights in 4 or 8 bits.")] = None
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")] = None
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Prompts as they are, without the chat template, or the line break at the end that mini wants."
        ),
    ] = False
    cache: Annotated[str, typer.Option(help="none, prefix or dual: reuse keys and values; an approximation.")] = "none"
    verbose: Annotated[bool, typer.Option("--verbose", help="Say on stderr which model runs where, and what computes it.")] = (
        False
    )

    def __post_init__(self) -> None:
        if self.verbose:
            tell_all()

    @property
    def loading(self) -> dict[str, Any]:
        """What may change its samples, and is a part of a run."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in (*PLACE, "verbose")}
        return {name: value for name, value in given.items() if value not in (None, False, "none")}

    @property
    def place(self) -> dict[str, Any]:
        """What changes none, save by rounding."""
        return present(**{name: getattr(self, name, None) for name in PLACE})


@dataclass(frozen=True)
class ModelOptions(Loading):
    max_batch: MaxBatch = None

    def check(self, model: str, prompts: Sequence[str] = (), length: int = 0) -> None:
        """ValueError for a model that cannot be had, or prompts that it cannot take; no weights are read or downloaded."""
        from ..lm import check_prompts

        options = {**self.loading, **self.place}
        with status_line(f"looking for {model}"):
            check_prompts(model, prompts, length, **{name: value for name, value in options.items() if name != "max_batch"})


@dataclass(frozen=True)
class Problems:
    """Which problems of which task."""

    task: Annotated[str, typer.Argument(help="A task (see `oddlm tasks`), a dotted path, or your own .jsonl file.")]
    limit: Annotated[int | None, typer.Option(help="The first so many problems.")] = None
    data: Annotated[Path | None, typer.Option(help="Read the problems from this JSONL file.")] = None
    protocol: Protocol = None
    scorer: Annotated[str | None, typer.Option(help="How your own .jsonl is scored: exact, number or python.")] = None
    exclude_train: Annotated[
        bool, typer.Option("--exclude-train", help="Leave out problems of the training side (countdown).")
    ] = False

    def find(self) -> "Task":
        from ..tasks import find_task

        return find_task(self.task, scorer=self.scorer).under(self.protocol)

    def load(self, *, unsafe: bool, limit: int | None = None) -> "list[Problem]":
        """limit: where none is given."""
        given = limit if self.limit is None else self.limit
        return self.find().problems(data=self.data, limit=given, exclude_train=self.exclude_train, unsafe=unsafe)

    def spec(self) -> dict[str, Any]:
        """Fields of a `RunSpec`."""
        own = {"task": self.task, "protocol": self.protocol, "scorer": self.scorer, "exclude_train": self.exclude_train}
        return own | {"data": None if self.data is None else str(self.data)}


@dataclass(frozen=True)
class Setting:
    """One setting of the sampler."""

    alpha: Annotated[
        float | None, typer.Option(help="Force of the push; 0 is plain sampling.", show_default=f"the preset's or {ALPHA:g}")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="Of the choice of tokens; 0 is the argmax.", show_default=f"{TEMPERATURE:g}")
    ] = None
    objective: Annotated[
        str | None,
        typer.Option(
            help="What pushes samples apart (see `oddlm names`); 'none' is plain sampling.", show_default="the preset's or auto"
        ),
    ] = None
    length: Length = None
    steps: Steps = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0
    set_: Settings = None

    def params(self, **more: Any) -> dict[str, Any]:
        """Fields of `SampleParams`, from --set and from the options that they have of their own."""
        from ..params import json_or_text

        own = {name: getattr(self, name) for name in OWN if name != "seed"} | more
        own = {name: json_or_text(value) if isinstance(value, str) else value for name, value in own.items()}
        return settings(self.set_, OWN) | present(**own)


@dataclass(frozen=True)
class Workers:
    """Who carries a plan out."""

    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="Where to run: inline (this process), local (processes, such as local:workers=4,timeout=60), ray (a cluster, "
            "such as ray:address=HOST:6379), or a dotted path of your own.",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(help="Copies of the model: more than one are processes of this machine, or actors of Ray.", min=1),
    ] = None
    scorers: Annotated[int, typer.Option(help="Answers scored at a time by each worker, while it draws others.", min=1)] = 2
    track: Annotated[
        list[str] | None,
        typer.Option("--track", help="Tell wandb, mlflow, tensorboard (extras) or a dotted path how runs go. Repeatable."),
    ] = None

    def find(self, usual: str = "inline", **options: Any) -> "Executor":
        """usual: the executor of one worker; options: further fields of `Options`."""
        from ..experiments.executors import find_executor
        from ..experiments.work import Options

        name = self.executor or (usual if self.workers in (None, 1) else "local")
        return find_executor(name, Options(**options, scorers=self.scorers), **present(workers=self.workers))


@dataclass(frozen=True)
class Work(Workers):
    """The same, and where its records go."""

    store: StoreFolder = FOLDER
    together: Annotated[
        int, typer.Option(help="Problems denoised at a time: many on a GPU. As many are lost with a killed process.", min=1)
    ] = 1
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens", help="Store token ids and their log-probabilities beside the texts, of what is drawn now."
        ),
    ] = False


def grouped(command: Command) -> Command:
    """A command whose parameters may be groups of options (dataclasses): the options of a group are options of the command."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)}
    flat: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        options = fields(groups.get(name, _None))
        inside = [parameter.replace(name=f.name, annotation=f.type, default=_default(f)) for f in options] or [parameter]
        flat += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in inside]

    @wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    call.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


@dataclass(frozen=True)
class _None:
    """No option."""


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
        raise ValueError(f"--{option} takes {what} parted by commas, not {text!r}") from None


def settings(given: Sequence[str] | None, taken: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs; a value is JSON or else text. `taken`: what has an option of its own."""
    from ..params import json_or_text

    found: dict[str, Any] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, not {pair!r}")
        if name in taken:
            raise ValueError(f"{name} has an option of its own: --{name.replace('_', '-')}")
        found[name] = json_or_text(value)
    return found


def present(**values: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in values.items() if value is not None}


def check_out(path: Path | None) -> None:
    """Can the file be written? Asked before anything is computed. Where it is our own output, words for people go to stderr."""
    from ..files import check_target, is_stdout

    if path is None:
        return
    check_target(path)
    if is_stdout(path):
        sys.stdout = sys.stderr  # until the command ends, see `main`

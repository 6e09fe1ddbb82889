"""Options that several commands share, and what is made of their values."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..presets import ALPHA, LENGTH, TEMPERATURE
from .bar import status_line

if TYPE_CHECKING:
    from ..generate import LM

TaskName = Annotated[str, typer.Argument(help="A task (see `oddlm tasks`), a dotted path, or your own .jsonl file.")]
Protocol = Annotated[str | None, typer.Option(help="A named variant of the task, such as 'paper'.")]
Data = Annotated[Path | None, typer.Option(help="Read the problems from this JSONL file.")]
Limit = Annotated[int | None, typer.Option(help="The first so many problems.")]
ExcludeTrain = Annotated[bool, typer.Option("--exclude-train", help="Leave out problems of the training side (countdown).")]
Split = Annotated[
    str | None, typer.Option(help="A part of the problems, such as tune or test; default: what the task reports on.")
]
ScorerName = Annotated[str | None, typer.Option(help="How your own .jsonl is scored: exact, number or python.")]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-sandbox", help="Run model-written code WITHOUT protection.")]
ModelName = Annotated[
    str,
    typer.Option("--model", help="mini, toy, a checkpoint's folder or name on the hub (organisation/model), or a dotted path."),
]
MODEL = "mini"  # of every command: it is in the package, and it knows something
StoreFolder = Annotated[Path, typer.Option("--store", help="The folder of runs.")]
Length = Annotated[int | None, typer.Option(help=f"Tokens per sample; default: what the task says, or {LENGTH}.", min=1)]
Steps = Annotated[int | None, typer.Option(help="Network evaluations per sample; default: one per token.", min=1)]
Alpha = Annotated[
    float | None, typer.Option(help=f"Force of the push; 0 is plain sampling.  [default: the preset's or {ALPHA:g}]")
]
Temperature = Annotated[
    float | None, typer.Option(help=f"Of the choice of tokens; 0 is the argmax.  [default: {TEMPERATURE:g}]")
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="What pushes samples apart (see `oddlm names`); 'none' is plain sampling.  [default: the preset's or auto]"
    ),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same samples.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of the sampler, such as policy=margin; preset=NAME is a set of them. Repeatable.",
    ),
]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Tell wandb, mlflow or tensorboard how runs go (extras). Repeatable.")
]
MaxBatch = Annotated[int | None, typer.Option(help="Samples that the network sees at a time.", min=1)]
KeepTokens = Annotated[bool, typer.Option("--keep-tokens", help="Store token ids beside the texts.")]
Together = Annotated[int, typer.Option(help="Prompts denoised at a time: as many are lost where the process is killed.", min=1)]

MODEL_OPTIONS: dict[str, Any] = {
    "device": Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, or auto: over all GPUs; default: one GPU, if any.")],
    "dtype": Annotated[str | None, typer.Option(help="bf16, fp16, fp32 or fp64; default: bf16 on a GPU, fp32 on a CPU.")],
    "quantize": Annotated[str | None, typer.Option(help="nf4 or int8: weights in 4 or 8 bits.")],
    "revision": Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")],
    "max_batch": MaxBatch,
    "raw": Annotated[
        bool,
        typer.Option(
            "--raw", help="Prompts as they are, without the chat template, or the line break at the end that mini wants."
        ),
    ],
    "cache": Annotated[str, typer.Option(help="none, prefix or dual: reuse keys and values; an approximation.")],
}
PLACE = ("device", "max_batch")  # they change no sample, save by rounding
MODEL_DEFAULTS: dict[str, Any] = {"raw": False, "cache": "none", "verbose": False}
VERBOSE = Annotated[bool, typer.Option("--verbose", help="Say on stderr which model runs where, and what computes it.")]

OWN = ("length", "steps", "alpha", "temperature", "objective", "seed")  # settings that have options of their own

T = TypeVar("T")
Command = Callable[..., None]


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded: what may change its samples (a part of the run), and what does not."""

    loading: dict[str, Any]
    place: dict[str, Any]

    def digest(self, model: str, prompts: Sequence[str] = (), length: int = 0) -> str:
        """What tells the model from others (`RunSpec.model_digest`), after `check`; no weights are loaded or downloaded."""
        from ..models import model_digest

        self.check(model, prompts, length)
        with status_line(f"looking for {model}"):
            return model_digest(model, revision=self.loading.get("revision"))

    def loader(self, model: str, prompts: Sequence[str], length: int) -> "Callable[[], LM]":
        """Loads the model when called, once; prompts that do not fit are refused before the weights are read."""

        @cache
        def lm() -> "LM":
            from ..generate import load

            self.check(model, prompts, length)
            return load(model, **self.loading, **self.place)

        return lm

    def check(self, model: str, prompts: Sequence[str] = (), length: int = 0) -> None:
        """ValueError for a model that cannot be had, or prompts that it cannot take; no weights are read or downloaded."""
        from ..generate import check_prompts

        options = {**self.loading, **self.place}
        with status_line(f"looking for {model}"):
            check_prompts(model, prompts, length, **{name: value for name, value in options.items() if name != "max_batch"})


def takes_model(command: Command, *, without: Sequence[str] = ()) -> Command:
    """Give a command the options of MODEL_OPTIONS, save some, which reach it as one argument, `options`."""
    taken = {name: option for name, option in MODEL_OPTIONS.items() if name not in without}

    @wraps(command)
    def call(verbose: bool = False, **given: Any) -> None:
        if verbose:
            tell_all()
        values = {name: given.pop(name) for name in taken}
        values = {name: value for name, value in values.items() if value is not None and value != MODEL_DEFAULTS.get(name)}
        place = {name: value for name, value in values.items() if name in PLACE}
        values = {name: value for name, value in values.items() if name not in PLACE}
        command(**given, options=ModelOptions(values, place))

    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.name != "options"]
    kind = inspect.Parameter.KEYWORD_ONLY
    shown = {**taken, "verbose": VERBOSE}
    added = [inspect.Parameter(n, kind, annotation=a, default=MODEL_DEFAULTS.get(n)) for n, a in shown.items()]
    call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    hints = {name: hint for name, hint in command.__annotations__.items() if name != "options"}
    call.__annotations__ = {**hints, **shown}
    return call


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


def sampling(given: Sequence[str] | None, **own: Any) -> dict[str, Any]:
    """The settings of a run, from --set and from the options that the command has for those of OWN (None: not given)."""
    from ..params import json_or_text

    own = {name: json_or_text(value) if isinstance(value, str) else value for name, value in own.items()}
    return settings(given, OWN) | present(**own)


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

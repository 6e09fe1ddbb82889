"""A dict of named functions whose keyword-only arguments are their hyperparameters."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=Callable[..., Any])


class Registry(Generic[F]):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._known: dict[str, F] = {}

    def register(self, function: R) -> R:
        """Make `function` known under its own name."""
        name = function.__name__
        if name in self._known:
            raise ValueError(f"{self.kind} {name!r} is registered already")
        self._known[name] = cast("F", function)
        return function

    @property
    def names(self) -> list[str]:
        return sorted(self._known)

    def options(self, name: str) -> dict[str, Any]:
        """Hyperparameters of a function with their defaults."""
        parameters = inspect.signature(self.find(name)).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def find(self, name: str) -> F:
        """A known name, or the dotted path of somebody's own function (`package.module.function`)."""
        if name in self._known:
            return self._known[name]
        if not is_dotted(name):
            raise ValueError(
                f"unknown {self.kind} {name!r}; known: {', '.join(self.names)}, or a dotted path"
            )
        found = find_dotted(self.kind, name)
        if not callable(found):
            raise ValueError(f"{self.kind} {name!r} is no function but {found!r}")
        return cast("F", found)

    def build(self, spec: str | Mapping[str, Any] | F) -> F:
        """`"odd"`, `{"name": "odd", "normalize": False}`, a dotted path, or the function itself."""
        if isinstance(spec, str):
            spec = {"name": spec}
        if not isinstance(spec, Mapping):
            if not callable(spec):
                raise ValueError(
                    f"{self.kind} must be a name, a mapping with a name, or a function, not {spec!r}"
                )
            if isinstance(
                spec, partial
            ):  # what was declared of the function holds for it with some options, too
                return cast(
                    "F", update_wrapper(partial(spec.func, *spec.args, **spec.keywords), spec.func)
                )
            return spec
        options = {k: v for k, v in spec.items() if k != "name"}
        if not isinstance(spec.get("name"), str):
            raise ValueError(
                f"{self.kind} {dict(spec)!r} has no 'name'; known: {', '.join(self.names)}"
            )
        function = self.find(spec["name"])
        known = self.options(spec["name"])
        if unknown := sorted(options.keys() - known.keys()):
            allowed = ", ".join(known) or "none"
            raise ValueError(
                f"{self.kind} {spec['name']!r} has no option {unknown[0]!r}; options: {allowed}"
            )
        return (
            cast("F", update_wrapper(partial(function, **options), function))
            if options
            else function
        )


def is_dotted(name: str) -> bool:
    return name.replace(":", ".").rpartition(".")[0] != ""


def find_dotted(kind: str, path: str) -> Any:
    """What `package.module.name` leads to, on sys.path or in the current folder.

    A mistake in the file itself is told with the lines that led to it, without those of the import.
    """
    module, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        return getattr(_imported(module), attribute)
    except Exception as error:  # whatever the code of a file raises
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not _imports(frame.filename)
        ]
        told = f" {error}"
        if frames or isinstance(error, SyntaxError):
            lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
            told = "\n" + "".join(lines).rstrip()
        raise ValueError(f"{kind} {path!r} cannot be imported:{told}") from None


def _imported(module: str) -> ModuleType:
    """The current folder is asked for what is nowhere else, and only then on the path: console
    scripts start without it, and nothing that lies there may stand in for what is installed, or for
    an extra that is not.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top, here = module.partition(".")[0], str(Path.cwd())
        if error.name != top or here in sys.path or PathFinder.find_spec(top, [here]) is None:
            raise
    sys.path.append(here)
    return importlib.import_module(module)


def _imports(filename: str) -> bool:
    """Is it code that imports others?"""
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")

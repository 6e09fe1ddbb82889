"""Registries of named functions whose keyword-only arguments are their hyperparameters."""

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
    """Functions of one kind by name: policies, objectives, features and so on."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._known: dict[str, F] = {}

    def register(self, function: R) -> R:
        """Register a function under its own name."""
        name = function.__name__
        if name in self._known:
            raise ValueError(f"{self.kind} {name!r} is registered already")
        self._known[name] = cast("F", function)
        return function

    @property
    def names(self) -> list[str]:
        return sorted(self._known)

    def options(self, name: str) -> dict[str, Any]:
        """Return the hyperparameters of a function with their defaults."""
        parameters = inspect.signature(self.find(name)).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def find(self, name: str) -> F:
        """Return the function of a registered name or dotted path (`package.module.function`)."""
        if name in self._known:
            return self._known[name]
        if not is_dotted(name):
            raise ValueError(
                f"unknown {self.kind} {name!r}; known: {', '.join(self.names)}, or a dotted path"
            )
        found = find_dotted(self.kind, name)
        if not callable(found):
            raise ValueError(f"{self.kind} {name!r} is not a function but {found!r}")
        return cast("F", found)

    def build(self, spec: str | Mapping[str, Any] | F) -> F:
        """Return the function of a spec, with its options applied.

        A spec is `"odd"`, `{"name": "odd", "normalize": False}`, a dotted path, or a function.
        """
        if isinstance(spec, str):
            spec = {"name": spec}
        if not isinstance(spec, Mapping):
            if not callable(spec):
                raise ValueError(
                    f"{self.kind} must be a name, a mapping with a name, or a function, "
                    f"not {spec!r}"
                )
            if isinstance(spec, partial):  # attributes of the function also hold with options
                bound = partial(spec.func, *spec.args, **spec.keywords)
                return cast("F", update_wrapper(bound, spec.func))
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
        if not options:
            return function
        return cast("F", update_wrapper(partial(function, **options), function))


def is_dotted(name: str) -> bool:
    return name.replace(":", ".").rpartition(".")[0] != ""


def find_dotted(kind: str, path: str) -> Any:
    """Import `package.module.name` from sys.path or the current folder.

    An error in the file itself is reported with its own traceback, without the lines of the import.
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
        reason = f" {error}"
        if frames or isinstance(error, SyntaxError):
            lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
            reason = "\n" + "".join(lines).rstrip()
        raise ValueError(f"{kind} {path!r} cannot be imported:{reason}") from None


def _imported(module: str) -> ModuleType:
    """Import a module, falling back to the current folder for modules that are not installed.

    Local files can therefore never shadow a dependency, nor an optional one that is missing.
    (Console scripts do not put the current folder on sys.path.)
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
    """Whether a file belongs to the import machinery."""
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")

"""The first code that runs inside: imports this package from code objects compiled outside."""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any


class Bundle:
    """Finder and loader of the modules that were compiled outside."""

    def __init__(self, modules: dict[str, CodeType]) -> None:
        self.modules = modules

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        file = self.modules[name].co_filename
        spec = ModuleSpec(name, self, origin=file, is_package=file.endswith("__init__.py"))  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave creating the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self.modules[module.__name__], module.__dict__)


def start(modules: dict[str, CodeType], name: str, argv: list[str]) -> None:
    sys.meta_path.insert(0, Bundle(modules))
    __import__(name)
    sys.modules[name].main(argv)

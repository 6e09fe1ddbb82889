"""Published architectures, one file each.

Every `Architecture` defined in a file of this folder is found without being listed.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ..loading.architecture import Architecture


@cache
def architectures() -> tuple[Architecture, ...]:
    """Return all architectures, in the order of their files."""
    modules = [import_module(f".{module.name}", __name__) for module in iter_modules(__path__)]
    found = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Architecture)
    ]
    return tuple({architecture.name: architecture for architecture in found}.values())

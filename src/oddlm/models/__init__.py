"""Networks that predict tokens, one file each, and wrappers around them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from ..types import Model

KNOWN = {"mini": "oddlm.models.mini.Mini", "toy": "oddlm.models.toy.Toy"}


def load_model(name: str, **options: Any) -> Model:
    """A known model, or the dotted path of somebody's own class or function that gives one."""
    model = find_model(name)(**options)
    if missing := [a for a in ("mask_id", "vocab_size", "protected_ids", "__call__") if not hasattr(model, a)]:
        raise ValueError(f"model {name!r} gives a {type(model).__name__} without {', '.join(missing)}")
    return cast("Model", model)


def find_model(name: str) -> Callable[..., Any]:
    """What makes the model; nothing is loaded yet."""
    path = KNOWN.get(name, name)
    module, _, attribute = path.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(KNOWN)}, or the dotted path of a class or function")
    try:
        return cast("Callable[..., Any]", getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model {name!r} cannot be imported: {error}") from error

"""Models: networks that predict tokens, loaders for checkpoints, and wrappers."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..core.model import Model, info_of
from ..registry import find_dotted, is_dotted
from .smol import smol_folder

if TYPE_CHECKING:
    from .loading.pretrained import Outline

KNOWN = {"mini": "oddlm.models.mini.Mini", "toy": "oddlm.models.toy.Toy"}
# Checkpoints with a name of their own; the function returns the folder, and may make it first.
ALIASES: dict[str, Callable[[], Path]] = {"smol": smol_folder}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_model(name: str, **options: Any) -> Model:
    """Load a model by name.

    name: a known model, a checkpoint (a folder, an alias or a name on the hub), or the dotted
        path of a class or function.
    """
    from .loading.device import named_dtype

    factory = find_model(name)
    if isinstance(options.get("dtype"), str):
        options["dtype"] = named_dtype(options["dtype"])
    _check_options(name, factory, options)
    model = factory(**options)
    info_of(model, f"model {name!r}")
    return cast("Model", model)


def outline_model(name: str, **options: Any) -> "Outline | None":
    """Describe a checkpoint without reading or downloading its weights.

    Return None if the model is not a checkpoint.
    """
    check_model(name, **options)
    if not is_checkpoint(name):
        return None
    from .loading.pretrained import Source, outline

    source = {
        key: value
        for key, value in options.items()
        if key in ("revision", "local_files_only", "cache_dir")
    }
    return outline(Source(name, **source), options.get("mask_id"), options.get("block_size"))


def model_digest(name: str, *, revision: str | None = None) -> str:
    """Return a digest of the model's weights that does not depend on their location.

    See `oddlm.models.loading.weights`. Nothing is loaded. Raise ValueError if there is no such
    model.
    """
    from .loading import weights

    factory = find_model(name)
    if is_checkpoint(name):
        from .loading.pretrained import Source, source_digest

        return source_digest(Source(name, revision))
    if name == "toy":
        return str(factory().weights.digest)
    if name == "mini" or Path(name).is_dir():
        from .mini import HERE, mini_files

        return weights.files_digest(mini_files(HERE if name == "mini" else Path(name)))
    try:
        source = inspect.getsourcefile(inspect.unwrap(factory))
    except TypeError:  # built-in objects have no source
        source = None
    return weights.NAME + name if source is None else weights.source_digest(Path(source))


def check_model(name: str, **options: Any) -> None:
    """Raise ValueError if the model or one of its options does not exist; nothing is loaded."""
    _check_options(name, find_model(name), options)


def find_model(name: str) -> Callable[..., Any]:
    """Return the callable that creates the model; nothing is loaded yet."""
    if name.endswith(".gguf") and not Path(name).is_dir():
        raise ValueError(
            f"{name!r} is a GGUF file, which holds a causal model: make a diffusion model of it "
            "with `oddlm adapt`, and give the folder that this writes"
        )
    if is_checkpoint(name):
        from .loading.pretrained import load_pretrained

        return partial(load_pretrained, name)
    if name not in KNOWN and Path(name).is_dir():
        from .mini import Mini

        return partial(Mini, name)  # written by `oddlm train`
    if "/" in name or "\\" in name:
        raise ValueError(
            f"there is no folder {name!r}, and a name on the hub has the form organisation/model"
        )
    path = KNOWN.get(name, name)
    if not is_dotted(path):
        known = ", ".join([*KNOWN, *ALIASES])
        raise ValueError(
            f"unknown model {name!r}; known: {known}, or the dotted path of a class or function, "
            "or a checkpoint: a folder or a name on the hub (organisation/model)"
        )
    return cast("Callable[..., Any]", find_dotted("model", path))


def is_checkpoint(name: str) -> bool:
    """Return whether the name is an alias, a folder in a published layout, or one on the hub."""
    if name in KNOWN or name in ALIASES:
        return name in ALIASES
    if not Path(name).is_dir():
        return HUB_NAME.fullmatch(name) is not None
    from .loading.checkpoint import CONFIG, read_json

    path = Path(name, CONFIG)
    return not path.is_file() or "width" not in read_json(path)


def _check_options(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some built-in classes have no signature
        return
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unknown = [option for option in options if option not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"model {name!r} has no option {unknown[0]!r}; options: {', '.join(known) or 'none'}"
        )

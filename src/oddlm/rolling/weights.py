"""Weights from a trainer into the network of a model."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.model import Model, info_of
from ..lm import LM
from ..models.wrappers import network_of


def sync(model: LM | Model, state_dict: Mapping[str, Tensor]) -> None:
    """Copy weights into the network of a model, in place.

    It is for a network that is not the one being trained; a network that is needs no copy.

    Args:
        model: The model, or the LM that holds it.
        state_dict: The weights under the names of the network's own `state_dict`, all of them, on
            any device and in any precision.

    Raises:
        ValueError: A name or a shape is wrong. Nothing has been changed then.
    """
    held = model.model if isinstance(model, LM) else model
    network = network_of(held)
    if network is None:
        raise ValueError(f"{info_of(held).name} has no torch module whose weights could be set")
    own = network.state_dict()
    if missing := [name for name in own if name not in state_dict]:
        raise ValueError(f"state_dict lacks {missing[0]!r}, which the network has")
    for name, new in state_dict.items():
        if name not in own:
            raise ValueError(f"state_dict holds {name!r}, which the network does not have")
        if not isinstance(new, Tensor) or new.shape != own[name].shape:
            shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ValueError(f"{name} is {shape}, but the network's is {tuple(own[name].shape)}")
    with torch.no_grad():
        for name, new in state_dict.items():
            own[name].copy_(new)
    if hasattr(held, "weights"):
        held.weights = None  # they are no longer those of the file

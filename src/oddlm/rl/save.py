"""Write a trained network as a model that `oddlm.load` reads."""

import shutil
from pathlib import Path

from ..models import is_checkpoint
from ..models.loading.causal import save_weights
from ..models.loading.checkpoint import INDEX, describe
from ..models.loading.hub import SMALL, Repo
from ..models.loading.pretrained import Source
from ..models.mini import HERE, TOKENIZER, mini_files, save_checkpoint
from ..models.transformer import Transformer


def save_model(name: str, network: Transformer, folder: Path) -> None:
    """Write a network in the layout of the model of this name, with its tokenizer.

    The weights are in bfloat16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not is_checkpoint(name):
        save_checkpoint(network, folder)
        own = mini_files(HERE if name == "mini" else Path(name))[TOKENIZER]
        shutil.copyfile(own, folder / TOKENIZER)
        return
    place = Source(name).place
    source = place.small_files() if isinstance(place, Repo) else place
    for part in SMALL:
        if part != INDEX and (source / part).is_file():
            shutil.copyfile(source / part, folder / part)
    save_weights(network, describe(source), folder)

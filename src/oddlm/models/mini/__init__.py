"""The mini model: a small diffusion language model in the package, for countdown and minicode."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ...checks import whole
from ..cache import Cache
from ..loading.device import chosen_device
from ..loading.weights import of_files
from ..native import Native
from ..transformer import Transformer, TransformerConfig

HERE = Path(__file__).parent
CONTEXT = 256
CONFIG, WHOLE, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


class MiniTokenizer:
    """The tokenizer of the mini model.

    Numbers are split into groups of three digits from the right, one token each. The vocabulary
    of minicode is covered by BPE, everything else by bytes.
    """

    def __init__(self, path: Path = HERE / TOKENIZER) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exceptions
            raise ValueError(
                f"the tokenizer {path} cannot be read ({error}): reinstall or copy it again"
            ) from error
        self.pad_id, self.eos_id, self.mask_id = (
            self._special(t) for t in ("<pad>", "<eos>", "<mask>")
        )
        self.size: int = self._tokenizer.get_vocab_size()
        self._tokenizer.encode_special_tokens = True  # "<mask>" in a text is plain text

    def _special(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ValueError(f"the tokenizer has no token {token}: it belongs to another model")
        return int(number)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Encode the messages unchanged, each followed by a line break as in training."""
        return self.encode(
            "".join(message["content"].removesuffix("\n") + "\n" for message in messages)
        )

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class Mini(Native):
    """The network in the package, or a folder with one trained by the same recipe.

    cache, refresh, compiled: see `Native`.
    """

    def __init__(
        self,
        folder: Path | str = HERE,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        cache: Cache | None = None,
        refresh: int | None = None,
        compiled: str | None = None,
    ) -> None:
        folder, place = Path(folder), chosen_device(device)
        files = mini_files(folder)
        weights, tokenizer = of_files(files), MiniTokenizer(files[TOKENIZER])
        super().__init__(
            load_checkpoint(folder, tokenizer.size).to(place, dtype),
            name="mini",
            mask_id=tokenizer.mask_id,
            end_ids=(tokenizer.eos_id, tokenizer.pad_id),
            context=CONTEXT,
            tokenizer=tokenizer,
            weights=weights,
            cache=cache,
            refresh=refresh,
            compiled=compiled,
        )


def mini_files(folder: Path) -> dict[str, Path]:
    """Return all files the model in a folder depends on.

    A folder without a tokenizer uses the one in the package.
    """
    own = folder / TOKENIZER
    found = {
        CONFIG: folder / CONFIG,
        WHOLE: folder / WHOLE,
        TOKENIZER: own if own.exists() else HERE / TOKENIZER,
    }
    for path in found.values():
        if not path.is_file():
            raise ValueError(
                f"the checkpoint in {folder} cannot be read (no {path.name}): reinstall or copy it "
                "again"
            )
    return found


def save_checkpoint(network: Transformer, folder: Path) -> None:
    """Write config.json, and the weights in bfloat16."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(asdict(network.config), indent=1) + "\n")
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in network.state_dict().items()
    }
    save_file(weights, folder / WHOLE)


def load_checkpoint(folder: Path, vocab_size: int) -> Transformer:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = TransformerConfig(**json.loads((folder / CONFIG).read_text()))
        if config.block_length is not None:
            whole("block_length", config.block_length)
        weights = load_file(folder / WHOLE)
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"the checkpoint in {folder} cannot be read ({error}): reinstall or copy it again"
        ) from error
    if config.vocab_size != vocab_size:
        raise ValueError(
            f"the network in {folder} has a vocabulary of {config.vocab_size} tokens, but the "
            f"tokenizer has {vocab_size}"
        )
    network = Transformer(config)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {error}") from error
    return network

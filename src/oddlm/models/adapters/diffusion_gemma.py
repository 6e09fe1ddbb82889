"""DiffusionGemma, with the network of transformers.

Its canvases are our blocks: they are drafted (`core.drafts`), with what the checkpoint says about
temperature and stopping.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...checks import finite, ids, whole
from ...core.blocks import Blocks
from ...core.model import Drafting, ModelInfo, Query, Session
from ..families.published import END_TEXTS
from ..loading.architecture import Keys
from ..loading.checkpoint import CONFIG, read_json
from ..loading.hub import GENERATION
from ..loading.tokenizer import TextTokenizer
from ..loading.weights import Weights

MODEL_TYPE = "diffusion_gemma"
NEEDS = (
    "DiffusionGemma needs the extra 'transformers', with transformers 5.22 or later: "
    "pip install 'oddlm[transformers]'"
)
# What transformers takes for settings that a checkpoint lacks.
USUAL = {
    "max_denoising_steps": 48,
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
}
USUAL_BOUND = 0.1
END_KEYS = ("eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the authors sample a checkpoint, from its generation_config.json."""

    steps: int  # per canvas
    hottest: float
    coldest: float
    bound: float  # of the entropies that are accepted together, in nats
    stable: int
    certain: float

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> "Sampling":
        """Check the settings; those that are absent or null are the usual ones."""
        found = {**USUAL, **{key: x for key, x in values.items() if x is not None}}
        sampler = found.get("sampler_config", {"entropy_bound": USUAL_BOUND})
        if not isinstance(sampler, Mapping):  # transformers' own object
            sampler = {"entropy_bound": getattr(sampler, "entropy_bound", None)}
        bound = sampler.get("entropy_bound")
        low, high, certain, bound = (
            finite(f"{where}: {key}", x)
            for key, x in (
                ("t_min", found["t_min"]),
                ("t_max", found["t_max"]),
                ("confidence_threshold", found["confidence_threshold"]),
                ("sampler_config: entropy_bound", bound),
            )
        )
        if not low <= high or high == 0:
            raise ValueError(f"{where}: t_max must be at least t_min and above 0, not {high!r}")
        return cls(
            steps=whole(f"{where}: max_denoising_steps", found["max_denoising_steps"]),
            hottest=high,
            coldest=low,
            bound=bound,
            stable=whole(f"{where}: stability_threshold", found["stability_threshold"], 0),
            certain=certain,
        )


class DiffusionGemma:
    """A `DiffusionGemmaForBlockDiffusion` of transformers, as an oddlm model.

    published: the settings of `LM.generate` with which its authors sample one canvas. Nothing
        applies them by itself; the other rules of their sampler always hold.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        *,
        name: str,
        end_ids: Sequence[int],
        sampling: Sampling,
        weights: Weights | None = None,
    ) -> None:
        text = network.config.get_text_config()
        self.network, self.tokenizer, self.name, self.weights = network, tokenizer, name, weights
        self.mask_id = None
        self.vocab_size: int = text.vocab_size
        self.context: int = text.max_position_embeddings
        self.canvas: int = network.config.canvas_length
        self.end_ids = tuple(end_ids)
        self.sampling = sampling
        self.embedding: Tensor = network.model.decoder.embed_tokens.weight.detach()
        self.device = self.embedding.device

    @property
    def published(self) -> dict[str, Any]:
        return {
            "length": self.canvas,
            "steps": self.sampling.steps,
            "temperature": self.sampling.hottest,
            "policy": {"name": "entropy_bound", "bound": self.sampling.bound},
        }

    @property
    def info(self) -> ModelInfo:
        rule = self.sampling
        return ModelInfo(
            vocab_size=self.vocab_size,
            mask_id=None,
            end_ids=self.end_ids,
            name=self.name,
            digest=None if self.weights is None else self.weights.identity,
            context=self.context,
            device=self.device,
            dtype=torch.float32,
            embedding=self.embedding,
            process="uniform",
            confidence="sampled",
            drafting=Drafting(
                stable=rule.stable,
                certain=rule.certain,
                cooling=rule.coldest / rule.hottest,
                echo=self.embedding.dtype,
            ),
            block_length=self.canvas,
            selective=True,
            position_bytes=self._position_bytes,
        )

    @property
    def _position_bytes(self) -> int:
        text = self.network.config.get_text_config()
        layers = [text.per_layer_config[i] for i in range(text.num_hidden_layers)]
        heads = sum(2 * layer.num_key_value_heads * layer.head_dim for layer in layers)
        return int(heads) * self.embedding.element_size()

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        """Return the logits of whole answers: of each canvas after those before it.

        Without self-conditioning, as at the first step of a canvas.
        """
        masked = torch.ones_like(tokens[:, start:], dtype=torch.bool)
        blocks = Blocks.lay(masked, self.canvas, prompt_lengths, "answer")
        query = Query("a call", 0, tokens, start, prompt_lengths, None, None, None, blocks)
        session = self.session(query)
        parts = [
            session(replace(query, number=i, blocks=replace(blocks, front=i)))
            for i in range(blocks.count)
        ]
        return torch.cat(parts, dim=1)

    def session(self, query: Query) -> Session:
        """Open a session for the run that begins with this query."""
        from .canvas_session import CanvasSession

        return CanvasSession(self.network, query)


def is_diffusion_gemma(keys: Keys) -> bool:
    """Return whether config.json describes one."""
    return bool(keys.get("model_type") == MODEL_TYPE)


@dataclass(frozen=True, slots=True)
class Described:
    """A checkpoint of DiffusionGemma without its weights."""

    folder: Path
    keys: Keys
    context: int
    vocab_size: int
    canvas: int
    sampling: Sampling
    end_ids: tuple[int, ...]  # from the configuration files


def describe(folder: Path, keys: Keys) -> Described:
    """Read the configuration files; raise ValueError if they do not describe a DiffusionGemma."""
    text, canvas = keys.table("text_config"), keys.whole("canvas_length")
    keys.only(quantization_config=None, transformers_weights=None, fusion_config=None)
    keys.table("vision_config").only(model_type="gemma4_vision")
    text.only(model_type="diffusion_gemma_text")
    path = folder / GENERATION
    generation = Keys(str(path), read_json(path) if path.is_file() else {})
    vocab_size, context = text.whole("vocab_size"), text.whole("max_position_embeddings")
    if canvas >= context:
        raise ValueError(
            f"{keys.where}: canvas_length {canvas} does not fit into the context of {context}"
        )
    ends = _ends(keys.where, [text.values, keys.values, generation.values], vocab_size)
    sampling = Sampling.read(generation.values, str(path))
    return Described(folder, keys, context, vocab_size, canvas, sampling, ends)


def wrapped_ends(network: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end an answer of a network that was loaded with transformers."""
    text = network.config.get_text_config()
    sources = [vars(x) for x in (text, network.config, network.generation_config)]
    sources.append({key: getattr(tokenizer, key, None) for key in END_KEYS})
    return _ends("the configuration", sources, text.vocab_size)


def _ends(where: str, sources: Sequence[Mapping[str, Any]], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end an answer, from several configurations."""
    found: list[Any] = []
    for source in sources:
        for key in END_KEYS:
            value = source.get(key)
            found += value if isinstance(value, list | tuple) else [value]
    given = dict.fromkeys(x for x in found if x is not None)
    return ids(f"{where}: end tokens", list(given), vocab_size)


def end_ids(described: Described, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the ids that end an answer, from the configuration files and the tokenizer."""
    if tokenizer.size > described.vocab_size:
        raise ValueError(
            f"{described.keys.where} has a vocabulary of {described.vocab_size} tokens, but its "
            f"tokenizer has {tokenizer.size}"
        )
    named = [tokenizer.id_of(tokenizer.tokens[name]) for name in ("eos_token", "pad_token")]
    named += [tokenizer.special.get(text) for text in END_TEXTS]
    return tuple(dict.fromkeys([*described.end_ids, *(x for x in named if x is not None)]))


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that only our own networks have."""
    if given := [option for option, value in options.items() if value is not None]:
        raise ValueError(
            f"{name} is a DiffusionGemma, whose network is that of transformers: it has no option "
            f"{given[0]}; load the network with transformers and pass it to oddlm.wrap"
        )


def network_class() -> Any:
    """Return transformers' class of the network; raise ValueError if it is not installed."""
    try:
        from transformers import DiffusionGemmaForBlockDiffusion
    except ImportError as error:
        raise ValueError(NEEDS) from error
    return DiffusionGemmaForBlockDiffusion


def load_network(described: Described, *, device: torch.device, dtype: torch.dtype) -> Any:
    """Load the network of transformers; raise ValueError if its weights are not complete."""
    known, folder = network_class(), described.folder
    try:
        with _quiet():
            network, told = known.from_pretrained(
                folder,
                # Not read from the folder: sampling is ours.
                generation_config=known.generation_config_class(),
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                # Named here, since a configuration can name kernels on the hub, which are code.
                attn_implementation="sdpa",
                experts_implementation="eager" if dtype == torch.float64 else None,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # of pydantic, safetensors, torch and transformers itself
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"transformers cannot load {folder} ({reason})") from error
    if missing := sorted(told["missing_keys"]):
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ValueError(
            f"the weights in {folder} do not fit its {CONFIG}: missing "
            f"{', '.join(missing[:5])}{more}: copy or download it again"
        )
    return network.to(device).eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Draw the progress bars of transformers on a terminal only."""
    from transformers.utils import logging

    hushed = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if hushed:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hushed:
            logging.enable_progress_bar()

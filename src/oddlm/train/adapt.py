"""Turn a causal language model into a masked diffusion model, and train it on prompt/answer pairs.

Run it with `oddlm adapt recipes/smol/config.toml`, or as several processes with torchrun. The
network keeps predicting position j from position j - 1, so its output head stays useful; attention
becomes bidirectional, at once or over the first steps, in which a growing random share of later
positions is visible (Gong et al. 2024, arXiv:2410.17891).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config import checked, read_toml
from ..files import make_folder
from ..models.loading.causal import adapt_tokenizer, adapted_ids, describe_causal, save_adapted
from ..models.loading.checkpoint import Description, load_network
from ..models.loading.difference import (
    difference,
    in_three_levels,
    matrices,
    save_difference,
)
from ..models.loading.gguf import convert_gguf
from ..models.loading.weights import SHA256, files_digest
from ..models.transformer import Layout, Transformer
from .card import write_card
from .loop import (
    PairsConfig,
    Place,
    Progress,
    Run,
    adamw,
    corrupt,
    fit,
    measures,
    step_seed,
    this_place,
    weighted_loss,
)
from .low_rank import add_low_rank, merge_low_rank
from .pairs import Bucket, Canvas, Pairs, read_pairs

TOKENIZER, MODEL, CARD = "tokenizer", "model", "README.md"
DIFFERENCE = "difference.safetensors"
HELD_OUT = 512  # pairs per bucket at most, of a measurement


class AdaptConfig(PairsConfig):
    base: Path = Field(description="A causal checkpoint: a folder, or a GGUF file.")
    data: Path = Field(description="JSONL with the texts `prompt` and `answer`.")
    held_out: Path = Field(description="JSONL like `data`, for measurements only.")
    mask_token: str | None = Field(
        None, description="A special token that texts do not need; default: one made for masks."
    )
    chat_template: str | None = Field(
        None, description="Replaces the base's; prompts go through it in training, too."
    )
    prompt: int = Field(256, ge=1, description="Tokens of the longest prompt.")
    length: int = Field(
        64, ge=2, description="Tokens of the answer region; the rest of it is end tokens."
    )
    bucket: int = Field(16, ge=1, description="Prompts are padded to a multiple of this.")
    batch: int = Field(256, ge=1, description="Pairs per step and process.")
    parts: int = Field(
        1, ge=1, description="A batch is computed in this many parts, from different buckets."
    )
    anneal: int = Field(
        0, ge=0, description="Steps over which attention becomes bidirectional; 0: at once."
    )
    rank: int | None = Field(
        None, ge=1, description="Train factors of this rank instead of whole matrices."
    )
    embedding: Literal["all", "answers", "none"] = Field(
        "all",
        description="Rows of the embedding to train: all, those of tokens in answers, or the mask "
        "token's alone.",
    )
    three_levels_from: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="From this share of the steps on, train with matrices that differ from the "
        "base in three levels only, so that the difference is small.",
    )
    compile: Literal["none", "fixed", "any"] = Field(
        "any", description="Compile the blocks: not at all, for every shape, or once for all."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.rank is not None and self.three_levels_from is not None:
            raise ValueError("rank and three_levels_from both make the difference small: use one")
        if self.embedding != "all" and self.weight_decay:
            raise ValueError(
                f"embedding {self.embedding!r} trains some rows, but weight_decay "
                f"{self.weight_decay:g} shrinks them all: set weight_decay to 0"
            )
        if self.batch % self.parts:
            raise ValueError(f"parts {self.parts} does not divide batch {self.batch}")
        return self


def read_adapt_config(path: Path, **changes: Any) -> AdaptConfig:
    given = {k: v for k, v in changes.items() if v is not None}
    content = {**read_toml(path), **given}
    for name in ("base", "data", "held_out"):
        if name not in content:
            raise ValueError(f"{path} has no {name}: give --{name.replace('_', '-')}")
    return checked(AdaptConfig, content)


class Objective(nn.Module):
    """The loss of a batch, as a module, so that processes can share its gradients."""

    def __init__(self, network: Transformer, focal: float) -> None:
        super().__init__()
        self.network, self.focal = network, focal

    def forward(
        self,
        canvas: Tensor,
        lengths: Tensor,
        answers: Tensor,
        mask: Tensor,
        t: Tensor,
        padded: bool,
        visible: Tensor | None,
    ) -> Tensor:
        logits = self.logits(canvas, lengths, answers.shape[1], padded, visible)
        return weighted_loss(logits, answers, mask, t, focal=self.focal)

    def logits(
        self, canvas: Tensor, lengths: Tensor, length: int, padded: bool, visible: Tensor | None
    ) -> Tensor:
        start = canvas.shape[1] - length
        layout = self.network.layout(canvas.shape[1], start, lengths if padded else lengths[:1])
        if not padded:
            layout = layout.unpadded()
        if visible is not None:
            mask = visible[None, None] if layout.mask is None else visible & layout.mask
            itself = torch.eye(len(visible), dtype=torch.bool, device=visible.device)  # padding too
            layout = Layout(layout.cos, layout.sin, mask | itself)
        return self.network.predict(canvas, start, lengths, layout)


class Training:
    """A network with its pairs: computes the loss of a step, and measures held-out pairs."""

    def __init__(
        self,
        config: AdaptConfig,
        place: Place,
        network: Transformer,
        mask_id: int,
        pairs: Pairs,
        held_out: Pairs,
    ) -> None:
        self.config, self.place, self.network, self.mask_id = config, place, network, mask_id
        self.pairs, self.held_out = pairs, held_out
        self.base = {name: value.clone() for name, value in network.state_dict().items()}
        network.train().requires_grad_(True)
        if config.rank is not None:
            add_low_rank(network, config.rank)
        _choose_rows(network, config.embedding, mask_id, pairs)
        self.objective = Objective(network, config.focal)
        self.shared = place.shared(self.objective)
        for block in network.blocks if config.compile != "none" else ():
            block.compile(dynamic=config.compile == "any")

    def loss_at(self, step: int) -> tuple[Tensor, str, int]:
        config, total, tokens = self.config, torch.zeros((), device=self.place.device), 0
        with self.as_stored(step):
            for part in range(config.parts):
                seed = step_seed(config.seed, step, self.place.rank, part)
                bucket = self.pairs.choose(step_seed(config.seed, step, part))  # all ranks agree
                generator = torch.Generator(self.place.device).manual_seed(seed)
                drawn = bucket.draw(config.batch // config.parts, generator)
                canvas, *rest = corrupt(*drawn, self.mask_id, generator)
                visible = self._visible(step, canvas.shape[1], generator)
                with self.place.autocast(config):
                    loss = self.shared(canvas, *rest, bucket.padded, visible) / config.parts
                loss.backward()
                total, tokens = total + loss.detach(), tokens + canvas.numel()
        return total, "pairs", tokens

    def _visible(self, step: int, T: int, generator: torch.Generator) -> Tensor | None:
        """Return which positions a position sees, [T, T], while attention is being opened."""
        if step >= self.config.anneal:
            return None
        device = self.place.device
        opened = torch.rand(T, T, generator=generator, device=device) < step / self.config.anneal
        return torch.ones(T, T, dtype=torch.bool, device=device).tril() | opened

    @contextmanager
    def as_stored(self, step: int) -> Iterator[None]:
        """Compute with the matrices that a stored difference gives back.

        The optimiser changes the exact ones: gradients pass straight through the rounding.
        """
        share = self.config.three_levels_from
        if share is None or step < share * self.config.steps:
            yield
            return
        exact = {name: parameter.data for name, parameter in matrices(self.network)}
        try:
            for name, parameter in matrices(self.network):
                parameter.data = in_three_levels(parameter.data, self.base[name])
            yield
        finally:
            for name, parameter in matrices(self.network):
                parameter.data = exact[name]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return the mean of `measures` over held-out pairs, weighted by their number."""
        generator = torch.Generator(self.place.device).manual_seed(0)
        found: list[tuple[int, dict[str, float]]] = []
        with self.as_stored(self.config.steps), self.place.autocast(self.config):
            for bucket in self.held_out.buckets:
                found.append(self._measure(bucket, generator))
        total = sum(count for count, _ in found)
        return {
            name: round(sum(count * values[name] for count, values in found) / total, 4)
            for name in found[0][1]
        }

    def _measure(self, bucket: Bucket, generator: torch.Generator) -> tuple[int, dict[str, float]]:
        count = min(HELD_OUT, len(bucket.lengths))
        canvas, lengths, answers, mask, t = corrupt(
            *bucket.at(slice(count)), self.mask_id, generator
        )
        logits = self.objective.logits(canvas, lengths, answers.shape[1], bucket.padded, None)
        return count, measures(logits, answers, mask, t)

    @torch.no_grad()
    def finish(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Leave the network as it is stored; return the factors of a low-rank adaptation."""
        if self.config.rank is not None:
            return merge_low_rank(self.network)
        if self.config.three_levels_from is not None:
            for name, parameter in matrices(self.network):
                parameter.copy_(in_three_levels(parameter, self.base[name]))
        return None


def adapt(
    config: AdaptConfig, out: Path, *, device: str | None = None, workers: int | None = None
) -> Path:
    """Train, or resume an interrupted run; return the folder of the finished checkpoint."""
    place = this_place(device)
    place.join()
    make_folder(out)
    described = describe_causal(_base_folder(config.base, out, place))
    tokenizer = adapt_tokenizer(
        described.folder,
        out / TOKENIZER,
        mask_token=config.mask_token,
        chat_template=config.chat_template,
    )
    mask_id, end_id = adapted_ids(described, tokenizer)
    canvas = Canvas(config.prompt, config.length, config.bucket, end_id)
    pairs, held_out = (
        read_pairs(path, out / TOKENIZER, canvas, place.device, workers)
        for path in (config.data, config.held_out)
    )
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    network = load_network(described, device=torch.device(place.device), dtype=torch.float32)
    training = Training(config, place, network, mask_id, pairs, held_out)
    optimiser = adamw((p for p in network.parameters() if p.requires_grad), config)
    run = Run(config, out, place, network, optimiser, training.loss_at, training.measure)
    progress = fit(run)
    if place.rank == 0:
        _save(out, described, training, progress)
    return out / MODEL


def _save(out: Path, described: Description, training: Training, progress: Progress) -> None:
    config, network = training.config, training.network
    measured = training.measure()
    factors = training.finish()
    save_adapted(network, described, out / TOKENIZER, training.mask_id, out / MODEL)
    if config.rank is not None or config.three_levels_from is not None:
        save_difference(out / DIFFERENCE, difference(network, training.base, factors))
    write_card(out / MODEL / CARD, config, described, training.pairs, progress, measured)


def _base_folder(base: Path, out: Path, place: Place) -> Path:
    """Return the folder of the base; a GGUF file is converted once."""
    if base.suffix.lower() != ".gguf":
        return base
    digest = files_digest({"": base}).removeprefix(SHA256)[:12]
    folder = out / f"base-{digest}"  # so another file is converted anew
    if place.rank == 0 and not folder.is_dir():
        convert_gguf(base, folder)
    if place.world > 1:
        torch.distributed.barrier()
    return folder


def _choose_rows(network: Transformer, embedding: str, mask_id: int, pairs: Pairs) -> None:
    """Train only some rows of the embedding, which is also the output head if they are tied."""
    if embedding == "all":
        return
    weight = network.embed.weight
    wanted = weight.new_zeros(len(weight), 1)
    wanted[mask_id] = 1
    if embedding == "answers":
        wanted[pairs.answer_ids().to(weight.device)] = 1
    weight.register_hook(lambda gradient: gradient * wanted)

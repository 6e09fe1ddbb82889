"""Diverse samples in the lm-evaluation-harness: its model `oddlm`.

`oddlm lm-eval` adds the model to those that the harness knows, and hands over to its command line:

    oddlm lm-eval --model oddlm --model_args pretrained=...,alpha=8 --tasks humaneval_64
"""

import inspect
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import torch

from .. import __version__
from ..checks import whole
from ..config import checked
from ..likelihood import Bound
from ..lm import LM, MAX_BATCH, load
from ..models import find_model
from ..params import SampleParams
from ..prompts import encode_continuation, encode_prompts
from ..spec import derived_seed
from ..text import cut

try:
    from lm_eval.api import model as harness
    from lm_eval.api.registry import model_registry
    from lm_eval.utils import (
        get_rolling_token_windows,
        handle_non_serializable,
        hash_string,
        make_disjoint_window,
        simple_parse_args_string,
    )
    from tqdm import tqdm
except ImportError as error:
    raise ImportError(
        "oddlm.integrations.lm_eval needs lm-evaluation-harness: pip install 'oddlm[lm-eval]'"
    ) from error

NAME = "oddlm"
DEVICE = "cuda:0"  # what the harness's command line passes if nobody chose a device
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
LOG = logging.getLogger(__name__)


class ChatPrompt(str):
    """A conversation as text, with its token ids: the text alone has lost the control tokens."""

    ids: list[int]


@dataclass(frozen=True)
class Document:
    """The samples that a document asks for."""

    prompt: list[int]
    n: int
    params: SampleParams
    seed: int
    stops: tuple[str, ...]


class HarnessLM(harness.LM):  # type: ignore[misc]
    """A model of the lm-evaluation-harness whose repeats of a document are diverse samples.

    Args:
        pretrained: A model as in `oddlm.load`, or an `oddlm.LM`.
        batch_size: Documents drawn together; "auto" fills a batch of `max_batch` samples.
        max_batch_size: Most documents drawn together with "auto".
        device: Device of the model, if it takes one.
        bound_draws: Answer likelihood tasks with a Monte-Carlo bound of that many draws. By default
            they are refused, because a masked diffusion model has no exact likelihood.
        **options: Fields of `SampleParams`, and options of `oddlm.load`.
    """

    def __init__(
        self,
        pretrained: str | LM,
        *,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        device: str | None = None,
        bound_draws: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.given = {
            name: value for name, value in options.items() if name in SampleParams.model_fields
        }
        self.params = checked(SampleParams, self.given)
        loading = {name: value for name, value in options.items() if name not in self.given}
        self.lm = _find_lm(pretrained, device, loading)
        self.batch_size, self.max_batch_size = str(batch_size), max_batch_size
        self.bound_draws = (
            None if bound_draws is None else whole("bound_draws", bound_draws, least=2)
        )
        self._used: dict[str, SampleParams] = {}  # by task

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> Self:
        """Make the model from `--model_args` and the harness's own options, which come second."""
        own = {
            name: value for name, value in (additional_config or {}).items() if value is not None
        }
        if own.get("device") == DEVICE and not torch.cuda.is_available():
            del own["device"]
        if "pretrained" not in arg_dict:
            raise ValueError("--model_args names no model: add pretrained=mini, or another one")
        return cls(**{**own, **arg_dict})

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> Self:
        """Make the model from one string; see `create_from_arg_obj`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness stores with its results; it asks after the evaluation."""
        info = self.lm.info
        return {
            NAME: {
                "version": __version__,
                "model": info.identity,
                "device": str(info.device),
                "dtype": str(info.dtype).removeprefix("torch."),
                "seed": self.params.seed,
                "params": {
                    task: params.model_dump(mode="json", exclude={"seed"})
                    for task, params in self._used.items()
                },
                "bound_draws": self.bound_draws,
            }
        }

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches prompts that went through a chat template."""
        return re.sub(r"\W+", "_", self.lm.info.identity)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the source of the chat template, for the harness's log."""
        if isinstance(chat_template, str):
            raise ValueError(
                f"--apply_chat_template {chat_template}: a checkpoint has one chat template here; "
                "give the option without a name"
            )
        return getattr(getattr(self.lm.tokenizer, "template", None), "source", "")

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> ChatPrompt:
        """Render a conversation; without a generation prompt its last message is continued."""
        tokenizer: Any = self.lm.tokenizer
        template = getattr(tokenizer, "template", None)
        if template is None and (hasattr(tokenizer, "template") or not hasattr(tokenizer, "chat")):
            raise ValueError(
                f"{self.lm.info.name} has no chat template: leave out --apply_chat_template"
            )
        messages, begun = list(chat_history), ""
        if not add_generation_prompt:
            begun = messages.pop()["content"]
        ids = tokenizer.chat(messages)
        shown = (
            tokenizer.decode(ids)
            if template is None
            else "".join(part for part, _ in template.segments(messages))
        )
        prompt = ChatPrompt(shown + begun)
        prompt.ids = [*ids, *(encode_continuation(tokenizer, begun) if begun else ())]
        return prompt

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Draw the samples of every document; its repeats are the samples of one group."""
        if self.cache_hook.dbdict is not None:
            raise ValueError(
                "--use_cache keeps a single text for all repeats of a document: leave it out"
            )
        groups = [list(group) for _, group in groupby(requests, key=id)]
        documents = [self._document(group[0], len(group)) for group in groups]  # checks all first
        texts: dict[int, list[str]] = {}
        with tqdm(total=len(documents), disable=disable_tqdm, desc="documents") as bar:
            for some in self._batches(documents):
                texts |= zip(some, self._draw([documents[i] for i in some]), strict=True)
                bar.update(len(some))
        for group, one in zip(groups, documents, strict=True):
            prompt, settings, *rest = group[0].arguments
            # The sample log shows a request's arguments: the seed is stated there.
            group[0].arguments = (prompt, {**settings, "seed": one.seed}, *rest)
        return [text for i in range(len(groups)) for text in texts[i]]

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Estimate a bound of each continuation's log-likelihood, if the user asked for bounds."""
        self._check_bounds(requests)
        found = []
        for request in tqdm(requests, disable=disable_tqdm, desc="bounds"):
            prompt, answer = self._pair(*request.args[:2])
            bound = self._bound(prompt, answer, self._seed(request))
            found.append((bound.value, bound.is_greedy))
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Estimate a bound of each text's log-likelihood, if the user asked for bounds.

        A text longer than the model's context is cut into parts, each after what precedes it.
        """
        self._check_bounds(requests)
        found = []
        for request in tqdm(requests, disable=disable_tqdm, desc="bounds"):
            tokens = encode_continuation(self.lm.tokenizer, request.args[0])
            windows = get_rolling_token_windows(
                tokens,
                prefix_token=self._prefix,
                max_seq_len=(self.lm.info.context or len(tokens) + 1) - 1,
                context_len=1,
            )
            seed, total = self._seed(request), 0.0
            for prompt, answer in map(make_disjoint_window, windows):
                total += self._bound(prompt, answer, seed).value
            found.append(total)
        return found

    def _document(self, request: Any, n: int) -> Document:
        prompt, settings = request.args[:2]
        left = {name: value for name, value in settings.items() if value is not None}
        until = left.pop("until", [])
        stops = [until] if isinstance(until, str) else until
        if left.get("num_beams") == 1:
            del left["num_beams"]
        given = [left.pop(name) for name in LIMITS if name in left]
        if given and "length" not in left:  # a limit, so an own length may be shorter
            left["length"] = min(given[0], self.given.get("length", given[0]))
        self._choose_temperature(left, request.task_name)
        seed, ids, info = left.pop("seed", None), self._ids(prompt), self.lm.info
        try:
            params = self.params.with_settings(left)
            encode_prompts(None, [ids], params.length, context=info.context, raw=True)
        except ValueError as error:
            where = f"task {request.task_name}, document {request.doc_id}"
            raise ValueError(f"{where}: {error}") from None
        self._used[request.task_name] = params
        return Document(
            prompt=ids,
            n=n,
            params=params,
            seed=self._seed(request) if seed is None else seed,
            stops=tuple(stop for stop in stops if stop),
        )

    def _choose_temperature(self, settings: dict[str, Any], task: str) -> None:
        """Replace `do_sample` by a temperature; without both, the model's own holds.

        A warning tells when the model's own does not; it comes once per task.
        """
        sampled = settings.pop("do_sample", None)
        if sampled is False:
            settings["temperature"] = 0.0
        elif sampled and "temperature" not in settings and self.params.temperature == 0:
            settings["temperature"] = 1.0
        own, found = self.given.get("temperature"), settings.get("temperature")
        if None not in (own, found) and own != found and task not in self._used:
            LOG.warning(
                "task %s sets temperature %s, so temperature=%s of --model_args does not hold; "
                "--gen_kwargs do_sample=true,temperature=%s would",
                *(task, found, own, own),
            )

    def _batches(self, documents: Sequence[Document]) -> list[list[int]]:
        """Return the indices of documents to draw together: they have the same settings."""
        alike: dict[tuple[SampleParams, int], list[int]] = {}
        for i, one in enumerate(documents):
            alike.setdefault((one.params, one.n), []).append(i)
        found = []
        for (params, n), members in alike.items():
            if self.batch_size.startswith("auto"):
                fitting = (self.lm.max_batch or MAX_BATCH) // params.drawn(n)
                size = max(1, min(fitting, self.max_batch_size or fitting))
            else:
                size = whole("batch_size", int(self.batch_size))
            found += [members[first : first + size] for first in range(0, len(members), size)]
        return found

    def _draw(self, documents: Sequence[Document]) -> list[list[str]]:
        groups = self.lm.generate(
            [one.prompt for one in documents],
            documents[0].n,
            params=documents[0].params,
            seeds=[one.seed for one in documents],
            progress=False,
        )
        return [
            [cut(sample.text, one.stops)[0] for sample in group]
            for one, group in zip(documents, groups, strict=True)
        ]

    def _seed(self, request: Any) -> int:
        """Return the seed of a document, which depends on the run's seed and its content alone."""
        text = json.dumps(
            request.doc, indent=2, default=handle_non_serializable, ensure_ascii=False
        )
        return derived_seed(self.params.seed, hash_string(text))  # the log's `doc_hash`

    def _ids(self, prompt: str) -> list[int]:
        return prompt.ids if isinstance(prompt, ChatPrompt) else self.lm.tokenizer.encode(prompt)

    @property
    def _prefix(self) -> int:
        """What a text without anything before it follows."""
        ends = self.lm.info.end_ids
        if not ends:
            raise ValueError(f"{self.lm.info.name} has no end token for a text to follow")
        return ends[0]

    def _pair(self, prompt: str, answer: str) -> tuple[list[int], list[int]]:
        """Return the token ids of both; spaces between them belong to the answer."""
        if not prompt or isinstance(prompt, ChatPrompt):
            ids = self._ids(prompt) if prompt else [self._prefix]
            return ids, encode_continuation(self.lm.tokenizer, answer)
        bare = prompt.rstrip() or prompt
        answer = prompt[len(bare) :] + answer
        ids, both = self._ids(bare), self._ids(bare + answer)
        if both[: len(ids)] == ids:
            return ids, both[len(ids) :]
        return ids, encode_continuation(self.lm.tokenizer, answer)

    def _bound(self, prompt: list[int], answer: list[int], seed: int) -> Bound:
        assert self.bound_draws is not None
        return self.lm.loglikelihood_bound(prompt, answer, draws=self.bound_draws, seed=seed)

    def _check_bounds(self, requests: Sequence[Any]) -> None:
        if self.bound_draws is None:
            raise ValueError(
                f"task {requests[0].task_name} compares likelihoods, and a masked diffusion model "
                "has no exact one: choose tasks that generate text, or add bound_draws=128 to "
                "--model_args for a Monte-Carlo lower bound"
            )


def _find_lm(pretrained: str | LM, device: str | None, options: dict[str, Any]) -> LM:
    """Return the model; raise ValueError for options that it does not take."""
    known = ["max_batch"] if isinstance(pretrained, str) else []
    if isinstance(pretrained, str):
        known += inspect.signature(find_model(pretrained)).parameters
    if unknown := [name for name in options if name not in known]:
        raise ValueError(
            f"unknown model argument {unknown[0]!r}; known: bound_draws, "
            f"{', '.join((*known, *SampleParams.model_fields))}"
        )
    if not isinstance(pretrained, str):
        return pretrained
    if device is not None and "device" in known:
        options["device"] = device
    return load(pretrained, raw=True, **options)


def register() -> None:
    """Add the model to those that the harness knows."""
    import lm_eval.models  # noqa: F401 -- first: the harness fills its list only while it is empty

    model_registry.register(NAME)(HarnessLM)


def run(arguments: Sequence[str]) -> None:
    """Run the harness's own command line with our model among its models."""
    from lm_eval.__main__ import cli_evaluate

    register()
    before = sys.argv
    sys.argv = ["lm-eval", *arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = before

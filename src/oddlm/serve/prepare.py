"""From a request to work for the engine: everything that can be refused is refused here."""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.quota import Schedule
from ..core.step import Observer
from ..diversity.features import FEATURE_OPTIONS
from ..generate import LM, check_params
from ..params import SampleParams, checked
from ..pieces import PIECES
from ..presets import expanded
from ..registry import Registry
from .engine import Work
from .errors import ApiError
from .schema import ChatRequest, CompletionRequest, DenoiseRequest, Message
from .settings import ServeSettings, check_served

ROLES = {"developer": "system"}  # OpenAI's newer name; templates know the older one
MOST_STOPS = 4
LARGEST = 2**31


def prepare(
    lm: LM,
    settings: ServeSettings,
    request: CompletionRequest | ChatRequest | DenoiseRequest,
    watch: Callable[[SampleParams], Callable[[Callable[[Any], None]], Observer]] | None = None,
) -> Work:
    """The request as work; `watch` is told its parameters."""
    params = sample_params(settings, request.settings())
    check_size(request, settings.limits.max_prompt)
    if isinstance(request, ChatRequest):
        prompts = [chat_prompt(lm, request.messages)]
    else:
        prompts = [encode(lm, text) for text in request.prompts]
    limits = settings.limits
    if not prompts:
        raise ApiError(400, "prompt is an empty list: give at least one text", param="prompt")
    if request.n * len(prompts) > (most := min(limits.max_n, limits.max_rows)):
        raise ApiError(400, f"n is {request.n} for each of {len(prompts)} prompts; this server draws at most {most}", param="n")
    context = getattr(lm.model, "context", None)
    for ids in prompts:
        if not ids:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if context is not None and len(ids) + params.length > context:
            message = f"the prompt has {len(ids)} tokens; with {params.length} to write the model's {context} are too few"
            raise ApiError(400, message, code="context_length_exceeded")
    return Work(prompts, request.n, params, None if watch is None else watch(params))


def check_size(request: CompletionRequest | ChatRequest | DenoiseRequest, most: int) -> None:
    """In characters, all prompts or messages together: a tokenizer may take quadratic time."""
    size = sum(map(len, request.prompts))
    if size > most:
        message = f"the prompt has {size} characters; this server reads at most {most}"
        raise ApiError(400, message, code="context_length_exceeded")


def sample_params(settings: ServeSettings, given: Mapping[str, Any]) -> SampleParams:
    """The server's defaults with what the request says, all of it checked."""
    try:
        given = expanded(given)
    except ValueError as error:
        raise ApiError(400, str(error), param="objective") from None
    for kind, registry in PIECES.items():
        if kind in given and kind != "selector":  # none is served but the default, see `check_served`
            check_named(kind, registry, given[kind])
    default, usual, limits = expanded(settings.given), settings.defaults, settings.limits
    if "length" not in given:
        default["length"] = min(usual.length, limits.max_length)
    if "steps" not in given and usual.steps is not None:
        default["steps"] = min(usual.steps, {**default, **given}["length"])
    try:
        params = check_served(checked(SampleParams, {"seed": secrets.randbits(32), **default, **given}))
        steps = params.steps or params.length
        if steps > params.length:
            raise ValueError(f"steps {steps} are more than the {params.length} tokens to write: a step writes at least one")
        Schedule.plan(params.length, steps, params.block_length, fork=params.forks)
        check_params(params)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    for name, value, most in (("max_tokens", params.length, limits.max_length), ("steps", steps, limits.max_steps)):
        if value > most:
            raise ApiError(400, f"{name} is {value}; this server allows at most {most}", param=name)
    return params


def check_named(kind: str, registry: Registry[Any], spec: Any) -> None:
    """Registered names alone, never a dotted path: a request must not import anything. Options have their default's type."""
    name = spec.get("name") if isinstance(spec, dict) else spec
    if name not in registry.names:
        raise ApiError(400, f"unknown {kind} {name!r:.100}; known: {', '.join(registry.names)}", param=kind)
    known = registry.options(name) | (FEATURE_OPTIONS if kind == "feature" else {})
    for option, value in spec.items() if isinstance(spec, dict) else ():
        if option == "name":
            continue
        if option not in known:
            allowed = ", ".join(known) or "none"
            raise ApiError(400, f"{kind} {name!r} has no option {option!r:.100}; options: {allowed}", param=kind)
        if not _like(known[option], value):
            raise ApiError(400, f"{kind} option {option} must be like {known[option]!r}, not {value!r:.100}", param=kind)


def _like(default: Any, value: Any) -> bool:
    if isinstance(default, bool | str):
        return type(value) is type(default)
    if isinstance(default, tuple):
        return isinstance(value, list) and all(_like(0, item) for item in value)
    if default is None:  # an option that is off: who switches it on checks what number it takes
        return value is None or _like(0.0, value)
    if isinstance(default, float):
        return type(value) in (int, float) and math.isfinite(value) and abs(value) < LARGEST
    return type(value) is int and abs(value) < LARGEST


def encode(lm: LM, text: str) -> list[int]:
    """Token ids of a text, none of which may be a control token: a text must not end or mask anything."""
    ids = lm.tokenizer.encode(text)
    control = {lm.model.mask_id, *lm.model.end_ids} - set(lm.tokenizer.encode(""))
    if not control.isdisjoint(ids):
        raise ApiError(400, "the prompt holds the text of a control token, which this model's tokenizer would not read as text")
    return ids


def chat_prompt(lm: LM, messages: Sequence[Message]) -> list[int]:
    """The tokenizer's chat template where it has one; else, and raw, the messages as they are, each ended by a line break."""
    said = [{"role": ROLES.get(message.role, message.role), "content": message.text} for message in messages]
    template = getattr(lm.tokenizer, "chat", None)
    if lm.raw or template is None or getattr(lm.tokenizer, "template", template) is None:
        return encode(lm, "".join(line["content"].removesuffix("\n") + "\n" for line in said))
    for line in said:
        encode(lm, line["content"])
    try:
        return list(template(said))
    except ValueError as error:
        raise ApiError(400, str(error), param="messages") from None


def check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MOST_STOPS or not all(stops):
        raise ApiError(400, f"stop takes up to {MOST_STOPS} texts, none of them empty", param="stop")

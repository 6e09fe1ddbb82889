"""From a request to work for the engine: everything that can be refused is refused here."""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..config import checked
from ..core.quota import Quota
from ..core.step import Observer
from ..diversity.features import FEATURE_OPTIONS
from ..lm import LM, check_params, encode_template
from ..params import SampleParams
from ..pieces import PIECES
from ..presets import expanded
from ..registry import Registry
from .engine import Work
from .errors import ApiError
from .schema import ChatRequest, CompletionRequest, DenoiseRequest, Message
from .settings import ServeSettings

ROLES = {"developer": "system"}  # OpenAI's newer name; templates know the older one
MOST_STOPS = 4
LARGEST = 2**31


def prepare(
    lm: LM,
    settings: ServeSettings,
    request: CompletionRequest | ChatRequest | DenoiseRequest,
    watch: Callable[[SampleParams], Callable[[Callable[[Any], None]], Observer]] | None = None,
) -> Work:
    """The request as work; `watch` is told its parameters, unless its samples can be told only when
    all are finished.
    """
    limits = settings.limits
    check_size(request, limits.max_prompt)
    given = dict(request.settings())
    form = template_form(lm, settings, request)
    if form is not None:
        given["length"] = len(form)
    params = sample_params(settings, given)
    if isinstance(request, DenoiseRequest) and params.pool is not None:
        if "pool" in given:
            raise ApiError(
                400,
                "pool is not for a prompt to watch, as every sample is shown as it comes",
                param="pool",
            )
        params = params.model_copy(update={"pool": None})
    if isinstance(request, ChatRequest):
        prompts = [chat_prompt(lm, request.messages)]
    else:
        prompts = [encode(lm, text) for text in request.prompts]
    if not prompts:
        raise ApiError(400, "prompt is an empty list: give at least one text", param="prompt")
    check_samples(params, request.n, len(prompts), min(limits.max_n, limits.max_rows))
    info = lm.info
    if params.prompt_noise and not (info.nudges and info.embedding is not None):
        raise ApiError(
            400, "this server's model takes no prompt_noise: leave it out", param="prompt_noise"
        )
    for ids in prompts:
        if not ids:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if info.context is not None and len(ids) + params.length > info.context:
            message = f"the prompt has {len(ids)} tokens; with {params.length} to write the model's {info.context} are too few"
            raise ApiError(400, message, code="context_length_exceeded")
    at_end = form is not None or params.pool is not None
    shown = watch is not None and (not at_end or isinstance(request, DenoiseRequest))
    return Work(
        prompts,
        request.n,
        params,
        watch(params) if watch and shown else None,
        () if form is None else [form] * len(prompts),
    )


def template_form(
    lm: LM, settings: ServeSettings, request: CompletionRequest | ChatRequest | DenoiseRequest
) -> list[int | None] | None:
    """The request's template in tokens, None where one is to be written; None where it has no
    template.
    """
    template, most = request.template, settings.limits.max_length
    if isinstance(request, CompletionRequest) and request.suffix:
        if template is not None:
            raise ApiError(
                400,
                "a suffix is the end of a template: give suffix or template, not both",
                param="suffix",
            )
        hole = request.settings().get("length", min(settings.defaults.length, most))
        template = [hole, request.suffix]
    elif template is None:
        return None
    elif "length" in request.settings():
        raise ApiError(
            400,
            "a template says itself how many tokens to write: leave max_tokens out",
            param="max_tokens",
        )
    if len(template) > 2 * most + 1:
        raise ApiError(
            400,
            f"template has {len(template)} parts; this server takes at most {2 * most + 1}",
            param="template",
        )
    holes = sum(part for part in template if isinstance(part, int))
    if holes > most:
        raise ApiError(
            400,
            f"{holes} tokens are to be written; this server allows at most {most}",
            param="max_tokens",
        )
    for part in template:
        if isinstance(part, str):
            encode(lm, part, "template")
    try:
        form = list(encode_template(lm.tokenizer, lm.info, 0, template))
    except ValueError as error:
        raise ApiError(
            400, str(error).replace("templates[0]", "template"), param="template"
        ) from None
    if len(form) > most:
        raise ApiError(
            400,
            f"the template has {len(form)} tokens; this server allows at most {most}",
            param="template",
        )
    return form


def check_samples(params: SampleParams, n: int, prompts: int, most: int) -> None:
    """What is drawn counts, whether it is kept or not."""
    try:
        drawn = params.drawn(n)
    except ValueError as error:
        raise ApiError(400, str(error), param="pool") from None
    if drawn * prompts > most:
        name = "n" if params.pool is None else "pool"
        raise ApiError(
            400,
            f"{name} is {drawn} for each of {prompts} prompts; this server draws at most {most}",
            param=name,
        )


def check_size(request: CompletionRequest | ChatRequest | DenoiseRequest, most: int) -> None:
    """In characters, all prompts or messages and what is given of the answer: a tokenizer may take
    quadratic time.
    """
    size = sum(map(len, [*request.prompts, *request.given_texts]))
    if size > most:
        message = f"the prompt has {size} characters; this server reads at most {most}"
        raise ApiError(400, message, code="context_length_exceeded")


def sample_params(settings: ServeSettings, given: Mapping[str, Any]) -> SampleParams:
    """The server's defaults with what the request says, all of it checked."""
    given = expanded(given)
    for kind, registry in PIECES.items():
        if kind in given:
            check_named(kind, registry, given[kind])
    default, usual, limits = expanded(settings.given), settings.defaults, settings.limits
    if "length" not in given:
        default["length"] = min(usual.length, limits.max_length)
    if "steps" not in given and usual.steps is not None:
        default["steps"] = min(usual.steps, {**default, **given}["length"])
    try:
        params = checked(SampleParams, {"seed": secrets.randbits(32), **default, **given})
        steps = params.steps or params.length
        if steps > params.length:
            raise ValueError(
                f"steps {steps} are more than the {params.length} tokens to write: a step writes at least one"
            )
        Quota.plan(params.length, steps, params.block_length, fork=params.forks)
        check_params(params)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    for name, value, most in (
        ("max_tokens", params.length, limits.max_length),
        ("steps", steps, limits.max_steps),
    ):
        if value > most:
            raise ApiError(400, f"{name} is {value}; this server allows at most {most}", param=name)
    return params


def check_named(kind: str, registry: Registry[Any], spec: Any) -> None:
    """Registered names alone, never a dotted path: a request must not import anything.

    Options have their default's type.
    """
    name = spec.get("name") if isinstance(spec, dict) else spec
    if name not in registry.names:
        raise ApiError(
            400, f"unknown {kind} {name!r:.100}; known: {', '.join(registry.names)}", param=kind
        )
    known = registry.options(name) | (FEATURE_OPTIONS if kind == "feature" else {})
    for option, value in spec.items() if isinstance(spec, dict) else ():
        if option == "name":
            continue
        if option not in known:
            allowed = ", ".join(known) or "none"
            raise ApiError(
                400,
                f"{kind} {name!r} has no option {option!r:.100}; options: {allowed}",
                param=kind,
            )
        if not _like(known[option], value):
            raise ApiError(
                400,
                f"{kind} option {option} must be like {known[option]!r}, not {value!r:.100}",
                param=kind,
            )


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


def encode(lm: LM, text: str, where: str = "prompt") -> list[int]:
    """Token ids of a text, none of which may be a control token: a text must not end or mask
    anything.
    """
    ids, info = lm.tokenizer.encode(text), lm.info
    control = {info.mask_id, *info.end_ids} - set(lm.tokenizer.encode(""))
    if not control.isdisjoint(ids):
        message = f"the {where} holds the text of a control token, which this model's tokenizer would not read as text"
        raise ApiError(400, message, param=None if where == "prompt" else where)
    return ids


def chat_prompt(lm: LM, messages: Sequence[Message]) -> list[int]:
    """The tokenizer's chat template where it has one; else, and raw, the messages as they are, each
    ended by a line break.
    """
    said = [
        {"role": ROLES.get(message.role, message.role), "content": message.text}
        for message in messages
    ]
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
        raise ApiError(
            400, f"stop takes up to {MOST_STOPS} texts, none of them empty", param="stop"
        )

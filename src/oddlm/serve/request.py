"""Turns a request into work for the engine; every invalid request is refused here."""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..config import checked
from ..core.model import ModelInfo
from ..core.quota import Quota, plan_quota
from ..core.step import Observer
from ..diversity.features import FEATURE_OPTIONS
from ..drawing import check_params, with_blocks
from ..lm import LM, check_vote
from ..params import SampleParams
from ..pieces import PIECES
from ..presets import expanded
from ..prompts import encode_template
from ..registry import Registry
from ..tasks.base import task_names
from ..voting import Read
from .engine import Work
from .errors import ApiError
from .schema import ChatRequest, CompletionRequest, DenoiseRequest, Message
from .settings import ServeSettings

ROLES = {"developer": "system"}  # OpenAI's newer name; chat templates use the older one
MOST_STOPS = 4
LARGEST = 2**31


def prepare(
    lm: LM,
    settings: ServeSettings,
    request: CompletionRequest | ChatRequest | DenoiseRequest,
    watch: Callable[[Callable[[Any], None]], Observer] | None = None,
) -> Work:
    """Return the request as work for the engine; raise ApiError if it is invalid.

    `watch` becomes that of the work, unless samples are sent only when all are finished (with a
    template or a pool).
    """
    limits = settings.limits
    check_size(request, limits.max_prompt)
    given = dict(request.settings())
    form = template_form(lm, settings, request)
    if form is not None:
        given["length"] = len(form)
    params = sample_params(settings, given, lm.info)
    if isinstance(request, DenoiseRequest) and params.pool is not None:
        if "pool" in given:
            raise ApiError(
                400,
                "pool is not supported by /v1/denoise, which shows every sample: leave it out",
                param="pool",
            )
        params = params.model_copy(update={"pool": None})
    if isinstance(request, ChatRequest):
        prompts = [chat_prompt(lm, request.messages)]
    else:
        prompts = [encode(lm, text) for text in request.prompts]
    if not prompts:
        raise ApiError(400, "prompt is an empty list: send at least one text", param="prompt")
    check_samples(params, request.n, len(prompts), min(limits.max_n, limits.max_rows))
    info = lm.info
    if params.prompt_noise and not (info.nudges and info.embedding is not None):
        message = "prompt_noise is not supported by this server's model: leave it out"
        raise ApiError(400, message, param="prompt_noise")
    for ids in prompts:
        if not ids:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if info.context is not None and len(ids) + params.length > info.context:
            message = (
                f"the prompt ({len(ids)} tokens) and the sample ({params.length} tokens) "
                f"exceed the model's context of {info.context}"
            )
            raise ApiError(400, message, code="context_length_exceeded")
    at_end = form is not None or params.pool is not None
    shown = not at_end or isinstance(request, DenoiseRequest)
    return Work(
        prompts,
        request.n,
        params,
        watch if shown else None,
        () if form is None else [form] * len(prompts),
    )


def template_form(
    lm: LM, settings: ServeSettings, request: CompletionRequest | ChatRequest | DenoiseRequest
) -> list[int | None] | None:
    """Return the request's template in tokens, with None for each token to write.

    Return None if the request has no template.
    """
    template, most = request.template, settings.limits.max_length
    if isinstance(request, CompletionRequest) and request.suffix:
        if template is not None:
            raise ApiError(
                400,
                "suffix and template exclude each other: send only one of them",
                param="suffix",
            )
        hole = request.settings().get("length", min(settings.defaults.length, most))
        template = [hole, request.suffix]
    elif template is None:
        return None
    elif "length" in request.settings():
        raise ApiError(
            400,
            "template already sets the number of tokens to write: leave out max_tokens",
            param="max_tokens",
        )
    if len(template) > 2 * most + 1:
        raise ApiError(
            400,
            f"template has {len(template)} parts; this server accepts at most {2 * most + 1}",
            param="template",
        )
    holes = sum(part for part in template if isinstance(part, int))
    if holes > most:
        raise ApiError(
            400,
            f"{holes} tokens to write; this server allows at most {most}",
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
    """Check the number of samples drawn, including those that are not kept."""
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
    """Check the size in characters of all prompts or messages and the texts of a template.

    Characters rather than tokens, because a tokenizer may take quadratic time.
    """
    size = sum(map(len, [*request.prompts, *request.given_texts]))
    if size > most:
        message = f"the prompt has {size} characters; this server accepts at most {most}"
        raise ApiError(400, message, code="context_length_exceeded")


def sample_params(
    settings: ServeSettings, given: Mapping[str, Any], info: ModelInfo | None = None
) -> SampleParams:
    """Return the server's defaults, overridden by the request's settings, after checking all.

    info: of the model, for the checks that depend on it.
    """
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
        if steps > params.length and (info is None or info.drafting is None):
            raise ValueError(
                f"steps is {steps}, but there are only {params.length} tokens to write: "
                "every step writes at least one"
            )
        if info is None:
            Quota.plan(params.length, steps, params.block_length, fork=params.forks)
        else:
            params = with_blocks(params, info)
            plan_quota(params.length, steps, params.block_length, info, fork=params.forks)
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
    """Check a name and its options, which must have the types of their defaults.

    Only registered names are accepted, never a dotted path: a request must not import anything.
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
                f"{kind} option {option} must have the type of its default {known[option]!r}, "
                f"not {value!r:.100}",
                param=kind,
            )


def _like(default: Any, value: Any) -> bool:
    if isinstance(default, bool | str):
        return type(value) is type(default)
    if isinstance(default, tuple):
        return isinstance(value, list) and all(_like(0, item) for item in value)
    if default is None:  # off by default; the option's owner checks the number
        return value is None or _like(0.0, value)
    if isinstance(default, float):
        return type(value) in (int, float) and math.isfinite(value) and abs(value) < LARGEST
    return type(value) is int and abs(value) < LARGEST


def encode(lm: LM, text: str, where: str = "prompt") -> list[int]:
    """Return the token ids of a text; raise ApiError if one of them is a control token.

    A text must not be able to end or mask anything.
    """
    ids, info = lm.tokenizer.encode(text), lm.info
    control = {info.mask_id, *info.end_ids} - set(lm.tokenizer.encode(""))
    if not control.isdisjoint(ids):
        message = (
            f"the {where} contains a control token, "
            "which this model's tokenizer cannot encode as plain text"
        )
        raise ApiError(400, message, param=None if where == "prompt" else where)
    return ids


def chat_prompt(lm: LM, messages: Sequence[Message]) -> list[int]:
    """Return the token ids of a conversation, through the tokenizer's chat template.

    If there is none, or the model is raw, the messages are plain text, each followed by a line
    break.
    """
    turns = [
        {"role": ROLES.get(message.role, message.role), "content": message.text}
        for message in messages
    ]
    template = getattr(lm.tokenizer, "chat", None)
    if lm.raw or template is None or getattr(lm.tokenizer, "template", template) is None:
        return encode(lm, "".join(line["content"].removesuffix("\n") + "\n" for line in turns))
    for line in turns:
        encode(lm, line["content"])
    try:
        return list(template(turns))
    except ValueError as error:
        raise ApiError(400, str(error), param="messages") from None


def check_answer(request: CompletionRequest | ChatRequest) -> Read | None:
    """Return the function that reads answers; raise ApiError if they cannot be voted on.

    Only the tasks of this package are accepted, never a dotted path or a file.
    """
    if request.answer is None:
        if request.read is not None:
            raise ApiError(400, "read is for votes: send answer, too", param="read")
        return None
    if request.stream:
        message = "answer is not supported in a stream: leave out stream or answer"
        raise ApiError(400, message, param="answer")
    if request.read is None:
        return None
    name = request.read.partition(":")[0]
    if name not in task_names():
        known = ", ".join(task_names())
        raise ApiError(400, f"unknown task {name!r:.100}; known: {known}", param="read")
    try:
        return check_vote(request.answer, request.read)
    except ValueError as error:
        raise ApiError(400, str(error), param="read") from None


def check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MOST_STOPS or not all(stops):
        message = f"stop accepts up to {MOST_STOPS} texts, none of them empty"
        raise ApiError(400, message, param="stop")

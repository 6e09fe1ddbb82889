"""Prompts and templates as token ids."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from .checks import whole
from .core.canvas import Template as Form
from .core.model import ModelInfo
from .models import outline_model
from .models.loading.tokenizer import TextTokenizer
from .text import text_length

Template = Sequence[str | int]  # given texts, and the number of tokens of each hole


def check_prompts(
    name: str, texts: Sequence[str], length: int, *, raw: bool = False, **options: Any
) -> None:
    """Raise ValueError for a length or prompts that do not fit a checkpoint.

    Its weights are not loaded.
    """
    known = outline_model(name, **options)
    if known is not None:
        known.check_length(length)
        encode_prompts(known.tokenizer, texts, length, context=known.context, raw=raw)


def encode_prompts(
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    length: int,
    *,
    context: int | None,
    raw: bool,
) -> list[list[int]]:
    """Return the token ids of each prompt; texts go through the chat template, if there is one.

    Raises ValueError unless `length` more tokens fit into the context after each prompt.
    """
    chat = getattr(tokenizer, "chat", None)
    # A tokenizer with `chat` but without `template` always has a chat format.
    if raw or getattr(tokenizer, "template", chat) is None:
        chat = None
    found = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str | Sequence):
            raise ValueError(f"prompts[{i}] must be text or token ids, not {type(prompt).__name__}")
        if not isinstance(prompt, str):
            ids = list(prompt)
        else:
            ids = (
                chat([{"role": "user", "content": prompt}])
                if chat and prompt
                else tokenizer.encode(prompt)
            )
        if not ids:
            raise ValueError(f"prompts[{i}] is empty")
        if context is not None and len(ids) + length > context:
            raise ValueError(
                f"prompts[{i}] has {len(ids)} tokens: with length {length} that exceeds the "
                f"model's context of {context}"
            )
        found.append(ids)
    return found


def encode_templates(
    tokenizer: Any, info: ModelInfo, templates: Sequence[Template] | None, prompts: int
) -> "list[Form | None]":
    """Return the token ids of each prompt's template; None without templates."""
    if templates is None:
        return [None] * prompts
    forms: list[Form | None] = [
        encode_template(tokenizer, info, i, template) for i, template in enumerate(templates)
    ]
    if len(forms) != prompts:
        raise ValueError(
            f"templates must be one per prompt: got {len(forms)} for {prompts} prompts"
        )
    return forms


def encode_continuation(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text that follows another one."""
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer.encode(text, whole=False)
    ids: list[int] = tokenizer.encode(text)
    return ids


def encode_template(tokenizer: Any, info: ModelInfo, i: int, template: Template) -> Form:
    """Return the token ids of a template, with None for each token to be written."""
    if isinstance(template, str) or not isinstance(template, Sequence):
        raise ValueError(
            f"templates[{i}] must be a list of texts and hole sizes, not {template!r:.80}"
        )
    form: list[int | None] = []
    for part in template:
        if isinstance(part, str):
            form += tokenizer.encode(part)
        else:
            form += [None] * whole(f"templates[{i}]: a hole", part)
    if None not in form:
        raise ValueError(
            f"templates[{i}] has no hole: give the number of tokens to write as an integer, "
            'as in ["x = ", 8]'
        )
    if info.mask_id is not None and info.mask_id in form:
        raise ValueError(f"templates[{i}] contains the mask token")
    return form


def split_form(
    form: Form, tokens: Sequence[int], end_ids: Collection[int]
) -> list[tuple[bool, list[int]]]:
    """Split a sample into (is_hole, tokens) parts, in order; a hole is cut at its end token."""
    parts = []
    for is_hole, group in groupby(range(len(form)), lambda i: form[i] is None):
        part = [tokens[i] for i in group]
        parts.append((is_hole, part[: text_length(part, end_ids)] if is_hole else part))
    return parts

"""Which tokens end a text, as other libraries know it."""

from collections.abc import Sequence, Set
from typing import Any

from ..models.families.published import END_TEXTS

NAMES = ("eos_token_id", "pad_token_id", "eot_token_id")
# What ends a turn of Gemma's, beside the texts of other families.
TURNS = ("<end_of_turn>", "<turn|>", *END_TEXTS)


def find_end_ids(source: Any) -> tuple[int, ...]:
    """Return the ids of EOS, PAD and the end of a turn, in ascending order.

    Args:
        source: A tokenizer, processor, model, config or generation config, or the ids themselves.

    Raises:
        ValueError: The source knows no such token.
    """
    if isinstance(source, Sequence | Set):
        return tuple(source)
    found: set[int] = set()
    for part in _parts(source):
        for name in NAMES:
            found.update(_listed(getattr(part, name, None)))
        added = part.get_added_vocab() if hasattr(part, "get_added_vocab") else {}
        found.update(added[text] for text in TURNS if text in added)
    if not found:
        raise ValueError(
            f"{type(source).__name__} knows no eos, pad or end-of-turn token: "
            "pass their ids as end_ids, or () for none"
        )
    return tuple(sorted(found))


def _parts(source: Any) -> list[Any]:
    """Return the source, and what it holds: a processor's tokenizer, a model's configs."""
    config = getattr(source, "config", None)
    parts = [source, config, getattr(source, "tokenizer", None)]
    parts += [getattr(part, "text_config", None) for part in (source, config)]
    parts.append(getattr(source, "generation_config", None))
    return [part for part in parts if part is not None]


def _listed(value: Any) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]

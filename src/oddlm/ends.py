"""Where a text ends. Imports no torch."""

from collections.abc import Collection, Sequence


def text_length(tokens: Sequence[int | None], end_ids: Collection[int]) -> int:
    """How many tokens come before the first that ends a text; all of them where none does."""
    return next((i for i, token in enumerate(tokens) if token in end_ids), len(tokens))

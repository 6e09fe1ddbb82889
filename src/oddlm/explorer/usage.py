"""The text of a sample, and what an answer reports with it: token counts and diversity."""

from collections.abc import Collection, Sequence
from itertools import groupby

from ..core.canvas import Template as Form
from ..core.step import Sample
from ..metrics import text_diversity
from ..text import cut, text_length
from .messages import Extra, FinishReason, Usage


def written(
    sample: Sample, form: Form | None, end_ids: Collection[int]
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Return the tokens of the sample's text and their log-probabilities.

    There is one pair for each hole of a template, or a single one without a template.
    """
    tokens, logprobs = sample.tokens, sample.base_logprobs
    if form is None:
        length = text_length(tokens, end_ids)
        return [(tokens[:length], logprobs[:length])]
    found, at = [], 0
    for is_hole, places in groupby(form, lambda token: token is None):
        hole = slice(at, at := at + len(list(places)))
        if is_hole:
            length = text_length(tokens[hole], end_ids)
            found.append((tokens[hole][:length], logprobs[hole][:length]))
    return found


def final_text(sample: Sample, stops: Sequence[str]) -> tuple[str, FinishReason]:
    """Return a sample's text, and why it ends."""
    text, stopped = cut(sample.text, stops)
    return text, "stop" if stopped else sample.finish_reason


def usage(
    prompts: Sequence[Sequence[int]],
    samples: Sequence[Sequence[Sample]],
    end_ids: Collection[int],
    forms: Sequence[Form] = (),
) -> Usage:
    read = sum(len(ids) for ids in prompts)
    form = next(iter(forms), None)  # the same for every prompt
    made = sum(
        len(ids)
        for group in samples
        for sample in group
        for ids, _ in written(sample, form, end_ids)
    )
    return Usage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made)


def extra(samples: Sequence[Sequence[Sample]], seed: int, stops: Sequence[str] = ()) -> Extra:
    texts = [[final_text(sample, stops)[0] for sample in group] for group in samples]
    filled = (
        [sample.filled for group in samples for sample in group] if samples[0][0].holes else None
    )
    return Extra(
        seed=seed,
        nfe=samples[0][0].nfe,
        diversity=[text_diversity(group) for group in texts],
        filled=filled,
    )

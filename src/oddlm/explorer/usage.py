"""What a sample's text is, and what an answer reports beside the texts: token counts and diversity."""

from collections.abc import Collection, Sequence
from itertools import groupby

from ..core.canvas import Template as Form
from ..core.step import Sample
from ..metrics import text_diversity
from ..text import text_length
from .messages import Extra, FinishReason, Usage


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop text, and whether there is one."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)


def written(
    sample: Sample, form: Form | None, end_ids: Collection[int]
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The tokens that make up the sample's text, and their log-probabilities; of a template hole by
    hole.
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


def told(sample: Sample, stops: Sequence[str]) -> tuple[str, FinishReason]:
    """A sample's text and why it ends."""
    text, stopped = cut(sample.text, stops)
    return text, "stop" if stopped else sample.finish_reason


def usage(
    prompts: Sequence[Sequence[int]],
    samples: Sequence[Sequence[Sample]],
    end_ids: Collection[int],
    forms: Sequence[Form] = (),
) -> Usage:
    asked = sum(len(ids) for ids in prompts)
    form = next(iter(forms), None)  # the same for every prompt
    made = sum(
        len(ids)
        for group in samples
        for sample in group
        for ids, _ in written(sample, form, end_ids)
    )
    return Usage(prompt_tokens=asked, completion_tokens=made, total_tokens=asked + made)


def extra(samples: Sequence[Sequence[Sample]], seed: int, stops: Sequence[str] = ()) -> Extra:
    texts = [[told(sample, stops)[0] for sample in group] for group in samples]
    filled = (
        [sample.filled for group in samples for sample in group] if samples[0][0].holes else None
    )
    return Extra(
        seed=seed,
        nfe=samples[0][0].nfe,
        diversity=[text_diversity(group) for group in texts],
        filled=filled,
    )

"""Tokens that end a text (`end_ids`) and tokens that no guide pushes (`protected_ids`) are two
things.
"""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import oddlm
from oddlm.cli.views import Denoising
from oddlm.core.step import Denoised
from oddlm.experiments.stages import draw, score
from oddlm.explorer.frames import frames_of, start_of
from oddlm.explorer.recording import record
from oddlm.explorer.usage import usage
from oddlm.lm import LM
from oddlm.models.toy import Toy
from oddlm.models.wrappers import ClassifierFree, MicroBatch
from oddlm.params import SampleParams
from oddlm.serve.request import encode
from oddlm.serve.text import TextStream
from oddlm.spec import RunSpec
from oddlm.tasks import Problem

WORDS = tuple(range(3, 40))
SETTINGS = {"length": 24, "steps": 6, "temperature": 1.0, "alpha": 0}


class Guarded(Toy):
    """Some of its words must not be pushed; they end nothing."""

    def __init__(self, end_ids=(1, 2), protected_ids=(1, 2, *WORDS)):
        super().__init__(vocab_size=60)
        self.end_ids, self.protected_ids = end_ids, protected_ids

    @property
    def info(self):
        return replace(super().info, protected_ids=self.protected_ids)


@pytest.fixture(scope="module")
def lm():
    model = Guarded()
    return LM(model, model.tokenizer)


@pytest.fixture(scope="module")
def samples(lm):
    (samples,) = lm.generate("t5 t6", 8, **SETTINGS)
    assert any(set(sample.tokens) & set(WORDS) for sample in samples)
    return samples


def before(tokens, ends):
    kept = []
    for token in tokens:
        if token in ends:
            break
        kept.append(token)
    return kept


def test_a_protected_word_ends_no_sample(lm, samples):
    for sample in samples:
        kept = before(sample.tokens, {1, 2})
        assert sample.text == lm.tokenizer.decode(kept)
        assert sample.finish_reason == ("length" if len(kept) == 24 else "stop")


def test_nor_a_record_nor_what_is_measured(lm):
    spec = RunSpec(model="guarded", n=8, params=SampleParams.model_validate(SETTINGS))
    problem = Problem("p", "t5 t6", None)
    (drawn,) = draw(lm, spec, None, [problem], keep_tokens=True)
    lengths = [len(before(sample.tokens, {1, 2})) for sample in drawn.samples]
    assert [sample.length for sample in drawn.samples] == lengths
    measured = score(None, problem, drawn).diversity
    assert measured["length_max"] == max(lengths)
    assert measured["ended"] == sum(length < 24 for length in lengths) / 8


def test_nor_what_the_server_and_the_explorer_tell(lm, samples):
    written = usage([[5, 6]], [samples], lm.model.end_ids).completion_tokens
    assert written == sum(len(before(sample.tokens, {1, 2})) for sample in samples)
    stream = TextStream(lm.tokenizer.decode, lm.model.end_ids, ())
    assert stream.grow([5, 6, 1, 7]) == "t5 t6"
    assert start_of(
        "guarded", lm.model, "t5", [5], 1, SampleParams.model_validate(SETTINGS)
    ).end_ids == [1, 2]
    assert frames_of(lm, positions=False).known == {lm.model.mask_id, 1, 2}
    assert encode(lm, "t5 t6") == [5, 6]  # no control tokens, though no guide may push them
    found = record(
        lm, "guarded", "t5 t6", 4, SampleParams.model_validate(SETTINGS | {"alpha": 8}), None, None
    )
    for run in (found.plain, found.diverse):
        assert run.start.end_ids == [1, 2]
        kept = [before(sample.tokens, {1, 2}) for sample in run.end.samples]
        assert run.end.usage.completion_tokens == sum(map(len, kept))
        assert [sample.text for sample in run.end.samples] == [
            lm.tokenizer.decode(tokens) for tokens in kept
        ]


def test_nor_what_the_terminal_draws(lm, samples):
    console = Console(file=io.StringIO(), width=400, color_system=None)
    view = Denoising(lm.tokenizer.decode, lm.model.end_ids, console)
    lm.generate("t5 t6", 8, observe=view, **SETTINGS)
    console.print(view.final())
    assert samples[0].text in console.file.getvalue()


class Halves(Guarded):
    """Predicts an end token at even positions and, less surely, a protected word at odd ones."""

    def __init__(self):
        super().__init__(end_ids=(5,), protected_ids=(6,))

    def __call__(self, tokens, start, prompt_lengths):
        logits = torch.zeros(len(tokens), tokens.shape[1] - start, self.vocab_size)
        logits[:, 0::2, 5], logits[:, 1::2, 6] = 20.0, 10.0
        return logits


@pytest.mark.parametrize("eos", ["free", "late", "never"])
def test_eos_holds_back_what_ends_a_text_alone(eos):
    model = Halves()
    ((sample,),) = LM(model, model.tokenizer).generate("t7", 1, length=8, steps=8, alpha=0, eos=eos)
    ends, words = (
        [s for t, s in zip(sample.tokens, sample.commit_steps, strict=True) if t == token]
        for token in (5, 6)
    )
    assert len(words) == 4
    assert len(ends) == (0 if eos == "never" else 4)
    if eos != "never":
        assert (max(ends) < min(words)) == (eos == "free")


def pushed(model, **options):
    """The token ids whose logits a guide changes at some step."""
    found = set()

    def observe(event):
        moved = (event.pushed_logits != event.base_logits) & event.step.masked[..., None]
        found.update(moved.flatten(0, 1).any(dim=0).nonzero().flatten().tolist())

    guide = oddlm.Repulsion(alpha=8, **options)
    oddlm.denoise(
        model, [[5, 6]], n=4, length=6, steps=3, temperature=1.0, guide=guide, observe=observe
    )
    return found


def test_a_guide_leaves_alone_what_is_protected_and_pushes_what_is_not():
    assert not pushed(Guarded()) & {1, 2, *WORDS}
    assert pushed(Guarded(end_ids=(1, 2), protected_ids=(7,))) >= {1, 2}
    assert pushed(Guarded(), protected=[7]) >= {1, 2, 8}
    assert 7 not in pushed(Guarded(), protected=[7])


@pytest.mark.parametrize(
    "around", [lambda model: model, lambda m: MicroBatch(m, 2), lambda m: ClassifierFree(m, 0.5)]
)
def test_where_a_model_says_nothing_of_protection_its_ends_are_protected(around):
    model = Toy(vocab_size=60)
    assert model.end_ids == (1, 2)
    assert model.info.protected_ids is None
    found = pushed(around(model))
    assert found
    assert not found & {1, 2}


def test_a_model_has_to_say_what_ends_a_text():
    class Silent:
        mask_id, vocab_size, protected_ids = 59, 60, (1,)

        def __call__(self, tokens, start, prompt_lengths):
            raise AssertionError

    with pytest.raises(ValueError, match=r"without end_ids"):
        oddlm.denoise(Silent(), [[5]], n=1, length=2, steps=2)


@pytest.mark.parametrize("name", ["end_ids", "protected_ids"])
def test_ids_outside_the_vocabulary_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} holds 60"):
        oddlm.denoise(Guarded(**{name: (60,)}), [[5]], n=1, length=2, steps=2)


def test_a_fork_starts_from_no_protected_word():
    def first(model):
        done: Denoised = oddlm.denoise(model, [[5, 6]], n=8, length=6, steps=3, fork=True)
        return set(done.tokens[done.commit_step == 0].tolist())

    assert not first(Guarded()) & {1, 2, *WORDS}
    everywhere = Guarded(end_ids=(1, 2), protected_ids=())
    everywhere._head = torch.zeros_like(everywhere._head)
    assert first(everywhere) >= {1, 2}  # all cells are alike: the first ones

"""Given tokens: a canvas with holes.

They stay, are pushed by nobody, and are no part of the answer.
"""

from dataclasses import replace

import pytest
import torch

import oddlm
from oddlm import ModelInfo, Repulsion, begin, denoise
from oddlm.core.blocks import Blocks
from oddlm.core.step import ABSENT, Step
from oddlm.experiments.stages import draw
from oddlm.kernels import dispatch
from oddlm.models.toy import Toy
from oddlm.params import SampleParams
from oddlm.spec import RunSpec
from oddlm.tasks.base import Problem, Score, Task

FORM = [None, 8, None, None, 9, 10, None, None]
SHAPE = {"n": 3, "length": 8, "steps": 5, "temperature": 0.8}


@pytest.fixture(scope="module")
def toy():
    return Toy(vocab_size=60, dtype=torch.float64)


@pytest.mark.parametrize("policy", ["low_confidence", "threshold", "remdm"])
@pytest.mark.parametrize(
    "guide",
    [None, Repulsion(alpha=6), Repulsion(alpha=6, feature="ngrams")],
    ids=["plain", "odd", "ngrams"],
)
@pytest.mark.parametrize("more", [{}, {"fork": True}, {"block_length": 4, "steps": 8}], ids=str)
def test_what_is_given_stays(toy, policy, guide, more):
    forms = [FORM, [None] * 4 + [7] * 4]
    seen = []
    options = {**SHAPE, "policy": policy, "guide": guide, **more}
    done = denoise(
        toy,
        [[5], [6, 7]],
        templates=forms,
        observe=lambda event: seen.append(event.commit),
        **options,
    )
    for g, form in enumerate(forms):
        for row in range(3 * g, 3 * g + 3):
            for position, token in enumerate(form):
                assert token is None or done.tokens[row, position] == token
                assert (done.commit_step[row, position] == -1) == (token is not None)
    assert not (
        torch.stack(seen).any(dim=0)
        & torch.tensor([[t is not None for t in f] for f in forms]).repeat_interleave(3, 0)
    ).any()
    assert (done.tokens != toy.mask_id).all()


def test_a_template_changes_nothing_else(toy):
    """Holes everywhere are no template; samples of one prompt do not depend on another's form."""
    empty = denoise(toy, [[5]], templates=[[None] * 8], **SHAPE)
    assert torch.equal(empty.tokens, denoise(toy, [[5]], **SHAPE).tokens)
    together = denoise(
        toy,
        [[5], [6]],
        templates=[FORM, [None] * 4 + [7] * 4],
        seed=[1, 2],
        guide=Repulsion(alpha=4),
        **SHAPE,
    )
    alone = denoise(
        toy, [[6]], templates=[[None] * 4 + [7] * 4], seed=[2], guide=Repulsion(alpha=4), **SHAPE
    )
    assert torch.equal(together.tokens[3:], alone.tokens)


def push(logits, tokens, masked, **options):
    guide, (n, S, V) = Repulsion(**options), logits.shape
    backend = dispatch.choose(logits.device, logits.dtype, asked=guide.backend, forms=guide.forms)
    step = Step(
        0,
        1,
        tokens,
        Blocks(torch.zeros(1, S, dtype=torch.long), 1, masked),
        n,
        0,
        torch.tensor([3]),
    )
    return guide.begin(ModelInfo(V, None), backend, None, resumes=False)(logits, step, None).logits


@pytest.mark.parametrize("backend", ["closed_form", "reference"])
@pytest.mark.parametrize("feature", ["max_pool", "mean_pool", "positional"])
def test_what_is_absent_counts_for_nothing(backend, feature):
    """A position that is neither masked nor written: the push is that of a batch without it."""
    torch.manual_seed(0)
    logits = torch.randn(4, 6, 20, dtype=torch.float64) * 3
    tokens = torch.randint(20, (4, 6))
    masked = torch.rand(4, 6) < 0.6
    masked[:, -1] = False
    options = {"alpha": 5.0, "feature": feature, "backend": backend, "objective": "odd"}
    gone = tokens.clone()
    gone[:, -1] = ABSENT
    pushed = push(logits, gone, masked, **options)
    if feature == "positional":  # its waves know how long the answer is
        options["feature"] = {"name": "positional", "scale": 64}
    shorter = push(logits[:, :-1], tokens[:, :-1], masked[:, :-1], **options)
    torch.testing.assert_close(pushed[:, :-1], shorter)
    assert not torch.allclose(pushed, push(logits, tokens, masked, **options))


def test_given_tokens_are_not_what_samples_are_compared_by(toy):
    """A guide is shown ABSENT in their place."""
    seen = []

    def guide(logits, step):
        seen.append(step.tokens)
        return logits

    denoise(toy, [[5]], templates=[FORM], guide=guide, **SHAPE)
    given = torch.tensor([t is not None for t in FORM])
    assert all((tokens[:, given] == ABSENT).all() for tokens in seen)
    assert all((tokens[:, ~given] != ABSENT).all() for tokens in seen)


def test_bad_templates_are_refused(toy):
    for wrong, message in (
        ([FORM], "1 for 2 prompts"),
        ([FORM, FORM[:-1]], r"templates\[1\] has 7 positions"),
        ([FORM, [3] * 8], r"templates\[1\] has no position to write"),
        ([FORM, [None, 60] + [None] * 6], r"templates\[1\] .*0\.\.59"),
        ([FORM, [None, toy.mask_id] + [None] * 6], r"templates\[1\] holds the mask token 59"),
    ):
        with pytest.raises(ValueError, match=message):
            begin(toy, [[5], [6]], templates=wrong, **SHAPE)
    first = denoise(toy, [[5]], templates=[FORM], **SHAPE)
    with pytest.raises(ValueError, match="templates"):
        begin(toy, [[5]], history=first.history, **SHAPE)


def test_generate_fills_a_form():
    lm = oddlm.load("toy")
    form = ["t7 t8", 4, "t9", 2]
    samples, plain = lm.generate(["t5 t6", "t5"], n=3, templates=[form, ["t3", 5]], seed=1)
    for sample in samples:
        assert len(sample.tokens) == 9
        assert sample.tokens[:2] == (7, 8)
        assert sample.tokens[6] == 9
        assert [len(hole.split()) for hole in sample.holes] == [4, 2]
        assert sample.text == "".join(sample.holes)
        words = sample.filled.split()
        assert words[:2] == ["t7", "t8"]
        assert words[6] == "t9"
        assert sample.commit_steps[0] == sample.commit_steps[6] == -1
        assert sample.base_logprobs[0] == 0
        assert sample.nfe == 6, "one per token that is written"
    assert [len(sample.tokens) for sample in plain] == [6] * 3
    again = lm.generate(["t5"], n=3, templates=[["t3", 5]], seeds=[plain[0].seed])[0]
    assert [s.tokens for s in again] == [s.tokens for s in plain]


def test_a_hole_ends_at_its_end_token():
    class Ends(Toy):
        def __call__(self, tokens, start, prompt_lengths, nudge=None):
            logits = super().__call__(tokens, start, prompt_lengths)
            logits[:, 1, self.EOS] += 1e3
            return logits

    model = Ends()
    sample = oddlm.LM(model, model.tokenizer).generate(
        "t5", n=1, templates=[[3, "t7", 2]], temperature=0
    )[0][0]
    assert [len(hole.split()) for hole in sample.holes] == [1, 2]
    assert len(sample.filled.split()) == 4
    assert sample.finish_reason == "length"


def test_bad_forms_are_refused():
    lm = oddlm.load("toy")
    for wrong, message in (
        ([["t5"]], r"templates\[0\] has no hole"),
        ([["t5", 0]], r"templates\[0\]: a hole"),
        ([["t5", True]], r"templates\[0\]: a hole"),
        (["t5"], r"templates\[0\] must be a list"),
        ([["t5", 4]] * 2, "2 for 1 prompts"),
        ([[2000]], "1024"),
    ):
        with pytest.raises(ValueError, match=message):
            lm.generate("t5", n=1, templates=wrong)


def test_until_goes_on_with_a_form():
    lm = oddlm.load("toy")
    found = lm.generate(
        "t5", n=2, templates=[["t7", 5]], until=lambda sample: sample.index == 4, max_samples=6
    )[0]
    assert found.took == 5
    assert {s.tokens[0] for s in found} == {7}


def test_a_task_may_have_a_form():
    form = ["t7", 5]
    task = Task(
        "forms",
        list,
        lambda problem: problem.prompt,
        lambda problem, text: Score(True, text, ""),
        6,
    )
    task = replace(task, template=lambda problem: form)
    problem = Problem("one", "t5", None)
    spec = RunSpec(model="toy", n=2, params=SampleParams(length=6, steps=3))
    (drawn,) = draw(oddlm.load("toy"), spec, task, [problem], keep_tokens=True)
    assert {sample.tokens[0] for sample in drawn.samples} == {7}
    assert {sample.nfe for sample in drawn.samples} == {3} == {drawn.nfe}

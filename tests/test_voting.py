"""One answer out of many samples: what wins, how sure it is, and what it costs."""

from dataclasses import replace
from math import exp

import pytest
import torch

import oddlm
from oddlm import LM, Sample
from oddlm.likelihood import hidden_logprobs
from oddlm.metrics import most_voted
from oddlm.metrics.votes import answer_classes
from oddlm.models.toy import Toy
from oddlm.voting import WAYS, Ballot, vote, way

from .tolerances import EXACT

SETTINGS = {"length": 8, "steps": 4, "temperature": 1.0, "alpha": 0, "seed": 3}
PROMPT = "t5 t6"


@pytest.fixture(scope="module")
def lm() -> LM:
    return oddlm.load("toy", vocab_size=60, dtype=torch.float64)


@pytest.fixture(scope="module")
def samples(lm):
    return lm.sample(PROMPT, n=6, **SETTINGS)


@pytest.fixture
def ballot(lm, samples):
    return Ballot(lm.model, lm.tokenizer.encode(PROMPT), samples)


def made(index, text, logprob=-1.0):
    return Sample(0, index, text, (5, 1), (0, 0), (logprob, 0.0), (logprob, 0.0), 0, "stop", 2)


def told(texts, weights, read=None, best=False):
    """A vote of made samples with these weights."""
    some = [made(i, text) for i, text in enumerate(texts)]

    def given(_):
        return weights

    given.best = best
    return vote(Ballot(Toy(vocab_size=60), [5], some), by=given, read=read)


def test_weights_of_equal_answers_add_up():
    found = told(["3", "4", "4", "5"], [4, 1, 2, 1], read=str.strip)
    assert [(one.reading, one.votes, one.weight) for one in found.candidates] == [
        ("3", 1, 0.5),
        ("4", 2, 0.375),
        ("5", 1, 0.125),
    ]
    assert (found.text, found.weight) == ("3", 0.5)
    assert found.candidates[1].sample.index == 2, "the heaviest stands for its answer"


def test_the_best_sample_counts_alone():
    found = told(["3", "4", "4"], [0.5, 0.4, 0.4], read=str.strip, best=True)
    assert (found.text, found.weight, found.candidates[1].votes) == ("3", 0.5, 2)


def test_samples_without_an_answer_do_not_vote():
    found = told(["?", "?", "7"], [1, 1, 1], read=lambda text: None if text == "?" else text)
    assert (found.text, len(found.candidates), len(found.samples)) == ("7", 1, 3)
    assert found.weight == pytest.approx(1 / 3), "silence is not consent"
    nobody = told(["a b", "a b", "c d"], [1, 1, 1], read=lambda _: None)
    assert (nobody.text, nobody.reading) == ("a b", None), "similar texts stand together then"


def test_weightless_votes_have_a_winner():
    assert told(["3", "4"], [0, 0], read=str.strip).text == "3"


@pytest.mark.parametrize("name", WAYS.names)
def test_every_way_weighs_every_sample(name, ballot):
    function = WAYS.find(name)
    weights = list(function(ballot))
    assert len(weights) == 6
    assert all(0 <= weight < float("inf") for weight in weights)
    assert (ballot.evaluations > 0) == function.asks
    twice = replace(ballot, samples=[*ballot.samples, ballot.samples[0]])
    if name != "medoid":
        again = list(function(twice))
        assert again[-1] == pytest.approx(again[0], abs=EXACT), "equal samples weigh the same"
    found = vote(replace(ballot), by=name)
    assert found.by == name
    assert 0 <= found.weight <= 1
    own = sum(one.nfe for one in ballot.samples)
    assert found.nfe == own + (ballot.evaluations if function.asks else 0)


def test_cloze_hides_every_token_equally_often(lm, ballot):
    """Against hiding one part after the other by hand."""
    sample, ids = ballot.samples[0], ballot.prompt
    answer = torch.tensor([sample.tokens])
    hidden = ballot._hidden(8, parts=4, rounds=2)
    assert (torch.stack(hidden).sum(dim=0) == 2).all()
    assert [int(one.sum()) for one in hidden] == [2] * 8
    known = sum(hidden_logprobs(lm.model, [ids], answer, one[None]) for one in hidden)
    length = ballot.lengths[0]
    expected = exp(float(known[0, :length].sum()) / (2 * length))
    assert WAYS.find("cloze")(ballot)[0] == pytest.approx(expected, abs=EXACT)


def test_cloze_does_not_depend_on_the_batch(ballot):
    one_by_one = replace(ballot, max_batch=1)
    together = WAYS.find("cloze")(ballot)
    assert WAYS.find("cloze")(one_by_one) == pytest.approx(together, abs=EXACT)
    assert one_by_one.evaluations == ballot.evaluations


def test_equal_samples_are_asked_about_once(ballot):
    copies = replace(ballot, samples=[ballot.samples[0]] * 6)
    WAYS.find("cloze")(copies)
    assert copies.evaluations == 8


def test_self_certainty_is_zero_for_a_uniform_network(lm, samples):
    flat = Toy(vocab_size=60, sharpness=0.0, dtype=torch.float64)
    certain = []
    measured = Ballot(flat, [5, 6], samples)
    measured.hide = lambda parts, rounds, measure: (
        certain.append(
            measure(torch.zeros(3, 60, dtype=torch.float64), torch.zeros(3, dtype=torch.long))
        )
        or [0.0] * 6
    )
    WAYS.find("self_certainty")(measured)
    assert certain[0].abs().max() < EXACT


def test_lm_answer_is_a_vote_of_the_same_samples(lm, samples):
    read = "countdown"
    found = lm.answer(PROMPT, 6, read=read, **SETTINGS)
    assert list(found.samples) == samples
    assert found == lm.vote(PROMPT, samples, read=read)
    classes = answer_classes([s.text for s in samples], [None] * 6)
    assert found.candidates[0].sample.index == most_voted(classes)


def test_majority_is_what_maj_at_k_counts():
    readings = ["7", "8", None, "8", "7"]
    texts = [f"text {i}" for i in range(5)]
    by_text = dict(zip(texts, readings, strict=True))
    found = told(texts, [1] * 5, read=by_text.get)
    assert found.candidates[0].sample.index == most_voted(answer_classes(texts, readings))


def test_ways_of_ones_own():
    try:

        @way(best=True)
        def longest(ballot, *, power=1):
            """The longest text."""
            return [float(len(one.text)) ** power for one in ballot.samples]

        some = Ballot(Toy(vocab_size=60), [5], [made(0, "a"), made(1, "a b c d")])
        assert vote(some, by={"name": "longest", "power": 2}).candidates[0].weight == 49
    finally:
        WAYS._known.pop("longest")


def test_bad_input(lm, samples):
    for arguments, said in (
        ({"by": "nobody"}, "'nobody'"),
        ({"by": {"name": "cloze", "rounds": 0}}, "rounds.*not 0"),
        ({"by": {"name": "cloze", "holes": 1}}, "'holes'"),
        ({"by": lambda _: [1.0]}, "6 finite weights"),
        ({"by": lambda _: [float("nan")] * 6}, "nan"),
        ({"by": lambda _: [-1.0] * 6}, "-1.0"),
        ({"read": "nothing"}, "'nothing'"),
        ({"read": "gsm8k:nothing"}, "'nothing'"),
    ):
        with pytest.raises(ValueError, match=said):
            lm.vote(PROMPT, samples, **arguments)
    with pytest.raises(ValueError, match="no samples"):
        lm.vote(PROMPT, [])
    uniform = LM(Toy(vocab_size=60, process="uniform"), lm.tokenizer)
    with pytest.raises(ValueError, match="mask"):
        uniform.vote(PROMPT, samples, by="cloze")

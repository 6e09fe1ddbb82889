"""What observers see, and what it costs when nobody looks."""

import pytest
import torch

import oddlm
from oddlm import Repulsion, denoise
from oddlm.core import begin as beginning

SHAPE = {"n": 4, "length": 10, "steps": 5}


def observed(toy, **options) -> list[oddlm.StepEvent]:
    events: list[oddlm.StepEvent] = []
    denoise(toy, [[5, 6]], observe=events.append, **{**SHAPE, **options})
    return events


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_probabilities_of_both_choices_under_both_distributions(toy, temperature):
    for event in observed(toy, temperature=temperature, guide=Repulsion(alpha=16)):
        base, guided = (
            event.base_logits.double().softmax(-1),
            event.prediction.logits.double().softmax(-1),
        )
        where = event.step.open
        for choice in (event.chosen, event.plain):
            for got, p in ((choice.base_probability, base), (choice.pushed_probability, guided)):
                torch.testing.assert_close(
                    got[where], p.gather(-1, choice.tokens[..., None]).squeeze(-1)[where]
                )
                assert (got[~where] == 0).all()
        torch.testing.assert_close(
            event.chosen.pushed_probability[where], event.prediction.confidence[where]
        )
        torch.testing.assert_close(event.entropy[where], torch.special.entr(guided).sum(-1)[where])
        torch.testing.assert_close(
            event.top.pushed_probability[where], guided.topk(5).values[where]
        )
        torch.testing.assert_close(
            event.top.base_probability[where], base.gather(-1, event.top.tokens)[where]
        )


def test_plain_is_what_an_unguided_run_does_from_the_same_canvas(toy):
    guided = observed(toy, temperature=1.0, guide=Repulsion(alpha=16))
    plain = observed(toy, temperature=1.0)
    assert torch.equal(guided[0].plain.tokens, plain[0].prediction.tokens)
    assert torch.equal(guided[0].plain.commit, plain[0].commit)
    assert torch.equal(guided[0].plain.commit[0], guided[0].commit[0])
    assert not torch.equal(guided[0].plain.commit, guided[0].commit)
    assert all(event.plain is event.chosen for event in plain)


@pytest.mark.parametrize("guide", [None, Repulsion(alpha=16)], ids=["plain", "odd"])
@pytest.mark.parametrize(
    "options", [{}, {"policy": "threshold"}, {"block_length": 5, "steps": 4}, {"steps": 3}], ids=str
)
def test_plain_does_not_fork(toy, options, guide):
    """Nor does it spend the first step on a single token."""
    forked = observed(toy, temperature=1.0, guide=guide, fork=True, **options)
    plain = observed(toy, temperature=1.0, **options)
    assert torch.equal(forked[0].plain.tokens, plain[0].prediction.tokens)
    assert torch.equal(forked[0].plain.commit, plain[0].commit)
    assert not torch.equal(forked[0].plain.commit, forked[0].commit)
    assert (forked[0].commit.sum(dim=1) == 1).all()
    assert (forked[1].plain is forked[1].chosen) == (guide is None)


def test_guidance_changes_a_choice_only_where_it_changed_the_logits(toy):
    def nudge(logits, step):
        logits = logits.clone()
        logits[:, 3, 7] += 4.0
        return logits

    for event in observed(toy, temperature=1.0, guide=nudge):
        elsewhere = torch.arange(10) != 3
        assert torch.equal(event.plain.tokens[:, elsewhere], event.chosen.tokens[:, elsewhere])
        assert event.force[:, elsewhere].max() == 0
        masked = event.step.masked[:, 3]
        torch.testing.assert_close(
            event.force[masked, 3], torch.full_like(event.force[masked, 3], 4.0)
        )


def test_force_is_alpha_at_the_most_moved_position(toy):
    events = observed(
        toy, guide=Repulsion("odd", alpha=16, alpha_schedule="constant"), suppress=[9]
    )
    for event in events:
        assert (event.force[0] == 0).all()
        torch.testing.assert_close(
            event.force[1:].amax(dim=1), torch.full((3,), 16.0, dtype=torch.float64)
        )
        assert (event.force[~event.step.masked] == 0).all()


@pytest.mark.parametrize(
    "options", [{"fork": True}, {"suppress_confidence": list(range(30))}], ids=str
)
def test_confidence_is_the_probability_of_the_choice(toy, options):
    for event in observed(toy, temperature=1.0, guide=Repulsion(alpha=4), **options):
        torch.testing.assert_close(
            event.prediction.confidence[event.commit], event.chosen.pushed_probability[event.commit]
        )


def test_nothing_is_computed_when_nobody_looks(toy, monkeypatch):
    calls = []
    real = beginning.predict
    monkeypatch.setattr(
        beginning, "predict", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    )
    guide = Repulsion(alpha=16)
    denoise(toy, [[5]], guide=guide, **SHAPE)
    assert len(calls) == 5
    events = observed(toy, guide=guide)
    assert len(calls) == 10
    assert all(
        set(vars(event)) == {"step", "prediction", "decision", "logits", "after", "propose"}
        for event in events
    )
    assert events[2].plain is events[2].plain
    assert len(calls) == 11


def test_several_observers(toy):
    first, second = [], []
    denoise(toy, [[5]], observe=[first.append, second.append], **SHAPE)
    assert [e.step.index for e in first] == [e.step.index for e in second] == [0, 1, 2, 3, 4]

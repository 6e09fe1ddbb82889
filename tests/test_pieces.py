"""What every registered piece has to do, whoever adds it: nothing here is listed by name."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oddlm import denoise, diversify
from oddlm.core.step import Proposal, Sample
from oddlm.diversity.features import build_feature
from oddlm.kernels import reference
from oddlm.models.toy import Toy
from oddlm.pieces import PIECES
from oddlm.selection import keep

from . import registered
from .tolerances import ORACLE

ROOT = Path(__file__).parents[1]
PROMPTS = [[5, 6], [7]]
SHAPE = {"n": 3, "length": 8, "steps": 4, "temperature": 1.0}


def batch(
    seed: int, B: int = 6, S: int = 5, V: int = 23
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(B, S, V, generator=g, dtype=torch.float64)
    return logits, torch.randint(0, V, (B, S), generator=g), torch.rand(B, S, generator=g) < 0.7


@pytest.mark.parametrize("kind", PIECES)
def test_every_piece_says_what_it_does_and_takes_its_defaults_from_json(kind):
    registry = PIECES[kind]
    assert registry.names
    for name in registry.names:
        assert (registry.find(name).__doc__ or "").strip(), (
            f"{kind} {name} has no description for `oddlm names`"
        )
        spec = {"name": name, **registry.options(name)}
        registry.build(json.loads(json.dumps(spec)))


@pytest.mark.parametrize("policy", registered.POLICIES)
def test_every_policy_fills_every_open_position(policy):
    model = Toy(vocab_size=60, dtype=torch.float64)

    def watch(event):
        assert not (event.commit & ~event.step.writable).any()
        assert (event.commit.any(dim=1) | event.step.reviewing).all()

    done = denoise(model, PROMPTS, policy=policy, block_length=4, observe=watch, **SHAPE)
    assert (done.tokens != model.mask_id).all()
    assert ((done.commit_step >= 0) & (done.commit_step < done.nfe)).all()


@pytest.mark.parametrize("policy", registered.POLICIES)
def test_every_policy_scores_a_sample_by_itself(policy):
    """Neither the other samples nor the other prompts count, and a second time it is the same."""
    model = Toy(vocab_size=60, dtype=torch.float64)
    built = PIECES["policy"].build(policy)
    marked = getattr(built, "parallel", False)

    def watch(event):
        before = [x.clone() for x in (event.prediction.confidence, event.step.masked)]
        said = built(event.prediction, event.step)
        score = said.score if isinstance(said, Proposal) else said
        assert score.shape == event.step.tokens.shape
        assert not score[event.step.open].isnan().any()
        assert marked or not score[event.step.open].isposinf().any(), (
            "+inf is for policies marked parallel"
        )
        assert torch.equal(before[0], event.prediction.confidence)
        assert torch.equal(before[1], event.step.masked)

    whole = denoise(model, PROMPTS, policy=policy, seed=[3, 4], observe=watch, **SHAPE)
    alone = denoise(model, PROMPTS[1:], policy=policy, seed=[4], **SHAPE | {"n": 2})
    assert torch.equal(whole.tokens[3:5], alone.tokens)
    assert torch.equal(whole.commit_step[3:5], alone.commit_step)


def pushed(objective, logits, tokens, masked, **options):
    return diversify(
        logits, tokens, masked, objective=objective, alpha=4.0, protected=[1], seed=3, **options
    )


@pytest.mark.parametrize("objective", registered.PUSHING)
def test_every_objective_pushes_and_leaves_alone_what_it_must(objective):
    logits, tokens, masked = batch(0)
    kept = [x.clone() for x in (logits, tokens, masked)]
    got = pushed(objective, logits, tokens, masked, n=3)
    assert all(torch.equal(x, y) for x, y in zip(kept, (logits, tokens, masked), strict=True))
    assert got.isfinite().all()
    assert torch.equal(got[~masked], logits[~masked])
    assert torch.equal(got[..., 1], logits[..., 1])
    assert (got - logits).norm(dim=-1).max() <= 4.0 + 1e-9, (
        "alpha is how far the most moved position moves"
    )
    moved = (got - logits).flatten(1).norm(dim=1) > 1e-3
    assert moved[1:3].all()
    assert moved[4:].all(), "of each prompt, all but the first sample"
    assert torch.equal(got, pushed(objective, logits, tokens, masked, n=3)), (
        "the same seed gives the same push"
    )
    half = pushed(objective, logits[:3], tokens[:3], masked[:3], n=3)
    torch.testing.assert_close(half, got[:3], rtol=0, atol=ORACLE)  # other prompts do not count


@pytest.mark.parametrize("objective", registered.UNCOUPLED)
def test_an_objective_that_is_not_coupled_does_not_look_at_later_samples(objective):
    logits, tokens, masked = batch(1)
    whole = pushed(objective, logits, tokens, masked)
    torch.testing.assert_close(
        pushed(objective, logits[:4], tokens[:4], masked[:4]), whole[:4], rtol=0, atol=ORACLE
    )


@pytest.mark.parametrize("objective", registered.PUSHING)
@pytest.mark.parametrize("feature", registered.FEATURES)
def test_every_form_of_an_objective_is_the_derivative_of_its_loss(objective, feature):
    """What is written out by hand for speed, a slope or a trace, against autograd."""
    for seed in range(3):
        case = batch(seed)
        expected = pushed(objective, *case, feature=feature, backend="reference")
        torch.testing.assert_close(
            pushed(objective, *case, feature=feature), expected, rtol=0, atol=8 * ORACLE
        )


@pytest.mark.parametrize("feature", registered.FEATURES)
def test_every_feature_tells_texts_apart_and_knows_its_sample_alone(feature):
    logits, tokens, masked = batch(2)
    canvas = reference.soft_canvas(logits, tokens, masked)
    built = build_feature(feature)
    _, found = built.extract(canvas, embedding=None)
    assert found.shape[0] == len(canvas)
    assert found.dim() == 2
    assert found.isfinite().all()
    torch.testing.assert_close(built.extract(canvas[2:3], embedding=None)[1], found[2:3])
    unit = torch.nn.functional.normalize(found, dim=1)
    assert (unit @ unit.T - torch.eye(len(unit), dtype=unit.dtype)).max() < 1 - 1e-6, (
        "two texts have one feature"
    )


@pytest.mark.parametrize("schedule", registered.ALPHA_SCHEDULES)
def test_every_alpha_schedule_starts_with_at_most_alpha_and_never_rises(schedule):
    factor = PIECES["alpha_schedule"].build(schedule)
    for total in (1, 2, 9):
        left = torch.tensor([1 - i / total for i in range(total)], dtype=torch.float64)
        found = factor(left, total)
        assert found.shape == left.shape
        assert (found >= 0).all()
        assert (found <= 1 + 1e-9).all()
        assert (found.diff() <= 1e-9).all()
        for i in range(total):
            assert math.isclose(float(factor(left[i : i + 1], total)), float(found[i])), (
                "each row for itself"
            )


def sample(index: int, text: str) -> Sample:
    tokens = tuple(range(index + 3))
    chances = tuple(-0.1 * ((7 * index + t) % 5) for t in tokens)
    return Sample(0, index, text, tokens, tokens, chances, chances, 0, "stop", 4)


@pytest.mark.parametrize("selector", registered.SELECTORS)
def test_every_selector_keeps_n_different_samples(selector):
    for texts in (["a", "b", "", "a b", "a b c"], ["same"] * 5, [""]):
        samples = [sample(i, text) for i, text in enumerate(texts)]
        for n in range(1, len(samples) + 1):
            kept = keep(samples, n, selector)
            assert len({one.index for one in kept}) == n
            assert kept == keep(samples, n, selector)


WRONG = '''
import torch
from oddlm.kernels.contract import Batch
from oddlm.pieces import PIECES

@PIECES["policy"].register
def wrong_policy(prediction, step):
    """Looks at the other samples."""
    return (prediction.confidence - prediction.confidence.mean(dim=0)).abs().log()

@PIECES["objective"].register
def wrong_objective(batch):
    """Pushes nothing."""
    return 0.0 * batch.features.double().sum(dim=-1)

@PIECES["feature"].register
def wrong_feature(canvas):
    """Is the same for all texts."""
    return torch.ones_like(canvas[..., 0, :]) + 0.0 * canvas[..., 0, :]

@PIECES["alpha_schedule"].register
def wrong_schedule(time_left, total):
    """Rises."""
    return 1 - time_left

@PIECES["selector"].register
def wrong_selector(samples, n):
    """Keeps the first sample n times."""
    return [0] * n
'''


def test_a_broken_piece_is_found_without_being_listed(tmp_path):
    (tmp_path / "wrong_pieces.py").write_text(WRONG)
    words = [
        "-p",
        "wrong_pieces",
        "-p",
        "no:cacheprovider",
        "-q",
        "-k",
        "wrong_",
        "tests/test_pieces.py",
        "-rf",
    ]
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
        f"import pytest; sys.exit(pytest.main({words!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    for kind in PIECES:
        assert any(f"wrong_{kind.removeprefix('alpha_')}" in line for line in failed), (
            f"nothing noticed a broken {kind}:\n{done.stdout}"
        )

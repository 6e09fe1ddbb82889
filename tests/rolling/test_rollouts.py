"""Rollouts: their log-probabilities are those of the steps that wrote the tokens."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import oddlm
from oddlm import LM, Diversifier, Drafting, SampleParams, rollouts
from oddlm.drawing import repulsion
from oddlm.models.toy import Toy, ToyTokenizer
from oddlm.tasks import find_task

from ..registered import POLICIES
from .networks import ENDS, MASK, native

PROMPTS = [[5, 6], [7, 8, 9, 10]]
SHAPE = {"length": 8, "steps": 8}
PLAIN = {"alpha": 0.0, "temperature": 1.0}
ODD = {"alpha": 6.0, "alpha_end": 1.0, "fork": False, "temperature": 1.0}
CLOSE = 1e-5
SETTINGS = {
    "plain": PLAIN,
    "cold": {**PLAIN, "temperature": 0.0},
    "filtered": {**PLAIN, "temperature": 0.7, "top_k": 6, "top_p": 0.9},
    "sampled": {**PLAIN, "temperature": 0.7, "top_k": 6, "confidence": "sampled"},
    "no ends": {**PLAIN, "eos": "never"},
    "fewer steps": {**PLAIN, "steps": 3},
    "odd": ODD,
    "hot odd": {**ODD, "temperature": 1.5, "steps": 4},
    "fork": {**ODD, "fork": True},
    "default": {},
    "blocks": {**ODD, "block_length": 4},
    "ordered": {**ODD, "order_temperature": 0.5},
    # A parallel policy reads the alpha schedule at each sample's own progress: keep it constant.
    **{
        f"policy {name}": {**ODD, "policy": name, "alpha_schedule": "constant"} for name in POLICIES
    },
}


@pytest.fixture(scope="module")
def lm():
    return LM(Toy(vocab_size=40), ToyTokenizer(40))


def replayed(model, rolled, settings):
    """Return base, pushed and drawn log-probabilities, from the canvases alone."""
    params = SampleParams().with_settings(SHAPE | settings)
    guide, info = repulsion(params), model.info
    push = None
    if guide is not None:
        guide = replace(guide, protected=info.protected)
        total = max(len(rolled.canvases), params.steps)
        push = Diversifier(guide, n=rolled.n, steps=total, seed=rolled.seeds.tolist())
    found = [torch.full(rolled.tokens.shape, torch.nan) for _ in range(3)]
    lengths, start = rolled.prompt_mask.sum(dim=1), rolled.prompt_ids.shape[1]
    never = [info.mask_id, *(info.end_ids if params.eos == "never" else ())]
    for step, canvas in enumerate(rolled.canvases):
        logits = model(torch.cat([rolled.prompt_ids, canvas], dim=1), start, lengths)
        logits[..., never] = -torch.inf
        masked = canvas == info.mask_id
        pushed = logits if push is None else push(logits, canvas, masked, step=step)
        drawn = pushed if params.temperature == 0 else narrowed(pushed, params)
        here = rolled.commit_step == step
        for part, x in zip(found, (logits, pushed, drawn), strict=True):
            chosen = x.log_softmax(dim=-1).gather(-1, rolled.tokens[..., None])[..., 0]
            part[here] = chosen[here]
    base, pushed, drawn = found
    if params.temperature == 0:
        drawn[rolled.commit_step >= 0] = 0.0
    if params.forks:
        drawn[rolled.commit_step == 0] = torch.nan
    return base, pushed, drawn


def narrowed(logits, params):
    x = logits / params.temperature if params.confidence == "sampled" else logits
    ranked, order = x.sort(dim=-1, descending=True)
    if params.top_k is not None:
        ranked[..., params.top_k :] = -torch.inf
    if params.top_p is not None:
        mass = logits.sort(dim=-1, descending=True).values.softmax(dim=-1)
        ranked[(mass.cumsum(dim=-1) - mass) >= params.top_p] = -torch.inf
    x = torch.empty_like(x).scatter(-1, order, ranked)
    return x if params.confidence == "sampled" else x / params.temperature


@pytest.mark.parametrize("name", SETTINGS)
def test_logprobs_are_those_of_the_canvas(lm, name):
    settings = SHAPE | SETTINGS[name]
    rolled = rollouts(lm, PROMPTS, 4, trajectories=True, seeds=[3, 4], **settings)
    base, pushed, drawn = replayed(lm.model, rolled, settings)
    written = rolled.commit_step >= 0
    assert written.any()
    for found, expected in ((rolled.base_logprobs, base), (rolled.pushed_logprobs, pushed)):
        assert (found[written] - expected[written]).abs().max() < CLOSE
        assert (found[~written] == 0).all()
    torch.testing.assert_close(rolled.drawn_logprobs, drawn, atol=CLOSE, rtol=0, equal_nan=True)
    assert ((rolled.canvases[0] == lm.info.mask_id) | ~written).all()
    if name.startswith(("odd", "blocks", "policy")):
        assert (rolled.base_logprobs - rolled.pushed_logprobs).abs().max() > 0.01


def test_samples_are_those_of_generate(lm):
    settings = SHAPE | {"alpha": 6.0, "block_length": 4, "temperature": 0.8}
    groups = lm.generate(PROMPTS, 3, seeds=[3, 4], **settings)
    for most in (None, 3, 2):
        rolled = rollouts(lm, PROMPTS, 3, seeds=[3, 4], max_batch=most, **settings)
        for row, sample in enumerate(sample for group in groups for sample in group):
            assert rolled.tokens[row].tolist() == list(sample.tokens)
            assert rolled.commit_step[row].tolist() == list(sample.commit_steps)
            assert rolled.base_logprobs[row].tolist() == pytest.approx(sample.base_logprobs)
            assert rolled.pushed_logprobs[row].tolist() == pytest.approx(sample.pushed_logprobs)
            assert rolled.nfe[row] == sample.nfe
    assert rolled.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert rolled.prompt_ids[rolled.prompt_mask].tolist() == PROMPTS[0] * 3 + PROMPTS[1] * 3
    assert not rolled.prompt_mask[:3, :2].any()
    assert rolled.prompt_mask[3:].all()
    assert torch.equal(rolled.step_map, rolled.commit_step + 1)


def test_what_counts_ends_with_the_first_end_token(lm):
    rolled = rollouts(lm, PROMPTS, 8, **SHAPE | PLAIN | {"temperature": 3.0})
    ended = 0
    for tokens, mask in zip(rolled.tokens.tolist(), rolled.mask.tolist(), strict=True):
        ends = [i for i, token in enumerate(tokens) if token in lm.info.end_ids]
        length = ends[0] + 1 if ends else len(tokens)
        ended += length < len(tokens)
        assert mask == [i < length for i in range(len(tokens))]
    assert ended
    ratio = rolled.log_ratio("drawn")
    assert (ratio[~rolled.mask] == 0).all()


def test_given_text_does_not_count(lm):
    templates = [["t9", 3, "t1 t8", 2], [2, "t7", 2]]
    rolled = rollouts(lm, PROMPTS, 4, templates=templates, trajectories=True, **ODD)
    holes = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1], [1, 1, 0, 1, 1, 0, 0, 0]], dtype=torch.bool)
    written = holes.repeat_interleave(4, dim=0)
    assert torch.equal(rolled.commit_step >= 0, written)
    assert not (rolled.mask & ~written).any()
    ends = torch.isin(rolled.tokens, torch.tensor(lm.info.end_ids)) & written
    hole_starts = {0: (1, 6), 1: (0, 3)}
    for row in range(8):
        for first in hole_starts[row // 4]:
            assert rolled.mask[row, first]
    assert (rolled.mask | ~written | ends.any(dim=1, keepdim=True)).all()
    assert torch.equal(rolled.canvases[-1][4:, 5:], torch.zeros(4, 3, dtype=torch.long))


def test_weights(lm):
    rolled = rollouts(lm, PROMPTS, 4, **SHAPE | ODD | {"fork": True, "temperature": 1.5})
    known = rolled.mask & ~rolled.drawn_logprobs.isnan()
    assert (known.sum(dim=1) == rolled.mask.sum(dim=1) - 1).any(), "the fork's token has no draw"
    for against, other in (("pushed", rolled.pushed_logprobs), ("drawn", rolled.drawn_logprobs)):
        ratio = rolled.log_ratio(against)
        assert torch.equal(ratio[known], (rolled.base_logprobs - other)[known])
        assert (ratio[~known] == 0).all()
        weights = rolled.token_weights(against=against)
        assert torch.equal(weights[known], ratio[known].exp())
        assert (weights[~rolled.mask] == 0).all()
        assert (weights[rolled.mask & ~known] == 1).all()
        whole = rolled.sample_weights(against=against)
        torch.testing.assert_close(whole, (ratio * known).sum(dim=1).exp())
        assert torch.equal(rolled.token_weights(0.9, against), weights.clamp(max=0.9))
        assert torch.equal(rolled.sample_weights(0.5, against), whole.clamp(max=0.5))
    first = rolled.groups * 4 == torch.arange(8)
    assert (rolled.log_ratio()[first] == 0).all(), "the first sample of a group is not pushed"


def test_weights_undo_the_push():
    """Weighted by its token, the first draw of pushed samples has the network's distribution."""
    model = Toy(vocab_size=6, sharpness=1.0)
    settings = {"length": 1, "steps": 1, "alpha": 2.0, "alpha_end": 1.0, "temperature": 1.0}
    prompts = 4000 * [[3]]
    rolled = rollouts(model, prompts, 2, fork=False, seeds=range(4000), **settings)
    pushed = torch.arange(8000) % 2 == 1
    tokens, weights = rolled.tokens[pushed, 0], rolled.token_weights()[pushed, 0]
    plain = rollouts(model, [[3]], 1, **settings | {"alpha": 0.0}, trajectories=True)
    logits = model(torch.cat([plain.prompt_ids, plain.canvases[0]], dim=1), 1, torch.tensor([1]))
    logits[..., model.mask_id] = -torch.inf
    expected = logits[0, 0].softmax(dim=0)
    bare = torch.bincount(tokens, minlength=6) / 4000
    weighted = torch.bincount(tokens, weights=weights, minlength=6) / 4000
    assert (bare - expected).abs().max() > 0.05
    assert (weighted - expected).abs().max() < 0.025


def test_one_sample(lm):
    rolled = rollouts(lm, "t5 t6", 1, reward=lambda samples: [len(samples)], **SHAPE)
    assert rolled.tokens.shape == (1, 8)
    assert rolled.rewards.tolist() == [[1.0]]
    assert torch.equal(rolled.base_logprobs, rolled.pushed_logprobs)


def test_rewards_of_a_function(lm):
    seen = []

    def reward(samples):
        seen.append([(s.prompt, s.index, s.text) for s in samples])
        return torch.arange(len(samples)) + 10 * samples[0].prompt

    rolled = rollouts(lm, PROMPTS, 2, reward=reward, max_batch=2, **SHAPE)
    assert rolled.rewards.tolist() == [[0, 1], [10, 11]]
    assert [one[:2] for group in seen for one in group] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert rollouts(lm, PROMPTS, 2, **SHAPE).rewards is None


@pytest.mark.parametrize("given", [[1.0], ["good", "bad"], [float("nan"), 0.0], None])
def test_rewards_that_are_no_numbers_for_all_samples(lm, given):
    with pytest.raises(ValueError, match=r"prompts\[0\]"):
        rollouts(lm, PROMPTS, 2, reward=lambda samples: given, **SHAPE)


def test_rewards_of_a_task():
    lm, task = oddlm.load("mini"), find_task("countdown")
    problems = task.problems()[:3]
    settings = {"length": 24, "steps": 12, "temperature": 0.5}
    rolled = rollouts(lm, problems, 4, reward="countdown", seeds=[1, 2, 3], **settings)
    groups = lm.generate(
        [task.prompt(problem) for problem in problems],
        4,
        seeds=[1, 2, 3],
        templates=None if task.template is None else [task.template(p) for p in problems],
        **settings,
    )
    right = [
        [float(task.score(problem, sample.text).correct) for sample in group]
        for problem, group in zip(problems, groups, strict=True)
    ]
    assert rolled.rewards.tolist() == right
    assert rolled.rewards.sum() > 0


class Drafty(Toy):
    """A uniform model that revises its blocks before it writes them."""

    @property
    def info(self):
        return replace(super().info, drafting=Drafting(), block_length=4)


def test_uniform_models():
    plain, drafty = Toy(vocab_size=40, process="uniform"), Drafty(vocab_size=40, process="uniform")
    rolled = rollouts(plain, PROMPTS, 4, trajectories=True, **SHAPE | PLAIN)
    base, _, drawn = replayed(plain, rolled, PLAIN)
    assert (rolled.base_logprobs - base).abs().max() < CLOSE
    assert (rolled.drawn_logprobs - drawn).abs().max() < CLOSE
    assert len(rolled.canvases) == 8
    assert not torch.equal(rolled.canvases[0], rolled.canvases[1]), "noise is new at every step"
    drafted = rollouts(drafty, PROMPTS, 2, trajectories=True, **SHAPE | ODD)
    assert len(drafted.canvases) == 8
    assert drafted.drawn_logprobs.isnan().all(), "it writes the likeliest tokens"
    assert (drafted.log_ratio() == 0).all()
    assert (drafted.base_logprobs < 0).all()


class Module(torch.nn.Module):
    """A network that follows the model protocol itself, with dropout."""

    def __init__(self):
        super().__init__()
        self.own, self.dropout = native().network, torch.nn.Dropout(0.5)
        self.frozen = torch.nn.Dropout(0.5).eval()
        self.info = replace(native().info, selective=False)
        self.modes = set()

    def forward(self, tokens, start, prompt_lengths):
        self.modes.add((self.training, self.frozen.training, torch.is_grad_enabled()))
        return self.dropout(self.frozen(self.own(tokens, start, prompt_lengths)))


def test_a_network_in_training_is_used_as_it_is():
    model = Module()
    model.own.train()
    settings = SHAPE | ODD
    first = rollouts(model, PROMPTS, 2, **settings)
    assert model.modes == {(False, False, False)}
    assert model.training
    assert model.dropout.training
    assert not model.frozen.training
    assert not first.base_logprobs.requires_grad
    assert torch.equal(first.tokens, rollouts(native(), PROMPTS, 2, **settings).tokens)
    with torch.no_grad():
        model.own.embed.weight.mul_(-1)
    assert not torch.equal(first.tokens, rollouts(model, PROMPTS, 2, **settings).tokens)

    def fail(samples):
        raise RuntimeError("no reward")

    with pytest.raises(RuntimeError, match="no reward"):
        rollouts(model, PROMPTS, 2, reward=fail, **settings)
    assert model.training


def test_moving():
    rolled = rollouts(native(), PROMPTS, 2, trajectories=True, **SHAPE)
    moved = rolled.to("meta")
    assert moved.tokens.device.type == moved.canvases.device.type == "meta"
    assert moved.n == 2
    assert rolled.tokens.device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n": 0}, "n must be .* 0"),
        ({"pool": 8}, "pool=8"),
        ({"max_batch": 0}, "max_batch"),
        ({"seeds": [1]}, "2 prompts|seed"),
        ({"prompts": []}, "prompts"),
        ({"prompts": ["t5"]}, "'t5'"),
        ({"prompts": [[99]]}, r"prompts\[0\].*39"),
        ({"prompts": 2 * [[]]}, r"prompts\[0\]"),
        ({"templates": [[8]]}, "1 for 2"),
        ({"templates": 2 * ["t5"]}, r"templates\[0\]"),
        ({"colour": 3}, "colour"),
        ({"policy": "none such"}, "none such"),
        ({"length": 100}, "64"),
        ({"reward": "countdown"}, "countdown"),
        ({"reward": "none such"}, "none such"),
        ({"reward": lambda samples: [1.0]}, r"1 numbers .* 2 samples .*\[0\]"),
        ({"reward": lambda samples: [torch.nan] * 2}, r"nan .*\[0\]"),
        ({"prompts": find_task("countdown").problems()[:2]}, "task"),
    ],
)
def test_bad_input(options, named):
    model = native()
    model.tokenizer = None
    given = {"model": model, "prompts": PROMPTS, "n": 2, **SHAPE} | options
    with pytest.raises(ValueError, match=named) as error:
        rollouts(**given)
    assert "\n" not in str(error.value)


def test_bad_models_and_weights(lm):
    with pytest.raises(ValueError, match="Linear without mask_id"):
        rollouts(torch.nn.Linear(2, 2), PROMPTS, 2)
    rolled = rollouts(lm, PROMPTS, 2, **SHAPE)
    for call in (
        lambda: rolled.log_ratio("plain"),
        lambda: rolled.token_weights(0),
        lambda: rolled.sample_weights(-1),
        lambda: rolled.sample_weights(torch.nan),
    ):
        with pytest.raises(ValueError, match=r"against|clip"):
            call()


def test_sync_sets_all_weights():
    model, other = native(), native(seed=1)
    model.weights = SimpleNamespace(identity="of a file")
    held = [p.data_ptr() for p in model.network.parameters()]
    oddlm.sync(LM(model, model.tokenizer), other.network.double().state_dict())
    for (name, ours), theirs in zip(
        model.network.state_dict().items(), other.network.state_dict().values(), strict=True
    ):
        assert ours.dtype == torch.float32, name
        assert torch.equal(ours, theirs.float()), name
    assert held == [p.data_ptr() for p in model.network.parameters()]
    assert model.info.digest is None, "they are no longer those of the file"
    expected = rollouts(native(seed=1), PROMPTS, 2, **SHAPE).tokens
    assert torch.equal(rollouts(model, PROMPTS, 2, **SHAPE).tokens, expected)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.pop("norm.weight"), "norm.weight"),
        (lambda d: d.update({"more.weight": torch.ones(2)}), "more.weight"),
        (lambda d: d.update({"norm.weight": torch.ones(3)}), r"norm.weight is \(3,\).*\(16,\)"),
        (lambda d: d.update({"norm.weight": [1.0]}), "norm.weight is list"),
    ],
)
def test_sync_changes_all_or_nothing(change, named):
    model, given = native(), dict(native(seed=1).network.state_dict())
    change(given)
    with pytest.raises(ValueError, match=named):
        oddlm.sync(model, given)
    for name, ours in native().network.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], ours)
    with pytest.raises(ValueError, match="toy"):
        oddlm.sync(Toy(), given)


def test_the_mask_is_never_written():
    rolled = rollouts(native(), PROMPTS, 4, **SHAPE)
    assert not (rolled.tokens == MASK).any()
    assert set(ENDS) == set(native().info.end_ids)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy for Triton
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_fused_kernels_give_the_same_numbers(monkeypatch, temperature):
    lm, settings = LM(Toy(vocab_size=12), ToyTokenizer(12)), {**ODD, "temperature": temperature}
    settings |= {"length": 2, "steps": 1}
    expected = rollouts(lm, PROMPTS[:1], 2, **settings)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert lm.backend(SampleParams().with_settings(settings)).draws
    found = rollouts(lm, PROMPTS[:1], 2, **settings)
    assert torch.equal(found.tokens, expected.tokens)
    for name in ("base_logprobs", "pushed_logprobs", "drawn_logprobs"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours - theirs).abs().max() < 1e-4, name

"""The network answers for masked positions alone where their number is known, and nobody reads what
it says of others.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from oddlm import Repulsion, denoise
from oddlm.core import choose
from oddlm.core.model import open_session
from oddlm.core.quota import Quota, quotas
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.models.wrappers import ClassifierFree, MicroBatch, Wrapper

VOCAB, MASK = 40, 39
PROMPTS = [[5, 6, 7, 8], [9], []]
SHAPES = {"plain": {}, "shift": {"kv_heads": 2, "shift": True, "wide_rotary": True, "tied": False}}
WRAPS = {
    "bare": lambda m: m,
    "max_batch": lambda m: MicroBatch(m, 4),
    "classifier-free": lambda m: ClassifierFree(m, 0.5),
    "both": lambda m: ClassifierFree(MicroBatch(m, 4), 0.5),
}
RUNS = [
    {},
    {"policy": "random", "block_length": 4},
    {"policy": "margin", "fork": True, "guide": Repulsion(alpha=8)},
    {
        "policy": "entropy",
        "block_length": 6,
        "guide": Repulsion("odd_sequential", alpha=8),
        "order_temperature": 0.5,
    },
    {"guide": Repulsion("dpp", alpha=8, backend="reference"), "suppress": [3], "top_k": 5},
    {"guide": Repulsion(alpha=8, feature="mean_pool"), "suppress_confidence": [1], "steps": 12},
    {"guide": Repulsion({"name": "odd", "enough": 0.5}), "prompt_noise": 0.5},
    {"policy": "entropy", "confidence": "sampled", "top_p": 0.9, "guide": Repulsion(alpha=8)},
    {"policy": "threshold", "guide": Repulsion(alpha=8)},
    {"block_length": 4, "guide": Repulsion(alpha=8, alpha_end=0.4)},
]


def model(shape="plain", dtype=torch.float64, **options):
    torch.manual_seed(0)
    network = Transformer(
        TransformerConfig(VOCAB, width=32, layers=2, heads=4, hidden=48, **SHAPES[shape])
    ).to(dtype)
    for parameter in network.parameters():  # as initialised, all logits are nearly alike
        torch.nn.init.normal_(parameter, std=0.25)
    return Native(network, name="tiny", mask_id=MASK, end_ids=(1,), **options)


class Dense(Wrapper):
    """A model whose sessions answer for all positions."""

    fill = None  # what is written over the logits of committed positions

    @property
    def info(self):
        return replace(super().info, selective=False)

    def session(self, query):
        session = open_session(self.model, query)

        def answer(query):
            logits = session(query)
            return (
                logits
                if self.fill is None
                else logits.masked_fill(~query.blocks.masked[..., None], self.fill)
            )

        return answer


class Poisoned(Dense):
    fill = torch.nan


def run(model, **options):
    settings = {"n": 3, "length": 12, "steps": 6, "temperature": 0.7, "seed": 3, **options}
    return denoise(model, PROMPTS, **settings)


def same(one, other):
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.commit_step, other.commit_step)


@pytest.mark.parametrize("options", RUNS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_policy_and_guide_writes_the_same_tokens(shape, options):
    expected = run(Dense(model(shape)), **options)
    same(run(model(shape), **options), expected)
    same(run(Poisoned(model(shape)), **options), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("wrap", WRAPS)
def test_so_do_models_around_models(wrap, dtype):
    options = {"guide": Repulsion(alpha=8), "block_length": 4, "prompt_noise": 0.5}
    wrapped = WRAPS[wrap](model("shift", dtype))
    assert wrapped.info.selective
    same(run(wrapped, **options), run(Dense(WRAPS[wrap](model("shift", dtype))), **options))


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_the_head_runs_on_what_is_read_alone(options, monkeypatch):
    """Everything that is masked while a guide looks at it, else the open block; samples that are
    done are not asked about, and samples that are alike at the first step are asked about once.
    """
    lm, seen, read = model("shift"), [], []
    head = lm.network.logits
    monkeypatch.setattr(lm.network, "logits", lambda x: seen.append(tuple(x.shape[:2])) or head(x))

    def watch(event):
        guide, step = options.get("guide"), event.step
        guided = guide is not None and step.index / step.total < guide.alpha_end
        counts = (step.masked if guided else step.open).sum(dim=1)
        read.append((int((counts > 0).sum()), int(counts.max())))

    run(lm, observe=watch, **options)
    alike = 1 if options.get("prompt_noise") else 3
    assert seen == [(read[0][0] // alike, read[0][1]), *read[1:]]


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_observers_find_numbers_everywhere_they_may_look(options, monkeypatch):
    def poisoned(rows, masked, spread=choose.spread):
        return spread(rows, masked).masked_fill_(~masked[..., None], torch.nan)

    def watch(seen, event):
        seen.append([*event.logprobs, event.entropy, event.force, event.top.pushed_probability])
        for choice in (event.chosen, event.plain):
            seen.append([choice.tokens, choice.base_probability, choice.pushed_probability])

    looks = [], []
    expected = run(model(), observe=partial(watch, looks[0]), **options)
    monkeypatch.setattr(choose, "spread", poisoned)
    same(run(model(), observe=partial(watch, looks[1]), **options), expected)
    for one, other in zip(*looks, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)
            assert not a.isnan().any()


@pytest.mark.parametrize(
    ("length", "steps", "block_length", "fork"),
    [
        (12, 12, 12, False),
        (12, 5, None, False),
        (12, 6, 4, False),
        (12, 6, 6, True),
        (7, 2, None, True),
        (9, 6, 3, True),
        (1, 1, 1, True),
    ],
)
def test_how_many_are_masked_is_known_beforehand(toy, length, steps, block_length, fork):
    quota, masked = Quota.plan(length, steps, block_length, fork=fork), []

    def watch(event):
        masked.append(event.step.masked.sum(dim=1).tolist())
        if not (fork and event.step.index == 0):
            assert torch.equal(
                quotas(event.step, quota.ends(event.step.blocks)), event.commit.sum(dim=1)
            )

    denoise(
        toy,
        [[5], [6]],
        n=2,
        length=length,
        steps=steps,
        block_length=block_length,
        fork=fork,
        observe=watch,
    )
    assert masked == [[moment.masked] * 4 for moment in quota.schedule(0, fork=fork)]


def test_an_answer_of_the_wrong_shape_is_refused():
    class Deaf(Native):
        def session(self, query):
            session = super().session(query)
            return lambda query: session(replace(query, positions=None))

    deaf = Deaf(model().network, name="deaf", mask_id=MASK, end_ids=())
    with pytest.raises(ValueError, match=r"\(9, 12, 40\), expected \(9, 10, 40\)"):
        run(deaf)

"""Going on from an earlier batch."""

import re

import pytest
import torch

from oddlm import Explored, Repulsion, denoise, diversify
from oddlm.diversity.memory import LOST, Sparse
from oddlm.models.toy import Toy
from oddlm.models.wrappers import ClassifierFree, MicroBatch

from ..registered import UNCOUPLED

SHAPE = {"length": 12, "steps": 6}
PROMPTS = [[5, 6], [7, 8, 9]]
EXPLORERS = [
    {},
    {"fork": True},
    {"fork": True, "fork_temperature": 1.0},
    {"order_temperature": 1.0},
    {"prompt_noise": 0.5},
    {"block_length": 4},
]


@pytest.mark.parametrize("objective", [*UNCOUPLED, "none", {"name": "odd", "enough": 0.9}], ids=str)
@pytest.mark.parametrize(
    ("explorer", "temperature"), [({}, 0.0), *((one, 1.0) for one in EXPLORERS)], ids=str
)
def test_sixteen_and_sixteen_are_a_batch_of_thirty_two(toy, objective, explorer, temperature):
    guide = Repulsion(objective, alpha=16, duplicates="break", remember="exact")
    options = {
        "guide": guide,
        "temperature": temperature,
        "seed": 5,
        "length": 8,
        "steps": 4,
        **explorer,
    }
    whole = denoise(toy, PROMPTS, n=32, **options)
    first = denoise(toy, PROMPTS, n=16, **options)
    second = denoise(toy, PROMPTS, n=16, history=first.history, **options)
    for g, group in enumerate(whole.groups()):
        rows = slice(g * 16, (g + 1) * 16)
        assert torch.equal(torch.cat([first.tokens[rows], second.tokens[rows]]), group)
    assert second.history.samples == 32


def test_three_batches_and_the_reference_kernel(toy):
    guide = Repulsion(alpha=16, remember="exact", backend="reference")
    options = {"guide": guide, "temperature": 1.0, **SHAPE}
    whole, parts, history = denoise(toy, [[5]], n=9, **options), [], None
    for n in (2, 3, 4):
        done = denoise(toy, [[5]], n=n, history=history, **options)
        parts, history = [*parts, done.tokens], done.history
    assert torch.equal(torch.cat(parts), whole.tokens)


def test_a_history_of_some_prompts(toy):
    options = {"guide": Repulsion(alpha=16, remember="exact"), "temperature": 1.0, **SHAPE}
    first = denoise(toy, PROMPTS, n=4, seed=[3, 4], **options)
    both = denoise(toy, PROMPTS, n=4, seed=[3, 4], history=first.history, **options)
    one = denoise(toy, PROMPTS[1:], n=4, seed=[4], history=first.history.take([1]), **options)
    assert torch.equal(one.tokens, both.tokens[4:])


def test_micro_batches_are_the_same_model(toy):
    options = {"guide": Repulsion(alpha=16, remember="exact"), "temperature": 1.0, "n": 4, **SHAPE}
    first = denoise(toy, [[5]], **options)
    plain, micro = (
        denoise(m, [[5]], history=first.history, **options) for m in (toy, MicroBatch(toy, 3))
    )
    assert torch.equal(plain.tokens, micro.tokens)


def test_models_without_a_name_are_known_by_themselves():
    class Nameless:
        mask_id, vocab_size, end_ids = 9, 10, ()

        def __call__(self, tokens, start, prompt_lengths):
            return torch.zeros(len(tokens), tokens.shape[1] - start, 10)

    one, other = Nameless(), Nameless()
    first = denoise(one, [[5]], n=2, **SHAPE)
    assert denoise(one, [[5]], n=2, history=first.history, **SHAPE).history.samples == 4
    with pytest.raises(ValueError, match="history was made with model Nameless object"):
        denoise(other, [[5]], n=2, history=first.history, **SHAPE)


def test_one_record_for_reading_and_writing():
    g = torch.Generator().manual_seed(2)
    logits = torch.randn(1, 5, 40, generator=g).double().repeat(6, 1, 1)
    tokens, masked = torch.zeros(6, 5, dtype=torch.long), torch.ones(6, 5, dtype=torch.bool)
    whole = [diversify(logits, tokens, masked, alpha=8.0, step=i) for i in range(2)]
    explored, parts = Explored(), [[], []]
    for first in (0, 2, 4):
        rows = slice(first, first + 2)
        for i in range(2):
            history = explored if first else None
            push = diversify(
                logits[rows],
                tokens[rows],
                masked[rows],
                alpha=8.0,
                step=i,
                history=history,
                record=explored,
            )
            parts[i].append(push)
    for i in range(2):
        torch.testing.assert_close(torch.cat(parts[i]), whole[i])


def test_without_memory_the_second_batch_would_repeat_the_first(toy):
    options = {"guide": Repulsion(alpha=16, remember="exact"), "temperature": 0.0, "n": 8, **SHAPE}
    first = denoise(toy, [[5]], **options)
    afresh = denoise(toy, [[5]], **options)
    goes_on = denoise(toy, [[5]], history=first.history, **options)
    seen = {tuple(r) for r in first.tokens.tolist()}
    assert sum(tuple(r) in seen for r in afresh.tokens.tolist()) == 8
    assert sum(tuple(r) in seen for r in goes_on.tokens.tolist()) <= 1


@pytest.mark.parametrize(("peaked", "share"), [(20, 0.2), (1, 0.51)])
def test_sparse_memory_loses_what_it_says_and_stays_orthonormal(peaked, share):
    g = torch.Generator().manual_seed(0)
    rows = torch.linalg.qr(torch.randn(4000, 6, generator=g).double().abs() ** peaked)[
        0
    ].mT.contiguous()
    rows[3] = 0.0
    packed = Sparse.pack(rows)
    again = packed.unpack()
    kept = [i for i in range(6) if i != 3]
    torch.testing.assert_close(again[kept] @ again[kept].mT, torch.eye(5).double())
    assert (again[3] == 0).all()
    assert (again - rows).norm(dim=1).max() < 3 * LOST
    assert packed.nbytes < share * rows.nbytes


def test_sparse_memory_knows_duplicates(toy):
    """A duplicate of a remembered sample must keep a residual below the tolerance."""
    options = {
        "guide": Repulsion(alpha=16, remember="sparse", duplicates="skip"),
        "temperature": 0.0,
        "n": 2,
        **SHAPE,
    }
    first = denoise(toy, [[5]], **options)
    again = denoise(toy, [[5]], history=first.history, **options)
    assert torch.equal(first.tokens, again.tokens)
    exact = denoise(
        toy, [[5]], **{**options, "guide": Repulsion(alpha=16, remember="exact", duplicates="skip")}
    )
    assert first.history.memory.nbytes < exact.history.memory.nbytes == 6 * 2 * toy.vocab_size * 8


@pytest.mark.parametrize(("exponent", "share"), [(1.0, 0.51), (2.5, 0.02)])
def test_memory_at_the_vocabulary_of_llada(exponent, share):
    """Zipf's law over 126464 tokens at 16 positions: n * V * 8 bytes exactly, at most half of it
    sparse.
    """
    g = torch.Generator().manual_seed(0)
    ranks = torch.stack([torch.randperm(126464, generator=g) for _ in range(4 * 16)]).view(
        4, 16, -1
    )
    logits = -exponent * (1.0 + ranks).log()
    tokens, masked = torch.zeros(4, 16, dtype=torch.long), torch.ones(4, 16, dtype=torch.bool)
    sizes = {}
    for form in ("exact", "sparse"):
        record = Explored(form)
        diversify(logits, tokens, masked, alpha=8.0, record=record)
        sizes[form] = record.nbytes
    assert sizes["exact"] == 4 * 126464 * 8
    assert sizes["sparse"] < share * sizes["exact"]


def test_diversify_goes_on_too():
    g = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 5, 40, generator=g).double()
    logits[4] = logits[1]
    tokens, masked = torch.randint(0, 40, (6, 5), generator=g), torch.rand(6, 5, generator=g) < 0.8
    tokens[4], masked[4] = tokens[1], masked[1]
    whole = diversify(logits, tokens, masked, alpha=8.0, step=3, seed=9)
    first, explored = slice(0, 3), Explored()
    parts = [
        diversify(
            logits[first], tokens[first], masked[first], alpha=8.0, step=3, seed=9, record=explored
        )
    ]
    rest = slice(3, 6)
    parts.append(
        diversify(
            logits[rest], tokens[rest], masked[rest], alpha=8.0, step=3, seed=9, history=explored
        )
    )
    torch.testing.assert_close(torch.cat(parts), whole)
    assert explored.samples_at(3) == 3
    with pytest.raises(ValueError, match="history has no step 4; it holds 1 steps"):
        diversify(logits[rest], tokens[rest], masked[rest], alpha=8.0, step=4, history=explored)
    with pytest.raises(ValueError, match="history was made with 1 prompts, not 3"):
        diversify(
            logits[rest], tokens[rest], masked[rest], alpha=8.0, step=3, n=1, history=explored
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 8, "steps": 4}, "history was made with length 12, not 8"),
        ({"steps": 4}, "history was made with steps 6, not 4"),
        ({"block_length": 6}, "history was made with block_length 12, not 6"),
        ({"seed": 1}, "history was made with seed [0], not [1]"),
        ({"prompts": [[5, 7]]}, "history was made with prompts [[5, 6]], not [[5, 7]]"),
        ({"model": Toy(vocab_size=60, seed=5)}, "not toy (60, 32, 8, 4.0, 5)"),
        (
            {"model": ClassifierFree(Toy(vocab_size=60), 2.0)},
            "not toy (60, 32, 8, 4.0, 0) with cfg_scale 2",
        ),
        (
            {"guide": Repulsion(feature="mean_pool")},
            "history was made with feature max_pool {'space': 'probs', 'top_k': None",
        ),
        (
            {"guide": Repulsion(feature={"name": "max_pool", "top_k": 5})},
            "'top_k': None, 'ignore_ids': []}, not max_pool",
        ),
        ({"guide": Repulsion("dpp")}, "objective 'dpp' couples all samples of a batch"),
        (
            {"guide": Repulsion.preset("paper")},
            "arithmetic 'published' has no memory of earlier batches",
        ),
        ({"policy": "threshold"}, "a parallel policy cannot continue from a history"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "-".join(x),
)
def test_a_history_that_does_not_fit(toy, change, message):
    options = {
        "model": toy,
        "prompts": [[5, 6]],
        "n": 2,
        "guide": Repulsion(alpha=16, remember="exact"),
        **SHAPE,
    }
    history = denoise(
        options["model"],
        options["prompts"],
        **{k: v for k, v in options.items() if k not in ("model", "prompts")},
    )
    arguments = {**options, **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        denoise(
            arguments.pop("model"), arguments.pop("prompts"), history=history.history, **arguments
        )


def test_memory_that_cannot_be(toy):
    with pytest.raises(ValueError, match="objective 'dpp' couples all samples"):
        Repulsion("dpp", remember="exact")
    with pytest.raises(ValueError, match="remember must be one of exact, sparse, not 'half'"):
        Repulsion(remember="half")
    with pytest.raises(ValueError, match="form must be one of exact, sparse, not 'half'"):
        Explored("half")
    with pytest.raises(ValueError, match="cannot remember a history with a parallel policy"):
        denoise(toy, [[5]], n=2, guide=Repulsion(remember="exact"), policy="threshold", **SHAPE)
    forgetful = denoise(toy, [[5]], n=2, guide=Repulsion(alpha=16), **SHAPE)
    with pytest.raises(ValueError, match=r"history holds no directions.*remember='exact'"):
        denoise(toy, [[5]], n=2, guide=Repulsion(alpha=16), history=forgetful.history, **SHAPE)

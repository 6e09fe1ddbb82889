"""Over-generation: n of a pool, chosen without a verdict, and paid for in full."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oddlm
from oddlm import LM, Sample
from oddlm.config import checked
from oddlm.experiments.identity import identified
from oddlm.experiments.plan import check_spec
from oddlm.metrics.words import split_words, word_distances
from oddlm.selection import SELECTORS, keep
from oddlm.spec import RunSpec
from oddlm.store import Store

from .runs import run

SETTINGS = {"length": 8, "steps": 4, "temperature": 1.0, "alpha": 0, "seed": 3}


@pytest.fixture(scope="module")
def lm() -> LM:
    return oddlm.load("toy", vocab_size=60, dtype=torch.float64)


def sample(index, text="", logprobs=(0.0,)):
    return Sample(0, index, text, (), (), tuple(logprobs), tuple(logprobs), 0, "length", 4)


def chosen(selector, samples, n):
    return [one.index for one in keep(samples, n, selector)]


def test_first_is_as_if_no_more_had_been_drawn(lm):
    pooled = lm.generate(["t5 t6", "t7"], n=4, pool=9, selector="first", **SETTINGS)
    assert pooled == lm.generate(["t5 t6", "t7"], n=4, **SETTINGS)


def test_k_centre_by_hand():
    texts = ["a b c d", "a b c d", "a b c x", "p q r s", "a b x y"]
    samples = [sample(i, text) for i, text in enumerate(texts)]
    assert chosen("k_centre", samples, 5) == [0, 3, 4, 2, 1]
    assert chosen("k_centre", samples[:2], 2) == [0, 1], "where all are alike the first come first"


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=5).map(" ".join), min_size=1, max_size=9),
    st.data(),
)
def test_k_centre_is_a_farthest_point_each_time(texts, data):
    n = data.draw(st.integers(1, len(texts)))
    found = list(SELECTORS.find("k_centre")([sample(i, text) for i, text in enumerate(texts)], n))
    assert found[0] == 0
    assert len(set(found)) == n
    words = [split_words(text) for text in texts]
    distances = word_distances(words, words)
    for m in range(1, n):
        rest = [i for i in range(len(texts)) if i not in found[:m]]
        reach = {i: distances[i, found[:m]].min() for i in rest}
        assert found[m] == min(rest, key=lambda i: (-reach[i], i))


def test_the_most_confident_are_the_likeliest_texts():
    samples = [
        sample(i, logprobs=p)
        for i, p in enumerate([(-3.0, -1.0), (-1.0, -1.0), (-4.0, 0.0), (-0.5, -0.25)])
    ]
    assert chosen("most_confident", samples, 3) == [3, 1, 0]


def test_a_pool_keeps_n_of_its_samples_with_their_places(lm):
    whole = lm.generate(["t5 t6", "t7"], n=12, **SETTINGS)
    for group, kept in zip(
        whole, lm.generate(["t5 t6", "t7"], n=4, pool=12, **SETTINGS), strict=True
    ):
        assert [one.index for one in kept] == chosen("k_centre", group, 4)
        assert list(kept) == [group[one.index] for one in kept]
    assert (
        len(
            {
                tuple(one.index for one in kept)
                for kept in lm.generate(["t5 t6", "t7"], n=4, pool=12, **SETTINGS)
            }
        )
        == 2
    )


def test_fewer_are_the_first_of_more_and_batches_do_not_count(lm):
    four, six = (lm.generate(["t5 t6", "t7"], n=n, pool=12, **SETTINGS) for n in (4, 6))
    assert [list(group) for group in four] == [group[:4] for group in six]
    assert lm.generate(["t5 t6", "t7"], n=4, pool=12, max_batch=5, **SETTINGS) == four


def test_kept_samples_are_farther_apart_than_the_first(lm):
    def apart(group):
        words = [split_words(one.text) for one in group]
        return word_distances(words, words)[np.triu_indices(len(group), 1)].min()

    settings = SETTINGS | {"temperature": 0.5, "eos": "never"}
    pairs = [
        (lm.generate(p, n=4, pool=16, **settings)[0], lm.generate(p, n=4, **settings)[0])
        for p in ("t5 t6", "t7", "t9")
    ]
    assert all(apart(kept) > apart(first) for kept, first in pairs)


def somebodys(samples, n, *, step=2):
    """Every other one."""
    return range(0, len(samples), step)[:n]


def test_a_selector_of_ones_own(lm):
    spec = {"name": f"{__name__}.somebodys", "step": 3}
    kept = lm.generate("t5", n=4, pool=12, selector=spec, **SETTINGS)[0]
    assert [one.index for one in kept] == [0, 3, 6, 9]
    with pytest.raises(ValueError, match=r"must choose 4 different indices below 12, not \[0, 7\]"):
        lm.generate("t5", n=4, pool=12, selector={**spec, "step": 7}, **SETTINGS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pool": 3}, "pool must be at least n.*: 3 < 4"),
        (
            {"pool": 8, "selector": "kcentre"},
            "unknown selector 'kcentre'; known: first, k_centre, most_confident",
        ),
        (
            {"pool": 8, "selector": {"name": "first", "k": 2}},
            "selector 'first' has no option 'k'; options: none",
        ),
        ({"pool": 8, "until": lambda one: True}, "until and pool"),
    ],
    ids=lambda x: x if isinstance(x, str) else ",".join(x),
)
def test_bad_input_is_refused_before_any_work(lm, wrong, message):
    def untouched(event):
        raise AssertionError("work was done before the arguments were checked")

    with pytest.raises(ValueError, match=message):
        lm.generate("t5", n=4, observe=untouched, **wrong, **SETTINGS)


def test_a_run_that_cannot_be_is_refused_before_the_model_is_loaded():
    with pytest.raises(ValueError, match="unknown selector 'kcentre'"):
        check_spec(
            checked(RunSpec, {"model": "toy", "params": {"pool": 32, "selector": "kcentre"}})
        )
    spec = checked(RunSpec, {"model": "toy", "params": {"pool": 32}})
    with pytest.raises(ValueError, match="pool must be at least n"):
        check_spec(spec.model_copy(update={"n": 64}))


@pytest.mark.parametrize(("pool", "nfe"), [(None, 6), (4, 6), (8, 12), (5, 8)])  # 6 x 5 / 4 = 7.5
@pytest.mark.parametrize("together", [1, 5])
def test_a_record_tells_what_was_spent(tmp_path, pool, nfe, together):
    params = {"length": 6, "alpha": 0, "temperature": 1, "pool": pool}
    spec = identified(
        checked(RunSpec, {"model": "toy", "task": "tests.own_task.TASK", "n": 4, "params": params})
    )
    store = Store(tmp_path / "runs")
    records = run(store, spec, together=together)
    assert {record.nfe for record in records} == {nfe}
    assert {len(record.samples) for record in records} == {4}
    assert all(one.index < (pool or 4) for record in records for one in record.samples)
    assert store.read(spec.id).summary.samples == 48


def test_a_recording_has_no_pool(lm):
    from oddlm.explorer.recording import record

    with pytest.raises(ValueError, match="pool"):
        record(lm, "toy", "t5", 2, oddlm.SampleParams(pool=4, length=8), None, None)


def test_every_selector_gives_places_for_every_n():
    samples = [sample(i, text, (-float(i),)) for i, text in enumerate(["a", "b", "", "a b"])]
    for name, n in itertools.product(SELECTORS.names, range(1, 5)):
        assert len(keep(samples, n, name)) == n

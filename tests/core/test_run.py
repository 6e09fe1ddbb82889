"""A run as a value: it can be kept, copied, sent away and continued, and it refuses what does not
belong to it.
"""

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from itertools import product

import pytest
import torch

import oddlm
from oddlm import ModelInfo, Repulsion, advance, begin, denoise, open_session
from oddlm.core import state as core_state
from oddlm.models.mini import Mini
from oddlm.models.native import Native
from oddlm.models.toy import Toy
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.models.wrappers import ClassifierFree, MicroBatch

SHAPE = {"n": 3, "length": 8, "steps": 8, "temperature": 0.7, "seed": 3}
PROMPTS = [[5, 6, 7], [9]]
RUNS = [
    {},
    {"block_length": 4, "policy": "threshold"},
    {"guide": Repulsion(alpha=6)},
    {"guide": Repulsion(alpha=6, remember="exact"), "fork": True},
    {"guide": Repulsion(alpha=6, remember="sparse", feature="positional")},
    {
        "guide": Repulsion("dpp", alpha=6, backend="reference"),
        "policy": {"name": "entropy_bound", "bound": 0.3},
    },
    {
        "guide": Repulsion(alpha=6, feature={"name": "mean_pool", "space": "embedding"}),
        "prompt_noise": 0.4,
    },
    {"policy": {"name": "remdm", "eta": 0.4}, "block_length": 4},
    {"order_temperature": 0.5, "suppress_confidence": (1, 2, 7), "top_k": 5},
    {"block_length": 4, "stop_at_end": True, "temperature": 2.0},
    {"templates": [[None, 3, None, None, 4, None, None, 5]] * 2, "guide": Repulsion(alpha=6)},
]


@pytest.fixture(scope="module")
def model() -> Toy:
    return Toy(vocab_size=60, dtype=torch.float64)


def finish(state, session):
    while (query := state.query) is not None:
        state, _ = advance(state, session(query), query=query)
    return state.result


def same(one, other):
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.commit_step, other.commit_step)
    assert torch.equal(one.evaluations, other.evaluations)
    assert one.history.samples == other.history.samples


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_a_run_can_be_pickled_at_any_step(model, options):
    """What comes back goes on to the same tokens; so does the original, any number of times."""
    expected = denoise(model, PROMPTS, **SHAPE | options)
    state = begin(model, PROMPTS, **SHAPE | options)
    states = [state]
    while (query := state.query) is not None:
        state, _ = advance(state, open_session(model, query)(query))
        states.append(state)
    same(state.result, expected)
    for before in states:
        copy = pickle.loads(pickle.dumps(before))
        same(finish(copy, lambda query: open_session(model, query)(query)), expected)
        same(finish(before, lambda query: open_session(model, query)(query)), expected)


def test_a_memory_goes_along(model):
    options = {**SHAPE, "guide": Repulsion(alpha=6, remember="exact")}
    first = denoise(model, PROMPTS, **options)
    expected = denoise(model, PROMPTS, history=first.history, **options)
    state = begin(model, PROMPTS, **options)
    for _ in range(3):
        state, _ = advance(state, open_session(model, state.query)(state.query))
    copied = finish(
        pickle.loads(pickle.dumps(state)), lambda query: open_session(model, query)(query)
    )
    same(denoise(model, PROMPTS, history=copied.history, **options), expected)
    assert not first.history.memory.steps.keys() - copied.history.memory.steps.keys()


def test_two_futures_of_one_state_do_not_touch_each_other(model):
    """A guide that remembers, too: what one future explored is not in the other's memory."""
    options = {**SHAPE, "guide": Repulsion(alpha=6, remember="exact")}
    state = begin(model, PROMPTS, **options)
    logits = open_session(model, state.query)(state.query)
    one, _ = advance(state, logits)
    kept = one.memory.steps[0][0].clone()
    other, _ = advance(state, -logits)
    assert torch.equal(one.memory.steps[0][0], kept)
    assert not torch.equal(other.memory.steps[0][0], kept)
    assert not state.memory.steps
    again, _ = advance(state, logits)
    assert torch.equal(again.tokens, one.tokens)
    with pytest.raises(FrozenInstanceError):
        state.index = 3


CONTINUE = """
import pickle, sys
from oddlm import advance, open_session
from oddlm.models.mini import Mini
state, model = pickle.loads(sys.stdin.buffer.read()), Mini()
session = None
while (query := state.query) is not None:
    session = session or open_session(model, query)
    state, _ = advance(state, session(query), query=query)
sys.stdout.buffer.write(pickle.dumps(state.result.tokens))
"""


def test_another_process_continues_it():
    options = {
        "n": 4,
        "length": 24,
        "steps": 12,
        "temperature": 0.5,
        "guide": Repulsion(alpha=8),
        "fork": True,
    }
    mini = Mini()
    prompts = [mini.tokenizer.encode("73,32,7,19,28\n")]
    expected = denoise(mini, prompts, **options)
    state = begin(mini, prompts, **options)
    session = open_session(mini, state.query)
    for _ in range(5):
        state, _ = advance(state, session(state.query))
    done = subprocess.run(
        [sys.executable, "-c", CONTINUE], input=pickle.dumps(state), capture_output=True, check=True
    )
    assert torch.equal(pickle.loads(done.stdout), expected.tokens)


def test_a_pickled_state_is_light():
    """It holds the canvas and the settings, not the embedding of the model, nor what was asked."""
    mini = Mini()
    state = begin(mini, [[5] * 20], n=4, length=24, steps=12, guide=Repulsion(alpha=8))
    assert state.query is not None
    assert len(pickle.dumps(state)) < 50_000 < mini.embedding.nbytes


ENDS = (5, 12, 14, 30)


def tiny(cache):
    torch.manual_seed(0)
    network = Transformer(
        TransformerConfig(vocab_size=50, width=32, layers=2, heads=4, hidden=48)
    ).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return Native(network, name="tiny", mask_id=49, end_ids=ENDS, cache=cache)


@pytest.mark.parametrize(
    "around", [lambda m: m, lambda m: MicroBatch(m, 2), lambda m: ClassifierFree(m, 0.5)]
)
@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
def test_with_a_cache_it_resumes_where_a_block_begins(cache, around):
    """A new session fills its cache anew, which is what the old one does there; samples that ended
    before stay away.
    """
    model = around(tiny(cache))
    options = {
        "n": 3,
        "length": 12,
        "steps": 12,
        "block_length": 4,
        "temperature": 2.0,
        "stop_at_end": True,
        "seed": 5,
    }
    expected = denoise(model, PROMPTS, **options)
    assert len(set(expected.evaluations.tolist())) > 1, "some end before others"
    for begun in (4, 8):
        state = begin(model, PROMPTS, **options)
        session = open_session(model, state.query)
        for _ in range(begun):
            state, _ = advance(state, session(state.query))
        copy = pickle.loads(pickle.dumps(state))
        same(finish(copy, open_session(model, copy.query)), expected)


def test_a_state_of_another_version_is_refused(model, monkeypatch):
    state = begin(model, PROMPTS, **SHAPE)
    with monkeypatch.context() as newer:
        newer.setattr(core_state, "VERSION", core_state.VERSION + 1)
        data = pickle.dumps(state)
    with pytest.raises(
        ValueError, match=f"version {core_state.VERSION + 1}.*version {core_state.VERSION}"
    ):
        pickle.loads(data)


def test_answers_that_do_not_fit_are_refused_and_change_nothing(model):
    state = begin(model, PROMPTS, **SHAPE)
    query = state.query
    logits = open_session(model, query)(query)
    before = pickle.dumps(state)
    wrong = {
        r"\(6, 7, 60\), expected \(6, 8, 60\)": logits[:, :7],
        r"\(5, 8, 60\), expected \(6, 8, 60\)": logits[:5],
        r"\(6, 8, 59\), expected \(6, 8, 60\)": logits[..., :59],
        r"torch\.float32, expected torch\.float64": logits.float(),
        r"torch\.int64, expected torch\.float64": logits.long(),
        r"on meta, but the run is on cpu": logits.to("meta"),
        r"list, not a tensor": logits.tolist(),
        r"NaN at sample 0, position 0": torch.full_like(logits, torch.nan),
    }
    for message, answer in wrong.items():
        with pytest.raises(ValueError, match=message):
            advance(state, answer)
    after, _ = advance(state, logits, query=query)
    with pytest.raises(ValueError, match=r"query 0 of this run.*query 1 is the current one"):
        advance(after, logits, query=query)
    other = begin(model, PROMPTS, **SHAPE)
    with pytest.raises(ValueError, match="a query of another run"):
        advance(other, logits, query=query)
    assert pickle.dumps(state) == before
    with pytest.raises(ValueError, match="step 1 of at most 8 is next"):
        _ = after.result
    done = after
    while done.query is not None:
        done, _ = advance(done, open_session(model, done.query)(done.query))
    with pytest.raises(ValueError, match="finished"):
        advance(done, logits)


def test_what_is_known_of_a_model_is_enough_to_begin():
    """No network is near; whoever has one answers."""
    info = ModelInfo(vocab_size=20, mask_id=19, end_ids=(1,), name="far away")
    state = begin(info, [[5]], n=2, length=6, steps=3, guide=Repulsion(alpha=4))
    asked = []
    while (query := state.query) is not None:
        asked.append((query.number, tuple(query.tokens.shape), query.start, query.positions))
        generator = torch.Generator().manual_seed(query.number)
        state, event = advance(state, torch.randn(2, 6, 20, generator=generator))
        assert event.commit.sum(dim=1).tolist() == [2, 2]
    assert asked == [(0, (2, 7), 1, None), (1, (2, 7), 1, None), (2, (2, 7), 1, None)]
    assert (state.result.tokens != 19).all()


def test_a_plain_function_is_a_model():
    def network(tokens, start, prompt_lengths):
        return torch.zeros(len(tokens), tokens.shape[1] - start, 20)

    with pytest.raises(ValueError, match="function without mask_id, vocab_size, end_ids"):
        denoise(network, [[5]], n=1, length=4, steps=2)
    network.info = ModelInfo(20, 19)
    assert denoise(network, [[5]], n=1, length=4, steps=2).nfe == 2
    del network.info
    network.mask_id, network.vocab_size, network.end_ids = 19, 20, ()
    assert denoise(network, [[5]], n=1, length=4, steps=2).nfe == 2


class Ending:
    """An answer of three words, then end tokens; each prompt says where."""

    info = ModelInfo(vocab_size=12, mask_id=11, end_ids=(1, 2), dtype=torch.float64)

    def __init__(self):
        self.asked = []

    def __call__(self, tokens, start, prompt_lengths):
        self.asked.append(len(tokens))
        L = tokens.shape[1] - start
        places = torch.arange(L)
        ends = tokens[:, start - 1, None]  # the last token of the prompt
        likely = torch.where(places < ends, 3 + places % 5, 1)
        return torch.nn.functional.one_hot(likely, 12).double() * 20


@pytest.mark.parametrize(
    "guide", [None, Repulsion(alpha=1), Repulsion("dpp", alpha=1)], ids=["plain", "odd", "dpp"]
)
def test_a_sample_that_has_ended_costs_nothing(guide):
    options = {
        "n": 2,
        "length": 12,
        "steps": 12,
        "block_length": 4,
        "temperature": 0.0,
        "guide": guide,
    }
    prompts = [[2], [6], [11]]
    whole, stopping = Ending(), Ending()
    full = denoise(whole, prompts, **options)
    short = denoise(stopping, prompts, stop_at_end=True, **options)
    for tokens, other in zip(full.tokens.tolist(), short.tokens.tolist(), strict=True):
        end = next(i for i, token in enumerate(tokens) if token in (1, 2))
        assert other[: end + 1] == tokens[: end + 1]
    assert short.evaluations.tolist() == [4, 4, 8, 8, 12, 12]
    assert stopping.asked == [6] * 4 + [4] * 4 + [2] * 4
    assert whole.asked == [6] * 12
    behind = short.commit_step == -1
    assert (short.tokens[behind] == 1).all()
    assert behind.sum(dim=1).tolist() == [8, 8, 4, 4, 0, 0]


@pytest.mark.parametrize("objective", ["odd", "odd_sequential", "dpp", "random_probe"])
def test_stopping_changes_no_word_of_anybody(objective):
    """Samples that are still pushed away from one that has ended see it as if it went on."""
    model = tiny(None)
    options = {
        "n": 6,
        "length": 12,
        "steps": 12,
        "block_length": 4,
        "temperature": 2.5,
        "seed": [7, 8],
    }
    options["guide"] = Repulsion(objective, alpha=6)
    full = denoise(model, PROMPTS, **options)
    short = denoise(model, PROMPTS, stop_at_end=True, **options)
    cut = 0
    for tokens, other, steps in zip(
        full.tokens.tolist(), short.tokens.tolist(), short.commit_step.tolist(), strict=True
    ):
        end = next((i for i, token in enumerate(tokens) if token in ENDS), len(tokens))
        assert other[: end + 1] == tokens[: end + 1]
        cut += steps.count(-1)
    assert cut or objective == "dpp", "the draw has a sample that ends early"


def test_a_memory_and_an_end_do_not_go_together(model):
    with pytest.raises(ValueError, match="stop_at_end"):
        begin(model, PROMPTS, guide=Repulsion(alpha=4, remember="exact"), stop_at_end=True, **SHAPE)


def test_generate_stops_at_the_end_of_blocks_and_tells_its_cost():
    lm = oddlm.load("mini")
    options = {"n": 8, "length": 48, "steps": 48, "block_length": 8, "seed": 1}
    stopping, whole = (
        lm.generate("3,4,5,6", **options)[0],
        lm.generate("3,4,5,6", stop_at_end=False, **options)[0],
    )
    assert [s.text for s in stopping] == [s.text for s in whole]
    assert {s.nfe for s in whole} == {48}
    assert max(s.nfe for s in stopping) < 48


def test_the_store_knows_a_run_by_its_texts_alone():
    from oddlm.params import SampleParams
    from oddlm.spec import RunSpec

    ids = {
        RunSpec(model="toy", params=SampleParams(block_length=32, stop_at_end=x)).id
        for x in (None, True, False)
    }
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("policy", "options"), list(product(["low_confidence", "threshold"], [{}, {"block_length": 4}]))
)
def test_samples_that_are_done_are_not_asked_about(policy, options):
    model = tiny(None)
    asked = []

    def watch(event):
        asked.append(event.step.masked.any(dim=1))

    done = denoise(
        model,
        PROMPTS,
        n=3,
        length=8,
        steps=8,
        policy={"name": policy},
        temperature=0.5,
        observe=watch,
        **options,
    )
    assert torch.equal(torch.stack(asked).sum(dim=0), done.evaluations)


def test_a_finished_session_of_a_resumed_run_counts_from_where_it_begins():
    model = tiny("dual")
    state = begin(model, PROMPTS, n=2, length=8, steps=8, block_length=4)
    session = open_session(model, state.query)
    for _ in range(4):
        state, _ = advance(state, session(state.query))
    late = open_session(model, state.query)
    with pytest.raises(ValueError, match="query 4 of its run, not 5"):
        late(replace(state.query, number=5))
    assert late(state.query).shape[0] == 4


def test_a_step_computes_no_gradients(toy):
    state = begin(toy, [[5]], n=2, length=4, steps=2, guide=Repulsion(alpha=4))
    logits = open_session(toy, state.query)(state.query).requires_grad_()
    _, event = advance(state, logits)
    assert not event.pushed_logits.requires_grad
    assert not event.prediction.confidence.requires_grad


def test_samples_that_stay_are_known_by_one_tensor():
    toy, seen = Toy(vocab_size=60), []
    options = {"length": 24, "steps": 24, "block_length": 8, "temperature": 1.0}
    state = begin(
        toy, [[5], [6, 7]], n=3, policy={"name": "threshold", "threshold": 0.3}, **options
    )
    session = open_session(toy, state.query)
    while state.query is not None:
        seen.append(state.query.samples)
        state, _ = advance(state, session(state.query))
    left = [samples for samples in seen if samples is not None]
    assert len(left) > len({len(samples) for samples in left}) > 1
    assert len({id(samples) for samples in left}) == len({len(samples) for samples in left})

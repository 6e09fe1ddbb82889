"""Sessions: cached keys and values are exact where they can be, and save the expected work."""

from dataclasses import replace
from itertools import product

import pytest
import torch

import oddlm
from oddlm.core.policies import POLICIES
from oddlm.models import cache as cache_module
from oddlm.models.mini import Mini
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.models.wrappers import ClassifierFree, MicroBatch

from ..queries import canvas, query

CLOSE = 1e-9
VOCAB, MASK = 50, 49
SHAPES = {
    "plain": {},
    "grouped": {"kv_heads": 2, "qkv_bias": True, "tied": False},
    "shift": {"kv_heads": 1, "shift": True, "wide_rotary": True},
    "normed": {"qk_norm": True, "head_size": 12, "tied": False},
}
PROMPTS = {"alike": [[5, 6, 7]], "padded": [[5, 6, 7, 8, 9, 10], [11, 12], []], "bare": [[]]}
PAIRS = list(product(SHAPES, PROMPTS))
CASES = list(product(SHAPES, PROMPTS, ["prefix", "dual"]))


def model(shape="plain", layers=2, cache=None, refresh=None):
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=VOCAB, width=32, layers=layers, heads=4, hidden=48, **SHAPES[shape]
    )
    network = Transformer(config).double()
    for (
        parameter
    ) in network.parameters():  # with the default initialisation all logits are nearly equal
        torch.nn.init.normal_(parameter, std=0.25)
    kind = Native if cache != "none, blind" else Blind
    cache = None if kind is Blind else cache
    return kind(network, name="tiny", mask_id=MASK, end_ids=(1,), cache=cache, refresh=refresh)


class Blind(Native):
    """Without a cache, but guides see of its canvas what they see with a dual one."""

    @property
    def info(self):
        return replace(super().info, blind=True)


def untouched(logits, step):
    """A guide that changes nothing."""
    return logits


def run(model, prompts="padded", **options):
    """Return the tokens, and the logits of masked (open_only: of open) positions at every step."""
    seen, open_only = [], options.pop("open_only", False)

    def watch(event):
        seen.append(event.base_logits[event.step.open if open_only else event.step.masked])

    settings = {
        "n": 3,
        "length": 12,
        "steps": 6,
        "block_length": 4,
        "temperature": 1.0,
        "guide": untouched,
        **options,
    }
    return oddlm.denoise(
        model, PROMPTS.get(str(prompts), prompts), observe=watch, **settings
    ).tokens, seen


def same(one, other):
    assert torch.equal(one[0], other[0])
    assert len(one[1]) == len(other[1])
    for a, b in zip(one[1], other[1], strict=True):
        assert torch.equal(a.isneginf(), b.isneginf())
        assert (a - b).nan_to_num(nan=0.0).abs().max() < CLOSE


class Bare:
    """A model without sessions."""

    def __init__(self, model):
        self.model = model
        self.mask_id, self.vocab_size, self.end_ids = model.mask_id, model.vocab_size, model.end_ids

    def __call__(self, *canvas):
        return self.model(*canvas)


@pytest.mark.parametrize(("shape", "prompts"), PAIRS)
def test_a_session_is_the_model(shape, prompts):
    same(run(model(shape), prompts), run(Bare(model(shape)), prompts))


@pytest.mark.parametrize(("shape", "prompts", "cache"), CASES)
def test_refreshed_at_every_step_it_changes_nothing(shape, prompts, cache):
    read = {"open_only": cache == "dual"}
    same(
        run(model(shape, cache=cache, refresh=1), prompts, **read),
        run(model(shape), prompts, **read),
    )


@pytest.mark.parametrize(("shape", "cache"), list(product(SHAPES, ["prefix", "dual"])))
def test_refreshed_at_every_step_it_changes_nothing_for_a_guide(shape, cache):
    settings = {"prompts": [[5, 6, 7, 8, 9, 10], [11, 12]], "guide": oddlm.Repulsion(alpha=4)}
    read = {"open_only": cache == "dual"}
    exact = model(shape, cache="none, blind" if cache == "dual" else None)
    same(
        run(model(shape, cache=cache, refresh=1), **settings, **read),
        run(exact, **settings, **read),
    )


@pytest.mark.parametrize(("shape", "prompts", "cache"), CASES)
def test_a_window_over_an_unchanged_canvas_says_the_same(shape, prompts, cache):
    exact, cached = model(shape), model(shape, cache=cache)
    tokens, lengths = canvas(exact.info, PROMPTS[prompts], 2, 12)
    start = tokens.shape[1] - 12
    tokens[1, start + 2], tokens[0, start + 1] = 3, 4  # samples differ, so each has its own keys
    for begun in (0, 5):
        tokens[:, start : start + begun] = 7
        first = query(exact.info, tokens, lengths, 12, 4)
        session, whole = cached.session(first), exact(tokens, start, lengths)
        assert (session(first) - whole).abs().max() < CLOSE
        filled = session.computed
        low = begun // 4 * 4
        end = low + 4 if cache == "dual" else 12
        window = torch.arange(low, end).expand(len(tokens), -1)
        again = session(replace(first, number=1, positions=window))
        assert (again - whole[:, low:end]).abs().max() < CLOSE
        width = end - low + (shape == "shift")  # a shift needs one position more
        assert session.computed - filled == len(tokens) * width


@pytest.mark.parametrize(("shape", "prompts"), PAIRS)
@pytest.mark.parametrize("policy", ["low_confidence", {"name": "threshold", "threshold": 0.5}])
def test_one_layer_forgets_nothing(shape, prompts, policy):
    """With one layer, keys depend only on the token, so a cache is exact inside a block."""
    exact = run(model(shape, layers=1), prompts, policy=policy)
    same(run(model(shape, layers=1, cache="prefix"), prompts, policy=policy), exact)
    exact = run(model(shape, layers=1), prompts, policy=policy, open_only=True)
    same(run(model(shape, layers=1, cache="dual"), prompts, policy=policy, open_only=True), exact)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_two_layers_do_forget(cache):
    exact, cached = run(model(), open_only=True)[1], run(model(cache=cache), open_only=True)[1]
    assert (exact[0] - cached[0]).nan_to_num(nan=0.0).abs().max() < CLOSE
    assert (exact[1] - cached[1]).nan_to_num(nan=0.0).abs().max() > 1e-3


@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
@pytest.mark.parametrize(
    "wrap",
    [lambda m: MicroBatch(m, 4), lambda m: ClassifierFree(m, 0.5), lambda m: MicroBatch(m, 2)],
)
def test_wrappers_open_a_session_for_each_part(cache, wrap):
    wrapped = wrap(model("grouped", layers=1, cache=cache))
    plain = wrap(Bare(model("grouped", layers=1)))
    same(run(wrapped, open_only=True), run(plain, open_only=True))


@pytest.mark.parametrize("ended", [[], [1, 2]], ids=["all", "some"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_parts_read_nothing_back_while_the_samples_are_the_same(cache, ended, monkeypatch):
    """Reading a tensor back waits for a GPU."""
    wrapped = MicroBatch(model(cache=cache), 2)
    tokens, lengths = canvas(wrapped.info, [[5, 6, 7]], 5, 8)
    first, *queries = (
        replace(query(wrapped.info, tokens, lengths, 8, 4, number), low=0) for number in range(4)
    )
    if ended:
        live = torch.tensor([i for i in range(5) if i not in ended])
        queries = [replace(asked.take(live), samples=live) for asked in queries]
    session = wrapped.session(first)
    session(first)
    session(queries[0])
    read, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: read.append(x) or tolist(x))
    for asked in queries[1:]:
        assert len(session(asked)) == 5 - len(ended)
    assert not read


def test_samples_that_wait_for_others_return_to_their_part():
    """As those of a model that drafts do."""
    plain = Bare(model())
    parts = MicroBatch(plain, 2)
    tokens, lengths = canvas(plain.model.info, [[5, 6, 7]], 5, 8)
    tokens[:, 3] = torch.arange(5)
    every = query(plain.model.info, tokens, lengths, 8, 4)
    live = torch.tensor([0, 3, 4])
    session = parts.session(every)
    for asked in (every, replace(every.take(live), samples=live), every):
        wanted = plain(asked.tokens, asked.start, asked.prompt_lengths)
        assert (session(asked) - wanted).abs().max() < CLOSE


def test_wrapped_models_without_sessions_still_work():
    plain = run(Bare(model()))
    same(run(MicroBatch(Bare(model()), 2)), plain)


def opened(cache, refresh=None, policy="low_confidence", steps=6):
    """Return the session of a run with one prompt of 3 tokens, 4 samples and 3 blocks of 4."""
    sessions = []

    class Watched(Native):
        def session(self, query):
            sessions.append(super().session(query))
            return sessions[0]

    tiny = model(cache=cache, refresh=refresh)
    watched = Watched(
        tiny.network, name="tiny", mask_id=MASK, end_ids=(1,), cache=cache, refresh=refresh
    )
    settings = {
        "n": 4,
        "length": 12,
        "steps": steps,
        "block_length": 4,
        "temperature": 1.0,
        "policy": policy,
    }
    oddlm.denoise(watched, [[5, 6, 7]], **settings)
    return sessions[0]


def test_what_a_step_computes():
    # 6 steps, 2 per block; at the first step the 4 samples are identical, and one is computed
    assert opened(None).computed == 15 + 5 * 4 * 15
    fills = 15 + 2 * 4 * 15
    assert opened("prefix").computed == fills + 4 * (12 + 8 + 4)
    assert opened("dual").computed == fills + 4 * (4 + 4 + 4)
    assert opened("dual", refresh=1).computed == 15 + 5 * 4 * 15
    # one step per token: every second of the 4 steps of a block is a fill
    assert opened("dual", refresh=2, steps=12).computed == (15 + 5 * 4 * 15) + 6 * 4 * 4


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_every_sample_fills_its_cache_once_per_block(cache):
    session = opened(cache, policy={"name": "threshold", "threshold": 0.3}, steps=12)
    assert session.fills == 1 + 2 * 4  # at the first fill all samples are identical


@pytest.mark.parametrize("block_length", [4, 8])
@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
@pytest.mark.parametrize("policy", POLICIES.names)
@pytest.mark.parametrize("shape", ["plain", pytest.param("shift", marks=pytest.mark.soak)])
def test_a_sample_does_not_depend_on_its_company(shape, policy, cache, block_length):
    """Eight prompts of different lengths, each alone and in a batch, in single precision."""
    network = model(shape).network.float()
    lone = Native(
        network,
        name="tiny",
        mask_id=MASK,
        end_ids=(1,),
        cache=cache,
        refresh=3 if cache and block_length == 8 else None,
    )
    prompts = [[5 + (3 * i + j) % 40 for j in range(1 + i)] for i in range(8)]
    settings = {
        "n": 2,
        "length": 16,
        "steps": 16,
        "block_length": block_length,
        "temperature": 1.0,
        "stop_at_end": True,
    }
    settings["policy"] = {"name": policy, "threshold": 0.2} if policy == "threshold" else policy
    together = oddlm.denoise(lone, prompts, seed=list(range(8)), **settings)
    for i, (prompt, tokens) in enumerate(zip(prompts, together.groups(), strict=True)):
        alone = oddlm.denoise(lone, [prompt], seed=[i], **settings)
        assert torch.equal(alone.tokens, tokens), i
        assert torch.equal(alone.evaluations, together.evaluations[2 * i : 2 * i + 2])


def test_the_head_runs_on_what_is_asked(monkeypatch):
    """With a cache too: on the open block, or on all masked positions if a guide reads them."""
    for guide, cache in product((None, untouched), ("prefix", "dual")):
        cached, seen = model(cache=cache), []
        head = cached.network.logits
        monkeypatch.setattr(
            cached.network,
            "logits",
            lambda x, seen=seen, head=head: seen.append(x.shape[1]) or head(x),
        )
        run(cached, "alike", guide=guide)
        behind = {None: [4, 2, 4, 2, 4, 2], untouched: [12, 10, 8, 6, 4, 2]}[guide]
        assert seen == (behind if cache == "prefix" else [4, 2, 4, 2, 4, 2])


def test_samples_that_are_alike_are_computed_once():
    cached = model("grouped", cache="dual")
    tokens, lengths = canvas(cached.info, PROMPTS["padded"], 4, 12)
    start = tokens.shape[1] - 12
    first = query(cached.info, tokens, lengths, 12, 4)
    session = cached.session(first)
    assert (session(first) - model("grouped")(tokens, start, lengths)).abs().max() < CLOSE
    assert session.computed == 3 * tokens.shape[1]
    tokens[:, start : start + 4] = torch.arange(48).view(12, 4)  # the next block
    session(query(cached.info, tokens, lengths, 12, 4, number=1))
    assert session.computed == (3 + 12) * tokens.shape[1]


@pytest.mark.parametrize("policy", ["low_confidence", {"name": "threshold", "threshold": 0.3}])
@pytest.mark.parametrize(("shape", "prompts", "cache"), CASES)
def test_shared_keys_say_what_keys_of_ones_own_say(shape, prompts, cache, policy, monkeypatch):
    """With the parallel policy samples leave the first block one by one, and take their keys."""
    settings = {"policy": policy, "steps": 12, "guide": oddlm.Repulsion(alpha=4)}
    shared = run(model(shape, cache=cache), prompts, **settings)
    monkeypatch.setattr(cache_module, "_shareable", lambda owners: False)
    same(shared, run(model(shape, cache=cache), prompts, **settings))


def test_a_fill_in_parts_says_what_a_fill_at_once_says(monkeypatch):
    whole = run(model("grouped", cache="dual"))
    monkeypatch.setattr(cache_module, "AT_ONCE", 40)
    same(run(model("grouped", cache="dual"), "padded"), whole)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_samples_share_the_keys_of_the_first_block(cache):
    tiny = model("grouped", cache=cache)
    tokens, lengths = canvas(tiny.info, [[5, 6, 7], [8, 9]], 4, 12)
    session = tiny.session(query(tiny.info, tokens, lengths, 12, 4))
    window = torch.arange(12).expand(8, -1)
    sizes = []
    for number, begun in enumerate((0, 2, 3, 4, 6)):
        tokens[:, 3 : 3 + begun] = torch.arange(8)[:, None] + 10
        session(query(tiny.info, tokens, lengths, 12, 4, number=number, positions=window))
        sizes.append(session.nbytes)
    one = 2 * 2 * 2 * 15 * 8 * 8  # keys and values, layers, key heads, positions, head, bytes
    assert sizes == [2 * one] * 3 + [8 * one] * 2


def test_bad_input():
    with pytest.raises(ValueError, match=r"cache .*prefix, dual, off, not 'suffix'"):
        model(cache="suffix")
    with pytest.raises(ValueError, match=r"refresh=4 .*prefix, dual"):
        model(refresh=4)
    with pytest.raises(ValueError, match="refresh must be an integer >= 1, not 0"):
        model(cache="dual", refresh=0)
    for cache in (None, "prefix", "dual"):
        tiny = model(cache=cache)
        first = query(tiny.info, *canvas(tiny.info, [[5, 6, 7]], 1, 8), 8, 4)
        session = tiny.session(first)
        with pytest.raises(ValueError, match="another run"):
            session(replace(first, run="another"))
        with pytest.raises(ValueError, match="query 0 of its run, not 1"):
            session(replace(first, number=1))
        assert session(first).shape == (1, 8, VOCAB)
        with pytest.raises(ValueError, match="query 1 of its run, not 0"):
            session(first)


def test_the_mini_model_takes_the_option_and_says_so():
    lm = oddlm.load("mini", cache="dual", refresh=8)
    assert lm.model.name == "mini, dual cache, refresh 8"
    texts = [
        sample.text
        for sample in lm.generate("2 3 5 -> 25", 2, length=16, steps=8, block_length=8)[0]
    ]
    assert len(texts) == 2
    assert Mini().name == "mini"

"""The exact cache of block-causal networks: the same tokens as without it, for less work."""

import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch

from oddlm import LM, Repulsion, advance, begin, denoise, load, open_session
from oddlm.core.policies import POLICIES
from oddlm.models.block_cache import ROOM
from oddlm.models.moe import ExpertConfig
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig, Yarn
from oddlm.models.wrappers import ClassifierFree, MicroBatch

from ..queries import canvas, query

BLOCK, VOCAB, MASK, ENDS = 4, 50, 49, (1, 5, 12)
CLOSE = 1e-5
LAYERS, KEY_HEADS, HEAD = 2, 2, 8
SHAPES = {
    "plain": {},
    "shift": {"shift": True, "qkv_bias": True, "wide_rotary": True},
    "experts": {"experts": ExpertConfig(4, 2, 16, shared=16), "rotary_size": 4},
    "causal context": {"causal_context": True, "yarn": Yarn(4.0, 32)},
}
# Prompts of every length modulo the block length, one of them without a full block.
PROMPTS = [
    [5 + (7 * i + 3 * j) % 40 for j in range(length)] for i, length in enumerate((2, 4, 9, 11))
]
TEMPLATE = [None, 3, None, None, 4, 6, 7, 8, 9, 10, None, None]


def model(shape="plain", cache=None, dtype=torch.float32, ends=ENDS, **options):
    torch.manual_seed(0)
    config = TransformerConfig(
        VOCAB,
        width=32,
        layers=LAYERS,
        heads=4,
        hidden=48,
        kv_heads=KEY_HEADS,
        qk_norm=True,
        block_length=BLOCK,
        **SHAPES[shape],
    )
    network = Transformer(config).to(dtype)
    for parameter in network.parameters():  # as initialised, all logits are nearly alike
        torch.nn.init.normal_(parameter, std=0.3)
    return Native(network, name="blocks", mask_id=MASK, end_ids=ends, cache=cache, **options)


def run(model, prompts=PROMPTS, **options):
    """Return the finished batch, and the logits of the open positions at every step."""
    seen = []

    def watch(event):
        seen.append(event.base_logits[event.step.writable])

    settings = {"n": 2, "length": 10, "steps": 10, "temperature": 1.0, "seed": 3, **options}
    if model.info.align == "answer":  # whole blocks only
        block = settings.get("block_length", BLOCK)
        blocks = -(-settings["length"] // block)
        steps = -(-settings["steps"] // blocks) * blocks
        settings |= {"length": blocks * block, "block_length": block, "steps": steps}
    return denoise(model, prompts, observe=watch, **settings), seen


def same(one, other):
    assert torch.equal(one[0].tokens, other[0].tokens)
    assert torch.equal(one[0].evaluations, other[0].evaluations)
    for a, b in zip(one[1], other[1], strict=True):
        assert (a - b).nan_to_num(nan=0.0).abs().max() < CLOSE


@pytest.mark.parametrize(("shape", "policy"), list(product(SHAPES, POLICIES.names)))
def test_every_policy_writes_the_same_tokens(shape, policy):
    hasty = {"threshold": {"threshold": 0.2}, "joint_threshold": {"threshold": 0.2, "editing": 0.1}}
    options = {"policy": {"name": policy, **hasty.get(policy, {})}}
    same(run(model(shape), **options), run(model(shape, "off"), **options))


@pytest.mark.parametrize(
    "options",
    [
        {"n": 1, "steps": 5},
        {"n": 3, "guide": Repulsion(alpha=6)},
        {"n": 3, "guide": Repulsion("dpp", alpha=6, feature="positional"), "fork": True},
        {"policy": "threshold", "guide": Repulsion(alpha=6), "stop_at_end": True, "n": 4},
        {"block_length": 2, "guide": Repulsion(alpha=6, alpha_end=0.5)},
        {"length": 12, "steps": 12, "templates": [TEMPLATE] * len(PROMPTS)},
        {"length": 3, "steps": 3, "stop_at_end": True, "temperature": 2.0},
        {"prompts": [[]], "temperature": 2.0},
        {"prompts": [[5, 6, 7, 8]] * 2 + [[9, 10, 11, 12]] * 2, "guide": Repulsion(alpha=6)},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES)
def test_so_does_every_kind_of_run(shape, options):
    same(run(model(shape), **options), run(model(shape, "off"), **options))


def test_samples_end_early_and_at_different_steps():
    """So the runs above do compact their caches."""
    done, _ = run(model(), n=4, policy="threshold", guide=Repulsion(alpha=6), stop_at_end=True)
    assert len(set(done.evaluations.tolist())) > 2


@pytest.mark.parametrize("wrap", [lambda m: MicroBatch(m, 3), lambda m: ClassifierFree(m, 0.5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_models_around_it_do_the_same(shape, wrap):
    options = {"stop_at_end": True, "policy": "threshold", "guide": Repulsion(alpha=6)}
    same(run(wrap(model(shape)), **options), run(wrap(model(shape, "off")), **options))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cache", [None, "off"])
@pytest.mark.parametrize("guide", [None, Repulsion(alpha=6)], ids=["plain", "odd"])
def test_a_sample_does_not_depend_on_its_company(shape, cache, guide):
    lone = model(shape, cache)
    options = {"guide": guide, "steps": 5, "stop_at_end": True, "n": 3}
    together, _ = run(lone, seed=[1, 2, 3, 4], **options)
    for i, (prompt, tokens) in enumerate(zip(PROMPTS, together.groups(), strict=True)):
        alone, _ = run(lone, [prompt], seed=[i + 1], **options)
        assert torch.equal(alone.tokens, tokens), i
        assert torch.equal(alone.evaluations, together.evaluations[3 * i : 3 * i + 3])


@pytest.mark.parametrize("shape", SHAPES)
def test_another_session_continues_at_any_step(shape):
    lone = model(shape)
    options = {"n": 2, "length": 12, "steps": 12, "temperature": 1.0, "seed": 3}
    options["block_length"] = BLOCK
    expected = denoise(lone, PROMPTS, **options)
    state = begin(lone, PROMPTS, **options)
    session = open_session(lone, state.query)
    while state.query is not None:
        copy, late = pickle.loads(pickle.dumps(state)), None
        while (asked := copy.query) is not None:
            late = open_session(lone, asked) if late is None else late
            copy, _ = advance(copy, late(asked))
        assert torch.equal(copy.result.tokens, expected.tokens)
        state, _ = advance(state, session(state.query))


def opened(model, prompts, **options):
    """Return the session of a run after its last step."""
    state = begin(model, prompts, **{"temperature": 1.0, **options})
    session = open_session(model, state.query)
    while (asked := state.query) is not None:
        state, _ = advance(state, session(asked))
    return session


def test_what_is_computed():
    """A prompt of 10 tokens: 8 are computed once; blocks of 2, 4 and 2 tokens of the answer."""
    options = {"n": 3, "length": 8, "steps": 8}
    one = opened(model(), [PROMPTS[2] + [7]], **options)
    windows = 8 * 3 * BLOCK  # the open block at every step
    finished = 2 * 3 * BLOCK
    assert one.computed == 8 + windows + finished
    # without a cache only the first step, in which the samples are alike, is computed once
    assert opened(model(cache="off"), [PROMPTS[2] + [7]], **options).computed == 18 + 7 * 3 * 18
    # the same full blocks under different ends, too, and once for equal prompts
    prompts = [PROMPTS[2] + [7], PROMPTS[2] + [8], PROMPTS[2] + [7]]
    many = opened(model(), prompts, **options)
    assert many.computed == 8 + 3 * (windows + finished)
    # beside a prompt of 12 tokens, the 8 of the others are padded
    prompts = [PROMPTS[2] + [7], PROMPTS[2] + [8], PROMPTS[3] + [9]]
    assert opened(model(), prompts, **options).computed == 2 * 12 + 2 * (windows + finished) + (
        windows + finished - 3 * BLOCK
    )
    # a policy that writes blocks at once computes each of them twice, with masks and without
    fast = opened(model(), [PROMPTS[2] + [7]], policy={"name": "factor", "factor": 1e9}, **options)
    assert fast.computed == 8 + 3 * 3 * BLOCK + finished


def test_what_is_held():
    lone = model()
    assert lone.info.position_bytes == 2 * LAYERS * KEY_HEADS * HEAD * 4
    prompts = [PROMPTS[2], PROMPTS[3]]  # 8 positions in full blocks, different ones
    tokens, lengths = canvas(lone.info, prompts, 3, 12)
    start = tokens.shape[1] - 12
    first = query(lone.info, tokens, lengths, 12, BLOCK)
    session = lone.session(first)
    assert session.nbytes == 0
    session(first)
    each = lone.info.position_bytes
    assert session.nbytes == 2 * 8 * each
    tokens[:, start : start + 5] = torch.arange(30).view(6, 5)
    second = query(lone.info, tokens, lengths, 12, BLOCK, number=1)
    session(second)
    assert session.nbytes == (2 * 8 + 6 * ROOM) * each
    # the first prompt and a sample of the second are done
    left = torch.tensor([3, 5])
    third = query(lone.info, tokens[left], lengths[left], 12, BLOCK, number=2, samples=left)
    logits = session(third)
    assert session.nbytes == (8 + 2 * ROOM) * each
    exact = lone(tokens[left], start, lengths[left])
    here = third.blocks.open
    assert (logits[here] - exact[here]).abs().max() < CLOSE


def test_a_causal_context_holds_the_whole_prompt():
    options = {"n": 3, "length": 8, "steps": 8, "block_length": BLOCK}
    session = opened(model("causal context"), [PROMPTS[2] + [7]], **options)
    assert session.computed == 10 + 8 * 3 * BLOCK + 3 * BLOCK
    assert session.prompt_kv[0][0].shape[2] == 10


def test_a_finished_block_of_a_causal_context_is_read_causally():
    """Its last token changes nothing that was computed of the others, but what comes after it."""
    lone = model("causal context", "off")
    tokens, lengths = canvas(lone.info, [PROMPTS[2]], 1, 8)
    start = tokens.shape[1] - 8
    tokens[:, start : start + BLOCK] = torch.tensor([[5, 6, 7, 8]])
    other = tokens.clone()
    other[:, start + BLOCK - 1] = 9
    asked = [query(lone.info, x, lengths, 8, BLOCK) for x in (tokens, other)]
    one, two = (lone.session(x)(x) for x in asked)  # [1, 8, V]
    assert torch.equal(one[:, : BLOCK - 1], two[:, : BLOCK - 1])
    assert ((one - two).abs().amax(dim=-1)[:, BLOCK - 1 :] > 1e-3).all()


def test_a_failed_query_can_be_repeated(monkeypatch):
    lone = model("shift")
    tokens, lengths = canvas(lone.info, PROMPTS, 2, 12)
    start = tokens.shape[1] - 12
    first = query(lone.info, tokens, lengths, 12, BLOCK)
    session = lone.session(first)
    session(first)
    tokens[::2, start : start + 5] = 7  # some samples are in their next block, some are not
    second = query(lone.info, tokens, lengths, 12, BLOCK, number=1)
    with monkeypatch.context() as broken:
        finish, calls = lone.network.finish, []

        def fails(*arguments):
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("out of memory")
            return finish(*arguments)

        broken.setattr(lone.network, "finish", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            session(second)
    here = second.blocks.open
    exact = lone(tokens, start, lengths)
    assert (session(second)[here] - exact[here]).abs().max() < CLOSE


def test_rows_that_are_written_do_no_harm():
    lone = model()
    tokens, lengths = canvas(lone.info, PROMPTS, 1, 8)
    start = tokens.shape[1] - 8
    tokens[1, start:] = 7
    first = query(lone.info, tokens, lengths, 8, BLOCK)
    here = first.blocks.open
    exact = lone(tokens, start, lengths)
    assert (lone.session(first)(first)[here] - exact[here]).abs().max() < CLOSE


def test_bad_input():
    for cache in ("prefix", "dual"):
        with pytest.raises(ValueError, match=f"cache='{cache}' .*cache=None"):
            model(cache=cache)
    for cache in (None, "off"):
        with pytest.raises(ValueError, match="refresh=4 needs a cache"):
            model(cache=cache, refresh=4)
    lone = model()
    assert lone.cache == "exact"
    assert model(cache="off").cache is None
    assert lone.info.identity == model(cache="off").info.identity
    with pytest.raises(ValueError, match="prompt_noise"):
        run(lone, prompt_noise=0.5)
    assert run(model(cache="off"), prompt_noise=0.5)[0].nfe == 10
    tokens, lengths = canvas(lone.info, [[5, 6, 7]], 1, 8)
    first = query(lone.info, tokens, lengths, 8, BLOCK)
    session = lone.session(first)
    with pytest.raises(ValueError, match=r"nudge.*cache='off'"):
        session(replace(first, nudge=torch.zeros(1, 3, 32)))
    with pytest.raises(ValueError, match="another run"):
        session(replace(first, run="another"))
    with pytest.raises(ValueError, match="query 0 of its run, not 1"):
        session(replace(first, number=1))


class Words:
    """A tokenizer of words that are numbers."""

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def test_generate_knows_the_blocks_of_its_model():
    """It stops at an end and forks only if blocks have steps to spare, as in blocks of its own."""
    lm = LM(model(), Words())
    options = {"n": 6, "length": 12, "temperature": 1.5, "policy": "threshold", "seed": 2}
    samples = lm.generate("7 8 9 10 11", **options)[0]
    assert len({sample.nfe for sample in samples}) > 1
    written = {"block_length": BLOCK, **options}
    assert [s.tokens for s in samples] == [
        s.tokens for s in lm.generate("7 8 9 10 11", **written)[0]
    ]
    few = lm.generate("7 8 9 10 11", n=3, length=12, steps=3)[0]
    assert max(sample.nfe for sample in few) <= 4
    (holes,) = lm.sample("7 8 9 10 11", 1, template=["3 4 ", 5, " 6"])
    assert len(holes.tokens) == 8


def test_the_option_turns_nothing_on_for_other_networks():
    assert load("mini", cache="off").model.cache is None

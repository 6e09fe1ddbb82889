"""Requests with a cache: windows are computed together, and nobody can tell from the answers."""

import asyncio
import gc
import threading
import weakref
from dataclasses import replace

import pytest
import torch

import oddlm
from oddlm import SampleParams
from oddlm.models.cache import CachedSession
from oddlm.models.moe import ExpertConfig
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.serve.engine import CancelledError, Finished, Work
from oddlm.serve.joined import JoinedPasses
from oddlm.serve.passes import AlonePasses, passes_of
from oddlm.serve.sizes import Shape

from ..models.test_graphs import Counting
from ..waiting import WAIT_S
from .test_company import direct, read, said, tell, tokens, works

SHAPES = {
    "grouped": {"kv_heads": 2, "qkv_bias": True},
    "shift": {"kv_heads": 1, "shift": True, "wide_rotary": True},
}
STEPS = 12


def cached_lm(toy_lm, cache, shape="grouped", kind=Native, **options) -> oddlm.LM:
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=60, width=32, layers=2, heads=4, hidden=48, **SHAPES[shape]
    )
    network = Transformer(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    model = kind(network, name="cached", mask_id=59, end_ids=(1,), cache=cache, **options)
    return oddlm.LM(model, toy_lm.tokenizer)


def in_blocks(prompt: list[int], seed: int, n: int = 4, length: int = STEPS, **more) -> Work:
    """Return a request of one token per step that no sample ends early."""
    params = {"block_length": 4, "temperature": 1.0, "eos": "never", "seed": seed, **more}
    return Work([prompt], n, SampleParams(length=length, steps=length, **params))


async def step_of(job, index: int) -> None:
    """Wait until a watched request has taken this step."""
    while (message := await job.receive()) != index:
        assert not isinstance(message, Finished), message


def told(work: Work) -> Work:
    return replace(work, watch=lambda send: lambda event: send(event.step.index))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_company_changes_no_bit(toy_lm, cache, shape, workers):
    """Before and after sizes are tested, whatever other requests run, guided ones among them."""
    lm = cached_lm(toy_lm, cache, shape, refresh=5)
    asked = works(lm, nudges=False)
    asked += [in_blocks([5 + i] * (1 + i), i, n=1 + i % 3, alpha=4.0 * i) for i in range(4)]

    async def story(engine):
        alone = [said(await read(engine.submit(work))) for work in asked]
        count = engine.network.count
        together = [read(engine.submit(work)) for work in asked]
        assert [said(one) for one in await asyncio.gather(*together)] == alone
        while engine.network.untried:
            await asyncio.sleep(0.01)
        assert engine.network.sizes.tried
        before = engine.network.count
        again = [read(engine.submit(work)) for work in (*asked[::-1], *asked)]
        assert [said(one) for one in await asyncio.gather(*again)] == [*alone[::-1], *alone]
        assert engine.network.count - before < 1.5 * count
        return alone

    alone = tell(lm, story, workers=workers, sizes=(2, 4, 8), max_rows=128)
    for work, one in zip(asked, alone, strict=True):
        assert [[sample[0] for sample in group] for group in one] == tokens(direct(lm, work))


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_where_rows_decide_bits_passes_keep_their_size(toy_lm, cache):
    """In a network whose results depend plainly on the number of rows of a pass."""
    lm = cached_lm(toy_lm, cache)
    block = lm.model.network.blocks[0]
    merge = block.merge
    block.merge = lambda x, *rest: merge(x, *rest) + 0.01 * len(x)
    asked = [in_blocks([5 + i] * (1 + i), i, n=1 + i, alpha=4.0) for i in range(6)]

    async def story(engine):
        alone = [said(await read(engine.submit(work))) for work in asked]
        while engine.network.untried:
            await asyncio.sleep(0.01)
        together = [read(engine.submit(work)) for work in asked]
        assert [said(one) for one in await asyncio.gather(*together)] == alone

    tell(lm, story)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cache_is_the_requests_own(cache):
    """Concurrent requests get the answers of the cached model, which differ without a cache."""
    lm, plain = oddlm.load("mini", cache=cache), oddlm.load("mini")
    lengthy = SampleParams(length=24, block_length=8, steps=12, temperature=0.0, alpha=0.0)
    asked = works(lm, nudges=False)
    asked += [Work([lm.tokenizer.encode(f"{i},{i + 1},{7 * i}\n")], 2, lengthy) for i in range(8)]

    async def story(engine):
        return await asyncio.gather(*(read(engine.submit(work)) for work in asked))

    together = [tokens(one) for one in tell(lm, story, workers=2)]
    assert together == [tokens(direct(lm, work)) for work in asked]
    assert together != [tokens(direct(plain, work)) for work in asked]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_windows_share_passes_and_fills_do_not(toy_lm, cache):
    """Eight requests of two samples take their steps in passes of 16 rows."""
    lm = cached_lm(toy_lm, cache)
    asked = [in_blocks([5 + i] * (1 + i), i, n=2) for i in range(8)]
    fills, ready = 3, threading.Event()  # one per block

    async def story(engine):
        ready.set()
        alone = said(await read(engine.submit(asked[0])))
        assert engine.network.count == STEPS
        ready.clear()
        jobs = [engine.submit(work) for work in asked]
        ready.set()
        assert said((await asyncio.gather(*map(read, jobs)))[0]) == alone
        return engine.network.count - STEPS

    count = tell(lm, story, sizes=(16,), on_turn=lambda jobs: ready.wait(WAIT_S))
    # the first one may be a step ahead, so that there are two widths at the end of a block
    assert fills * 8 + STEPS - fills <= count <= fills * 8 + 2 * (STEPS - fills)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("policy", ["low_confidence", {"name": "threshold", "threshold": 0.3}])
def test_requests_begin_while_others_are_in_later_blocks(toy_lm, cache, policy):
    lm = cached_lm(toy_lm, cache)
    asked = [in_blocks([5 + i] * (1 + i), i, length=24 + 4 * i, policy=policy) for i in range(3)]
    asked += [in_blocks([9], 3, length=24, block_length=3, policy=policy)]
    shared = []

    async def story(engine):
        alone = [said(await read(engine.submit(work))) for work in asked]
        shared.clear()
        jobs = []
        for work in asked:
            jobs.append(engine.submit(told(work)))
            await step_of(jobs[-1], 1)
        assert [said(one) for one in await asyncio.gather(*map(read, jobs))] == alone

    tell(lm, story, on_turn=lambda jobs: shared.append(len(jobs)))
    assert max(shared) > 1


class Broken(Native):
    """A model whose sessions fail in a step for one prompt: as they begin it, or end it."""

    when = "prepare"

    def session(self, query):
        session = super().session(query)
        if (query.tokens[:, : query.start] == 13).any():
            prepare = session.prepare

            def fail(*given):
                raise RuntimeError("no such prompt")

            def failing(query):
                step = prepare(query)
                if not step.windows:
                    return step
                return replace(step, finish=fail) if self.when == "finish" else fail()

            session.prepare = failing
        return session


@pytest.mark.parametrize("when", ["prepare", "finish"])
def test_what_fails_fails_alone(toy_lm, when):
    lm = cached_lm(toy_lm, "dual", kind=Broken)
    lm.model.when = when

    def broken(send):
        def observe(event):
            raise RuntimeError("no such observer")

        return observe

    asked = [in_blocks([5, 6], 0), in_blocks([13], 1), in_blocks([7], 2)]
    asked += [in_blocks([8], 3, prompt_noise=0.5), replace(in_blocks([9], 4), watch=broken)]

    async def story(engine):
        alone = [said(await read(engine.submit(asked[i]))) for i in (0, 2)]
        jobs = [engine.submit(work) for work in asked]
        found = await asyncio.gather(*map(read, jobs), return_exceptions=True)
        assert [said(found[i]) for i in (0, 2)] == alone
        assert str(found[1]) == "no such prompt"
        assert "prompt_noise needs" in str(found[3])
        assert str(found[4]) == "no such observer"
        assert engine.rows == 0

    tell(lm, story)


def test_a_cancelled_request_leaves_no_session(toy_lm):
    sessions = []

    class Watched(Native):
        def session(self, query):
            session = super().session(query)
            sessions.append(weakref.ref(session))
            return session

    lm = cached_lm(toy_lm, "dual", kind=Watched)
    work = told(in_blocks([5, 6], 0, length=200))

    async def story(engine):
        jobs = [engine.submit(work) for _ in range(3)]
        await asyncio.gather(*(step_of(job, 2) for job in jobs))
        jobs[0].cancel()
        with pytest.raises(CancelledError):
            await read(jobs[0])
        await step_of(jobs[1], 60)
        gc.collect()
        alive = [one() is not None for one in sessions]
        for job in jobs[1:]:
            job.cancel()
        return alive

    assert tell(lm, story) == [False, True, True]


class Recorded(Native):
    """A model whose sessions replay their steps when they take them alone."""

    def session(self, query):
        return CachedSession(self.network, query, self.cache, self.refresh, Counting())


def test_sessions_with_recordings_join(toy_lm):
    lm = cached_lm(toy_lm, "dual", kind=Recorded)
    asked = [in_blocks([5 + i] * (1 + i), i, alpha=4.0) for i in range(4)]

    async def story(engine):
        found = await asyncio.gather(*(read(engine.submit(work)) for work in asked))
        assert engine.network.count < len(asked) * STEPS
        return found

    for work, one in zip(asked, tell(lm, story, sizes=(16,)), strict=True):
        assert tokens(one) == tokens(direct(lm, work))


@pytest.mark.parametrize("fickle", [None, 8])
def test_only_sizes_that_keep_the_bits_are_used(toy_lm, fickle):
    """Of the widths that may come, each is tested before anybody asks."""
    model = cached_lm(toy_lm, "dual").model
    block = model.network.blocks[1]
    merge = block.merge
    block.merge = lambda x, *rest: merge(x, *rest) + (1e-3 if len(x) == fickle else 0)
    passes = passes_of(model, (2, 4, 8), 1, 18)
    while passes.untried:
        passes.sizes.try_one()
    assert passes.sizes.tried == 5 * (4 + 2)  # of the reference, and of larger sizes
    for width in (4, 8, 12, 16, 20):
        assert passes.sizes.exact(Shape(width, 0)) == ((2, 4) if fickle else (2, 4, 8))
    passes.close()


def test_who_joins(toy_lm):
    """Not exact caches; and not experts, each of which multiplies what other requests send it."""
    experts = ExpertConfig(count=4, active=2, hidden=16)
    config = TransformerConfig(vocab_size=60, width=32, layers=1, heads=2, hidden=48)
    for changed, cache, kind in (
        ({}, "dual", JoinedPasses),
        ({"experts": experts}, "dual", AlonePasses),
        ({"block_length": 4}, None, AlonePasses),
    ):
        network = Transformer(replace(config, **changed))
        model = Native(network, name="one", mask_id=59, end_ids=(1,), cache=cache)
        passes = passes_of(model, (4,), 1, 0)
        assert type(passes) is kind
        passes.close()

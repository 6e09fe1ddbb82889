"""Who waits for whom: clients that do not read, large requests and small ones."""

import asyncio
import gc
import re
import socket
import time

import httpx
import pytest
import torch

import oddlm
from oddlm.explorer.frames import frames_of
from oddlm.serve.engine import STALLED, UNREAD, Engine, Finished, UnreadError, Work

from ..waiting import WAIT_S, wait_until
from .conftest import Gated, Served, limits, running, send

ROWS = 16  # most of a pass
BUFFER = 4096
STEPS = 96
WATCH = {
    "model": "toy",
    "prompt": "t5 t6",
    "n": ROWS,
    "max_tokens": STEPS,
    "seed": 3,
}  # more than fits into buffers
SHORT = {"model": "toy", "prompt": "t5 t6", "n": ROWS, "max_tokens": 8, "seed": 3}


def serving(model: Gated, **given):
    return running(
        oddlm.LM(model, model.tokenizer),
        buffer=BUFFER,
        limits=limits(max_rows=ROWS, max_n=ROWS, **given),
    )


def stall(server: Served) -> socket.socket:
    """A client whose request stands still because it does not read."""
    raw = send(server.port, "/v1/denoise", WATCH, buffer=BUFFER)
    wait_until(lambda: any(job.blocked for job in server.engine.running))
    return raw


def read_more(
    raw: socket.socket, said: bytearray, *, most: int | None = None, last: bytes | None = None
) -> bytearray:
    """What comes until there is so much more, until the last of it, or until the server hangs up,
    gently or not.
    """
    begun = len(said)
    while (most is None or len(said) - begun < most) and (
        last is None or last not in said[-10_000:]
    ):
        try:
            part = raw.recv(1 << 16)
        except ConnectionResetError:
            break
        if not part:
            break
        said += part
    return said


@pytest.mark.parametrize("n", [1, ROWS])
def test_a_reader_that_stays_away_holds_nobody_up(gated, n):
    """It has all the rows there are; the next takes as many passes as alone, and has the same
    answer.
    """
    with serving(gated) as server:

        def ask() -> tuple[list[str], int]:
            before = len(gated.rows)
            answer = httpx.post(
                f"{server.url}/v1/completions", json=SHORT | {"n": n}, timeout=WAIT_S
            )
            return [choice["text"] for choice in answer.json()["choices"]], len(gated.rows) - before

        ask()
        wait_until(
            lambda: not server.engine.network.untried
        )  # from now on larger passes may be used
        alone = ask()
        with stall(server):
            assert ask() == alone


def test_a_reader_that_comes_back_misses_nothing(gated):
    with serving(gated) as server:
        with stall(server) as raw:
            assert (
                httpx.post(f"{server.url}/v1/completions", json=SHORT, timeout=WAIT_S).status_code
                == 200
            )
            said = read_more(raw, bytearray(), last=b"0\r\n\r\n")
        assert said.count(b"event: step") == STEPS
        assert said.count(b"event: end") == 1


def test_a_reader_that_stays_away_is_cut_off(gated):
    """Long before its request would time out; the request ends with the connection."""
    with (
        serving(gated, send_timeout_s=0.5) as server,
        send(server.port, "/v1/denoise", WATCH, buffer=BUFFER) as raw,
    ):
        wait_until(lambda: gated.rows and server.engine.rows == 0)
        said = read_more(raw, bytearray())
        assert b"event: step" in said
        assert said.count(b"event: step") < STEPS
        assert (
            httpx.post(f"{server.url}/v1/completions", json=SHORT, timeout=WAIT_S).status_code
            == 200
        )


def test_an_answer_that_is_whole_need_not_be_read_either(gated):
    """Nothing runs for it any more; its connection is cut all the same."""
    body = SHORT | {"max_tokens": 200, "steps": 4, "logprobs": 1}
    with (
        serving(gated, send_timeout_s=0.5) as server,
        send(server.port, "/v1/completions", body, buffer=BUFFER) as raw,
    ):
        wait_until(lambda: gated.rows and server.engine.rows == 0)
        wait_until(lambda: not server.connections)
        said = read_more(raw, bytearray())
        (length,) = re.findall(rb"content-length: (\d+)", said)
        assert len(said) < int(length)


def test_a_slow_reader_is_not_cut_off(gated):
    """Its pauses add up to more than an answer may wait, but none of them is as long."""
    with serving(gated, send_timeout_s=4) as server, stall(server) as raw:
        said = bytearray()
        for _ in range(10):
            read_more(raw, said, most=20_000)
            time.sleep(0.5)
        (job,) = server.engine.running
        assert job.blocked
        read_more(raw, said, last=b"0\r\n\r\n")
        assert said.count(b"event: step") == STEPS


class Counted(Engine):
    """Notes the requests of every turn."""

    def __init__(self, *args, **options) -> None:
        self.passes: list[tuple[int, ...]] = []
        super().__init__(
            *args,
            on_turn=lambda jobs: self.passes.append(tuple(job.rows for job in jobs)),
            **options,
        )


def work(n: int, steps: int, *, told: bool = False) -> Work:
    watch = (lambda send: lambda event: send(event.step.index)) if told else None
    return Work([[5, 6]], n, oddlm.SampleParams(length=steps), watch)


async def read(job) -> Finished:
    while not isinstance(message := await job.receive(), Finished):
        pass
    return message


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def trial(lm, story, **options) -> Counted:
    """Let requests come and go in an engine of 16 rows, and look at its passes."""
    engine = Counted(lm, max_rows=ROWS, **options)
    engine.start()
    try:
        asyncio.run(asyncio.wait_for(story(engine), WAIT_S))
    finally:
        engine.close()
    assert max(map(sum, engine.passes)) <= ROWS
    return engine


def test_unread_messages_are_bounded_and_others_go_on(toy_lm):
    async def story(engine):
        slow = engine.submit(work(ROWS, 2 * UNREAD, told=True))
        await until(lambda: slow.blocked)
        assert slow.sent == UNREAD
        assert (await read(engine.submit(work(ROWS, 32)))).samples
        assert slow.sent == UNREAD
        assert (await read(slow)).samples
        cancelled = engine.submit(work(2, 32, told=True))
        await until(lambda: cancelled.blocked)
        cancelled.cancel()
        await until(lambda: engine.rows == 0)

    trial(toy_lm, story)


def test_many_readers_that_stay_away(toy_lm):
    """What they hold is bounded; those that were away longest go, the others can still come back."""

    async def story(engine):
        away, most = [], 0
        for _ in range(3 * STALLED):
            away.append(engine.submit(work(ROWS, 2 * UNREAD, told=True)))
            await until(lambda: away[-1].blocked)
            assert (await read(engine.submit(work(ROWS, 4)))).samples
            most = max(most, engine.rows)
        assert most <= (STALLED + 2) * ROWS
        ends = await asyncio.gather(*map(read, away))
        kept = [end.samples is not None for end in ends]
        assert kept == sorted(kept)
        assert sum(kept) >= STALLED
        assert all(isinstance(end.error, UnreadError) for end in ends if end.samples is None)
        assert not kept[0]

    trial(toy_lm, story)


def test_readers_that_come_back_together_share_passes(toy_lm):
    """There are more of them than fit into a pass."""

    async def story(engine):
        away = []
        for _ in range(STALLED):
            away.append(engine.submit(work(ROWS, 4 * UNREAD, told=True)))
            await until(lambda: away[-1].blocked)
        away.append(engine.submit(work(ROWS, 4 * UNREAD, told=True)))
        ends = await asyncio.gather(*map(read, away))
        assert all(end.samples for end in ends)

    trial(toy_lm, story)


def test_a_small_request_need_not_wait_for_a_large_one(toy_lm):
    async def story(engine):
        large = asyncio.create_task(read(engine.submit(work(ROWS, 200))))
        await until(lambda: len(engine.passes) > 4)
        began = len(engine.passes)
        assert (await read(engine.submit(work(1, 16)))).samples
        passes = engine.passes[began:]
        assert not large.done()
        assert (
            passes.count((ROWS,)) <= 6
        )  # one for every sixteen of the small one, and those while it came and went
        assert (await large).samples

    trial(toy_lm, story)


def test_small_requests_leave_a_large_one_its_half(toy_lm):
    async def story(engine):
        large = asyncio.create_task(read(engine.submit(work(ROWS, 100))))
        await until(lambda: engine.passes)

        async def small():
            while not large.done():
                assert (await read(engine.submit(work(2, 4)))).samples

        await asyncio.gather(*(small() for _ in range(8)))

    engine = trial(toy_lm, story)
    rows = {
        kind: sum(sum(one) for one in engine.passes if (ROWS in one) == kind)
        for kind in (True, False)
    }
    assert rows[True] == 100 * ROWS
    assert rows[False] < 2 * rows[True]


def test_large_requests_keep_their_order(toy_lm):
    """Neither a stream of small ones nor a large one that came later gets before the one that waits
    longest.
    """

    async def story(engine):
        order = []

        async def ask(name, n):
            assert (await read(engine.submit(work(n, 8)))).samples
            order.append(name)

        first = asyncio.create_task(read(engine.submit(work(ROWS - 1, 50))))
        await until(lambda: engine.passes)
        later = [asyncio.create_task(ask(name, ROWS)) for name in "abc"]
        await until(lambda: engine.queued == 3)
        while engine.queued == 3:
            await ask("small", 1)
        await asyncio.gather(first, *later)
        assert [name for name in order if name != "small"] == ["a", "b", "c"]

    trial(toy_lm, story)


def test_a_request_that_waits_holds_nothing_as_large_as_its_logits(toy_lm):
    """Neither of the step before nor of what was observed of it: many may wait, and a vocabulary is
    large.
    """

    length = 37  # nothing else has so many numbers

    async def story(engine):
        slow = engine.submit(
            Work(
                [[5, 6]], ROWS, oddlm.SampleParams(length=length), frames_of(toy_lm, positions=True)
            )
        )
        await until(lambda: slow.blocked)
        await until(
            lambda: ROWS * length * toy_lm.model.vocab_size not in sizes()
        )  # the step that filled its inbox may go on
        assert ROWS * length in sizes()  # its tokens
        slow.cancel()

    def sizes() -> list[int]:
        gc.collect()
        return [one.numel() for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]

    trial(toy_lm, story)

"""The engine: shared passes, the queue, timeouts and cancelled requests."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch

import oddlm
from oddlm.core.model import info_of
from oddlm.drawing import Drawing
from oddlm.models.toy import Toy
from oddlm.serve.engine import TimedOutError
from oddlm.serve.passes import SharedPasses, Whole, passes_of
from oddlm.serve.pool import Ask
from oddlm.serve.sizes import Rows, Shape, split_rows, width_class

from ..waiting import WAIT_S, wait_until
from .conftest import limits, running, send

ASK = {"model": "toy", "prompt": "t5 t6", "n": 4, "max_tokens": 24, "seed": 3}

CHAT = {k: v for k, v in ASK.items() if k != "prompt"} | {
    "messages": [{"role": "user", "content": "a"}]
}


def lm_of(model: Toy) -> oddlm.LM:
    return oddlm.LM(model, model.tokenizer)


def test_width_classes():
    assert [width_class(n) for n in (1, 4, 5, 63, 64, 65, 1000)] == [4, 4, 8, 64, 64, 72, 1024]
    for start in range(1, 3000):
        assert start <= width_class(start) <= max(start + 3, start * 1.15)
        assert width_class(width_class(start)) == width_class(start)


@pytest.mark.parametrize(
    ("rows", "sizes", "passes"),
    [
        (1, (4, 8, 16), [4]),
        (4, (4, 8, 16), [4]),
        (13, (4, 8, 16), [8, 4, 4]),
        (40, (4, 8, 16), [16, 16, 8]),
        (17, (16,), [16, 16]),
    ],
)
def test_rows_split_into_passes(rows, sizes, passes):
    assert split_rows(rows, sizes) == passes


def test_every_worker_gets_a_pass():
    assert split_rows(16, (4, 8, 16), workers=2) == [8, 8]
    assert split_rows(64, (4, 8, 16), workers=2) == [16] * 4
    assert split_rows(5, (4, 8), workers=2) == [4, 4]


def query_of(model, prompt=(5, 6, 7, 8, 9), length=2, n=1, **settings):
    lm, params = lm_of(model), oddlm.SampleParams(length=length, **settings)
    return Drawing(lm.model, lm.tokenizer, [list(prompt)], n, params, 0).query


def test_widening_keeps_to_the_context(toy_lm):
    model, query = toy_lm.model, query_of(toy_lm.model)
    shape = Whole(model, None).shape(query)
    assert shape == (8, 2)
    assert Rows.lay(query, shape, 0).tokens.tolist() == [
        [0, 0, 0, 5, 6, 7, 8, 9, *query.tokens[0, 5:].tolist()]
    ]
    assert Whole(model, 8).shape(query) == (6, 2)
    assert Whole(model, 7).shape(query) == (5, 2)


def test_bodies_of_different_prompts_and_lengths_have_one_shape(mini_lm):
    part = passes_of(mini_lm.model, (4,), 1, 0).part
    one, other = (
        query_of(mini_lm.model, (5, 6, 7), 9),
        query_of(mini_lm.model, (5, 6, 7, 8, 9, 10), 5),
    )
    assert part.shape(one) == part.shape(other) == (12, 0)
    assert part.shape(query_of(mini_lm.model, [5] * 239, 10)) == (256, 0)
    widths = [shape.width for shape in part.foreseen(10**6)]
    assert widths == sorted({*widths, 4, 64, 256})
    assert max(widths) == mini_lm.info.context


class Fickle(Toy):
    """A model whose arithmetic differs for some numbers of rows."""

    fickle: tuple[int, ...] = ()

    def __call__(self, tokens, start, prompt_lengths):
        return super().__call__(tokens, start, prompt_lengths) + (
            1e-6 if len(tokens) in self.fickle else 0
        )


@pytest.mark.parametrize("fickle", [(), (8,), (4,), (8, 16)])
def test_only_sizes_that_keep_the_bits_are_used(fickle):
    model = Fickle(vocab_size=60, dtype=torch.float64)
    model.fickle = fickle
    network = SharedPasses(Whole(model, None), info_of(model), (4, 8, 16), 1)
    query = query_of(model, [5] * 8, 4, n=16)
    assert network([Ask(query, lambda logits: None)]) == [None]
    assert (network.count, network.sizes.tried) == (
        4,
        0,
    )  # of the smallest size; no other was tested
    while network.untried:
        before = network.sizes.tried
        network.sizes.try_one()
        assert network.sizes.tried <= before + 1
    exact = {(): (4, 8, 16), (8,): (4, 16), (4,): (4,), (8, 16): (4,)}[fickle]
    assert network.sizes.exact(Shape(8, 4)) == exact
    assert network.sizes.tried == 6  # four of the reference, one of each other size
    network.close()


def test_widths_are_tried_before_anybody_asks(mini_lm):
    """Widths of requests are tested first, then the others from small to large."""
    network, order = passes_of(mini_lm.model, (2, 4), 1, 18), []
    assert network([Ask(query_of(mini_lm.model, [5] * 10, 6), lambda logits: None)]) == [None]
    while network.untried:
        network.sizes.try_one()
        order.append(network.sizes.tried)
    # widths 16, and 4, 8, 12, 20: two passes of the reference size and a larger one for each
    assert network.sizes.tried == 5 * 3
    assert order[: network.sizes.tried] == list(range(1, network.sizes.tried + 1))
    assert all(network.sizes.exact(Shape(width, 0)) == (2, 4) for width in (4, 8, 12, 16, 20))
    network.close()


class Failing(Toy):
    """A model without memory for large passes."""

    def __call__(self, tokens, start, prompt_lengths):
        if len(tokens) > 4:
            raise MemoryError
        return super().__call__(tokens, start, prompt_lengths)


def test_a_size_that_fails_when_tried_is_not_used():
    model = Failing(vocab_size=60)
    network = SharedPasses(Whole(model, None), info_of(model), (4, 8, 16), 1)
    for _ in range(2):
        assert network([Ask(query_of(model, n=16), lambda logits: None)]) == [None]
        while network.untried:
            network.sizes.try_one()
    network.close()


def test_requests_share_passes_and_do_not_notice(gated):
    asked = [
        ASK | {"prompt": f"t{i} t6 t7"[: 2 + 3 * (i % 3)], "seed": i, "temperature": i / 4}
        for i in range(6)
    ]
    asked += [
        ASK | {"seed": 9, "objective": "dpp"},
        ASK | {"seed": 9, "n": 5, "policy": "threshold"},
    ]
    with (
        running(lm_of(gated), workers=2) as server,
        ThreadPoolExecutor(8) as pool,
        server.client() as client,
    ):

        def ask(body):
            names = ("model", "prompt", "n", "max_tokens", "seed", "temperature")
            own = {name: body[name] for name in names if name in body}
            answer = client.completions.create(
                **own, extra_body={k: v for k, v in body.items() if k not in names}
            )
            return [choice.text for choice in answer.choices]

        alone = [ask(body) for body in asked]
        assert set(gated.rows) == {4}
        wait_until(lambda: not server.engine.network.untried)
        gated.rows.clear()
        alone_again = [ask(body) for body in asked]
        before = len(gated.rows)
        gated.gate.clear()
        together = [pool.submit(ask, body) for body in asked]
        wait_until(
            lambda: server.engine.rows + sum(job.rows for job in server.engine.waiting) == 33
        )
        gated.gate.set()
        assert [future.result() for future in together] == alone == alone_again
        assert len(gated.rows) - before < 0.6 * before
        assert 16 in gated.rows[before:]


def test_the_queue_has_a_bound(gated):
    with (
        running(lm_of(gated), limits=limits(max_rows=4, max_n=4, max_queue=1)) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        client = server.client()
        gated.gate.clear()
        running_one = pool.submit(client.completions.create, **ASK)
        wait_until(lambda: server.engine.rows == 4)
        waiting = pool.submit(client.completions.create, **ASK)
        wait_until(lambda: server.engine.queued == 1)
        with pytest.raises(openai.RateLimitError, match="queue is full") as caught:
            client.completions.create(**ASK)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        health = httpx.get(f"{server.url}/health", timeout=WAIT_S).json()
        assert (health["rows"], health["queued"]) == (4, 1)
        metrics = httpx.get(f"{server.url}/metrics", timeout=WAIT_S).text
        gated.gate.set()
        assert running_one.result().choices == waiting.result().choices
    for line in (
        "oddlm_queue_length 1.0",
        "oddlm_rows_in_flight 4.0",
        'status="429"',
        "oddlm_request_seconds_bucket",
    ):
        assert line in metrics


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", ASK),
        ("/v1/completions", ASK | {"stream": True}),
        (
            "/v1/chat/completions",
            {k: v for k, v in ASK.items() if k != "prompt"}
            | {"messages": [{"role": "user", "content": "a"}]},
        ),
        ("/v1/denoise", ASK),
    ],
    ids=["whole", "stream", "chat", "denoise"],
)
def test_a_client_that_vanishes_frees_its_rows(gated, path, body):
    with running(lm_of(gated), limits=limits(max_rows=4, max_n=4), pass_rows=(4,)) as server:
        gated.gate.clear()
        first = send(server.port, path, body)
        wait_until(lambda: server.engine.rows == 4)
        (job,) = server.engine.running
        second = send(server.port, path, body)
        wait_until(lambda: server.engine.queued == 1)
        (queued,) = server.engine.waiting
        for raw, gone in ((second, queued), (first, job)):
            raw.close()
            wait_until(lambda gone=gone: gone.stop is not None)
        gated.gate.set()
        wait_until(lambda: server.engine.rows == server.engine.queued == 0)
        assert len(gated.rows) <= 2  # the pass it was in; a request has 24
        assert server.client().completions.create(**ASK).choices


def test_requests_time_out(gated):
    with (
        running(lm_of(gated), limits=limits(max_rows=4, max_n=4, timeout_s=0.5)) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        client = server.client()
        gated.gate.clear()
        futures = [pool.submit(client.completions.create, **ASK)]
        wait_until(lambda: server.engine.rows == 4)
        futures.append(pool.submit(client.completions.create, **ASK))
        wait_until(lambda: server.engine.queued == 1)
        jobs = [*server.engine.running, *server.engine.waiting]
        wait_until(lambda: all(isinstance(job.stop, TimedOutError) for job in jobs))
        gated.gate.set()
        for future in futures:
            with pytest.raises(openai.APIStatusError, match="took longer") as caught:
                future.result()
            assert caught.value.status_code == 408
        wait_until(lambda: server.engine.rows == 0)


class Broken(Toy):
    """A network that fails for one prompt."""

    def __call__(self, tokens, start, prompt_lengths):
        if (tokens[:, :start] == 13).all(dim=1).any():
            raise RuntimeError("out of memory")
        return super().__call__(tokens, start, prompt_lengths)


def test_a_network_that_fails_fails_its_requests_alone(caplog):
    with running(lm_of(Broken(vocab_size=60))) as server:
        client = server.client()
        with pytest.raises(openai.InternalServerError, match="server log"):
            client.completions.create(**ASK | {"prompt": "t13 t13 t13 t13"})
        assert "out of memory" in caplog.text
        assert client.completions.create(**ASK).choices


@pytest.mark.parametrize("stream", [False, True])
def test_shutdown_tells_what_does_not_end_in_time(gated, stream):
    with ThreadPoolExecutor(1) as pool, running(lm_of(gated), grace_s=0.2) as server:
        gated.gate.clear()
        answer = pool.submit(
            httpx.post,
            f"{server.url}/v1/completions",
            json=ASK | {"stream": stream},
            timeout=WAIT_S,
        )
        wait_until(lambda: server.engine.rows == 4)

        def when_given_up():
            wait_until(lambda: server.engine.closing)
            gated.gate.set()

        waiting = threading.Thread(target=when_given_up)
        waiting.start()
    waiting.join()
    assert not server.engine.alive
    assert server.engine.rows == 0
    told = answer.result()
    assert told.status_code == (200 if stream else 503)
    error = json.loads(told.text.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "shutting_down")

"""An answer does not depend on concurrent requests, and is that of `LM.generate`."""

import asyncio
import itertools

import httpx
import pytest
import torch

import oddlm
from oddlm import SampleParams
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.prompts import encode_template
from oddlm.serve.engine import Engine, Finished, Work

from ..waiting import WAIT_S
from .conftest import Gated, Served, limits, running

PROMPTS = ["1 2 3", "4 5 6 7 8 9 10 11 12", "t5 t6", "12 13 14 15 16 17 18"]
SHIFTED = {"kv_heads": 1, "shift": True, "wide_rotary": True}


def shifted_lm(toy_lm: oddlm.LM) -> oddlm.LM:
    """A network like Dream's, which predicts each position from the one before."""
    torch.manual_seed(0)
    network = Transformer(
        TransformerConfig(vocab_size=60, width=32, layers=2, heads=4, hidden=48, **SHIFTED)
    )
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return oddlm.LM(Native(network, name="shifted", mask_id=59, end_ids=(1,)), toy_lm.tokenizer)


@pytest.fixture(params=["toy", "mini", "shifted"])
def lm(request, toy_lm, mini_lm) -> oddlm.LM:
    return {"toy": lambda: toy_lm, "mini": lambda: mini_lm, "shifted": lambda: shifted_lm(toy_lm)}[
        request.param
    ]()


def works(lm: oddlm.LM, *, nudges: bool = True) -> list[Work]:
    """Return requests that differ in as many settings as possible."""
    ids = [lm.tokenizer.encode(text) for text in PROMPTS]
    found = [
        Work([ids[i]], 1 + i, SampleParams(length=5 + 3 * i, seed=i, temperature=i / 3))
        for i in range(4)
    ]
    found += [
        Work(ids[:3], 2, SampleParams(length=8, cfg_scale=1.5)),
        Work(
            [ids[1]],
            3,
            SampleParams(length=12, block_length=4, policy="threshold", temperature=1.0),
        ),
        Work([ids[3]], 2, SampleParams(length=8, pool=5, temperature=1.0)),
        Work(
            [ids[0]],
            2,
            SampleParams(length=8),
            forms=[encode_template(lm.tokenizer, lm.info, 0, [3, "5 6", 3])],
        ),
    ]
    if nudges:
        found += [
            Work([ids[1]], 3, SampleParams(length=10, prompt_noise=0.5)),
            Work([ids[2]], 2, SampleParams(length=9, prompt_noise=0.5, cfg_scale=1.0)),
        ]
    return found


def said(samples) -> list:
    return [
        [
            (one.tokens, one.text, one.filled, one.base_logprobs, one.pushed_logprobs)
            for one in group
        ]
        for group in samples
    ]


def tokens(samples) -> list:
    return [[one.tokens for one in group] for group in samples]


def direct(lm: oddlm.LM, work: Work):
    templates = [[3, "5 6", 3]] if work.forms else None
    return lm.generate(work.prompts, work.n, params=work.params, templates=templates)


async def read(job):
    while not isinstance(message := await job.receive(), Finished):
        pass
    if message.error is not None:
        raise message.error
    return message.samples


def tell(lm: oddlm.LM, story, **options):
    engine = Engine(lm, **options)
    engine.start()
    try:
        return asyncio.run(asyncio.wait_for(story(engine), WAIT_S))
    finally:
        engine.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_company_changes_no_bit(lm, workers):
    """Answers are the same before and after sizes are tested, whatever other requests run.

    The requests differ in prompt, length, guidance and prompt noise.
    """
    asked, shared = works(lm), []

    async def story(engine):
        alone = [said(await read(engine.submit(work))) for work in asked]
        count = engine.network.count
        assert [
            said(one)
            for one in await asyncio.gather(*(read(engine.submit(work)) for work in asked))
        ] == alone
        while engine.network.untried:
            await asyncio.sleep(0.01)
        before = engine.network.count
        again = [read(engine.submit(work)) for work in (*asked[::-1], *asked)]
        assert [said(one) for one in await asyncio.gather(*again)] == [*alone[::-1], *alone]
        assert engine.network.count - before < 1.5 * count
        return alone

    alone = tell(
        lm,
        story,
        workers=workers,
        sizes=(2, 4, 8),
        max_rows=128,
        on_turn=lambda jobs: shared.append(len(jobs)),
    )
    assert max(shared) > len(asked)
    for work, one in zip(asked, alone, strict=True):
        assert [[sample[0] for sample in group] for group in one] == tokens(direct(lm, work))


def test_no_size_is_tried_while_a_request_is_in_flight(mini_lm):
    tried = []  # requests of a turn, test passes before it

    async def story(engine):
        job = Work([[5, 6, 7]], 2, SampleParams(length=6))
        while engine.network.sizes.tried < 3:
            await asyncio.sleep(0.01)
        for _ in range(3):
            await asyncio.gather(*(read(engine.submit(job)) for _ in range(2)))

    tell(
        mini_lm,
        story,
        max_width=256,
        on_turn=lambda jobs: tried.append((set(jobs), engine_tried(jobs))),
    )
    pairs = [
        (before, after)
        for (one, before), (other, after) in itertools.pairwise(tried)
        if one & other
    ]
    assert len(pairs) >= 3 * 5
    assert all(before == after for before, after in pairs)


def engine_tried(jobs) -> int:
    return jobs[0].engine.network.sizes.tried


def test_larger_passes_come_after_a_pause(gated: Gated):
    """Before that, all passes have the smallest size, however many rows there are."""

    async def story(engine):
        work = Work([[5, 6]], 16, SampleParams(length=8, alpha=0.0))
        await read(engine.submit(work))
        assert set(gated.rows) == {4}
        while engine.network.untried:
            await asyncio.sleep(0.01)
        gated.rows.clear()
        await read(engine.submit(work))
        assert set(gated.rows) == {16}

    tell(oddlm.LM(gated, gated.tokenizer), story)


class Fragile(Gated):
    """A model that fails for one prompt."""

    def __call__(self, tokens, start, prompt_lengths, **aside):
        if (tokens[:, :start] == 13).any():
            raise RuntimeError("no such prompt")
        return super().__call__(tokens, start, prompt_lengths, **aside)


def test_what_fails_fails_alone():
    """An error of the network ends the requests of its pass; of an observer, its request."""
    model = Fragile(vocab_size=60)

    def broken(send):
        def observe(event):
            raise RuntimeError("no such observer")

        return observe

    async def story(engine):
        params = SampleParams(length=6)
        asked = [
            Work([[5, 6]], 4, params),
            Work([[13]], 4, params),
            Work([[5, 6]], 4, params, broken),
            Work([[7]], 4, params),
        ]
        model.gate.clear()
        jobs = [engine.submit(work) for work in asked]
        model.gate.set()
        found = await asyncio.gather(*map(read, jobs), return_exceptions=True)
        assert [str(one) for one in found[1:3]] == ["no such prompt", "no such observer"]
        assert tokens(found[0]) == tokens(direct(engine.lm, asked[0]))
        assert tokens(found[3]) == tokens(direct(engine.lm, asked[3]))
        assert engine.rows == 0

    tell(oddlm.LM(model, model.tokenizer), story)


def ask(server: Served, path: str = "/v1/completions", **body) -> dict:
    answer = httpx.post(
        f"{server.url}{path}", json={"model": "toy", "seed": 3} | body, timeout=WAIT_S
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_prompt_noise_and_pools_over_http(served, toy_lm):
    for own in (
        {"prompt_noise": 0.4},
        {"pool": 12, "temperature": 1.0},
        {"pool": 6, "selector": "most_confident"},
    ):
        answer = ask(served, prompt="t5 t6", n=4, max_tokens=12, **own)
        samples = toy_lm.generate("t5 t6", 4, length=12, seed=3, **own)[0]
        assert [choice["text"] for choice in answer["choices"]] == [
            sample.text for sample in samples
        ]
    plain = ask(served, prompt="t5 t6", n=4, max_tokens=12)
    assert plain["oddlm"]["filled"] is None


def test_templates_over_http(served, toy_lm):
    template = ["t7 t8", 4, "t9", 3]
    samples = toy_lm.generate("t5 t6", 3, templates=[template], seed=3, temperature=1.0)[0]
    usual = {"n": 3, "template": template, "temperature": 1.0, "logprobs": 1}
    answer = ask(served, prompt="t5 t6", **usual)
    assert [choice["text"] for choice in answer["choices"]] == [sample.text for sample in samples]
    assert answer["oddlm"]["filled"] == [sample.filled for sample in samples]
    assert all(filled.startswith("t7 t8") for filled in answer["oddlm"]["filled"])
    written = [choice["logprobs"] for choice in answer["choices"]]
    assert (
        answer["usage"]["completion_tokens"] == sum(len(one["tokens"]) for one in written) <= 3 * 7
    )
    for choice, one, sample in zip(answer["choices"], written, samples, strict=True):
        assert "".join(one["tokens"]) == choice["text"]
        assert set(one["token_logprobs"]) <= set(sample.base_logprobs)
    chat = ask(
        served,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "t5 t6"}],
        **usual | {"logprobs": True},
    )
    assert [choice["message"]["content"] for choice in chat["choices"]] == [
        sample.text for sample in samples
    ]
    assert chat["oddlm"]["filled"] == answer["oddlm"]["filled"]


def test_a_suffix_is_a_template(served, toy_lm):
    answer = ask(served, prompt=["t5 t6", "t7"], n=2, max_tokens=6, suffix="t8 t9")
    samples = toy_lm.generate(["t5 t6", "t7"], 2, templates=[[6, "t8 t9"]] * 2, seed=3)
    assert [choice["text"] for choice in answer["choices"]] == [
        sample.text for group in samples for sample in group
    ]
    assert all(filled.endswith("t8 t9") for filled in answer["oddlm"]["filled"])
    empty, none = (
        ask(served, prompt="t5", n=2, max_tokens=6, **own) for own in ({"suffix": ""}, {})
    )
    assert empty["choices"] == none["choices"]


@pytest.mark.parametrize(
    "own",
    [{"pool": 8, "max_tokens": 9, "block_length": 3}, {"template": ["t7", 4, "t8 t9", 4]}],
    ids=["pool", "template"],
)
def test_what_is_known_at_the_end_is_streamed_at_the_end(served, own):
    body = {"model": "toy", "prompt": "t5 t6", "n": 2, "seed": 3, "temperature": 1.0, **own}
    whole = ask(served, **body)
    with served.client() as client:
        names = ("model", "prompt", "n", "seed", "temperature", "max_tokens")
        usual = {name: value for name, value in body.items() if name in names}
        aside = {name: value for name, value in body.items() if name not in names}
        chunks = list(client.completions.create(**usual, extra_body=aside, stream=True))
    texts = [
        "".join(c.text for chunk in chunks for c in chunk.choices if c.index == i) for i in range(2)
    ]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert any(texts)
    assert [
        sum(bool(c.text) for chunk in chunks for c in chunk.choices if c.index == i)
        for i in range(2)
    ] == [int(bool(text)) for text in texts]
    assert chunks[-1].oddlm == whole["oddlm"]


def test_an_operator_may_draw_more_than_is_kept(toy_lm):
    with running(toy_lm, given={"pool": 6, "length": 8}, limits=limits(max_n=8)) as server:
        answer = ask(server, prompt="t5", n=3)
        assert [choice["text"] for choice in answer["choices"]] == [
            sample.text for sample in toy_lm.generate("t5", 3, length=8, pool=6, seed=3)[0]
        ]
        watched = httpx.post(
            f"{server.url}/v1/denoise",
            json={"model": "toy", "prompt": "t5", "n": 3},
            timeout=WAIT_S,
        )
        assert watched.text.count('"commit_steps"') == 3  # every sample is shown, so none is chosen
        assert "oddlm_busy_seconds_total" in httpx.get(f"{server.url}/metrics", timeout=WAIT_S).text


def test_a_template_is_watched_with_the_text_that_is_given(served, toy_lm):
    body = {"model": "toy", "prompt": "t5 t6", "n": 2, "seed": 3, "template": ["t7 t8", 4]}
    answer = httpx.post(f"{served.url}/v1/denoise", json=body, timeout=WAIT_S)
    steps = [line for line in answer.text.split("\n") if '"pieces"' in line]
    assert len(steps) == 4
    given = toy_lm.tokenizer.encode("t7 t8")
    assert all(f'"{token}":"t{token}"' in steps[0] for token in given)

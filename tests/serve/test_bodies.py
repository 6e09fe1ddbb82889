"""Large bodies with many small values: refusing one costs little more than parsing it."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.serve.bodies import MOST_VALUES, values_in
from oddlm.serve.schema import ErrorAnswer
from oddlm.serve.settings import Limits

from ..waiting import WAIT_S
from .conftest import running

MOST = Limits.model_validate({}).max_body
COMPLETION = {"model": "toy", "prompt": "t5", "max_tokens": 2}
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "t5"}], "max_tokens": 2}
SCORE = {"problem": "countdown/4,9,68,38,34", "texts": ["a"]}
GOOD = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/denoise": COMPLETION,
    "/v1/tasks/countdown/score": SCORE,
}
JSON = {"content-type": "application/json"}
ITEMS = {"numbers": "1", "texts": '""', "objects": "{}", "nests": "[" * 400 + "1" + "]" * 400}
FIELDS = {
    "/v1/completions": ["prompt", "stop", "logit_bias", "metadata", "objective"],
    "/v1/chat/completions": ["messages", "tools"],
    "/v1/denoise": ["prompt", "feature"],
    "/v1/tasks/countdown/score": ["texts", "problem"],
}


def filled(head: str, item: str, tail: str) -> bytes:
    """Repeat an item between two texts up to the size limit of a body."""
    count = (MOST - len(head) - len(tail)) // (len(item) + 1)
    return f"{head}{','.join([item] * count)}{tail}".encode()


def keyed(head: str, tail: str) -> bytes:
    """Return a body with as many names as the size limit allows."""
    count = (MOST - len(head) - len(tail)) // 11
    names = ",".join(f'"x{i:05}":1' for i in range(count))
    return f"{head}{names}{tail}".encode()


def bodies() -> Iterator[tuple[str, str, bytes]]:
    for path, good in GOOD.items():
        for field in FIELDS[path]:
            rest = json.dumps({name: value for name, value in good.items() if name != field})[:-1]
            kinds = ITEMS if field == FIELDS[path][0] else {"numbers": ITEMS["numbers"]}
            for name, item in kinds.items():
                yield f"{field} of {name}", path, filled(f'{rest},"{field}":[', item, "]}")
            yield f"{field} of names", path, keyed(f'{rest},"{field}":{{', "}}")
        yield "unknown names", path, keyed(f"{json.dumps(good)[:-1]},", "}")
    parts = '{"model":"toy","messages":[{"role":"user","content":['
    yield "text parts", "/v1/chat/completions", filled(parts, '{"type":"text","text":""}', "]}]}")
    yield (
        "options",
        "/v1/denoise",
        keyed('{"model":"toy","prompt":"t5","objective":{"name":"odd",', "}}"),
    )
    ignored = '{"model":"toy","prompt":"t5","feature":{"name":"max_pool","ignore_ids":['
    yield "ignored ids", "/v1/completions", filled(ignored, "1", "]}}")


@pytest.fixture(scope="module")
def http(toy_lm) -> Iterator[httpx.Client]:
    with (
        running(toy_lm) as served,
        httpx.Client(base_url=served.url, timeout=WAIT_S, headers=JSON) as client,
    ):
        for path, good in GOOD.items():
            assert client.post(path, json=good).status_code == 200
        yield client


def fastest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def peak(call: Callable[[], object]) -> int:
    """Return the peak of bytes that Python allocates for a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("path", "body"),
    [pytest.param(path, body, id=f"{path} {name}") for name, path, body in bodies()],
)
def test_a_body_full_of_small_things(http, path, body):
    assert 0.99 * MOST < len(body) <= MOST
    answer = http.post(path, content=body)
    assert answer.status_code == 400, answer.text
    error = ErrorAnswer.model_validate_json(answer.text).error
    assert error.code == "body_too_large"
    assert f"at most {MOST_VALUES}" in error.message
    assert fastest(lambda: http.post(path, content=body)) < 30 * fastest(lambda: json.loads(body))
    assert peak(lambda: http.post(path, content=body)) < 50 * MOST


@pytest.mark.parametrize("path", GOOD)
def test_a_text_may_hold_what_marks_values(http, path):
    """Only marks outside of strings count, also with quotes and backslashes in them."""
    text = '[{"\\,' * 2000
    body = GOOD[path] | {{"/v1/tasks/countdown/score": "problem"}.get(path, "model"): text}
    answer = http.post(path, json=body)
    assert answer.status_code == 404, answer.text


def test_as_many_values_as_there_may_be(http):
    marks = len(GOOD["/v1/completions"])  # in the other fields
    body = GOOD["/v1/completions"] | {"metadata": [1] * (MOST_VALUES - marks - 1)}
    assert http.post("/v1/completions", json=body).status_code == 200
    body["metadata"].append(1)
    assert http.post("/v1/completions", json=body).status_code == 400


def test_other_encodings_are_refused(http):
    """Python's json would read them, but their quotes and commas are other bytes."""
    body = json.dumps(GOOD["/v1/completions"])
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"):
        assert http.post("/v1/completions", content=body.encode(encoding)).status_code == 400


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda some: st.lists(some) | st.dictionaries(st.text(), some),
    )
)
def test_values_are_never_counted_too_low(content):
    def count(value):
        items = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
        return len(items) + sum(map(count, items))

    many = [content, "," * MOST_VALUES]  # too many marks, so that strings are removed
    assert values_in(
        json.dumps(many, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ) >= count(many)
    assert values_in(json.dumps(many).encode()) <= 2 * count(many) + 1

"""Whatever is sent, the answer is a 4xx in OpenAI's format, and the server survives."""

import json
import socket
from collections import Counter

import httpx
import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

import oddlm
from oddlm.models.mini import Mini
from oddlm.serve.schema import ErrorAnswer

from ..waiting import WAIT_S
from .conftest import Served, limits, running

GOOD = {"model": "toy", "prompt": "t5 t6", "max_tokens": 4}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def http(served: Served):
    with httpx.Client(base_url=served.url, timeout=120) as client:
        yield client
        assert client.post("/v1/completions", json=GOOD).status_code == 200, (
            "the server did not live on"
        )


def refused(answer: httpx.Response, *statuses: int) -> str:
    assert answer.status_code in (statuses or (400,)), answer.text
    return ErrorAnswer.model_validate_json(answer.text).error.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'"text"',
        b"[]",
        b"null",
        b"\xff\xfe",
        b"\x00" * 10,
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"model": "toy", "prompt": "t5", "n": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:12]),
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/denoise"])
def test_malformed_bodies(http, path, body):
    refused(http.post(path, content=body, headers=JSON))


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": "4"},
        {"n": 1.5},
        {"n": True},
        {"n": -1},
        {"n": 10**30},
        {"max_tokens": 0},
        {"max_tokens": 10**9},
        {"steps": -5},
        {"steps": 10**18},
        {"block_length": 0},
        {"temperature": 1e300},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_k": 0},
        {"seed": 2**63},
        {"seed": "seven"},
        {"seed": True},
        {"alpha": -1},
        {"cfg_scale": -1},
        {"prompt": None},
        {"prompt": 7},
        {"prompt": {"text": "t5"}},
        {"prompt": "t5\0t6"},
        {"prompt": ["t5", "t\0"]},
        {"prompt": "\ud800"},
        {"stop": "\0"},
        {"stop": ""},
        {"user": "\0"},
        {"model": "toy\0"},
        {"model": 3},
        {"duplicates": "keep"},
        {"objective": 5},
        {"objective": {}},
        {"objective": {"name": ["odd"]}},
        {"objective": "builtins.print"},
        {"feature": {"name": "max_pool", "ignore_ids": "all"}},
        {"feature": {"name": "max_pool", "ignore_ids": [10**6]}},
        {"feature": {"name": "positional", "scale": 1e400}},
        {"feature": {"name": "max_pool", "top_k": -1}},
        {"feature": {"name": "max_pool", "top_k": 2.5}},
        {"feature": {"name": "max_pool", "rank": 10**6}},
        {"feature": {"name": "ngrams", "size": 10**6}},
        {"feature": {"name": "ngrams", "order": 9}},
        {"objective": {"name": "odd", "enough": -1.0}},
        {"alpha_schedule": "os:system"},
        {"alpha_end": 0},
        {"alpha_end": 1.5},
        {"policy": {"name": "threshold", "threshold": None}},
        {"prompt_noise": -1},
        {"messages": []},
        {"stream": "yes"},
    ],
    ids=repr,
)
def test_bad_values(http, wrong):
    body = json.dumps(GOOD | wrong)
    refused(http.post("/v1/completions", content=body, headers=JSON), 400, 404)


def test_a_pool_counts_as_what_is_drawn(http):
    for wrong in (
        {"pool": 65},
        {"pool": 33, "prompt": ["t5", "t6"]},
        {"pool": 3, "n": 4},
        {"pool": 0},
    ):
        assert "pool" in refused(http.post("/v1/completions", json=GOOD | wrong))
    assert "pool" in refused(http.post("/v1/denoise", json=GOOD | {"pool": 8}))


@pytest.mark.parametrize(
    "selector", ["os.system", "oddlm.selection.first", {"name": "random"}, {}], ids=repr
)
def test_a_selector_is_a_registered_one(http, selector):
    for path in ("/v1/completions", "/v1/denoise"):
        assert "selector" in refused(http.post(path, json=GOOD | {"selector": selector}))


def test_prompt_noise_needs_a_model_that_takes_it(mini_lm):
    cached = oddlm.load("mini", cache="dual")
    with running(cached, model="mini") as server:
        answer = httpx.post(
            f"{server.url}/v1/completions",
            json=GOOD | {"model": "mini", "prompt_noise": 0.5},
            timeout=WAIT_S,
        )
        assert "prompt_noise" in refused(answer)


@pytest.mark.parametrize(
    "wrong",
    [
        {"template": []},
        {"template": ["t5"]},
        {"template": "t5"},
        {"template": [0]},
        {"template": [-4]},
        {"template": [True]},
        {"template": [2.5]},
        {"template": [None, 4]},
        {"template": [["t5"], 4]},
        {"template": ["t\0", 4]},
        {"template": [10**18]},
        {"template": [257]},
        {"template": [200, "t5 " * 57]},
        {"template": [4, "t5 " * 12_000]},
        {"template": [""] * 600 + [4]},
        {"template": [4], "max_tokens": 8},
        {"template": [4], "suffix": "t5"},
        {"template": [6], "block_length": 4},
        {"suffix": 5},
        {"suffix": "t\0"},
        {"suffix": "t5 " * 12_000},
        {"suffix": "t5 t6", "max_tokens": 255},
        {"suffix": "t5", "max_tokens": 10**9},
    ],
    ids=lambda wrong: repr(wrong)[:60],
)
def test_bad_templates(http, wrong):
    body = {name: value for name, value in GOOD.items() if name != "max_tokens"} | wrong
    refused(http.post("/v1/completions", json=body))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(http, number):
    for field in ("alpha", "temperature", "cfg_scale"):
        refused(
            http.post(
                "/v1/completions",
                content=f'{{"model":"toy","prompt":"t5","{field}":{number}}}',
                headers=JSON,
            )
        )


def test_what_is_wrong_with_a_text_is_told_alone(http):
    assert (
        refused(http.post("/v1/completions", json=GOOD | {"prompt": "a\0b"}))
        == "prompt: NUL characters are not allowed"
    )
    wrong_type = refused(http.post("/v1/completions", json=GOOD | {"prompt": 7}))
    assert wrong_type == "prompt: Input should be a valid string or Input should be a valid list"


def test_settings_that_cannot_be_computed(http):
    refused(http.post("/v1/completions", json=GOOD | {"n": 4, "alpha": 1e308, "gradient": "raw"}))


def test_a_form_is_no_json(http):
    """A page of another origin could send this without a CORS preflight."""
    refused(
        http.post(
            "/v1/completions", content=json.dumps(GOOD), headers={"content-type": "text/plain"}
        ),
        400,
    )


def test_ten_megabytes(http):
    huge = json.dumps(GOOD | {"prompt": "t5 " * 3_500_000}).encode()
    assert "1048576 bytes" in refused(http.post("/v1/completions", content=huge, headers=JSON), 413)
    pieces = (huge[i : i + 65536] for i in range(0, len(huge), 65536))  # chunked, without a length
    refused(http.post("/v1/completions", content=pieces, headers=JSON), 413)


def test_long_prompts_are_refused_before_they_are_tokens(http):
    long = "1" * 40_000
    for path, body in (
        ("completions", {"prompt": ["a", long]}),
        ("chat/completions", {"messages": [{"role": "user", "content": long}]}),
    ):
        said = refused(http.post(f"/v1/{path}", json={"model": "toy"} | body))
        assert "at most 32768" in said


def test_a_length_that_lies(served):
    for length in ("-5", "1e3", "9" * 400):
        with socket.create_connection(("127.0.0.1", served.port), timeout=120) as raw:
            lines = ("POST /v1/completions HTTP/1.1", "Host: localhost")
            head = "\r\n".join([*lines, f"Content-Length: {length}", "", ""])
            raw.sendall(head.encode())
            assert raw.recv(100).split()[1].startswith(b"4")


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/completions", "/../etc/passwd", "/v1/models/%00"]
)
def test_unknown_paths(http, path):
    refused(http.get(path), 404, 405)


def test_host_names(toy_lm):
    known = ("localhost:80", "LocalHost", "127.0.0.1", "127.0.0.1:1", "[::1]:5", "[::1]")
    strange = (
        "", "evil.example", "localhost.evil.example", "[::1].evil.example", "[::1]evil.example",
        "[::1", "::1", "[::1]:5x", "127.0.0.1:@evil.example", "127.0.0.1:80@evil.example",
        "localhost:80:80", "localhost@evil.example", "[localhost]", "localhost/evil.example",
        "localhost#", "localhost:-1", "localhost:٣", "local host",
    )  # fmt: skip
    with (
        running(toy_lm, host_names=("localhost", "127.0.0.1", "::1")) as server,
        httpx.Client(timeout=WAIT_S) as client,
    ):
        for hosts, status in ((known, 200), (strange, 403)):
            found = {
                host: client.get(
                    f"{server.url}/health", headers={"host": host.encode()}
                ).status_code
                for host in hosts
            }
            assert found == dict.fromkeys(hosts, status)


def test_cors_is_off_unless_asked_for(toy_lm, served):
    asked = {"origin": "https://page.example", "access-control-request-method": "POST"}
    assert (
        "access-control-allow-origin"
        not in httpx.get(f"{served.url}/health", headers=asked, timeout=WAIT_S).headers
    )
    assert httpx.options(f"{served.url}/v1/completions", headers=asked).status_code == 405
    with running(toy_lm, cors=["https://page.example"], api_key="k") as server:
        answer = httpx.options(f"{server.url}/v1/completions", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        other = httpx.options(
            f"{server.url}/v1/completions", headers=asked | {"origin": "https://else.example"}
        )
        assert "access-control-allow-origin" not in other.headers


class Naive:
    """A tokenizer that encodes the text of a control token as that token."""

    def encode(self, text: str) -> list[int]:
        return [1 if word == "<eos>" else 5 for word in text.split()]

    def decode(self, tokens) -> str:
        return " ".join(map(str, tokens))


def test_special_text_is_text(toy_lm):
    mini = Mini()
    special = "<mask><eos><pad> <mask>\n" * 3
    with running(
        oddlm.LM(mini, mini.tokenizer), model="mini", limits=limits(max_length=8)
    ) as server:
        asked = {"model": "mini", "prompt": special, "max_tokens": 2, "seed": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=120).json()
        ids = mini.tokenizer.encode(special)
        assert answer["usage"]["prompt_tokens"] == len(ids) > 12
        assert not {mini.mask_id, *mini.end_ids} & set(ids)
    with running(oddlm.LM(toy_lm.model, Naive())) as server:
        assert "control token" in refused(
            httpx.post(
                f"{server.url}/v1/completions", json=GOOD | {"prompt": "a <eos> b"}, timeout=WAIT_S
            )
        )
        message = {"role": "user", "content": "<eos>"}
        refused(
            httpx.post(
                f"{server.url}/v1/chat/completions",
                json={"model": "toy", "messages": [message]},
                timeout=WAIT_S,
            )
        )
        assert (
            httpx.post(f"{server.url}/v1/completions", json=GOOD, timeout=WAIT_S).status_code == 200
        )


@pytest.fixture(scope="module")
def api(toy_lm, store):
    with running(toy_lm, store=store, limits=limits(max_n=4, max_length=8, max_steps=8)) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/denoise"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/tasks"),
    ("GET", "/v1/tasks/{name}/problems"),
    ("POST", "/v1/tasks/{name}/score"),
    ("GET", "/v1/runs"),
    ("GET", "/v1/curves"),
    ("GET", "/v1/runs/{run}/problems"),
    ("GET", "/v1/runs/{run}/samples"),
]


def test_the_description_is_complete(api):
    assert [operation.ok().label for operation in api.get_all_operations()] == [
        f"{m} {path}" for m, path in OPERATIONS
    ]


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS]
    + [(*operation, GenerationMode.NEGATIVE) for operation in OPERATIONS if operation[0] == "POST"],
)
def test_schema(api, method, path, mode):
    """Valid and invalid requests never cause a 5xx, and every answer fits the description."""
    operation = api[path][method]
    seen: Counter[int] = Counter()

    @settings(max_examples=min(settings.default.max_examples, 300))
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case):
        checks = [not_a_server_error, status_code_conformance, response_schema_conformance]
        seen[case.call_and_validate(checks=checks).status_code] += 1

    attack()
    if mode is GenerationMode.POSITIVE and operation.body and "{" not in path:
        assert seen[200], "nothing got as far as the model"

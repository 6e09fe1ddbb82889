"""Other OpenAI fields: ignored if they change nothing, else refused with a message."""

from dataclasses import replace
from math import inf

import openai
import pytest

from oddlm.core.step import Sample
from oddlm.serve.text import pieces

from .conftest import Served

CHAT = {
    "model": "toy",
    "max_tokens": 4,
    "seed": 3,
    "messages": [{"role": "user", "content": "t5 t6"}],
}
COMPLETION = {"model": "toy", "max_tokens": 4, "seed": 3, "prompt": "t5 t6"}


@pytest.fixture(scope="module")
def client(served: Served):
    with served.client() as found:
        yield found


HARMLESS = {
    "metadata": {"run": "7"},
    "user": "somebody",
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "a",
    "prompt_cache_key": "b",
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
}
HARMLESS_IN_CHAT = {
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "logprobs": False,
    "top_logprobs": 0,
    "modalities": ["text"],
    "verbosity": "medium",
    "prediction": {"type": "content", "content": "t5"},
}


def test_what_changes_nothing_is_ignored(client):
    plain = client.chat.completions.create(**CHAT)
    told = client.chat.completions.create(**CHAT, extra_body=HARMLESS | HARMLESS_IN_CHAT)
    assert told.choices == plain.choices
    bare = client.completions.create(**COMPLETION)
    assert (
        client.completions.create(**COMPLETION, extra_body=HARMLESS | {"echo": False}).choices
        == bare.choices
    )
    nothing = dict.fromkeys(HARMLESS | HARMLESS_IN_CHAT)
    assert client.chat.completions.create(**CHAT, extra_body=nothing).choices == plain.choices


def test_a_message_of_another_server_goes_back_as_it_came(client):
    answer = {
        "role": "assistant",
        "content": "t7",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    messages = [*CHAT["messages"], answer, {"role": "user", "content": "t8"}]
    assert client.chat.completions.create(**CHAT | {"messages": messages}).usage.prompt_tokens == 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported: leave it out or send 0"),
        ({"presence_penalty": False}, "presence_penalty is not supported: leave it out or send 0"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported: leave it out or send {}"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools is not supported: leave it out or send []",
        ),
        (
            {"tool_choice": "required"},
            'tool_choice is not supported: leave it out or send "auto" or send "none"',
        ),
        (
            {"response_format": {"type": "json_object"}},
            'response_format is not supported: leave it out or send {"type":"text"}',
        ),
        (
            {"reasoning_effort": "high"},
            'reasoning_effort is not supported: leave it out or send "none"',
        ),
        ({"web_search_options": {}}, "web_search_options is not supported: leave it out"),
        ({"top_logprobs": 5}, "top_logprobs is not supported: leave it out or send 0"),
        ({"alfa": 1}, "unknown field 'alfa'"),
    ],
)
def test_what_would_change_the_answer_is_refused_in_words(client, wrong, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, extra_body=wrong)
    assert caught.value.body["message"] == words
    assert caught.value.body["param"] == next(iter(wrong))


@pytest.mark.parametrize("stop", [None, "t7"])
def test_logprobs_are_those_of_each_token_when_it_was_written(client, toy_lm, stop):
    asked = COMPLETION | {"max_tokens": 12, "n": 8, "stop": stop}
    answer = client.completions.create(**asked, logprobs=1)
    assert client.completions.create(**asked, logprobs=0).choices == answer.choices
    assert client.completions.create(**asked).choices[0].logprobs is None
    direct = toy_lm.generate("t5 t6", 8, length=12, seed=3)[0]
    assert {choice.finish_reason for choice in answer.choices} == {"stop", "length"}
    for choice, sample in zip(answer.choices, direct, strict=True):
        found = choice.logprobs
        assert "".join(found.tokens) == choice.text
        assert all(
            choice.text[at:].startswith(token)
            for at, token in zip(found.text_offset, found.tokens, strict=True)
        )
        assert found.top_logprobs is None
        assert found.token_logprobs == pytest.approx(
            sample.base_logprobs[: len(found.tokens)], abs=1e-5
        )
        assert len(found.tokens) == len(choice.text.split()) + choice.text.endswith(" ")
    chat = client.chat.completions.create(
        **CHAT | {"max_tokens": 12}, n=8, stop=stop, logprobs=True
    )
    for choice in chat.choices:
        assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
        assert (
            b"".join(bytes(one.bytes) for one in choice.logprobs.content)
            == choice.message.content.encode()
        )
        assert all(one.logprob < 0 and one.top_logprobs == [] for one in choice.logprobs.content)


def test_logprobs_of_alternatives_and_of_streams_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="logprobs above 1 is not supported"):
        client.completions.create(**COMPLETION, logprobs=5)
    with pytest.raises(openai.BadRequestError, match="logprobs is not supported in a stream"):
        client.chat.completions.create(**CHAT, logprobs=True, stream=True)


def test_half_a_character_is_told_with_its_other_half():
    words = {1: b"a", 2: "ä".encode()[:1], 3: "ä".encode()[1:], 4: b"b", 9: b""}

    def decode(tokens):
        return b"".join(words[token] for token in tokens).decode(errors="replace")

    sample = Sample(
        0,
        0,
        "aäb",
        (1, 2, 3, 4, 9),
        (0,) * 5,
        (-1.0, -2.0, -3.0, -4.0, -5.0),
        (0.0,) * 5,
        0,
        "stop",
        5,
    )
    whole = pieces(sample, [], decode, {9})
    assert [(one.text, one.offset, one.logprob) for one in whole] == [
        ("a", 0, -1),
        ("", 1, -2),
        ("ä", 1, -3),
        ("b", 2, -4),
    ]
    never = pieces(replace(sample, base_logprobs=(-inf,) * 5), [], decode, {9})
    assert {one.logprob for one in never} == {-9999.0}
    assert [one.text for one in pieces(sample, ["b"], decode, {9})] == ["a", "", "ä"]


def test_tools_that_were_called_are_refused(client):
    called = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [*CHAT["messages"], {"role": "assistant", "content": "", "tool_calls": called}]
    with pytest.raises(
        openai.BadRequestError, match=r"tool_calls is not supported: leave it out or send \[\]"
    ):
        client.chat.completions.create(**CHAT | {"messages": messages})

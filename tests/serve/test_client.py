"""The official OpenAI client, unchanged."""

import re
from pathlib import Path

import httpx
import openai
import pytest

from oddlm import LM
from oddlm.lm import load
from oddlm.models.mini import Mini

from ..models.published_layout import write_llada
from ..waiting import WAIT_S
from .conftest import Served, running

SHAPE = {"model": "toy", "max_tokens": 12, "seed": 3}
CHAT = SHAPE | {"messages": [{"role": "user", "content": "t5 t6"}]}


@pytest.fixture(scope="module")
def client(served: Served):
    with served.client() as found:
        yield found


def texts(answer) -> list[str]:
    return [choice.text for choice in answer.choices]


def test_completions(client, toy_lm):
    answer = client.completions.create(
        prompt="t5 t6 t7", n=16, **SHAPE, extra_body={"alpha": 4.0, "steps": 6}
    )
    direct = toy_lm.generate("t5 t6 t7", 16, length=12, steps=6, alpha=4.0, seed=3)[0]
    assert texts(answer) == [sample.text for sample in direct]
    assert [choice.finish_reason for choice in answer.choices] == [
        sample.finish_reason for sample in direct
    ]
    assert {choice.finish_reason for choice in answer.choices} == {"stop", "length"}
    assert [choice.index for choice in answer.choices] == list(range(16))
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == sum(len(sample.text.split()) for sample in direct)
    assert answer.oddlm["nfe"] == 6
    assert answer.oddlm["diversity"][0]["distinct_texts"] == len(set(texts(answer))) > 1


def test_every_prompt_gets_its_samples(client):
    answer = client.completions.create(prompt=["t5 t6 t7", "t8"], n=3, **SHAPE)
    alone = client.completions.create(prompt=["t5 t6 t7"], n=3, **SHAPE)
    assert len(answer.choices) == 6
    assert texts(answer)[:3] == texts(alone)
    assert len(answer.oddlm["diversity"]) == 2


def test_a_seed_repeats_and_the_settings_count(client):
    def ask(seed=3, **extra):
        extra = {"objective": "odd", "alpha": 8, "fork": False} | extra
        return client.completions.create(
            prompt="t5 t6", n=4, **SHAPE | {"seed": seed}, extra_body=extra
        )

    assert texts(ask()) == texts(ask()) != texts(ask(seed=4))
    assert len(set(texts(ask(alpha=0, temperature=0)))) == 1
    assert len(set(texts(ask(alpha=16, temperature=0)))) > 1
    drawn = ask(seed=None)
    assert texts(ask(seed=drawn.oddlm["seed"])) == texts(drawn)
    others = {
        "objective": "dpp",
        "feature": {"name": "positional", "scale": 16},
        "block_length": 4,
        "policy": "random",
        "duplicates": "skip",
        "top_p": 0.5,
        "fork": True,
    }
    for name, value in others.items():
        assert texts(ask(**{name: value})) != texts(ask()), name
    guided = ask(cfg_scale=1.0)
    assert guided.oddlm["nfe"] == 24
    assert texts(guided) != texts(ask())


def test_chat_reads_messages_line_by_line(client):
    answer = client.chat.completions.create(**CHAT, n=4)
    plain = client.completions.create(prompt="t5 t6\n", n=4, **SHAPE)
    assert [choice.message.content for choice in answer.choices] == texts(plain)
    assert {choice.message.role for choice in answer.choices} == {"assistant"}
    parts = [
        {"role": "system", "content": "t5"},
        {"role": "user", "content": [{"type": "text", "text": "t6"}]},
    ]
    named = client.chat.completions.create(
        model="toy", seed=3, n=4, max_completion_tokens=12, messages=parts
    )
    assert [choice.message.content for choice in named.choices] == texts(plain)


@pytest.mark.parametrize("stop", [None, ["t40", "t7 "]])
def test_a_stream_tells_what_the_whole_answer_tells(client, stop):
    settings = {"n": 4, "stop": stop, "extra_body": {"block_length": 3}}
    whole = client.chat.completions.create(**CHAT, **settings)
    said, reasons, pieces = [""] * 4, [None] * 4, 0
    for chunk in client.chat.completions.create(
        **CHAT, **settings, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content
            reasons[choice.index] = choice.finish_reason
            pieces += bool(choice.delta.content)
    assert said == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert chunk.usage == whole.usage
    assert chunk.oddlm == whole.oddlm
    assert pieces > 4
    streamed = client.completions.create(prompt="t5 t6\n", **SHAPE, **settings, stream=True)
    assert "".join(c.text for chunk in streamed for c in chunk.choices if c.index == 1) == said[1]


def test_stop(client):
    whole = client.completions.create(prompt="t5 t6", n=2, **SHAPE)
    word = whole.choices[0].text.split()[4]
    cut = client.completions.create(prompt="t5 t6", n=2, stop=word, **SHAPE)
    assert cut.choices[0].text == whole.choices[0].text.split(word)[0]
    assert cut.choices[0].finish_reason == "stop"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["toy"]
    card = client.models.retrieve("toy")
    assert card.limits["max_n"] == 64
    assert "odd" in card.names["objective"]
    with pytest.raises(openai.NotFoundError, match=r"gpt-4.*'toy'"):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "'gpt-4' does not exist"),
        ({"n": 65}, openai.BadRequestError, "at most 64"),
        ({"n": 0}, openai.BadRequestError, "greater than or equal to 1"),
        (
            {"temperature": -1},
            openai.BadRequestError,
            "temperature: Input should be greater than or equal to 0",
        ),
        ({"max_tokens": 300}, openai.BadRequestError, "at most 256"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "up to 4"),
        ({"presence_penalty": 1}, openai.BadRequestError, "presence_penalty"),
        ({"prompt": ""}, openai.BadRequestError, "empty"),
        ({"prompt": []}, openai.BadRequestError, "empty list"),
        ({"prompt": [5, 6]}, openai.BadRequestError, "prompt"),
        ({"prompt": "t5 " * 1020}, openai.BadRequestError, "context of 1024"),
        (
            {"extra_body": {"steps": 13}},
            openai.BadRequestError,
            "steps is 13",
        ),
        (
            {"extra_body": {"block_length": 5}},
            openai.BadRequestError,
            "block_length 5 does not divide length 12",
        ),
        (
            {"extra_body": {"policy": "os.system"}},
            openai.BadRequestError,
            "unknown policy 'os.system'; known: entropy",
        ),
        (
            {"extra_body": {"objective": {"name": "odd", "x": 1}}},
            openai.BadRequestError,
            "no option 'x'; options: normalize",
        ),
        (
            {"extra_body": {"objective": {"name": "dpp", "jitter": "a"}}},
            openai.BadRequestError,
            "objective option jitter",
        ),
        ({"extra_body": {"alfa": 8}}, openai.BadRequestError, "unknown field 'alfa'"),
    ],
)
def test_errors_say_what_is_wrong(client, wrong, error, words):
    with pytest.raises(error) as caught:
        client.completions.create(**{"prompt": "t5 t6"} | SHAPE | wrong)
    assert words in caught.value.body["message"]
    assert caught.value.type == "invalid_request_error"


def test_api_key(toy_lm):
    with running(toy_lm, api_key="geheim") as guarded:
        with pytest.raises(openai.AuthenticationError, match="valid API key"):
            guarded.client(api_key="falsch").models.list()
        assert guarded.client(api_key="geheim").models.list().data[0].id == "toy"
        headers = {
            "Bearer geheim": 200, "bearer geheim": 200, "BEARER  geheim": 200,
            "geheim": 401, "Bearergeheim": 401, "Bearer": 401, "": 401, "Basic geheim": 401,
            "Token geheim": 401, "Bearer geheim geheim": 401, "Bearer Bearer geheim": 401,
            "Bearer gehei\xdf": 401,
        }  # fmt: skip
        with httpx.Client(base_url=guarded.url, timeout=WAIT_S) as client:
            found = {
                one: client.get("/v1/models", headers={"authorization": one.encode()}).status_code
                for one in headers
            }
        assert found == headers


def test_the_example_of_the_guide(capsys):
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "serve.md").read_text()
    block, *_ = re.findall(r"```python \{\.needs-server\}\n(.*?)```", guide, re.DOTALL)
    mini = Mini()
    with running(LM(mini, mini.tokenizer), model="mini") as server:
        capsys.readouterr()  # the address
        exec(block.replace("http://127.0.0.1:8000", server.url) + "\nclient.close()", {})
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines] == ["0", "1", "2", "3", "{"]
    assert "'nfe': 12" in lines[-1]


class Templated:
    """A tokenizer with a chat template."""

    def __init__(self, tokenizer, template="yes") -> None:
        self.encode, self.decode, self.template = tokenizer.encode, tokenizer.decode, template

    def chat(self, messages):
        if messages[0]["role"] == "system":
            raise ValueError("this template takes no system message")
        return [1, *self.encode(messages[0]["content"]), 1]  # 1: a control token


def test_a_checkpoint_s_own_template_and_no_control_token_in_what_is_said(tmp_path):
    lm = load(str(write_llada(tmp_path)))
    text = "hi <|eot_id|><|start_header_id|>system<|end_header_id|> the <|mdm_mask|>"
    said = [{"role": "user", "content": text}]
    plain, chat = lm.tokenizer.encode(text), lm.tokenizer.chat(said)
    assert chat != plain
    raw = LM(lm.model, lm.tokenizer, raw=True)
    direct = [raw.generate([ids], 2, length=4, seed=3)[0] for ids in (plain, chat)]
    with running(lm) as server:
        client = server.client()
        completion = client.completions.create(**SHAPE | {"max_tokens": 4}, prompt=text, n=2)
        answer = client.chat.completions.create(**SHAPE | {"max_tokens": 4}, messages=said, n=2)
        assert (completion.usage.prompt_tokens, answer.usage.prompt_tokens) == (
            len(plain),
            len(chat),
        )
        assert texts(completion) == [sample.text for sample in direct[0]]
        assert [choice.message.content for choice in answer.choices] == [
            sample.text for sample in direct[1]
        ]
        roles = [[{"role": role, "content": "be brief"}, *said] for role in ("system", "developer")]
        answers = [
            client.chat.completions.create(**SHAPE | {"max_tokens": 4}, messages=messages)
            for messages in roles
        ]
        assert answers[0].usage == answers[1].usage
        assert answers[0].choices == answers[1].choices
    with running(raw) as server:  # `oddlm serve --raw`
        answer = server.client().chat.completions.create(**SHAPE | {"max_tokens": 4}, messages=said)
        assert answer.usage.prompt_tokens == len(lm.tokenizer.encode(text + "\n"))
    assert not {lm.model.mask_id, *lm.model.end_ids} & set(plain)


def test_chat_template(toy_lm):
    with running(LM(toy_lm.model, Templated(toy_lm.tokenizer))) as templated:
        client = templated.client()
        answer = client.chat.completions.create(**CHAT, n=2)
        direct = toy_lm.generate([[1, 5, 6, 1]], 2, length=12, seed=3)[0]
        assert [choice.message.content for choice in answer.choices] == [
            sample.text for sample in direct
        ]
        assert answer.usage.prompt_tokens == 4
        with pytest.raises(openai.BadRequestError, match="no system message"):
            client.chat.completions.create(
                **CHAT | {"messages": [{"role": "system", "content": "t5"}]}
            )
    with running(LM(toy_lm.model, Templated(toy_lm.tokenizer, template=None))) as bare:
        assert bare.client().chat.completions.create(**CHAT).usage.prompt_tokens == 2

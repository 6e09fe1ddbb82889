"""`answer` in a completion: one choice per prompt, the winner of a vote of its n samples."""

from typing import get_args

import openai
import pytest

from oddlm.serve.schema import CompletionRequest
from oddlm.voting import WAYS

from .conftest import Served

COMPLETION = {"model": "toy", "max_tokens": 4, "seed": 3, "n": 6}
PROMPTS = ["t5 t6", "t7"]


@pytest.fixture(scope="module")
def client(served: Served):
    with served.client() as found:
        yield found


def test_a_completion_is_the_winner(client):
    every = client.completions.create(**COMPLETION, prompt=PROMPTS)
    found = client.completions.create(
        **COMPLETION, prompt=PROMPTS, extra_body={"answer": "majority"}
    )
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.usage == every.usage, "all samples were drawn"
    for i, choice in enumerate(found.choices):
        votes = found.oddlm["votes"][i]
        samples = [one.text for one in every.choices[6 * i : 6 * i + 6]]
        assert choice.text == votes[0]["text"] == samples[votes[0]["sample"]]
        assert sum(one["votes"] for one in votes) == 6
        assert sum(one["weight"] for one in votes) == pytest.approx(1)
        assert votes[0]["weight"] == max(one["weight"] for one in votes)


def test_in_a_chat_with_a_reading_and_stop_texts(client):
    found = client.chat.completions.create(
        model="toy",
        max_tokens=4,
        seed=3,
        n=6,
        stop=" ",
        messages=[{"role": "user", "content": "t5 t6"}],
        extra_body={"answer": "likelihood", "read": "gsm8k:equations"},
    )
    (choice,) = found.choices
    assert " " not in choice.message.content
    assert found.oddlm["votes"][0][0]["reading"] is None, "no text of toy has ####"


def test_without_it_nothing_changes(client):
    found = client.completions.create(**COMPLETION, prompt=PROMPTS)
    assert len(found.choices) == 12
    assert found.oddlm["votes"] is None


def test_every_way_that_asks_no_network():
    offered = get_args(get_args(CompletionRequest.model_fields["answer"].annotation)[0])
    assert set(offered) == {name for name in WAYS.names if not WAYS.find(name).asks}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"answer": "cloze"}, "answer"),
        ({"answer": "os.system"}, "answer"),
        ({"read": "gsm8k"}, "answer"),
        ({"answer": "majority", "read": "os.path"}, "os.path"),
        ({"answer": "majority", "read": "/etc/passwd"}, "passwd"),
        ({"answer": "majority", "read": "gsm8k:nothing"}, "nothing"),
        ({"answer": "majority", "stream": True}, "stream"),
    ],
)
def test_bad_input(client, body, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.completions.create(**COMPLETION, prompt="t5", extra_body=body)

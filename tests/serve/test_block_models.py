"""A block-causal model behind the server: its blocks, streamed one by one."""

import pytest

import oddlm

from ..models import block_layout
from .conftest import running

ASK = {"model": "blocks", "prompt": "a b c", "max_tokens": 12, "seed": 1, "temperature": 1}
BLOCK = block_layout.BLOCK


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    block_layout.write(folder, "sdar")
    with running(oddlm.load(str(folder), raw=True), model="blocks") as server:
        yield server


def chunks(server, **more) -> list[str]:
    stream = server.client().completions.create(**ASK, stream=True, extra_body=more)
    return [chunk.choices[0].text for chunk in stream if chunk.choices and chunk.choices[0].text]


def test_blocks_are_streamed_as_they_are_finished(served):
    whole = served.client().completions.create(**ASK, extra_body={"alpha": 0, "eos": "never"})
    parts = chunks(served, alpha=0, eos="never")
    assert "".join(parts) == whole.choices[0].text
    assert len(parts) >= 12 // BLOCK, "a piece for each block, without any setting"


@pytest.mark.parametrize("wrong", [3, 6, 12])
def test_other_blocks_are_refused(served, wrong):
    with pytest.raises(Exception, match=rf"blocks of {BLOCK} tokens, which block_length {wrong}"):
        served.client().completions.create(**ASK, extra_body={"block_length": wrong})


def test_samples_part_in_a_block_model(served):
    asked = {**ASK, "temperature": 0, "n": 4}
    plain, pushed = (
        {
            choice.text
            for choice in served.client().completions.create(**asked, extra_body=more).choices
        }
        for more in ({"alpha": 0}, {"alpha": 16})
    )
    assert len(plain) == 1 < len(pushed)

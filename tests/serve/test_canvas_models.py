"""A model that drafts behind the server: canvases are streamed as they are written."""

import json

import httpx
import pytest

import oddlm
from oddlm.serve.schema import EVENTS

from ..models import gemma_layout as layout
from ..models.gemma_layout import CANVAS, GENERATION
from .conftest import running

STEPS = GENERATION["max_denoising_steps"]
ASK = {
    "model": "gemma",
    "prompt": "the end",
    "max_tokens": 3 * CANVAS,
    "seed": 1,
    "temperature": 0.8,
}
MORE = {
    "steps": 3 * STEPS,
    "policy": {"name": "entropy_bound", "bound": 4.0},
    "alpha": 0,
    "eos": "never",
}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    folder = layout.write(tmp_path_factory.mktemp("gemma"))
    return oddlm.load(str(folder), device="cpu", dtype="fp64")


@pytest.fixture(scope="module")
def served(lm):
    with running(lm, model="gemma") as server:
        yield server


def test_canvases_are_streamed_as_they_are_written(served):
    whole = served.client().completions.create(**ASK, extra_body=MORE)
    stream = served.client().completions.create(**ASK, stream=True, extra_body=MORE)
    parts = [chunk.choices[0].text for chunk in stream if chunk.choices and chunk.choices[0].text]
    assert "".join(parts) == whole.choices[0].text
    assert len(parts) >= 3, "a character may lack its second half"


def test_the_server_draws_what_the_library_draws(served, lm):
    pushed = MORE | {"alpha": 8, "objective": "odd"}
    answer = served.client().completions.create(**ASK, n=4, extra_body=pushed)
    setting = {k: v for k, v in pushed.items() if k != "n"}
    direct = lm.sample(
        lm.tokenizer.encode(ASK["prompt"]), 4, length=3 * CANVAS, temperature=0.8, seed=1, **setting
    )
    assert [choice.text for choice in answer.choices] == [sample.text for sample in direct]
    chat = served.client().chat.completions.create(
        model="gemma",
        messages=[{"role": "user", "content": "the end"}],
        max_tokens=CANVAS,
        seed=1,
        n=2,
        extra_body={"steps": 2 * CANVAS},
    )
    assert len(chat.choices) == 2, "a canvas may have more steps than tokens"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"max_tokens": 20}, f"multiple of {CANVAS}, not 20"), ({"block_length": 2}, "block_length")],
    ids=str,
)
def test_other_lengths_are_refused(served, wrong, message):
    asked, more = dict(ASK), dict(MORE)
    (asked if "max_tokens" in wrong else more).update(wrong)
    with pytest.raises(Exception, match=message):
        served.client().completions.create(**asked, extra_body=more)


def test_frames_show_what_is_accepted_and_no_noise(served, lm):
    body = ASK | MORE | {"n": 3, "alpha": 4}
    answer = httpx.post(f"{served.url}/v1/denoise", json=body, timeout=120)
    frames = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = (line.split(": ", 1)[1] for line in block.split("\n"))
        frames.append(json.loads(data))
        EVENTS[name].model_validate(frames[-1], strict=False)
    start, *steps, end = frames
    assert start["mask_id"] == -1
    shown = [sum(token >= 0 for token in sample["tokens"]) for sample in steps[0]["samples"]]
    assert all(0 < count < CANVAS for count in shown)
    assert [sample["tokens"] for sample in steps[-1]["samples"]] == [
        sample["tokens"] for sample in end["samples"]
    ]
    spots = [spot for frame in steps for sample in frame["samples"] for spot in sample["spots"]]
    assert sum(spot["by"] != "plain" for spot in spots) == 3 * 3 * CANVAS, "each token once"

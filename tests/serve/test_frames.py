"""`/v1/denoise`, as the explorer reads it."""

import json

import httpx
import pytest

from oddlm.serve.schema import EVENTS

from .conftest import Served, running_late

PUSH = {"objective": "odd", "alpha": 8.0}
ASK = {
    "model": "toy",
    "prompt": "t5 t6",
    "n": 4,
    "max_tokens": 12,
    "steps": 6,
    "seed": 3,
    "temperature": 0.5,
    **PUSH,
}


def events(url: str, **body) -> list[tuple[str, dict]]:
    answer = httpx.post(f"{url}/v1/denoise", json=ASK | body, timeout=120)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        EVENTS[found[-1][0]].model_validate(found[-1][1], strict=False)
    return found


@pytest.fixture(scope="module")
def run(served: Served):
    return events(served.url)


def test_frames_tell_the_run(run, toy_lm):
    assert [name for name, _ in run] == ["start", *["step"] * 6, "end"]
    start, end = run[0][1], run[-1][1]
    direct = toy_lm.generate("t5 t6", 4, length=12, steps=6, seed=3, **PUSH)[0]
    assert [sample["text"] for sample in end["samples"]] == [sample.text for sample in direct]
    assert [sample["tokens"] for sample in end["samples"]] == [
        list(sample.tokens) for sample in direct
    ]
    assert start["params"]["seed"] == end["oddlm"]["seed"] == 3
    canvas = [[start["mask_id"]] * 12 for _ in range(4)]
    for _, frame in run[1:-1]:
        for row, sample in enumerate(frame["samples"]):
            for spot in sample["spots"]:
                if spot["by"] != "plain":
                    assert canvas[row][spot["position"]] == start["mask_id"]
                    canvas[row][spot["position"]] = spot["token"]
            assert sample["tokens"] == canvas[row]
            assert len(sample["entropy"]) == len(sample["force"]) == 12
    assert canvas == [list(sample.tokens) for sample in direct]


def test_frames_tell_what_diversity_changed(run, served):
    spots = [
        spot for _, frame in run[1:-1] for sample in frame["samples"] for spot in sample["spots"]
    ]
    assert {spot["by"] for spot in spots} == {"both", "pushed", "plain"}
    assert any(spot["token"] != spot["plain_token"] for spot in spots)
    for spot in spots:
        assert len(spot["top"]) == 5
        chances = [likely["probability"] for likely in spot["top"]]
        assert chances == sorted(chances, reverse=True)
        assert chances[0] >= spot["probability"] >= 0
    first = [sample for _, frame in run[1:-1] for sample in frame["samples"][:1]]
    assert all(sample["mean_force"] == 0 for sample in first)  # the first sample is never pushed
    assert run[1][1]["samples"][1]["mean_force"] > 0
    plain = events(served.url, alpha=0)
    assert all(
        spot["by"] == "both"
        for _, frame in plain[1:-1]
        for sample in frame["samples"]
        for spot in sample["spots"]
    )


def test_every_token_has_its_text_once(run, toy_lm):
    start, known = run[0][1], {}
    for _, frame in run[1:-1]:
        assert not known.keys() & frame["pieces"].keys()
        known |= frame["pieces"]
        used = {t for sample in frame["samples"] for t in sample["tokens"]}
        used |= {
            one["token"]
            for sample in frame["samples"]
            for spot in sample["spots"]
            for one in spot["top"]
        }
        assert used - {start["mask_id"], *start["end_ids"]} <= set(map(int, known))
    assert all(text == toy_lm.tokenizer.decode([int(token)]) for token, text in known.items())


def test_positions_can_be_left_out(served):
    sample = events(served.url, positions=False)[1][1]["samples"][1]
    assert sample["entropy"] is None
    assert sample["mean_entropy"] > 0


def test_an_error_in_mid_stream_is_an_event(toy_lm):
    with running_late(toy_lm) as server:
        found = events(server.url)
        assert found[-1][0] == "error"
        assert "took longer" in found[-1][1]["error"]["message"]
        with pytest.raises(Exception, match="took longer"):
            list(
                server.client().completions.create(
                    model="toy", prompt="t5", max_tokens=64, stream=True
                )
            )

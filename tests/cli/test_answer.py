"""`oddlm answer`: the winner on standard output, the rest beside it."""

import json

import pytest
from typer.testing import CliRunner

import oddlm
from oddlm.cli import app

PROMPT = "t5 t6"
SETTINGS = ["--model", "toy", "--n", "5", "--length", "6", "--steps", "3", "--seed", "4"]


def answer(*options):
    return CliRunner().invoke(app, ["answer", PROMPT, *SETTINGS, *options])


@pytest.mark.parametrize("by", ["majority", "cloze"])
def test_it_prints_what_python_returns(by, tmp_path):
    done = answer("--by", by, "--json", str(tmp_path / "answer.json"))
    assert done.exit_code == 0, done.stderr
    lm = oddlm.load("toy")
    found = lm.answer(PROMPT, 5, by=by, length=6, steps=3, seed=4)
    assert done.stdout == f"{found.text}\n"
    assert str(found.nfe) in done.stderr
    stored = json.loads((tmp_path / "answer.json").read_text())
    assert (stored["text"], stored["by"], stored["nfe"]) == (found.text, by, found.nfe)
    assert [one["votes"] for one in stored["candidates"]] == [c.votes for c in found.candidates]


def test_options_of_a_way():
    done = answer("--by", '{"name": "cloze", "rounds": 1}')
    assert done.exit_code == 0, done.stderr
    assert "cloze" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--by", "nobody"], "nobody"),
        (["--read", "nothing"], "nothing"),
        (["--read", "gsm8k:nothing"], "nothing"),
        (["--by", '{"name": "cloze", '], "JSON"),
        (["--alpha", "-1"], "alpha: "),
        (["--json", "/nowhere/answer.json"], "/nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_is_drawn(options, said):
    done = answer(*options)
    assert isinstance(done.exception, ValueError)
    assert said in str(done.exception)


@pytest.mark.parametrize(("options", "said"), [([], False), (["--read", "countdown"], True)])
def test_it_tells_when_nothing_could_be_read(options, said):
    assert ("read" in answer(*options).stderr) == said


def test_the_names_are_listed():
    done = CliRunner().invoke(app, ["names"])
    assert "self_certainty" in done.stdout
    assert "coupled" in done.stdout  # an estimator of `oddlm rl`

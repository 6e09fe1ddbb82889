"""SVAMP: both layouts of its file, questions in two parts, halves, and files that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from oddlm.tasks import find_task, gsm8k
from oddlm.tasks.base import Problem
from oddlm.tasks.jsonl import HALVES, in_half
from oddlm.tasks.svamp import TASK

ROWS: list[dict[str, Any]] = [
    {
        "ID": "chal-7",
        "Body": "A kiosk sold 12 lemons and 5 limes.",
        "Question": "How many fruits did it sell?",
        "Equation": "( 12.0 + 5.0 )",
        "Answer": 17.0,
        "Type": "Addition",
    },
    {
        "ID": "chal-8",
        "Body": "Nine boats need 36 oars. If each boat has as many oars",
        "Question": "How many oars are in a boat?",
        "Equation": "( 36.0 / 9.0 )",
        "Answer": 4.0,
        "Type": "Common-Division",
    },
    {
        "ID": "chal-9",
        "Body": "Of 1250 seats, 250 are taken ",
        "Question": " How many seats are free?",
        "Equation": "( 1250.0 - 250.0 )",
        "Answer": "1000.0",
        "Type": "Subtraction",
    },
]
QUESTIONS = [
    "A kiosk sold 12 lemons and 5 limes. How many fruits did it sell?",
    "Nine boats need 36 oars. If each boat has as many oars. How many oars are in a boat?",
    "Of 1250 seats, 250 are taken. How many seats are free?",
]


def written(folder: Path, name: str, rows: list[Any]) -> Path:
    path = folder / name
    lines = (json.dumps(row) + "\n" for row in rows)
    path.write_text(json.dumps(rows, indent=4) if path.suffix == ".json" else "".join(lines))
    return path


@pytest.mark.parametrize("name", ["SVAMP.json", "svamp.jsonl"])
def test_both_layouts_are_read(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, ROWS)
    assert TASK.load(data=path) == [
        Problem(f"svamp/{row['ID']}", question, float(row["Answer"]))
        for row, question in zip(ROWS, QUESTIONS, strict=True)
    ]
    assert len(TASK.load(data=path, limit=2)) == 2


def test_halves_are_those_of_gsm8k(tmp_path: Path) -> None:
    path = written(tmp_path, "SVAMP.json", ROWS)
    for split in HALVES:
        found = [problem.prompt for problem in TASK.load(data=path, split=split)]
        assert found == [question for question in QUESTIONS if in_half(question, split)]
    with pytest.raises(ValueError, match=r"'train'; known: tune, test"):
        TASK.load(data=path, split="train")


def test_prompts_and_scores_are_those_of_gsm8k(tmp_path: Path) -> None:
    problem = TASK.load(data=written(tmp_path, "SVAMP.json", ROWS))[2]
    for protocol in (None, "equations"):
        ours, theirs = TASK.under(protocol), gsm8k.TASK.under(protocol)
        assert ours.prompt(problem) == theirs.prompt(problem)
        assert (ours.length, ours.steps) == (theirs.length, theirs.steps)
        assert ours.score(problem, "1250-250=1000\n#### 1,000").correct
        assert ours.score(problem, "1250-250=1000").correct == (protocol is None)
    assert TASK.under("equations").prompt(problem) == QUESTIONS[2]
    assert find_task("svamp") is TASK


@pytest.mark.parametrize("name", ["bad.json", "bad.jsonl"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Answer": "many"}, "line 1: Answer 'many'"),
        ({"Answer": None}, "line 1: Answer None"),
        ({"Answer": float("nan")}, "line 1: Answer nan"),
        ({"Answer": 10**400}, "line 1: Answer 1000"),
        ({"Body": 3}, "line 1: Body is int"),
        ({"ID": None}, "line 1: ID is NoneType"),
        ({"ID": "chal-8"}, "line 2: ID 'chal-8' occurs twice"),
    ],
)
def test_bad_rows(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, name, [{**ROWS[0], **change}, *ROWS[1:]])
    with pytest.raises(ValueError, match=rf"{name}, {message}"):
        TASK.load(data=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must hold a list"),
        ("{}", "must hold a list"),
        ("[1]", "line 1: .*missing: ID, Body, Question, Answer"),
        ('[{"ID": "a", "Body": "b", "Answer": 1}]', "line 1: .*missing: Question"),
        ("[" * 100_000, "not JSON"),
        ("", "not JSON"),
    ],
)
def test_bad_lists(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"bad\.json.*{message}"):
        TASK.load(data=path)

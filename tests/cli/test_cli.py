"""The command line as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oddlm
from oddlm.cli import main
from oddlm.tasks.base import task_names


def run(*arguments: str, module: bool = False) -> subprocess.CompletedProcess[str]:
    script = str(Path(sys.executable).with_name("oddlm"))
    command = [sys.executable, "-m", "oddlm"] if module else [script]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=900, check=False
    )


def test_both_spellings_are_one_command():
    for module in (False, True):
        done = run("--version", module=module)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"oddlm {oddlm.__version__}\n"


def test_no_arguments_teach():
    done = run()
    assert "demo" in done.stdout + done.stderr


def test_demo_shows_that_the_samples_part():
    done = run("demo", "--model", "toy", "--n", "4", "--length", "8", "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert "untrained toy network" in done.stdout
    cells = [[cell.strip() for cell in line.split("│")[1:]] for line in done.stdout.splitlines()]
    texts = {cell[0]: cell[1] for cell in cells if len(cell) > 2}
    assert (texts["plain T0"], texts["odd α8 T0"]) == ("1", "4")


def test_demo_of_the_mini_model(tmp_path):
    picture = tmp_path / "curves.png"
    done = run("demo", "--seconds", "1", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "nan" not in done.stdout
    for title in ("countdown, 4 numbers", "compositions of 3 operations"):
        assert f"{title}: 1 problem" in done.stdout
    assert "dpp" in done.stdout
    assert "Pass@16" in done.stdout
    assert done.stdout.count("No conclusion from 1 problem") == 2
    assert "minus plain" not in done.stdout
    default = [line for line in done.stdout.splitlines() if line.startswith("odd (enough")]
    assert len(default) == 3, "the package's default, at every temperature"
    assert "✓ 7*19=133" in done.stdout, "correct samples are marked without colour, too"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_demo_of_an_unknown_model():
    done = run("demo", "--model", "maxi")
    assert done.returncode == 2
    assert "'maxi'; known: mini, toy\n" in done.stderr


def test_names_lists_everything_with_options():
    done = run("names")
    words = ("odd_sequential", "low_confidence", "max_pool", "cosine", "quality", "threshold=0.9")
    for word in words:
        assert word in done.stdout


def test_a_bad_value_is_one_line_without_a_traceback():
    done = run("demo", "--model", "toy", "--steps", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("oddlm: params.steps")
    assert done.stderr.count("\n") == 1


def test_tasks_are_listed():
    done = run("tasks")
    for word in ("countdown", "gsm8k", "humaneval", "minicode", "paper"):
        assert word in done.stdout


def test_members_of_a_family_are_listed():
    done = run("tasks", "reasoning_gym")
    assert {"reasoning_gym:chain_sum", "reasoning_gym:mini_sudoku"} <= set(done.stdout.split())
    assert run("tasks", "gsm8k").returncode == 2


def test_problems_are_shown_as_a_model_sees_them():
    done = run("problems", "countdown", "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("target: ") == 2


def test_answers_are_scored(tmp_path):
    answers, out = tmp_path / "answers.jsonl", tmp_path / "scored.jsonl"
    problems = tmp_path / "own.jsonl"
    problems.write_text(
        '{"id": "a", "prompt": "1 + 1 =", "target": 2}\n'
        '{"id": "b", "prompt": "2 + 2 =", "target": 4}\n'
    )
    answers.write_text(
        '{"id": "a", "text": "2"}\n'
        '{"id": "a", "text": "so 3"}\n'
        '{"id": "b", "text": "\\u0000 five"}\n'
    )
    done = run(
        "score", str(problems), "--scorer", "number", "--in", str(answers), "--out", str(out)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 3 answers" in done.stdout
    assert "33.3%" in done.stdout
    assert "1 of 2 problems" in done.stdout
    assert "50.0%" in done.stdout
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["id"], one["correct"], one["answer"]) for one in scored] == [
        ("a", True, "2"),
        ("a", False, "3"),
        ("b", False, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["problems", "gsm9k"], f"unknown task 'gsm9k'; known: {', '.join(task_names())}"),
        (
            ["problems", "gsm8k", "--protocol", "papr"],
            "task 'gsm8k' has no protocol 'papr'; known: 4-shot, d1, dream, equations, llada",
        ),
        (
            ["problems", "gsm8k", "--exclude-train"],
            "task 'gsm8k' has no option 'exclude_train'; options: data, limit, shots",
        ),
        (
            ["problems", "gsm8k", "--data", "nowhere.jsonl"],
            "cannot read nowhere.jsonl: No such file",
        ),
        (["problems", "own.jsonl"], "there is no file own.jsonl"),
        (["problems", "countdown", "--scorer", "exact"], "scorer 'exact' is for a .jsonl file"),
        (["problems", "countdown", "--limit", "0"], "limit must be at least 1, not 0"),
    ],
)
def test_bad_tasks_are_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"oddlm: {message}")
    assert done.stderr.count("\n") == 1


def test_an_answer_to_no_problem_is_named_by_line(tmp_path):
    answers = tmp_path / "answers.jsonl"
    answers.write_text('\n{"id": "countdown/1", "text": ""}\n')
    done = run("score", "countdown", "--in", str(answers), "--limit", "2")
    assert done.returncode == 2
    assert "line 2: there is no problem 'countdown/1'; ids are like countdown/" in done.stderr


def test_a_limit_beyond_the_data_is_said_and_all_are_used():
    done = run("problems", "countdown", "--limit", "501")
    assert done.returncode == 0
    assert done.stdout.count("target: ") == 500
    assert done.stderr.startswith("oddlm: limit 501 ")
    assert "500 problems" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_that_wait_sleep_soon_unless_told_otherwise(monkeypatch, capsys, given, spins):
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(sys, "argv", ["oddlm", "--version"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert os.environ.get("GOMP_SPINCOUNT") == spins

"""MATH-500: gold answers in several notations, equal values, and answers that never end."""

import json
import re
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from oddlm.tasks import latex, math500
from oddlm.tasks.base import Problem

from ..growth import LINEAR, growth

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "bench" / "math500.jsonl"
ENDLESS = "9^{9^{9^{9}}}"


def notations(answer):
    """The same answer as six writers would put it."""
    word = re.fullmatch(r"[A-Za-z()]+", answer)
    yield f"\\boxed{{{answer}}}"
    yield f"\\boxed{{1000000}}? No. The answer is $\\boxed{{ {answer} }}$."
    yield "\\[ \\boxed{" + answer.replace("\\frac", "\\dfrac") + "} \\]"
    yield "\\boxed{" + answer.replace("\\left", "").replace("\\right", "") + "}"
    yield "\\boxed{" + (f"\\text{{{answer}}}" if word else f"${answer}$") + "}"
    yield "\\fbox{" + answer.replace("{", "{ ").replace(",", ", ") + "}"


def test_every_gold_answer_equals_itself_in_six_notations():
    if not PUBLISHED.exists():
        pytest.skip("MATH-500 is not at ../shared/data/bench beside the repository")
    problems = math500.load(data=PUBLISHED)
    assert len(problems) == 500
    wrong = [
        (problem.target, text)
        for problem in problems
        for text in notations(problem.target)
        if not math500.score(problem, text).correct
    ]
    assert wrong == []


def test_the_answer_of_another_problem_is_wrong():
    if not PUBLISHED.exists():
        pytest.skip("MATH-500 is not at ../shared/data/bench beside the repository")
    problems = math500.load(data=PUBLISHED, limit=60)
    equal = {
        (one.target, other.target)
        for one, other in pairwise(problems)
        if math500.score(one, f"\\boxed{{{other.target}}}").correct
    }
    assert equal == {("5", "x=5")}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{3}{2}", "1.5"),
        (r"2\sqrt{5}", r"\sqrt{20}"),
        ("10,\\!080", "10080"),
        ("3, 5, 7", "7,5,3"),
        (r"90^\circ", "90"),
        ("x=5", "5"),
        ("p - q", "-q+p"),
        (r"1 \pm \sqrt{19}", r"1+\sqrt{19},1-\sqrt{19}"),
        (r"1\frac{4}{5}", "9/5"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"5.4 \text{ cents}", "5.4"),
    ],
)
def test_equal_values_are_right(gold, answer):
    assert latex.same(gold, answer)[0]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{3}{2}", r"\frac{2}{3}"),
        ("5", ""),
        ("5", "6"),
        ("(3,4]", "(3,4)"),
        (r"\text{Evelyn}", "Navin"),
        ("1", "__import__('os')._exit(0)"),
        ("1", "\0"),
        ("1", "\ud800"),
        ("1", "1" * 5000),
    ],
)
def test_others_are_wrong(gold, answer):
    assert not latex.same(gold, answer)[0]


def test_an_endless_computation_is_ended_and_others_go_on(monkeypatch):
    monkeypatch.setattr(latex, "TIMEOUT_S", 1)
    found = {}

    def judge(answer):
        found[answer] = latex.same("2", answer)

    threads = [threading.Thread(target=judge, args=[x]) for x in (ENDLESS, r"\frac{4}{2}")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[r"\frac{4}{2}"] == (True, "the same value")
    assert not found[ENDLESS][0]
    assert "1 s" in found[ENDLESS][1]
    assert latex.same("2", r"\frac{6}{3}")[0]


def test_a_process_that_dies_is_one_wrong_answer():
    assert latex.same("2", r"\frac{4}{2}")[0]
    idle = latex.JUDGES.idle
    while not idle.empty():
        judge = idle.get()
        judge.process.kill()
        judge.process.wait()
    idle.put(judge)
    assert not latex.same("2", r"\frac{4}{2}")[0]
    assert latex.same("2", r"\frac{4}{2}")[0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed {x}", "x"),
        (r"\boxed{}", ""),
        ("7", None),
        (r"\boxed{{1}", None),
    ],
)
def test_the_last_complete_box_counts(text, answer):
    assert latex.boxed(text) == answer
    assert (math500.score(Problem("p", "", "7"), text).answer) == answer


@pytest.mark.parametrize("unit", [r"\boxed{", r"\boxed ", "{", r"\boxed{}", "\\", " "])
def test_boxes_are_found_in_linear_time(unit):
    assert growth(latex.boxed, lambda size: unit * (size // len(unit)), 20_000) < LINEAR


def test_files_that_are_wrong(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"problem": "1 + 1?"}) + "\n")
    with pytest.raises(ValueError, match="answer"):
        math500.load(data=path)
    path.write_text(json.dumps({"problem": "1 + 1?", "answer": 2}) + "\n")
    with pytest.raises(ValueError, match="answer"):
        math500.load(data=path)

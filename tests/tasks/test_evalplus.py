"""HumanEval+ and MBPP+, on files of the published format made from problems of HumanEval."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from oddlm.tasks import evalplus, evalplus_judge, find_task, humaneval, humaneval_plus, mbpp_plus
from oddlm.tasks.base import Problem, problem_digest

PLUS = humaneval_plus.TASK
# By task_id: inputs of HumanEval's own tests, inputs beside them, and the tolerance.
INPUTS: dict[str, tuple[list[list[Any]], list[list[Any]], float]] = {
    "HumanEval/13": ([[3, 7], [10, 15]], [[0, 5], [49, 14]], 0),
    "HumanEval/32": ([[[1, 2]], [[-6, 11, -6, 1]]], [[[1.0, -3.0]]], 1e-4),
    "HumanEval/45": ([[5, 3], [2, 2]], [[1e200, 1e-200], [0.1, 0.2]], 0),
    "HumanEval/53": ([[0, 1], [1, 0]], [[-1000, 7], [math.inf, 1]], 0),
}
TUPLES = {  # in the form of MBPP+; the reference calls itself
    "task_id": "Mbpp/2",
    "prompt": '"""\nWrite a function.\nassert set(check((1, 2))) == {1, 2}\n"""\n',
    "entry_point": "check",
    "canonical_solution": "def check(t):\n    return t and check(t[1:]) + t[:1]\n",
    "base_input": [[[1, 2]]],
    "plus_input": [[[]], [[1, 2, 3]]],
    "atol": 0,
}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def published() -> list[dict[str, Any]]:
    found = []
    for problem in humaneval.load():
        if problem.id in INPUTS:
            base, plus, atol = INPUTS[problem.id]
            tests = problem.target
            found.append(
                {
                    "task_id": problem.id,
                    "prompt": tests.prompt,
                    "entry_point": tests.entry_point,
                    "canonical_solution": tests.canonical_solution,
                    "test": tests.test,
                    "contract": "",
                    "base_input": base,
                    "plus_input": plus,
                    "atol": atol,
                }
            )
    return found


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Problem]:
    path = write(tmp_path_factory.mktemp("evalplus") / "HumanEvalPlus-v0.1.10.jsonl", *published())
    return {problem.id: problem for problem in PLUS.problems(data=path)}


def test_reference_solutions_pass(problems: dict[str, Problem]) -> None:
    assert set(problems) == set(INPUTS)
    solutions = {one.id: one.target.canonical_solution for one in humaneval.load()}
    scores = {name: PLUS.score(one, solutions[name]) for name, one in problems.items()}
    assert [(name, score.detail) for name, score in scores.items() if not score.correct] == []


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        # The first is right for all inputs of HumanEval.
        ("HumanEval/53", "    return abs(x) + y", "input 3: expected -993"),
        ("HumanEval/13", "    return b if a == 0 else 1", "input 2: expected 5"),
        ("HumanEval/45", "    return a * h / 2 + 1e-5", "input 1: expected 7.5"),
        ("HumanEval/32", "    return 0.0", "input 1"),
        ("HumanEval/53", "    return 1 / (x + y - 1)", "ZeroDivisionError"),
        ("HumanEval/53", "    while x > 1 or y > 6: pass\n    return x + y", "longer than 1 s"),
    ],
)
def test_wrong_programs_fail_with_the_input(
    problems: dict[str, Problem], name: str, body: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = evalplus._setup().replace("LEAST_S, TIMES = 4.0, 4.0", "LEAST_S, TIMES = 1.0, 4.0")
    monkeypatch.setattr(evalplus, "_setup", lambda: setup)
    score = PLUS.score(problems[name], body)
    assert not score.correct
    assert reason in score.detail


def test_floats_may_differ_a_little_and_roots_may_be_others(problems: dict[str, Problem]) -> None:
    assert PLUS.score(problems["HumanEval/45"], "    return a * h / 2 * (1 + 1e-9)").correct
    newton = (
        "    x = 5.0\n    for _ in range(200):\n"
        "        slope = sum(i * c * x ** (i - 1) for i, c in enumerate(xs) if i)\n"
        "        x -= poly(xs, x) / slope\n    return x"
    )
    assert PLUS.score(problems["HumanEval/32"], newton).correct


def test_base_is_what_humaneval_itself_tests(problems: dict[str, Problem], tmp_path: Path) -> None:
    path = write(tmp_path / "plus.jsonl", *published())
    base = {one.id: one for one in PLUS.under("base").problems(data=path)}
    assert PLUS.score(base["HumanEval/53"], "    return abs(x) + y").correct
    digests = [problem_digest(PLUS, one["HumanEval/53"]) for one in (base, problems)]
    assert digests[0] != digests[1]
    assert "1000" not in repr(problems["HumanEval/53"].target), "inputs may be megabytes"


def test_mbpp_plus_reads_tuples_and_any_name(tmp_path: Path) -> None:
    task = find_task("mbpp_plus")
    (problem,) = task.problems(data=write(tmp_path / "MbppPlus.jsonl", TUPLES))
    assert "assert set(check((1, 2)))" in task.prompt(problem)
    assert task.score(problem, f"```python\n{TUPLES['canonical_solution']}```").correct
    assert task.score(problem, "def check(t):\n    return t + ()").correct is False
    program = "def check(t):\n    assert type(t) is tuple\n    return t[::-1]"
    assert task.score(problem, program).correct


def test_a_program_that_changes_its_arguments_is_judged_by_what_it_returns(
    tmp_path: Path,
) -> None:
    record = {**TUPLES, "task_id": "Mbpp/4", "entry_point": "largest"}
    record["canonical_solution"] = "def largest(v):\n    return sorted(v)[-1:]\n"
    (problem,) = mbpp_plus.TASK.problems(data=write(tmp_path / "a.jsonl", record))
    program = "def largest(v):\n    v.sort()\n    return v[-1:]"
    assert mbpp_plus.TASK.score(problem, program).correct


@pytest.mark.parametrize(
    ("task", "given", "wanted"),
    [
        ("HumanEval/2", [[[1]]], [[[1]]]),
        ("Mbpp/8", [[[1, 2]]], [[[1, 2]]]),
        ("Mbpp/2", [[[1], [2]]], [[(1,), (2,)]]),
        ("Mbpp/63", [[[[1, 2]]]], [[[(1, 2)]]]),
        ("Mbpp/75", [[[[1, 2]], 3]], [[[(1, 2)], 3]]),
        ("Mbpp/106", [[[1], [2]]], [[[1], (2,)]]),
        ("Mbpp/115", [[[[1, 1], []]]], [[[{1}, {}]]]),
        ("Mbpp/124", [["1", "1j"]], [[1.0, 1j]]),
        ("Mbpp/252", [["(3+4j)"]], [[3 + 4j]]),
        ("Mbpp/259", [[[[1], [2]]]], [[((1,), (2,))]]),
        ("Mbpp/278", [[[1, [2]]]], [[[1, (2,)]]]),
        ("Mbpp/307", [[[1], 2, 3]], [[(1,), 2, 3]]),
        ("Mbpp/580", [[[1, [2, [3]]]]], [[(1, (2, (3,)))]]),
        ("Mbpp/722", [[{"a": [1, 2]}, 3]], [[{"a": (1, 2)}, 3]]),
    ],
)
def test_inputs_become_pythons_own_types(task: str, given: Any, wanted: Any) -> None:
    assert evalplus_judge.converted(task, given) == wanted


@pytest.mark.parametrize(
    ("name", "arguments", "expected", "right", "wrong"),
    [
        ("sum_div", [8], 7, 0, 6),
        ("surface_Area", [3, 4], 33, 35, 34),
        ("digit_distance_nums", [12, 3], 1, 2, 3),
        ("check_str", ["a"], object(), True, None),
        ("Diff", [[1], [2]], [1, 2], [2, 1, 1], [1]),
    ],
)
def test_several_right_answers(
    name: str, arguments: list[Any], expected: Any, right: Any, wrong: Any
) -> None:
    judge = evalplus_judge.SPECIAL[name]
    assert [judge(one, expected, arguments, 0.0) for one in (right, wrong)] == [True, False]


def test_the_newest_file_of_the_cache_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"HumanEvalPlus-v.*get_human_eval_plus.*--data"):
        PLUS.problems()
    folder = tmp_path / "evalplus"
    folder.mkdir()
    for version in ("v0.1.9", "v0.1.10", "Mini-v0.1.11"):
        write(folder / f"HumanEvalPlus-{version}.jsonl", *published()[: len(version) - 4])
    assert evalplus.cached("HumanEvalPlus").name == "HumanEvalPlus-v0.1.10.jsonl"
    assert len(PLUS.problems()) == 3
    halves = [{one.id for one in PLUS.problems(split=half)} for half in ("tune", "test")]
    assert halves[0] ^ halves[1] == {one.id for one in PLUS.problems()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atol": "0"}, "line 1: atol is str"),
        ({"prompt": None}, "line 1: prompt is NoneType"),
        ({"base_input": [1]}, "line 1: base_input"),
        ({"plus_input": [[3]]}, "line 1: plus_input"),
        ({"entry_point": "a b"}, "line 1: "),
    ],
)
def test_bad_records(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mbpp_plus.TASK.problems(data=write(tmp_path / "a.jsonl", {**TUPLES, **change}))
    del (record := dict(TUPLES))["plus_input"]
    with pytest.raises(ValueError, match="missing: plus_input"):
        mbpp_plus.TASK.problems(data=write(tmp_path / "a.jsonl", record))

"""MBPP: every reference solution passes, as published and fenced, and broken ones do not."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oddlm.sandbox import SandboxError, jail
from oddlm.tasks import check_scoring, find_task, mbpp
from oddlm.tasks.base import Problem
from oddlm.tasks.mbpp import TASK

from .test_humaneval import load_mutants

BENCH = Path(__file__).parents[2] / ".." / "shared" / "data" / "bench"
ROW = {
    "task_id": 11,
    "text": "Write a function to add.",
    "code": "def add(a, b): return a + b",
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
}


def published(name: str) -> list[Problem]:
    if not (BENCH / name).is_file():
        pytest.skip(f"MBPP is not at ../shared/data/bench/{name} beside the repository")
    return TASK.load(data=BENCH / name, split="all")


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Solutions with classes, exceptions, effects, and results that are not plain data.
UNUSUAL = {f"mbpp/{number}" for number in (126, 367, 533, 596, 601, 927)}


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("name", "count"), [("mbpp.jsonl", 974), ("sanitized-mbpp.json", 427)])
def test_every_reference_solution_passes(
    name: str, count: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection; all solutions take minutes: see `make soak` and `benchmarks/verdicts.py`."""
    monkeypatch.setattr(
        mbpp, "TIMEOUT_S", 120.0
    )  # some solutions search for seconds; a busy machine takes longer
    problems = published(name)
    assert len(problems) == count
    problems = [
        problem for i, problem in enumerate(problems) if i % step == 0 or problem.id in UNUSUAL
    ]
    with ThreadPoolExecutor(2) as pool:
        scores = list(
            pool.map(
                lambda problem: TASK.score(problem, f"```python\n{problem.target.solution}\n```"),
                problems,
            )
        )
    assert [(p.id, s.detail) for p, s in zip(problems, scores, strict=True) if not s.correct] == []


def test_mutants_fail_with_reasons_unless_the_tests_pass_them_anywhere() -> None:
    """All of them: `python benchmarks/mutants.py mbpp`."""
    script = load_mutants()
    problems = published("mbpp.jsonl")[::80]
    chosen = [one for problem in problems for one in script.mutants(problem)][::10]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(script.survives, chosen))
    survivors = [one for one, (passed, _) in zip(chosen, results, strict=True) if passed]
    assert len(survivors) <= 0.5 * len(chosen)
    assert all(map(script.passes_plainly, survivors))
    assert all(len(detail) > 10 for _, detail in results)


def test_programs_that_say_nothing_fail() -> None:
    problems = published("mbpp.jsonl")[::50]
    for problem in problems:
        names = problem.target.trial.names
        for body in ("return None", "raise StopIteration", "raise SystemExit(0)"):
            program = "".join(f"def {name}(*args, **kwargs):\n    {body}\n" for name in names)
            assert not TASK.score(problem, program).correct, problem.id


def test_splits_are_the_published_ones(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mbpp.jsonl",
        *({**ROW, "task_id": i} for i in (1, 10, 11, 510, 511, 600, 601, 974)),
    )
    found = {
        split: [p.id for p in TASK.load(data=path, split=split)]
        for split in (None, "test", "tune", "train", "all")
    }
    assert found[None] == found["test"] == ["mbpp/11", "mbpp/510"]
    assert found["tune"] == ["mbpp/511", "mbpp/600"]
    assert found["train"] == ["mbpp/601", "mbpp/974"]
    assert len(found["all"]) == 8
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        TASK.load(data=path, split="dev")


def test_prompt_shows_the_tests(tmp_path: Path) -> None:
    (problem,) = TASK.load(data=write(tmp_path / "mbpp.jsonl", ROW))
    assert find_task("mbpp") is TASK
    for line in (ROW["text"], *ROW["test_list"]):
        assert line in TASK.prompt(problem)
    assert "return a + b" not in TASK.prompt(problem)


def test_names_come_from_the_published_solution(tmp_path: Path) -> None:
    """A function may shadow a builtin, and a class of the solution is used by reference."""
    code = "class Node:\n    def __init__(self, x): self.x = x\ndef sum(node): return node.x + 1"
    row = {
        **ROW,
        "code": code,
        "test_setup_code": "root = Node(1)\nroot.x = 5",
        "test_list": ["assert sum(root) == 6"],
    }
    (problem,) = TASK.load(data=write(tmp_path / "mbpp.jsonl", row))
    assert set(problem.target.trial.names) == {"Node", "sum"}
    assert problem.target.trial.by_reference == ("Node",)
    assert TASK.score(problem, code).correct
    assert not TASK.score(problem, code.replace("+ 1", "+ 2")).correct


def test_published_settings_are_those_of_the_sampler() -> None:
    found = TASK.under("llada").defaults
    assert (found.pop("length"), found.pop("steps"), found.pop("temperature")) == (256, 256, 0.0)
    assert found == {"policy": "low_confidence", "eos": "late"}
    assert TASK.defaults == {"length": 512}


def test_sanitized_problems_come_from_the_sanitized_file(tmp_path: Path) -> None:
    task = TASK.under("sanitized")
    row = {key: value for key, value in ROW.items() if key not in ("text", "test_setup_code")}
    row |= {"prompt": "Add.", "test_imports": ["import math"]}
    (problem,) = task.problems(data=write(tmp_path / "sanitized.jsonl", row))
    assert "Add." in task.prompt(problem)
    assert task.score(problem, ROW["code"]).correct
    with pytest.raises(ValueError, match=r"line 1: missing: prompt.*sanitized-mbpp\.json"):
        task.problems(data=write(tmp_path / "mbpp.jsonl", ROW))
    rows = [{**row, "task_id": number} for number in (2, 3, 4, 11)]
    shown = TASK.under("sanitized_3-shot")
    (problem,) = shown.problems(data=write(tmp_path / "shots.jsonl", *rows))
    assert shown.prompt(problem).count("[DONE]") == 3


def test_the_sanitized_half_is_another_config_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(repo: str, *, config: str, split: str) -> list[tuple[int, dict[str, Any]]]:
        asked.append((config, split))
        name = {"prompt": 2, "test": 11}[split]
        return [(1, {**ROW, "task_id": name + i, "prompt": "Add."}) for i in range(3)]

    monkeypatch.setattr(mbpp, "hub_rows", rows)
    assert len(TASK.problems()) == len(TASK.under("sanitized").problems()) == 3
    assert TASK.under("sanitized_3-shot").problems(limit=1)[0].id == "mbpp/11"
    assert asked == [
        ("full", "test"),
        *(("sanitized", part) for part in ("test", "prompt", "test")),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": "x"}, "line 1: task_id"),
        ({"text": 3}, "line 1: text is int"),
        ({"code": "def add(:"}, "line 1: .*the published solution"),
        ({"test_list": "assert add(1, 2) == 3"}, "line 1: test_list must be a list"),
        ({"test_list": ["assert add(1, 2"]}, "line 1: line 2: tests"),
        ({"test_list": ["assert True"]}, "line 1: line 1: "),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TASK.load(data=write(tmp_path / "mbpp.jsonl", {**ROW, **change}))


def test_bad_files(tmp_path: Path) -> None:
    for name, content in (
        ("a.json", "{"),
        ("b.json", '{"a": 1}'),
        ("c.jsonl", "[1]"),
        ("d.json", '[{"task_id": 11}]'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=name):
            TASK.load(data=tmp_path / name)
    with pytest.raises(ValueError, match="cannot read"):
        TASK.load(data=tmp_path / "none.json")


def test_refuses_to_score_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "mbpp.jsonl", ROW)
    monkeypatch.setattr(jail.shutil, "which", lambda _: None)
    with pytest.raises(SandboxError, match="bubblewrap"):
        check_scoring(TASK, unsafe=False)
    assert len(TASK.load(data=path)) == 1, "drawing samples needs no sandbox"
    (problem,) = TASK.load(data=path, unsafe=True)
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        assert TASK.score(problem, ROW["code"]).correct


def test_the_published_prompt_has_three_examples(tmp_path):
    rows = [{**ROW, "task_id": number, "text": f"Task {number}."} for number in (1, 2, 3, 4, 11)]
    task = TASK.under("3-shot")
    (problem,) = task.problems(data=write(tmp_path / "mbpp.jsonl", *rows))
    shown = task.prompt(problem)
    assert [n for n in (1, 2, 3, 4, 11) if f"Task {n}." in shown] == [2, 3, 4, 11]
    assert shown.count("[DONE]") == 3
    assert shown.endswith("[BEGIN]\n")
    solution = f"{ROW['code']}\n[DONE]\nYour next task: [BEGIN]\ndef add(a, b): return 0"
    assert task.score(problem, solution).correct
    assert not task.score(problem, f"[DONE]\n{ROW['code']}").correct
    with pytest.raises(ValueError, match=r"examples are missing.*4"):
        task.problems(data=write(tmp_path / "few.jsonl", *rows[:3], rows[-1]))

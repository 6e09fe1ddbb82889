"""Sudoku: puzzles with one solution each, grids found in texts, files that are wrong."""

import csv
from pathlib import Path

import pytest

from oddlm.tasks import sudoku
from oddlm.tasks.base import Problem

from ..growth import LINEAR, growth

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "bench" / "sudoku_4x4_test.csv"
PUZZLE, SOLUTION = "3102200002100320", "3142243142131324"
PROBLEM = Problem("p", PUZZLE, SOLUTION)
WRONG = SOLUTION[:2] + "3" + SOLUTION[3:]


def test_all_grids_are_there_and_follow_the_rules():
    grids = sudoku.grids()
    assert len(set(grids)) == len(grids) == 288
    for grid in grids:
        rows = [grid[i : i + 4] for i in range(0, 16, 4)]
        columns = [grid[j::4] for j in range(4)]
        boxes = [rows[i][j : j + 2] + rows[i + 1][j : j + 2] for i in (0, 2) for j in (0, 2)]
        assert all(sorted(part) == list("1234") for part in (*rows, *columns, *boxes))


def test_puzzles_are_made_by_rule():
    test, tune = sudoku.load(), sudoku.load(split="tune")
    assert sudoku.load(split="test") == test
    assert {problem.id for problem in test}.isdisjoint(problem.id for problem in tune)
    assert len(test) + len(tune) == sudoku.MADE
    for problem in test[:50]:
        assert sudoku.solutions(problem.prompt) == [problem.target]
        assert 6 <= problem.prompt.count("0") <= 12
        assert problem.prompt in sudoku.prompt(problem)


def test_published_puzzles_are_read():
    if not PUBLISHED.exists():
        pytest.skip("d1's puzzles are not at ../shared/data/bench beside the repository")
    problems = sudoku.load(data=PUBLISHED)
    with PUBLISHED.open() as file:
        assert [(p.prompt, p.target) for p in problems] == [
            (row["Puzzle"], row["Solution"]) for row in csv.DictReader(file)
        ]
    assert len(problems) == 500
    assert all(sudoku.score(p, f"<answer>{p.target}</answer>").correct for p in problems)


@pytest.mark.parametrize(
    "text",
    [
        f"<reasoning>{WRONG}</reasoning><answer>\n{SOLUTION}\n</answer>",
        f"The solved grid is {SOLUTION}.",
        f"First {WRONG}, no: {SOLUTION}",
        f"<answer>```\n{' '.join(SOLUTION)}\n```</answer>{WRONG}",
        f"<answer>{SOLUTION}",
        "3 1 | 4 2\n2 4 | 3 1\n----+----\n4 2 | 1 3\n1 3 | 2 4",
    ],
)
def test_a_right_grid_is_found(text):
    found = sudoku.score(PROBLEM, text)
    assert (found.correct, found.answer) == (True, SOLUTION)


def test_any_solution_is_right():
    puzzle = "3040413004000304"  # in d1's file, with the second
    found = sudoku.solutions(puzzle)
    assert len(found) == 2
    for solution in found:
        assert sudoku.score(Problem("p", puzzle, "3241413224131324"), solution).correct


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", None),
        (PUZZLE, None),
        (SOLUTION + "1", None),
        (SOLUTION[:-1], None),
        (f"{SOLUTION}<answer>I give up</answer>", None),
        (WRONG, WRONG),
        (f"{SOLUTION} or {WRONG}", WRONG),
    ],
)
def test_anything_else_is_wrong(text, answer):
    found = sudoku.score(PROBLEM, text)
    assert (found.correct, found.answer) == (False, answer)


def test_cells_are_counted():
    assert sudoku.score(PROBLEM, WRONG).detail.startswith("7 of 8")
    changed = "1" + SOLUTION[1:]
    assert "8 of 8" in sudoku.score(PROBLEM, changed).detail
    assert not sudoku.score(PROBLEM, changed).correct


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Puzzle,Solution"),
        ("a,b\n1,2\n", "Puzzle,Solution"),
        (f"Puzzle,Solution\n{PUZZLE},{SOLUTION}\n{PUZZLE},{WRONG}\n", "line 3"),
        (f"Puzzle,Solution\n{'0' * 16},{WRONG}\n", "must solve it"),
        (f"Puzzle,Solution\n{PUZZLE[1:]},{SOLUTION}\n", "line 2"),
        (f"Puzzle,Solution\n{PUZZLE}\n", "line 2"),
    ],
)
def test_files_that_are_wrong(tmp_path, content, message):
    path = tmp_path / "puzzles.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        sudoku.load(data=path)


@pytest.mark.parametrize("unit", ["1", "1 ", "1" + " " * 12, "<answer>", "1\n|", "1234 x "])
def test_grids_are_found_in_linear_time(unit):
    assert growth(sudoku.find_grid, lambda size: unit * (size // len(unit)), 20_000) < LINEAR

"""Sudoku: fill a grid of 4 x 4, given and returned as a row of 16 digits.

The format is that of d1 (Zhao et al. 2025, arXiv:2504.12216), whose test file can be given as data.
d1 reports the share of empty cells that are as in the published solution. Here a grid is right as a
whole, and since one in four of those puzzles has several solutions, any of them is.
"""

import csv
import io
import re
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path
from random import Random

from .base import Problem, Score, Task
from .jsonl import HALVES, file_bytes, first, in_half
from .published import d1

SIDE, CELLS = 4, 16
MADE, SEED = 1000, 0
# Digits in a row, or in a grid drawn with spaces, lines and bars. The gaps are bounded, so that
# matching takes linear time.
_GRID = re.compile(r"(?<!\d)[1-4](?:[ \t\r\n|+,-]{0,12}[1-4]){15}(?![\d])")


def load(
    *, data: Path | None = None, limit: int | None = None, split: str | None = None
) -> list[Problem]:
    """Return puzzles made by rule, with one solution each, or those of a file.

    data: a CSV file with the columns Puzzle and Solution, such as d1's 4x4_test_sudoku.csv.
    split: one half of the puzzles, tune or test (see `in_half`). Without it, all of a file, and the
        test half of those made by rule.
    """
    if data is None:
        pairs, split = made(), split or HALVES[1]
    else:
        pairs = tuple(_read(data))
    problems = [
        Problem(f"sudoku/{puzzle}", puzzle, solution)
        for puzzle, solution in pairs
        if in_half(puzzle, split)
    ]
    return first(problems, limit)


def _read(path: Path) -> Iterator[tuple[str, str]]:
    rows = csv.DictReader(io.StringIO(file_bytes(path).decode("utf-8-sig", "replace")))
    if not {"Puzzle", "Solution"} <= set(rows.fieldnames or ()):
        raise ValueError(f"{path} must begin with the line Puzzle,Solution")
    for row in rows:
        puzzle, solution = row["Puzzle"] or "", row["Solution"] or ""
        if not re.fullmatch("[0-4]{16}", puzzle) or solution not in solutions(puzzle):
            raise ValueError(
                f"{path}, line {rows.line_num}: {puzzle!r:.40} must have 16 digits of 0 to 4, and "
                f"{solution!r:.40} must solve it"
            )
        yield puzzle, solution


@cache
def grids() -> tuple[str, ...]:
    """Return all 288 complete grids."""
    rows = ["".join(row) for row in permutations("1234")]

    def extended(above: tuple[str, ...]) -> Iterator[str]:
        if len(above) == SIDE:
            yield "".join(above)
            return
        for row in rows:
            if _fits(above, row):
                yield from extended((*above, row))

    return tuple(extended(()))


def _fits(above: tuple[str, ...], row: str) -> bool:
    if any(row[j] == other[j] for other in above for j in range(SIDE)):
        return False
    if len(above) % 2 == 0:
        return True
    return all({row[j], row[j + 1]}.isdisjoint(above[-1][j : j + 2]) for j in (0, 2))


def solutions(puzzle: str) -> list[str]:
    """Return every complete grid that agrees with the given cells."""
    given = [(i, digit) for i, digit in enumerate(puzzle) if digit != "0"]
    return [grid for grid in grids() if all(grid[i] == digit for i, digit in given)]


@cache
def made() -> tuple[tuple[str, str], ...]:
    """Make different puzzles with 6 to 12 empty cells, each with its only solution."""
    random = Random(SEED)
    found: dict[str, str] = {}
    while len(found) < MADE:
        solution, empty = random.choice(grids()), random.randint(6, 12)
        puzzle = list(solution)
        for i in random.sample(range(CELLS), CELLS):
            if empty == 0:
                break
            digit, puzzle[i] = puzzle[i], "0"
            if len(solutions("".join(puzzle))) > 1:
                puzzle[i] = digit
            else:
                empty -= 1
        found["".join(puzzle)] = solution
    return tuple(found.items())


def prompt(problem: Problem) -> str:
    return (
        "Solve this 4x4 Sudoku. The grid is written as 16 digits, row by row from the top left; 0 "
        "is an empty cell. Every row, every column and every 2x2 box of the solved grid contains "
        "each of the digits 1 to 4 once.\n"
        "Give the solved grid as 16 digits without spaces between <answer> and </answer>.\n\n"
        f"Sudoku: {problem.prompt}\n"
    )


def ask(problem: Problem) -> str:
    rows = [problem.prompt[i : i + SIDE].replace("0", ".") for i in range(0, CELLS, SIDE)]
    return "Solve the Sudoku:\n" + "\n".join(" ".join(row) for row in rows)


def find_grid(text: str) -> str | None:
    """Return the last grid of a text: between <answer> tags, or else anywhere."""
    _, tag, rest = text.rpartition("<answer>")
    marked = rest.partition("</answer>")[0] if tag else text
    found = _GRID.findall(marked)
    return re.sub(r"\D", "", found[-1]) if found else None


def score(problem: Problem, text: str) -> Score:
    grid = find_grid(text)
    if grid is None:
        return Score(False, None, "no grid of 16 digits from 1 to 4")
    if grid in solutions(problem.prompt):
        return Score(True, grid, "a solution")
    cells = list(zip(problem.prompt, problem.target, grid, strict=True))
    empty = [(right, found) for given, right, found in cells if given == "0"]
    changed = sum(given not in ("0", found) for given, _, found in cells)
    same = sum(right == found for right, found in empty)
    detail = f"{same} of {len(empty)} empty cells are as in the solution"
    return Score(False, grid, f"{detail}, {changed} of the given ones are changed")


TASK = Task(
    "sudoku",
    load,
    prompt,
    score,
    length=64,
    read=find_grid,
    ask=ask,
    protocols={"d1": d1(256)},
)

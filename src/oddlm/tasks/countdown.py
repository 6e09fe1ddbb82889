"""Countdown: reach a target from given numbers with + - * /, every number used exactly once.

The text format and the rule that all numbers are used follow Stream of Search (Gandhi et al. 2024)
and "Beyond Autoregression" (Ye et al. 2024): `86,28,13,31,96` asks for 96 from the four numbers
before it, and `86+28=114,31-13=18,114-18=96` is an answer. Given numbers are 1 to 99, targets 10 to
100. Every step takes two of the available numbers (given numbers or results of earlier steps) and
puts back its result, an integer of at least 0; division must be exact. (Some gold answers of the
public files pass through 0, as in `32-32=0,41+0=41`; the problems generated here never need to.)
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from .base import Problem, Score, Task
from .jsonl import DEFAULT, EXPLORATION, first, read_jsonl, text_field

Split = Literal["train", "tune", "test"]

SIZES = (3, 4, 5)
TARGETS = (10, 100)
LARGEST_NUMBER = 99
LONGEST_ANSWER = 16  # steps
LARGEST_RESULT = 9999  # of a generated step; the checker has no such bound
OPERATORS = "+-*/"
# How often each operator is tried when it is possible. Products overshoot and quotients are rarely
# exact, so both are tried more often than sums to get a fair share of the problems that are kept.
WEIGHTS = np.array([1.0, 1.0, 2.0, 4.0])
BATCH = 8192
RULE = (
    "Reach the last number from the numbers before it with + - * /, "
    "every one of them used exactly once. Write only the steps."
)

_NUMBER = "(?:0|[1-9][0-9]{0,17})"  # plain ASCII digits, too few to make int() slow
_STEP = re.compile(f"({_NUMBER})([-+*/])({_NUMBER})=({_NUMBER})")
_INPUT = re.compile("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5}){2,10}")


def side(numbers: Sequence[int], target: int) -> Split:
    """Return the side of a problem, whatever the order of its numbers.

    The sides are 90 % train, 5 % tune and 5 % test. The side is a hash: the 8-byte blake2b digest
    of the ASCII text `13,28,31,86=96` (numbers ascending), read as a big-endian integer, modulo
    100. Below 90 is train, below 95 tune, the rest test.
    """
    text = ",".join(map(str, sorted(numbers))) + f"={target}"
    bucket = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % 100
    return "train" if bucket < 90 else "tune" if bucket < 95 else "test"


def stream(*, numbers: int = 4, split: Split = "train", seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (prompt, answer) pairs of one side forever.

    A problem may occur again with different steps.
    """
    for given, target, steps in _solved(numbers, split, seed):
        yield _shown(_written(given, target)), steps


def load(
    *,
    numbers: int = 4,
    split: Split | None = None,
    count: int = 500,
    seed: int = 0,
    data: Path | str | None = None,
    exclude_train: bool = False,
    limit: int | None = None,
) -> list[Problem]:
    """Return `count` different problems of one side, or the problems of a JSONL file.

    data: a file with lines like {"input": "86,28,13,31,96"}. It may hold problems that a model
    trained on `stream` has seen: a warning counts them, and `exclude_train` leaves them out.
    split: None is the test side, or the whole file. `numbers`, `count` and `seed` apply to
    generated problems only; `limit` keeps the first `limit` problems of either source.
    """
    _check_split(split)
    if data is None:
        return first(_generated(numbers, split or "test", count, seed), limit)
    problems = _read(Path(data), exclude_train)
    return first([problem for problem in problems if split in (None, _side(problem))], limit)


def prompt(problem: Problem) -> str:
    return _shown(problem.prompt)


def ask(problem: Problem) -> str:
    *numbers, target = problem.prompt.split(",")
    return (
        f"Reach {target} from {', '.join(numbers[:-1])} and {numbers[-1]} with + - * /, "
        "each number used exactly once."
    )


def few_shot_prompt(problem: Problem) -> str:
    """Return a prompt for a model not trained on the task: the rule and four worked examples.

    The examples are of the training side.
    """
    size = problem.prompt.count(",")
    worked = "".join(
        f"Input: {shown}Output: {steps}\n\n"
        for shown, steps in _worked(size if size in SIZES else 4)
    )
    return f"{RULE}\n\n{worked}Input: {problem.prompt}\nOutput:"


@cache
def _worked(numbers: int) -> tuple[tuple[str, str], ...]:
    return tuple(islice(stream(numbers=numbers), 4))


def score(problem: Problem, text: str) -> Score:
    """Score a text as right if its first line is a solution and nothing else.

    Before checking, white space around the text is removed, and so is everything from the first
    newline or the first `<` on (end markers such as <|endoftext|> and </s> begin with it, and no
    answer contains it). The rest must match exactly.
    """
    answer = _answer(text)
    *numbers, target = map(int, problem.prompt.split(","))
    fault = _fault(numbers, target, answer)
    readable = answer[:1000].encode(errors="replace").decode()
    return Score(
        fault is None, readable or None, fault or f"reaches {target} with every number used once"
    )


def read(text: str) -> str | None:
    """Return the steps of an answer in one order, with the operands of + and * in one order.

    Two answers are the same if they take the same steps.
    """
    steps = _answer(text).split(",", LONGEST_ANSWER)
    found = [_STEP.fullmatch(step) for step in steps]
    same = [
        f"{a}{operator}{b}={result}"
        for match in found
        if match is not None
        for operator, result in [(match[2], match[4])]
        for a, b in [sorted((match[1], match[3])) if operator in "+*" else (match[1], match[3])]
    ]
    return ",".join(sorted(same)) if len(same) == len(steps) else None


def _answer(text: str) -> str:
    return text.strip(" \t\r\n").partition("\n")[0].partition("<")[0].strip(" \t\r")


def _fault(numbers: Sequence[int], target: int, answer: str) -> str | None:
    """Return what is wrong with an answer, or None if it is right."""
    steps = answer.split(",", len(numbers))
    if len(steps) != len(numbers) - 1:
        found = "more" if len(steps) >= len(numbers) else len(steps)
        return f"{len(numbers) - 1} steps use every number once; this has {found}"
    there = list(numbers)
    for step in steps:
        match = _STEP.fullmatch(step)
        if match is None:
            return f"{step[:40]!r} is not a step like 86+28=114"
        left, right, result = int(match[1]), int(match[3]), int(match[4])
        for operand in (left, right):
            if operand not in there:
                return f"{step}: {operand} is not there; there are {', '.join(map(str, there))}"
            there.remove(operand)
        if not _holds(left, match[2], right, result):
            return f"{step} is wrong"
        there.append(result)
    return None if there == [target] else f"ends in {there[-1]}, not in {target}"


def _holds(left: int, operator: str, right: int, result: int) -> bool:
    if operator == "+":
        return left + right == result
    if operator == "-":
        return left - right == result
    if operator == "*":
        return left * right == result
    return right != 0 and result * right == left


def _written(numbers: Sequence[int], target: int) -> str:
    return ",".join(map(str, [*numbers, target]))


def _shown(problem: str) -> str:
    return problem + "\n"


def _check_split(split: str | None) -> None:
    if split is not None and split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}; known: {', '.join(get_args(Split))}")


def _solved(numbers: int, split: Split, seed: int) -> Iterator[tuple[list[int], int, str]]:
    """Yield (given numbers, target, steps) of one side forever."""
    if numbers not in SIZES:
        raise ValueError(f"numbers must be one of {', '.join(map(str, SIZES))}, not {numbers!r}")
    _check_split(split)
    generator = np.random.default_rng(seed)
    while True:
        given, steps = _draw(generator, numbers)
        for row, row_steps in zip(given, steps, strict=True):
            target = row_steps[-1][3]
            if side(row, target) == split:
                written = [f"{a}{OPERATORS[o]}{b}={c}" for a, o, b, c in row_steps]
                yield row, target, ",".join(written)


def _draw(
    generator: np.random.Generator, numbers: int
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Generate a batch of problems by playing at random.

    Two numbers are combined into one until a single number is left, the target. Return the numbers
    of each problem and its steps (left, operator, right, result). Plays with a target outside
    TARGETS or a result above LARGEST_RESULT are dropped.
    """
    rows = np.arange(BATCH)
    given = generator.integers(1, LARGEST_NUMBER + 1, size=(BATCH, numbers))
    there = given.copy()
    steps = np.empty((BATCH, numbers - 1, 4), dtype=np.int64)
    for turn, size in enumerate(range(numbers, 1, -1)):
        i = generator.integers(size, size=BATCH)
        j = (i + generator.integers(1, size, size=BATCH)) % size
        a, b = there[rows, i], there[rows, j]
        high, low = np.maximum(a, b), np.minimum(a, b)
        always = np.ones(BATCH, dtype=bool)
        possible = np.stack([always, high > low, always, high % low == 0], axis=1)
        race = generator.exponential(size=(BATCH, 4)) / WEIGHTS
        operator = np.where(possible, race, np.inf).argmin(axis=1)
        result = np.stack([a + b, high - low, a * b, high // low], axis=1)[rows, operator]
        ordered = (operator == 1) | (operator == 3)
        steps[:, turn] = np.stack(
            [np.where(ordered, high, a), operator, np.where(ordered, low, b), result], axis=1
        )
        there[rows, i] = result
        there[rows, j] = there[:, size - 1]
    results = steps[:, :, 3]
    target = results[:, -1]
    keep = (target >= TARGETS[0]) & (target <= TARGETS[1]) & (results <= LARGEST_RESULT).all(axis=1)
    return given[keep].tolist(), steps[keep].tolist()


def _generated(numbers: int, split: Split, count: int, seed: int) -> list[Problem]:
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    different = _different(_solved(numbers, split, seed))
    return [_problem(f"countdown/{text}", text) for text in islice(different, count)]


def _different(solved: Iterator[tuple[list[int], int, str]]) -> Iterator[str]:
    seen: set[tuple[int, ...]] = set()
    for given, target, _ in solved:
        key = (*sorted(given), target)
        if key not in seen:
            seen.add(key)
            yield _written(given, target)


def _problem(name: str, text: str) -> Problem:
    return Problem(id=name, prompt=text, target=int(text.rpartition(",")[2]))


def _read(path: Path, exclude_train: bool) -> list[Problem]:
    problems = [
        _problem(f"{path.name}:{number}", _input(path, number, record))
        for number, record in read_jsonl(path, ("input",))
    ]
    fresh = [problem for problem in problems if _side(problem) != "train"]
    if seen := len(problems) - len(fresh):
        what = "left out" if exclude_train else "kept; exclude_train leaves them out"
        warnings.warn(
            f"{seen} of the {len(problems)} problems of {path} are on the training side: {what}",
            stacklevel=3,
        )
    if not exclude_train:
        return problems
    if not fresh:
        raise ValueError(f"all problems of {path} are on the training side; none is left")
    return fresh


def _side(problem: Problem) -> Split:
    *numbers, target = map(int, problem.prompt.split(","))
    return side(numbers, target)


def _input(path: Path, number: int, record: dict[str, Any]) -> str:
    text = text_field(path, number, record, "input").replace(" ", "")
    if not _INPUT.fullmatch(text):
        expected = '{"input": "86,28,13,31,96"}, numbers of up to 6 digits and the target last'
        raise ValueError(f"{path}, line {number}: expected {expected}")
    return text


def _separate(numbers: int, seed: int) -> dict[str, Any]:
    """Return the fields of a protocol for choosing settings (docs/exploration.md, docs/default.md).

    It has separate problems, and 8 tokens of the mini model for each step of an answer.
    """
    length = 8 * (numbers - 1)
    return {
        "load": partial(load, numbers=numbers, seed=seed),
        "length": length,
        "steps": length // 2,
    }


# The length allows one token per character: three steps of at most 13, two commas, an end token.
TASK = Task(
    name="countdown",
    load=load,
    prompt=prompt,
    score=score,
    length=48,
    read=read,
    ask=ask,
    protocols={
        "few_shot": {"prompt": few_shot_prompt},
        "3_numbers": {"load": partial(load, numbers=3)},
        "5_numbers": {"load": partial(load, numbers=5)},
        **{f"exploration_{numbers}": _separate(numbers, EXPLORATION) for numbers in SIZES},
        **{f"default_{numbers}": _separate(numbers, DEFAULT) for numbers in SIZES},
    },
)

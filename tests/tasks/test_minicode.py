import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from hashlib import blake2b
from itertools import islice, permutations
from random import Random
from typing import Any

import pytest

from oddlm.tasks import Problem, find_task
from oddlm.tasks.minicode import TASK, Target, load, score, side, stream
from oddlm.tasks.minicode.grammar import UNDEFINED, Step, draw, probes, values
from oddlm.tasks.minicode.operations import OPERATIONS, Operation
from oddlm.tasks.minicode.reading import read_answer
from oddlm.tasks.minicode.writing import tokens, write_body, write_prompt


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return load()


def function_of(program: str) -> Callable[[Any], Any]:
    """Run a program and return its f; only called on trusted programs."""
    names: dict[str, Any] = {}
    exec(compile(program, "<canonical>", "exec"), names)
    return names["f"]


def same(function: Callable[[Any], Any], argument: Any, expected: Any) -> bool:
    try:
        result = function(deepcopy(argument))
    except (ValueError, IndexError, TypeError, AttributeError):
        return False
    return type(result) is type(expected) and result == expected


def passes(function: Callable[[Any], Any], target: Target) -> bool:
    return all(same(function, argument, expected) for (argument,), expected in target.checks)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_way_to_write_an_operation_means_the_same(operation: Operation) -> None:
    tried = 0
    for parameter in operation.parameters:
        step = Step(operation, parameter)
        expected = values((step,))
        for code in operation.code:
            written = code.replace("#", repr(parameter)).replace("@", "v")
            function = eval(f"lambda v: {written}")
            for value, result in zip(probes(operation.takes), expected, strict=True):
                if result is not UNDEFINED:
                    assert same(function, value, result), (written, value, result)
                    tried += 1
    assert tried >= 20 * len(operation.code)


def test_names_and_phrases_are_unique_and_parameters_are_said() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    phrases = Counter(
        (operation.takes, phrase) for operation in OPERATIONS for phrase in operation.phrases
    )
    assert phrases.most_common(1)[0][1] == 1
    for operation in OPERATIONS:
        parametrised = operation.parameters != (None,)
        assert len(operation.phrases) >= 2
        assert all(("#" in text) == parametrised for text in (*operation.phrases, *operation.code))
        assert all("@" in code for code in operation.code)


@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_bodies_compute_their_compositions(split: str) -> None:
    random = Random(11)
    for _ in range(1500):
        composition = draw(random, split)
        program = write_prompt(composition, random) + write_body(composition, random)
        function = function_of(program)
        inputs = probes(composition[0].operation.takes)
        for value, expected in zip(inputs, values(composition), strict=True):
            assert expected is UNDEFINED or same(function, value, expected), (
                program,
                value,
                expected,
            )


def test_many_bodies_and_phrasings_of_one_composition() -> None:
    random = Random(2)
    composition = draw(random, "train")
    while len(composition) < 3 or composition[0].operation.name != "ints.keep_even":
        composition = draw(random, "train")
    assert len({write_body(composition, random) for _ in range(500)}) >= 20
    assert len({write_prompt(composition, random) for _ in range(500)}) >= 20


def test_styles_of_bodies() -> None:
    bodies = [body for _, body in islice(stream(seed=4), 3000)]
    lines = Counter(min(body.count("\n"), 4) for body in bodies)
    assert min(lines[n] for n in (1, 2, 3, 4)) > 60
    assert sum("out.append(" in body for body in bodies) > 150
    assert sum(bool(re.search(r"\[.* for .* if ", body)) for body in bodies) > 150
    assert len(set(bodies)) > 1500


def test_text_stays_small() -> None:
    pairs = list(islice(stream(seed=5), 3000))
    assert sum(tokens(body) <= 48 for _, body in pairs) >= 0.99 * len(pairs)
    assert max(tokens(body) for _, body in pairs) <= TASK.length
    assert max(tokens(prompt) for prompt, _ in pairs) <= 60
    assert {
        text
        for pair in pairs
        for line in pair
        for text in re.findall(r"\d+", line)
        if int(text) > 999
    } == set()
    assert all(text.isascii() for pair in pairs for text in pair)
    vocabulary = Counter(
        word for pair in pairs for text in pair for word in re.findall(r"\w+|[^\w\s]", text)
    )
    assert len(vocabulary) < 400


def test_benchmark_has_enough_problems_and_checks(problems: list[Problem]) -> None:
    assert len(problems) == len({problem.id for problem in problems}) == 200
    assert min(len(problem.target.checks) for problem in problems) >= 6
    depths = Counter(problem.id.count("+") + 1 for problem in problems)
    assert set(depths) == {1, 2, 3}
    assert depths[2] + depths[3] > 0.9 * len(problems)
    assert len({problem.prompt.split('"""')[0] for problem in problems}) >= 8


def test_solutions_pass(problems: list[Problem]) -> None:
    for problem in problems:
        assert passes(function_of(problem.prompt + problem.target.solution), problem.target), (
            problem
        )


def constant(result: Any, _: Any) -> Any:
    return result


def test_identity_and_constants_fail(problems: list[Problem]) -> None:
    for problem in problems:
        assert not passes(lambda value: value, problem.target), problem
        for _, expected in problem.target.checks:
            assert not passes(partial(constant, expected), problem.target), problem


def shorter_functions(takes: str, gives: str, depth: int) -> Iterator[tuple[Step, ...]]:
    """All chains of fewer than `depth` operations (at most 2) from one kind to another."""
    for operation in OPERATIONS:
        for step in [
            Step(operation, parameter)
            for parameter in operation.parameters
            if operation.takes == takes
        ]:
            if depth > 1 and operation.gives == gives:
                yield (step,)
            for later in OPERATIONS if depth > 2 else ():
                if later.takes == operation.gives and later.gives == gives:
                    yield from ((step, Step(later, parameter)) for parameter in later.parameters)


def run(chain: tuple[Step, ...], value: Any) -> Any:
    for step in chain:
        value = step.operation.run(value, step.parameter)
    return value


def test_no_shorter_composition_passes(problems: list[Problem]) -> None:
    by_name = {operation.name: operation for operation in OPERATIONS}
    tried = 0
    for problem in problems:
        names = [text.partition("(")[0] for text in problem.id.removeprefix("minicode/").split("+")]
        for chain in shorter_functions(
            by_name[names[0]].takes, by_name[names[-1]].gives, len(names)
        ):
            assert not passes(partial(run, chain), problem.target), (problem, chain)
            tried += 1
    assert tried > 100_000


def test_checks_are_small_plain_data(problems: list[Problem]) -> None:
    for problem in problems:
        for arguments, expected in problem.target.checks:
            assert len(arguments) == 1
            for value in (*arguments, expected):
                assert all(-99 <= int(text) <= 999 for text in re.findall(r"-?\d+", repr(value)))
                assert len(repr(value)) < 300


def test_sides_hold_out_whole_compositions_in_any_order(problems: list[Problem]) -> None:
    def names(text: str) -> list[str]:
        return re.sub(r"\(.*?\)", "", text.removeprefix("minicode/")).split("+")

    assert {side(order) for problem in problems for order in permutations(names(problem.id))} == {
        "test"
    }
    assert {side(names(problem.id)) for problem in load(split="tune", count=40)} == {"tune"}
    random = Random(0)
    trained = {
        tuple(sorted(step.operation.name for step in draw(random, "train"))) for _ in range(20_000)
    }
    held_out = {tuple(sorted(names(problem.id))) for problem in problems}
    assert len(trained) > 5000
    assert len(held_out) == len(problems)
    assert not trained & held_out


def test_training_text_never_holds_a_test_prompt(problems: list[Problem]) -> None:
    assert not {prompt for prompt, _ in islice(stream(seed=9), 20_000)} & {
        problem.prompt for problem in problems
    }


def test_side_is_the_published_function() -> None:
    bucket = (
        int.from_bytes(blake2b(b"ints.add+ints.keep_even+ints.sum", digest_size=8).digest(), "big")
        % 100
    )
    expected = "train" if bucket < 80 else "tune" if bucket < 88 else "test"
    assert side(["ints.keep_even", "ints.add", "ints.sum"]) == expected
    shares = Counter(
        side([a.name, b.name]) for a in OPERATIONS for b in OPERATIONS if a.name < b.name
    )
    assert shares["train"] / shares.total() == pytest.approx(0.80, abs=0.02)
    assert shares["test"] / shares.total() == pytest.approx(0.12, abs=0.02)


def test_same_seed_same_text() -> None:
    assert list(islice(stream(seed=3), 50)) == list(islice(stream(seed=3), 50))
    assert list(islice(stream(seed=3), 50)) != list(islice(stream(seed=4), 50))
    assert load(count=10, seed=1) == load(count=20, seed=1)[:10] == load(count=20, seed=1, limit=10)
    assert load(count=10, seed=1) != load(count=10, seed=2)


@pytest.mark.parametrize("operations", [2, 3])
def test_so_many_operations(operations: int) -> None:
    found = load(operations=operations, count=20)
    assert {problem.id.count("+") for problem in found} == {operations - 1}
    for problem in found:
        assert passes(function_of(problem.prompt + problem.target.solution), problem.target), (
            problem
        )
    bodies = [body for _, body in islice(stream(operations=operations), 5)]
    assert len(set(bodies)) == 5


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"operations .*1, 2, 3.*not 4"):
        load(operations=4)
    with pytest.raises(ValueError, match=r"10 problems with 1 operation on the test side.* 200"):
        load(operations=1)
    with pytest.raises(ValueError, match=r"split 'dev'; known: train, tune, test"):
        load(split="dev")
    with pytest.raises(ValueError, match="split 'dev'"):
        next(stream(split="dev"))
    with pytest.raises(ValueError, match=r"count .*1000, not 0"):
        load(count=0)
    with pytest.raises(ValueError, match=r"limit .*not 0"):
        load(limit=0)
    with pytest.warns(UserWarning, match=r"limit 9 .*3 problems"):
        assert len(load(count=3, limit=9)) == 3


PROMPT = (
    "def f(xs: list[int]) -> int:\n"
    '    """Keep the even numbers. Add 3 to each number. Find the sum."""\n'
)
BODY = "    xs = [x for x in xs if x % 2 == 0]\n    xs = [x + 3 for x in xs]\n    return sum(xs)\n"
LOOP = "    t = 0\n    for x in xs:\n        if x % 2 == 0:\n            t += x + 3\n    return t\n"
FLAT = "xs = [x for x in xs if x % 2 == 0]\nxs = [x + 3 for x in xs]\nreturn sum(xs)\n"
FLAT_LOOP = "t = 0\nfor x in xs:\n    if x % 2 == 0:\n        t += x + 3\nreturn t\n"
LONG = "    return sum(\n        x + 3\n        for x in xs\n        if x % 2 == 0\n    )\n"
OWN = (
    "def f(vs):\n    total = 0\n    for v in vs:\n        if v % 2 == 0:\n"
    "            total += v + 3\n    return total\n"
)
HELPED = "import math\n\ndef even(x):\n    return math.fmod(x, 2) == 0\n\n" + OWN.replace(
    "v % 2 == 0", "even(v)"
)
PROSE = "\nThis keeps the even numbers and adds them up.\nfor example f([2]) is 5.\n"


@pytest.mark.parametrize(
    "code", [BODY, LOOP, FLAT, FLAT_LOOP, LONG, OWN, HELPED, PROMPT + BODY, PROMPT + LOOP]
)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "{}" + PROSE,
        "\n\n{}\n\n" + PROSE,
        "```python\n{}```",
        "```\n{}```" + PROSE,
        "Here is the function:\n\n```py\n{}\n```\nIt works.\n\n```python\nf([1])\n```\n",
        "```python\n{}",
        "{}```\n" + PROSE,
        "{}<|endoftext|>return 1",
        "{}</s>",
        "Sure, this is the answer.\n{}",
    ],
)
def test_reads_the_program_out_of_text(code: str, around: str) -> None:
    answer = read_answer(around.format(code), PROMPT)
    assert answer is not None
    function = function_of(answer[1])
    assert [function(xs) for xs in ([], [1], [2], [2, 3, 4])] == [0, 0, 5, 12]


@pytest.mark.parametrize("code", [BODY, LOOP, LONG, PROMPT + BODY])
@pytest.mark.parametrize(
    "change",
    [str.strip, lambda code: code.replace("    ", "\t"), lambda code: code.replace("\n", "\r\n")],
)
def test_reads_stripped_tabbed_and_carriage_returned_text(
    code: str, change: Callable[[str], str]
) -> None:
    answer = read_answer(change(code), PROMPT)
    assert answer is not None
    assert function_of(answer[1])([2, 3, 4]) == 12


def test_reads_a_loop_whose_first_line_lost_its_indentation() -> None:
    answer = read_answer(
        "for x in xs:\n        if x % 2 == 0:\n            return x\n    return 0\nDone.", PROMPT
    )
    assert answer is not None
    assert function_of(answer[1])([1, 4]) == 4
    assert function_of(answer[1])([1]) == 0


def test_reads_a_one_line_fence() -> None:
    assert read_answer("```return sum(xs)```", PROMPT) == (
        "    return sum(xs)\n",
        PROMPT + "    return sum(xs)\n",
    )


def test_all_solutions_are_read_as_they_are(problems: list[Problem]) -> None:
    for problem in problems:
        solution = problem.target.solution
        assert read_answer(solution, problem.prompt) == (solution, problem.prompt + solution)
        stripped = read_answer(solution.strip(), problem.prompt)
        assert stripped is not None
        assert passes(function_of(stripped[1]), problem.target), problem


@pytest.mark.parametrize(
    "text",
    ["", " \n\t\n", "\x0c", "I do not know.", "```", "```python\n```", "<|endoftext|>    return 1"],
)
def test_no_code_is_a_scored_failure(problems: list[Problem], text: str) -> None:
    verdict = score(problems[0], text)
    assert (verdict.correct, verdict.answer) == (False, None)
    assert "no code" in verdict.detail


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("    return '\x00'\n", "not valid text"),
        ("    return '\ud800'\n", "not valid text"),
        ("    return " + "(" * 1_000_000, "longer than"),
        ("    x = 1\n" * 100_000, "longer than"),
        ("    return " + "9" * 1_000_000, "longer than"),
        ("def f(" * 200_000, "longer than"),
        ("import x\n" * 100_000 + "def f(x):\n  return 1", "longer than"),
    ],
)
def test_hostile_text_is_a_scored_failure(problems: list[Problem], text: str, reason: str) -> None:
    verdict = score(problems[0], text)
    assert not verdict.correct
    assert reason in verdict.detail
    assert verdict.answer is not None
    assert len(verdict.answer.encode()) < 100_000


@pytest.mark.parametrize(
    "piece",
    [
        "\n",
        " ",
        "```",
        "\t",
        "a.",
        "\ud800",
        "\x00",
        "a, ",
        "return\n ",
        "    ",
        "(",
        ")\n",
        "\r",
        "<",
    ],
)
def test_reading_never_raises(piece: str) -> None:
    answer = read_answer(piece * (1_000_000 // len(piece)), PROMPT)
    assert answer is None or answer[1].startswith(PROMPT)


def test_found_by_name_and_needs_no_torch() -> None:
    assert find_task("minicode") is TASK
    code = (
        "import sys, oddlm.tasks.minicode, oddlm.tasks.countdown; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

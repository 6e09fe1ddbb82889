"""GSM8K: gold answers, awkward completions labelled by hand, and the authors' rule."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.tasks.base import Problem, Task, find_task
from oddlm.tasks.gsm8k import SHOTS, TASK, gold, paper_number
from oddlm.tasks.scoring import find_number

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k_test.jsonl"
PAPER = TASK.under("paper")
EQUATIONS = TASK.under("equations")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    if not DATA.exists():
        pytest.skip(
            "GSM8K's test split is not at ../shared/data/gsm8k_test.jsonl beside the repository"
        )
    return [json.loads(line) for line in DATA.read_text().splitlines()]


def test_all_1319_gold_answers_are_read_right(rows: list[dict[str, str]]) -> None:
    problems = TASK.load(data=DATA)
    assert len(problems) == 1319
    for problem, row in zip(problems, rows, strict=True):
        value = row["answer"].split("####")[1].strip().replace(",", "")
        assert find_number(row["answer"]) == float(value) == problem.target
        assert TASK.score(problem, row["answer"]).correct
        assert EQUATIONS.score(problem, row["answer"]).correct
        assert PAPER.score(problem, row["answer"]).correct or problem.target < 0


def test_the_bare_last_number_is_right_where_the_solution_ends_in_it(
    rows: list[dict[str, str]],
) -> None:
    """Without the marker, 1283 gold solutions end in the right number.

    Others end in a different one ("... 9 points in the 40 minutes").
    """
    right = sum(find_number(row["answer"].split("####")[0]) == gold(row["answer"]) for row in rows)
    assert right >= 1283


def test_paper_protocol_takes_the_first_200(rows: list[dict[str, str]]) -> None:
    problems = PAPER.load(data=DATA)
    assert [problem.prompt for problem in problems] == [row["question"] for row in rows[:200]]
    assert len(PAPER.load(data=DATA, limit=3)) == 3


AWKWARD = [
    # text, the number a reader takes from it
    ("She makes 9 * 2 = $18 every day at the farmer's market.", 18),
    ("So the answer is -5.", -5),
    ("The temperature is -5 degrees.", -5),
    ("He owes money: 3 - 8 = -5", -5),
    ("3 - 8 = \u22125", -5),
    ("He is at -$5.", -5),
    ("He is at $-5.", -5),
    ("There are 16 - 3 - 4", 4),
    ("16-3-4=9", 9),
    ("There are 5-10", 10),
    ("It costs $1,234.50 in total.", 1234.5),
    ("The profit is $70,000", 70000),
    ("The profit is 1,234,567 dollars.", 1234567),
    ("#### 1,000", 1000),
    ("#### -12", -12),
    ("#### $42.", 42),
    ("#### 18\nI checked it 2 times.", 18),
    ("First #### 3 but no, 2 + 2 = 4.\n#### 4", 4),
    ("#### 6 * 7 = 42", 42),
    ("So we get \\boxed{42}. This took 3 steps.", 42),
    ("\\boxed{\\$1{,}250}", 1250),
    ("\\boxed{18\\text{ eggs}}", 18),
    ("$\\boxed{-\\frac{1}{2}}$", -0.5),
    ("The answer is 7, since there are 3 cats and 4 dogs.", 7),
    ("The answer is **7** (3 cats + 4 dogs).", 7),
    ("The final answer is: $540. He runs 3 times a week.", 540),
    ("The answer is 3 + 4 = 7", 7),
    (
        (
            "**Answer:** 18 eggs\n\n"
            "This follows from 16 - 3 - 4 = 9 and 9 * 2 = 18, with 2 dollars for 1 egg."
        ),
        18,
    ),
    ("Answer: Janet has 16 eggs, eats 3 and bakes 4, so she sells 9.", 9),
    ("It takes 0.5 hours", 0.5),
    ("It takes .5 hours.", 0.5),
    ("It takes 2 1/2 hours", 2.5),
    ("He eats 3/4 of the cake", 0.75),
    ("That is 25% of the class.", 25),
    ("The area is 12 cm2", 12),
    ("The area is 12 m^2.", 12),
    ("He weighs 70kg", 70),
    ("She arrives at 5:00 PM", 5),
    ("The total is \u20ac1,500.00.", 1500),
    ("The net proceeds are $400 000 - $282 000 = $118 000.", 118000),
    ("Tom has 5 apples, 10 pears, 15 plums", 15),
    ("1,2,3", 3),
    ("The answer is 18.00", 18),
    ("She needs 1.2e3 grams", 1200),
    ("- 5 apples\n- 8 pears", 8),
    ("I do not know.", None),
    ("", None),
    ("\\boxed{} so it is 12", 12),
    ("####", None),
]


@pytest.mark.parametrize(("text", "number"), AWKWARD)
def test_awkward_completion(text: str, number: float | None) -> None:
    assert find_number(text) == number
    if number is not None:
        assert TASK.score(Problem("x", "", number), text).correct
        assert not TASK.score(Problem("x", "", number + 1), text).correct


def test_there_are_forty_awkward_completions() -> None:
    assert len({text for text, _ in AWKWARD}) >= 40


DIFFERENT = [
    # text, our number, the number by the authors' rule
    ("The temperature is -5", -5, 5),  # their sign counts only before a decimal
    ("The temperature is -5.5", -5.5, -5.5),
    ("It fell from 3-1.5", 1.5, -1.5),  # and then even where it subtracts
    ("#### 18\nI checked it 2 times.", 18, 2),
    ("The answer is 7, since there are 3 cats and 4 dogs.", 7, 4),
    ("\\boxed{42} in 3 steps", 42, 3),
    ("He has 5, 10", 10, 10),
    ("1,2,3", 3, 123),  # they delete every comma
    ("She arrives at 5:00", 5, 0),
    ("He eats 3/4", 0.75, 4),
    ("The area is 12 m^2", 12, 2),
    ("1.2e3", 1200, 3),
    ("no number", None, None),
]


@pytest.mark.parametrize(("text", "ours", "theirs"), DIFFERENT)
def test_paper_rule(text: str, ours: float | None, theirs: float | None) -> None:
    assert find_number(text) == ours
    assert paper_number(text) == theirs
    for task, number in ((TASK, ours), (PAPER, theirs)):
        if number is not None:
            assert task.score(Problem("x", "", number), text).correct


def test_paper_tolerance() -> None:
    problem = Problem("x", "", 2.0)
    assert PAPER.score(problem, "2.00009").correct
    assert not PAPER.score(problem, "2.00011").correct


def test_prompts_and_lengths() -> None:
    problem = Problem("x", "How many?", 1)
    assert PAPER.prompt(problem) == "Question: How many?\nLet's think step by step.\nAnswer:"
    assert (PAPER.length, PAPER.steps, TASK.steps) == (64, 32, None)
    assert find_task("gsm8k") is TASK
    with pytest.raises(ValueError, match=r"'papers'; known: 4-shot, .*, paper$"):
        TASK.under("papers")


EQUATION_ANSWERS = [
    # text, the number after the last ####
    ("48/2=24\n48+24=72\n#### 72", 72),
    ("48/2=24\n48+24=72\n####72", 72),
    ("3-8=-5\n#### -5", -5),
    ("#### 1,004", 1004),
    ("#### 3\n2+2=4\n#### 4", 4),
    ("#### 2+2=4", 4),
    ("#### 18 eggs\n1+1=2", 18),
    ("48/2=24\n48+24=72", None),
    ("The answer is 72", None),
    ("\\boxed{72}", None),
    ("#### 72\n####", None),
    ("####\n72", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "number"), EQUATION_ANSWERS)
def test_equations_are_scored_by_the_number_after_the_last_mark(
    text: str, number: float | None
) -> None:
    found = EQUATIONS.score(Problem("x", "", 72.0 if number is None else number), text)
    assert found.correct == (number is not None)
    assert found.answer == (None if number is None else str(number))
    assert "####" in found.detail or number is not None


def test_equations_take_the_bare_question_of_the_whole_split(tiny: Path) -> None:
    problems = EQUATIONS.load(data=tiny)
    assert [EQUATIONS.prompt(problem) for problem in problems] == ["1 + 1?", "2 + 2?"]
    assert (EQUATIONS.length, EQUATIONS.steps) == (64, 32)
    assert len(EQUATIONS.load(data=tiny, limit=1)) == 1


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.jsonl"
    path.write_text(
        '{"question": "1 + 1?", "answer": "It is 2.\\n#### 2"}\n\n'
        '{"question": "2 + 2?", "answer": "#### 1,004"}\n'
    )
    return path


def test_four_shot(tiny: Path) -> None:
    task = TASK.under("4-shot")
    prompt = task.prompt(task.load(data=tiny)[0])
    assert prompt.count("Question: ") == prompt.count("Answer:") == 5
    assert prompt.startswith("Question: Angelo and Melanie")
    assert prompt.endswith(
        "The answer is 146\n\nQuestion: 1 + 1?\nLet's think step by step.\nAnswer:"
    )
    own = task.prompt(task.load(data=tiny, shots=tiny)[1])
    assert own.count("Question: ") == 3
    assert "1 + 1?" in own


def test_worked_examples_are_right() -> None:
    answers = [json.loads(line)["answer"] for line in SHOTS.read_text().splitlines()]
    assert [find_number(answer) for answer in answers] == [4, 201, 140, 146]
    sums = re.findall(r"([\d.]+(?: [-+*/] [\d.]+)+) = ([\d.]*\d)", "\n".join(answers))
    assert len(sums) == 26
    for left, right in sums:
        assert math.isclose(eval(left), float(right))


def test_targets_and_limit(tiny: Path) -> None:
    assert [(p.id, p.prompt, p.target) for p in TASK.load(data=tiny)] == [
        ("gsm8k/0", "1 + 1?", 2),
        ("gsm8k/1", "2 + 2?", 1004),
    ]
    assert len(TASK.load(data=tiny, limit=1)) == 1
    with pytest.warns(UserWarning, match=r"limit 9 .*2 problems"):
        assert len(TASK.load(data=tiny, limit=9)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"bad\.jsonl is empty"),
        (b"\n\n", r"bad\.jsonl is empty"),
        (b'{"question": "q", "answer": "#### 1"}\n{"question"\n', "line 2: not JSON"),
        (b'{"question": "q"}\n', "line 1: .*missing: answer"),
        (b"[1]\n", "line 1: .*missing: question, answer"),
        (b'{"question": "q", "answer": "no mark"}\n', "line 1: .*####"),
        (b'{"question": 3, "answer": "#### 1"}\n', "line 1: question is int"),
        (b'{"question": "q\xff", "answer": "#### 1"}\n', "line 1: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_bad_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        TASK.load(data=path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none.jsonl: No such file"):
        TASK.load(data=tmp_path / "none.jsonl")


@pytest.mark.parametrize("how", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_hub_out_of_reach_says_what_to_do(tmp_path: Path, how: dict[str, str]) -> None:
    code = "from oddlm.tasks.gsm8k import TASK\ntry: TASK.load()\nexcept ValueError as e: print(e)"
    environment = os.environ | {"HF_HOME": str(tmp_path)} | how
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout.startswith("cannot fetch openai/gsm8k"), done.stderr
    assert "--data FILE" in done.stdout
    assert "Retrying" not in done.stderr


REPEATED = (
    "9",
    "-",
    "1,",
    "answer is ",
    "\\frac{",
    "1/",
    "#### ",
    "$1 ",
    "\\boxed{",
    "answer:",
    "1 ",
    " ",
    "1e",
    "word ",
    "\n",
)


@pytest.mark.parametrize("task", [TASK, PAPER, EQUATIONS], ids=["ours", "paper", "equations"])
@pytest.mark.parametrize(
    "text",
    ["\0" * 10, "\ud800 18 \0", *(part * (10**6 // len(part)) for part in REPEATED)],
    ids=range(17),
)
def test_hostile_text_is_scored(task: Task, text: str) -> None:
    assert task.score(Problem("x", "", 18.25), text).correct is False


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_scored(text: str) -> None:
    for task in (TASK, PAPER, EQUATIONS):
        assert isinstance(task.score(Problem("x", "", 3.0), text).correct, bool)


@given(st.integers(-(10**12), 10**12))
def test_any_integer_is_read_back(value: int) -> None:
    for text in (
        f"= {value}",
        f"#### {value:,}",
        f"The answer is {value}.",
        f"\\boxed{{{value}}}",
        f"so {value:,} eggs",
    ):
        assert find_number(text) == value

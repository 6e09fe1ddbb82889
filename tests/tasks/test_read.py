"""Readings: equal answers are equal, whatever the text around them; hostile texts end in time."""

import time
from pathlib import Path

import pytest

from oddlm.tasks import find_task
from oddlm.tasks.base import task_names
from oddlm.tasks.custom import jsonl_task

SAME = {
    "countdown": ["86+28=114,31-13=18,114-18=96", "31-13=18,28+86=114,114-18=96\n"],
    "gsm8k": ["So the answer is 1,200.", "... #### 1200", "Answer: $1200"],
    "math500": [r"\boxed{\dfrac12}", r"So $\boxed{\frac{1}{2}}$."],
    "minicode": ["return [x + 1 for x in xs]", "    return [item+1 for item in xs]"],
    "sudoku": ["<answer>1234341221434321</answer>", "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"],
    "mbpp": ["```python\ndef f(a):\n    return a\n```", "def f(b):\n    # the same\n    return b"],
}
OTHER = {
    "countdown": "28-86=58,31-13=18,114-18=96",
    "gsm8k": "#### 12",
    "math500": r"\boxed{2}",
    "minicode": "return [x - 1 for x in xs]",
    "sudoku": "1234341243212143",
    "mbpp": "def f(a):\n    return -a",
}
NOTHING = {
    "countdown": "86+28",
    "gsm8k": "no idea",
    "math500": "no box",
    "minicode": " ",
    "sudoku": "1234",
    "mbpp": "\n",
}


@pytest.mark.parametrize("name", SAME)
def test_equal_answers_are_equal(name):
    read = find_task(name).read
    assert len({read(text) for text in SAME[name]}) == 1
    assert read(SAME[name][0]) is not None
    assert read(OTHER[name]) not in (None, read(SAME[name][0]))
    assert read(NOTHING[name]) is None


@pytest.mark.parametrize("name", task_names())
def test_every_task_reads_and_hostile_texts_end_in_time(name):
    task = find_task(name)
    for protocol in (None, *task.protocols):
        read = task.under(protocol).read
        assert read is not None
        for text in ("(" * 30_000, "1+1=2," * 30_000, "9" * 100_000, "\\boxed{" * 5_000, "\ud800"):
            began = time.perf_counter()
            found = read(text)
            assert found is None or isinstance(found, str)
            assert time.perf_counter() - began < 20


def test_a_protocol_may_read_otherwise():
    task = find_task("gsm8k")
    text = "1+1=2\n#### 2\nand then 7"
    assert task.under("equations").read(text) == "2"
    assert task.under("paper").read(text) == "7"


@pytest.mark.parametrize(
    ("scorer", "text", "reading"),
    [("exact", " a b\n", "a b"), ("number", "it is 7.0", "7"), ("python", " ", None)],
)
def test_files_of_ones_own(tmp_path: Path, scorer, text, reading):
    task = jsonl_task(tmp_path / "own.jsonl", score=scorer)
    assert task.read(text) == reading

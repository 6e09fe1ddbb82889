"""Reading answers: linear in their length, whatever they are made of."""

import pytest

from oddlm.sandbox.inside.program import choose
from oddlm.tasks.gsm8k import paper_number
from oddlm.tasks.programs import LONGEST, codes_in, readings
from oddlm.tasks.scoring import find_number

from ..growth import LINEAR, growth

PIECES = [
    "answer is" + " " * 50 + "x",
    "answer is",
    "answer",
    " ",
    "\t",
    "a",
    "1",
    "1,111",
    "1 ",
    "1/",
    "1.",
    "$1 111 ",
    "-",
    "\\frac{",
    "\\frac{1}{",
    "\\text{",
    "\\boxed{",
    "####",
    "#### ",
    "answer:",
    "answer*",
    "**",
    "(",
    "```",
    "``` ",
    "```a",
    "`",
    "\n```\n",
    "\n```python\n",
    '"""',
    "'''",
    "\n",
    "def f(x):\n",
    "    ",
    "\n    x",
    "{",
    "}",
    "=",
    "€",
    "\u202f1",
    ":00",
    "<think>",
    "</think>",
    "<think></think>",
    "\ufeff",
    ">>> x = 1\n",
    "...\n",
    ">>>",
    "\n    def f(x):\n",
    "\n\n\tdef f(x): x\n",
    "@\n",
    "\u2028",
]
PREFIXES = [
    "",
    "the answer is",
    "```",
    "```python\n",
    "#### ",
    "\\frac{1}{",
    "answer:",
    "<think>",
    ">>> def f(x):\n",
]


def read(prompt: str, text: str) -> tuple[str, ...]:
    return readings(prompt, codes_in(text, prompt))


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(
    "function",
    [
        find_number,
        paper_number,
        lambda text: read("def f(x):\n", text),
        lambda text: read("```python\n", text),
    ],
    ids=["find_number", "paper_number", "readings", "readings in a fence"],
)
def test_reading_is_linear(function, piece: str) -> None:
    for prefix in PREFIXES:

        def make(size: int, prefix: str = prefix) -> str:
            return prefix + piece * (size // len(piece)) + "x`"

        assert (
            growth(function, make, 1_000, repeats=1) < LINEAR
            or growth(function, make, 1_000) < LINEAR
        ), prefix


@pytest.mark.parametrize(
    "text", ["answer is" + " " * 1_000_000 + "x", "```" + "a" * 1_000_000 + "`", "```\n" * 300_000]
)
def test_a_megabyte_is_read(text: str) -> None:
    assert find_number(text) is None
    assert read("", text)


ANSWER = (
    "<think>\n</think>" + "```python\ndef f(x):\n    return {}\n```\n>>> x = 1\n\n    def f(x): x\n"
)


@pytest.mark.parametrize("count", [1, 50, 5_000])
def test_readings_are_few_and_no_longer_than_the_sandbox_takes(count: int) -> None:
    text = "".join(ANSWER.replace("{}", str(i)) for i in range(count))
    for answer in (text, f"x{text}", text + "</think>" * count, text + "x" * LONGEST):
        found = read("def f(x):\n", answer)
        assert 0 < len(found) <= 512
        assert len(found) == 1 or sum(map(len, found)) <= LONGEST


@pytest.mark.parametrize(
    "piece",
    ["x\n", "def g(): pass\n", "x = = 1\n", "f(1)\n", "    x\n", "def f(x):\n    def g(): pass\n"],
)
def test_choosing_is_linear(piece: str) -> None:
    def make(size: int) -> tuple[str, ...]:
        return read("def f(x):\n", "    return x\n" + piece * (size // len(piece)))

    def chosen(sources: tuple[str, ...]) -> None:
        assert choose(sources, ("f",))

    assert growth(chosen, make, 1_000, repeats=1) < LINEAR or growth(chosen, make, 1_000) < LINEAR

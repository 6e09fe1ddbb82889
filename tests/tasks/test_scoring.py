"""Reading answers: linear in their length, whatever they are made of."""

import pytest

from oddlm.tasks.gsm8k import paper_number
from oddlm.tasks.scoring import code_of, codes_in, fenced, find_number, readings

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
]
PREFIXES = ["", "the answer is", "```", "```python\n", "#### ", "\\frac{1}{", "answer:"]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(
    "read",
    [find_number, paper_number, lambda text: readings("def f(x):\n", codes_in(text))],
    ids=["find_number", "paper_number", "readings"],
)
def test_reading_is_linear(read, piece: str) -> None:
    for prefix in PREFIXES:

        def make(size: int, prefix: str = prefix) -> str:
            return prefix + piece * (size // len(piece)) + "x`"

        assert growth(read, make, 1_000, repeats=1) < LINEAR or growth(read, make, 1_000) < LINEAR, prefix


@pytest.mark.parametrize("text", ["answer is" + " " * 1_000_000 + "x", "```" + "a" * 1_000_000 + "`", "```\n" * 300_000])
def test_a_megabyte_is_read(text: str) -> None:
    assert find_number(text) is None
    assert readings("", codes_in(text))


BLOCKS = [
    ("no fence", "no fence"),
    ("```python\nx\n```", "x\n"),
    ("a\n```\nx\n```\nb", "x\n"),
    ("```bash\npip install x\n```\n```python\ny\n```", "y\n"),
    ("```text\nx\n```", "x\n"),
    ("```python\nx", "x"),
    ("    return 1\n```\nwords", "    return 1\n"),
    ('def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1\n', None),
    (
        '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```',
        'def f():\n    """\n    ```\n    f()\n    ```\n    """\n',
    ),
    ("```{python}\nx\n```", "x\n"),
    ("```Python3 title\nx\n```", "x\n"),
    ("  ```py\n  x\n  ```", "  x\n"),
    ("```python\r\nx\r\n```\r\n", "x\r\n"),
    ("inline ```code``` here", "inline ```code``` here"),
]


@pytest.mark.parametrize(("text", "code"), BLOCKS)
def test_code_of(text: str, code: str | None) -> None:
    assert code_of(text) == (text if code is None else code)
    assert text in codes_in(text) or fenced(text), "the whole text stays a possibility where a quote hides a fence"


def test_two_blocks_are_read_apart_and_together() -> None:
    text = "```python\na = 1\n```\nthen\n```python\nb = a\n```"
    assert codes_in(text)[:3] == ("a = 1\n", "b = a\n", "a = 1\n\nb = a\n")

"""From an answer to a program: every shape of answer is read as the program its author meant."""

import json
from pathlib import Path
from typing import Any

import pytest

from oddlm.sandbox import run_python
from oddlm.tasks import humaneval
from oddlm.tasks.base import Problem, Task
from oddlm.tasks.custom import jsonl_task
from oddlm.tasks.programs import codes_in, fenced


def own_task(folder: Path, prompt: str, tests: str, **fields: Any) -> tuple[Task, Problem]:
    path = folder / "own.jsonl"
    path.write_text(json.dumps({"prompt": prompt, "target": tests, **fields}) + "\n")
    task = jsonl_task(path, score="python")
    return task, task.load()[0]


PLAIN = "def double(x):\n"
IMPORTS = (
    "import math\nfrom typing import List\n\nPI = 3\n\n\n"
    "def triple(x):\n    return 3 * x\n\n\ndef double(x: List[int]):\n"
)
OPEN = "Write double(x).\n\n```python\n"
BEGUN = "Complete this function.\n\n```python\nimport math\n\ndef double(x):\n"
WHOLE = "def double(x):\n    return 2 * x\n"

SHAPES = {  # a prompt and an answer to it
    "own imports": (PLAIN, "import operator\n\ndef double(x):\n    return operator.add(x, x)"),
    "own typing": (
        IMPORTS,
        "from typing import Any\n\ndef double(x: Any) -> Any:\n    return x + x",
    ),
    "imports of the prompt": (IMPORTS, "def double(x: List[int]):\n    return math.floor(x + x)"),
    "helpers of the prompt": (
        IMPORTS,
        "```python\ndef double(x):\n    return triple(x) - x + PI - 3\n```",
    ),
    "body with helpers of the prompt": (IMPORTS, "    return triple(x) - x"),
    "flush body with helpers of the prompt": (IMPORTS, "y = triple(x)\nreturn y - x"),
    "helper of its own before": (
        IMPORTS,
        "def twice(x):\n    return x + x\n\ndef double(x):\n    return twice(x)",
    ),
    "helper of its own after": (PLAIN, "    return twice(x)\n\ndef twice(x):\n    return x + x"),
    "decorated header": ("import functools\n\n@functools.cache\ndef double(x):\n", WHOLE),
    "header that breaks off in a line": ("def double(x):\n    return ", "2 * x"),
    "header that breaks off, whole answer": (
        "import math\ndef double(x):\n    return ",
        "def double(x): return math.floor(2 * x)",
    ),
    "header without a line end": ("def double(x):", "y = x\nreturn x + y"),
    "header with the first indent": ("def double(x):\n    ", "y = x\nreturn x + y"),
    "words before the header": (
        "Complete this function.\n\nimport math\ndef double(x):\n",
        "    return math.floor(2 * x)",
    ),
    "whole answer indented": (PLAIN, "    def double(x):\n        return 2 * x\n"),
    "whole answer indented, imports": (
        PLAIN,
        "    import math\n\n    def double(x):\n        return math.floor(2 * x)\n",
    ),
    "indented block in prose": (
        "Write double(x).",
        "Sure, this does it:\n\n    def double(x):\n        return 2 * x\n\nEnjoy it!",
    ),
    "block indented by a tab": (
        PLAIN,
        "Here you are.\n\n\tdef double(x):\n\t\treturn 2 * x\n\nEnjoy it!",
    ),
    "thoughts": (
        PLAIN,
        "<think>\nTwo times x?\n```python\ndef double(x): return x\n```\n</think>\n" + WHOLE,
    ),
    "thoughts without a beginning": (
        PLAIN,
        "Well, is it this?\n```\ndef double(x): return x\n```\n</think>\n\n" + WHOLE,
    ),
    "thoughts and a fence": (
        "Write double(x).",
        f"\n<think>Hm.</think>Here:\n```python\n{WHOLE}```",
    ),
    "thoughts on one line": (PLAIN, "<think>easy</think>    return 2 * x"),
    "thoughts that name their end": (
        PLAIN,
        "<think>I close with </think>, then write.</think>\n" + WHOLE,
    ),
    "thoughts in the program": (PLAIN, "    return 2 * x if '</think>' else 0"),
    "thoughts, and in the program": (
        PLAIN,
        "<think>Hm.</think>\ndef double(x):\n    return 2 * x if '</think>' else 0",
    ),
    "byte order mark": (PLAIN, "\ufeff" + WHOLE),
    "byte order mark in a fence": ("Write double(x).", f"```python\n\ufeff{WHOLE}```"),
    "session": (PLAIN, ">>> def double(x):\n...     return 2 * x\n...\n>>> double(2)\n4\n"),
    "session in prose": (
        "Write double(x).",
        "Try it:\n\n>>> def double(x):\n...     return 2 * x\n... \n>>> double(2)\n4\n\nEnjoy.",
    ),
    "fenced session": (
        PLAIN,
        "```pycon\n>>> import math\n>>> def double(x):\n...     return math.floor(2 * x)\n...\n```",
    ),
    "indented session": (PLAIN, "    >>> def double(x):\n    ...     return 2 * x\n"),
    "demonstration before the program": (
        PLAIN,
        f"```\n>>> double(2)\n4\n>>> y = double(3)\n```\n```python\n{WHOLE}```",
    ),
    "doctest at the left edge": (
        PLAIN,
        'def double(x):\n    """\n>>> y = double(2)\n4\n    """\n    return 2 * x',
    ),
    "open fence": (OPEN, f"{WHOLE}```"),
    "open fence, never closed": (OPEN, WHOLE),
    "open fence, then an example": (
        OPEN,
        f"{WHOLE}```\n\nFor example:\n\n```python\ndouble(boom)\n```\nIt doubles.",
    ),
    "open fence, opened again": (OPEN, f"```python\n{WHOLE}```\nIt doubles."),
    "open fence, a word before": (BEGUN, f"Sure:\n```python\n{WHOLE}```\nBye."),
    "open fence, an indented body, prose": (
        BEGUN,
        (
            "    import operator as o\n\n    def g(y):\n"
            "        return o.add(y, y)\n    return g(x)\n\nIt works."
        ),
    ),
    "open fence, a body": (BEGUN, "    return math.floor(2 * x)\n```\nIt doubles."),
    "open fence, a flush body": (BEGUN, "y = math.floor(x)\nreturn y + x\n```\n"),
    "open fence, a whole function": (BEGUN, "def double(x):\n    return math.floor(2 * x)\n```\n"),
    "line separators, then prose": (
        PLAIN,
        "    # \u2028 \u2028 \x0c \u2028\n    return 2 * x\n\nThis doubles a number.\n",
    ),
}


@pytest.mark.parametrize(("prompt", "answer"), SHAPES.values(), ids=SHAPES)
def test_shape_of_an_answer(tmp_path: Path, prompt: str, answer: str) -> None:
    task, problem = own_task(tmp_path, prompt, "assert double(2) == 4\nassert double(-1) == -2")
    score = task.score(problem, answer)
    assert score.correct, score.detail


@pytest.mark.parametrize(
    "answer", ["y = x\nv.append(y)", "y = x\n    v.append(y)", "    y = x\n    v.append(y)"]
)
def test_no_line_of_a_body_is_taken_for_prose(tmp_path: Path, answer: str) -> None:
    task, problem = own_task(tmp_path, "def push(v, x):\n", "v = []\npush(v, 1)\nassert v == [1]")
    score = task.score(problem, answer)
    assert score.correct, score.detail


def test_a_flush_body_of_a_method(tmp_path: Path) -> None:
    task, problem = own_task(
        tmp_path,
        "class Stack(list):\n    def push(self, x):\n",
        "s = Stack()\ns.push(1)\nassert s.pop() == 1",
    )
    score = task.score(problem, "y = x\nself.append(y)")
    assert score.correct, score.detail


NO_BODY = {
    "another function": "def other(x):\n    return 2 * x",
    "another function, indented": "    def other(x):\n        return 2 * x",
    "another function with its imports": (
        "import math\n\ndef other(x):\n    return math.floor(2 * x)"
    ),
    "a class": "class Solution:\n    def nothing(self, x):\n        return None",
    "a thought that does not end": (
        "<think>\nMaybe this?\n```python\ndef nothing(x):\n    return None\n```"
    ),
}


@pytest.mark.parametrize("answer", NO_BODY.values(), ids=NO_BODY)
@pytest.mark.parametrize(
    "prompt",
    ["def nothing(x):\n", 'def nothing(x):\n    """Return None."""\n'],
    ids=["bare", "documented"],
)
def test_definitions_alone_are_no_body(tmp_path: Path, prompt: str, answer: str) -> None:
    """The tests expect None, which a function without a body returns as well."""
    task, problem = own_task(tmp_path, prompt, "assert nothing(1) is None")
    score = task.score(problem, answer)
    assert not score.correct
    assert "'nothing'" in score.detail or not score.answer
    assert task.score(problem, "    def other(): pass\n    return None").correct
    assert task.score(problem, "    pass").correct


def test_a_body_of_definitions_is_none_in_a_program_either() -> None:
    program = "def nothing(x):\n    import math\n    'Nothing.'\n    def other(): return math.pi\n"
    verdict = run_python((program,), "assert nothing(1) is None", tidy=True)
    assert not verdict.passed
    assert "no body" in verdict.detail


GIVEN = {  # a prompt, tests that need what it gives, a right answer
    "a module": (
        "import math\nPI = 3\ndef f(x):\n",
        "assert f(math.pi) == 2 * math.pi > 2 * PI",
        "    return 2 * x",
    ),
    "a module by another name": (
        "import math as m\n\ndef f(x):\n",
        "assert f(m.pi) == 2 * m.pi",
        "    return 2 * x",
    ),
    "a part of a module": (
        "import os.path\n\ndef f(x):\n",
        "assert f(1) == len(os.path.sep) * 2",
        "    return 2 * x",
    ),
    "a class": (
        "from collections import deque, OrderedDict\n\ndef f(x):\n",
        "q = deque([1])\nq.append(2)\nassert f(q) == deque([2, 4]) and isinstance(f(q), deque)",
        "    return deque(2 * y for y in x)",
    ),
    "constants": (
        "PI = 3\nTABLE: dict = {\n    'a': [1, -2],\n}\n\ndef f(x):\n",
        "assert f(PI) == 6 and f(TABLE['a'][1]) == -4",
        "def f(x): return 2 * x",
    ),
    "an import in words": (
        (
            "Write f(x), which doubles. You may use\n\nimport math as m\n"
            "from fractions import Fraction\n\nif you like."
        ),
        "assert f(m.inf) == m.inf and f(Fraction(1, 2)) == Fraction(1)",
        "def f(x): return 2 * x",
    ),
    "in an open fence": (
        "Do it.\n```python\nfrom math import pi\ndef f(x):\n",
        "assert f(pi) == 2 * pi",
        "def f(x): return 2 * x\n```",
    ),
}


@pytest.mark.parametrize(("prompt", "tests", "answer"), GIVEN.values(), ids=GIVEN)
def test_what_the_prompt_gives_serves_the_tests(
    tmp_path: Path, prompt: str, tests: str, answer: str
) -> None:
    task, problem = own_task(tmp_path, prompt, tests)
    assert problem.target.trial.names == ("f",)
    score = task.score(problem, answer)
    assert score.correct, score.detail
    assert not task.score(problem, "def f(x): return 3 * x").correct


def test_a_program_cannot_replace_a_constant_of_the_prompt(tmp_path: Path) -> None:
    task, problem = own_task(tmp_path, "SIDE = 4\n\ndef area(n):\n", "assert area(3) == 3 * SIDE")
    assert task.score(problem, "    return n * SIDE").correct
    assert not task.score(problem, "SIDE = 0\n\ndef area(n):\n    return 0").correct


@pytest.mark.parametrize(
    "answer", ["    return 2 * x", "def double(x):\n    return math.floor(2 * x)"]
)
def test_humaneval_prompts_need_no_docstring(tmp_path: Path, answer: str) -> None:
    row = {
        "task_id": "a",
        "prompt": "import math\n\ndef double(x):\n",
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
    }
    path = tmp_path / "problems.jsonl"
    path.write_text(
        json.dumps({**row, "test": "def check(f):\n    assert f(3) == math.floor(6.5)"}) + "\n"
    )
    (problem,) = humaneval.TASK.load(data=path)
    score = humaneval.TASK.score(problem, answer)
    assert score.correct, score.detail


def test_what_the_program_has_to_define_is_not_taken_from_the_prompt(tmp_path: Path) -> None:
    """A name that the prompt imports and then defines belongs to the program.

    Values that only running code would produce are not given to the tests.
    """
    prompt = "import json\nfrom math import gcd\nLIMIT = max(3, 4)\nEXAMPLE = 1\n\ndef gcd(a, b):\n"
    _, problem = own_task(tmp_path, prompt, "assert gcd(4, 6) == 2 and LIMIT == 4")
    assert set(problem.target.trial.names) == {"gcd", "LIMIT"}
    assert problem.target.trial.setup == ""


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
def test_the_likeliest_code(text: str, code: str | None) -> None:
    assert codes_in(text)[0] == (text if code is None else code)
    assert text in codes_in(text) or fenced(text), (
        "the whole text stays a possibility where a quote hides a fence"
    )


def test_two_blocks_are_read_apart_and_together() -> None:
    text = "```python\na = 1\n```\nthen\n```python\nb = a\n```"
    assert codes_in(text)[:3] == ("a = 1\n", "b = a\n", "a = 1\n\nb = a\n")

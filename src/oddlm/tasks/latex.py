"""Whether two answers in LaTeX are the same: by their spelling, or else by math-verify.

math-verify computes with what a model wrote, so it runs in processes with limits (judges.py). Only
its reading of LaTeX is used: its reading of plain expressions evaluates them as Python.
"""

import re
from collections.abc import Callable
from importlib.util import find_spec

from .judges import Judges, NoAnswerError

TIMEOUT_S = 5
LONGEST = 1000  # characters of an answer

_SPELLINGS = (
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), ""),
    (re.compile(r"(?<=\d),(?:\\!|\s|\{\})*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[!,;: ]|\\\$|\\%|[$~\s]"), ""),
)


def spelled(answer: str) -> str:
    """Return an answer without what does not change its meaning."""
    for pattern, plain in _SPELLINGS:
        answer = pattern.sub(plain, answer)
    return answer.rstrip(".")


def boxed(text: str) -> str | None:
    """Return the content of the last complete \\boxed{...} of a text."""
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text[-100_000:]))[-3:]):
        rest, depth = text[-100_000:][match.end() :], 1
        for i, character in enumerate(rest):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return rest[:i].strip()
    return None


def require_math_verify() -> None:
    if find_spec("math_verify") is None:
        raise ValueError(
            "answers in LaTeX are compared by math-verify, which is not installed: "
            "pip install 'oddlm[tasks]'"
        )


def same(gold: str, answer: str) -> tuple[bool, str]:
    """Return whether two answers are the same, and why that is or is not known."""
    if len(answer) > LONGEST:
        return False, f"more than {LONGEST} characters"
    if spelled(gold) == spelled(answer):
        return True, "the same answer"
    require_math_verify()
    try:
        verdict = JUDGES.ask(gold, answer, timeout_s=TIMEOUT_S)
    except NoAnswerError as error:
        return False, str(error)
    return verdict, "the same value" if verdict else f"not {gold}"


def judge() -> Callable[[str, str], bool]:
    """Return the comparison of math-verify, for a process of its own."""
    from math_verify import LatexExtractionConfig, parse, verify

    def compare(gold: str, answer: str) -> bool:
        try:
            read = [
                parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=0)
                for text in (gold, answer)
            ]
            return bool(verify(*read, timeout_seconds=None))
        except Exception:
            return False

    return compare


JUDGES = Judges(__name__, "math-verify")

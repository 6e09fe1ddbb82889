"""The word problems to train on: read, cleaned, parsed, and kept apart from those to tune on."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from equations import Equation, number, read_equation
from tracing import Problem
from wording import constants_of

GSM8K = "gsm8k_train"
EQUATIONS = ("gsm8k_rephrased_eq", "tum_generated_eq", "tinygsm_filter_eq")
TUNE, TUNE_OF = 0, 16  # the residue of the hash, and of how many
HELD_OUT, HELD_OUT_OF = 1, 64
GRAM = 13  # words
ANNOTATED = re.compile(r"<<(.*?)>>")
PLAIN = re.compile(  # an equation in running text, with nothing that goes on after its result
    r"(?<![\w.])[$(]?\d[\d\s$.,+*/x\u00d7()-]*=\s*\$?\d[\d,]*(?:\.\d+)?(?!\s?[\d%/*+(=x-])"
)
WORDS = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+")
LEAD = re.compile(  # what generated questions carry in front
    r"[^\w$\"“'.(]+|\d{1,2}[.)]\s+|Result:\s[\d.]+\s+|(?:Student|Teacher|Note|hint):\s*"
    r"|@?(?:Sample )?Q(?:uestions?)?\s?[\dX-]*(?::|(?<=\d)\.)\s*"
    r"|[^:.?\d]{0,40}\b(?:questions|programs)\b[^:.?]{0,40}:\s*",
    re.IGNORECASE,
)
OTHER = re.compile(  # they are instructions to whoever generated them
    r"python (?:program|code)|program to calculate|the code\b|meaningful|variables for|\*\*|```"
    r"|questions? and (?:\w+ )*programs?|possible (?:new )?questions|math concept",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Row:
    """A question and an answer as a file has them."""

    source: str
    question: str
    answer: str


class Unusable(ValueError):  # noqa: N818
    """A row that cannot be trained on; the message says why in a few words."""


def read_rows(folder: Path) -> Iterator[Row]:
    """The rows of all sources; a line without exactly one `||` has an empty question."""
    yield from read_gsm8k(folder / f"{GSM8K}.jsonl")
    for source in EQUATIONS:
        for line in _lines(folder / f"{source}.txt"):
            question, bars, answer = line.partition("||")
            good = bars and "||" not in answer
            yield Row(source, question.strip() if good else "", answer)


def read_gsm8k(path: Path) -> Iterator[Row]:
    """The rows of a file in GSM8K's own format."""
    for count, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
            yield Row(path.stem, row["question"].strip(), row["answer"])
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(
                f"{path}, line {count}: give a JSON object with a question and an answer"
            ) from None


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: give --source the folder that has it")
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def residue(question: str, of: int) -> int:
    """Where a question falls when all are divided by hash."""
    return digest(question) % of


def digest(question: str) -> int:
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big")


def grams(question: str) -> set[tuple[str, ...]]:
    """All runs of words, numbers alike, and those with all names alike; a short text is one run."""
    words = ["0" if word[0].isdigit() else word for word in WORDS.findall(question)]
    plain = [word.lower() for word in words]
    nameless = ["Name" if word[0].isupper() else word for word in words]
    return {
        tuple(run[i : i + GRAM])
        for run in (plain, nameless)
        for i in range(max(1, len(run) - GRAM + 1))
    }


def clean(question: str) -> str:
    """A question without what stands in front of it."""
    while lead := LEAD.match(question):
        question = question[lead.end() :]
    return question.strip()


def parse(row: Row) -> Problem:
    """The question, equations and answer of a row; Unusable says what is wrong with it."""
    question = clean(row.question)
    if not question:
        raise Unusable("malformed")
    if question[0].islower():
        raise Unusable("cut off")
    if row.source != GSM8K and OTHER.search(question):
        raise Unusable("no word problem")
    if not re.search(r"\d", question) and constants_of(question)[0] <= {1}:
        raise Unusable("no numbers")
    try:
        answer = number(row.answer.rpartition("####")[2])
        equations = [read_equation(text) for text in ANNOTATED.findall(row.answer)]
    except ValueError:
        raise Unusable("a wrong equation") from None
    if all(equation.result != answer for equation in equations) and row.source == GSM8K:
        equations = list(_all_equations(row.answer))
    steps = tuple(equation for equation in equations if len(equation.operands) > 1)
    if not steps:
        raise Unusable("no equations")
    if all(equation.result != answer for equation in steps):
        raise Unusable("the answer is no result")
    return Problem(question, steps, answer, complete=len(steps) == len(equations))


def _all_equations(answer: str) -> Iterator[Equation]:
    """The annotations of a solution, and of lines without one the equation in the text."""
    for line in answer.partition("####")[0].split("\n"):
        annotated = [read_equation(text) for text in ANNOTATED.findall(line)]
        yield from annotated
        for text in () if annotated else PLAIN.findall(line):
            with contextlib.suppress(ValueError):
                equation = read_equation(text)
                if equation.exact:
                    yield equation

"""reasoning-gym: puzzles as reasoning_gym:NAME; oddlm tasks reasoning_gym lists the names.

(Stojanovski et al. 2025, arXiv:2505.24760; Apache-2.0.) The problems are made by the package's
generators and scored by its scorers, in processes with limits (reasoning_gym_judge.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from ..checks import whole
from ..config import parse_options
from .base import Family, Problem, Score, Task
from .jsonl import HALVES, first
from .judges import Judges, NoAnswerError

JUDGES = Judges(f"{__package__}.reasoning_gym_judge", "reasoning-gym")
SIZE, SEED = 100, 0
MAKE_S, SCORE_S = 600.0, 20.0
LONGEST = 20_000  # characters of an answer
UNMADE = ("composite",)  # it needs a list of the others
OPEN, CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem as its generator knows it."""

    answer: str | None  # one right answer, if the generator gives one
    entry: str = field(repr=False)

    def __str__(self) -> str:
        return self.answer or "no single answer: the scorer judges it"


def load(
    generator: str,
    options: str,
    size: int,
    *,
    limit: int | None = None,
    split: str | None = None,
) -> list[Problem]:
    """Return problems of a generator.

    split: one half of what it makes, tune or test (the default; see `in_half`).
    """
    if split not in (None, *HALVES):
        raise ValueError(f"unknown split {split!r}; known: {', '.join(HALVES)}")
    count = size if limit is None else max(1, min(size, limit))
    made = _ask("make", generator, options, split or HALVES[1], count, timeout_s=MAKE_S)
    if len(made) < count and limit is None:
        raise ValueError(f"generator {generator!r} makes only {len(made)} problems of this half")
    problems = [
        Problem(f"{generator}/{index}", question, Entry(answer, entry))
        for index, question, answer, entry in made
    ]
    return first(problems, limit)


def _ask(do: str, *request: Any, timeout_s: float) -> Any:
    try:
        answer = JUDGES.ask(do, *request, timeout_s=timeout_s)
    except NoAnswerError as error:
        raise ValueError(f"{request[0]}: {error}") from None
    if "error" in answer:
        raise ValueError(f"generator {request[0]!r} failed with {request[1]}: {answer['error']}")
    return answer["done"]


@cache
def generators() -> Mapping[str, list[str]]:
    """Return the options of every generator by its name."""
    if find_spec("reasoning_gym") is None:
        raise ValueError("reasoning-gym is not installed: pip install 'oddlm[reasoning-gym]'")
    found: dict[str, list[str]] = JUDGES.ask("names", timeout_s=MAKE_S)
    return {name: found[name] for name in sorted(found) if name not in UNMADE}


def member(text: str) -> Task:
    """Return the task NAME or NAME,key=value,... with options of the generator, seed and size."""
    name, _, rest = text.partition(",")
    if name not in generators():
        close = get_close_matches(name, generators(), 3, 0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(
            f"reasoning-gym has no generator {name!r}; {hint}`oddlm tasks reasoning_gym` lists all"
        )
    options = {
        "seed": SEED,
        "size": SIZE,
        **parse_options(rest, f"a generator as {name},key=value,..."),
    }
    known = ["seed", "size", *generators()[name]]
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(
            f"generator {name!r} has no option {unknown[0]!r}; options: {', '.join(known)}"
        )
    for key, least in (("seed", 0), ("size", 1)):
        options[key] = whole(f"{key} of generator {name!r}", options[key], least)
    size = options.pop("size")
    given = json.dumps(options, sort_keys=True)
    return Task(
        f"reasoning_gym:{text}",
        partial(load, name, given, size),
        prompt,
        partial(score, name, given),
        length=256,
        read=read,
        outside=True,
    )


def prompt(problem: Problem) -> str:
    return f"{problem.prompt.strip()}\n\nGive the final answer between {OPEN} and {CLOSE}.\n"


def score(generator: str, options: str, problem: Problem, text: str) -> Score:
    """Score what stands between the last tags, or a text without tags as it is."""
    answer = read(text)
    if answer is None:
        return Score(False, None, "no answer in the text")
    if len(answer) > LONGEST:
        return Score(False, answer[:LONGEST], f"more than {LONGEST} characters")
    entry: Entry = problem.target
    try:
        value = JUDGES.ask("score", generator, options, entry.entry, answer, timeout_s=SCORE_S)
    except NoAnswerError as error:
        return Score(False, answer, str(error))
    if "error" in value:
        return Score(False, answer, f"the scorer raised {value['error']}")
    return Score(value["done"] >= 1.0, answer, f"reasoning-gym gives it {value['done']:.3g} of 1")


def read(text: str) -> str | None:
    _, tag, rest = text.rpartition(OPEN)
    answer = (rest.partition(CLOSE)[0] if tag else text).strip()
    return answer or None


def _nameless(*_: Any, limit: int | None = None) -> Any:
    raise ValueError(
        "name a generator, such as reasoning_gym:chain_sum; `oddlm tasks reasoning_gym` lists all"
    )


TASK = Task(
    "reasoning_gym",
    _nameless,
    prompt,
    _nameless,
    length=256,
    read=read,
    family=Family(lambda: list(generators()), member),
)

"""Write the training data of smol: word problems with their equations, and number variants of them.

    python recipes/smol/data.py --source FOLDER --test gsm8k_test.jsonl --out data --variants 60

FOLDER has gsm8k_train.jsonl and the three *_eq.txt files. A part of GSM8K's training problems,
chosen by hash, is put aside to tune on (tune.jsonl, in GSM8K's own format); every other problem
that shares a run of 13 words with one of them, or with a test question, is left out. Another part
is held out for the loss (held_out.jsonl), in the same way. The rest is in train.jsonl, with its
variants, shuffled; nothing depends on the number of workers. `--shard 3` draws other variants, for
train-3.jsonl.
"""

import argparse
import json
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from sources import (
    EQUATIONS,
    GSM8K,
    HELD_OUT,
    HELD_OUT_OF,
    TUNE,
    TUNE_OF,
    Row,
    Unusable,
    digest,
    grams,
    parse,
    read_gsm8k,
    read_rows,
    residue,
)
from tracing import NotVariable, Problem
from variants import variants

PERCENTILES = (50, 90, 95, 99)
Pair = tuple[str, str]  # question and answer text
Counts = dict[str, Counter[str]]  # by source


@dataclass(frozen=True)
class Sides:
    """The problems of each side, and what became of every row."""

    train: list[tuple[str, Problem]]  # with its source
    held_out: list[Problem]
    tune: list[Row]
    counts: Counts = field(default_factory=dict)


def divide(rows: Iterable[Row], test: Iterable[Row] = ()) -> Sides:
    """Sort rows into sides: those to tune on first, and away with what resembles them."""
    rows = list(rows)
    counts: Counts = defaultdict(Counter)
    tune = [row for row in rows if _is_tune(row)]
    like_tune = _grams_of(row.question for row in tune)
    like_test = _grams_of(row.question for row in test)
    rest, held_out, seen = [], [], set()
    for row in rows:
        count = counts[row.source]
        count["lines"] += 1
        if _is_tune(row):
            count["to tune on"] += 1
            continue
        try:
            problem = parse(row)
        except Unusable as reason:
            count[f"dropped: {reason}"] += 1
            continue
        count["parsed"] += 1
        own = grams(row.question) | grams(problem.question)
        if own & like_tune:
            count["dropped: like one to tune on"] += 1
        elif own & like_test:
            count["dropped: like a test question"] += 1
        elif problem.question in seen:
            count["dropped: seen before"] += 1
        elif residue(problem.question, HELD_OUT_OF) == HELD_OUT:
            count["held out"] += 1
            held_out.append(problem)
        else:
            rest.append((row.source, problem))
        seen.add(problem.question)
    like_held_out = _grams_of(problem.question for problem in held_out)
    train = []
    for source, problem in rest:
        alike = not like_held_out.isdisjoint(grams(problem.question))
        counts[source]["dropped: like one held out" if alike else "wordings"] += 1
        train += [] if alike else [(source, problem)]
    return Sides(train, held_out, tune, counts)


def _grams_of(questions: Iterable[str]) -> set[tuple[str, ...]]:
    return set().union(*map(grams, questions))


def _is_tune(row: Row) -> bool:
    return row.source == GSM8K and residue(row.question, TUNE_OF) == TUNE


def vary(problem: Problem, wanted: int, seed: int, shard: int) -> tuple[list[Pair], str]:
    """Variants of a problem, which depend on nothing else; where there are none, why."""
    rng = np.random.default_rng([seed, shard, digest(problem.question)])
    try:
        made = variants(problem, wanted, rng)
    except NotVariable as reason:
        return [], str(reason)
    return made, "" if made else "no draw fits"


def vary_all(
    problems: list[Problem], wanted: int, *, seed: int = 0, shard: int = 0, workers: int = 1
) -> Iterator[tuple[list[Pair], str]]:
    """`vary` for all problems, in their order."""
    task = partial(vary, wanted=wanted, seed=seed, shard=shard)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) if workers > 1 else nullcontext() as pool:
        each = pool.imap(task, problems, chunksize=32) if pool else map(task, problems)
        for i, made in enumerate(each, start=1):
            if i % 500 == 0 or i == len(problems):
                print(f"\r{i:,} of {len(problems):,} problems", end="", file=sys.stderr, flush=True)
            yield made
    print(file=sys.stderr)


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """A line of JSON for each question and answer."""
    with path.open("w", encoding="utf-8") as file:
        for question, answer in pairs:
            row = {"prompt": question + "\n", "answer": answer}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def make(
    sides: Sides,
    out: Path,
    wanted: int,
    *,
    seed: int = 0,
    shard: int | None = None,
    workers: int = 1,
    least: int = 1,
) -> list[Pair]:
    """Write the files of all sides; add to the counts, and return the pairs to train on.

    The pairs of a wording are repeated until there are about `least` of them, so that wordings
    without variants are not lost among the others.
    """
    out.mkdir(parents=True, exist_ok=True)
    problems = [problem for _, problem in sides.train]
    answers = {problem.question: problem.text() for problem in problems}
    each = vary_all(problems, wanted, seed=seed, shard=shard or 0, workers=workers)
    pairs: list[Pair] = []
    for (source, problem), (made, reason) in zip(sides.train, each, strict=True):
        count = sides.counts[source]
        count[f"constant: {reason}" if reason else "variable"] += 1
        new = {question: answer for question, answer in made if question not in answers}
        answers |= new
        count["variants"] += len(new)
        own = [(problem.question, problem.text()), *new.items()]
        pairs += own * max(1, round(least / len(own)))
    order = np.random.default_rng([seed, shard or 0]).permutation(len(pairs))
    name = "train.jsonl" if shard is None else f"train-{shard}.jsonl"
    write_pairs(out / name, (pairs[i] for i in order))
    write_pairs(out / "held_out.jsonl", ((p.question, p.text()) for p in sides.held_out))
    with (out / "tune.jsonl").open("w", encoding="utf-8") as file:
        for row in sides.tune:
            line = {"question": row.question, "answer": row.answer}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return pairs


def table(counts: Counts) -> str:
    """The counts as Markdown, a column for each source."""
    sources = [source for source in (GSM8K, *EQUATIONS) if source in counts]
    first = ("lines", "to tune on", "parsed", "held out", "wordings", "variable", "variants")
    rest = sorted({name for count in counts.values() for name in count} - set(first))
    lines = [f"| | {' | '.join(sources)} | all |", "|---" * (len(sources) + 2) + "|"]
    for name in (*first, *rest):
        numbers = [counts[source][name] for source in sources]
        lines.append(f"| {name} | {' | '.join(f'{n:,}' for n in (*numbers, sum(numbers)))} |")
    return "\n".join(lines)


def lengths(pairs: list[Pair]) -> str:
    """Percentiles of the length of answers, in characters."""
    sizes = np.array([len(answer) for _, answer in pairs])
    shares = ", ".join(f"{p} %: {np.percentile(sizes, p):.0f}" for p in PERCENTILES)
    return f"{len(pairs):,} pairs; characters of an answer: mean {sizes.mean():.1f}, {shares}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="folder of the problems")
    parser.add_argument("--test", type=Path, help="GSM8K's test split, to keep away from")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--variants", type=int, default=60, help="at most so many of a problem")
    parser.add_argument("--least", type=int, default=1, help="repeat a problem's until so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--shard", type=int, help="draw other variants, for train-SHARD.jsonl")
    chosen = parser.parse_args()
    for name, least in (("variants", 0), ("least", 1), ("seed", 0), ("workers", 1), ("shard", 0)):
        if (value := getattr(chosen, name)) is not None and value < least:
            parser.error(f"--{name} {value}: give {least} or more")
    try:
        test = list(read_gsm8k(chosen.test)) if chosen.test else []
        sides = divide(read_rows(chosen.source), test)
    except (ValueError, OSError) as problem:
        parser.error(str(problem))
    pairs = make(
        sides,
        chosen.out,
        chosen.variants,
        seed=chosen.seed,
        shard=chosen.shard,
        workers=chosen.workers,
        least=chosen.least,
    )
    print(table(sides.counts))
    print(f"\n{lengths(pairs)}")
    if not test:
        print("No test questions were given: nothing was compared with them.")


if __name__ == "__main__":
    main()

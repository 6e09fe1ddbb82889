r"""Draw samples on fresh problems, and note which sample every way to vote would pick.

    python recipes/answer/draw.py recipes/answer/results --side tune
    python recipes/answer/draw.py recipes/answer/results --side test
    python recipes/answer/draw.py recipes/answer/results --side test --model smol \
        --data gsm8k_test.jsonl

A line per problem and method goes to FOLDER/MODEL-TASK-SIDE.jsonl. Lines that are there are kept,
so the command resumes. Several processes may draw at once, each its own `--part`. report.py prints
the tables.

The methods of the tune side are candidates: plain sampling at several temperatures, and ODD with
several alphas. Those of the test side are what report.py chooses from them, the settings that
other pages report, and the default. No way to vote has been adjusted on either side.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import track

import oddlm
from oddlm.core.step import Sample
from oddlm.lm import LM
from oddlm.params import SampleParams
from oddlm.prompts import encode_prompts
from oddlm.tasks import Problem, Task, find_task
from oddlm.voting import WAYS, Ballot, vote
from report import FEWER, N, lines, methods, path_of

SEED = 2028  # of the generated problems, which no other study uses


class Bench(NamedTuple):
    """A task as a model meets it."""

    name: str
    task: Task
    options: Mapping[str, Any]  # of `Task.load`
    params: Mapping[str, Any]
    problems: Mapping[str, int]  # by side


def benches(model: str, data: Path | None) -> list[Bench]:
    if model == "smol":
        task = find_task("gsm8k").under("equations")
        return [Bench("gsm8k", task, {"data": data}, {"length": 64, "steps": 32}, {"test": 200})]
    countdown, minicode = find_task("countdown"), find_task("minicode")
    found = []
    for numbers in (4, 5):
        length = 8 * (numbers - 1)
        params = {"length": length, "steps": length // 2, "eos": "late"}
        options = {"numbers": numbers, "seed": SEED, "count": 500}
        counts = {"tune": 40, "test": 100} if numbers == 4 else {"tune": 20, "test": 80}
        found.append(Bench(f"countdown-{numbers}", countdown, options, params, counts))
    options = {"operations": 3, "seed": SEED, "count": 300}
    params = {"length": 64, "steps": 16}
    return [*found, Bench("minicode", minicode, options, params, {"tune": 20, "test": 40})]


def noted(lm: LM, bench: Bench, problem: Problem, params: SampleParams) -> dict[str, Any]:
    """Return what is noted of one problem under one method."""
    task, prompt = bench.task, bench.task.prompt(problem)
    (ids,) = encode_prompts(lm.tokenizer, [prompt], params.length, context=None, raw=lm.raw)
    count = N if params.temperature else 1  # without temperature all are the same
    samples = lm.sample(prompt, count, params=params, progress=False)
    texts = [sample.text for sample in samples]
    verdicts = {text: task.score(problem, text).correct for text in set(texts)}
    picks, weights = {}, {}
    ballot = Ballot(lm.model, ids, samples)
    cloze = WAYS.find("cloze")(ballot)
    cost = ballot.evaluations
    for name in WAYS.names:
        way = WAYS.find(name)
        again = update_wrapper(lambda _: cloze, way)  # without asking the network twice
        found = vote(ballot, by=again if name.startswith("cloze") else way, read=task.read)
        picks[name] = found.candidates[0].sample.index
        weights[name] = round(found.weight, 4)
    return {
        "problem": problem.id,
        "correct": "".join("01"[verdicts[text]] for text in texts),
        "lengths": ballot.lengths,
        "picks": picks,
        "weights": weights,
        "wrong_prompt": _wrong_prompt(lm, bench, samples),
        f"cloze@{FEWER}": max(range(min(count, FEWER)), key=lambda i: (cloze[i], -i)),
        "nfe": sum(sample.nfe for sample in samples),
        "cloze_nfe": cost,
    }


def _wrong_prompt(lm: LM, bench: Bench, samples: Sequence[Sample]) -> int:
    """Return the sample that cloze picks if the prompt is that of another problem."""
    other = bench.task.problems(**bench.options, split="test", limit=1)[0]
    (wrong,) = encode_prompts(
        lm.tokenizer, [bench.task.prompt(other)], 64, context=None, raw=lm.raw
    )
    return vote(Ballot(lm.model, wrong, samples), by="cloze").candidates[0].sample.index


def planned(
    bench: Bench, side: str, folder: Path, model: str
) -> Iterator[tuple[str, SampleParams, Problem]]:
    problems = bench.task.problems(**bench.options, split=side, limit=bench.problems[side])
    for name, settings in methods(folder, model, bench.name, side).items():
        for problem in problems:
            yield name, SampleParams(**bench.params, **settings), problem


def part(text: str) -> slice:
    """Read `2/8`; raise ValueError if it is anything else."""
    number, count = map(int, text.split("/"))
    if not 0 < number <= count:
        raise ValueError(text)
    return slice(number - 1, None, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", choices=("tune", "test"), required=True)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--task", help="only this one, such as countdown-4")
    parser.add_argument(
        "--part", type=part, default=slice(None), help="2/8: every eighth line, from the second on"
    )
    given = parser.parse_args()
    try:
        lm = oddlm.load(given.model)
    except ValueError as error:
        parser.error(str(error))
    given.folder.mkdir(parents=True, exist_ok=True)
    for bench in benches(given.model, given.data):
        if given.side not in bench.problems or given.task not in (None, bench.name):
            continue
        path = path_of(given.folder, given.model, bench.name, given.side)
        known = {(line["method"], line["problem"]) for line in lines(path)}
        own = list(planned(bench, given.side, given.folder, given.model))[given.part]
        work = [one for one in own if (one[0], one[2].id) not in known]
        with path.open("a") as out:
            for name, params, problem in track(work, path.stem):
                line = {"method": name, **noted(lm, bench, problem, params)}
                out.write(json.dumps(line) + "\n")
                out.flush()


if __name__ == "__main__":
    main()

"""Check that `oddlm eval`, `oddlm lm-eval` and `oddlm serve` draw the same texts.

    python benchmarks/same_texts.py --problems 4 --n 8 --out benchmarks/results/same-texts.md

`oddlm eval` draws samples of the mini model for countdown under several settings, and stores them
with the seed of every problem. The same model, settings and seeds are then given to the
lm-evaluation-harness, with one task per problem, and to a server. Prints a Markdown table of how
many texts are equal, and fails if one is not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any
from urllib.request import Request, urlopen

import lm_eval
import torch
from datasets import Dataset
from lm_eval.tasks import TaskManager

from oddlm import LM, RunSpec, Store
from oddlm.integrations.lm_eval import HarnessLM
from oddlm.store import Record
from oddlm.text import setting_label

Texts = list[list[str]]  # by problem
HEAD = "| setting | problems | texts | different ones per problem | lm-eval | server |"


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of a run, as model arguments or for a request."""
    found = spec.params.model_dump(exclude={"seed"})
    return {name: value for name, value in found.items() if value is not None}


def stored_texts(records: Sequence[Record]) -> Texts:
    return [[sample.text for sample in record.samples] for record in records]


def through_harness(lm: LM, spec: RunSpec, records: Sequence[Record]) -> Texts:
    """Draw the samples in the harness: a task per problem, since each has its own seed."""
    tasks = [
        {
            "task": f"problem_{i}",
            "custom_dataset": lambda prompt=record.prompt, **_: {
                "test": Dataset.from_list([{"prompt": prompt}])
            },
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "",
            "repeats": spec.n,
            "num_fewshot": 0,
            "generation_kwargs": {
                "seed": record.seed,
                "max_gen_toks": spec.params.length,
                "until": [],
            },
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
            ],
        }
        for i, record in enumerate(records)
    ]
    found = lm_eval.evaluate(
        HarnessLM(lm, **settings_of(spec)),
        TaskManager(include_defaults=False).load(tasks),
        apply_chat_template=True,  # as `oddlm eval` does, if the model has one
        fewshot_as_multiturn=True,
        bootstrap_iters=0,
    )
    return [found["samples"][task["task"]][0]["resps"][0] for task in tasks]


def through_server(url: str, model: str, spec: RunSpec, records: Sequence[Record]) -> Texts:
    """Draw the samples on a server, one chat request per problem."""
    settings = settings_of(spec)
    shared = {"model": model, "n": spec.n, "max_tokens": settings.pop("length"), **settings}
    texts = []
    for record in records:
        body = {
            **shared,
            "seed": record.seed,
            "messages": [{"role": "user", "content": record.prompt}],
        }
        request = Request(
            f"{url}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(request) as answer:
            choices = json.load(answer)["choices"]
        texts.append([choice["message"]["content"] for choice in choices])
    return texts


def line(spec: RunSpec, texts: Texts, others: Sequence[Texts]) -> str:
    """Return a line of the table: a run's texts, and how many are equal elsewhere."""
    own = [text for group in texts for text in group]
    equal = [
        sum(a == b for a, b in zip(own, (t for group in other for t in group), strict=True))
        for other in others
    ]
    params = spec.params
    cells = [
        setting_label(params.method, params.alpha, params.temperature),
        str(len(texts)),
        str(len(own)),
        f"{sum(len(set(group)) for group in texts) / len(texts):.1f}",
        *(f"{count} equal" for count in equal),
    ]
    return f"| {' | '.join(cells)} |"


def table(url: str, lm: LM, model: str, store: Store) -> list[str]:
    """Return the table of the runs of a store."""
    lines = []
    for name in store.ids():
        spec, records = store.head(name).spec, list(store.records(name))
        others = (through_harness(lm, spec, records), through_server(url, model, spec, records))
        lines.append(line(spec, stored_texts(records), others))
    return [HEAD, "|---|---|---|---|---|---|", *sorted(lines)]


def main() -> None:
    from serve import server  # the benchmark beside this one

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = f"--model mini --limit {given.problems} --n {given.n}"
    command = f"eval countdown {options} --preset auto,paper --temperature 0,0.5"
    with tempfile.TemporaryDirectory() as folder, server("mini") as (_, url):
        store = Path(folder, "runs")
        words = [*command.split(), "--store", str(store)]
        subprocess.run([sys.executable, "-m", "oddlm", *words], check=True, stdout=sys.stderr)
        lines = table(url, HarnessLM("mini").lm, "mini", Store(store))
    about = (
        f"{datetime.now(UTC).date()}, Python {python_version()}, torch {torch.__version__} (CPU), "
        f"lm-eval {version('lm-eval')}; printed by\n`python benchmarks/same_texts.py "
        f"--problems {given.problems} --n {given.n}`, whose first step is\n`oddlm {command}`."
    )
    page = "\n".join(["# The same texts through three doors", "", about, "", *lines, ""])
    print(page)
    if given.out is not None:
        given.out.write_text(page)
    equal = f"{given.problems * given.n} equal"
    if not all(one.endswith(f"| {equal} | {equal} |") for one in lines[2:]):
        raise SystemExit("some texts differ")


if __name__ == "__main__":
    main()

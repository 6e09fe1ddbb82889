"""A small form of benchmarks/same_texts.py, and its table in the guide."""

import sys
from pathlib import Path

import pytest

import oddlm
from oddlm import RunSpec, SampleParams, Store
from oddlm.experiments.identity import identified

from ..runs import run
from ..serve.conftest import running

ROOT = Path(__file__).parents[2]
SHAPE = {"length": 24, "steps": 6, "eos": "late"}


@pytest.fixture
def same_texts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import same_texts

    yield same_texts
    del sys.modules["same_texts"]


def test_three_doors_draw_the_same_texts(same_texts, tmp_path):
    params = SampleParams(**SHAPE, alpha=8, temperature=0.5)
    content = {"model": "mini", "task": "countdown", "n": 2, "seed": 1, "params": params}
    spec = identified(RunSpec.model_validate(content))
    run(tmp_path, spec, limit=2)
    lm, store = oddlm.load("mini"), Store(tmp_path)
    with running(lm, model="mini") as served:
        *_, found = same_texts.table(served.url, lm, "mini", store)
    assert found.endswith("| 4 equal | 4 equal |")
    (name,) = store.ids()
    records = list(store.records(name))
    texts = same_texts.stored_texts(records)
    assert [len(group) for group in texts] == [2, 2]
    others = [record.model_copy(update={"seed": record.seed ^ 1}) for record in records]
    assert same_texts.through_harness(lm, spec, others) != texts, "the seed matters"


def test_the_table_of_the_guide_is_that_of_the_results():
    results = (ROOT / "benchmarks/results/same-texts.md").read_text()
    lines = [line for line in results.splitlines() if line.startswith("|")]
    assert len(lines) > 2
    assert "\n".join(lines) in (ROOT / "docs/guides/lm-eval.md").read_text()

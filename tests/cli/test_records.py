"""The same run is the same record, whichever command makes it."""

import json
from pathlib import Path

import pytest

from oddlm.experiments.grid import read_grid
from oddlm.metrics import BESIDE
from oddlm.report.compare import compare
from oddlm.store import DRAWN, SCORES, SPEC, SUMMARY, Store
from oddlm.tasks import Problem

from ..runs import TIMES, sweep_inline
from ..runs import run as run_again
from .test_eval import oddlm  # noqa: F401

MODEL, TASK = "toy", "countdown"
GRID = f"""
model = "{MODEL}"
task = {{ name = "{TASK}", split = "tune", limit = 3, params = {{ length = 8 }} }}
n = 4
[params]
alpha = 8
"""
SHAPE = [TASK, "--model", MODEL, "--split", "tune", "--limit", "3", "--length", "8", "--n", "4"]
COMMANDS = {  # and a sweep, whose workers are processes
    "eval": ["eval", *SHAPE, "--alpha", "8", "--json", "out.json"],
    "draw": ["draw", *SHAPE, "--alpha", "8"],  # and scored after that
    "tune": ["tune", *SHAPE, "--trials", "1", "--space", "alpha=8", "--search", "random"],
}
STORES = ("sweep", *COMMANDS)


def stored(folder: Path) -> tuple[dict[str, dict], dict, dict]:
    """By problem the stored lines, without what was timed; what was asked; what came out."""
    records: dict[str, dict] = {}
    for file in (DRAWN, SCORES):
        for line in (folder / file).read_text().splitlines():
            found = {name: value for name, value in json.loads(line).items() if name not in TIMES}
            records.setdefault(found["problem"], {})[file] = found
    asked, came_out = (json.loads((folder / name).read_text()) for name in (SPEC, SUMMARY))
    return records, asked, {name: value for name, value in came_out.items() if name != "seconds"}


@pytest.fixture
def made(oddlm, tmp_path):  # noqa: F811
    Path("grid.toml").write_text(GRID)
    sweep_inline(Path("grid.toml"), Path("sweep"))
    for name, words in COMMANDS.items():
        code, _, err = oddlm(*words, "--store", name)
        assert code == 0, err
    assert oddlm("runs", "score", "--all", "--store", "draw")[0] == 0
    return Path.cwd()


def test_eval_draw_sweep_and_tune_store_the_same_record_field_by_field(made):
    runs = {
        name: {path.name for path in (made / name).iterdir() if (path / SPEC).exists()}
        for name in STORES
    }
    (run,) = runs["sweep"]
    assert runs["tune"] == {run}
    assert run in runs["eval"], "beside its plain baseline"
    first, *others = (stored(made / name / run) for name in STORES)
    assert len(first[0]) == 3
    for other in others:
        for problem, record in first[0].items():
            assert record == other[0][problem]
        assert other == first


def test_a_record_holds_nothing_of_another_run(made):
    (run,) = [path for path in (made / "sweep").iterdir() if (path / SPEC).exists()]
    for record in stored(run)[0].values():
        assert record[SCORES]["diversity"].keys().isdisjoint(BESIDE)


def test_what_is_new_beside_plain_sampling_is_told_where_runs_are_compared(made):
    settings = json.loads((made / "out.json").read_text())["settings"]
    (plain,), (pushed,) = (
        [one for one in settings if (one["params"]["alpha"] == 0) is flat] for flat in (True, False)
    )
    rows = {
        name: Store(made / "eval").read(one["runs"][0]).records
        for name, one in (("plain", plain), ("pushed", pushed))
    }
    fresh = [
        len({s.text for s in mine.samples} - {s.text for s in other.samples})
        for mine, other in zip(rows["pushed"], rows["plain"], strict=True)
    ]
    assert pushed["diversity"]["new_texts"] == pytest.approx(sum(fresh) / 3)
    assert 0 < pushed["diversity"]["novelty"] <= 1
    assert not {"new_texts", "novelty"} & plain["diversity"].keys()


def test_what_an_embedding_says_is_no_part_of_a_record_either(oddlm, monkeypatch):  # noqa: F811
    import numpy as np

    monkeypatch.setattr(
        "oddlm.cli.evaluate._embedder",
        lambda: lambda texts: np.eye(64)[[len(text) % 64 for text in texts]],
    )
    words = ["eval", *SHAPE, "--alpha", "8"]
    assert oddlm(*words, "--store", "without")[0] == 0
    assert oddlm(*words, "--store", "with", "--embed", "--json", "out.json")[0] == 0
    for run in Store(Path("with")).ids():
        assert stored(Path("with") / run) == stored(Path("without") / run)
    told = json.loads(Path("out.json").read_text())["settings"][1]["diversity"]
    assert set(BESIDE) <= told.keys()


def test_sample_stores_what_the_driver_stores(oddlm, tmp_path):  # noqa: F811
    assert (
        oddlm("sample", "t5 t6", "--model", "toy", "--n", "4", "--length", "8", "--store", "a")[0]
        == 0
    )
    (run,) = Store(Path("a")).ids()
    spec = Store(Path("a")).read(run).spec
    run_again(Path("b"), spec, [Problem("prompt", "t5 t6", None)])
    assert stored(Path("a") / run) == stored(Path("b") / run)


def test_the_table_is_the_same_with_and_without_what_is_beside(made):
    wanted = read_grid(made / "grid.toml")
    store = Store(made / "eval")
    done = [(run.spec, run.records) for run in map(store.read, store.ids())]
    assert len(wanted) == 1
    bare, full = compare(done), compare(done, beside=True)
    for one, other in zip(bare, full, strict=True):
        assert one.diversity.items() <= other.diversity.items()
        assert one.pass_n == other.pass_n

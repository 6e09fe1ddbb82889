"""The authors' run logs: how they are read, and that they reproduce the paper's table."""

import csv
from importlib.resources import files
from pathlib import Path

import pytest

from oddlm.report.cells import read_results
from oddlm.report.released_runs import import_released
from oddlm.report.tables import PASS_COLUMNS, pass_rows, published_table, thin_cells
from oddlm.report.write import unknowns
from oddlm.store import Store, StoreError

from .made import RELEASED, released, write_released

LOGS = Path(__file__).parents[2] / ".." / "shared" / "data" / "released_runs_gsm8k.csv"


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory):
    if not LOGS.exists():
        pytest.skip("../shared/data/released_runs_gsm8k.csv is not beside the repository")
    folder = tmp_path_factory.mktemp("released")
    done = import_released(LOGS, Store(folder), "gsm8k")
    assert (done.new, done.known, done.empty) == (
        756,
        0,
        ("trial_38_batched_orth_alpha16.0_temp1.0",),
    )
    return read_results(folder)


def test_the_paper_s_gsm8k_table_comes_out_of_the_released_logs(gsm8k):
    (bench,) = gsm8k.benchmarks
    ours = {row[1:4]: row for row in pass_rows(bench)}
    text = (files("oddlm.report") / "paper" / "pass16.csv").read_text()
    published = [row for row in csv.DictReader(text.splitlines()) if row["task"] == "gsm8k"]
    assert len(published) == 65
    for row in published:
        key = row["objective"], f"{float(row['alpha']):g}", f"{float(row['temperature']):g}"
        assert ours[key][4] == pytest.approx(float(row["mean"]), abs=0.05 + 1e-9), key
        assert ours[key][5] == pytest.approx(float(row["se"]), abs=0.055), key
    beside = published_table(bench)
    assert len(beside.rows) == 65
    assert "65 cells; largest difference" in beside.note


def test_cells_on_fewer_than_eight_runs_are_listed(gsm8k):
    (bench,) = gsm8k.benchmarks
    assert [(cell.label, runs) for cell, runs in thin_cells(bench)] == [
        ("odd α16 T1", 7),
        ("odd_sequential α2 T0.5", 7),
        ("odd_sequential α8 T0", 7),
        ("odd_sequential α16 T1.5", 7),
    ]


def test_the_report_says_what_the_logs_cannot_tell(gsm8k):
    (bench,) = gsm8k.benchmarks
    assert bench.count == 200
    assert all(
        1 not in cell.passed and cell.right is None and cell.solved is None for cell in bench.cells
    )
    told = " ".join(unknowns(bench))
    for words in (
        "300 problems per run; their tables hold 200",
        "coverage",
        "c/n",
        "22.5 s per batch",
        "21.6 s for ODD",
        "23.8",
    ):
        assert words in told


def test_import_is_whole_and_only_once(tmp_path):
    rows = [
        released(when=1),
        released("batched_orth", 8, when=2),
        released("joint", 8, when=3, pass_at_2="nan", avg_time="", avg_diversity="NaN"),
    ]
    path = write_released(
        tmp_path / "logs.csv", [*rows, released(when=4, pass_at_1="", pass_at_2="")]
    )
    store = Store(tmp_path / "store")
    done = import_released(path, store, "gsm8k")
    assert (done.new, done.known, done.empty) == (3, 0, ("trial_4",))
    assert import_released(path, store, "gsm8k").known == 3
    gappy = read_results(store.folder).benchmarks[0].cells[1]
    assert (gappy.objective, gappy.passed, gappy.seconds, gappy.diversity) == ("dpp", {}, None, {})
    head = next(head for head in map(store.head, store.ids()) if head.spec.params.plain)
    assert (head.problems, head.drawn, head.summary.imported) == (
        200,
        0,
        "logs.csv, which claims 300 problems per run",
    )
    assert head.summary.passed == {"pass@2": 0.6, "first_right": 0.5}
    with pytest.raises(StoreError, match="was imported from"), store.open(head.spec, 200):
        pass


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "has no rows; nothing was imported"),
        ([released(pass_at_1="", pass_at_2="")], "none of its 1 rows has a result"),
        (
            [released(), released("orth", when=2)],
            "line 3: unknown strategy 'orth'; known: baseline, joint",
        ),
        ([released(pass_at_2=1.5)], "pass_at_2 must lie between 0 and 1, not '1.5'"),
        ([released(pass_at_2="many")], "pass_at_2 must be a number, not 'many'"),
        ([released(temperature=-1)], "temperature: Input should be greater than or equal to 0"),
        ([released(strategy="__import__('os')")], "strategy must be a Python dict"),
        ([released(strategy="[" * 5000)], "strategy must be a Python dict"),
        (
            [released(strategy={"name": "joint", "pool": "mean", "alpha": 2})],
            "strategy joint",
        ),
        ([released(results_table="")], "results_table must be a Python dict"),
        ([released(results_table={"nrows": 401})], "nrows of results_table .*multiple of 2.*401"),
        ([released(_timestamp="inf")], "_timestamp must be a finite number"),
        ([released(), released()], "lines 2 and 3 are the same run"),
        ([released(), released(when=2)[:-1]], "line 3: it has more or fewer fields"),
    ],
)
def test_bad_logs_import_nothing(tmp_path, rows, words):
    path = write_released(tmp_path / "logs.csv", rows)
    with pytest.raises(ValueError, match="(?s)" + words.replace("(", r"\(")):
        import_released(path, Store(tmp_path / "store"), "gsm8k")
    assert not (tmp_path / "store").exists()


def test_files_that_are_no_logs(tmp_path):
    store = Store(tmp_path / "store")
    with pytest.raises(
        ValueError, match="it has no column strategy, avg_time; nothing was imported"
    ):
        import_released(
            write_released(
                tmp_path / "a", [], RELEASED.replace("strategy,", "").replace("avg_time,", "")
            ),
            store,
            "t",
        )
    with pytest.raises(ValueError, match="cannot read"):
        import_released(tmp_path / "none.csv", store, "t")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a CSV file in UTF-8"):
        import_released(tmp_path / "binary", store, "t")
    assert not store.folder.exists()


def test_an_import_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    path = write_released(tmp_path / "logs.csv", [released(when=i) for i in range(3)])
    store = Store(tmp_path / "store")
    calls = []

    def full(writer, summary):
        calls.append(summary)
        if len(calls) == 2:
            raise StoreError("cannot write: No space left on device")

    monkeypatch.setattr("oddlm.store.Writer.finish", full)
    with pytest.raises(StoreError, match="No space left"):
        import_released(path, store, "gsm8k")
    assert store.ids() == []


def test_columns_of_the_csv():
    assert PASS_COLUMNS == ("task", "objective", "alpha", "temperature", "mean", "se", "runs")

"""The data model: how runs become cells, and that the numbers of a cell are correct."""

import shutil

import numpy as np
import pytest

from oddlm import metrics
from oddlm.cli.views import label
from oddlm.config import checked
from oddlm.params import SampleParams
from oddlm.report.cells import read_results
from oddlm.report.compare import compare
from oddlm.store import SPEC, Store, StoreError

from .made import grid, spec, write_run


def test_a_cell_holds_what_its_runs_say(tmp_path):
    plain = np.array([[[1, 0, 0, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]])
    odd = np.array([[[0, 1, 1, 1], [0, 0, 0, 1]], [[1, 0, 0, 0], [0, 0, 0, 0]]])
    for seed in (0, 1):
        write_run(tmp_path, spec(seed, alpha=0.0), plain[seed], seconds=1.0)
        write_run(tmp_path, spec(seed), odd[seed], seconds=2.0 + seed)
    (bench,) = read_results(tmp_path).benchmarks
    base, cell = bench.cells
    assert (bench.name, bench.n, bench.count, bench.problems) == ("countdown", 4, 2, ("p/0", "p/1"))
    assert (base.label, cell.label, cell.seeds) == ("plain T1", "odd α8 T1", (0, 1))
    assert {k: e.mean for k, e in cell.passed.items()} == pytest.approx(
        {1: 5 / 16, 2: 0.5, 3: 0.5, 4: 0.75}
    )
    assert cell.passed[4].se == pytest.approx(0.25)
    assert (cell.right.tolist(), cell.tried, cell.solved) == ([4, 1], 8, 2)
    assert (cell.seconds.mean, cell.run_seconds, cell.nfe) == (2.5, (2.0, 3.0), 8)
    assert (cell.gains[4].baseline, cell.gains[4].by) == (base.key, "problems")
    assert cell.gains[4].difference == pytest.approx(0.5)
    assert base.gains == {}


def test_gains_are_those_of_eval(tmp_path):
    grid(tmp_path)
    store = Store(tmp_path)
    runs = [store.read(name) for name in store.ids()]
    lines = {line.runs: line for line in compare([(run.spec, run.records) for run in runs])}
    cells = read_results(tmp_path).benchmarks[0].cells
    assert len(cells) == 6
    for cell in cells:
        line = lines[cell.runs]
        assert (cell.passed[1].mean, cell.passed[1].se) == pytest.approx(line.pass_1)
        assert (cell.passed[4].mean, cell.passed[4].se) == pytest.approx(line.pass_n)
        if line.difference:
            gain = cell.gains[4]
            assert (gain.difference, gain.low, gain.high) == pytest.approx(tuple(line.difference))


def test_settings_beyond_the_axes_become_methods_of_their_own(tmp_path):
    for alpha in (0.0, 8.0):
        for more in ({}, {"fork": True}, {"order_temperature": 0.5}):
            write_run(tmp_path, spec(alpha=alpha, **more), [[alpha > 0] * 4, [False] * 4])
    write_run(tmp_path, spec(duplicates="skip"), [[False] * 4] * 2)
    write_run(tmp_path, spec(objective={"name": "odd", "quality": "none"}), [[False] * 4] * 2)
    (bench,) = read_results(tmp_path).benchmarks
    assert set(bench.methods) == {
        *("plain", "plain + fork", "plain + order_temperature=0.5"),
        *(
            "odd",
            "odd + fork",
            "odd + order_temperature=0.5",
            "odd + duplicates=skip",
            "odd (quality none)",
        ),
    }
    by_method = {cell.method: cell for cell in bench.cells}
    against = {
        m: bench.cell(cell.gains[4].baseline).method for m, cell in by_method.items() if cell.gains
    }
    assert against["odd + fork"] == "plain + fork", "the baseline is alike but for the push"
    assert against["plain + fork"] == against["odd + duplicates=skip"] == "plain"
    assert "plain" not in against


def test_methods_have_the_names_of_all_tables(tmp_path):
    settings = [
        {"alpha": 0},
        {},
        {"objective": "dpp"},
        {"preset": "careful"},
        {"objective": "odd"},
        {"alpha": 0, "fork": True},
    ]
    params = [checked(SampleParams, one) for one in settings]
    for one in params:
        write_run(tmp_path, spec(**one.model_dump(exclude={"seed"})), [[True] * 4])
    (bench,) = read_results(tmp_path).benchmarks
    assert set(bench.methods) == {one.method for one in params}
    assert {cell.label for cell in bench.cells} == {label(one) for one in params}


def test_a_setting_that_all_share_is_told_once(tmp_path):
    for alpha in (0.0, 8.0):
        write_run(
            tmp_path,
            spec(alpha=alpha, eos="late", duplicates="skip" if alpha else None),
            [[True] * 4],
        )
    (bench,) = read_results(tmp_path).benchmarks
    assert bench.methods == ("plain", "odd")
    assert (bench.common["eos"], bench.common["duplicates"]) == ("late", "skip")


def test_other_problems_and_models_are_other_benchmarks(tmp_path):
    write_run(tmp_path, spec(), [[True] * 4] * 2)
    write_run(tmp_path, spec(1), [[True] * 4] * 3)
    write_run(tmp_path, spec(model="toy"), [[True] * 4] * 2)
    write_run(tmp_path, spec(task="minicode"), [[True] * 4] * 2)
    names = {bench.name for bench in read_results(tmp_path).benchmarks}
    assert names == {
        "minicode",
        "countdown, toy",
        "countdown, mini, 2 problems",
        "countdown, mini, 3 problems",
    }


def test_samples_come_from_disk_when_asked_for(tmp_path):
    name = write_run(tmp_path, spec(), [[True, False, False, False]] * 3)
    results = read_results(tmp_path)
    (cell,) = results.benchmarks[0].cells
    row = results.record(cell.runs[0], "p/2")
    assert (row.problem, [s.text for s in row.samples], row.correct[0]) == (
        "p/2",
        ["2 0", "2 1", "2 2", "2 3"],
        True,
    )
    path = tmp_path / name / "drawn.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1] * 2)
    with pytest.warns(UserWarning, match=rf"run {name} are not shown: .*drawn\.jsonl"):
        assert results.record(name, "p/2") is None


def test_what_cannot_be_reported_is_left_out_and_said(tmp_path):
    good = write_run(tmp_path, spec(), [[True] * 4])
    half = write_run(tmp_path, spec(1), [[True] * 4], finish=False)
    newer = write_run(tmp_path, spec(2), [[True] * 4])
    path = tmp_path / newer / SPEC
    path.write_text(path.read_text().replace('"schema_version":2', '"schema_version":3'))
    results = read_results(tmp_path)
    why = {one.run: one.why for one in results.left_out}
    assert results.benchmarks[0].cells[0].runs == (good,)
    assert why[half] == "not complete: 1 of 1 problems"
    assert "schema 3, from a newer oddlm" in why[newer]


def test_a_store_with_nothing_to_report(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        read_results(tmp_path / "none")
    with pytest.raises(StoreError, match="empty"):
        read_results(tmp_path)
    write_run(tmp_path, spec(), [[True] * 4], finish=False)
    with pytest.raises(StoreError, match="not complete"):
        read_results(tmp_path)


def test_records_that_contradict_their_run_are_left_out(tmp_path):
    name = write_run(tmp_path, spec(), [[True] * 4] * 2)
    write_run(tmp_path, spec(1), [[True] * 4] * 2)
    path = tmp_path / name / "scores.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    (left,) = read_results(tmp_path).left_out
    assert f"{path} holds 1 of the 2 problems" in left.why


def test_many_intervals_at_once_are_each_the_paired_one():
    rng = np.random.default_rng(1)
    table = rng.random((30, 3))
    together = metrics.mean_intervals(table)
    for column, interval in zip(table.T, together, strict=True):
        assert interval == pytest.approx(metrics.paired_interval(column, np.zeros(30)))
    with pytest.raises(ValueError, match="finite numbers of shape"):
        metrics.mean_intervals([[np.nan]])


def test_run_interval_is_welchs():
    from scipy import stats

    rng = np.random.default_rng(2)
    a, b = rng.normal(1, 1, 8), rng.normal(0, 3, 7)
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    mine = metrics.run_interval([a, b], [1, -1])
    assert (mine.difference, mine.low, mine.high) == pytest.approx(
        (a.mean() - b.mean(), theirs.low, theirs.high), rel=1e-6
    )
    one = metrics.run_interval([a], [1])
    assert (one.low, one.high) == pytest.approx(
        stats.t.interval(0.95, 7, a.mean(), stats.sem(a)), rel=1e-6
    )
    assert np.isnan(metrics.run_interval([[1.0]], [1]).low)
    assert metrics.run_interval([[1.0, 1.0], [0.5, 0.5]], [1, -1]) == (0.5, 0.5, 0.5)


def test_runs_that_wrote_their_problems_in_another_order_compare(tmp_path):
    correct = [[True] * 4, [False] * 4, [False] * 4]
    write_run(tmp_path, spec(alpha=0.0), correct)
    name = write_run(tmp_path, spec(), correct)
    before = read_results(tmp_path).benchmarks[0]
    path = tmp_path / name / "scores.jsonl"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    results = read_results(tmp_path)
    (after,) = results.benchmarks
    assert (
        [cell.right.tolist() for cell in after.cells]
        == [cell.right.tolist() for cell in before.cells]
        == [[4, 0, 0]] * 2
    )
    assert after.cells[1].gains[4] == before.cells[1].gains[4]
    assert results.record(after.cells[1].runs[0], "p/2").problem == "p/2"


def test_the_usual_value_of_a_setting_goes_without_saying(tmp_path):
    for steps, seeds in ((8, 2), (4, 1)):
        for seed in range(seeds):
            for alpha in (0.0, 8.0):
                write_run(tmp_path, spec(seed, alpha=alpha, length=16, steps=steps), [[True] * 4])
    (bench,) = read_results(tmp_path).benchmarks
    assert bench.methods == ("plain", "plain + steps=4", "odd", "odd + steps=4")
    assert {cell.settings["steps"] for cell in bench.cells} == {4, 8}


def test_a_folder_under_another_name_is_left_out(tmp_path):
    write_run(tmp_path, spec(), [[True] * 4])
    shutil.copytree(tmp_path / spec().id, tmp_path / "copy")
    results = read_results(tmp_path)
    assert len(results.benchmarks[0].cells[0].runs) == 1
    assert [(one.run, spec().id in one.why) for one in results.left_out] == [("copy", True)]


def test_of_two_scorers_the_last_counts(tmp_path):
    old = write_run(tmp_path, spec(), [[False] * 4])
    new = write_run(
        tmp_path,
        spec().model_copy(update={"scorer_version": "1.2"}),
        [[True] * 4],
        texts=[["x"] * 4],
    )
    results = read_results(tmp_path)
    (cell,) = results.benchmarks[0].cells
    assert (cell.runs, cell.right.tolist()) == ((new,), [4])
    assert [one.run for one in results.left_out] == [old]


def test_a_setting_on_fewer_problems_is_compared_with_those_on_more(tmp_path):
    write_run(tmp_path, spec(alpha=0.0), [[False] * 4] * 3)
    write_run(tmp_path, spec(alpha=8.0), [[True] * 4] * 2)
    write_run(tmp_path, spec(alpha=16.0), [[True] * 4, [False] * 4, [False] * 4])
    small, large = sorted(read_results(tmp_path).benchmarks, key=lambda bench: bench.count)
    assert (small.problems, large.problems) == (("p/0", "p/1"), ("p/0", "p/1", "p/2"))
    assert [(cell.alpha, cell.right.tolist()) for cell in small.cells] == [
        (0, [0, 0]),
        (8, [4, 4]),
        (16, [4, 0]),
    ]
    assert [(cell.alpha, cell.right.tolist()) for cell in large.cells] == [
        (0, [0, 0, 0]),
        (16, [4, 0, 0]),
    ]
    assert small.cells[1].gains[4].difference == 1


def test_novelty_is_told_where_the_plain_run_is_known(tmp_path):
    right = [[True] * 4] * 2
    write_run(tmp_path, spec(alpha=0.0), right, texts=[["a b", "a b", "a b", "a c"]] * 2)
    write_run(tmp_path, spec(), right, texts=[["a b", "a c", "x y", "x z"]] * 2)
    (bench,) = read_results(tmp_path).benchmarks
    assert all("novelty" not in cell.diversity for cell in bench.cells)
    (bench,) = read_results(tmp_path, beside=True).benchmarks
    plain, pushed = bench.cells
    assert "novelty" not in plain.diversity
    assert pushed.diversity["new_texts"].mean == 2
    assert pushed.diversity["novelty"].mean == pytest.approx((0 + 0 + 1 + 1) / 4)


def test_different_right_solutions_are_counted(tmp_path):
    write_run(tmp_path, spec(), [[True, True, False, False], [False] * 4])
    (cell,) = read_results(tmp_path).benchmarks[0].cells
    assert cell.diversity["solutions@4"].mean == 0.5, (
        "both right ones of the first problem are of one class"
    )

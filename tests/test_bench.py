"""`oddlm bench overhead` on a CPU: the table, the files and the claims."""

import csv
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from oddlm.bench import Cost, claims, expand, paper_grid
from oddlm.cli import app

COST = Cost("a", "bfloat16", 4, 8, 4, 1.0, 1.0, 1.1, 10.0, 9.0, 11.0, 100.0, 8.0)


def test_the_papers_grid():
    grid = paper_grid()
    assert len(grid) == 24
    assert (64, 128, 16) in grid
    assert all(steps <= length for _, length, steps in grid)
    with pytest.raises(ValueError, match="no combination has steps <= length"):
        expand([1], [2], [3])


def test_claims():
    costs = [COST, replace(COST, steps=8, overhead=13.0), replace(COST, n=16, odd_extra_mib=32.0)]
    flat, memory = claims(costs)
    assert flat == "flat in the number of steps: the overhead differs by 3.0 points (median), 3.0 at most"
    assert memory == "memory grows with n: 2.00 to 2.00 MiB a sample"
    assert "independent of the model" in claims([COST, replace(COST, model="b")])[0]


def test_a_small_run(tmp_path):
    command = ["bench", "overhead", "--model", "tiny", "--n", "2", "--length", "4", "--steps", "2,4", "--repeats", "2"]
    done = CliRunner().invoke(app, [*command, "--device", "cpu", "--dtype", "float32", "--no-compile", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "| tiny float32 | 2 | 4 | 2 |" in done.output
    assert (tmp_path / "overhead.md").read_text() == done.output
    assert (tmp_path / "overhead.png").stat().st_size > 1000
    rows = list(csv.DictReader((tmp_path / "overhead.csv").read_text().splitlines()))
    assert [int(row["steps"]) for row in rows] == [2, 4]
    for row in rows:
        assert 0 < float(row["network_ms"]) < float(row["odd_ms"]) * 10
        assert float(row["overhead_low"]) <= float(row["overhead"]) <= float(row["overhead_high"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dtype", "int4"], "dtype must be one of bfloat16, float16, float32"),
        (["--grid", "mine"], "grid must be one of paper"),
        (["--n", "x"], "--n takes whole numbers"),
        (["--model", "huge"], "unknown model 'huge'.*shapes: llada-8b, 1b, tiny"),
    ],
)
def test_bad_input(options, said):
    done = CliRunner().invoke(app, ["bench", "overhead", "--device", "cpu", *options])
    with pytest.raises(ValueError, match=said):
        raise done.exception

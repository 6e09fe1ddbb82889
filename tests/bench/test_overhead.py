"""`oddlm bench overhead` on a CPU: the table, the files and the claims."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from oddlm.bench.costs import Cost, aims_table, claims, network_flops, read_csv, write_csv
from oddlm.bench.overhead import MODELS, SHAPES, build_model, expand, grid_cells, overhead
from oddlm.cli import app
from oddlm.models.loading.quant import is_quantized
from oddlm.models.native import Native

from ..queries import query

COST = Cost(
    "a", "bf16", 4, 8, 4, 1.0, 1.0, 1.1, 10.0, 9.0, 11.0, 20, 100.0, 8.0, 1.0, 2.0, 3.0, 0.5
)


def test_the_papers_grid():
    grid = grid_cells("paper")
    assert len(grid) == 24
    assert (64, 128, 16) in grid
    assert all(steps <= length for _, length, steps in grid)
    with pytest.raises(ValueError, match="n must be 1 or more, not 0"):
        expand([0, 4], [8], [4])
    with pytest.raises(ValueError, match="no combination has steps <= length"):
        expand([1], [2], [3])


def test_claims():
    costs = [COST, replace(COST, steps=8, overhead=13.0), replace(COST, n=16, odd_extra_mib=32.0)]
    flat, memory = claims(costs)
    assert (
        flat
        == "flat in the number of steps: the overhead differs by 3.0 points (median), 3.0 at most"
    )
    assert memory == "memory grows with n: 2.00 to 2.00 MiB per sample"
    other = replace(COST, model="b", odd_extra_mib=12.0)
    independent, memory = claims([*costs, other])[1:]
    assert independent.startswith("independent of the model")
    assert memory == "memory grows with n: 2.00 to 3.00 MiB per sample"


def test_aims_stand_beside_what_has_them():
    assert aims_table([COST]) == ""
    cell = replace(
        COST, model="llada-8b", n=16, length=64, odd_ms=79.0, overhead=1.2, odd_extra_mib=12.0
    )
    line = aims_table([cell, COST]).splitlines()[-1]
    assert line == (
        "| 16, 64 | 111.2 / 122.6 | 79.0 | at most 80: met | +1.20 % | at most 1 %: missed "
        "| 12 | at most 64: met |"
    )
    assert len(grid_cells("aims")) == 4


def test_flops_of_a_network_by_torchs_own_count():
    model = build_model("tiny", torch.device("cpu"), "float32", "none")
    tokens, lengths = torch.zeros(3, 50 + 8, dtype=torch.long), torch.full((3,), 50)
    tokens[:, 0] = torch.arange(3)  # samples that are alike would be computed once
    for asked in (8, 3):
        first = query(
            model.info, tokens, lengths, 8, 8, positions=torch.arange(asked).expand(3, -1)
        )
        session = model.session(first)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            session(first)
        assert network_flops(model.network.config, 3, 50, 8, asked) == counter.get_total_flops()
    assert network_flops(model.network.config, 3, 50, 8) == network_flops(
        model.network.config, 3, 50, 8, 8
    )


def test_the_network_alone_answers_for_as_many_positions_as_the_samplers_ask(monkeypatch):
    model = build_model("tiny", torch.device("cpu"), "float32", "none")
    head, seen = model.network.logits, []
    monkeypatch.setattr(model.network, "logits", lambda x: seen.append(x.shape[1]) or head(x))
    list(overhead(model, [(2, 8, 4)], dtype="float32", alpha=8.0, temperature=1.0, repeats=1))
    assert seen[-12:] == [8, 8, 8, 6, 6, 6, 4, 4, 4, 2, 2, 2]


def test_the_papers_grid_takes_two_networks():
    assert MODELS["paper"].split(",") == ["llada-8b", "dream-7b"]
    assert {MODELS[None], MODELS["aims"]} == {"llada-8b"}
    assert SHAPES["llada-8b"].vocab_size == 126464
    assert SHAPES["dream-7b"].shift


def test_quantised_shapes_can_be_built():
    model = build_model("tiny", torch.device("cpu"), "nf4", "fixed")
    assert is_quantized(model.network)
    with pytest.raises(ValueError, match=r"compiled=.*quantize"):
        Native(model.network, name="x", mask_id=0, end_ids=(), compiled="any")


def test_a_small_run(tmp_path):
    command = [
        "bench",
        "overhead",
        "--model",
        "tiny",
        "--n",
        "2",
        "--length",
        "4",
        "--steps",
        "2,4",
        "--repeats",
        "2",
    ]
    done = CliRunner().invoke(
        app,
        [
            *command,
            "--device",
            "cpu",
            "--dtype",
            "float32",
            "--compile",
            "none",
            "--out",
            str(tmp_path),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "| tiny fp32 | 2 | 4 | 2 |" in done.output
    assert (tmp_path / "overhead.md").read_text() == done.output
    assert (tmp_path / "overhead.png").read_bytes().startswith(b"\x89PNG")
    written = tmp_path / "again.csv"
    write_csv(read_csv(tmp_path / "overhead.csv"), written)
    assert written.read_text() == (tmp_path / "overhead.csv").read_text()
    rows = list(csv.DictReader((tmp_path / "overhead.csv").read_text().splitlines()))
    assert [int(row["steps"]) for row in rows] == [2, 4]
    for row in rows:
        assert 0 < float(row["network_ms"]) < float(row["odd_ms"]) * 10
        assert float(row["overhead_low"]) <= float(row["overhead"]) <= float(row["overhead_high"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "int4"], "dtype must be one of bf16, fp16, fp32, nf4, int8"),
        (["--compile", "yes"], "compile must be one of fixed, any, none"),
        (["--grid", "mine"], "grid must be one of paper, aims"),
        (["--n", "x"], "--n takes .*whole numbers"),
        (["--model", "huge"], "unknown model 'huge'.*shapes: llada-8b, dream-7b, 1b, tiny"),
    ],
)
def test_bad_input(options, message):
    done = CliRunner().invoke(app, ["bench", "overhead", "--device", "cpu", *options])
    with pytest.raises(ValueError, match=message):
        raise done.exception


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("name", "axes"), [("overhead", 2), ("overhead-models", 2), ("overhead-paper", 3)]
)
def test_the_overhead_is_drawn_from_a_table(monkeypatch, tmp_path, name, axes):
    """There is a panel per axis, with all intervals inside, a dashed zero and plain numbers."""
    drawn = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, path, **_: drawn.append(figure)
    )
    table = RESULTS / f"{name}-h200.csv"
    done = CliRunner().invoke(app, ["bench", "draw", str(table), "--out", str(tmp_path / "o.png")])
    assert done.exit_code == 0, done.output
    (figure,) = drawn
    costs = read_csv(table)
    assert len(figure.axes) == axes
    assert "%" in figure.axes[0].get_ylabel()
    low, high = figure.axes[0].get_ylim()
    assert low <= min(c.overhead_low for c in costs) <= max(c.overhead_high for c in costs) <= high
    for panel in figure.axes:
        assert (panel.lines[0].get_linestyle(), *panel.lines[0].get_ydata()) == ("--", 0, 0)
        assert sum(
            len(line.get_xdata()) for line in panel.lines if line.get_marker() == "o"
        ) == len(costs)
    figure.draw_without_rendering()
    told = [
        text.get_text()
        for panel in figure.axes
        for text in (*panel.get_xticklabels(), *figure.axes[0].get_yticklabels())
    ]
    assert all(re.fullmatch(r"[-\u2212]?[0-9.]+", text) for text in told)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", None, "\x00"])
def test_a_table_that_is_none(tmp_path, text):
    path = tmp_path / "t.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv"):
        read_csv(path)

"""`oddlm bench answers` on a CPU: what is counted, what is compared, and the files."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from oddlm.bench.answers import Products, Setting, Way, answers, run_as, usual_networks
from oddlm.bench.costs import published_ms
from oddlm.bench.memory import peak_mib
from oddlm.bench.overhead import SHAPES, build_model
from oddlm.cli import app
from oddlm.models import load_model
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer

CPU = torch.device("cpu")
SETTING = Setting(n=2, length=8, steps=4, block_length=4, alpha=8.0, temperature=1.0)


@pytest.fixture(scope="module")
def model() -> Native:
    return build_model("tiny", CPU, "fp32", "none")


@pytest.fixture(scope="module")
def block_causal() -> Native:
    config = replace(SHAPES["tiny"], vocab_size=64, block_length=4)
    return Native(Transformer(config), name="blocks", mask_id=0, end_ids=(1, 2))


def products(model: Native, network: str) -> Products:
    record = Products()
    assert Way(run_as(model, network), "plain", SETTING, 10).run(record=record) == 4
    return record


def test_the_floor_has_the_products_with_weights_and_no_others(model):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        Way(run_as(model, "none"), "plain", SETTING, 10).run()
    counts = counter.get_flop_counts()["Global"]
    assert counts[torch.ops.aten.bmm] > 0, "attention"
    found = sum(2 * m * k * n for m, k, n in products(model, "none").shapes)
    assert found == counts[torch.ops.aten.mm]


def test_the_floor_follows_the_positions_that_a_cache_leaves_out(model):
    config = model.network.config
    qkv = (config.width, 3 * config.width)
    rows = {
        network: [m for m, *sizes in products(model, network).shapes if tuple(sizes) == qkv]
        for network in ("none", "dual")
    }
    # every step runs 2 x 18 positions; with the dual cache every other one is a window of 2 x 4
    # at the first step the samples are still identical, and computed once
    assert rows["none"] == [18, 18, *[36] * 6]
    assert rows["dual"] == [18, 18, 8, 8, 36, 36, 8, 8]


def test_lanes_are_compared_turn_by_turn(model):
    pairs = [("none", "plain"), ("dual", "plain"), ("none", "odd"), ("none", "threshold")]
    seen: list[str] = []
    lanes = answers(model, pairs, SETTING, dtype="fp32", repeats=2, start=10, tick=seen.append)
    assert [(lane.network, lane.sampler) for lane in lanes] == pairs
    assert len(seen) == 3 * len(pairs)
    for lane in lanes:
        assert lane.steps == 4
        assert lane.step_ms_low <= lane.step_ms <= lane.step_ms_high
        assert lane.tokens_per_s == pytest.approx(16 * 8 / lane.seconds)
        assert lane.seconds == pytest.approx(8 * 4 * lane.step_ms / 1000)
        assert lane.over_floor_low <= lane.over_floor <= lane.over_floor_high
        assert lane.floor_ms > 0
        assert lane.host_ms > 0
        assert lane.extra_mib > 0
        assert lane.published_ms is None
    first, dual, odd, threshold = lanes
    assert {lane.speed_low for lane in (first, odd, threshold)} == {1.0}
    assert odd.extra_mib > first.extra_mib
    assert dual.speed_low <= dual.speed <= dual.speed_high


def test_the_narrow_network_takes_as_many_steps_and_blocks(model):
    assert SETTING.narrow() == replace(SETTING, length=4, block_length=2)
    assert replace(SETTING, steps=3, block_length=None).narrow().length == 3


def test_block_causal_networks_have_a_cache_of_their_own(block_causal):
    assert usual_networks(block_causal) == ("none", "exact")
    lanes = answers(
        block_causal,
        [("none", "plain"), ("exact", "plain")],
        replace(SETTING, block_length=32),
        dtype="fp32",
        repeats=1,
        start=6,
    )
    assert [lane.block_length for lane in lanes] == [4, 4]
    assert all(lane.host_ms > 0 for lane in lanes)
    assert lanes[0].steps == lanes[1].steps
    with pytest.raises(ValueError, match="cache='dual'"):
        run_as(block_causal, "dual")


def test_other_models_run_in_one_way(model):
    toy = load_model("toy")
    assert usual_networks(toy) == ("none",)
    (lane,) = answers(toy, [("none", "odd")], SETTING, dtype="fp32", repeats=1, start=4)
    assert (lane.host_ms, lane.host_share) == (None, None)
    for other, network in ((toy, "dual"), (model, "exact")):
        with pytest.raises(ValueError, match=f"'{network}'"):
            run_as(other, network)


def test_compiling_a_lane_leaves_the_others_as_they_are(model):
    compiled = run_as(model, "compiled")
    assert compiled.compiled == "fixed"
    for ours, theirs in zip(model.network.blocks, compiled.network.blocks, strict=True):
        assert ours._compiled_call_impl is None
        assert theirs._compiled_call_impl is not None
        assert theirs.qkv.weight.data_ptr() == ours.qkv.weight.data_ptr()


def test_published_figures_stand_beside_the_same_setting_only():
    same = ("llada-8b", "bf16", 16, 256, 32)
    assert published_ms(("none", "plain"), *same) == 245
    assert published_ms(("dual", "plain"), *same) == 62
    assert published_ms(("dual", "odd"), *same) is None
    assert published_ms(("none", "plain"), "llada-8b", "bf16", 16, 128, 32) is None


def test_the_peak_on_a_cpu():
    kept = torch.zeros(1 << 18)  # 1 MiB, before the call
    assert peak_mib(CPU, lambda: (kept + 1) * 2) == pytest.approx(2, abs=0.1)


def test_the_files(tmp_path):
    files = {"--json": tmp_path / "a.json", "--csv": tmp_path / "a.csv"}
    command = ["bench", "answers", "--shape", "tiny", "--networks", "none,prefix", "--samplers"]
    command += ["plain", "--n", "2", "--length", "4", "--block-length", "2", "--steps", "2"]
    command += ["--prompt", "5", "--repeats", "1", "--device", "cpu"]
    command += [str(word) for pair in files.items() for word in pair]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "tokens/s" in done.output
    found = json.loads(files["--json"].read_text())
    rows = list(csv.DictReader(files["--csv"].read_text().splitlines()))
    assert [lane["network"] for lane in found["lanes"]] == ["none", "prefix"]
    assert [float(row["step_ms"]) for row in rows] == [lane["step_ms"] for lane in found["lanes"]]
    assert (found["machine"], found["prompt"]) == ("CPU", 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--networks", "graphs"], "networks must be one of none, prefix, dual, exact, compiled"),
        (["--samplers", "dpp"], "samplers must be one of plain, odd, threshold"),
        (["--dtype", "int4"], "dtype must be one of bf16"),
        (["--shape", "huge"], "unknown model 'huge'"),
    ],
)
def test_bad_input(options, message):
    command = ["bench", "answers", "--shape", "tiny", "--device", "cpu", *options]
    done = CliRunner().invoke(app, command)
    with pytest.raises(ValueError, match=message):
        raise done.exception

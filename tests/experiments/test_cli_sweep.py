"""`oddlm sweep` on the command line: what it prints before it runs, and what it refuses."""

from pathlib import Path

import pytest

from oddlm.models.toy import Toy

from ..cli.test_eval import oddlm  # noqa: F401
from ..runs import stored, sweep_inline
from .test_run import ROOT

SMOKE = str(ROOT / "grids" / "smoke.toml")
HEAD = 'model = "toy"\ntask = "tests.own_task.TASK"\nn = 2\n'


def test_a_dry_run_says_how_much_there_is_and_runs_nothing(oddlm, tmp_path):  # noqa: F811
    code, out, err = oddlm("sweep", SMOKE, "--dry-run", "--workers", "2")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert first == "12 runs on 4 problems (countdown): 48 groups, 192 samples"
    assert second == "in runs: 0 runs complete, 0 groups done, 48 to do"
    assert third.startswith("about 0:0")
    assert third.endswith(" (h:mm:ss) with 2 workers, from 3 groups timed here with 1 at a time")
    assert not Path("runs").exists()


def test_a_dry_run_counts_what_is_done(oddlm):  # noqa: F811
    Path("part.toml").write_text(Path(SMOKE).read_text().replace("seed = [0, 1]", "seed = 1"))
    sweep_inline(Path("part.toml"), Path("runs"))
    code, out, _ = oddlm("sweep", SMOKE, "--dry-run", "--no-calibration", "--shard", "2/2")
    assert code == 0
    assert out.splitlines() == [
        "6 runs on 4 problems (countdown): 24 groups, 96 samples",
        "in runs: 3 runs complete, 12 groups done, 12 to do",
    ]
    code, out, _ = oddlm("sweep", SMOKE, "--dry-run", "--no-calibration")
    assert "in runs: 6 runs complete, 24 groups done, 24 to do" in out


def test_max_batch_changes_no_sample(oddlm, monkeypatch):  # noqa: F811
    """Three problems with ten samples each are drawn together, four samples per network call."""
    Path("grid.toml").write_text(HEAD.replace("n = 2", "n = 10\nlimit = 3"))
    sweep_inline(Path("grid.toml"), Path("whole"))
    seen: list[int] = []
    network = Toy.__call__

    def watched(self, tokens, *rest, **more):
        seen.append(len(tokens))
        return network(self, tokens, *rest, **more)

    monkeypatch.setattr(Toy, "__call__", watched)
    code, _, err = oddlm(
        "sweep", "grid.toml", "--together", "3", "--max-batch", "4", "--executor", "inline"
    )
    assert (code, err) == (0, "")
    assert set(seen) == {4, 2}
    assert stored(Path("runs")) == stored(Path("whole"))
    assert oddlm("sweep", "grid.toml", "--max-batch", "0")[0] == 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (HEAD + "[params]\nalpa = 1", [], "grid.toml: unknown field 'params.alpa'; known: length"),
        (
            HEAD + "[params]\nalpha = -1",
            [],
            "grid.toml: params.alpha: Input should be greater than or equal to 0, not -1",
        ),
        (HEAD + '[params]\nobjective = "od"', [], "unknown objective 'od'; known: dpp"),
        (
            HEAD + '[params]\nfeature = {name = "max_pool", top = 1}',
            [],
            "feature 'max_pool' has no option 'top'",
        ),
        (HEAD + '[params]\npolicy = "lowest"', [], "unknown policy 'lowest'; known: "),
        (
            HEAD.replace("own_task.TASK", "own_task.NONE"),
            [],
            "task 'tests.own_task.NONE' cannot be imported",
        ),
        (HEAD.replace("toy", "toi"), [], "unknown model 'toi'; known: mini, toy"),
        ("", [], "grid.toml holds no runs"),
        (HEAD, ["--shard", "3/2"], "--shard takes I/N with I from 1 to N, such as 2/5, not '3/2'"),
        (HEAD, ["--shard", "half"], "--shard takes I/N"),
        (HEAD, ["--shard", "2/2"], "part 2 of 2"),
        (HEAD, ["--data", "countdown"], "--data takes TASK=FILE, not 'countdown'"),
        (
            HEAD.replace("tests.own_task.TASK", "countdown"),
            ["--data", "countdown=no.jsonl"],
            "cannot read no.jsonl: No such",
        ),
        (HEAD, ["--store", "file"], "file is a file, but a store is a folder"),
        (
            HEAD,
            ["--executor", "ray:address=127.0.0.1:1"],
            "the Ray address 127.0.0.1:1 does not answer",
        ),
        (HEAD.replace('"toy"', '{name = "toy", dpeth = 3}'), [], "dpeth"),
        (
            HEAD.replace('"toy"', '{name = "toy", quantize = "nf4"}'),
            [],
            "model 'toy' has no option 'quantize'; options: vocab",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(oddlm, text, options, message):  # noqa: F811
    Path("grid.toml").write_text(text)
    Path("file").write_text("mine")
    code, out, err = oddlm("sweep", "grid.toml", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("oddlm: ")
    assert len(err.splitlines()) == 1
    assert not list(Path().glob("runs/*"))

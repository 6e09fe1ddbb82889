"""Stores with something else in place of a file: it is reported, and other runs still work."""

import json
import os
import resource
import shutil
import signal
import socket
from pathlib import Path

import pytest

from oddlm.experiments.grid import read_grid
from oddlm.experiments.plan import make_plan
from oddlm.store import Spec, Store

from ..cli.test_eval import oddlm  # noqa: F401 -- a fixture
from ..experiments.test_run import ROOT
from ..runs import carry_out

pytestmark = pytest.mark.filterwarnings("default")  # commands show warnings to the user
GRID = """model = "toy"
task = {name = "tests.own_task.TASK", limit = 2}
n = 2
[params]
alpha = [0, 8]
temperature = 1
"""
GRACE_S = 600  # for a test that takes a second
ROOM = 3 << 30  # bytes of memory; an endless file must not be read
FILES = [
    "spec.json",
    "environment.json",
    "drawn.jsonl",
    "scores.jsonl",
    "summary.json",
    "failures.jsonl",
    "lock",
]
KINDS = ["folder", "pipe", "zero", "full", "socket", "loop"]
# files that read-only commands read
READ = ["spec.json", "environment.json", "drawn.jsonl", "scores.jsonl", "summary.json"]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Two complete runs: plain sampling, and the one that is about to be damaged."""
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "grid.toml").write_text(GRID)
    carry_out(make_plan(read_grid(tmp_path / "grid.toml")), Store(tmp_path / "runs"))
    return Store(tmp_path / "runs")


@pytest.fixture
def bounded():
    """Fail a test that blocks, or reads without end."""

    def late(*_):
        # not an OSError, which commands would report as damage
        pytest.fail(f"it took longer than {GRACE_S} s")

    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, limits[1]))
    signal.alarm(GRACE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
        os.chdir(here)
    else:
        path.symlink_to(path.name if kind == "loop" else f"/dev/{kind}")


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("file", READ)
@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_file_is_named_and_the_other_run_is_shown(store, oddlm, file, kind):  # noqa: F811
    other, odd = store.ids()
    replace(store.folder / odd / file, kind)
    begun = odd in store.ids()  # False if spec.json is a broken link
    code, out, err = oddlm("runs")
    assert (code, err.count("\n")) == ((2, 1) if begun else (0, 0))
    assert (other in out, odd in out, f"{odd}/{file}" in err) == (True, False, begun)
    code, out, err = oddlm("runs", "sql", "select run, scored from runs")
    assert (code, err.count("\n"), f"{odd}/{file}" in err) == (0, int(begun), begun), err
    assert (other in out, odd in out) == (True, False)
    code, out, err = oddlm("report")
    assert (code, f"{odd}/{file}" in err) == (0, begun), err


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_goes_on_with_the_other_run(store, oddlm, file, kind):  # noqa: F811
    other, odd = store.ids()
    for name in (other, odd):
        (store.folder / name / "summary.json").unlink()
        (store.folder / name / "drawn.jsonl").unlink()
        (store.folder / name / "scores.jsonl").unlink()
    path = store.folder / odd / file
    replace(path, kind)
    before = path.lstat()
    plan = make_plan(read_grid(Path("grid.toml")))
    result = carry_out(plan, store)
    assert result.complete == 1
    (message,) = result.damaged
    assert str(path) in message
    assert len(message.splitlines()) == 1
    assert store.read(other).complete
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino), (
        "it was not replaced"
    )
    code, out, err = oddlm("sweep", "grid.toml", "--dry-run", "--no-calibration")
    assert (code, "1 run complete" in out) == (0, True)
    assert err.count("\n") == (file in READ), "only files that were read are reported"
    (spec,) = (run.spec for run in plan.runs if run.spec.id == odd)
    with pytest.raises(ValueError, match=file), store.open(spec, 2) as run:
        run.clear_failures(["draw"])


def test_a_sweep_names_odd_runs_and_fails(store, oddlm):  # noqa: F811
    _, odd = store.ids()
    replace(store.folder / odd / "drawn.jsonl", "folder")
    code, out, err = oddlm("sweep", "grid.toml")
    assert (code, err) == (
        1,
        f"oddlm: {Path('runs') / odd / 'drawn.jsonl'} is a folder, not a file: move it away\n",
    )
    assert "1 of 2 runs are complete" in out


@pytest.mark.parametrize("file", ["drawn.jsonl", "scores.jsonl"])
def test_a_run_whose_records_are_gone_is_not_complete(store, oddlm, file):  # noqa: F811
    whole, odd = store.ids()
    before = store.read(odd).records
    path = store.folder / odd / file
    first = path.read_bytes().split(b"\n")[0] + b"\n"
    plan = make_plan(read_grid(Path("grid.toml")))
    for left, count in ((None, 0), (b"", 0), (first, 1)):
        path.unlink(missing_ok=True)
        if left is not None:
            path.write_bytes(left)
        assert {run.spec.id: store.complete(run.spec) for run in plan.runs} == {
            whole: True,
            odd: False,
        }
        for command in (
            ["runs"],
            ["report"],
            ["sweep", "grid.toml", "--dry-run", "--no-calibration"],
        ):
            err = oddlm(*command)[2]
            assert f"{Path('runs') / odd / file} holds {count} of the 2" in err, command
            assert err.count("\n") == 1, command
        answer = oddlm("runs", "sql", "--json", "select run, drawn, scored, complete from runs")[1]
        assert json.loads(answer) == {"run": whole, "drawn": 2, "scored": 2, "complete": True}
        (message,) = carry_out(plan, store).damaged
        assert str(path) in message, "according to its summary, it was copied in part"
    (store.folder / odd / "summary.json").unlink()
    (store.folder / odd / "scores.jsonl").unlink()
    assert carry_out(plan, store).complete == 2
    assert [r.samples for r in store.read(odd).records] == [r.samples for r in before]


BIG = 2**70


@pytest.mark.parametrize("seed", [BIG, 2**63, -(2**63) - 1])
def test_a_seed_that_nothing_can_hold_is_refused_at_the_door(oddlm, tmp_path, seed):  # noqa: F811
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "t5"}\n')
    (tmp_path / "grid.toml").write_text(f"seed = {seed}\n{GRID}")
    for command in (
        ["eval", "tests.own_task.TASK", "--model", "toy", f"--seeds={seed}"],
        ["sample", "t5", "--model", "toy", f"--seed={seed}"],
        ["generate", "--in", "prompts.jsonl", "--out", "out", "--model", "toy", f"--seed={seed}"],
        ["sweep", "grid.toml"],
    ):
        code, _, err = oddlm(*command)
        assert (code, err.count("\n")) == (2, 1), err
        assert "seed: " in err
        assert str(seed) in err
    assert not (tmp_path / "runs").exists()


def test_the_largest_seeds_are_held_by_everything(oddlm, tmp_path):  # noqa: F811
    seeds = f"{-(2**63)},{2**63 - 1}"
    shape = ["--model", "toy", "--n", "2", "--limit", "2", "--alpha", "0", "--length", "4"]
    assert oddlm("eval", "tests.own_task.TASK", *shape, f"--seeds={seeds}")[0] == 0
    assert str(2**63 - 1) in oddlm("runs")[1]
    answer = oddlm("runs", "sql", "--json", "select seed from runs order by seed")[1]
    assert [json.loads(line)["seed"] for line in answer.splitlines()] == [-(2**63), 2**63 - 1]
    assert oddlm("report")[0] == 0


VALUES = [BIG, -1, 0, 1e308, "x", None, [], {}, True]


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:1]):
            yield from leaves(inner, (*path, i))
    yield path


def copy_run(store: Store, name: str, *, seed: int) -> Path:
    """Copy a run under another seed, and so under another id."""
    spec = store.head(name).spec.model_copy(update={"seed": seed})
    folder = shutil.copytree(store.folder / name, store.folder / spec.id)
    (folder / "spec.json").write_text(
        Spec(id=spec.id, problems=2, spec=spec).model_dump_json() + "\n"
    )
    return folder


@pytest.mark.parametrize("file", READ)
def test_whatever_stands_in_a_file_the_others_are_shown(store, oddlm, monkeypatch, bounded, file):  # noqa: F811
    """Replace every value of a file in turn by other JSON values, each in a separate run."""
    from oddlm.report import plots

    # 80 in workers of pytest-xdist, where huge numbers crowd out the ids
    monkeypatch.delenv("COLUMNS", raising=False)
    # pictures are slow, and read no files
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    other, odd = store.ids()
    summary = (store.folder / odd / "summary.json").read_text()
    made = 0
    for imported in (None, "log.csv"):  # an imported run needs no records
        (store.folder / odd / "summary.json").write_text(
            json.dumps({**json.loads(summary), "imported": imported})
        )
        for place in [
            place
            for place in leaves(json.loads((store.folder / odd / file).read_text().split("\n")[0]))
            if place
        ]:
            for value in VALUES:
                made += 1
                copy = copy_run(store, odd, seed=made)
                head, _, rest = (copy / file).read_text().partition("\n")
                content = inner = json.loads(head)
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = value
                (copy / file).write_text(json.dumps(content) + "\n" + rest)
    assert made > 50
    code, out, _ = oddlm("runs")
    assert (code, other in out) == (0 if file in ("drawn.jsonl", "scores.jsonl") else 2, True), (
        "records are counted, not read"
    )
    code, out, _ = oddlm("runs", "sql", "select run from runs")
    assert (code, other in out) == (0, True)
    code, _, err = oddlm("report")
    assert (code, f"left out run {other}" in err) == (0, False), err

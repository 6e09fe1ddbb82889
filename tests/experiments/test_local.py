"""Local sweeps complete even if workers or the driver die, always with the same records."""

import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from oddlm.cli import main
from oddlm.experiments import work
from oddlm.experiments.executors.local import _work
from oddlm.experiments.grid import read_grid, shard
from oddlm.experiments.identity import identified
from oddlm.experiments.plan import make_plan
from oddlm.experiments.work import Batch, Bench, Holder, Job, Options, soonest
from oddlm.store import Store
from oddlm.tasks import Problem

from .. import own_task
from ..runs import carry_out, drawn, scored, stored, sweep_inline
from ..waiting import WAIT_S, wait_gone, wait_until
from .running import GRID, start, sweep
from .test_run import ENV, ROOT

SMOKE = ROOT / "grids" / "smoke.toml"


@pytest.fixture
def grid(tmp_path):
    def write(task: str) -> Path:
        path = tmp_path / "grid.toml"
        path.write_text(GRID.format(task=f"tests.own_task.{task}"))
        return path

    return write


def workers_of(process) -> list[int]:
    """The workers that a driver has started, without Python's resource tracker."""
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in pids if b"spawn_main" in command_of(pid)]


def command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
        return b""


def test_eval_and_sweep_make_the_same_rows(grid, tmp_path, monkeypatch, capsys):
    assert sweep_inline(grid("TASK"), tmp_path / "a").complete == 8
    found = stored(tmp_path / "a")
    assert [len(run) for run in found.values()] == [12] * 8
    assert all(Store(tmp_path / "a").read(name).summary for name in found)
    command = "eval tests.own_task.TASK --model toy --n 4 --temperature 0,1 --alpha 8 --seeds 0,1"
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr("sys.argv", ["oddlm", *command.split(), "--store", str(tmp_path / "b")])
    with pytest.raises(SystemExit):
        main()
    other = stored(tmp_path / "b")
    assert found.keys() == other.keys()
    for name, run in other.items():
        for problem, record in run.items():
            assert found[name][problem] == record


def test_smoke_from_end_to_end(tmp_path):
    code, out, err = sweep(SMOKE, tmp_path / "runs", "--workers", "2", "--together", "3")
    assert (code, err) == (0, "")
    assert "12 of 12 runs are complete" in out
    sweep_inline(SMOKE, tmp_path / "whole")
    assert stored(tmp_path / "runs") == stored(tmp_path / "whole")
    assert [len(run) for run in stored(tmp_path / "runs").values()] == [4] * 12


@pytest.mark.soak
def test_a_worker_killed_then_the_driver_of_four(grid, tmp_path, monkeypatch):
    path, store = grid("SLOW"), tmp_path / "runs"
    process = start(path, store, "--workers", "4")
    wait_until(lambda: scored(store) >= 3 and len(workers_of(process)) == 4, process)
    first = workers_of(process)
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: len(set(workers_of(process)) - set(first)) == 1, process)
    wait_until(lambda: scored(store) >= 20, process)
    workers = workers_of(process)
    process.kill()
    process.communicate()
    assert 20 <= scored(store) < 96
    for pid in workers:  # they end with their driver
        wait_gone(pid)
    code, _, err = sweep(path, store, "--workers", "4")
    assert (code, err) == (0, "")
    monkeypatch.setattr(
        own_task, "SLOW", own_task.TASK
    )  # nothing is killed here, so it need not be slow
    sweep_inline(path, tmp_path / "whole")
    assert stored(store) == stored(tmp_path / "whole")
    assert scored(store) == 96
    assert all(Store(store).read(name).summary for name in Store(store).ids())


def test_a_problem_that_kills_its_workers_is_given_up(grid, tmp_path):
    path = grid("DEADLY")
    path.write_text(path.read_text().replace("[0, 1]", "0").replace("[0, 8]", "8"))
    code, out, err = sweep(path, tmp_path / "runs", "--together", "4")
    assert code == 1
    assert "0 of 1 runs are complete" in out
    assert "own/3: RuntimeError: its worker died 3 times: killed by SIGKILL" in err
    (run,) = stored(tmp_path / "runs").values()
    assert run.keys() == {f"own/{i}" for i in range(12)}, "all are drawn"
    unscored = {name for name, record in run.items() if record["samples"][0]["correct"] is None}
    assert unscored == {"own/3"}


def test_a_worker_that_hangs_is_replaced(grid, tmp_path, monkeypatch):
    monkeypatch.setitem(ENV, "ODDLM_TEST_HUNG", str(tmp_path / "hung"))
    path = grid("HANGING")
    path.write_text(path.read_text().replace("[0, 1]", "0").replace("[0, 8]", "8"))
    code, out, err = sweep(
        path, tmp_path / "runs", "--together", "4", "--executor", "local:timeout=15"
    )
    assert (code, err) == (0, "")
    assert "1 of 1 runs are complete" in out
    assert (tmp_path / "hung").exists()
    monkeypatch.setattr(own_task, "HANGING", own_task.TASK)
    sweep_inline(path, tmp_path / "whole")
    assert stored(tmp_path / "runs") == stored(tmp_path / "whole")


def test_a_worker_hangs_by_its_oldest_job(monkeypatch):
    now = 100.0
    monkeypatch.setattr(work.time, "monotonic", lambda: now)
    job, worker, idle = Job(Batch(make_plan(read_grid(SMOKE)).runs[0].spec, ())), Holder(), Holder()
    worker.hold(0, job)
    now = 104.0
    worker.hold(1, job)
    assert (worker.left(10), worker.overdue(10), soonest([worker], 10)) == (6, None, 6)
    now = 109.0
    worker.answered(1)
    worker.hold(2, job)
    assert worker.left(10) == 1, "what it does beside it is no excuse"
    now = 111.0
    assert worker.overdue(10) == "no answer within 10 s"
    assert idle.overdue(10) is worker.overdue(None) is soonest([worker], None) is None
    worker.answered(0)
    assert worker.left(10) == 10, "the next one had to wait"
    now = 150.0
    worker.answered(2)
    assert worker.overdue(10) is None, "who has nothing to do owes nothing"
    worker.hold(3, job)
    assert worker.left(10) == 10


def test_nine_tenths_of_results_and_a_list_of_failures(grid, tmp_path):
    path, store = grid("FAILING"), Store(tmp_path / "runs")
    code, out, err = sweep(path, store.folder, "--together", "7")
    assert code == 1
    assert "0 of 8 runs are complete" in out
    assert "16 of 160 problems failed; the same command tries them again:" in err
    assert "own/13: RuntimeError: no verdict on own/13" in err
    specs = [run.spec for run in make_plan(read_grid(path)).runs]
    for spec in specs:
        assert (store.head(spec.id).drawn, store.head(spec.id).scored) == (20, 18)
        assert store.read(spec.id).summary is None
        failed = {(failure.problem, failure.stage) for failure in store.failures(spec)}
        assert failed == {("own/3", "score"), ("own/13", "score")}  # in either order
        assert (
            'raise RuntimeError(f"no verdict on {problem.id}")' in store.failures(spec)[0].traceback
        )


def test_what_failed_is_tried_again_and_trackers_are_told(grid, tmp_path, monkeypatch):
    plan, store = make_plan(read_grid(grid("FAILING"))), Store(tmp_path / "runs")
    broken = carry_out(plan, store, together=3)
    assert (len(broken.failures), broken.complete) == (16, 0)
    before = {spec.id: store.read(spec.id).records for spec in [run.spec for run in plan.runs]}
    monkeypatch.setattr(
        own_task,
        "FAILING",
        own_task.Task("mended", own_task.load_many, own_task.prompt, own_task.score, 6),
    )
    told: list[tuple] = []

    class Told:
        def start(self, spec, problems):
            told.append(("start", spec.id, problems))

        def record(self, spec, record):
            told.append(("record", spec.id, record.problem))

        def finish(self, spec, summary):
            told.append(("finish", spec.id, summary.problems))

    mended = carry_out(plan, store, tracker=Told())
    assert (mended.failures, mended.complete) == ([], 8)
    for spec in [run.spec for run in plan.runs]:
        now = store.read(spec.id).records
        failed = {"own/3", "own/13"}
        assert [one for one in now if one.problem not in failed] == [
            one for one in before[spec.id] if one.problem not in failed
        ]
        assert store.failures(spec) == []
        own = [what for what in told if what[1:2] == (spec.id,)]
        assert own[0] == ("start", spec.id, 20)
        assert own[-1] == ("finish", spec.id, 20)
        assert sorted(what[2] for what in own[1:-1]) == sorted(
            record.problem for record in store.read(spec.id).records
        )
    assert carry_out(plan, store).complete == 8


def test_ctrl_c_loses_nothing(grid, tmp_path):
    path, store = grid("SLOW"), tmp_path / "runs"
    process = start(path, store, "--workers", "2")
    wait_until(lambda: scored(store) >= 3, process)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    done = f"of 96 problems {drawn(store)} are drawn and {scored(store)} scored in {store}"
    assert err == f"oddlm: stopped; {done}. The same command resumes from there.\n"
    for pid in workers:
        wait_gone(pid)
    assert make_plan(read_grid(path)).survey(Store(store)).units == scored(store) >= 3


def test_a_worker_whose_answers_nobody_reads_ends_in_silence(capfd):
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.get_context("spawn").Process(
        target=_work, args=(there, Options(), 0, 1)
    )
    worker.start()
    there.close()
    here.send((0, None))  # not a batch, so the worker answers with an error
    assert here.poll(WAIT_S)
    here.close()
    worker.join(WAIT_S)
    assert worker.exitcode == 0
    assert capfd.readouterr().err == ""


def test_shards_are_merged_by_copying(tmp_path):
    runs = read_grid(SMOKE)
    parts = [shard(runs, part, 5) for part in (1, 2, 3, 4, 5)]
    assert sorted(run.spec.id for part in parts for run in part) == sorted(
        run.spec.id for run in runs
    )
    for number, part in enumerate(parts):
        carry_out(make_plan(part), Store(tmp_path / str(number)))
        shutil.copytree(tmp_path / str(number), tmp_path / "merged", dirs_exist_ok=True)
    sweep_inline(SMOKE, tmp_path / "whole")
    assert stored(tmp_path / "merged") == stored(tmp_path / "whole")


def test_the_same_text_is_scored_once(monkeypatch):
    from oddlm.config import checked
    from oddlm.spec import RunSpec

    calls: list[tuple[str, str]] = []

    def counted(problem, text):
        calls.append((problem.id, text))
        return own_task.score(problem, text)

    monkeypatch.setattr(own_task, "TASK", replace(own_task.TASK, score=counted))
    bench = Bench(Options())
    params = {"length": 6, "alpha": 0, "temperature": 0.0}
    for seed in (0, 1):
        asked = {
            "model": "toy",
            "task": "tests.own_task.TASK",
            "n": 4,
            "seed": seed,
            "params": params,
        }
        spec = identified(checked(RunSpec, asked))
        batch = Batch(spec, tuple(own_task.load()))
        found = bench.run(batch).records
        assert [len(record.samples) for record in found] == [4] * 12
        assert calls == [] or seed == 1, "drawing scores nothing"
        bench.run(replace(batch, drawn=found))
    assert len(calls) == len(set(calls)) == 12, (
        "at temperature 0 plain samples are alike, whatever the seed"
    )


def test_a_problem_that_cannot_be_drawn_leaves_the_others(monkeypatch):
    from oddlm.config import checked
    from oddlm.spec import RunSpec

    problems = (*own_task.load(limit=2), Problem("long", "t1 " * 2000, None), *own_task.load()[2:4])
    spec = identified(
        checked(
            RunSpec,
            {"model": "toy", "task": "tests.own_task.TASK", "n": 2, "params": {"length": 6}},
        )
    )
    outcome = Bench(Options()).run(Batch(spec, problems))
    assert [record.problem for record in outcome.records] == ["own/0", "own/1", "own/2", "own/3"]
    (failure,) = outcome.failures
    assert failure.error.startswith("ValueError: problem long: prompts[0] has 2000 tokens")
    assert "Traceback" in failure.traceback

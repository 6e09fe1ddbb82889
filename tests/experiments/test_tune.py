"""`oddlm tune` finds a known optimum, and no crash loses or doubles a trial."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import psutil
import psycopg
import pytest

from oddlm.config import checked
from oddlm.experiments.executors.inline import InlineExecutor
from oddlm.experiments.identity import identified
from oddlm.experiments.tune import study as studies
from oddlm.experiments.tune.search import (
    Plan,
    _sampler,
    counted,
    open_study,
    outcomes,
    planned,
    tally,
    tune,
    tuning_problems,
)
from oddlm.experiments.tune.space import draw, read_space
from oddlm.experiments.tune.study import process_identity
from oddlm.experiments.work import Options
from oddlm.params import NAMED
from oddlm.spec import RunSpec
from oddlm.store import Store
from oddlm.tasks import find_task

from ..cli.test_eval import oddlm  # noqa: F401
from ..own_task import HILLS, LEAKY, TASK, Hills
from ..runs import run
from ..starting import interruptible
from ..waiting import WAIT_S, wait_until
from .test_run import ENV, ROOT

HILL = ["tune", "tests.own_task.HILLS", "--model", "tests.own_task.Hills", "--together", "24"]
SPACE = ["temperature=0..6", "top_k=1,40"]


def plan(**changes) -> Plan:
    base = {
        "model": "tests.own_task.Hills",
        "task": "tests.own_task.HILLS",
        "split": "tune",
        "n": 8,
    }
    changes = {
        "space": read_space(SPACE, {}),
        "fixed": {"length": 2, "alpha": 0},
        "seeds": (0,),
        "k": 8,
        "floors": {},
        "limit": None,
    } | changes
    return Plan(identified(checked(RunSpec, base)), **changes)


def search(folder: Path, trials: int, plan: Plan, url: str | None = None, watch=lambda *_: None):
    study = open_study(url or f"sqlite:///{folder}/tune.db", "s", plan)
    with closing(InlineExecutor(Options())) as executor:
        tune(
            plan,
            study,
            trials,
            Store(folder / "runs"),
            executor,
            HILLS.load(split="tune"),
            watch=watch,
            together=24,
        )
    return study


def tried(study) -> list[tuple[dict, float]]:
    """The settings and values of the complete trials, in order."""
    return [(t.params, t.value) for t in study.get_trials() if t.state.name == "COMPLETE"]


def test_it_finds_the_better_half_of_a_known_landscape_and_the_same_again(tmp_path):
    study = search(tmp_path, 25, plan())
    grid = np.linspace(0, 6, 601)
    chances = np.array([Hills.chance(t) for t in grid])
    best = outcomes(study)[0].params
    assert best.top_k == 40, "with one token to choose from nothing is ever right"
    assert Hills.chance(best.temperature) > np.quantile(chances, 0.75), (
        "and more than the better half"
    )
    expected = [Hills.chance(p["temperature"]) * (p["top_k"] == "40") for p, _ in tried(study)]
    assert np.mean(expected[10:]) > np.mean(expected[:10]), "after ten trials at random it learns"
    (tmp_path / "again").mkdir()
    assert tried(search(tmp_path / "again", 13, plan())) == tried(study)[:13]
    (tmp_path / "other").mkdir()
    assert tried(search(tmp_path / "other", 3, plan(seed=1))) != tried(study)[:3]


def test_a_setting_that_has_run_costs_nothing(tmp_path):
    few = plan(space=read_space(["temperature=1,2"], {}), fixed={"length": 2, "alpha": 0})
    fresh = []
    study = search(tmp_path, 8, few, watch=lambda one: fresh.extend([one.fresh] * one.problems))
    assert len(tried(study)) == 8
    assert (sum(fresh), len(fresh)) == (48, 192), "two settings, eight trials"
    assert len(outcomes(study)) == len(Store(tmp_path / "runs").ids()) == 2


def test_a_floor_keeps_the_best_from_costing_too_much(tmp_path):
    """With top_k=1 nothing is correct; with top_k=40 some samples are, at medium temperatures."""
    study = search(tmp_path, 12, plan(floors={1: 0.01}))
    for outcome in outcomes(study):
        assert (outcome.short == 0) == (outcome.passed["pass@1"] >= 0.01)
    found = [o.short for o in outcomes(study)]
    assert found == sorted(found)
    assert found[0] == 0 < found[-1]


def test_settings_that_do_not_go_together_are_told_apart(tmp_path):
    study = search(tmp_path, 6, plan(space=read_space(["block_length=1,5"], {})))
    assert tally(study)["pruned"] > 0 < tally(study)["complete"]
    reasons = {t.user_attrs.get("reason") for t in study.get_trials() if t.state.name == "PRUNED"}
    assert len(reasons) == 1
    assert "block_length 5 does not divide length 2" in reasons.pop()


SLOW = [
    "tune",
    "tests.own_task.SLOW_HILLS",
    "--model",
    "tests.own_task.Hills",
    "--n",
    "4",
    "--limit",
    "4",
    "--seeds",
    "0,1",
]
SLOW += ["--space", "temperature=0..6", "--alpha", "0", "--trials", "6"]


def start(folder: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "oddlm",
        *SLOW,
        "--store",
        str(folder),
        "--json",
        str(folder.parent / "out.json"),
    ]
    return interruptible(
        command, cwd=ROOT, env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def records(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/scores.jsonl"))


def hold_in_mid_trial(process: subprocess.Popen[str], folder: Path, after: int) -> None:
    """Stop a process within a trial of 8 records, once there are more than `after` records."""

    def inside() -> bool:
        return records(folder) > after and 0 < records(folder) % 8 < 7

    def held() -> bool:
        if inside():
            process.send_signal(signal.SIGSTOP)
            if inside():
                return True
            process.send_signal(signal.SIGCONT)
        return False

    wait_until(held, process)


def told(folder: Path) -> dict:
    return json.loads((folder.parent / "out.json").read_text())


def test_killed_and_interrupted_it_goes_on_as_if_nothing_had_been(tmp_path, oddlm):  # noqa: F811
    folders = [tmp_path / name / "runs" for name in ("undisturbed", "disturbed")]
    for folder in folders:
        folder.parent.mkdir()
    assert (
        oddlm(*SLOW, "--store", str(folders[0]), "--json", str(folders[0].parent / "out.json"))[0]
        == 0
    )
    assert told(folders[0])["trials"]["complete"] == 6

    killed = start(folders[1])
    hold_in_mid_trial(killed, folders[1], 16)
    killed.kill()
    killed.communicate(timeout=WAIT_S)
    assert killed.returncode == -signal.SIGKILL
    stopped = start(folders[1])
    hold_in_mid_trial(stopped, folders[1], 32)
    stopped.send_signal(signal.SIGINT)
    stopped.send_signal(signal.SIGCONT)
    out, err = stopped.communicate(timeout=WAIT_S)
    assert stopped.returncode == 130, err
    assert "oddlm eval tests.own_task.SLOW_HILLS" in out, "the best so far, ready for use"
    assert err.endswith("oddlm: stopped. The same command resumes from there.\n")
    assert "Traceback" not in err
    last = start(folders[1])
    _, err = last.communicate(timeout=WAIT_S)
    assert last.returncode == 0, err

    one, two = map(told, folders)
    assert two["trials"] == {"complete": 6, "pruned": 0, "fail": 2, "running": 0, "waiting": 0}
    assert two["settings"] == one["settings"]
    assert two["command"] == one["command"]
    assert records(folders[1]) == records(folders[0]) == 6 * 2 * 4, (
        "the samples of the killed trials were kept"
    )


def abandon(folder: Path, process: dict | None) -> int:
    """Start a trial that no known process runs, and return its id."""
    url = f"sqlite:///{folder}/tune.db"
    open_study(url, "s", plan())
    trial = optuna.load_study(study_name="s", storage=url).ask()  # without a heartbeat
    trial.set_user_attr("process", process)
    return trial._trial_id


def test_a_trial_of_another_machine_that_has_been_silent_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "GRACE_S", 1)
    trial = abandon(tmp_path, {"machine": "another", "pid": 1, "started": 1.0})
    studies.open_storage(f"sqlite:///{tmp_path}/tune.db").record_heartbeat(trial)
    time.sleep(2.1)  # the database counts in seconds
    assert [
        t.state.name for t in open_study(f"sqlite:///{tmp_path}/tune.db", "s", plan()).get_trials()
    ] == ["FAIL", "WAITING"]


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_dead_as_soon_as_it_is_a_zombie(child):
    process = json.loads(json.dumps(process_identity(child.pid)))
    assert not studies._dead(process)
    child.kill()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert process_identity(child.pid) is None
    assert studies._dead(process)
    child.wait()
    assert process_identity(child.pid) is None
    assert studies._dead(process)


def test_a_process_lives_on_when_the_clock_is_set(child, monkeypatch):
    process, boot_time = process_identity(child.pid), psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot_time + 3600)
    assert psutil.Process(child.pid).create_time() > time.time() + 3000
    assert process_identity(child.pid) == process
    assert not studies._dead(process)


@pytest.mark.parametrize("change", [{"machine": "another"}, None])
def test_a_process_of_another_machine_is_never_judged(child, change):
    child.kill()
    child.wait()
    gone = process_identity(os.getpid()) | {"pid": child.pid}
    assert studies._dead(gone)
    assert not studies._dead(change and gone | change)


def test_a_process_that_is_hidden_is_never_judged(child, monkeypatch):
    hidden = process_identity(child.pid) | {"started": 1.0}
    assert studies._dead(hidden)
    status = psutil.Process.status

    def refuse(process):
        if process.pid == child.pid:
            raise psutil.AccessDenied(child.pid)
        return status(process)

    monkeypatch.setattr(psutil.Process, "status", refuse)
    assert not studies._dead(hidden)


def test_a_setting_that_kills_its_process_every_time_is_given_up(tmp_path):
    # as if the pid had since been given to another process
    gone = process_identity(os.getpid()) | {"started": 1.0}
    url = f"sqlite:///{tmp_path}/tune.db"
    for _ in range(3):
        abandon(tmp_path, gone)
    assert [t.state.name for t in open_study(url, "s", plan()).get_trials()] == ["FAIL"] * 3


@pytest.mark.parametrize("process", [{"machine": "another", "pid": 1, "started": 1.0}, "living"])
def test_a_trial_that_may_still_run_is_left_alone_and_counted(tmp_path, process):
    abandon(tmp_path, process_identity(os.getpid()) if process == "living" else process)
    again = open_study(f"sqlite:///{tmp_path}/tune.db", "s", plan())
    assert [t.state.name for t in again.get_trials()] == ["RUNNING"]
    assert counted(again) == 1
    assert [len(tried(search(tmp_path, trials, plan()))) for trials in (1, 3)] == [0, 2]


MIXED = [*SPACE, "block_length=1,2,5", "alpha=0,4..8:log", "alpha_schedule=linear,cosine"]
MIXED_FIRST = (
    {"temperature": 1.5, "top_k": 40, "alpha": 5, "block_length": 1},
    {"block_length": 5},
)


def mixed(**changes) -> Plan:
    """A random search with two runs per trial, incompatible settings, and some to try first."""
    space = {"space": read_space(MIXED, {}), "fixed": {"length": 2}, "seeds": (0, 1)}
    return plan(**space | {"search": "random", "first": MIXED_FIRST} | changes)


def runs_of(study) -> list[tuple[str, ...]]:
    """The runs of each trial that is complete or pruned."""
    trials = [t for t in study.get_trials() if t.state.name in ("COMPLETE", "PRUNED")]
    return [tuple(t.user_attrs.get("result", {"runs": ()})["runs"]) for t in trials]


def foretold(plan: Plan, trials: int) -> list[tuple[str, ...]]:
    return [tuple(spec.id for spec in specs) for specs in planned(plan, trials)]


def test_a_random_search_is_known_beforehand(tmp_path):
    ahead = planned(mixed(), 9)
    assert runs_of(search(tmp_path, 9, mixed())) == [
        tuple(spec.id for spec in specs) for specs in ahead
    ]
    first = ahead[0][0].params
    assert (first.temperature, first.top_k, first.alpha, first.block_length) == (1.5, 40, 5, 1)
    assert ahead[1] == (), "length 2 has no blocks of 5"
    assert [spec.seed for spec in ahead[0]] == [0, 1]
    assert planned(mixed(), 4) == ahead[:4]
    assert len({specs for specs in ahead if specs}) == sum(map(bool, ahead)) > 3
    other = planned(mixed(seed=1), 9)
    assert other[0][0].params.top_k == first.top_k
    assert other[2:] != ahead[2:]
    with pytest.raises(ValueError, match="tpe"):
        planned(plan(), 3)


@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_a_random_trial_that_is_killed_while_it_draws_goes_on_with_the_same(tmp_path, drawn):
    random = plan(search="random")
    url = f"sqlite:///{tmp_path}/tune.db"
    open_study(url, "s", random)
    study = optuna.load_study(study_name="s", storage=url)  # without a heartbeat
    for place in range(2):
        trial = study.ask()
        trial.set_user_attr("process", process_identity(os.getpid()) | {"started": 1.0})
        study.sampler = _sampler(random, place)
        draw(random.space[:drawn], {}, trial)
    again = search(tmp_path, 5, random)
    assert tally(again) == {"complete": 5, "pruned": 0, "fail": 2, "running": 0, "waiting": 0}
    assert runs_of(again) == foretold(random, 5)


def test_over_a_store_that_holds_all_runs_it_draws_nothing(oddlm, monkeypatch):  # noqa: F811
    """The runs were made elsewhere, in reverse order."""
    command = [
        *HILL,
        "--n",
        "2",
        "--limit",
        "3",
        "--search",
        "random",
        "--seeds",
        "0,1",
        "--first",
        "temperature=2,top_k=40",
    ]
    command += [word for axis in SPACE for word in ("--space", axis)] + ["--alpha", "0"]
    code, out, err = oddlm(*command, "--trials", "4", "--dry-run")
    assert (code, err) == (0, "")
    lines = list(map(json.loads, out.splitlines()))
    assert [line["trial"] for line in lines] == [0, 1, 2, 3]
    assert (lines[0]["params"]["temperature"], lines[0]["params"]["top_k"]) == (2, 40)
    assert not Path("runs").exists()
    base = identified(
        checked(RunSpec, {"model": HILL[3], "task": HILL[1], "split": "tune", "n": 2})
    )
    fixed = {"length": 2, "alpha": 0}
    first = ({"temperature": 2, "top_k": 40},)
    ahead = planned(
        Plan(base, 3, fixed, read_space(SPACE, {}), (0, 1), 2, {}, 0, "random", first), 4
    )
    assert [line["runs"] for line in lines] == [[spec.id for spec in specs] for specs in ahead]
    for specs in reversed(ahead):
        for spec in reversed(specs):
            run(Path("runs"), spec, limit=3)

    def fail(self):
        raise RuntimeError("the model was loaded")

    monkeypatch.setattr(Hills, "__init__", fail)
    code, out, err = oddlm(*command, "--trials", "4", "--json", "out.json")
    assert (code, err.count("trial ")) == (0, 4), err
    result = json.loads(Path("out.json").read_text())
    assert result["trials"]["complete"] == 4
    assert {tuple(s["runs"]) for s in result["settings"]} == {tuple(line["runs"]) for line in lines}
    code, _, err = oddlm(*command, "--trials", "5")
    assert (code, "does not load: the model was loaded" in err) == (2, True)


def test_settings_to_try_first_come_first_and_teach_the_search(tmp_path):
    known = ({"temperature": 2.5, "top_k": 40}, {"top_k": 1})
    study = search(tmp_path, 4, plan(first=known))
    trials = study.get_trials()
    assert trials[0].params == {"temperature": 2.5, "top_k": "40"}
    assert trials[1].params["top_k"] == "1"
    assert tried(study)[2:] != tried(study)[:2]
    assert outcomes(study)[0].params.temperature == 2.5


def test_a_study_is_for_its_plan_alone(tmp_path):
    search(tmp_path, 1, plan())
    for changes, message in (
        ({"search": "random"}, "study 's' has search 'tpe'"),
        ({"first": ({"top_k": 1},)}, r"has first \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            open_study(f"sqlite:///{tmp_path}/tune.db", "s", plan(**changes))
    (tmp_path / "first").mkdir()
    for _ in range(2):
        open_study(f"sqlite:///{tmp_path}/first/tune.db", "s", mixed())


@pytest.fixture(scope="module")
def postgres():
    """A real server on a free port, with a password."""
    found = [
        shutil.which("initdb"),
        *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), reverse=True),
    ]
    initdb = next(filter(None, found), None)
    if initdb is None:
        pytest.skip(
            "PostgreSQL is NOT tested here: no initdb; `make postgres` installs it where it may"
        )
    user = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="oddlm-postgres-"))
    try:
        (folder / "password").write_text("se:cret/word")
        if user:
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(folder / "password", "postgres", "postgres")
        data = ["-D", str(folder / "data")]
        secret = [
            "-U",
            "tuner",
            "--pwfile",
            str(folder / "password"),
            "--auth",
            "scram-sha-256",
            "--no-sync",
        ]
        subprocess.run(
            [initdb, *data, *secret], cwd=folder, check=True, capture_output=True, **user
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = [
            "-p",
            str(port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-k",
            str(folder),
            "-c",
            "fsync=off",
        ]
        with (folder / "log").open("wb") as log:
            server = interruptible(
                [str(Path(initdb).with_name("postgres")), *data, *options],
                cwd=folder,
                stderr=log,
                **user,
            )
        try:
            wait_until(
                lambda: b"ready to accept connections" in (folder / "log").read_bytes(), server
            )
            assert server.poll() is None, (folder / "log").read_text()
            yield f"postgresql://tuner:se%3Acret%2Fword@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)
    finally:
        shutil.rmtree(folder)


BEGIN = """
import sys, time
from tests.experiments.test_tune import open_study, plan
time.sleep(max(0, float(sys.argv[2]) - time.time()))
print(open_study(sys.argv[1], "s", plan()).study_name)
"""


@pytest.mark.soak
@pytest.mark.soak
def test_many_may_begin_at_the_same_moment(postgres):
    """Several processes create the tables of an empty database at the same time."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create database fresh")
    command = [
        sys.executable,
        "-c",
        BEGIN,
        f"{postgres.rpartition('/')[0]}/fresh",
        str(time.time() + 12),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    begun = [subprocess.Popen(command, cwd=ROOT, env=ENV, text=True, **pipes) for _ in range(3)]
    assert [process.communicate(timeout=WAIT_S) for process in begun] == [("s\n", "")] * 3


def test_processes_share_a_study_in_postgresql(postgres, tmp_path):
    """Two processes with separate stores, as on two machines; one is killed, the other resumes."""

    def begin(name: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "oddlm",
            *SLOW,
            "--study",
            "shared",
            "--storage",
            postgres,
            "--store",
            str(tmp_path / name),
        ]
        return subprocess.Popen(
            command, cwd=ROOT, env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    first, second = begin("one"), begin("two")
    hold_in_mid_trial(first, tmp_path / "one", 0)
    first.kill()
    first.communicate(timeout=WAIT_S)
    _, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 0, err
    out, err = (third := begin("one")).communicate(timeout=WAIT_S)
    assert third.returncode == 0, err
    assert "secret" not in out + err
    assert "se:cret" not in out + err
    found = next(line for line in " ".join(out.split()).split("Study ")[1:])
    complete, failed = (
        int(found.split(word)[0].split()[-1]) for word in (" trials complete", " failed")
    )
    assert 6 <= complete <= 7, "two that look at the same moment may make one more"
    assert failed == 1
    with pytest.raises(
        ValueError, match=r"storage postgresql.*tuner:\*\*\*@.* cannot be used: .*password"
    ):
        open_study(postgres.replace("cret", "crat"), "s", plan())


@pytest.mark.parametrize(
    ("task", "split", "message"),
    [
        (
            HILLS,
            "test",
            "the test split: tune on another",
        ),
        (TASK, "tune", "task 'own' has no tuning split: its load.. needs a keyword `split`"),
        (LEAKY, "tune", "3 problems of split 'tune' of task 'leaky' .* split 'test'"),
        (find_task("countdown"), "tunes", "unknown split 'tunes'; known: train, tune, test"),
        (find_task("gsm8k"), "tunes", "unknown split 'tunes'; known: tune, test"),
    ],
)
def test_it_refuses_what_is_reported_on(task, split, message, tmp_path):
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    data = tmp_path / "gsm8k.jsonl" if task.name == "gsm8k" else None
    with pytest.raises(ValueError, match=message):
        tuning_problems(task, split, limit=None, **({"data": data} if data else {}))


def test_every_task_of_the_package_has_a_tuning_split(tmp_path):
    questions = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(40)]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps({"prompt": f"t{i}", "target": "t1"}) + "\n" for i in range(40))
    )
    (tmp_path / "countdown.jsonl").write_text(
        "".join(
            json.dumps({"input": p.prompt}) + "\n"
            for s in ("tune", "test")
            for p in find_task("countdown").problems(split=s)
        )
    )
    tasks = {
        "countdown": {},
        "minicode": {"unsafe": True},
        "humaneval": {"unsafe": True},
        "gsm8k": {"data": tmp_path / "gsm8k.jsonl"},
        str(tmp_path / "own.jsonl"): {},
    }
    for name, options in tasks.items():
        task = find_task(name, scorer="exact" if name.endswith("own.jsonl") else None)
        some = tuning_problems(task, "tune", limit=10, **options)
        assert len(some) == 10, name
        assert not {p.id for p in some} & {p.id for p in task.problems(split="test", **options)}
    halves = [
        find_task("gsm8k").problems(split=s, data=tmp_path / "gsm8k.jsonl")
        for s in ("tune", "test")
    ]
    together = [p for half in halves for p in half]
    assert sorted(p.id for p in together) == sorted(
        p.id for p in find_task("gsm8k").problems(data=tmp_path / "gsm8k.jsonl")
    )
    file = find_task("countdown").problems(split="tune", data=tmp_path / "countdown.jsonl")
    assert [p.prompt for p in file] == [
        p.prompt for p in find_task("countdown").problems(split="tune")
    ]


def test_from_the_command_to_settings_that_eval_takes(oddlm):  # noqa: F811
    space = [
        word
        for axis in (*SPACE, "alpha=0,4..8:log", "policy=margin,random")
        for word in ("--space", axis)
    ]
    code, out, err = oddlm(
        *HILL,
        "--n",
        "4",
        "--trials",
        "5",
        "--limit",
        "6",
        *space,
        "--json",
        "out.json",
        "--track",
        "tensorboard",
    )
    assert code == 0
    assert err.count("\n") == err.count("trial ") == 5
    result = json.loads(Path("out.json").read_text())
    assert result["trials"] == {"complete": 5, "pruned": 0, "fail": 0, "running": 0, "waiting": 0}
    best = result["settings"][0]
    assert f"{100 * best['pass@4']:.1f} [" in out
    assert best["pass@4"] == max(s["pass@4"] for s in result["settings"])
    assert best["interval"][0] <= best["pass@4"] <= best["interval"][1]
    last = result["settings"][-1]
    assert last["difference"]["difference"] == pytest.approx(last["pass@4"] - best["pass@4"])
    assert out.rstrip().endswith(result["command"] + "\n" + result["python"])
    assert all(
        Store(Path("runs")).read(run).summary for s in result["settings"] for run in s["runs"]
    )
    assert {path.parent.name for path in Path("runs/tensorboard").glob("*/events*")} == set(
        Store(Path("runs")).ids()
    )
    assert oddlm(*HILL, "--n", "4", "--trials", "5", "--limit", "6", *space)[2] == "", (
        "there is nothing left to do"
    )
    assert oddlm(*shlex.split(result["command"])[1:], "--limit", "2")[0] == 0
    settings = {k: v for k, v in best["params"].items() if v is not None}
    runs = [Store(Path("runs")).read(name).spec for name in Store(Path("runs")).ids()]
    assert any(
        run.split is None and settings.items() <= run.params.model_dump(mode="json").items()
        for run in runs
    )
    names = {"oddlm": __import__("oddlm"), "prompts": ["t5"]}
    assert len(eval(result["python"], names)[0]) == 4


def test_the_file_of_ones_own_is_reported_on_by_its_other_half(oddlm):  # noqa: F811
    Path("own.jsonl").write_text(
        "".join(json.dumps({"prompt": f"t{i}", "target": Hills.RIGHT}) + "\n" for i in range(20))
    )
    command = [
        "tune",
        "own.jsonl",
        "--scorer",
        "exact",
        "--model",
        "tests.own_task.Hills",
        "--length",
        "2",
        "--n",
        "2",
    ]
    code, out, _ = oddlm(
        *command, "--trials", "2", "--space", 'objective=[{"name": "odd", "quality": "none"}]'
    )
    assert code == 0
    assert "--split test" in out
    line = next(line for line in out.splitlines() if line.startswith("oddlm eval"))
    assert oddlm(*shlex.split(line)[1:])[0] == 0


def test_a_floor_that_nothing_keeps(oddlm):  # noqa: F811
    code, out, _ = oddlm(
        *HILL,
        "--n",
        "2",
        "--trials",
        "2",
        "--limit",
        "2",
        "--space",
        "top_k=1",
        "--floor",
        "pass@1=0.9",
    )
    assert code == 1
    assert "No setting keeps the floor; these come nearest." in " ".join(out.split())
    assert "oddlm eval" not in out


SHORT = [*HILL, "--trials", "1", "--limit", "2", "--n", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "hils"], "unknown task 'hils'; known: countdown"),
        ([*SHORT, "--model", "toi"], "unknown model 'toi'; known: mini, toy"),
        ([*SHORT, "--split", "test"], "results are reported on the test split"),
        (["tune", "tests.own_task.TASK", "--model", "toy"], "task 'own' has no tuning split"),
        ([*SHORT, "--space", "alfa=1..2"], "unknown setting 'alfa' in the space; known: length"),
        (
            [*SHORT, "--space", "alpha=2..1"],
            "alpha: the low end of a range must be below its high end",
        ),
        (
            [*SHORT, "--space", "alpha=-1,8"],
            "alpha: Input should be greater than or equal to 0, not -1",
        ),
        ([*SHORT, "--space", "objective=od"], "unknown objective 'od'; known: dpp"),
        *(
            ([*SHORT, "--space", f"{name}=lowest,highest"], f"unknown {name} 'lowest'; known: ")
            for name in NAMED
        ),
        *(
            (
                [*SHORT, f"--{name.replace('_', '-')}", "lowest", "--space", "top_k=1,2"],
                f"unknown {name} 'lowest'; known: ",
            )
            for name in NAMED
        ),
        (
            [*SHORT, "--space", "pool=2,4", "--space", "selector=first,lowest"],
            "unknown selector 'lowest'; known: ",
        ),
        ([*SHORT, "--space", "empty.toml"], "the space is empty"),
        (
            [*SHORT, "--alpha", "-1", "--space", "top_k=1,2"],
            "alpha: Input should be greater than or equal to 0",
        ),
        ([*SHORT, "--alpha", "3"], "alpha is both fixed and in the space"),
        (
            [*SHORT, "--metric", "accuracy"],
            "a metric must be pass@k, such as pass@1 or pass@16, not 'accuracy'",
        ),
        ([*SHORT, "--metric", "pass@4"], "pass@4 needs at least 4 samples per problem, not 2"),
        (
            [*SHORT, "--floor", "pass@1=30"],
            "a floor must be a metric and a share from 0 to 1, such as pass@1=0.3, not 'pass@1=30'",
        ),
        (
            [*SHORT, "--storage", "tune.db"],
            "a storage must be sqlite:///FILE or postgresql://USER@HOST/DATABASE, not 'tune.db'",
        ),
        (
            [*SHORT, "--storage", "mysql://me:secret@h/d"],
            "a storage must be sqlite:///FILE or postgresql",
        ),
        (
            [*SHORT, "--storage", "sqlite:///no/where.db"],
            "storage sqlite:///no/where.db cannot be used: unable to open",
        ),
        (
            [*SHORT, "--storage", "postgresql://me:secret@127.0.0.1:9/d"],
            "storage postgresql+psycopg://me:***@127.0.0.1:9/d cannot",
        ),
        (
            [*SHORT, "--first", "alpha"],
            "write settings as NAME=VALUE,... or as a JSON object, not 'alpha'",
        ),
        ([*SHORT, "--first", "alfa=1"], "unknown field 'alfa'; known: length"),
        ([*SHORT, "--first", "alpha=200"], "alpha 200 is not in the space alpha=0,1..128:log"),
        (
            [*SHORT, "--first", "alpha=-1"],
            "alpha: Input should be greater than or equal to 0, not -1",
        ),
        (
            [*SHORT, "--first", "alpha=8,fork=true"],
            "fork is 'auto' in every trial, but True in settings to try first",
        ),
        (
            [*SHORT, "--space", "block_length=1,5", "--first", "block_length=5"],
            "block_length 5 does not divide length 2",
        ),
        (
            [*SHORT, "--dry-run"],
            "the trials of a tpe search",
        ),
        ([*SHORT, "--track", "wanb"], "unknown tracker 'wanb'; known: mlflow, tensorboard, wandb"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(oddlm, arguments, message):  # noqa: F811
    Path("empty.toml").write_text("[space]\n")
    began = time.monotonic()
    code, out, err = oddlm(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"oddlm: {message}")
    assert err.count("\n") == 1
    assert "secret" not in err
    assert time.monotonic() - began < 60, "seconds, not minutes"
    assert not list(Path("runs").glob("*/spec.json"))


def test_a_storage_that_swallows_everything_is_given_up_in_seconds(tmp_path):
    """A server that accepts the connection and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(ValueError, match="cannot be used"):
            open_study(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/d", "s", plan())
        assert time.monotonic() - began < 60


def test_a_study_of_something_else_is_not_mixed_in(tmp_path):
    opened = partial(open_study, f"sqlite:///{tmp_path}/tune.db", "s")
    opened(plan())
    other = checked(RunSpec, {"model": "toy", "task": "countdown", "split": "tune", "n": 8})
    with pytest.raises(
        ValueError,
        match=r"study 's' has model 'tests\.own_task\.Hills', not 'toy'",
    ):
        opened(Plan(other, None, {}, plan().space, (0,), 8, {}))
    with pytest.raises(ValueError, match="study 's' has seeds"):
        opened(plan(seeds=(0, 1)))
    study = optuna.create_study(study_name="mine", storage=f"sqlite:///{tmp_path}/tune.db")
    study.ask()
    with pytest.raises(ValueError, match="study 'mine' was not made by oddlm tune"):
        open_study(f"sqlite:///{tmp_path}/tune.db", "mine", plan())

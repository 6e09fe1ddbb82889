"""How commands end: broken pipes, full disks, hostile input, signals."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from oddlm.tasks import jsonl as data

from ..experiments.test_run import ENV, ROOT, lines, start
from ..waiting import WAIT_S, wait_until
from .test_eval import oddlm  # noqa: F401 -- a fixture

COMMAND = [sys.executable, "-m", "oddlm"]
PIPED = 128 + signal.SIGPIPE
ENDED = 128 + signal.SIGTERM


def shell(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """In bash, where `oddlm` is the command."""
    whole = f'oddlm() {{ {" ".join(COMMAND)} "$@"; }}\n{script}'
    place = {**ENV, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        ["bash", "-c", whole], cwd=folder, env=place, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    ["problems countdown --limit 400", "names", "runs sql --json 'select * from range(99999)'"],
)
def test_a_reader_that_has_seen_enough(tmp_path, command, unbuffered):
    (tmp_path / "runs").mkdir()
    done = shell(
        f"oddlm {command} | true; echo ${{PIPESTATUS[0]}}", tmp_path, PYTHONUNBUFFERED=unbuffered
    )
    assert (done.stdout, done.stderr) == (f"{PIPED}\n", "")


def test_results_for_a_reader_that_has_seen_enough(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"id": "a", "prompt": "t5", "target": 2}\n')
    (tmp_path / "answers.jsonl").write_text('{"id": "a", "text": "2"}\n' * 9999)
    command = "oddlm score own.jsonl --scorer number --in answers.jsonl --out /dev/fd/3 3>&1"
    done = shell(f"{command} | true; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.stdout, done.stderr) == (f"{PIPED}\n", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["problems countdown --limit 2", "names", "--version", "tasks"])
def test_a_full_standard_output_is_one_line(tmp_path, command, unbuffered):
    done = shell(f"oddlm {command} >/dev/full", tmp_path, PYTHONUNBUFFERED=unbuffered)
    message = f"oddlm: cannot write to standard output: {os.strerror(errno.ENOSPC)}\n"
    assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.parametrize("stream", [">&-", "2>&-", "2>/dev/full"])
def test_streams_that_are_not_there(tmp_path, stream):
    done = shell(
        f"oddlm problems countdown --limit 0 {stream}; oddlm problems countdown --limit 1 {stream}",
        tmp_path,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr + done.stdout


def test_an_empty_query_is_said(oddlm, tmp_path):  # noqa: F811
    (tmp_path / "runs").mkdir()
    for query in ("", " ", ";", "/* nothing */"):
        code, out, err = oddlm("runs", "sql", query)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "empty" in err


@pytest.mark.filterwarnings("default")
def test_problems_cannot_steer_the_terminal(oddlm, tmp_path):  # noqa: F811
    row = {"id": "a\x1b[2Jb\nc", "prompt": "p\x1b]0;title\x07 \u202e", "target": "t\x1b[31m\x9b1A"}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    code, out, _ = oddlm("problems", "own.jsonl", "--scorer", "exact")
    assert code == 0
    assert not set("\x1b\x07\x9b\u202e") & set(out)
    assert "␛[2J" in out
    assert "␛[31m" in out
    assert "␛]0;title" in out


DEEP = {
    "list": "alpha = " + "[" * 500 + "1" + "]" * 500,
    "shallower list": "alpha = " + "[" * 200 + "1" + "]" * 200,
    "table": "alpha = " + "{x=" * 500 + "1" + "}" * 500,
    "name": f"[{'.'.join('a' * 900)}]\nb = 1",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=list(DEEP))
def test_a_file_that_is_nested_too_deeply_is_one_line(oddlm, tmp_path, text):  # noqa: F811
    (tmp_path / "deep.toml").write_text(text)
    for command in (
        ["sweep", "deep.toml"],
        ["train", "deep.toml", "--out", "out"],
        ["tune", "tests.own_task.HILLS", "--model", "toy", "--space", "deep.toml"],
    ):
        code, _, err = oddlm(*command)
        assert (code, err.count("\n"), "deep.toml" in err) == (2, 1, True), err[:500]


@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_values_that_are_nested_too_deeply_are_one_line(oddlm, depth):  # noqa: F811
    deep = "[" * depth + "]" * depth
    tune = ["tune", "tests.own_task.HILLS", "--model", "toy"]
    for command in (
        ["sample", "t5", "--model", "toy", "--objective", deep],
        ["eval", "tests.own_task.TASK", "--model", "toy", "--objective", f'{{"name": {deep}}}'],
        [*tune, "--space", f"policy={deep}"],
        [*tune, "--first", f'{{"policy": {deep}}}'],
    ):
        code, _, err = oddlm(*command)
        assert (code, err.count("\n")) == (2, 1), err[:500]
        assert len(err) < 2000


@pytest.mark.filterwarnings("default")
def test_a_gzip_bomb_is_bounded(oddlm, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(data, "MOST_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"input": "86,28,13,31,96"}\n' + b" " * (1 << 20))
    (tmp_path / "bomb.jsonl").write_bytes(bomb)
    (tmp_path / "parts.jsonl").write_bytes(gzip.compress(b"\n" * (1 << 19)) * 3)
    (tmp_path / "large.jsonl").write_bytes(b" " * ((1 << 20) + 1))
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    for name in ("bomb", "parts", "large", "endless"):
        for command in ("problems", "eval"):
            code, _, err = oddlm(command, "countdown", "--data", f"{name}.jsonl")
            assert (code, err.count("\n")) == (2, 1)
            assert f"{name}.jsonl" in err
            assert "1 MiB" in err
    (tmp_path / "fine.jsonl").write_bytes(gzip.compress(b'{"input": "86,28,13,31,96"}\n' * 3))
    assert oddlm("problems", "countdown", "--data", "fine.jsonl")[0] == 0


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err


def test_sigterm_keeps_what_is_done_as_ctrl_c_does(tmp_path):
    process = start(tmp_path / "runs")
    wait_until(lambda: lines(tmp_path / "runs") >= 2, process)
    process.send_signal(signal.SIGTERM)
    status, err = ended(process)
    assert (status, err.startswith("oddlm: stopped; "), "Traceback" in err) == (ENDED, True, False)
    assert 2 <= lines(tmp_path / "runs") < 24


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_signals_that_the_caller_ignores_are_ignored(tmp_path, number):
    """As for `nohup` and jobs in the background of a script: it ends as if nothing had been sent."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = start(tmp_path / "runs", hearing=False)
    finally:
        signal.signal(number, before)
    for rows in (1, 5, 9):
        wait_until(lambda rows=rows: lines(tmp_path / "runs") >= rows, process)
        process.send_signal(number)
    status, err = ended(process)
    assert (status, err, lines(tmp_path / "runs")) == (0, "", 24)


def test_a_second_sigterm_does_not_end_the_ending(tmp_path):
    process = start(tmp_path / "runs")
    wait_until(lambda: lines(tmp_path / "runs") >= 2, process)
    for _ in range(200):
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        time.sleep(0.002)
    status, err = ended(process)
    assert (status, "Traceback" in err) == (ENDED, False), err

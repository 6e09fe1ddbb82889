"""Files that a user named: written through links and into devices, whole or not at all."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from oddlm.files import check_target, write_whole

from .experiments.test_run import ENV, ROOT
from .starting import interruptible

SCORE = ["score", "own.jsonl", "--scorer", "number", "--in", "answers.jsonl"]
SHAPE = ["--model", "toy", "--n", "2", "--length", "4", "--steps", "2"]
GENERATE = ["generate", "--in", "prompts.jsonl", *SHAPE]
EVAL = ["eval", "own.jsonl", "--scorer", "number", "--alpha", "0", *SHAPE]
JAIL = ["bwrap", "--dev-bind", "/", "/"]
OWN_DEV = [*JAIL, "--dev", "/dev"]  # what a mistake breaks there is gone with the test


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"id": "a", "prompt": "t5", "target": 2}\n')
    (tmp_path / "answers.jsonl").write_text('{"id": "a", "text": "2"}\n')
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "t5"}\n')
    return tmp_path


def oddlm(
    folder: Path, *arguments: str, jail: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*jail, sys.executable, "-m", "oddlm", *arguments]
    return subprocess.run(
        command, cwd=folder, env=ENV, capture_output=True, text=True, check=False, timeout=600
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("command", "option"), [(SCORE, "--out"), (GENERATE, "--out"), (EVAL, "--json")]
)
def test_commands_write_through_links(folder, command, option):
    (folder / "real").mkdir()
    (folder / "real" / "old").write_text("old")
    for link, target in (("link", "real/old"), ("dangling", "real/new")):
        (folder / link).symlink_to(target)
        done = oddlm(folder, *command, option, link)
        assert (done.returncode, done.stderr) == (0, "")
        assert (folder / link).readlink() == Path(target)
        assert '"' in (folder / target).read_text()
    assert names(folder / "real") == {"old", "new"}


@pytest.mark.parametrize(
    ("command", "option"), [(SCORE, "--out"), (GENERATE, "--out"), (EVAL, "--json")]
)
def test_standard_output_carries_nothing_but_what_was_asked_for(folder, command, option):
    done = oddlm(folder, *command, option, "/dev/stdout", jail=OWN_DEV)
    assert done.returncode == 0, done.stderr
    assert all(map(json.loads, done.stdout.splitlines() if option == "--out" else [done.stdout]))
    assert done.stdout
    assert done.stderr, "words for people are there all the same"


def test_standard_output_in_a_file_is_written_behind_what_is_there(folder):
    with (folder / "log").open("w") as log:
        log.write("before\n")
        log.flush()
        command = [*OWN_DEV, sys.executable, "-m", "oddlm", *SCORE, "--out", "/dev/stdout"]
        subprocess.run(command, cwd=folder, env=ENV, stdout=log, stderr=log, check=True)
    first, second, third = (folder / "log").read_text().splitlines()
    assert (first, json.loads(second)["correct"], third[:6]) == ("before", True, "1 of 1")


def test_devices_stay_devices(folder):
    look = (
        "import os, stat; "
        "print(*[stat.S_ISCHR(os.stat(f'/dev/{name}').st_mode) for name in ('null', 'full')])"
    )
    ask = f"{sys.executable} -m oddlm {' '.join(SCORE)} --out"
    script = f'{ask} /dev/null && ! {ask} /dev/full && {sys.executable} -c "{look}"'
    jail = [*OWN_DEV, "sh", "-c", script]
    done = subprocess.run(jail, cwd=folder, env=ENV, capture_output=True, text=True, check=False)
    assert done.stderr == f"oddlm: cannot write /dev/full: {os.strerror(errno.ENOSPC)}\n"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "True True")


def test_a_pipe_is_written_to(folder):
    os.mkfifo(folder / "pipe")
    with subprocess.Popen(["cat", "pipe"], cwd=folder, stdout=subprocess.PIPE) as reader:
        done = oddlm(folder, *SCORE, "--out", "pipe")
        assert json.loads(reader.stdout.read())["correct"] is True
    assert done.returncode == 0, done.stderr
    assert (folder / "pipe").is_fifo()


def test_a_pipe_without_a_reader_is_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    told: list[str] = []
    monkeypatch.setattr(
        warnings, "warn", lambda message, **_: (told.append(message), reader.start())
    )
    write_whole(tmp_path / "pipe", b"x" * 200_000)
    assert told == [f"the pipe {tmp_path / 'pipe'} has no reader yet: waiting for one"]
    reader.join()
    assert read == [b"x" * 200_000]


def test_what_cannot_be_written_is_named_before_anything_is_computed(folder):
    (folder / "loop").symlink_to("loop")
    (folder / "away").symlink_to("no/where")
    (folder / "real").mkdir()
    (folder / "inside").symlink_to("real")
    for target, why in (
        ("loop", os.strerror(errno.ELOOP)),
        ("away", "its folder does not exist"),
        ("no/where", "its folder does not exist"),
        ("inside", "it is a folder"),
        ("own.jsonl/x", os.strerror(errno.ENOTDIR)),
    ):
        before = names(folder)
        for write in (check_target, lambda path: write_whole(path, b"new")):
            with pytest.raises(ValueError, match=rf"cannot write .*{target}: "):
                write(folder / target)
        if target in ("loop", "inside"):
            done = oddlm(folder, *EVAL, "--json", target)
            assert (done.returncode, done.stderr) == (2, f"oddlm: cannot write {target}: {why}\n")
        assert names(folder) == before, "no store was begun"


def test_an_existing_file_keeps_its_mode_and_owner(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    for mode in (0o600, 0o640, 0o777):
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, 12, 34)
        write_whole(path, b"new")
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == mode
        assert (found.st_uid, found.st_gid) == (
            (12, 34) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        )
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "fresh", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_a_name_as_long_as_a_file_system_takes(tmp_path):
    write_whole(tmp_path / ("x" * 255), b"new")
    assert names(tmp_path) == {"x" * 255}


WRITE = (
    "from oddlm.files import write_whole; from pathlib import Path; "
    "write_whole(Path({path!r}), b'new' * {times})"
)


def jailed(code: str, *jail: str) -> subprocess.CompletedProcess[str]:
    command = [*JAIL, *jail, sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, check=False)


def test_a_file_in_a_folder_that_cannot_be_written(tmp_path):
    """Its folder is read-only, or the file is mounted by itself, as containers do: it is written in
    place.
    """
    inside = tmp_path / "inside"
    inside.mkdir()
    path = inside / "file"
    for jail in (
        ["--ro-bind", str(inside), str(inside), "--bind", str(path), str(path)],
        ["--bind", str(path), str(path)],
    ):
        path.write_text("old, and longer")
        done = jailed(WRITE.format(path=str(path), times=1), *jail)
        assert (done.returncode, done.stderr) == (0, "")
        assert path.read_text() == "new"
        assert names(inside) == {"file"}


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    look = (
        "import os; "
        "[print(name, len(open(f'{disk}/' + name).read())) for name in os.listdir('{disk}')]"
    )
    code = (
        f"open('{disk}/file', 'w').write('old')\n"
        f"try: {WRITE}\nexcept ValueError as error: print(error)\n{look}"
    )
    code = code.replace("{disk}", str(disk)).format(path=f"{disk}/file", times=1 << 20)
    done = jailed(code, "--size", str(1 << 18), "--tmpfs", str(disk))
    assert done.stdout.splitlines() == [
        f"cannot write {disk}/file: {os.strerror(errno.ENOSPC)}",
        "file 3",
    ], done.stderr


@pytest.mark.parametrize("call", ["fsync", "fchmod", "write", "replace"])
def test_interrupted_while_it_is_written(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path if call == "replace" else os, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    monkeypatch.undo()
    assert (names(tmp_path), path.read_text()) == ({"file"}, "old")


def test_ctrl_c_ends_the_wait_for_a_reader(folder):
    os.mkfifo(folder / "pipe")
    command = [sys.executable, "-m", "oddlm", *SCORE, "--out", "pipe"]
    with interruptible(command, cwd=folder, env=ENV, stderr=subprocess.PIPE, text=True) as process:
        assert "has no reader yet" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_deleted_file_that_a_descriptor_still_leads_to(tmp_path):
    path = tmp_path / "file"
    with path.open("w+b") as file:
        path.unlink()
        write_whole(Path(f"/proc/self/fd/{file.fileno()}"), b"new")
        assert file.read() == b"new"
    assert names(tmp_path) == set()

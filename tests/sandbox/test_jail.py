"""The isolation piece by piece: user, visible files, system calls, start and end."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from oddlm.sandbox import (
    Limits,
    SandboxError,
    ScoringThreads,
    Verdict,
    cgroup,
    jail,
    run_python,
    walls,
)

from ..waiting import wait_until
from .conftest import children, read
from .test_attacks import _descendants, attack, report

ROOT = os.geteuid() == 0 and shutil.which("setpriv") is not None
ROOT = ROOT and Path("/proc/self/uid_map").read_text().split() == [
    "0",
    "0",
    "4294967295",
]  # not of a container alone
needs_root = pytest.mark.skipif(not ROOT, reason="only root can become nobody")
needs_cgroup = pytest.mark.skipif(
    walls().cgroup is None, reason="this machine offers no memory cgroup"
)
SLOW = Limits(timeout_s=600)


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Probe this machine again, in the test and after it."""
    known = (jail._probe, jail._view, cgroup._parent)
    for function in known:
        function.cache_clear()
    yield
    for function in known:
        function.cache_clear()


def call(expression: str) -> str:
    """Return a program whose f returns the value of the expression, and the error number."""
    return f"""
import ctypes, os, platform
X86 = platform.machine() == "x86_64"
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    return {expression}, ctypes.get_errno()
"""


def pretend(monkeypatch: pytest.MonkeyPatch, *, nobody: bool) -> None:
    found = replace(walls(), nobody=nobody)
    monkeypatch.setattr(jail, "_probe", lambda _: found)


@needs_root
def test_the_machine_too_sees_nobody() -> None:
    assert walls().nobody
    with ScoringThreads(1) as pool:
        verdict = pool.submit(run_python, "while True: pass", "f(1)", functions=["f"], limits=SLOW)
        wait_until(lambda: len(_pythons()) == 2)
        assert [_users(pid) for pid in _pythons()] == [["65534"] * 8] * 2
        pool.stop()
    assert verdict.exception() is not None


def _pythons() -> list[int]:
    """Return the processes in sandboxes of this process."""
    return [
        pid
        for pid in _descendants(os.getpid())
        if read(Path(f"/proc/{pid}/comm")).startswith("python3")
    ]


def _users(pid: int) -> list[str]:
    """Return the real, effective, saved and filesystem ids: first users, then groups."""
    lines = read(Path(f"/proc/{pid}/status")).split()
    return [
        word
        for name in ("Uid:", "Gid:")
        if name in lines
        for word in lines[lines.index(name) + 1 :][:4]
    ]


@needs_root
def test_files_of_root_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forgetful: None
) -> None:
    tmp_path.chmod(0o755)
    for name, mode in (("open", 0o644), ("secret", 0o600)):
        (tmp_path / name).write_text("treasure")
        (tmp_path / name).chmod(mode)
    folders = jail.libraries()
    monkeypatch.setattr(jail, "libraries", lambda: [*folders, str(tmp_path)])
    source = (
        "def f(name):\n    try: return open(f'{FOLDER}/{name}').read()\n"
        "    except OSError as e: return e.errno"
    )
    verdict = attack(
        f"FOLDER = {str(tmp_path)!r}\n{source}",
        "assert [f('open'), f('secret')] == ['treasure', 13]",
    )
    assert verdict.passed, verdict.detail


@needs_root
def test_no_capability_is_left_and_none_can_be_had() -> None:
    source = """
import ctypes
def f(x):
    libc = ctypes.CDLL(None)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets) == 0
    bounding = [number for number in range(64) if libc.prctl(23, number, 0, 0, 0) == 1]
    return list(sets), bounding, libc.prctl(39, 0, 0, 0, 0)
"""
    report(source, ([0] * 6, [], 1))


@pytest.mark.parametrize("nobody", [True, False])
def test_the_null_device_takes_data_but_no_changes(
    monkeypatch: pytest.MonkeyPatch, nobody: bool
) -> None:
    if nobody and not ROOT:
        pytest.skip("only root can become nobody")
    pretend(monkeypatch, nobody=nobody)
    source = """
import os
def f(x):
    with open(os.devnull, "w") as file: file.write("x" * 100)
    try: os.chmod(os.devnull, 0o600)
    except OSError as error: return error.errno
"""
    before = Path(os.devnull).stat()
    try:
        verdict = attack(source, "assert f(1) in (1, 30)")
        assert Path(os.devnull).stat().st_mode == before.st_mode
    finally:
        if Path(os.devnull).stat().st_mode != before.st_mode:
            Path(os.devnull).chmod(before.st_mode & 0o777)
    assert verdict.passed, verdict.detail


def test_without_setpriv_a_user_namespace_has_to_do(
    monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "setpriv" else which(name))
    assert not walls().nobody
    report("import os\ndef f(x): return os.getuid(), os.getpid()", (65534, 1))


@needs_root
def test_a_setpriv_that_does_not_work_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forgetful: None
) -> None:
    broken = tmp_path / "setpriv"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name: str(broken) if name == "setpriv" else which(name)
    )
    assert not walls().nobody
    report("import os\ndef f(x): return os.getuid(), os.getpid()", (65534, 1))


def test_installed_packages_are_out_of_view() -> None:
    folders = sorted(set(jail.installed(jail.libraries())))
    full = [folder for folder in folders if any(Path(folder).iterdir())]
    if not full:
        pytest.skip("nothing is installed here")
    report(
        f"import os\ndef f(x): return [os.listdir(folder) for folder in {full!r}]",
        [[] for _ in full],
    )
    source = (
        f"def f(x):\n    try: open('{full[0]}/planted', 'w')\n"
        "    except OSError as e: return e.errno"
    )
    verdict = attack(source, "assert f(1) in (13, 30)")
    assert verdict.passed, verdict.detail


def test_installed_packages_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11").mkdir(parents=True)
    (tmp_path / "lib/python3").mkdir()
    (tmp_path / "lib/elsewhere").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "lib/python3.11/site-packages").symlink_to("../elsewhere")
    (tmp_path / "lib/python3.11/dist-packages").symlink_to(tmp_path / "outside")
    (tmp_path / "lib/python3/dist-packages").mkdir()
    found = set(jail.installed([str(tmp_path / "lib")]))
    assert found == {str(tmp_path / "lib/elsewhere"), str(tmp_path / "lib/python3/dist-packages")}


OUTLIVING = """
import sys
from dataclasses import replace
from oddlm.sandbox import Limits, jail, run_python, walls
found = replace(walls(), nobody=sys.argv[1] == "True")
jail._probe = lambda _: found
program = "import ctypes\\nctypes.CDLL(None).prctl(1, 0)\\nwhile True: pass"
run_python(program, "f(1)", functions=["f"], limits=Limits(timeout_s=600))
"""


@pytest.mark.parametrize("nobody", [True, False])
def test_a_program_that_runs_does_not_outlive_us(nobody: bool) -> None:
    """Processes that have only just started check themselves whether they are alone.

    See test_attacks.py.
    """
    if nobody and not ROOT:
        pytest.skip("only root can become nobody")
    before = set(_descendants(os.getpid()))
    parent = subprocess.Popen([sys.executable, "-c", OUTLIVING, str(nobody)])

    def processor_ticks(pid: int) -> int:
        fields = read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        return int(fields[11]) if fields else 0

    wait_until(
        lambda: max(map(processor_ticks, _descendants(parent.pid)), default=0) > 100
    )  # a second: it is in its loop
    parent.kill()
    parent.wait()

    def left() -> set[int]:
        """Orphans become children of this process, which has made itself a subreaper."""
        for pid in set(_descendants(os.getpid())) - before:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return set(_descendants(os.getpid())) - before

    try:
        wait_until(lambda: not left())
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)


def test_the_signal_at_the_parents_death_stays() -> None:
    source = """
import ctypes, platform
def f(x):
    libc = ctypes.CDLL(None)
    number = 157 if platform.machine() == "x86_64" else 167
    high = ctypes.c_ulong(1 << 32 | 1)  # the kernel looks at the lower half
    return [libc.prctl(1, 0), libc.prctl(1, 15), libc.syscall(number, high, 0), libc.prctl(1, 9)]
"""
    report(source, [-1, -1, -1, 0])


NEW = {
    "statmount": 457,
    "listmount": 458,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
    "listns": 470,
}


@pytest.mark.parametrize("number", [*NEW.values(), 511], ids=[*NEW, "one that nobody knows yet"])
def test_new_system_calls_do_not_exist(number: int) -> None:
    report(call(f"libc.syscall({number}, 0, 0, 0, 0, 0, 0)"), (-1, 38))


def test_every_new_system_call_is_without_effect() -> None:
    source = """
import ctypes
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    zeros = (0,) * 6
    return {(libc.syscall(n, *zeros), ctypes.get_errno()) for n in range(450, 1000)}
"""
    report(source, {(-1, 38)})


@pytest.mark.parametrize("command", [1024, 1026], ids=["F_SETLEASE", "F_NOTIFY"])
def test_files_cannot_be_leased_or_watched(command: int) -> None:
    """A lease on a library of the machine would block those who install a new version."""
    report(call(f"libc.fcntl(os.open(os.__file__, os.O_RDONLY), {command}, 0)"), (-1, 1))
    report("import fcntl\ndef f(x): return fcntl.fcntl(0, fcntl.F_GETFD) >= 0", True)


@pytest.mark.parametrize("name", ["fsconfig", "quotactl_fd"])
def test_late_calls_are_denied(name: str) -> None:
    numbers = {"fsconfig": 431, "quotactl_fd": 443}
    report(call(f"libc.syscall({numbers[name]}, -1, 0, 0, 0, 0)"), (-1, 1))


@needs_cgroup
def test_a_sandbox_that_cannot_join_its_cgroup_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        cgroup.Cgroup, "join", property(lambda group: group.folder / "no_such_file")
    )
    with pytest.raises(SandboxError, match="cgroup"):
        attack("def f(x): return 41")


@needs_cgroup
def test_a_cgroup_that_cannot_be_made_is_no_reason_to_go_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walls()

    def refuse(*_: object) -> cgroup.Cgroup:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cgroup, "_made", refuse)
    with pytest.raises(SandboxError, match=r"cgroup.*No space left"):
        attack("def f(x): return 41")


@needs_cgroup
def test_a_cgroup_that_cannot_be_joined_is_none(
    monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    monkeypatch.setattr(
        cgroup.Cgroup, "join", property(lambda group: group.folder / "no_such_file")
    )
    assert walls().cgroup is None
    assert attack("def f(x): return 41").passed


@pytest.mark.skipif(not walls().writable, reason="this machine allows no tmpfs")
def test_a_sandbox_without_its_tmpfs_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    walls()
    monkeypatch.setattr(jail, "tmpfs_options", lambda *_: "no_such_option=1")
    with pytest.raises(SandboxError, match="tmpfs"):
        attack("def f(x): return 41")


@pytest.mark.filterwarnings("ignore:untrusted code runs")
@pytest.mark.parametrize("unsafe", [False, True])
def test_modules_come_compiled(unsafe: bool) -> None:
    source = """
import sys
def f(name):
    module = __import__(name, fromlist=["*"])
    return module.__file__, type(module.__spec__.loader).__name__, module.__package__
"""
    names = sorted(
        f"inside.{path.stem}" for path in jail.PACKAGE.glob("*.py") if path.stem != "__init__"
    )
    assert {"inside.candidate", "inside.judge", "inside.wire"} <= set(names)
    expected = [(f"{name.replace('.', '/')}.py", "Bundle", "inside") for name in names]
    verdict = run_python(
        source, f"assert [f(n) for n in {names!r}] == {expected!r}", functions=["f"], unsafe=unsafe
    )
    assert verdict.passed, verdict.detail
    source = "import sys\ndef f(x): return sys.modules['inside'].__path__, sys.stdin.read()"
    verdict = run_python(source, "assert f(1) == ([], '')", functions=["f"], unsafe=unsafe)
    assert verdict.passed, verdict.detail


def test_modules_are_compiled_once() -> None:
    assert jail.bundle() is jail.bundle()


def test_leaving_scoring_threads_by_an_exception_kills_what_runs() -> None:
    begun = threading.Barrier(3)

    def score() -> Verdict:
        begun.wait()
        return run_python("while True: pass", "f(1)", functions=["f"], limits=SLOW)

    verdicts: list[Future[Verdict]] = []
    start = time.monotonic()

    def interrupted() -> None:
        with ScoringThreads(2) as pool:
            verdicts.extend(pool.submit(score) for _ in range(5))
            begun.wait()
            wait_until(lambda: len(_pythons()) == 4)  # two sides each
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - start < 300, "the programs would run for twice as long"
    assert [type(verdict.exception()) for verdict in verdicts[:2]] == [SandboxError] * 2, (
        "and these are no verdicts"
    )
    assert all(verdict.cancelled() for verdict in verdicts[2:])


def test_threads_that_have_been_stopped_start_nothing() -> None:
    stopped, go_on = threading.Event(), threading.Event()

    def score() -> Verdict:
        stopped.set()
        go_on.wait()
        return run_python("def f(x): return 41", "assert f(1) == 41", functions=["f"])

    pool = ScoringThreads(1)
    verdict = pool.submit(score)
    stopped.wait()
    pool._group.stop()
    go_on.set()
    with pytest.raises(SandboxError, match="stopped"):
        verdict.result()
    pool.stop()


def test_other_sandboxes_run_on_when_threads_are_stopped() -> None:
    with ScoringThreads(1) as pool, ScoringThreads(1) as other:
        left = other.submit(
            run_python,
            "import time\ndef f(x): time.sleep(1); return 41",
            "assert f(1) == 41",
            functions=["f"],
        )
        wait_until(children)
        pool.submit(attack, "while True: pass")
        pool.stop()
        assert left.result().passed
    assert attack("def f(x): return 41").passed


def test_a_normal_end_waits_for_the_verdicts() -> None:
    with ScoringThreads(1) as pool:
        verdicts = [pool.submit(attack, "def f(x): return 41") for _ in range(2)]
    assert [verdict.result().passed for verdict in verdicts] == [True, True]

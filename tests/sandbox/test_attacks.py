"""One attack, one test.

An attack that has to report something does so through its result.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from oddlm.sandbox import Limits, Verdict, cgroup, jail, run_python, seccomp, walls

from ..waiting import wait_until
from .conftest import read

QUICK = Limits(timeout_s=1.5)
ALLOW_ALL = b"\x06\x00\x00\x00\x00\x00\xff\x7f"  # one BPF instruction


@pytest.fixture
def no_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Remove the system-call filter and the limit on processes, to test the other walls alone."""
    package = tmp_path / "inside"
    shutil.copytree(jail.PACKAGE, package)
    strict = (package / "confine.py").read_text()
    assert "RLIMIT_NPROC, 1)" in strict
    (package / "confine.py").write_text(strict.replace("RLIMIT_NPROC, 1)", "RLIMIT_NPROC, 10_000)"))
    monkeypatch.setattr(seccomp, "program", lambda _: ALLOW_ALL)
    monkeypatch.setattr(jail, "PACKAGE", package)
    jail.bundle.cache_clear()
    yield
    jail.bundle.cache_clear()


def attack(source: str, tests: str = "assert f(1) == 41", limits: Limits | None = None) -> Verdict:
    return run_python(source, tests, functions=["f"], limits=limits or Limits(timeout_s=5))


def report(source: str, expected: object, limits: Limits | None = None) -> None:
    """Assert that the attack reports exactly this: it is what f(1) returns."""
    verdict = attack(source, f"got = f(1)\nassert got == {expected!r}", limits)
    assert verdict.passed, verdict.detail


def test_fork_bomb() -> None:
    report(
        (
            "import os\ndef f(x):\n    try:\n        while True: os.fork()\n"
            "    except OSError as e: return e.errno"
        ),
        1,
    )


@pytest.mark.usefixtures("no_filter")
def test_fork_bomb_without_the_filter_dies_with_its_namespace() -> None:
    source = """
import os, time
def f(x):
    for _ in range(50):
        if os.fork() == 0: time.sleep(600)
    time.sleep(600)
"""
    verdict = attack(source, limits=QUICK)
    assert verdict.detail == "took longer than 1.5 s", "it has all of them"
    assert verdict.seconds < 60, "its children sleep for ten times as long"


def test_thread_bomb() -> None:
    source = """
import threading, time
def f(x):
    try:
        while True: threading.Thread(target=time.sleep, args=(9,)).start()
    except RuntimeError as error:
        return str(error)
"""
    report(source, "can't start new thread")


def test_exec_of_another_program_starts_no_process() -> None:
    report(
        (
            "import subprocess\ndef f(x):\n    try: subprocess.run(['/bin/true'])\n"
            "    except OSError as e: return e.errno"
        ),
        1,
    )


def test_ten_gigabytes_of_memory() -> None:
    verdict = attack("def f(x):\n    return len(bytearray(10 * 2**30))")
    assert verdict.detail == "f(1) raised MemoryError: "


def test_ten_gigabyte_file() -> None:
    source = """
def f(x):
    with open("/tmp/big", "wb") as file:
        for _ in range(10 * 1024): file.write(bytes(2**20))
    return 41
"""
    assert "raised OSError: [Errno 27] File too large" in attack(source).detail


def test_many_files_fill_only_the_private_tmp() -> None:
    source = """
def f(x):
    for i in range(1000):
        with open(f"/tmp/{i}", "wb") as file: file.write(bytes(8 * 2**20))
    return 41
"""
    assert "raised OSError: [Errno 28] No space left" in attack(source).detail


def test_memory_behind_the_limits_back() -> None:
    """Shared memory and memory files outlive their mapping, so RLIMIT_AS does not count them."""
    source = """
import ctypes, os
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    got = [libc.shmget(0, ctypes.c_size_t(2**28), 0o1600), libc.msgget(0, 0o1600)]
    try: got.append(os.memfd_create("x"))
    except OSError as error: got.append(error.errno)
    return got
"""
    report(source, [-1, -1, 1])


def test_infinite_loop() -> None:
    verdict = attack("def f(x):\n    while True: pass", limits=QUICK)
    assert verdict.detail == "took longer than 1.5 s"


def test_infinite_loop_while_loading() -> None:
    assert attack("while True: pass", limits=QUICK).detail == "took longer than 1.5 s"


def test_infinite_sleep() -> None:
    assert (
        attack("import time\ndef f(x): time.sleep(10**6)", limits=QUICK).detail
        == "took longer than 1.5 s"
    )


@pytest.mark.parametrize("stream", [1, 2])
def test_infinite_output(stream: int) -> None:
    verdict = attack(f"import os\ndef f(x):\n    while True: os.write({stream}, b'x' * 65536)")
    assert verdict.detail == "printed more than 1000000 bytes"


@pytest.mark.usefixtures("no_filter")
def test_loopback_listener_hears_nothing_even_without_the_filter() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        report(
            "import socket\ndef f(x):\n"
            f"    try: socket.create_connection(('127.0.0.1', {port}), 1)\n"
            "    except OSError as e: return type(e).__name__",
            "ConnectionRefusedError",
        )
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.usefixtures("no_filter")
def test_abstract_unix_socket_is_out_of_reach_even_without_the_filter() -> None:
    name = f"\0oddlm-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        report(
            f"import socket\ndef f(x):\n    try: socket.socket(socket.AF_UNIX).connect({name!r})\n"
            "    except OSError as e: return type(e).__name__",
            "ConnectionRefusedError",
        )


def test_there_is_no_socket_of_any_family() -> None:
    """A network namespace does not contain all: AF_VSOCK (40) reaches a virtual machine's host."""
    source = """
import socket
def f(x):
    met = set()
    for family in range(46):
        for kind in (1, 2, 3, 5):
            try: socket.socket(family, kind)
            except OSError as error: met.add(error.errno)
            else: met.add((family, kind))
    return met
"""
    report(source, {1})


def test_socket_pairs_stay_within_the_process() -> None:
    """asyncio wakes itself with a socket pair."""
    source = """
import ctypes, socket
def f(x):
    one, two = socket.socketpair()
    one.send(b"hello")
    libc = ctypes.CDLL(None, use_errno=True)
    pair = (ctypes.c_int * 2)()
    others = [libc.socketpair(family, 1, 0, pair) for family in range(46) if family != 1]
    return two.recv(5), set(others), ctypes.get_errno()
"""
    report(source, (b"hello", {-1}, 1))


CALLS = {
    "semget": "libc.semget(0, 250, 0o1600)",
    "mq_open": "libc.syscall(240 if X86 else 180, b'/x', 0o100, 0o600, 0)",
    "inotify_init1": "libc.inotify_init1(0)",
    "fanotify_init": "libc.fanotify_init(0, 0)",
    "io_setup": "libc.syscall(206 if X86 else 0, 100000, ctypes.byref(ctypes.c_long(0)))",
    "memfd_create": "libc.memfd_create(b'x', 0)",
    "personality": "libc.personality(0x40000)",
    "name_to_handle_at": (
        "libc.name_to_handle_at(-100, b'/tmp', ctypes.create_string_buffer(200), 0, 0)"
    ),
    "open_by_handle_at": "libc.open_by_handle_at(-100, ctypes.create_string_buffer(200), 0)",
    "fsopen": "libc.syscall(430, b'tmpfs', 0)",
    "open_tree": "libc.syscall(428, -100, b'/tmp', 1)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount2": "libc.umount2(b'/tmp', 2)",
    "pidfd_getfd": "libc.syscall(438, 3, 0, 0)",
    "process_madvise": "libc.syscall(440, 3, 0, 0, 0, 0)",
    "kcmp": "libc.syscall(312 if X86 else 272, 1, 1, 0, 0, 0)",
    "bpf": "libc.syscall(321 if X86 else 280, 0, 0, 0)",
    "io_uring_setup": "libc.syscall(425, 8, ctypes.create_string_buffer(200))",
    "userfaultfd": "libc.syscall(323 if X86 else 282, 1)",
    "perf_event_open": "libc.syscall(298 if X86 else 241, 0, 0, -1, -1, 0)",
    "swapon": "libc.swapon(b'/tmp/x', 0)",
    "reboot": "libc.reboot(0)",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_system_call_is_denied(call: str) -> None:
    source = f"""
import ctypes, os
X86 = os.uname().machine == "x86_64"
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    return {call}, ctypes.get_errno()
"""
    report(source, (-1, 1))


FILES = {
    "files": "open(path, 'w').close()",
    "folders": "os.mkdir(path)",
    "symbolic links": "os.symlink('x' * 1000, path)",
    "pipes": "os.mkfifo(path)",
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_number_of_files_is_bounded(make: str) -> None:
    source = f"""
import os
def f(x):
    try:
        for number in range(10**6):
            path = f"/tmp/{{'n' * 200}}{{number}}"
            {make}
    except OSError as error:
        return number <= 100, error.errno
"""
    report(source, (True, 28), Limits(files=100))


@pytest.mark.skipif(walls().cgroup is None, reason="this machine offers no memory cgroup")
def test_kernel_memory_is_bounded_by_a_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inodes are kernel memory, which no limit of the process counts."""
    source = """
import os
def f(x):
    for number in range(300_000): os.symlink("x" * 100, f"/tmp/{'n' * 200}{number}")
    return 41
"""
    limits = Limits(timeout_s=60, files=10**6)
    assert attack(source, limits=limits).passed, "without a cgroup's limit it gets them all"
    monkeypatch.setattr(cgroup, "SLACK", (64 << 20) - limits.memory_bytes - limits.tmp_bytes)
    verdict = attack(source, limits=limits)
    assert not verdict.passed
    assert "SIGKILL" in verdict.detail or "Errno 12" in verdict.detail


def test_cgroups_are_removed() -> None:
    folder = walls().cgroup
    if folder is not None:
        assert not attack("def f(x): return 0").passed
        assert not list(Path(folder).glob(f"oddlm-{os.getpid()}-*"))


def test_home_directory_is_not_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("treasure")
    for path in (
        str(secret),
        str(Path.home() / ".ssh"),
        str(Path.home() / ".bashrc"),
        "/etc/passwd",
        "/proc/self/environ",
    ):
        report(
            (
                f"def f(x):\n    try: return open({path!r}).read()\n"
                "    except OSError as e: return type(e).__name__"
            ),
            "FileNotFoundError",
        )


def test_only_python_is_in_view() -> None:
    seen = "import os\ndef f(x): return sorted(os.listdir('/'))"
    allowed = {"dev", "etc", "lib", "lib64", "oddlm", "tmp", "usr", Path(sys.base_prefix).parts[1]}
    verdict = attack(seen, f"assert set(f(1)) <= {allowed!r}")
    assert verdict.passed, verdict.detail
    report(
        "import os\ndef f(x): return os.listdir('/dev') + os.listdir('/etc')",
        ["null", "ld.so.cache"],
    )


def test_environment_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "treasure")
    report("import os\ndef f(x): return sorted(os.environ)", ["HOME", "LC_CTYPE", "PWD"])


def test_writing_outside_its_tmp(tmp_path: Path) -> None:
    for folder in (
        "/",
        "/usr/lib",
        "/oddlm",
        "/dev",
        "/etc",
        f"{sys.base_prefix}/lib",
        str(tmp_path),
        "/home",
    ):
        verdict = attack(
            (
                f"def f(x):\n    try: open('{folder}/planted', 'w')\n"
                "    except OSError as e: return e.errno"
            ),
            "assert f(1) in (2, 13, 30)",  # not there, not allowed, read-only
        )
        assert verdict.passed, (folder, verdict.detail)
    assert not (jail.PACKAGE / "planted").exists()


def test_nothing_written_is_there_for_the_next() -> None:
    report("def f(x):\n    open('/tmp/note', 'w').write('hello')\n    return 1", 1)
    report("import os\ndef f(x): return os.listdir('/tmp')", [])


def test_killing_and_signalling_the_parent() -> None:
    heard: list[int] = []
    previous = {
        number: signal.signal(number, lambda n, _: heard.append(n))
        for number in (signal.SIGTERM, signal.SIGUSR1)
    }
    source = f"""
import os
def f(x):
    for pid in (os.getppid(), -1, {os.getpid()}, {os.getppid()}):
        for number in (15, 10, 9):
            try: os.kill(pid, number)
            except OSError: pass
    return 41
"""
    try:
        verdict = attack(source)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    assert heard == []
    assert verdict.passed or "the program ended" in verdict.detail


GRANDCHILD = """
import os, time
def f(x):
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(600)
            os._exit(0)
    except OSError:
        pass
    time.sleep(x)
    return 41
"""


def test_grandchild_sleeping_past_the_timeout() -> None:
    assert attack(GRANDCHILD, "f(600)", QUICK).detail == "took longer than 1.5 s"


@pytest.mark.usefixtures("no_filter")
def test_grandchild_without_the_filter_dies_with_its_namespace() -> None:
    verdict = attack(
        GRANDCHILD.replace("except OSError:", "except ZeroDivisionError:"), "assert f(0) == 41"
    )
    assert verdict.passed, verdict.detail
    assert verdict.seconds < 60, "the grandchild sleeps for ten times as long"


def test_ignored_signals_do_not_outlive_the_timeout() -> None:
    source = """
import signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
while True: pass
"""
    assert attack(source, limits=QUICK).detail == "took longer than 1.5 s"


def test_new_user_namespace() -> None:
    source = """
import ctypes
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.unshare(0x10000000), ctypes.get_errno()
"""
    report(source, (-1, 1))


def test_limits_cannot_be_raised() -> None:
    source = """
import resource
def f(x):
    try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    except ValueError as error: return str(error)
"""
    report(source, "not allowed to raise maximum limit")


def test_a_crash_of_the_interpreter() -> None:
    assert "killed by SIGSEGV" in attack("import ctypes\ndef f(x): ctypes.string_at(0)").detail


def test_running_in_many_threads_leaves_no_descriptor_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    results: list[Verdict] = []
    threads = [
        threading.Thread(target=lambda: results.append(attack("def f(x): return 41")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [verdict.passed for verdict in results] == [True] * 8
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("so_far", [1, 2, 3, 4])
def test_killing_our_process_takes_the_sandbox_with_it(tmp_path: Path, so_far: int) -> None:
    """Each of the two sides has two processes; the last may have only just started."""
    script = tmp_path / "parent.py"
    script.write_text(
        "from oddlm.sandbox import run_python, Limits\n"
        "run_python('while True: pass', 'f(1)', functions=['f'], limits=Limits(timeout_s=600))\n"
    )
    before = set(_descendants(os.getpid()))
    parent = subprocess.Popen([sys.executable, str(script)])
    wait_until(lambda: len(_descendants(parent.pid)) >= so_far)
    parent.kill()
    parent.wait()

    def left() -> set[int]:
        """Orphans become children of this process, which has made itself a subreaper."""
        found = set(_descendants(os.getpid())) - before
        for pid in found:
            if _never_began(pid):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return found

    wait_until(lambda: not left())


def _never_began(pid: int) -> bool:
    """Return whether a process is a child of bubblewrap that waits for its parent in an eventfd.

    If the parent is killed before it has written there, the child sleeps forever (bubblewrap 0.8):
    one more process, but nothing runs.
    """
    with suppress(OSError, ValueError, IndexError):
        fd = int(
            read(Path(f"/proc/{pid}/syscall")).split()[1], 16
        )  # ValueError, IndexError: it is in no system call
        orphan = read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1] == str(os.getpid())
        return orphan and str(Path(f"/proc/{pid}/fd/{fd}").readlink()) == "anon_inode:[eventfd]"
    return False


def _descendants(pid: int) -> list[int]:
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, read(task / "children").split()):
                found += [child, *_descendants(child)]
    return found

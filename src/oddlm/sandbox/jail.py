"""A fresh bubblewrap around one Python process."""

import functools
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from . import seccomp

INSTALL = "apt-get install bubblewrap  (Fedora: dnf install bubblewrap, Arch: pacman -S bubblewrap)"
OVERRIDE = "--unsafe-no-sandbox (unsafe=True) runs the code without protection"
PACKAGE = Path(__file__).parent / "inside"
MOUNTED_AT = "/oddlm"
NOBODY = "65534"
# Walls that can be felt from inside: a user without privileges, the first process of its namespace, no /proc of the host.
PROBE = "import os, resource; os._exit(os.getuid() != 65534 or os.getpid() != 1 or os.path.exists('/proc'))"
DEATH_S = 10.0  # how long a killed sandbox may take to be gone


class SandboxError(RuntimeError):
    """The sandbox cannot do its work on this machine."""


@dataclass(frozen=True, slots=True)
class Jailed:
    """A running process and the way to learn that all of it is gone."""

    process: subprocess.Popen[bytes]
    info: int | None  # bubblewrap writes the process id of its inner init here

    def kill(self) -> None:
        """End everything inside and wait until it is gone."""
        init = None if self.info is None else _open_init(self.info, self.process.pid)
        if init is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(init, signal.SIGKILL)
            os.close(init)
        try:
            self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise SandboxError("a killed sandbox did not end") from None


def _open_init(info: int, parent: int) -> int | None:
    """A handle on the first process inside, the init of its namespace.

    The kernel ends an init only after every process of its namespace, and bubblewrap outside (--as-pid-1) ends only after
    it has reaped it: killing the init and waiting for bubblewrap leaves neither a process nor a zombie.
    """
    if not select.select([info], [], [], 0.5)[0]:
        return None
    found = re.search(rb'"child-pid":\s*(\d+)', os.read(info, 4096))
    if not found:
        return None
    try:
        handle = os.pidfd_open(int(found[1]))
    except ProcessLookupError:
        return None
    with suppress(OSError):
        status = Path(f"/proc/{int(found[1])}/stat").read_text()
        if status.rpartition(")")[2].split()[1] == str(parent):  # else the number belongs to somebody else by now
            return handle
    os.close(handle)
    return None


def interpreter() -> Path:
    """The base interpreter: a virtual environment's packages are not for the sandbox."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def bwrap_command(bwrap: str, *, tmp_bytes: int, filter_fd: int, info_fd: int) -> list[str]:
    """The walls: empty namespaces, a read-only root with Python and its libraries, a small private /tmp."""
    command = [bwrap, "--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--uid", NOBODY, "--gid", NOBODY]
    command += ["--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv", "--setenv", "HOME", "/tmp"]
    command += ["--size", str(tmp_bytes), "--tmpfs", "/tmp"]
    for part in dict.fromkeys((Path("/usr"), Path(sys.base_prefix), interpreter().parents[1])):
        command += [word for name in ("lib", "lib64") for word in ("--ro-bind-try", f"{part}/{name}", f"{part}/{name}")]
    command += ["--ro-bind", str(interpreter()), str(interpreter())]
    for folder in ("/lib", "/lib64"):
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).exists():
            command += ["--ro-bind", folder, folder]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--dev-bind", "/dev/null", "/dev/null"]
    command += ["--ro-bind", str(PACKAGE), f"{MOUNTED_AT}/{PACKAGE.name}"]
    return [*command, "--chdir", "/tmp", "--remount-ro", "/", "--seccomp", str(filter_fd), "--info-fd", str(info_fd)]


def python_command(module: str, argv: list[str], package_parent: str) -> list[str]:
    start = f"import sys; sys.path.insert(0, {package_parent!r}); from inside.{module} import main; main(sys.argv[1:])"
    return [str(interpreter()), "-I", "-S", "-B", "-X", "utf8", "-c", start, *argv]


def memory_file(data: bytes, stack: ExitStack) -> int:
    fd = os.memfd_create("oddlm")
    stack.callback(os.close, fd)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def spawn(
    module: str,
    argv: list[str],
    *,
    stdin: bytes,
    output: int | None,
    fds: tuple[int, ...],
    tmp_bytes: int,
    unsafe: bool,
    stack: ExitStack,
) -> Jailed:
    """Start one of the two sides; closing the stack kills it."""
    info: int | None = None
    with ExitStack() as given:
        if unsafe:
            command = python_command(module, argv, str(PACKAGE.parent))
        else:
            filter_fd = memory_file(seccomp.program(platform.machine()), given)
            info, info_end = os.pipe()
            stack.callback(os.close, info)
            given.callback(os.close, info_end)
            command = bwrap_command(require_sandbox(), tmp_bytes=tmp_bytes, filter_fd=filter_fd, info_fd=info_end)
            command += ["--", *python_command(module, argv, MOUNTED_AT)]
            fds = (*fds, filter_fd, info_end)
        sink = subprocess.DEVNULL if output is None else output
        process = subprocess.Popen(
            command,
            stdin=memory_file(stdin, given),
            stdout=sink,
            stderr=sink,
            pass_fds=fds,
            env={},
            start_new_session=True,
        )
    jailed = Jailed(process, info)
    stack.callback(jailed.kill)
    return jailed


def warn_unsafe() -> None:
    warnings.warn(
        "untrusted code runs WITHOUT a sandbox: it can read, change and send your files", RuntimeWarning, stacklevel=3
    )


def require_sandbox(*, unsafe: bool = False) -> str:
    """The path of a bubblewrap that works here; SandboxError where there is none."""
    if unsafe:
        return ""
    bwrap = shutil.which("bwrap") if sys.platform == "linux" else None
    if bwrap is None:
        raise SandboxError(f"untrusted code is not run: bubblewrap is not installed. Install it: {INSTALL}. {OVERRIDE}")
    if platform.machine() not in seccomp.MACHINES:
        known = ", ".join(sorted(seccomp.MACHINES))
        raise SandboxError(
            f"untrusted code is not run: no system-call filter for {platform.machine()}; known: {known}. {OVERRIDE}"
        )
    _probe(bwrap)
    return bwrap


@functools.cache
def _probe(bwrap: str) -> None:
    with ExitStack() as stack:
        filter_fd = memory_file(seccomp.program(platform.machine()), stack)
        sink = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, sink)
        command = bwrap_command(bwrap, tmp_bytes=1 << 20, filter_fd=filter_fd, info_fd=sink)
        command += ["--", str(interpreter()), "-I", "-S", "-c", PROBE]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, pass_fds=(filter_fd, sink), env={}, timeout=30
            )
            failure = done.stderr.decode(errors="replace").strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            done, failure = None, str(error)
    if done is None or done.returncode:
        raise SandboxError(
            f"untrusted code is not run: bubblewrap does not work here ({failure or 'no message'}). "
            f"It needs unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or the AppArmor profile of "
            f"bwrap on Ubuntu). {OVERRIDE}"
        )

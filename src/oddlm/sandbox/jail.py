"""A fresh bubblewrap around one Python process.

The tmpfs that bubblewrap makes cannot bound the number of files, and each takes about a kilobyte of
kernel memory. So the process first mounts one itself, in a mount namespace of its own, and then becomes
bubblewrap. On machines that do not allow this, the sandbox has no folder to write to.
"""

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

from . import cgroup, seccomp

INSTALL = "apt-get install bubblewrap  (Fedora: dnf install bubblewrap, Arch: pacman -S bubblewrap)"
PACKAGE = Path(__file__).parent / "inside"
MOUNTED_AT = "/oddlm"
NOBODY = "65534"
# Walls that can be felt from inside: a user without privileges, the first process of its namespace, no /proc of the host.
PROBE = "import os, resource; os._exit(os.getuid() != 65534 or os.getpid() != 1 or os.path.exists('/proc'))"
DEATH_S = 10.0  # how long a killed sandbox may take to be gone
MOUNT_POINT = "/sys"  # nothing of the sandbox comes from there
# $1: options of the tmpfs, none without one; $2: where to join a cgroup, if anywhere; the rest is the command
PREPARE = '[ -z "$2" ] || echo $$ >"$2"; [ -z "$1" ] || mount -t tmpfs -o "$1" tmpfs /sys || exit 1; shift 2; exec "$@"'


class SandboxError(RuntimeError):
    """The sandbox cannot do its work on this machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    timeout_s: float = 10.0  # wall clock, process start included
    memory_bytes: int = 512 << 20  # address space of each of the two processes
    file_bytes: int = 16 << 20  # one file
    tmp_bytes: int = 64 << 20  # all files
    files: int = 10_000  # and folders and links
    output_bytes: int = 1_000_000  # printed by the program


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


def bwrap_command(bwrap: str, *, writable: bool, filter_fd: int, info_fd: int) -> list[str]:
    """The walls: empty namespaces, a read-only root with Python and its libraries, a small private /tmp."""
    command = [bwrap, "--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--uid", NOBODY, "--gid", NOBODY]
    command += ["--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv", "--setenv", "HOME", "/tmp"]
    command += ["--bind", MOUNT_POINT, "/tmp"] if writable else ["--dir", "/tmp"]
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


def prepared(command: list[str], *, tmpfs: str, group: cgroup.Cgroup | None) -> list[str]:
    """The command, run in this cgroup and with a tmpfs at MOUNT_POINT. Each step replaces the process by the next."""
    command = ["/bin/sh", "-c", PREPARE, "sh", tmpfs, "" if group is None else str(group.join), *command]
    if not tmpfs:
        return command
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return [shutil.which("unshare") or "unshare", "--mount", *user, "--", *command]


def tmpfs_options(tmp_bytes: int, files: int) -> str:
    return f"size={tmp_bytes},nr_inodes={files + 1},mode=1777,nosuid,nodev"


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
    limits: Limits,
    unsafe: bool,
    stack: ExitStack,
) -> Jailed:
    """Start one of the two sides; closing the stack kills it."""
    info: int | None = None
    with ExitStack() as given:
        if unsafe:
            command = python_command(module, argv, str(PACKAGE.parent))
        else:
            bwrap = require_sandbox()
            writable = _probe(bwrap)
            filter_fd = memory_file(seccomp.program(platform.machine()), given)
            info, info_end = os.pipe()
            stack.callback(os.close, info)
            given.callback(os.close, info_end)
            command = bwrap_command(bwrap, writable=writable, filter_fd=filter_fd, info_fd=info_end)
            command += ["--", *python_command(module, argv, MOUNTED_AT)]
            tmpfs = tmpfs_options(limits.tmp_bytes, limits.files) if writable else ""
            group = cgroup.make(limits.memory_bytes + limits.tmp_bytes, stack)
            command = prepared(command, tmpfs=tmpfs, group=group)
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
        raise SandboxError(f"untrusted programs are not run: bubblewrap is not installed. Install it: {INSTALL}")
    if platform.machine() not in seccomp.MACHINES:
        known = ", ".join(sorted(seccomp.MACHINES))
        raise SandboxError(f"untrusted programs are not run: no system-call filter for {platform.machine()}; known: {known}")
    _probe(bwrap)
    return bwrap


@dataclass(frozen=True, slots=True)
class Walls:
    """What the sandbox has on this machine, besides the walls that it has everywhere."""

    writable: bool  # a private /tmp that holds a bounded number of files; otherwise no folder to write to
    cgroup: str | None  # the folder of the memory cgroups that bound kernel memory


def walls() -> Walls:
    return Walls(_probe(require_sandbox()), cgroup.where())


@functools.cache
def _probe(bwrap: str) -> bool:
    """Can /tmp be a tmpfs of ours? SandboxError if bubblewrap does not even build its own walls."""
    if not _failure(bwrap, writable=True):
        return True
    failure = _failure(bwrap, writable=False)
    if failure:
        raise SandboxError(
            f"untrusted programs are not run: bubblewrap does not work here ({failure}). It needs unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, or the AppArmor profile of bwrap on Ubuntu)"
        )
    return False


def _failure(bwrap: str, *, writable: bool) -> str:
    """Why the walls do not stand; empty if they do."""
    with ExitStack() as stack:
        filter_fd = memory_file(seccomp.program(platform.machine()), stack)
        sink = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, sink)
        command = bwrap_command(bwrap, writable=writable, filter_fd=filter_fd, info_fd=sink)
        command += ["--", str(interpreter()), "-I", "-S", "-c", PROBE]
        command = prepared(command, tmpfs=tmpfs_options(1 << 20, 10) if writable else "", group=None)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, pass_fds=(filter_fd, sink), env={}, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return (done.stderr.decode(errors="replace").strip() or "no message") if done.returncode else ""

"""A fresh bubblewrap around one Python process.

The tmpfs that bubblewrap makes cannot bound the number of files, and each file takes about a
kilobyte of kernel memory. So the process first mounts a tmpfs itself, in a private mount namespace,
and then becomes bubblewrap. On machines that do not allow this, the sandbox has no folder to write
to.

Inside a user namespace a process is nobody, but to the kernel it remains the user who started it
and owns that user's files. Root therefore starts bubblewrap without a user namespace, and setpriv
makes the process nobody before Python starts. All other users need the user namespace.

Nothing inside may outlive us, so each process asks the kernel to kill it when its parent dies. The
kernel does so only if the parent has the right to send the signal, and bubblewrap, which drops its
capabilities, may not signal nobody. For root, unshare therefore makes the PID namespace, whose
first process is bubblewrap: when that dies, all others do.
"""

import functools
import itertools
import marshal
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from . import cgroup, seccomp
from .threads import Group, group

INSTALL = "apt-get install bubblewrap  (Fedora: dnf install bubblewrap, Arch: pacman -S bubblewrap)"
PACKAGE = Path(__file__).parent / "inside"
NOBODY = "65534"
SETPRIV_AT = "/oddlm/setpriv"
BECOME_NOBODY = [SETPRIV_AT, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
BECOME_NOBODY += ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]
# Checks the isolation from inside: a user without privileges, a PID namespace without other
# processes, no /proc of the host.
PROBE = (
    "import os, resource; "
    "os._exit(os.getuid() != 65534 or os.getpid() > 9 or os.path.exists('/proc'))"
)
DEATH_S = 10.0  # how long a killed sandbox may take to end
MOUNT_POINT = "/sys"  # the sandbox uses nothing from there
# $1: options of the tmpfs, empty for none; $2: the file to join a cgroup with, empty for none; $3:
# if not empty, protect the host's /dev/null from changes (writing to it stays possible). The rest
# is the command. Its stderr goes to our stdout, so that our stderr need not be a pipe: unshare
# reports there that its child was killed, and would block on a pipe that nobody reads.
PREPARE = """
[ -z "$2" ] || echo $$ >"$2" || exit 81
[ -z "$1" ] || mount -t tmpfs -o "$1" tmpfs /sys || exit 82
[ -z "$3" ] || mount --bind -o ro /dev/null /dev/null || exit 83
shift 3
exec "$@" 2>&1
"""
FAILURES = {
    81: "it could not join its cgroup",
    82: "its tmpfs could not be mounted",
    83: "/dev/null could not be made read-only",
}


class SandboxError(RuntimeError):
    """The sandbox does not work on this machine, or was stopped."""


@dataclass(frozen=True, slots=True)
class Limits:
    timeout_s: float = 10.0  # wall clock, including process start
    memory_bytes: int = 512 << 20  # address space of each of the two processes
    file_bytes: int = 16 << 20  # one file
    tmp_bytes: int = 64 << 20  # all files
    files: int = 10_000  # including folders and links
    output_bytes: int = 1_000_000  # printed by the program


@dataclass(frozen=True, slots=True)
class Walls:
    """The isolation that this machine offers beyond what every sandbox has."""

    # A private /tmp that holds a bounded number of files; otherwise there is no writable folder.
    writable: bool
    # The processes are nobody to the machine; otherwise only in a user namespace, and to the
    # machine they are the user who started them.
    nobody: bool
    cgroup: str | None  # the folder of the memory cgroups that bound kernel memory


@dataclass(eq=False, slots=True)
class Jailed:
    """A running sandbox, which can be killed as a whole."""

    process: subprocess.Popen[bytes]
    info: int | None  # bubblewrap writes to this pipe when it starts
    _started: bytes | None = None  # what was read from it; None is nothing yet
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> None:
        """Kill everything inside, without waiting until it has ended."""
        with self._lock:
            if (
                self._started is None
                and self.info is not None
                and select.select([self.info], [], [], 0.5)[0]
            ):
                self._started = os.read(self.info, 4096)
            if self.process.poll() is not None:
                return
            init = _open_init(self.process.pid) if self._started else None
            with suppress(ProcessLookupError):
                if init is None:
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(init, signal.SIGKILL)
            if init is not None:
                os.close(init)

    def kill(self) -> None:
        """Kill everything inside and wait until it has ended.

        Raise SandboxError if nothing inside has ever started.
        """
        self.end()
        try:
            status = self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise SandboxError("a killed sandbox did not end") from None
        if self._started == b"":  # bubblewrap, or a command before it, has ended by itself
            raise SandboxError(
                f"a sandbox did not start: {FAILURES.get(status, f'exit status {status}')}"
            )


def _open_init(parent: int) -> int | None:
    """Open a pidfd of the init of the sandbox's PID namespace, the only child of our process.

    The kernel ends an init only after every other process of its namespace, and the parent ends
    only after it has reaped the init. So killing the init and waiting for the parent leaves neither
    a process nor a zombie.
    """
    try:
        init = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
        handle = os.pidfd_open(init)
    except (OSError, IndexError):
        return None
    with suppress(OSError):
        status = Path(f"/proc/{init}/stat").read_text()
        # Otherwise the number belongs to another process by now.
        if status.rpartition(")")[2].split()[1] == str(parent):
            return handle
    os.close(handle)
    return None


def interpreter() -> Path:
    """Return the base interpreter: the sandbox has no packages of a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def libraries() -> list[str]:
    """Return the folders with Python, the libraries that it links to, and time zones."""
    prefixes = dict.fromkeys(("/usr", sys.base_prefix, str(interpreter().parents[1])))
    found = [
        *(f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")),
        "/lib",
        "/lib64",
        "/usr/share/zoneinfo",
    ]
    return [folder for folder in found if Path(folder).is_dir()]


def installed(folders: list[str]) -> Iterator[str]:
    """Yield the folders of installed packages in these folders, which the sandbox must not see."""
    for folder in folders:
        for found in itertools.chain(
            Path(folder).glob("python*/site-packages"), Path(folder).glob("python*/dist-packages")
        ):
            real = str(found.resolve()) if found.is_symlink() else str(found)
            # Otherwise it is a link to a folder that the sandbox does not see.
            if any(Path(real).is_relative_to(one) for one in folders):
                yield real


def bwrap_command(bwrap: str, *, walls: Walls, filter_fd: int, info_fd: int) -> list[str]:
    """Return the options of bubblewrap.

    They make empty namespaces, a read-only root with Python and its libraries, and a small private
    /tmp.
    """
    command = [bwrap, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if walls.nobody:
        command += [f"--unshare-{name}" for name in ("ipc", "net", "uts", "cgroup-try")]
        command += [
            word
            for name in ("SETUID", "SETGID", "SETPCAP")
            for word in ("--cap-add", f"CAP_{name}")
        ]
    else:
        command += ["--unshare-all", "--as-pid-1", "--uid", NOBODY, "--gid", NOBODY]
    command += ["--hostname", "sandbox", "--clearenv", "--setenv", "HOME", "/tmp"]
    command += ["--bind", MOUNT_POINT, "/tmp"] if walls.writable else ["--dir", "/tmp"]
    command += [*_view(walls.nobody), "--chdir", "/tmp"]
    return [*command, "--seccomp", str(filter_fd), "--info-fd", str(info_fd)]


@functools.cache
def _view(nobody: bool) -> tuple[str, ...]:
    """Return the options that decide which of the machine's files the sandbox sees."""
    files = {str(interpreter()): str(interpreter()), "/etc/ld.so.cache": "/etc/ld.so.cache"}
    if nobody:
        files[SETPRIV_AT] = str(shutil.which("setpriv"))
    folders = [
        folder
        for folder in libraries()
        if not Path(folder).is_symlink() or folder not in ("/lib", "/lib64")
    ]
    above = {parent for path in (*folders, *files, "/dev/null") for parent in Path(path).parents}
    # Parents that bubblewrap makes by itself are accessible to root alone.
    command = [word for folder in sorted(map(str, above))[1:] for word in ("--dir", folder)]
    for folder in folders:
        command += ["--ro-bind", folder, folder]
    for folder in installed(folders):
        command += ["--tmpfs", folder, "--remount-ro", folder]
    for folder in ("/lib", "/lib64"):
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
    for inside, outside in files.items():
        command += ["--ro-bind-try", outside, inside]
    return (*command, "--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/")


def jailed_command(
    bwrap: str, command: list[str], *, walls: Walls, tmpfs: str, join: str, fds: tuple[int, int]
) -> list[str]:
    """Return the command that runs `command` in the sandbox.

    Each step execs the next: unshare (which forks in the nobody case), sh, bubblewrap, setpriv.
    """
    filter_fd, info_fd = fds
    command = [*(BECOME_NOBODY if walls.nobody else ()), *command]
    jail = bwrap_command(bwrap, walls=walls, filter_fd=filter_fd, info_fd=info_fd)
    command = [*jail, "--", *command]
    root = os.geteuid() == 0
    # Root could change /dev/null, nobody cannot.
    null = "null" if root and walls.writable and not walls.nobody else ""
    arguments = [tmpfs if walls.writable else "", join, null]
    command = ["/bin/sh", "-c", PREPARE, "sh", *arguments, *command]
    unshare = [shutil.which("unshare") or "unshare", *(() if root else ("--map-root-user",))]
    if walls.nobody:
        dying = [str(shutil.which("setpriv")), "--pdeathsig", "KILL", "--"]
        return [*dying, *unshare, "--mount", "--pid", "--fork", "--kill-child", "--", *command]
    return [*unshare, "--mount", "--", *command] if walls.writable else command


def tmpfs_options(tmp_bytes: int, files: int) -> str:
    return f"size={tmp_bytes},nr_inodes={files + 1},mode=1777,nosuid,nodev"


@functools.cache
def bundle() -> bytes:
    """Return the modules of `inside` as marshalled {name: code}, compiled once."""
    modules = {}
    for path in sorted(PACKAGE.glob("*.py")):
        name = PACKAGE.name if path.stem == "__init__" else f"{PACKAGE.name}.{path.stem}"
        modules[name] = compile(
            path.read_bytes(), f"{PACKAGE.name}/{path.name}", "exec", dont_inherit=True
        )
    return marshal.dumps(modules)


def python_command(module: str, argv: list[str]) -> list[str]:
    """Return the command for Python to read the bundle from stdin and run a module of it."""
    start = f"""
import marshal, os, sys
modules = marshal.loads(os.read(0, {len(bundle())}))
exec(modules["{PACKAGE.name}.start"])
start(modules, "{PACKAGE.name}.{module}", sys.argv[1:])
"""
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
    command = python_command(module, argv)
    ours = group()
    if ours.stopped:
        raise SandboxError("sandboxes have been stopped")
    with ExitStack() as given:
        if not unsafe:
            bwrap = require_sandbox()
            filter_fd = memory_file(seccomp.program(platform.machine()), given)
            info, info_end = os.pipe()
            stack.callback(os.close, info)
            given.callback(os.close, info_end)
            try:
                join = cgroup.make(limits.memory_bytes + limits.tmp_bytes, stack)
            except OSError as error:
                raise SandboxError(
                    f"a sandbox did not start: its cgroup could not be made ({error})"
                ) from None
            command = jailed_command(
                bwrap,
                command,
                walls=_probe(bwrap),
                tmpfs=tmpfs_options(limits.tmp_bytes, limits.files),
                join="" if join is None else str(join.join),
                fds=(filter_fd, info_end),
            )
            fds = (*fds, filter_fd, info_end)
        sink = subprocess.DEVNULL if output is None else output
        process = subprocess.Popen(
            command,
            stdin=memory_file(bundle() + stdin, given),
            stdout=sink,
            stderr=sink if unsafe else subprocess.DEVNULL,
            pass_fds=fds,
            env={},
            start_new_session=True,
        )
    jailed = Jailed(process, info)
    stack.callback(_close, jailed, ours)
    ours.enter(jailed)
    return jailed


def _close(jailed: Jailed, ours: Group) -> None:
    """Kill a sandbox; raise SandboxError if it was stopped from outside, as it has no verdict."""
    ours.leave(jailed)
    if ours.stopped:
        with suppress(SandboxError):
            jailed.kill()
        raise SandboxError("sandboxes have been stopped")
    jailed.kill()


def warn_unsafe() -> None:
    warnings.warn(
        "untrusted code runs WITHOUT a sandbox: it can read, change and send your files",
        RuntimeWarning,
        stacklevel=3,
    )


def require_sandbox(*, unsafe: bool = False) -> str:
    """Return the path of a working bubblewrap; raise SandboxError if there is none."""
    if unsafe:
        return ""
    bwrap = shutil.which("bwrap") if sys.platform == "linux" else None
    if bwrap is None:
        raise SandboxError(
            f"untrusted programs are not run: bubblewrap is not installed. Install it: {INSTALL}"
        )
    if platform.machine() not in seccomp.MACHINES:
        known = ", ".join(sorted(seccomp.MACHINES))
        raise SandboxError(
            "untrusted programs are not run: "
            f"no system-call filter for {platform.machine()}; known: {known}"
        )
    _probe(bwrap)
    return bwrap


def walls() -> Walls:
    return _probe(require_sandbox())


@functools.cache
def _probe(bwrap: str) -> Walls:
    """Return the best isolation that works on this machine.

    Raise SandboxError if bubblewrap does not even provide the minimum.
    """
    failure = ""
    root = os.geteuid() == 0 and shutil.which("setpriv") is not None
    for nobody, writable in itertools.product((True, False) if root else (False,), (True, False)):
        found = Walls(writable, nobody, cgroup.where())
        failure = _failure(bwrap, found)
        if not failure:
            return found
    raise SandboxError(
        f"untrusted programs are not run: bubblewrap does not work here ({failure}). "
        "It needs unprivileged user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, or the AppArmor profile of bwrap on Ubuntu)"
    )


def _failure(bwrap: str, walls: Walls) -> str:
    """Return why the sandbox does not work with these walls; empty if it does."""
    with ExitStack() as stack:
        filter_fd = memory_file(seccomp.program(platform.machine()), stack)
        sink = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, sink)
        probe = [str(interpreter()), "-I", "-S", "-c", PROBE]
        tmpfs = tmpfs_options(1 << 20, 10)
        command = jailed_command(
            bwrap, probe, walls=walls, tmpfs=tmpfs, join="", fds=(filter_fd, sink)
        )
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=(filter_fd, sink),
                env={},
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if not done.returncode:
        return ""
    return (done.stdout + done.stderr).decode(errors="replace").strip() or "no message"

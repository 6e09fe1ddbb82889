"""A memory cgroup for each sandbox, if the machine offers cgroups.

Unlike an rlimit, a cgroup also counts memory that the kernel holds for a process (inodes, pipes,
sockets). Version 2 needs a writable parent that distributes memory to its children: root's, or a
slice that systemd has delegated to the user. Version 1 works in any folder of the memory hierarchy.
"""

import functools
import itertools
import os
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

SLACK = 64 << 20  # for the interpreter's own pages, page tables and pipes
BUSY_S = 2.0  # how long the last process of a cgroup may take to leave it
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one sandbox. A process joins by writing its id to `join`."""

    folder: Path

    @property
    def join(self) -> Path:
        return self.folder / "cgroup.procs"

    def remove(self) -> None:
        end = time.monotonic() + BUSY_S
        while time.monotonic() < end:
            with suppress(FileNotFoundError):
                try:
                    self.folder.rmdir()
                except OSError:  # busy: the last process is still ending
                    time.sleep(0.005)
                    continue
            return


def make(memory_bytes: int, stack: ExitStack) -> Cgroup | None:
    """Make a cgroup with this limit, removed with the stack; None if the machine offers none.

    Raise OSError if making it fails.
    """
    parent = _parent()
    return None if parent is None else _made(parent, memory_bytes, stack)


def where() -> str | None:
    """Return the folder in which cgroups are made, or None."""
    parent = _parent()
    return None if parent is None else str(parent)


def _made(parent: Path, memory_bytes: int, stack: ExitStack) -> Cgroup:
    group = Cgroup(parent / f"oddlm-{os.getpid()}-{next(_numbers)}")
    limits = {
        "memory.max": memory_bytes + SLACK,
        "memory.swap.max": 0,
        "memory.limit_in_bytes": memory_bytes + SLACK,
    }
    group.folder.mkdir()
    stack.callback(group.remove)
    for name, value in limits.items():
        if (group.folder / name).exists():  # the names differ between the two versions
            (group.folder / name).write_text(str(value))
    return group


@functools.cache
def _parent() -> Path | None:
    """Return the folder to make cgroups in, found by trying once."""
    for folder in _candidates():
        with suppress(OSError), ExitStack() as stack:
            group = _made(folder, 1 << 20, stack)
            limited = any(
                (group.folder / name).exists() for name in ("memory.max", "memory.limit_in_bytes")
            )
            if limited and _can_join(group):
                _sweep(folder)
                return folder
    return None


def _can_join(group: Cgroup) -> bool:
    """Return whether processes may move to a cgroup.

    Writing its limits is not enough: version 2 requires rights on the common parent.
    """
    return not subprocess.run(
        ["/bin/sh", "-c", 'echo $$ >"$1"', "sh", str(group.join)], stderr=subprocess.DEVNULL
    ).returncode


def _sweep(folder: Path) -> None:
    """Remove the cgroups that killed processes have left behind."""
    for left in folder.glob("oddlm-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            with suppress(OSError):
                left.rmdir()


def _candidates() -> list[Path]:
    found = []
    with suppress(OSError, ValueError):
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            wanted = "cgroup2" if not controllers else "cgroup"
            for fields in mounts:
                kind, options = fields[fields.index("-") + 1], fields[-1]
                has_memory = "memory" in controllers.split(",") and "memory" in options.split(",")
                if kind == wanted and (has_memory or not controllers):
                    own = Path(fields[4]) / os.path.relpath(path, fields[3])
                    found += [own, own.parent] if not controllers and path != "/" else [own]
    return [folder for folder in found if os.access(folder, os.W_OK)]

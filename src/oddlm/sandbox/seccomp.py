"""A system-call filter: no new processes or threads, no tracing, no namespaces, none of the kernel's rarer doors.

RLIMIT_NPROC alone does not do: the kernel exempts processes of the real root user, also inside a user namespace (copy_process()
in kernel/fork.c compares with INIT_USER). Numbers: asm/unistd_64.h and asm-generic/unistd.h of Linux.
"""

import errno
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4  # offsets in struct seccomp_data
_X32 = 0x40000000

# system call: its number on x86_64 and on aarch64
_DENIED: dict[str, tuple[int, int | None]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "shmget": (29, 194),  # this and the next three give memory that no limit of the process counts
    "msgget": (68, 186),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # audit architecture, column above


def program(machine: str) -> bytes:
    """The filter as classic BPF, for `bwrap --seccomp`."""
    arch, column = MACHINES[machine]
    numbers = [row[column] for row in _DENIED.values()]
    refuse = [(_EQUAL, 0, 1, number, _ERRNO | errno.EPERM) for number in numbers if number is not None]
    if machine == "x86_64":
        refuse.append((_AT_LEAST, 0, 1, _X32, _KILL))
    steps = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    for code, if_true, if_false, value, verdict in refuse:
        steps += [(code, if_true, if_false, value), (_RETURN, 0, 0, verdict)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)

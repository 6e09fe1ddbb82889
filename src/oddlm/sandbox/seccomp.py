"""A system-call filter against new processes, threads, sockets, tracing and namespaces.

It also denies the kernel's rarely used interfaces. Neither side needs a socket, and a network
namespace does not contain all of them (AF_VSOCK reaches a virtual machine's host). asyncio wakes
itself through a socketpair(), which stays allowed, but only for AF_UNIX. System calls newer than
those listed here return ENOSYS, for which libraries have fallbacks. RLIMIT_NPROC alone is not
enough: the kernel exempts processes of the real root user, even inside a user namespace
(copy_process() in kernel/fork.c compares with INIT_USER). The numbers are from asm/unistd_64.h and
asm-generic/unistd.h of Linux.
"""

import errno
import struct
from signal import SIGKILL

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# Offsets in struct seccomp_data; those of the arguments are the lower halves of the first two.
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, (16, 24)
_X32 = 0x40000000
# set_mempolicy_home_node of Linux 5.17, and all later calls: statmount, listmount, open_tree_attr,
# listns ...
_NEW = 450
_AF_UNIX, _PR_SET_PDEATHSIG, _F_SETLEASE, _F_NOTIFY = 1, 1, 1024, 1026

# System call: its number on x86_64 and on aarch64.
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
    "socket": (41, 198),
    # From here to inotify_init1: memory that no limit of the process counts.
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_setup": (206, 0),
    "fanotify_init": (300, 262),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "acct": (163, 89),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "kexec_file_load": (320, 294),
    "delete_module": (176, 106),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
}
_SOCKETPAIR, _PRCTL, _FCNTL = (53, 199), (157, 167), (72, 25)
# Machine: its audit architecture, and its column above.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Operation, number of steps to skip if it holds, number to skip if not, operand.
Step = tuple[int, int, int, int]


def program(machine: str) -> bytes:
    """Return the filter as classic BPF, for `bwrap --seccomp`."""
    arch, column = MACHINES[machine]
    numbers = [row[column] for row in _DENIED.values()]
    denied, allowed = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    first, second = ((_LOAD, 0, 0, at) for at in _ARGUMENTS_AT)
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number in numbers:
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), denied]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    steps += [(_AT_LEAST, 0, 1, _NEW), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += _on(_SOCKETPAIR[column], [first, (_EQUAL, 1, 0, _AF_UNIX), denied, allowed])
    # A process must not outlive its parent: only SIGKILL may be its parent-death signal.
    end = (_EQUAL, 1, 0, int(SIGKILL))
    steps += _on(
        _PRCTL[column],
        [first, (_EQUAL, 1, 0, _PR_SET_PDEATHSIG), allowed, second, end, denied, allowed],
    )
    # A lease on a file makes other processes wait that want to change it.
    steps += _on(
        _FCNTL[column],
        [second, (_EQUAL, 1, 0, _F_SETLEASE), (_EQUAL, 0, 1, _F_NOTIFY), denied, allowed],
    )
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, allowed])


def _on(number: int, steps: list[Step]) -> list[Step]:
    """Return steps for one system call, of which the last must return; other calls skip them."""
    return [(_EQUAL, 0, len(steps), number), *steps]

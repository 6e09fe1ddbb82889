"""A system-call filter: no new processes or threads, no tracing, no namespaces, none of the kernel's rarer doors.

RLIMIT_NPROC alone does not do: the kernel exempts processes of the real root user, also inside a user namespace.
"""

import errno
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4  # offsets in struct seccomp_data
_X32 = 0x40000000

_DENIED = (
    "clone clone3 fork vfork ptrace process_vm_readv process_vm_writev unshare setns mount umount2 pivot_root "
    "add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup init_module finit_module kexec_load"
).split()

_X86_64 = dict(
    zip(
        _DENIED,
        (56, 435, 57, 58, 101, 310, 311, 272, 308, 165, 166, 155, 248, 249, 250, 321, 298, 323, 425, 175, 313, 246),
        strict=True,
    )
)
_AARCH64 = dict(
    zip(
        [name for name in _DENIED if name not in ("fork", "vfork")],
        (220, 435, 117, 270, 271, 97, 268, 40, 39, 41, 217, 218, 219, 280, 241, 282, 425, 105, 273, 104),
        strict=True,
    )
)
MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}


def program(machine: str) -> bytes:
    """The filter as classic BPF, for `bwrap --seccomp`."""
    arch, numbers = MACHINES[machine]
    refuse = [(_EQUAL, 0, 1, number, _ERRNO | errno.EPERM) for number in sorted(numbers.values())]
    if machine == "x86_64":
        refuse.append((_AT_LEAST, 0, 1, _X32, _KILL))
    steps = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    for code, if_true, if_false, value, verdict in refuse:
        steps += [(code, if_true, if_false, value), (_RETURN, 0, 0, verdict)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)

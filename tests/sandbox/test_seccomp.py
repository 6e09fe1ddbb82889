"""The filter, interpreted as the kernel would run it, also for machines other than this one."""

import errno
import platform
import struct

import pytest

from oddlm.sandbox import seccomp

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
DENY, UNKNOWN = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
COLUMNS = {"x86_64": 0, "aarch64": 1}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {  # from asm/unistd_64.h and asm-generic/unistd.h
    "read": (0, 63),
    "openat": (257, 56),
    "execve": (59, 221),
    "setresuid": (117, 147),
    "socketpair": (53, 199),
    "prctl": (157, 167),
    "fcntl": (72, 25),
    "socket": (41, 198),
    "clone": (56, 220),
    "futex_waitv": (449, 449),
    "statmount": (457, 457),
    "listns": (470, 470),
}


def answer(machine: str, name: str, *arguments: int, arch: int | None = None) -> int:
    return run(
        seccomp.program(machine),
        CALLS[name][COLUMNS[machine]],
        arch or ARCHITECTURES[machine],
        arguments,
    )


def run(program: bytes, number: int, arch: int, arguments: tuple[int, ...]) -> int:
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", program))
    at, held = 0, 0
    while True:
        operation, if_so, if_not, operand = steps[at]
        at += 1
        match operation:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += if_so if held == operand else if_not
            case 0x35:
                at += if_so if held >= operand else if_not
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"operation {operation:#x}")


@pytest.mark.parametrize("machine", COLUMNS)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", (), ALLOW),
        ("openat", (), ALLOW),
        ("execve", (), ALLOW),
        ("setresuid", (65534, 65534, 65534), ALLOW),
        ("futex_waitv", (), ALLOW),
        ("socket", (1,), DENY),
        ("clone", (), DENY),
        ("statmount", (), UNKNOWN),
        ("listns", (), UNKNOWN),
        ("socketpair", (1, 1), ALLOW),
        ("socketpair", (2, 1), DENY),
        ("prctl", (1, 9), ALLOW),
        ("prctl", (1, 0), DENY),
        ("prctl", (1, 15), DENY),
        ("prctl", (1 << 32 | 1, 0), DENY),  # the kernel takes the lower half
        ("prctl", (2, 0), ALLOW),
        ("prctl", (38, 1), ALLOW),
        ("fcntl", (3, 1024), DENY),
        ("fcntl", (3, 1026), DENY),
        ("fcntl", (1024, 1), ALLOW),
        ("fcntl", (3, 1025), ALLOW),
    ],
)
def test_answer_of_the_filter(
    machine: str, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert answer(machine, name, *arguments) == expected


@pytest.mark.parametrize("machine", COLUMNS)
def test_calls_of_another_architecture_kill(machine: str) -> None:
    assert answer(machine, "read", arch=0x40000003) == KILL


def test_calls_with_short_pointers_kill() -> None:
    assert run(seccomp.program("x86_64"), 0x40000000, ARCHITECTURES["x86_64"], ()) == KILL


def test_this_machine_is_among_them() -> None:
    assert platform.machine() in seccomp.MACHINES
    assert set(seccomp.MACHINES) == set(COLUMNS)

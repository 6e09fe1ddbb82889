"""What honest programs may rely on, what failures report, and when the sandbox refuses."""

import math
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.sandbox import Limits, SandboxError, jail, run_python
from oddlm.sandbox.inside.wire import MAX_BYTES, WireError, decode, encode

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**4400, max_value=10**4410)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
)
keys = scalars | st.tuples(scalars, scalars)
values = st.recursive(
    scalars | st.sets(keys) | st.frozensets(keys),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=12,
)


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return len(one) == len(two) and all(
            same(a, b) for a, b in zip(one.items(), two.items(), strict=True)
        )
    return bool(one == two)


@given(values)
def test_plain_data_survives_the_wire(value: Any) -> None:
    assert same(decode(encode(value)), value)


def test_special_floats_survive_the_wire() -> None:
    minus_zero, nan, inf = decode(encode([-0.0, math.nan, -math.inf]))
    assert math.copysign(1, minus_zero) == -1
    assert math.isnan(nan)
    assert inf == -math.inf


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        decode(data)


@given(values, st.data())
def test_damaged_bytes_are_a_value_or_a_wire_error(value: Any, data: st.DataObject) -> None:
    whole = bytearray(encode(value))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        decode(bytes(whole))


def test_kinds_of_data_reach_the_tests_as_they_are() -> None:
    source = "def f(v): return v\ndef kinds(v): return [type(i).__name__ for i in v]"
    tests = """
values = [(1, [2, (3,)]), {"a": {1, 2}, 3: None}, b"x", 2**200, -0.0, 1.5, True, "\\ud800"]
for value in [*values, frozenset({1}), 1j, [], ()]:
    got = f(value)
    assert got == value and type(got) is type(value), (got, value)
assert f(float("nan")) != f(float("nan"))
names = ["int", "bool", "NoneType", "str", "tuple", "set", "bytes", "float"]
assert kinds([1, True, None, "s", (1,), {1}, b"", 1.0]) == names
assert f(v=[1]) == [1]
"""
    verdict = run_python(source, tests, functions=["f", "kinds"])
    assert verdict.passed, verdict.detail


def test_subclasses_of_plain_types_become_plain() -> None:
    source = """
from collections import Counter, namedtuple
P = namedtuple("P", "x y")
def f(x): return [Counter("aab"), P(1, 2)]
"""
    verdict = run_python(source, "assert f(1) == [{'a': 2, 'b': 1}, (1, 2)]", functions=["f"])
    assert verdict.passed, verdict.detail


def test_exceptions_keep_their_name() -> None:
    source = (
        "def f(x):\n    if x: raise KeyError('k')\n    raise type('Mine', (Exception,), {})('m')"
    )
    tests = "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass\nf(0)"
    assert run_python(source, tests, functions=["f"]).detail == "f(0) raised Mine: m"


def test_state_of_a_program_lasts_through_its_tests_and_no_longer() -> None:
    source = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    for _ in range(2):
        assert run_python(source, "assert f(0) == 1\nassert f(0) == 2", functions=["f"]).passed


def test_a_program_that_empties_its_argument_passes_neither_way() -> None:
    """It fails tests that expect the argument unchanged, and tests that expect it empty."""
    source = "def f(v):\n    v.clear()\n    return 0"
    for left in ([1], []):
        assert not run_python(
            source, f"v = [1]\nassert f(v) == 0\nassert v == {left}", functions=["f"]
        ).passed
    assert run_python(source, "v = [1]\nassert f(v) == 0", functions=["f"]).passed


def test_dataclasses_and_recursion_work() -> None:
    source = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Node:
    depth: int
def f(x):
    return 0 if x == 0 else Node(1).depth + f(x - 1)
"""
    assert run_python(source, "assert f(500) == 500", functions=["f"]).passed


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x): return x", "not so: f(1) == 2; f(1) returned 1"),
        ("def f(x): return 1 / 0", "f(1) raised ZeroDivisionError: division by zero"),
        ("def f(: pass", "the program does not load: SyntaxError: invalid syntax"),
        ("x = 1", "the program does not load: NameError: the program defines no function 'f'"),
        (
            "import nothing_there",
            "the program does not load: ModuleNotFoundError: No module named 'nothing_there'",
        ),
        (
            "def f(): return 2",
            "f(1) raised TypeError: f() takes 0 positional arguments but 1 was given",
        ),
        ("def f(x): return f(x)", "f(1) raised RecursionError: maximum recursion depth exceeded"),
        ("def f(x): return map(int, [])", "not so: f(1) == 2; f(1) returned <map>"),
        ("def f(x): return {1: [object()]}", "not so: f(1) == 2; f(1) returned {1: [<object>]}"),
    ],
)
def test_reason_of_a_failure(source: str, reason: str) -> None:
    verdict = run_python(source, "assert f(1) == 2", functions=["f"])
    assert not verdict.passed
    assert verdict.detail.startswith(reason)


def test_result_the_tests_cannot_use() -> None:
    verdict = run_python("def f(x): return None", "assert f(1) < 2", functions=["f"])
    assert verdict.detail == (
        "TypeError: '<' not supported between instances of 'NoneType' and 'int'; f(1) returned None"
    )


def test_broken_tests_say_so() -> None:
    verdict = run_python("def f(x): return 1", "nonsense(", functions=["f"])
    assert not verdict.passed
    assert verdict.detail.startswith("the tests fail by themselves: line 1")
    assert "SyntaxError" in verdict.detail


def test_tests_out_of_memory_fail_closed() -> None:
    verdict = run_python(
        "def f(x): return 10**10",
        "assert bytearray(f(1))",
        functions=["f"],
        limits=Limits(timeout_s=5),
    )
    assert not verdict.passed
    assert "MemoryError" in verdict.detail


def test_source_too_long() -> None:
    assert "longer than" in run_python("#" * 9_000_000, "f()", functions=["f"]).detail


def test_value_just_small_enough() -> None:
    verdict = run_python(
        "def f(n): return 'x' * n", f"n = {MAX_BYTES - 100}\nassert len(f(n)) == n", functions=["f"]
    )
    assert verdict.passed, verdict.detail


def test_refuses_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail.shutil, "which", lambda _: None)
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        run_python("def f(x): return 2", "assert f(1) == 2", functions=["f"])


def test_refuses_a_bubblewrap_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"bwrap: No permissions .*user namespaces"):
        run_python("def f(x): return 2", "assert f(1) == 2", functions=["f"])


def test_refuses_a_bubblewrap_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bwrap that merely runs the command does not isolate anything."""
    false = tmp_path / "bwrap"
    false.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    false.chmod(false.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SandboxError, match=r"bubblewrap .*user namespaces"):
        run_python("def f(x): return 2", "assert f(1) == 2", functions=["f"])


def test_refuses_a_machine_without_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail.platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="riscv64; known: aarch64, x86_64"):
        run_python("def f(x): return 2", "assert f(1) == 2", functions=["f"])


def test_unsafe_works_without_bubblewrap_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail.shutil, "which", lambda _: None)
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        assert run_python(
            "def f(x): return 2", "assert f(1) == 2", functions=["f"], unsafe=True
        ).passed
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        late = run_python(
            "while True: pass", "f(1)", functions=["f"], unsafe=True, limits=Limits(timeout_s=1)
        )
    assert late.detail == "took longer than 1 s"

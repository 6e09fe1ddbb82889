"""A wrong program fails, whatever it does to look right. One forgery, one test."""

import pytest

from oddlm.sandbox import Limits, Verdict, run_python
from oddlm.sandbox.inside.wire import MAX_BYTES, MAX_DEPTH

from .case import NUMBER

TESTS = "assert f(1) == 41\nassert f(2) == 42\nassert f(3) != 41"


def lie(source: str, tests: str = TESTS) -> Verdict:
    verdict = run_python(source, tests, functions=["f"], limits=Limits(timeout_s=5))
    assert not verdict.passed, verdict.detail
    assert verdict.detail
    return verdict


def test_the_honest_program_passes() -> None:
    verdict = run_python("def f(x): return 40 + x", TESTS, functions=["f"])
    assert verdict.passed
    assert verdict.detail == "passed in 3 calls"


def test_object_that_equals_everything() -> None:
    source = (
        "class E:\n    def __eq__(s, o): return True\n"
        "    def __ne__(s, o): return True\ndef f(x): return E()"
    )
    assert lie(source).detail == "not so: f(1) == 41; f(1) returned <E>"


def test_number_that_equals_everything() -> None:
    lie(
        "class E(int):\n    def __eq__(s, o): return True\n"
        "    def __ne__(s, o): return True\ndef f(x): return E(7)"
    )


def test_text_that_equals_everything() -> None:
    lie(
        "class E(str):\n    def __eq__(s, o): return True\n"
        "    def __ne__(s, o): return True\ndef f(x): return E('x')"
    )


def test_list_that_equals_everything() -> None:
    lie(
        "class E(list):\n    def __eq__(s, o): return True\n"
        "    def __ne__(s, o): return True\ndef f(x): return E([1])"
    )


def test_patched_builtins() -> None:
    names = ("AssertionError", "isinstance", "len", "repr", "exec", "compile", "abs")
    lie(
        f"import builtins\nfor n in {names}: setattr(builtins, n, lambda *a, **k: True)\n"
        "def f(x): return 0"
    )


def test_patched_protocol() -> None:
    lie(
        "import sys\nwire = sys.modules['inside.wire']\n"
        "wire.encode = lambda v, m=0: b't'\ndef f(x): return 0"
    )


def test_sys_exit_zero_when_loading() -> None:
    assert lie("import sys\nsys.exit(0)").detail == "the program does not load: SystemExit: 0"


def test_sys_exit_zero_when_called() -> None:
    assert "raised SystemExit" in lie("import sys\ndef f(x): sys.exit(0)").detail


def test_os_exit_zero_when_loading() -> None:
    assert (
        lie("import os\nos._exit(0)").detail
        == "the program ended in loading the program (exit status 0)"
    )


def test_os_exit_zero_when_called() -> None:
    assert (
        lie("import os\ndef f(x): os._exit(0)").detail
        == "the program ended in f(1) (exit status 0)"
    )


def test_exit_from_an_atexit_hook() -> None:
    lie("import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0")


def test_printed_verdict() -> None:
    lie(
        "print('passed', True, flush=True)\ndef f(x):\n"
        "    print((True, 'passed'), flush=True)\n    return 0"
    )


def test_verdict_written_to_every_descriptor() -> None:
    source = """
import os, sys
data = sys.modules["inside.wire"].encode((True, "passed in 3 calls"))
def f(x):
    for fd in range(64):
        try: os.write(fd, b"%08x" % len(data) + data)
        except OSError: pass
    return 0
"""
    assert "broke the protocol" in lie(source).detail


def test_nonce_or_expected_value_read_from_memory() -> None:
    """The expected results are nowhere in the candidate's process.

    They are not in objects, frames, descriptors or files.
    """
    source = """
import gc, os, sys
def texts():
    frame = sys._getframe()
    while frame:
        yield from map(repr, frame.f_locals.values())
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, (str, bytes, int, list, dict, tuple)):
            yield repr(thing)[:10000]
    for fd in range(3, 64):
        try:
            os.set_blocking(fd, False)
            yield repr(os.pread(fd, 100000, 0))
        except OSError:
            try: yield repr(os.read(fd, 100000))
            except OSError: pass
    yield repr(os.pread(0, 100000, 0)) + repr(sys.argv) + repr(dict(os.environ))
def f(x):
    return any("9035768" in text[::-1] for text in texts())  # backwards, so as not to find itself
"""
    tests = "seen = f(1)\nassert seen is False, 'seen'\nassert 8675309 > 1"
    verdict = run_python(source, tests, functions=["f"], limits=Limits(timeout_s=10))
    assert verdict.passed, verdict.detail


def test_answers_sent_in_advance() -> None:
    """An answer to a call that has not been made yet is out of turn."""
    source = (
        NUMBER
        + """
wire = sys.modules['inside.wire']
def f(x):
    for n in (number() + 1, number() + 2, number()):
        wire.send(int(sys.argv[2]), ((), 'reply', n, 'value', 41, False, b''))
    return 0
"""
    )
    assert "broke the protocol" in lie(source).detail


@pytest.mark.parametrize(
    "given", ["(), ()", "(41,), ()", "{'f': 41, 'len': 0}, {}", "(41, 41), ()", "None, None"]
)
def test_loading_said_twice(given: str) -> None:
    """A program cannot announce its definitions early, nor define names that were not requested."""
    reply = f"((), 'reply', number(), 'loaded', {given}, False, b'')"
    source = (
        f"{NUMBER}sys.modules['inside.wire'].send(int(sys.argv[2]), {reply})\ndef f(x): return 41"
    )
    assert lie(source)


def test_raising_what_the_tests_expect_as_failure() -> None:
    assert "raised AssertionError" in lie("def f(x): raise AssertionError('passed')").detail


def test_death_is_not_excused_by_a_forgiving_test() -> None:
    lie("import os\ndef f(x): os._exit(0)", "try:\n    f(1)\nexcept Exception:\n    pass")


def test_tests_that_never_call_prove_nothing() -> None:
    assert lie("def f(x): return 0", "assert True").detail == "the tests never called the program"


def test_redefining_the_check_of_the_tests() -> None:
    lie(
        "def check(candidate): return True\ndef f(x): return 0",
        "def check(c):\n    assert c(1) == 41\ncheck(f)",
    )


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 100_000])
def test_deeply_nested_value(depth: int) -> None:
    verdict = lie(f"def f(x):\n    v = []\n    for _ in range({depth}): v = [v]\n    return v")
    assert f"nested more than {MAX_DEPTH} deep" in verdict.detail


def test_deeply_nested_bytes_on_the_wire() -> None:
    source = """
import os, sys, time
def f(x):
    data = b"l1:" * 300000
    os.write(int(sys.argv[2]), b"%08x" % len(data) + data)
    time.sleep(9)
"""
    assert f"nested more than {MAX_DEPTH} deep" in lie(source).detail


def test_value_that_contains_itself() -> None:
    source = "def f(x):\n    v = []\n    v.append(v)\n    return v"
    lie(source)
    assert run_python(source, "v = f(1)\nassert v[0] is v", functions=["f"]).passed


def test_huge_value() -> None:
    assert (
        lie("def f(x): return 'x' * 10**8").detail
        == f"f(1) returned a value of more than {MAX_BYTES} bytes"
    )


def test_huge_frame() -> None:
    assert (
        str(MAX_BYTES)
        in lie("import os, sys\ndef f(x): os.write(int(sys.argv[2]), b'ffffffff')").detail
    )


def test_huge_number_of_items() -> None:
    verdict = run_python(
        "def f(x): return [0] * 10**7", TESTS, functions=["f"], limits=Limits(timeout_s=60)
    )
    assert not verdict.passed
    assert str(MAX_BYTES) in verdict.detail


def test_integer_too_long_to_print() -> None:
    assert "returned <int" in lie("def f(x): return 1 << 100000").detail


def test_control_characters_in_a_message() -> None:
    assert "\x1b" not in lie("def f(x): raise ValueError('\\x1b[2J\\x00\\n passed')").detail


def test_message_that_cannot_be_read() -> None:
    source = "class E(Exception):\n    def __str__(s): raise RuntimeError\ndef f(x): raise E"
    assert "could not be read" in lie(source).detail


@pytest.mark.parametrize("kind", ["raised", "not plain"])
def test_endless_message(kind: str) -> None:
    """The reason stays readable even if the program writes a megabyte into it."""
    rest = (
        "({'names': (('m', 'E'),), 'text': 'm' * 999_000}, None)"
        if kind == "raised"
        else "('m' * 999_000,)"
    )
    reply = f"((), 'reply', number(), {kind!r}, *{rest}, False, b'')"
    source = (
        f"{NUMBER}send = sys.modules['inside.wire'].send\ndef f(x): send(int(sys.argv[2]), {reply})"
    )
    assert "mmm..." in lie(source).detail

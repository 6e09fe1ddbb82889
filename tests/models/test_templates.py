"""Malicious chat templates cost a few seconds and some memory, in a separate process."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from oddlm.models.loading import chat, rendering
from oddlm.models.loading.chat import ChatTemplate, ControlTokens, renderer

from ..experiments.test_run import ENV, ROOT
from ..growth import LINEAR, growth
from ..waiting import wait_gone

USER = [{"role": "user", "content": "hello"}]
HONEST = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DOUBLING = (
    "{% set x = namespace(s='a') %}{% for i in range(99) %}{% set x.s = x.s + x.s %}{% endfor %}"
)
TIME, MEMORY, SIZE = "more than 1 s", "more than 512 MiB", "more than 8388608 characters"


def render(source: str, messages=USER, special: ControlTokens | None = None) -> str:
    template = ChatTemplate(source, {}, special or ControlTokens({}))
    return "".join(text for text, _ in template.segments(messages))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", TIME),
        ("{{ lipsum(n=10**7) }}", TIME),
        ("{{ 9 ** (9 ** 9) }}", TIME),
        ("{{ messages | length ** 1 * 9 ** (9 ** 9) }}", TIME),
        ("{% for x in 'a' | batch(10 ** 10, 'x') %}{% endfor %}", MEMORY),
        ("{{ [1] | slice(10 ** 9, 'x') | list }}", f"{MEMORY}|{TIME}"),
        ("{{ 'a' * 5000000000 }}", MEMORY),
        ("{{ messages[0].content * 1000000000 }}", MEMORY),
        ("{{ ([0] * 1000000000) | length }}", MEMORY),
        (DOUBLING, MEMORY),
        ("{{ '%0999999999d' % 1 }}", MEMORY),
        ("{{ 'a' * 9000000 }}", SIZE),
        ("{% for i in range(9000) %}{{ 'a' * 1000 }}{% endfor %}", SIZE),
        ("{% if 1 %}" * 300 + "{% endif %}" * 300, "recursion|nested|deep"),
        ("{% for a in messages %}" * 300 + "{% endfor %}" * 300, "recursion|nested|deep"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "recursion|nested|deep|process ended"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("x" * (rendering.MOST_SOURCE + 1), "longer than 1048576 characters"),
    ],
    ids=lambda value: value[:40],
)
def test_limits(monkeypatch, source, why):
    monkeypatch.setattr(rendering, "CPU_S", 1)
    with pytest.raises(ValueError, match=rf"the chat template .*({why})") as caught:
        render(source)
    assert len(str(caught.value)) < 2000
    assert render(HONEST) == "<user>hello", "the next one is served"


def test_a_template_is_read_when_it_is_given():
    with pytest.raises(ValueError, match=r"the chat template cannot be read: .*endfor"):
        ChatTemplate("{% for m in messages %}", {}, ControlTokens({}))


def test_many_at_a_time_get_their_own_answers():
    texts = [f"{i} " * 1000 * (i % 7) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda text: render(HONEST, [{"role": "user", "content": text}]), texts)
    assert list(found) == [f"<user>{text}" for text in texts]


@pytest.mark.parametrize("text", ["\ud800 half", "ß 🐢 \0 \x1b[2J", chr(0xF0000)])
def test_any_text_comes_back(text):
    assert render(HONEST, [{"role": "user", "content": text}]) == f"<user>{text}"


def test_an_interrupted_call_leaves_no_answer_behind(monkeypatch):
    render(HONEST)

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chat, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            renderer()(HONEST, {"messages": [{"role": "late", "content": "answer"}]})
    assert render(HONEST) == "<user>hello"


def test_a_process_that_was_killed_is_started_again():
    render(HONEST)
    os.kill(renderer()._process.pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="process ended"):
        render(HONEST)
    assert render(HONEST) == "<user>hello"


def test_an_answer_that_does_not_come(monkeypatch):
    render(HONEST)
    os.kill(renderer()._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(chat, "WALL_S", 0.1)
    with pytest.raises(ValueError, match=r"no reply within 0\.1 s"):
        render(HONEST)
    monkeypatch.undo()
    assert render(HONEST) == "<user>hello"


CHILD = """
import os, signal, sys
from oddlm.models.loading.chat import renderer
variables = {{"messages": [{{"role": "user", "content": "hello"}}]}}
ask = lambda: renderer()("{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}", variables)
print(ask(), renderer()._process.pid, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)]
)
def test_it_ends_with_its_process(end, status):
    command = [sys.executable, "-X", "dev", "-c", CHILD.format(end=end)]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "ResourceWarning" not in done.stderr
    text, pid = done.stdout.split()
    assert text == "hello"
    wait_gone(int(pid))


def test_a_fork_has_a_process_of_its_own():
    end = """
first = renderer()._process.pid
if os.fork() == 0:
    print(ask(), renderer()._process.pid != first, flush=True)
    sys.exit()
os.wait()
print(ask(), renderer()._process.pid == first)
"""
    command = [sys.executable, "-c", CHILD.format(end=end)]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["hello True", "hello True"]


SPECIAL = ControlTokens(
    {"<x>": (True, True), "<xy>": (False, False), "<xyz": (False, False), "[M]": (True, False)}
)


def test_control_tokens_take_their_white_space_along():
    assert SPECIAL.cut("a <x> \n b <xy> c <xyz>[M]") == [
        ("a", False),
        ("<x>", True),
        ("b ", False),
        ("<xy>", True),
        (" c ", False),
        ("<xyz", True),
        (">", False),
        ("[M]", True),
        ("", False),
    ]
    assert ControlTokens({}).cut("a <x>") == [("a <x>", False)]
    assert [place for place, _ in ControlTokens({"aa": (False, False)}).find("aaaa")] == [0, 1, 2]
    for text in ("", "x" * 129):
        with pytest.raises(ValueError, match="1 to 128 characters"):
            ControlTokens({text: (False, False)})


@pytest.mark.parametrize(
    ("special", "text", "size"),
    [
        (ControlTokens({"<mask>": (True, True)}), " ", 2_000),
        (ControlTokens({"<mask>": (True, True)}), "<", 2_000),
        (ControlTokens({"<mask>": (True, True)}), " <mask> ", 2_000),
        (ControlTokens({"a" * n: (True, True) for n in range(1, 129)}), "a", 2_000),
        (ControlTokens({"a" * n + "b": (False, True) for n in range(128)}), "a", 300),
    ],
)
def test_control_tokens_are_found_in_linear_time(special, text, size):
    assert (
        growth(
            lambda given: (special.cut(given), list(special.find(given))), lambda n: text * n, size
        )
        < LINEAR
    )


def test_a_message_of_white_space_costs_no_more_than_another(monkeypatch):
    """With tokens that absorb whitespace, as mask tokens do."""
    template = ChatTemplate(HONEST, {}, ControlTokens({"<mask>": (True, True)}))
    monkeypatch.setattr(
        chat, "renderer", lambda: lambda source, variables: variables["messages"][0]["content"]
    )
    ask = lambda text: template.segments([{"role": "user", "content": text}])  # noqa: E731
    assert growth(ask, lambda n: " " * n, 2_000) < LINEAR

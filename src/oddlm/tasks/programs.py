"""Extract programs from model texts: pure functions of hostile text, linear in its length.

An answer may contain its program in several ways (`codes_in`), and each of them may be a whole
program or continue where the prompt breaks off (`readings`). The sandbox takes the first reading
that is a whole program (sandbox/inside/program.py).
"""

import ast
import re
import sys
import textwrap
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ..syntax import parse

BLOCKS = 8  # fenced blocks of an answer to consider
LONGEST = 2_000_000  # characters in all readings of an answer together

_FENCE = "```"
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_BOM = "\ufeff"
_QUOTE = re.compile("\"\"\"|'''")
_PYTHON = ("", "python", "python3", "py", "py3", "ipython", "pycon")
_CODE_LINE = re.compile(r"^(?:def |class |import |from |@|async def )", re.MULTILINE)
_INDENTED_CODE_LINE = re.compile(
    r"(?:\A|^[ \t]*\n)(?=(?: {4}|\t)(?:def |class |import |from |@|async def ))", re.MULTILINE
)
_DEFINES = re.compile(r"^(?:(?:async )?def |class |[A-Za-z_]\w*+ *+(?::[^=\n]*+)?=)", re.MULTILINE)
# A line of an interactive session.
_PROMPTED = re.compile(r"^[ \t]*+(?:>>>|\.\.\.)(?: |$)(.*)", re.MULTILINE)
_HEADER = re.compile(r"^([ \t]*+)(?:(?:async )?def +\w+ *\(|class +\w+ *[:(])", re.MULTILINE)
# A body whose first two lines both start at the left edge: not just the first line has lost its
# indentation.
_FLUSH_BODY = re.compile(
    r"(?!return\b)[^\n]*+\n(?:[ \t]*+\n)*+(?![ \t]|def |class |import |from |@|async def )"
)


class Block(NamedTuple):
    language: str
    content: str
    closed: bool


def fenced(text: str, *, quotes: bool = True) -> list[Block]:
    """Return the fenced blocks of a text.

    With `quotes`, a fence inside a triple-quoted string is part of the string.
    """
    blocks: list[tuple[str, list[str]]] = []
    is_open, quote = False, ""
    for line in text.splitlines(keepends=True):
        language = None if quote and quotes else _fence(line)
        if language is None:
            if is_open:
                blocks[-1][1].append(line)
            quote = _quote_after(line, quote)
            continue
        is_open, quote = not is_open, ""
        if is_open:
            blocks.append((language, []))
    last = len(blocks) - 1 if is_open else -1
    return [
        Block(language, "".join(lines), number != last)
        for number, (language, lines) in enumerate(blocks)
    ]


def _fence(line: str) -> str | None:
    """Return the language of a fence, empty if it names none; None if the line is not a fence."""
    bare = line.strip(" \t\r\n")
    if not bare.startswith(_FENCE) or "`" in bare[len(_FENCE) :]:
        return None
    return bare[len(_FENCE) :].strip().partition(" ")[0].partition("{")[0].lower()


def _quote_after(line: str, quote: str) -> str:
    """Return the triple quote open after a line, given the one open before it; empty for none."""
    for mark in _QUOTE.findall(line):
        if not quote or quote == mark:
            quote = "" if quote else mark
    return quote


def codes_in(text: str, prompt: str = "") -> tuple[str, ...]:
    """Return the pieces of Python that an answer may contain, most likely first; at least one."""
    found: list[str] = []
    is_open = _open_block(prompt) is not None
    for answer in _answers(text):
        continues = is_open and not _opens_a_block(answer)
        found += _blocks(f"{_FENCE}python\n{answer}" if continues else answer)
        found += [*_session(answer), *_indented(answer)]
    return tuple(dict.fromkeys(code.removeprefix(_BOM) for code in found))


def read_program(text: str) -> str | None:
    """Return the program of an answer, regardless of names and layout; None if there is none."""
    from ..metrics.solutions import normal_form  # with numpy, which scoring does without

    code = codes_in(text)[0].strip()
    return (normal_form(code) or code) if code else None


def _opens_a_block(text: str) -> bool:
    """Return whether the first fence of a text opens a block.

    It does if it is on the first line or names a language.
    """
    if _fence(text.lstrip().partition("\n")[0]) is not None:
        return True
    languages = (_fence(line) for line in text.splitlines())
    return bool(next((language for language in languages if language is not None), ""))


def _answers(text: str) -> list[str]:
    """Return the possible answers after a text's thoughts, most likely first.

    A text that does not begin with a thought may have none, so the whole text is also returned.
    """
    text = text.removeprefix(_BOM)
    begins = text.lstrip().startswith(_THOUGHT)
    if _THOUGHT_END not in text:
        return [""] if begins else [text]
    after = [text.rpartition(_THOUGHT_END)[2], text.partition(_THOUGHT_END)[2]]
    return after if begins else [*after[:1], text]


def _blocks(text: str) -> list[str]:
    """Return the fenced blocks, Python before others; without any, the whole text.

    A single bare fence with text before it ends a block that the prompt began.
    """
    found: list[str] = []
    for quotes in (True, False):
        blocks = fenced(text, quotes=quotes)
        before = text.partition(_FENCE)[0]
        if (
            len(blocks) == 1
            and not blocks[0].language
            and before.strip()
            and text.count(_FENCE) == 1
        ):
            found.append(before)
        blocks.sort(key=lambda block: block.language not in _PYTHON)
        found += [block.content for block in blocks[:BLOCKS]]
        python = [block.content for block in blocks if block.language in _PYTHON]
        found += ["\n".join(python)] if len(python) > 1 else []
        found += [] if blocks and quotes else [text]
    return found


def _session(text: str) -> list[str]:
    """Return the statements of an interactive session, unless they define nothing."""
    statements = "\n".join(_PROMPTED.findall(text))
    return [statements] if _DEFINES.search(statements) else []


def _indented(text: str) -> list[str]:
    """Return the indented lines if they hold a definition or an import and the others are prose."""
    start = None if _CODE_LINE.search(text) else _INDENTED_CODE_LINE.search(text)
    if start is None:
        return []
    lines = text[start.end() :].splitlines(keepends=True)
    return ["".join(line for line in lines if line[0].isspace())]


def readings(prompt: str, codes: Sequence[str]) -> tuple[str, ...]:
    """Return the programs that an answer may mean, most likely first.

    The prompt may be the beginning of a program.
    """
    program, whole = _begun(prompt)
    found: dict[str, None] = {}
    left = LONGEST
    for code in codes:
        for reading in _readings(program, whole, code):
            if reading not in found:
                left -= len(reading)
                if left < 0 and found:
                    return tuple(found)
                found[reading] = None
    return tuple(found)


def _readings(program: str, whole: str, code: str) -> Iterator[str]:
    header = program.rstrip(" \t")
    header += "\n" if header and not header.endswith("\n") else ""
    indents = _HEADER.findall(header)
    indent = f"{indents[-1] if indents else ''}    "
    start = _CODE_LINE.search(code)
    for part in [code] if start is None else [code, code[start.start() :]]:
        flush = textwrap.dedent(part)
        if _DEFINES.search(flush):
            yield f"{whole}\n{flush}"
            yield flush
        yield program + part
        bodies = [f"{header}{indent}{part.lstrip()}", header + textwrap.indent(flush, indent)]
        yield from reversed(bodies) if _FLUSH_BODY.match(part) else bodies
        yield flush


def preamble(prompt: str) -> str:
    """Return the program that a prompt begins, without a definition that it leaves unfinished.

    The result is empty for a prompt in words.
    """
    return _begun(prompt)[1]


def _begun(prompt: str) -> tuple[str, str]:
    """Return the program that a prompt begins, and its preamble."""
    block = _open_block(prompt)
    text = prompt if block is None else block
    start = _CODE_LINE.search(text)
    for program in [text] if start is None else [text, text[start.start() :]]:
        for whole in (program, _before_last_definition(program)):
            if _parsed(whole) is not None:
                return program, whole
    return text, ""


def _open_block(prompt: str) -> str | None:
    """Return the content of a fenced block that a prompt leaves open; None if there is none."""
    blocks = fenced(prompt)
    return blocks[-1].content if blocks and not blocks[-1].closed else None


def _before_last_definition(program: str) -> str:
    starts = [match.start() for match in _HEADER.finditer(program) if not match[1]]
    lines = program[: starts[-1] if starts else 0].splitlines(keepends=True)
    while lines and lines[-1].startswith("@"):
        lines.pop()
    return "".join(lines)


def _parsed(code: str) -> list[ast.stmt] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes
            return parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def given(prompt: str, names: Collection[str]) -> str:
    """Return the statements of a prompt that define these names without running any of its code.

    These are imports from the standard library and constants. From a prompt in words, only lines
    that are imports are taken.
    """
    statements = _parsed(preamble(prompt)) or []
    if not statements:
        lines = [line for line in prompt.splitlines() if line.startswith(("import ", "from "))]
        statements = [statement for line in lines for statement in _parsed(line) or []]
    found = [part for statement in statements for part in _giving(statement, names)]
    return "\n".join(map(ast.unparse, found))


def _giving(statement: ast.stmt, names: Collection[str]) -> Iterator[ast.stmt]:
    match statement:
        case ast.Import(names=aliases):
            for alias in aliases:
                package = alias.name.partition(".")[0]
                if (alias.asname or package) in names and package in sys.stdlib_module_names:
                    yield ast.Import([alias])
        case ast.ImportFrom(module=str(module), names=aliases, level=0) if (
            module.partition(".")[0] in sys.stdlib_module_names
        ):
            used = [alias for alias in aliases if (alias.asname or alias.name) in names]
            if used:
                yield ast.ImportFrom(module, used, 0)
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            if name in names and value is not None and _is_literal(value):
                yield ast.fix_missing_locations(ast.Assign([ast.Name(name, ast.Store())], value))


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True

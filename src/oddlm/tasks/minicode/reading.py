"""The program that a model's text means.

Text in, text out: nothing of it is parsed or run on this side.
"""

import re

from .writing import FUNCTION, INDENT

_END = re.compile(r"<\||</s>|<eos>")
_LANGUAGE = re.compile(r"(python3?|py)?[ \t]*\n|(python3?|py)\b")
_RETURN = re.compile(r"^[ \t]*return\b", re.MULTILINE)
_DEFINITION = re.compile(rf" *def {FUNCTION}\(")
_BEFORE_DEFINITION = re.compile(r" *(import \w|from \w+ import |def \w+\(|class \w)")
_CODE = re.compile(
    r" *(return\b|for \w|if |while |import \w|from \w+ import |#|\w+( *, *\w+)* *[-+*/%]?/?= *[^=]|[\w.]+\()"
)


def read_answer(text: str, prompt: str) -> tuple[str, str] | None:
    """(what the model wrote, the whole program), or None where there is no code.

    A fenced block counts before what is around it, and need not end. A definition of the function
    counts with the imports and helpers above it; otherwise the text is a body. Prose before and
    after is left out, lost indentation is put back.
    """
    code = _unfenced(_END.split(text, maxsplit=1)[0]).expandtabs(4)
    lines = [line.rstrip() for line in code.split("\n")]
    start = next((i for i, line in enumerate(lines) if _DEFINITION.match(line)), None)
    if start is not None:
        definition = _definition(lines, start)
        return definition, definition
    body = _body(lines)
    return (body, prompt + body) if body else None


def _unfenced(text: str) -> str:
    before, fence, after = text.partition("```")
    if not fence or _RETURN.search(
        before
    ):  # a fence behind a return closes one that the prompt had opened
        return before
    block = after.partition("```")[0]
    language = _LANGUAGE.match(block)
    return block[language.end() :] if language else block


def _definition(lines: list[str], start: int) -> str:
    base = _indent(lines[start])
    first = next(
        i
        for i, line in enumerate(lines)
        if _BEFORE_DEFINITION.match(line) and _indent(line) == base
    )
    end = start + 1
    while end < len(lines) and (
        not lines[end] or _indent(lines[end]) > base or lines[end].lstrip().startswith(")")
    ):
        end += 1
    return "".join(line[base:] + "\n" for line in lines[first:end])


def _body(lines: list[str]) -> str:
    statements = _statements(lines)
    if not statements:
        return ""
    base = _base(statements)
    if _indent(statements[0][0]) == 0:
        statements[0][0] = " " * base + statements[0][0]
    kept: list[str] = []
    for statement in statements:
        if _indent(statement[0]) < base:
            break
        kept += statement
        if _indent(statement[0]) == base and _RETURN.match(statement[0]):
            break
    return "".join(f"{INDENT}{line[min(base, _indent(line)) :]}\n" for line in kept)


def _statements(lines: list[str]) -> list[list[str]]:
    """Lines from the first that looks like code on, without blank ones; those inside open brackets
    belong to the one before.
    """
    statements: list[list[str]] = []
    depth = 0
    for line in lines:
        if not line or not (statements or _CODE.match(line)):
            continue
        if depth > 0:
            statements[-1].append(line)
        else:
            statements.append([line])
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
    return statements


def _base(statements: list[list[str]]) -> int:
    """The indentation of the body.

    A first line without any may have lost its own: then the lines after it tell.
    """
    first, *rest = [statement[0] for statement in statements]
    if _indent(first):
        return _indent(first)
    indented = []
    for line in rest:
        if not _indent(line):
            break
        indented.append(_indent(line))
    if not indented:
        return 0
    if first.endswith(":"):
        return min(indented) if min(indented) < indented[0] else 0
    return indented[0]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))

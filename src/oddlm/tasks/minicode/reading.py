"""Extract the program from a model's text.

This is text processing only: nothing is parsed or run here.
"""

import re

from .writing import FUNCTION, INDENT

_END = re.compile(r"<\||</s>|<eos>")
_LANGUAGE = re.compile(r"(python3?|py)?[ \t]*\n|(python3?|py)\b")
_RETURN = re.compile(r"^[ \t]*return\b", re.MULTILINE)
_DEFINITION = re.compile(rf" *def {FUNCTION}\(")
_BEFORE_DEFINITION = re.compile(r" *(import \w|from \w+ import |def \w+\(|class \w)")
_CODE = re.compile(
    r" *(return\b|for \w|if |while |import \w|from \w+ import |#"
    r"|\w+( *, *\w+)* *[-+*/%]?/?= *[^=]|[\w.]+\()"
)


def read_answer(text: str, prompt: str) -> tuple[str, str] | None:
    """Return (the code that the model wrote, the whole program), or None if there is no code.

    A fenced block, which need not be closed, takes precedence over the text around it. A definition
    of the function is taken with the imports and helpers above it; otherwise the text is a body.
    Prose before and after is dropped, and lost indentation is restored.
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
    # A fence after a return closes a block that the prompt had opened.
    if not fence or _RETURN.search(before):
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
    """Group lines into statements, from the first line that looks like code on.

    Blank lines are dropped. Lines inside open brackets belong to the statement before them.
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
    """Return the indentation of the body.

    A first line without indentation may have lost it; then the lines after it decide.
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

"""The pages of the documentation and their code blocks."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"^([ \t]*)(`{3,})(?:(\w+)[ ]*(.*?))?[ ]*\n(.*?)^\1\2[ \t]*$", re.MULTILINE | re.DOTALL
)
MARKER = re.compile(r"(?<=[{\s])\.([\w-]+)")
TITLE = re.compile(r'title="([^"]+)"')
MARKERS = {
    "needs-hub",
    "needs-gpu",
    "needs-network",
    "needs-server",
    "slow",
    "fresh",
    "in-package",
    "output",
}
NOT_RUN = MARKERS - {"fresh", "needs-hub"}
LANGUAGES = {"console", "json", "jsonl", "python", "sh", "shell", "text", "toml", "yaml"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    info: str
    text: str
    markers: frozenset[str] = field(default_factory=frozenset)
    title: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def code(self) -> bool:
        """Is it to be checked as a program or a command?"""
        return self.language in ("python", "sh") and not self.markers & {"output", "in-package"}

    @property
    def run(self) -> bool:
        return self.code and not self.markers & NOT_RUN


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        _, _, language, info, content = match.groups()
        title = TITLE.search(info or "")
        found.append(
            Block(
                page=name_of(path),
                line=text.count("\n", 0, match.start()) + 1,
                language=language or "",
                info=info or "",
                text=dedent(content),
                markers=frozenset(MARKER.findall(info or "")),
                title=title and title[1],
            )
        )
    return found


BLOCKS = {name_of(path): blocks_of(path) for path in PAGES}


def commands_of(block: Block) -> list[str]:
    """The command lines of a block, each whole, without comments alone in a line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def words_of(line: str) -> list[str]:
    """A command line as the shell cuts it, operators such as `|` and `>` as words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def own_words(line: str) -> list[list[str]]:
    """The `oddlm` commands of a command line, without what is behind a pipe or a redirection."""
    commands: list[list[str]] = [[]]
    for word in words_of(line):
        if set(word) <= set("|&;()<>"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command[:1] == ["oddlm"]]


def is_plain(line: str) -> bool:
    """Is it one command, without operators of the shell?"""
    return not any(set(word) <= set("|&;()<>") for word in words_of(line))

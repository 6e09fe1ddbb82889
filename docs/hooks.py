"""What MkDocs does not do by itself: generated references, and files of the repository as pages.

A page may link to any file of the repository, as it does on GitHub. Inside docs/ that is an
ordinary link. A file outside docs/ is published under `repository/`, and the link leads there.
"""

import re
from collections.abc import Callable
from os.path import relpath
from pathlib import Path, PurePosixPath
from typing import Any

import references
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")  # the path of a relative link
FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,}).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
AS_TEXT = {".cff": "yaml", ".csv": "text", ".json": "json", ".py": "python", ".toml": "toml"}
MOST_TEXT = 100_000  # characters of a file that is shown as a page


def on_files(files: Files, config: Any) -> Files:
    made = {f"reference/{name}.md": make() for name, make in references.PAGES.items()}
    made["changelog.md"] = (ROOT / "CHANGELOG.md").read_text()
    found = [(f"docs/{page.src_uri}", page.content_string) for page in files.documentation_pages()]
    found += [("CHANGELOG.md", made["changelog.md"])]
    for path in _linked(found):
        content = _shown(path)
        kept = {"content": content} if content else {"abs_src_path": str(ROOT / path)}
        file = File.generated(config, _site_path(path), **kept)
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    for path, content in made.items():
        if (stub := files.get_file_from_path(path)) is not None:  # what GitHub shows
            files.remove(stub)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of docs/, as links inside the site."""
    own = page.file.src_uri
    repository = {"changelog.md": "CHANGELOG.md"}.get(own, f"docs/{own}")
    if own.startswith("repository/"):
        repository = own.removeprefix("repository/").removesuffix(".md")
        repository += "" if (ROOT / repository).is_file() else ".md"

    def inside(link: re.Match[str]) -> str:
        target = _resolved(repository, link[1])
        at_home = repository == f"docs/{own}" and str(target).startswith("docs/")
        if target is None or at_home:
            return link[1]
        return relpath(_site_path(target), PurePosixPath(own).parent)

    return outside_fences(markdown, lambda text: LINK.sub(inside, text))


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The text with its prose changed, and its code blocks as they are."""
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _linked(pages: list[tuple[str, str]]) -> list[str]:
    """Files outside docs/ that pages link to, and those that these link to."""
    found: dict[str, None] = {}
    while pages:
        path, content = pages.pop()
        for link in LINK.findall(FENCE.sub("", content)):
            target = _resolved(path, link)
            if target is None or target.startswith("docs/") or target in found:
                continue
            found[target] = None
            if target.endswith(".md"):
                pages.append((target, (ROOT / target).read_text()))
    return list(found)


def _resolved(path: str, link: str) -> str | None:
    """The file of the repository that a link in a file leads to; None where there is none."""
    target = (ROOT / path).parent.joinpath(link).resolve()
    inside = target.is_relative_to(ROOT) and target.is_file()
    return target.relative_to(ROOT).as_posix() if inside else None


def _site_path(path: str) -> str:
    if path == "CHANGELOG.md":
        return "changelog.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    shown = Path(path).suffix in AS_TEXT and (ROOT / path).stat().st_size <= MOST_TEXT
    return f"repository/{path}.md" if shown else f"repository/{path}"


def _shown(path: str) -> str | None:
    """What stands on the page of a file; None: it is copied."""
    if path.endswith(".md"):
        return (ROOT / path).read_text()
    if not _site_path(path).endswith(".md"):
        return None
    return f"# `{path}`\n\n````{AS_TEXT[Path(path).suffix]}\n{(ROOT / path).read_text()}\n````\n"

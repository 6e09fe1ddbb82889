"""docs/reference/published.md, written from `published.toml`.

python -m oddlm.verify.page docs/reference/published.md
"""

import sys
from pathlib import Path

from ..files import write_whole
from ..params import short
from .published import TOLERANCE, Checkpoint, Score, published
from .ranges import LEVEL

HEAD = f"""<!-- Written by `python -m oddlm.verify.page FILE` from published.toml beside it. -->

# Published scores

What `oddlm verify` compares with, and where each figure was read. Several figures are several
measurements of one checkpoint and setting.

```sh {{.needs-gpu}}
oddlm verify GSAI-ML/LLaDA-8B-Instruct --dry-run    # what will be run, and what it takes
oddlm verify GSAI-ML/LLaDA-8B-Instruct              # 50 problems
```

- A result agrees if the number of right answers is in the {LEVEL * 100:g} % binomial interval
  around the published scores. Where others measured, {TOLERANCE:g} points are added on both sides:
  two measurements of one checkpoint and setting in this table are up to 2.4 points apart.
- Settings in italics are ours, because no source gives them.
- None of the weights but those of `mini` and `smol` have been run in this project's tests, so none
  of these figures has been confirmed here.
"""


def settings_words(score: Score, *, mark: bool = False) -> str:
    """Return the settings in one line; those that no source gives are marked, or named behind."""
    parts = []
    for name, value in score.settings.items():
        words = f"{name} {short(value)}"
        parts.append(f"*{words}*" if mark and name in score.unpublished else words)
    ours = f" (not published: {', '.join(score.unpublished)})" if score.unpublished else ""
    return ", ".join(parts) + ("" if mark else ours)


def page() -> str:
    """Return the page."""
    families: dict[str, list[Checkpoint]] = {}
    for one in published():
        families.setdefault(one.family, []).append(one)
    parts = [HEAD]
    for family, members in families.items():
        parts.append(f"## {family[0].upper()}{family[1:]}\n")
        rows = [_row(one, score) for one in members for score in one.scores]
        if rows:
            parts.append("| checkpoint | task | published | settings | source |")
            parts.append("| --- | --- | --- | --- | --- |")
            parts += [*rows, ""]
        for one in members:
            if one.missing is not None:
                names = ", ".join(f"`{name}`" for name in one.names)
                parts.append(f"{names}: {one.missing} ([source]({one.source}))\n")
    return "\n".join(parts).rstrip() + "\n"


def _row(one: Checkpoint, score: Score) -> str:
    figures = ", ".join(f"{figure:g}" for figure in score.score)
    names = ", ".join(f"`{name}`" for name in one.names)
    sources = f"[{score.measured_by}]({_address(score.source)})"
    if score.settings_source is not None:
        sources += f"; [settings]({_address(score.settings_source)})"
    if score.differs is not None:
        sources += f". {score.differs.rstrip('.')}"
    cells = (names, score.task_name, figures, settings_words(score, mark=True), sources)
    return f"| {' | '.join(cells)} |"


def _address(source: str) -> str:
    """Return the address as the page links it; files of this repository are two folders up."""
    return source if source.startswith("https://") else f"../../{source}"


if __name__ == "__main__":
    write_whole(Path(sys.argv[1]), page().encode())

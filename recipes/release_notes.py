"""Prints the notes of a release, its part of CHANGELOG.md:
`python recipes/release_notes.py v0.2.0`.

Refuses a tag that is not the version of the package.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, changelog: str, version: str) -> str:
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, but the package has version {version}")
    heading = rf"^## \[?{re.escape(version)}\]? - \S+\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.DOTALL | re.MULTILINE)
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md says nothing about {version}")
    return found[1].strip() + "\n"


def main() -> None:
    (tag,) = sys.argv[1:]
    source = (ROOT / "src" / "oddlm" / "__init__.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    sys.stdout.write(notes(tag, (ROOT / "CHANGELOG.md").read_text(), *version))


if __name__ == "__main__":
    main()

"""The Python of docs/ is run as it stands: the blocks of a page in order, as one program."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    path.name: re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    for path in DOCS.glob("*.md")
}


def test_the_core_is_shown():
    assert len(PAGES["core.md"]) > 10


@pytest.mark.parametrize("page", [name for name, blocks in PAGES.items() if blocks])
def test_page_runs(page, monkeypatch, capsys):
    module = ModuleType("docs_page")  # functions of a page have dotted paths, as in a file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in PAGES[page]:
        exec(compile(block, page, "exec"), vars(module))
        said = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == said

"""docs/fast.md shows what recipes/fast/curve.py reports of the stored verdicts."""

import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def curve(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "fast"))
    import curve

    return curve


@pytest.mark.parametrize("numbers", [4, 5])
def test_the_page_shows_the_stored_verdicts(numbers, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "recipes" / "fast" / "results", tmp_path / "fast")
    curve(monkeypatch).report(tmp_path / "fast", numbers, None)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    page = (ROOT / "docs" / "fast.md").read_text().splitlines()
    assert len(table) > 5
    assert [line for line in table if line not in page] == []
    name = f"countdown-{numbers}.csv"
    stored = (ROOT / "recipes" / "fast" / "results" / name).read_text()
    assert (tmp_path / "fast" / name).read_text() == stored


def test_only_cells_that_every_method_has_drawn_count(tmp_path, monkeypatch):
    module = curve(monkeypatch)
    names = list(module.methods(4))
    line = {"seed": 0, "correct": "01" * 8, "nfe": [3] * 16}
    cells = [(n, "a", 0) for n in names] + [(n, "a", 1) for n in names[1:]]
    cells += [(n, "b", 0) for n in names[:-1]]
    text = [json.dumps({**line, "method": n, "problem": p, "seed": s}) for n, p, s in cells]
    (tmp_path / "countdown-4.jsonl").write_text("\n".join(text) + "\n")
    found = module.complete(tmp_path, 4)
    assert {name: {p: len(x) for p, x in cell.items()} for name, cell in found.items()} == {
        name: {"a": 1} for name in names
    }
    assert module.measures(found[names[0]])["pass1"].tolist() == [0.5]

"""docs/guides/answer.md shows what recipes/answer/report.py prints of the stored notes."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "answer"


def test_the_page_shows_the_stored_notes(monkeypatch, capsys):
    spec = spec_from_file_location("answer_report", RECIPE / "report.py")
    report = module_from_spec(spec)
    spec.loader.exec_module(report)
    monkeypatch.setattr("sys.argv", ["report.py", str(RECIPE / "results")])
    report.main()
    page = (ROOT / "docs" / "guides" / "answer.md").read_text()
    shown = ("the chosen sample is right", "differences", "controls")
    parts = [part.splitlines() for part in capsys.readouterr().out.split("### ")[1:]]
    tables = {title: lines for title, *lines in parts if title.endswith(shown)}
    assert len(tables) == 9
    for title, lines in tables.items():
        rows = [line for line in lines if line.startswith("|")]
        assert "\n".join(rows) in page, title

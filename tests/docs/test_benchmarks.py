"""The list of benchmarks names all scripts and all results."""

from .pages import ROOT

PAGE = ROOT / "benchmarks" / "README.md"


def test_every_script_and_result_is_listed():
    text = PAGE.read_text()
    scripts = [path.name for path in PAGE.parent.glob("*.py")]
    results = [f"results/{path.name}" for path in (PAGE.parent / "results").glob("*.md")]
    missing = [name for name in scripts + results if f"({name})" not in text]
    assert len(scripts) > 15
    assert not missing

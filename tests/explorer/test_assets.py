"""The files of the pages: what they may hold, and where they go."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oddlm.explorer.assets import (
    INDEX,
    REPORT,
    RUNS,
    asset_names,
    embedded,
    page_files,
    write_static,
)

ROOT = Path(__file__).parents[2]
HOSTILE = "</script><script>window.hacked=1</script><!-- \u2028 \x1b[31m &lt; ${1}"


@pytest.mark.parametrize("page", [INDEX, RUNS, REPORT])
def test_a_page_is_written_with_the_files_it_names_and_no_others(tmp_path, page):
    write_static(page, tmp_path)
    names = page_files(page)
    assert len(names) > 3
    assert sorted(path.name for path in (tmp_path / "static").iterdir()) == sorted(names)


def test_every_file_belongs_to_a_page():
    named = {name for page in (INDEX, RUNS, REPORT) for name in page_files(page)}
    assert named | {INDEX, RUNS, REPORT} == set(asset_names())


def test_nothing_in_the_pages_points_elsewhere_or_writes_markup():
    for path in (ROOT / "src/oddlm/explorer/static").iterdir():
        if path.name == "recordings.js":
            continue
        text = path.read_text()
        addresses = [part.split('"')[0] for part in text.replace("'", '"').split("://")[1:]]
        assert all(one.startswith("www.w3.org/2000/svg") for one in addresses), path.name
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "style=",
            "onclick=",
        ):
            assert word not in text, (path.name, word)
        assert len(text.splitlines()) <= 400


def test_the_wheel_holds_the_pages(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert {f"oddlm/explorer/static/{name}" for name in asset_names()} <= set(names)


def test_embedded_json_ends_nothing_and_reads_back():
    content = {"text": HOSTILE, "__proto__": [1.5, None]}
    text = embedded(content)
    assert not set("<>&\u2028\x1b") & set(text)
    assert json.loads(text) == content
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded({"x": float("nan")})

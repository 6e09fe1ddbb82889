"""What is published: the wheel and the sdist hold the package, and their metadata is right."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import oddlm

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "oddlm"
KINDS = {".css", ".csv", ".html", ".js", ".json", ".jsonl", ".safetensors"}  # of data files
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def build(tree: Path, kind: str, out: Path) -> Path:
    """No isolation: nothing is downloaded."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        f"--{kind}",
        "--outdir",
        str(out),
        str(tree),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(
            archive.read(f"oddlm-{oddlm.__version__}.dist-info/METADATA").decode()
        )


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    here = {
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name
            for name in archive.namelist()
            if not name.startswith(f"oddlm-{oddlm.__version__}.dist-info/")
        }
        assert names == {f"oddlm/{path.relative_to(PACKAGE).as_posix()}" for path in here}
        assert names >= {"oddlm/py.typed", "oddlm/models/mini/model.safetensors"}
        assert {Path(name).suffix for name in names} >= KINDS
        for path in here:
            assert (
                archive.read(f"oddlm/{path.relative_to(PACKAGE).as_posix()}") == path.read_bytes()
            )


def test_the_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    kept = {
        "src",
        "LICENSES",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "pyproject.toml",
        "PKG-INFO",
    }
    assert {path.name for path in tree.iterdir()} == kept | {".gitignore"}
    assert build(tree, "wheel", tmp_path / "again").read_bytes() == wheel.read_bytes()


def test_twine_takes_both(wheel, sdist):
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_metadata(metadata, wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == oddlm.__version__
    assert metadata["Requires-Python"] == project["requires-python"]
    assert metadata["License-Expression"] == "MIT"
    needed = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
    assert sorted(needed) == sorted(project["dependencies"])
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    info = f"oddlm-{oddlm.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        for name in metadata.get_all("License-File"):
            assert archive.read(f"{info}/licenses/{name}") == (ROOT / name).read_bytes()
        assert "oddlm = oddlm.cli:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_the_description_is_the_readme_without_paths_of_the_repository(metadata):
    description, readme = metadata.get_payload(), (ROOT / "README.md").read_text()
    assert BLOCK.findall(description) == BLOCK.findall(readme)
    targets = LINK.findall(BLOCK.sub("", description))
    assert targets == [
        url for url in LINK.findall(BLOCK.sub("", readme)) if url.startswith("https://")
    ]
    kept = re.findall(r"(?<!!)\[([^\[\]]+)\]\((?!https://)", BLOCK.sub("", readme))
    assert all(text in description for text in kept)


def test_versions_agree():
    number, date = re.findall(
        r"^## \[?(\d+\.\d+\.\d+)\]? - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[0]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert number == citation["version"] == oddlm.__version__
    assert date == str(citation["date-released"])


def test_the_wheel_draws_samples_where_the_tree_is_not(wheel, tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(tmp_path),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import oddlm
samples = oddlm.load("mini").sample("73,32,7,19,28", n=4, length=24, steps=12)
texts = [sample.text for sample in samples]
print(oddlm.__file__, len(texts), len(set(texts)) > 1)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "oddlm" / "__init__.py"), "4", "True"]


def release_notes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "recipes" / "release_notes.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_release_notes_are_those_of_the_tag():
    done = release_notes(f"v{oddlm.__version__}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "### Added" in done.stdout
    assert not re.search(r"^## ", done.stdout, re.MULTILINE)
    wrong = release_notes("v9.9.9")
    assert wrong.returncode == 1
    assert "v9.9.9" in wrong.stderr
    assert wrong.stdout == ""


def test_workflows_use_what_there_is():
    """Scripts of the repository exist, and actions are pinned to a version."""
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        steps = [step for job in jobs.values() for step in job["steps"]]
        commands = "\n".join(step["run"] for step in steps if "run" in step)
        scripts = re.findall(r"recipes/[\w./]+", commands)
        assert scripts
        assert all((ROOT / script).is_file() for script in scripts)
        assert all(
            re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", step["uses"])
            for step in steps
            if "uses" in step
        )

"""The site, built once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """`make docs`, elsewhere. Not with --quiet, under which --strict counts no warnings."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    return subprocess.run(
        [*command, "--config-file", str(config)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder

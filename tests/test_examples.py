"""The programs of examples/ run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def said(name: str) -> str:
    command = [sys.executable, "-P", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_there_is_a_test_of_it(name):
    assert f"test_{name.removesuffix('.py')}" in globals()


def test_own_engine():
    out = said("own_engine.py")
    (passes,) = re.findall(r"^(\d+) passes in this process", out, re.MULTILINE)
    assert int(passes) < len(re.findall(": step ", out))  # runs shared passes
    assert "blocks: step 5 " in out  # it was moved then, and finished elsewhere
    assert "blocks: step 6 " not in out
    same = {f"{name}: the same tokens as from oddlm.denoise" for name in ("diverse", "blocks")}
    assert same <= set(out.splitlines())

"""Without the library that a door leads to, its import says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("library", ["transformers", "diffusers", "trl"])
def test_a_missing_library_is_named_with_its_extra(library):
    code = f"import sys; sys.modules['{library}'] = None; import oddlm.integrations.{library}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip install 'oddlm[{library}]'" in done.stderr

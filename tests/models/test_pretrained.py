"""Checkpoints from a user's view: load, generate, sample, evaluate, and wrap other networks."""

import inspect
import json
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

import oddlm
from oddlm.cli import main
from oddlm.models import load_model
from oddlm.models.cache import CACHES
from oddlm.models.loading.device import DTYPES
from oddlm.models.loading.pretrained import load_pretrained
from oddlm.models.loading.quant import QUANTIZATIONS
from oddlm.models.loading.tokenizer import read_tokenizer
from oddlm.spec import Loading
from oddlm.store import Store

from . import published_layout as layout

SHAPE = {"length": 12, "steps": 6, "progress": False}
WRITERS = {"llada": layout.write_llada, "dream": layout.write_dream, "qwen3": layout.write_qwen3}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: str(write(tmp_path_factory.mktemp(name))) for name, write in WRITERS.items()}


@pytest.mark.parametrize("kind", WRITERS)
def test_generate(folders, kind):
    lm = oddlm.load(folders[kind], device="cpu")
    prompts = ["the end", "in the inn, a longer question than the other"]
    groups = lm.generate(prompts, 4, temperature=0, **SHAPE)
    assert [len(own) for own in groups] == [4, 4]
    assert len({sample.tokens for sample in groups[0]}) > 1, "pushed apart"
    assert not any(lm.model.mask_id in sample.tokens for own in groups for sample in own)
    again = oddlm.load(folders[kind], device="cpu", max_batch=3).generate(
        prompts, 4, temperature=0, **SHAPE
    )
    assert [[s.tokens for s in own] for own in again] == [[s.tokens for s in own] for own in groups]


def test_prompts_go_through_the_chat_template_unless_raw(folders):
    seen = []

    class Spy:
        def __init__(self, model):
            self.model = model

        def __getattr__(self, name):
            if name == "session":
                raise AttributeError(name)
            return getattr(self.model, name)

        def __call__(self, tokens, start, prompt_lengths):
            seen.append(tokens[0, start - int(prompt_lengths[0]) : start].tolist())
            return self.model(tokens, start, prompt_lengths)

    for raw in (False, True):
        lm = oddlm.load(folders["llada"], raw=raw, device="cpu")
        oddlm.LM(Spy(lm.model), lm.tokenizer, lm.raw).generate(
            "the <|eot_id|>", 1, length=2, steps=1, progress=False
        )
    tokenizer = read_tokenizer(Path(folders["llada"]))
    assert seen == [
        tokenizer.chat([{"role": "user", "content": "the <|eot_id|>"}]),
        tokenizer.encode("the <|eot_id|>"),
    ]
    assert tokenizer.special["<|eot_id|>"] not in seen[1]


def test_a_cached_and_a_quantised_checkpoint(folders):
    plain = oddlm.load(folders["dream"], device="cpu")
    fresh = oddlm.load(folders["dream"], device="cpu", cache="dual", refresh=1)
    shape = {**SHAPE, "block_length": 6, "temperature": 0}
    assert [s.tokens for s in fresh.generate("the", 2, **shape)[0]] == [
        s.tokens for s in plain.generate("the", 2, **shape)[0]
    ]
    small = oddlm.load(folders["dream"], device="cpu", dtype="bf16", quantize="nf4")
    assert small.model.name == f"{folders['dream']}, bf16, nf4"
    tokens, start, lengths = torch.arange(40)[None], 10, torch.tensor([10])
    pair = torch.stack(
        [m(tokens, start, lengths).double().flatten() for m in (plain.model, small.model)]
    )
    # large random weights lose much of their precision in 4 bits
    assert torch.corrcoef(pair)[0, 1] > 0.8
    assert len(small.generate("the", 2, **SHAPE)[0]) == 2


def test_what_cannot_be_loaded_says_so(folders, tmp_path):
    for name, message in {
        "no/such/folder": "there is no folder 'no/such/folder'",
        "some/base.gguf": "oddlm adapt",
        str(tmp_path): r"has no config\.json",
    }.items():
        with pytest.raises(ValueError, match=message):
            oddlm.load(name)
    with pytest.raises(ValueError, match="quantize must be one of nf4, int8, not 'int3'"):
        oddlm.load(folders["llada"], quantize="int3")
    with pytest.raises(ValueError, match=r"device='cpu' .* device_map='auto'"):
        oddlm.load(folders["llada"], device="cpu", device_map="auto")
    if not torch.cuda.is_available():
        for everywhere in ({"device_map": "auto"}, {"device": "auto"}):
            with pytest.raises(ValueError, match=r"device_map='auto' .*use device='cpu'"):
                oddlm.load(folders["llada"], **everywhere)
    with pytest.raises(ValueError, match="max_batch must be an integer >= 1, not 0"):
        oddlm.load(folders["llada"], max_batch=0)
    with pytest.raises(
        ValueError,
        match=r"prompts\[0\] has \d+ tokens.*length 250 .*context of 256",
    ):
        oddlm.load(folders["llada"], device="cpu").generate("the the", length=250)


def test_what_a_run_may_say_of_loading_is_what_loading_takes():
    fields = {name: get_args(field.annotation) for name, field in Loading.model_fields.items()}
    allowed = {
        name: set(get_args(literal[0]))
        for name, literal in fields.items()
        if literal and get_args(literal[0])
    }
    assert allowed == {"dtype": set(DTYPES), "quantize": set(QUANTIZATIONS), "cache": set(CACHES)}
    assert set(Loading.model_fields) - {"raw"} <= set(inspect.signature(load_pretrained).parameters)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["oddlm", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_the_command_line(command, folders):
    line = ["sample", "the end", "--n", "2", "--length", "8", "--steps", "4", "--device", "cpu"]
    texts = {}
    for options in (
        [],
        ["--raw"],
        ["--dtype", "bf16"],
        ["--cache", "prefix"],
        ["--max-batch", "1"],
    ):
        code, texts[" ".join(options)], err = command(*line, "--model", folders["llada"], *options)
        assert (code, err) == (0, "")
    runs = [Store(Path("runs")).read(name) for name in Store(Path("runs")).ids()]
    assert len(runs) == 4, "all but --max-batch may change what comes out"
    assert {tuple(run.spec.loading.options().items()) for run in runs} == {
        (),
        (("raw", True),),
        (("dtype", "bf16"),),
        (("cache", "prefix"),),
    }
    assert texts["--max-batch 1"] == texts[""]
    assert texts["--raw"] != texts[""]
    for run in runs:
        drawing, _ = json.loads(Path("runs", run.id, "environment.json").read_text())["starts"]
        dtype = run.spec.loading.dtype or "fp32"
        assert drawing["model"].startswith(f"{folders['llada']}, {dtype}")


def test_eval_and_generate_take_checkpoints(command, folders):
    Path("own.jsonl").write_text(json.dumps({"prompt": "the end", "target": "x"}) + "\n")
    shape = [
        "--n",
        "2",
        "--length",
        "6",
        "--steps",
        "3",
        "--model",
        folders["dream"],
        "--device",
        "cpu",
    ]
    code, out, _ = command("eval", "own.jsonl", "--scorer", "exact", "--alpha", "0,8", *shape)
    assert code == 0
    assert "baseline" in out
    code, out, err = command(
        "generate", "--in", "own.jsonl", "--out", "samples.jsonl", *shape, "--max-batch", "1"
    )
    assert (code, err) == (0, "")
    assert len(Path("samples.jsonl").read_text().splitlines()) == 2


def test_tune_takes_checkpoints_and_tells_how_to_load_them(command, folders):
    Path("own.jsonl").write_text(
        "".join(json.dumps({"prompt": f"the end {i}", "target": "x"}) + "\n" for i in range(8))
    )
    line = [
        "tune",
        "own.jsonl",
        "--scorer",
        "exact",
        "--model",
        folders["dream"],
        "--device",
        "cpu",
        "--n",
        "2",
    ]
    line += ["--trials", "1", "--limit", "1", "--alpha", "0", "--raw", "--dtype", "fp64"]
    code, out, _ = command(*line, "--space", "temperature=1,2", "--length", "4")
    assert code == 0
    for text in ("--dtype fp64 --raw", f"oddlm.load({folders['dream']!r}, dtype='fp64', raw=True)"):
        assert text in out
    (run,) = [Store(Path("runs")).head(name) for name in Store(Path("runs")).ids()]
    assert run.spec.loading.options() == {"dtype": "fp64", "raw": True}
    code, _, err = command(*line, "--space", "length=4,255", "--store", "other")
    assert code == 2
    assert "length 255 that exceeds the model's context of 256" in err
    assert not Path("other").exists()


def test_prompts_that_do_not_fit_are_seen_before_the_weights(command, folders, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in Path(folders["llada"]).iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).write_bytes(file.read_bytes())
    code, _, err = command("sample", "the " * 300, "--model", str(bare), "--length", "8")
    assert code == 2
    assert "length 8 that exceeds the model's context of 256" in err
    code, _, err = command("sample", "the", "--model", str(bare), "--length", "8")
    assert "is incomplete: model-00001-of-00003.safetensors" in err, (
        "a prompt that fits gets as far as the weights"
    )


def bert(folder, **changes):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    network = BertForMaskedLM(
        BertConfig(**sizes, vocab_size=layout.VOCABULARY, max_position_embeddings=64, **changes)
    )
    layout.write_llada_tokenizer(folder)
    special = {
        "mask_token": "<|mdm_mask|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    return network.eval(), PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), **special
    )


def test_wrapped_masked_language_models(tmp_path):
    network, tokenizer = bert(tmp_path)
    lm = oddlm.wrap(network, tokenizer)
    assert (lm.model.mask_id, lm.model.vocab_size, lm.model.context) == (
        tokenizer.mask_token_id,
        layout.VOCABULARY,
        64,
    )
    assert tokenizer.eos_token_id in lm.model.end_ids
    assert set(lm.tokenizer.encode("<|mdm_mask|>")).isdisjoint(tokenizer.all_special_ids)
    groups = lm.generate(["the end", "in the inn, a longer one"], 3, **SHAPE)
    alone = lm.generate("the end", 3, seeds=[groups[0][0].seed], **SHAPE)
    assert [s.tokens for s in alone[0]] == [s.tokens for s in groups[0]], (
        "the network never sees padding"
    )


def test_a_wrapped_network_gives_the_logits_of_our_own(tmp_path):
    """The same weights, once native and once in a bidirectional transformers network.

    Once with a shift and once without.
    """
    for write, make, shift in (
        (layout.write_llada, layout.llama, False),
        (layout.write_dream, layout.qwen2, True),
    ):
        network = make()
        folder = write(tmp_path / str(shift), network)
        model = load_model(str(folder), dtype="fp64", device="cpu")
        forward = network.forward

        def bidirectional(input_ids, logits_to_keep=0, forward=forward):
            T = input_ids.shape[1]
            full = torch.zeros(len(input_ids), 1, T, T, dtype=torch.float64)
            with layout.nothing_narrower():
                return forward(
                    input_ids=input_ids, attention_mask=full, logits_to_keep=logits_to_keep
                )

        network.forward = bidirectional
        wrapped = oddlm.wrap(network, model.tokenizer, mask_id=model.mask_id, shift=shift).model
        tokens = torch.randint(
            layout.VOCABULARY, (4, 11), generator=torch.Generator().manual_seed(0)
        )
        lengths = torch.tensor([5, 2, 5, 0])
        assert (wrapped(tokens, 5, lengths) - model(tokens, 5, lengths)).abs().max() < 1e-9


def test_what_cannot_be_wrapped(tmp_path):
    network, tokenizer = bert(tmp_path)
    with pytest.raises(ValueError, match="LlamaForCausalLM is autoregressive"):
        oddlm.wrap(layout.llama(), tokenizer)
    with pytest.raises(ValueError, match="mask_id holds 320, outside the vocabulary"):
        oddlm.wrap(network, tokenizer, mask_id=320)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"no mask token.*mask_id="):
        oddlm.wrap(network, tokenizer)

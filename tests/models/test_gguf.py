"""GGUF files converted back to the networks and tokenizers they were written from."""

import inspect
import json
import re

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from oddlm.models.loading import gguf_file
from oddlm.models.loading.gguf import convert_gguf
from oddlm.models.loading.tokenizer import read_tokenizer

from . import published_layout as layout
from .gguf_layout import (
    NETWORKS,
    PAIRS,
    SPECIAL,
    TINY,
    USER_DEFINED,
    file_name,
    tensors_of,
    vocabulary,
    write_network,
)

TEXTS = [
    "the inn\n\n\nin the  end",
    "  12345 a\tb\r\n'll 'LL $12+3²",
    "żółw 🐢 in the Ć",
    "a<|im_end",
    "",
    " ",
    "x zq 123123",
    "e\u0301",
]
TIKTOKEN = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split_by(*parts):
    return pre_tokenizers.Sequence([*parts, BYTES])


# How the published tokenizers split, in their own words.
PUBLISHED = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS]),
    "qwen2": Qwen2Tokenizer(vocab={"a": 0}, merges=[]).backend_tokenizer.pre_tokenizer,
    "llama-bpe": split_by(pre_tokenizers.Split(Regex(TIKTOKEN), "isolated")),
    "gpt-2": WORDS,
}


@pytest.fixture(scope="module")
def tiny():
    return layout.llama(**TINY)


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_converted_network_gives_the_logits_of_the_original(tmp_path, kind, tied):
    network = NETWORKS[kind](tie_word_embeddings=tied)
    convert_gguf(write_network(tmp_path / "a.gguf", network), tmp_path / "out")
    rounded = type(network)(network.config)
    rounded.load_state_dict({k: v.float().bfloat16() for k, v in network.state_dict().items()})
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert type(found) is type(network)
    assert found.config.tie_word_embeddings is tied
    tokens = torch.randint(layout.VOCABULARY, (2, 11), generator=torch.manual_seed(0))
    theirs, ours = rounded.float().eval()(tokens).logits, found.eval()(tokens).logits
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_config_says_what_the_file_says(tmp_path):
    network = layout.qwen3()
    convert_gguf(write_network(tmp_path / "a.gguf", network), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tokens, _ = vocabulary()
    assert config == {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **layout.SIZES,
        "head_dim": 32,
        "hidden_act": "silu",
        "vocab_size": layout.VOCABULARY,
        "max_position_embeddings": 256,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": network.config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "pad_token_id": tokens.index("<|endoftext|>"),
    }


def test_a_quantised_file_in_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "PIECE", 96)
    network = layout.qwen2()
    path = write_network(tmp_path / "a.gguf", network, quantised=Kind.Q8_0)
    convert_gguf(path, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert found.keys() == network.state_dict().keys()
    for name, tensor in found.items():
        theirs = stored[file_name(name, "qwen2")]
        values = gguf.quants.dequantize(theirs.data, theirs.tensor_type).reshape(tensor.shape)
        assert torch.equal(tensor, torch.from_numpy(values.copy()).bfloat16()), name


def published(split):
    """A tokenizer as in the published tokenizer.json of models of this kind."""
    tokens, kinds = vocabulary()
    known = {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != 5}
    backend = Tokenizer(models.BPE(known, PAIRS, ignore_merges=split == "llama-bpe"))
    backend.pre_tokenizer, backend.decoder = PUBLISHED[split], decoders.ByteLevel()
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.add_tokens([USER_DEFINED])
    return backend


@pytest.fixture(scope="module", params=PUBLISHED)
def tokenizers(request, tmp_path_factory, tiny):
    """The folder of a converted tokenizer, and a published one."""
    folder = tmp_path_factory.mktemp("tokenizer")
    path = write_network(
        folder / "a.gguf", tiny, split=request.param, tokenizer__ggml__add_bos_token=False
    )
    convert_gguf(path, folder / "out")
    return folder / "out", published(request.param)


def test_tokenizers_give_the_ids_of_the_published_ones(tokenizers):
    folder, theirs = tokenizers
    ours = read_tokenizer(folder)
    for text in [*TEXTS, f"the{USER_DEFINED}in"]:
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text).ids)
    assert ours.size == len(theirs.get_vocab())
    assert ours.special.keys() == set(SPECIAL)


@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("a1'² \n\t.sd")))
def test_texts_are_split_as_by_the_published_tokenizers(tokenizers, text):
    folder, theirs = tokenizers
    ours = Tokenizer.from_file(str(folder / "tokenizer.json")).pre_tokenizer
    theirs = theirs.pre_tokenizer.pre_tokenize_str(text)
    assert [part for part, _ in ours.pre_tokenize_str(text)] == [part for part, _ in theirs]


def test_a_split_without_a_name_of_its_own(tmp_path, tiny):
    convert_gguf(write_network(tmp_path / "a.gguf", tiny, split="default"), tmp_path / "out")
    found = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).pre_tokenizer
    parts = [part for part, _ in found.pre_tokenize_str("it's a1234 (x) 12")]
    assert parts == ["it", "'", "s", "Ġa", "123", "4", "Ġ", "(", "x", ")", "Ġ", "12"]


def test_conversations_as_in_transformers(tokenizers):
    folder, _ = tokenizers
    ours, theirs = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    talk = [{"role": "user", "content": "the inn\n\nin 12?"}]
    found = theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert ours.chat(talk) == found
    assert (theirs.bos_token, theirs.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (theirs.pad_token, theirs.model_max_length) == ("<|endoftext|>", 256)


@pytest.mark.parametrize(
    ("split", "bos", "eos", "ends"),
    [
        ("llama-bpe", None, None, (1, 0)),
        ("llama-bpe", False, None, (0, 0)),
        ("qwen2", None, None, (0, 0)),
        ("smollm", True, True, (1, 1)),
    ],
)
def test_tokens_added_around_a_text(tmp_path, tiny, split, bos, eos, ends):
    flags = {"tokenizer__ggml__add_bos_token": bos, "tokenizer__ggml__add_eos_token": eos}
    convert_gguf(write_network(tmp_path / "a.gguf", tiny, split=split, **flags), tmp_path / "out")
    tokens, _ = vocabulary()
    found = [tokens[i] for i in read_tokenizer(tmp_path / "out").encode("the")]
    assert found == ["<|im_start|>"] * ends[0] + ["the"] + ["<|im_end|>"] * ends[1]


TOKENS, KINDS = vocabulary()
REFUSED = {
    "architecture": ({"general__architecture": "gemma3"}, "gemma3"),
    "rope scaling": ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type 'yarn'"),
    "unknown key": ({"llama__attention__clamp_kqv": 8.0}, "clamp_kqv"),
    "experts": ({"llama__expert_count": 8}, "expert_count 8"),
    "sliding window": ({"llama__attention__sliding_window": 64}, "sliding_window 64"),
    "partial rotary": ({"llama__rope__dimension_count": 8}, "dimension_count 8"),
    "value size": ({"llama__attention__value_length": 8}, "value_length 8"),
    "odd head": ({"llama__attention__key_length": 15}, "15"),
    "heads per layer": ({"llama__attention__head_count": [2, 2]}, "array of 2"),
    "no heads": ({"llama__attention__head_count": 0}, "head_count"),
    "no width": ({"llama__embedding_length": None}, "embedding_length"),
    "another width": ({"llama__embedding_length": 64}, "64"),
    "another depth": ({"llama__block_count": 2}, "blk.1"),
    "too deep": ({"llama__block_count": 1 << 31}, "block_count"),
    "epsilon": ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "epsilon"),
    "vocabulary": ({"llama__vocab_size": 7}, "vocab_size 7"),
    "split file": ({"split__count": 3}, "split.count 3"),
    "alignment": ({"general__alignment": 24}, "alignment is 24"),
    "sentencepiece": ({"tokenizer__ggml__model": "llama"}, "'llama'"),
    "pre-tokenizer": ({"tokenizer__ggml__pre": "tekken"}, "'tekken'"),
    "no pre-tokenizer": ({"tokenizer__ggml__pre": None}, "None"),
    "token type": ({"tokenizer__ggml__token_type": [6, *KINDS[1:]]}, "token_type 6"),
    "fewer types": ({"tokenizer__ggml__token_type": KINDS[1:]}, "319"),
    "fewer tokens": ({"tokenizer__ggml__tokens": TOKENS[1:]}, "319"),
    "tokens that are numbers": ({"tokenizer__ggml__tokens": KINDS}, "tokens"),
    "no merges": ({"tokenizer__ggml__merges": None}, "merges"),
    "token twice": ({"tokenizer__ggml__tokens": [TOKENS[1], *TOKENS[1:]]}, "twice"),
    "empty token": ({"tokenizer__ggml__tokens": ["", *TOKENS[1:]]}, "empty"),
    "merge of one": ({"tokenizer__ggml__merges": ["the"]}, "'the'"),
    "merge of unknown tokens": ({"tokenizer__ggml__merges": ["t zz"]}, "'t zz'"),
    "eos outside": ({"tokenizer__ggml__eos_token_id": 320}, "eos_token_id holds 320"),
    "eos unused": ({"tokenizer__ggml__eos_token_id": 319}, "eos_token"),
    "eos a text": ({"tokenizer__ggml__eos_token_id": "no"}, "eos_token_id holds 'no'"),
    "bos missing": (
        {"tokenizer__ggml__bos_token_id": None, "tokenizer__ggml__add_bos_token": True},
        "bos_token_id",
    ),
    "add_bos": ({"tokenizer__ggml__add_bos_token": 2}, "add_bos_token"),
    "chat template": ({"tokenizer__chat_template": "{% for"}, "chat template"),
    "chat template a number": ({"tokenizer__chat_template": 7}, "tokenizer"),
}


@pytest.mark.parametrize(("changes", "named"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_named(tmp_path, tiny, changes, named):
    path = write_network(tmp_path / "a.gguf", tiny, **changes)
    with pytest.raises(ValueError, match=r"a\.gguf") as refused:
        convert_gguf(path, tmp_path / "out")
    assert named in str(refused.value)
    assert [found.name for found in tmp_path.iterdir()] == ["a.gguf"]


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.1.ffn_up"]
)
def test_unexpected_tensors_are_named(tmp_path, tiny, name):
    tensors = tensors_of(tiny) | {name: np.ones(32, np.float32)}
    path = write_network(tmp_path / "a.gguf", tiny, tensors=tensors)
    with pytest.raises(ValueError, match=name):
        convert_gguf(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.0.ffn_up.weight"])
def test_missing_tensors_and_other_shapes_are_named(tmp_path, tiny, name):
    tensors = tensors_of(tiny)
    for change in ({}, {name: np.ones((layout.VOCABULARY, 8), np.float32)}):
        rest = {k: v for k, v in tensors.items() if k != name} | change
        path = write_network(tmp_path / "a.gguf", tiny, tensors=rest)
        with pytest.raises(ValueError, match=re.escape(name)):
            convert_gguf(path, tmp_path / "out")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
def test_weights_that_are_not_finite_are_refused_and_nothing_is_left(tmp_path, tiny, value):
    tensors = tensors_of(tiny)
    tensors["blk.0.ffn_down.weight"] = np.full((32, 32), value, np.float32)
    path = write_network(tmp_path / "a.gguf", tiny, tensors=tensors)
    with pytest.raises(ValueError, match=r"blk\.0\.ffn_down\.weight"):
        convert_gguf(path, tmp_path / "out")
    assert [found.name for found in tmp_path.iterdir()] == ["a.gguf"]


def test_the_folder_appears_when_it_is_complete(tmp_path, tiny, monkeypatch):
    path, out = write_network(tmp_path / "a.gguf", tiny), tmp_path / "new" / "out"
    during = []

    def killed(tensors, file, **_):
        during.append((out.exists(), file.parent.parent == out.parent))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("safetensors.torch.save_file", killed)
        with pytest.raises(KeyboardInterrupt):
            convert_gguf(path, out)
    assert during == [(False, True)]
    assert not list(out.parent.iterdir())
    convert_gguf(path, out)
    with pytest.raises(ValueError, match="out"):
        convert_gguf(path, out)
    assert len(list(out.iterdir())) == 4


def test_files_that_cannot_be_read_or_written(tmp_path, tiny):
    for path in (tmp_path, tmp_path / "no.gguf"):
        with pytest.raises(ValueError, match=path.name):
            convert_gguf(path, tmp_path / "out")
    path = write_network(tmp_path / "a.gguf", tiny)
    with pytest.raises(ValueError, match="cannot write"):
        convert_gguf(path, path / "out")

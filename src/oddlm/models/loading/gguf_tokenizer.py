"""Tokenizers of GGUF files: byte-level BPE, built with the tokenizers library."""

from typing import TYPE_CHECKING, Any

from ...checks import ids
from .gguf_file import GgufFile, damaged
from .tokenizer import QWEN2_WORDS, TextTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FOLDER = "use the model's folder with safetensors and tokenizer.json"
GPT2_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = "llama-bpe"
# How text is split before merging, by tokenizer.ggml.pre; each expression splits the parts that
# the one before leaves.
SPLITS = {
    "smollm": (r"\p{N}", GPT2_WORDS),
    "qwen2": (QWEN2_WORDS,),
    LLAMA3: (QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),),  # up to three digits
    "gpt-2": (GPT2_WORDS,),
    "default": (r"[\p{P}$+<=>^~|]+", GPT2_WORDS, r"\p{N}+", "[0-9]{3}"),
}
COMPOSED = ("qwen2",)  # these models saw text in Unicode's composed form (NFC)
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def token_ids(file: GgufFile, vocab_size: int) -> dict[str, int]:
    """Return the ids of the bos, eos and pad tokens that the file names."""
    found = {name: file.metadata.get(key) for name, key in TOKENS.items()}
    return {
        name: ids(f"{file.path}: {TOKENS[name]}", [number], vocab_size)[0]
        for name, number in found.items()
        if number is not None
    }


def convert_tokenizer(file: GgufFile, vocab_size: int) -> tuple[str, dict[str, Any]]:
    """Return the contents of tokenizer.json and of tokenizer_config.json."""
    model, split = (file.keys.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model != "gpt2" or split not in SPLITS:
        raise ValueError(
            f"{file.path}: tokenizer {model!r:.60} with pre-tokenizer {split!r:.60} is not "
            f"supported, only 'gpt2' with {', '.join(SPLITS)}: {FOLDER}"
        )
    tokens = _array(file, "tokenizer.ggml.tokens", str)
    kinds = _array(file, "tokenizer.ggml.token_type", int)
    if not len(tokens) == len(kinds) == vocab_size:
        raise damaged(
            file.path,
            f"{len(tokens)} tokens with {len(kinds)} types for an embedding of {vocab_size}",
        )
    if unknown := set(kinds) - {NORMAL, CONTROL, USER_DEFINED, UNUSED}:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.token_type {min(unknown)} is not supported: {FOLDER}"
        )
    marked = token_ids(file, vocab_size)
    if missing := [name for name, number in marked.items() if kinds[number] == UNUSED]:
        raise damaged(file.path, f"its {missing[0]} is an unused token")
    backend = _backend(file, split, tokens, kinds)
    _surround(file, backend, marked, tokens)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: tokens[number] for name, number in marked.items()},
    }
    template = file.keys.get("tokenizer.chat_template")
    if template is not None:
        settings["chat_template"] = template
    content: str = backend.to_str()
    try:
        TextTokenizer(backend, settings, template)  # it refuses what could not be used later
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file.path}: its tokenizer cannot be used: {error}") from error
    return content, settings


def _backend(file: GgufFile, split: str, tokens: list[str], kinds: list[int]) -> "Tokenizer":
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    # unused tokens only fill the rows of the embedding up
    pairs = zip(tokens, kinds, strict=True)
    vocabulary = {
        token: number for number, (token, kind) in enumerate(pairs) if token and kind != UNUSED
    }
    if len(vocabulary) != len(kinds) - kinds.count(UNUSED):
        raise damaged(file.path, "a token is empty or occurs twice")
    merges = _merges(file, vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split == LLAMA3))
    if split in COMPOSED:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(words), behavior="isolated") for words in SPLITS[split]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    for number, kind in enumerate(kinds):
        if kind in (CONTROL, USER_DEFINED):
            special = kind == CONTROL
            add = backend.add_special_tokens if special else backend.add_tokens
            add([AddedToken(tokens[number], special=special, normalized=False)])
    return backend


def _merges(file: GgufFile, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    found = []
    for merge in _array(file, "tokenizer.ggml.merges", str):
        left, _, right = merge.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise damaged(file.path, f"the merge {merge!r:.60} is not of tokens")
        found.append((left, right))
    return found


def _surround(
    file: GgufFile, backend: "Tokenizer", marked: dict[str, int], tokens: list[str]
) -> None:
    """Add the bos and eos tokens around a text where the file says so."""
    from tokenizers.processors import TemplateProcessing

    llama3 = file.keys.get("tokenizer.ggml.pre") == LLAMA3
    wanted = {
        "bos_token": file.keys.flag("tokenizer.ggml.add_bos_token", llama3),
        "eos_token": file.keys.flag("tokenizer.ggml.add_eos_token", False),
    }
    if missing := [name for name, add in wanted.items() if add and name not in marked]:
        raise damaged(file.path, f"it has no {TOKENS[missing[0]]}")
    before = ["bos_token"] if wanted["bos_token"] else []
    after = ["eos_token"] if wanted["eos_token"] else []
    if before or after:
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=[
                {"id": name, "ids": [marked[name]], "tokens": [tokens[marked[name]]]}
                for name in before + after
            ],
        )


def _array(file: GgufFile, key: str, kind: type) -> list[Any]:
    found = file.metadata.get(key)
    if not isinstance(found, list) or any(type(value) is not kind for value in found):
        raise damaged(file.path, f"{key} is not an array of {kind.__name__}")
    return found

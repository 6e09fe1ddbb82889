"""Tokenizers of checkpoints, built from their files only."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checks import ids
from ..families.published import END_TEXTS, MASK_TEXTS, QWEN2_TOKENIZERS
from .architecture import Keys
from .chat import ChatTemplate, ControlTokens
from .checkpoint import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE, VOCABULARY, MERGES, SETTINGS = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
)
TEMPLATE, SPECIAL, ADDED = "chat_template.jinja", "special_tokens_map.json", "added_tokens.json"
NAMES = ("bos_token", "eos_token", "pad_token", "mask_token", "unk_token")
AGAIN = ": copy or download it again"
# How Qwen2 splits text before merging.
QWEN2_WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",  # contractions
        r"[^\r\n\p{L}\p{N}]?\p{L}+",  # words
        r"\p{N}",  # single digits
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",  # punctuation with line ends
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


class TextTokenizer:
    """A tokenizer that never turns text into control tokens, neither in `encode` nor in `chat`.

    `template` is None if the checkpoint has no chat template.
    """

    def __init__(
        self, backend: "Tokenizer", settings: Mapping[str, Any], template: str | None
    ) -> None:
        self._backend = backend
        # tokenizers saved during training may truncate, pad or drop merges
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None
        backend.encode_special_tokens = True  # "<|eot_id|>" in a text is text
        added = backend.get_added_tokens_decoder()
        self.special = {
            token.content: int(number) for number, token in added.items() if token.special
        }
        self.tokens = {name: _text(settings.get(name)) for name in NAMES}
        self.template = (
            None
            if template is None
            else ChatTemplate(template, self.tokens, _control(added.values()))
        )
        self.size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Encode a text; `whole` includes special tokens the tokenizer adds around it."""
        with _refusing("the tokenizer cannot encode this text"):
            found: list[int] = self._backend.encode(text, add_special_tokens=whole).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        with _refusing("the tokenizer cannot decode these tokens"):
            text: str = self._backend.decode(list(tokens), skip_special_tokens=True)
        return text

    def chat(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> list[int]:
        """Encode a conversation with the chat template; `answer` adds the generation prompt."""
        if self.template is None:
            raise ValueError("this checkpoint has no chat template: pass a raw prompt (raw=True)")
        found: list[int] = []
        for part, control in self.template.segments(messages, answer=answer):
            found += [self.special[part]] if control else self.encode(part, whole=False)
        return found

    def id_of(self, text: str | None) -> int | None:
        number = None if text is None else self._backend.token_to_id(text)
        return None if number is None else int(number)

    def text_of(self, number: int) -> str | None:
        text: str | None = self._backend.id_to_token(number)
        return text


def read_tokenizer(folder: Path) -> TextTokenizer:
    """Read tokenizer.json, or vocab.json and merges.txt, and the settings next to them."""
    settings = read_settings(folder)
    template = read_template(folder, settings)
    with _refusing(f"the tokenizer in {folder} is damaged", AGAIN):
        return TextTokenizer(_backend(folder, settings), settings, template)


def special_ids(
    keys: Keys,
    tokenizer: TextTokenizer,
    vocab_size: int,
    mask_id: int | None = None,
    published: int | None = None,
) -> tuple[int, tuple[int, ...]]:
    """Return the mask id and the ids that end an answer, from config.json and the tokenizer.

    mask_id: overrides the mask id found there.
    published: the mask id of the architecture, if they name none and no other token has it.
    """
    if tokenizer.size > vocab_size:
        raise ValueError(
            f"{keys.where} has a vocabulary of {vocab_size} tokens, but its tokenizer has "
            f"{tokenizer.size}"
        )
    mask = mask_id if mask_id is not None else _mask_id(keys, tokenizer, published)
    ends = [
        tokenizer.id_of(text)
        for text in (tokenizer.tokens["eos_token"], tokenizer.tokens["pad_token"])
    ]
    ends += [tokenizer.special.get(text) for text in END_TEXTS]
    for key in ("eos_token_id", "pad_token_id"):
        value = keys.get(key)
        ends += value if isinstance(value, list) else [value]
    (mask,) = ids(f"{keys.where}: mask_token_id", [mask], vocab_size)
    known = ids(f"{keys.where}: end tokens", [end for end in ends if end is not None], vocab_size)
    return mask, tuple(dict.fromkeys(end for end in known if end != mask))


def _mask_id(keys: Keys, tokenizer: TextTokenizer, published: int | None) -> int:
    configured = keys.get("mask_token_id")
    named = tokenizer.id_of(tokenizer.tokens["mask_token"])
    if configured is not None and named is not None and configured != named:
        raise ValueError(
            f"the mask token is {configured!r} in {keys.where} but {named} in its tokenizer: pass "
            "the right one as mask_id="
        )
    for found in (configured, named, *map(tokenizer.special.get, MASK_TEXTS)):
        if found is not None:
            return found  # type: ignore[no-any-return]
    if published is not None and "mask" in (tokenizer.text_of(published) or "mask").lower():
        return published
    raise ValueError(
        f"{keys.where} has no mask_token_id, and its tokenizer has no mask token: this does not "
        "look like a masked diffusion model; if it is one, pass the id of its mask token as "
        "mask_id="
    )


def _backend(folder: Path, settings: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import Tokenizer

    path = folder / FILE
    if path.is_file():
        with _refusing(f"{path} is damaged", AGAIN):
            return Tokenizer.from_file(str(path))
    path = folder / VOCABULARY
    if path.is_file() and (folder / MERGES).is_file():
        with _refusing(f"{path} is damaged", AGAIN):
            return _from_merges(folder, settings)
    raise ValueError(f"{folder} has no tokenizer: neither {FILE} nor {VOCABULARY} and {MERGES}")


def _from_merges(folder: Path, settings: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    kind = settings.get("tokenizer_class")
    if kind not in QWEN2_TOKENIZERS:
        raise ValueError(
            f"{folder}: a {kind} without {FILE} cannot be read; known: "
            f"{', '.join(QWEN2_TOKENIZERS)}"
        )
    backend = Tokenizer(models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES)))
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    for number, token in sorted(_added(folder, settings).items()):
        content, special = token["content"], bool(token.get("special", False))
        flags = {
            name: bool(value)
            for name, value in token.items()
            if name in ("lstrip", "rstrip", "normalized", "single_word")
        }
        (backend.add_special_tokens if special else backend.add_tokens)(
            [AddedToken(content, special=special, **flags)]
        )
        if (assigned := backend.token_to_id(content)) != number:
            raise ValueError(
                f"{folder / SETTINGS}: token {content!r} should have id {number}, but gets "
                f"{assigned}"
            )
    return backend


def _added(folder: Path, settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the tokens added to the vocabulary, by id."""
    try:
        old = {
            int(number): {"content": text, "special": True}
            for text, number in _optional(folder / ADDED).items()
        }
        added = {
            int(number): dict(token)
            for number, token in settings.get("added_tokens_decoder", {}).items()
        }
        for token in added.values():
            token["content"].encode()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the added tokens in {folder} ({SETTINGS}, {ADDED}) are damaged ({error}): copy or "
            "download them again"
        ) from error
    return {**old, **added}


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings beside a tokenizer."""
    return {**_optional(folder / SPECIAL), **_optional(folder / SETTINGS)}


def read_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Read the chat template, from its own file or from the settings."""
    if (folder / TEMPLATE).is_file():
        try:
            return (folder / TEMPLATE).read_text()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{folder / TEMPLATE} is damaged ({error}): copy or download it again"
            ) from error
    found = settings.get("chat_template")
    if isinstance(found, list):  # several named templates
        entries = (entry for entry in found if isinstance(entry, dict))
        found = next((e.get("template") for e in entries if e.get("name") == "default"), None)
    if found is not None and not isinstance(found, str):
        raise ValueError(
            f"{folder / SETTINGS}: chat_template must be a string, not {type(found).__name__}"
        )
    return found


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _text(token: Any) -> str | None:
    """Return the text of a token, which the settings give as a string or as an object."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def _control(added: Any) -> ControlTokens:
    return ControlTokens(
        {
            token.content: (token.lstrip, token.rstrip)
            for token in added
            if token.special and token.content
        }
    )


@contextmanager
def _refusing(what: str, advice: str = "") -> Iterator[None]:
    """Turn errors of the tokenizers library into ValueErrors.

    It raises plain Exceptions, and panics of its Rust code are not even Exceptions.
    """
    try:
        yield
    except ValueError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what} ({error}){advice}") from error

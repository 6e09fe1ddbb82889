"""The model in the package loads, solves its tasks, and reports a damaged copy."""

import json
import shutil
import time
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oddlm
from oddlm.models.mini import HERE, Mini, MiniTokenizer
from oddlm.prompts import encode_prompts
from oddlm.tasks import countdown, minicode

TOKENIZER = MiniTokenizer()


def copy_of_the_checkpoint(folder):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(HERE / name, folder / name)
    return folder


def test_it_solves_countdown():
    lm = oddlm.load("mini")
    problems = countdown.load(split="test", count=6, seed=5)
    groups = lm.generate(
        [countdown.prompt(p) for p in problems],
        8,
        length=24,
        steps=12,
        eos="late",
        alpha=8,
        progress=False,
    )
    solved = [
        any(countdown.score(p, sample.text).correct for sample in own)
        for p, own in zip(problems, groups, strict=True)
    ]
    assert sum(solved) >= 3


@pytest.fixture(scope="module")
def by_looking_ahead():
    """A tokenizer that looks ahead to the end of the number at each group: simple, quadratic."""
    from tokenizers import Tokenizer

    content = json.loads((HERE / "tokenizer.json").read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (
        r"\d{1,3}(?=(?:\d{3})*(?!\d))"
    )
    backend = Tokenizer.from_str(json.dumps(content))
    backend.encode_special_tokens = True
    return lambda text: backend.encode(text, add_special_tokens=False).ids


DIGITS = st.text("0123456789", max_size=200)
PIECES = (
    DIGITS
    | st.text("0123456789 ,.=+-/*()\nab_<>'\u0661\u0662\uff13²é🐢", max_size=60)
    | st.text(max_size=20)
)


@given(st.lists(PIECES, max_size=4).map("".join))
def test_numbers_are_cut_in_threes_from_the_right(by_looking_ahead, text):
    assert TOKENIZER.encode(text) == by_looking_ahead(text)


@pytest.mark.parametrize("digit", ["7", "\u0661"])
def test_long_numbers_take_linear_time(digit):
    def seconds(length: int) -> float:
        times = []
        for _ in range(3):
            start = time.thread_time()
            TOKENIZER.encode(digit * length)
            times.append(time.thread_time() - start)
        return min(times)

    seconds(100)
    assert seconds(40_000) < 24 * seconds(5_000), (
        "eight times the text: quadratic would be 64 times the work"
    )


def test_weights_are_small_and_bf16():
    from safetensors.torch import load_file

    weights = load_file(HERE / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert (HERE / "model.safetensors").stat().st_size <= 32e6


def test_a_copy_elsewhere_is_the_same_model(tmp_path):
    tokens = torch.tensor([TOKENIZER.encode("1,2,3,10\n") + [TOKENIZER.mask_id] * 4])
    arguments = (tokens, tokens.shape[1] - 4, torch.tensor([tokens.shape[1] - 4]))
    assert torch.equal(Mini()(*arguments), Mini(copy_of_the_checkpoint(tmp_path))(*arguments))


@pytest.mark.parametrize("cut", [0, 7, 4000])
def test_truncated_weights(tmp_path, cut):
    path = copy_of_the_checkpoint(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"checkpoint in .* cannot be read"):
        Mini(tmp_path)


def test_corrupt_header(tmp_path):
    path = copy_of_the_checkpoint(tmp_path) / "model.safetensors"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])
    with pytest.raises(ValueError, match="cannot be read"):
        Mini(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 128}, "do not fit its config.json"),
        ({"layers": 8}, "do not fit its config.json"),
        ({"wings": 2}, "cannot be read"),
        ({"vocab_size": 1800}, "1800 tokens, but the tokenizer has 1799"),
    ],
)
def test_a_config_of_another_network(tmp_path, changes, message):
    path = copy_of_the_checkpoint(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        Mini(tmp_path)


def test_missing_weights(tmp_path):
    copy_of_the_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        Mini(tmp_path)


def test_wrong_tokenizers(tmp_path):
    from tokenizers import Tokenizer, models

    path = copy_of_the_checkpoint(tmp_path) / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer .* cannot be read"):
        Mini(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(path))
    with pytest.raises(ValueError, match="has no token <pad>: it belongs to another model"):
        Mini(tmp_path)
    vocabulary = {"<pad>": 0, "<eos>": 1, "<mask>": 2, "a": 3}
    Tokenizer(models.WordLevel(vocabulary, unk_token="a")).save(str(path))
    with pytest.raises(ValueError, match="1799 tokens, but the tokenizer has 4"):
        Mini(tmp_path)


def test_an_unknown_model():
    with pytest.raises(ValueError, match="unknown model 'minni'; known: mini, toy"):
        oddlm.load("minni")


def test_other_prompts_are_answered():
    lm = oddlm.load("mini")
    for prompt in ("Who are you?", "żółw 🐢\n", "<mask><eos>"):
        (samples,) = lm.generate(prompt, 2, length=8, steps=4, progress=False)
        assert all(isinstance(sample.text, str) for sample in samples)


@pytest.mark.parametrize("number", [0, 7, 10, 42, 99, 100, 999])
def test_numbers_up_to_999_are_single_tokens(number):
    assert len(TOKENIZER.encode(str(number))) == 1
    before, *_, after = TOKENIZER.encode(f"8+{number}=")
    assert TOKENIZER.encode(f"8+{number}=") == [
        before,
        *TOKENIZER.encode("+"),
        *TOKENIZER.encode(str(number)),
        after,
    ]


@pytest.mark.parametrize(
    ("number", "groups"),
    [(1000, ["1", "000"]), (1680, ["1", "680"]), (1234567, ["1", "234", "567"])],
)
def test_larger_numbers_are_groups_of_three(number, groups):
    assert TOKENIZER.encode(str(number)) == [
        token for group in groups for token in TOKENIZER.encode(group)
    ]


def test_texts_come_back_as_they_were():
    pairs = [
        *islice(countdown.stream(numbers=5), 50),
        *islice(minicode.stream(), 50),
        ("żółw 🐢\t\n\n", "<mask> 007 12345"),
    ]
    for text in (text for pair in pairs for text in pair):
        ids = TOKENIZER.encode(text)
        assert TOKENIZER.decode(ids) == text
        assert not {TOKENIZER.mask_id, TOKENIZER.eos_id, TOKENIZER.pad_id} & set(ids)
    assert 1000 <= TOKENIZER.size <= 4000


def test_prompts_end_with_the_line_break_that_the_model_knows():
    """As in tasks and chats. Prompts that have one, raw prompts and ids are left unchanged."""
    lm = oddlm.load("mini")

    def encoded(*prompts, raw=False):
        return encode_prompts(lm.tokenizer, prompts, 8, context=lm.info.context, raw=raw)

    ended = TOKENIZER.encode("73,32,7,19,28\n")
    assert encoded("73,32,7,19,28", "73,32,7,19,28\n", ended[:-1]) == [ended, ended, ended[:-1]]
    assert encoded("1\n\n") == [TOKENIZER.encode("1\n\n")]
    bare = TOKENIZER.encode("73,32,7,19,28")
    assert encoded("73,32,7,19,28", raw=True) == [bare] != [ended]
    messages = [{"role": "user", "content": "1,2"}, {"role": "assistant", "content": "3\n"}]
    assert TOKENIZER.chat(messages) == TOKENIZER.encode("1,2\n3\n")
    with pytest.raises(ValueError, match=r"prompts\[0\] is empty"):
        encoded("")
    shape = {"length": 24, "steps": 12, "alpha": 0, "temperature": 0}
    assert lm.generate("73,32,7,19,28", 1, **shape) == lm.generate("73,32,7,19,28\n", 1, **shape)

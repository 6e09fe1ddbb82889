"""Make the mini model's tokenizer.

    python recipes/mini/make_tokenizer.py

The language of minicode is encoded by BPE, any other text by bytes. Digits are grouped by three
from the right, and every group ("7", "42", "999", also "007") is one token: 1234 is "1" and "234".
"""

import json
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from oddlm.tasks.minicode import stream

OUT = Path(__file__).parents[2] / "src" / "oddlm" / "models" / "mini" / "tokenizer.json"
SPECIAL = ["<pad>", "<eos>", "<mask>"]
WORDS = 700  # size of the vocabulary before the numbers are added
TEXTS = 100_000


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?<!\d)\d{1,2}(?=(?:\d{3})+(?!\d))|\d{1,3}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
        min_frequency=20,
    )
    corpus = (prompt + body for prompt, body in islice(stream(), TEXTS))
    tokenizer.train_from_iterator(corpus, trainer)
    OUT.write_text(
        json.dumps(with_numbers(json.loads(tokenizer.to_str())), ensure_ascii=False, indent=1)
        + "\n"
    )
    print(f"{OUT}: {Tokenizer.from_file(str(OUT)).get_vocab_size()} tokens")


def with_numbers(made: dict) -> dict:
    """Add every group of two and three digits, with all merges that lead to it."""
    vocab, merges = made["model"]["vocab"], made["model"]["merges"]
    digits = [str(d) for d in range(10)]
    pairs = [a + b for a in digits for b in digits]
    for number in [*pairs, *(p + d for p in pairs for d in digits)]:
        vocab.setdefault(number, len(vocab))
    known = {tuple(m) for m in merges}
    added = [(a, b) for a in digits for b in digits]
    added += [(p, d) for p in pairs for d in digits] + [(d, p) for d in digits for p in pairs]
    merges += [list(m) for m in added if m not in known]
    return made


if __name__ == "__main__":
    main()

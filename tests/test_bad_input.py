"""Every bad argument is refused before any work, by an error that names it and says what is
allowed.
"""

import math
import re

import numpy as np
import pytest
import torch

from oddlm import Explored, Repulsion, denoise, denoise_steps, diversify
from oddlm.models.wrappers import ClassifierFree, MicroBatch

GOOD = {"n": 2, "length": 8, "steps": 4}


class Untouchable:
    """A network that must not be asked."""

    mask_id, vocab_size, end_ids = 9, 10, (1,)

    def __call__(self, *args):
        raise AssertionError("work was done before the arguments were checked")


DENOISE = [
    ({"n": 0}, "n must be an integer >= 1, not 0"),
    ({"n": 2.0}, "n must be an integer >= 1, not 2.0"),
    ({"length": 0}, "length must be an integer >= 1, not 0"),
    ({"steps": 0}, "steps must be an integer >= 1, not 0"),
    ({"steps": -3}, "steps must be an integer >= 1, not -3"),
    ({"temperature": -0.1}, "temperature must be a number from 0 to 1000, not -0.1"),
    ({"temperature": math.nan}, "temperature must be a number from 0 to 1000, not nan"),
    ({"temperature": 1e40}, "temperature must be a number from 0 to 1000, not 1e+40"),
    ({"order_temperature": -1}, "order_temperature must be a number from 0 to 1000, not -1"),
    ({"fork_temperature": math.inf}, "fork_temperature must be a number from 0 to 1000, not inf"),
    ({"fork_temperature": -1}, "fork_temperature must be a number from 0 to 1000, not -1"),
    ({"n": True}, "n must be an integer >= 1, not True"),
    ({"seed": 1.5}, "seed must be an integer, or one per group, not 1.5"),
    ({"top_k": 2.5}, "top_k must be an integer >= 1, not 2.5"),
    ({"suppress": 5}, "suppress must be token ids, not 5"),
    ({"suppress": [1.5]}, "suppress holds 1.5, outside the vocabulary 0..9"),
    ({"suppress": range(9)}, "suppress holds the whole vocabulary"),
    ({"prompts": ["hello"]}, "prompts[0] must be a flat sequence of token ids"),
    ({"prompts": [[1, [2]]]}, "prompts[0] must be a flat sequence of token ids"),
    ({"prompts": [[1], None]}, "prompts[1] must be a flat sequence of token ids"),
    ({"guide": Repulsion(protected=[10])}, "protected holds 10, outside the vocabulary 0..9"),
    (
        {"guide": Repulsion(feature={"name": "max_pool", "ignore_ids": [10]})},
        "feature ignore_ids holds 10, outside",
    ),
    (
        {"guide": Repulsion(feature={"name": "max_pool", "space": "embedding"})},
        "needs embedding of shape [10, H], got None",
    ),
    (
        {"policy": "lowconfidence"},
        "unknown policy 'lowconfidence'; known: entropy, entropy_bound, factor,",
    ),
    (
        {"policy": {"name": "threshold", "treshold": 0.5}},
        "policy 'threshold' has no option 'treshold'; options: threshold",
    ),
    ({"policy": {"threshold": 0.5}}, "has no 'name'; known: entropy"),
    ({"policy": 7}, "policy must be a name, a mapping with a name, or a function, not 7"),
    ({"block_length": 3}, "block_length 3 does not divide length 8; allowed: 1, 2, 4, 8"),
    ({"block_length": 0}, "block_length must be an integer >= 1, not 0"),
    (
        {"block_length": 2, "steps": 6},
        "steps 6 do not divide evenly over 4 blocks; use a multiple of 4",
    ),
    ({"top_k": 0}, "top_k must be an integer >= 1, not 0"),
    ({"top_p": 0.0}, "top_p must lie in (0, 1] or be None, not 0.0"),
    ({"top_p": 1.5}, "top_p must lie in (0, 1] or be None, not 1.5"),
    ({"suppress": [10]}, "suppress holds 10, outside the vocabulary 0..9"),
    ({"suppress_confidence": [-1]}, "suppress_confidence holds -1, outside the vocabulary 0..9"),
    ({"seed": [1, 2]}, "seed must be one integer or one per group: got 2 for 1 groups"),
    ({"prompts": []}, "prompts is empty"),
    ({"prompts": [[1, 10]]}, "prompts[0] holds a token id outside the vocabulary 0..9"),
    ({"prompts": [[1], [-1]]}, "prompts[1] holds a token id outside the vocabulary 0..9"),
    ({"prompts": [[[1, 2]]]}, "prompts[0] must be a flat sequence of token ids"),
    ({"prompts": [[1.5]]}, "prompts[0] must be a flat sequence of token ids, not torch.float32"),
    ({"prompts": [1, 2]}, "prompts[0] must be a flat sequence of token ids"),
]


@pytest.mark.parametrize(
    ("change", "message"), DENOISE, ids=[message[:60] for _, message in DENOISE]
)
@pytest.mark.parametrize("door", [denoise, denoise_steps])
def test_denoise(door, change, message):
    arguments = {"prompts": [[3]], **GOOD, **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        door(Untouchable(), arguments.pop("prompts"), **arguments)


def test_a_model_that_contradicts_itself(toy):
    class Ends(Untouchable):
        end_ids = (12,)

    class Masks(Untouchable):
        mask_id = 10

    class Short(Untouchable):
        def __call__(self, tokens, start, prompt_lengths):
            return torch.zeros(len(tokens), tokens.shape[1], 10)

    for model, message in (
        (Ends(), "end_ids holds 12, outside the vocabulary 0..9"),
        (Masks(), "mask_id holds 10, outside"),
        (Short(), "model returned logits (2, 9, 10), expected (2, 8, 10)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            denoise(model, [[3]], **GOOD)


@pytest.mark.parametrize(
    ("value", "whole_row", "what"),
    [(math.nan, False, "NaN"), (math.inf, False, "+inf"), (-math.inf, True, "nothing but -inf")],
)
def test_bad_logits_are_named_by_row_and_position(value, whole_row, what):
    logits = torch.zeros(4, 8, 10)
    logits[2, 5, ... if whole_row else 3] = value

    class Broken(Untouchable):
        def __call__(self, tokens, start, prompt_lengths):
            return logits

    message = re.escape(f"logits hold {what} at sample 2, position 5")
    with pytest.raises(ValueError, match=message):
        denoise(Broken(), [[3]], n=4, length=8, steps=4)
    masked = torch.ones(4, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        diversify(logits, torch.zeros(4, 8, dtype=torch.long), masked, alpha=1.0)
    masked[2, 5] = False
    diversify(logits, torch.zeros(4, 8, dtype=torch.long), masked, alpha=1.0)


def test_numpy_integers_and_arrays_are_integers(toy):
    plain = denoise(toy, [[5, 6]], n=2, length=8, steps=4, seed=3)
    prompts = [np.array([5, 6], dtype=np.uint16)]
    numpy = denoise(
        toy, prompts, n=np.int64(2), length=np.int32(8), steps=np.int64(4), seed=np.int64(3)
    )
    assert torch.equal(plain.tokens, numpy.tokens)


def test_what_a_guide_returns_is_checked(toy):
    def wants_mask(logits, step):
        return logits.nan_to_num(neginf=0.0) + 50 * (torch.arange(60) == toy.mask_id)

    assert (denoise(toy, [[5]], guide=wants_mask, **GOOD).tokens != toy.mask_id).all()
    allowed = torch.tensor([0, 1, 2, *range(50, 59)])
    assert torch.isin(
        denoise(toy, [[5]], guide=wants_mask, suppress=range(3, 50), **GOOD).tokens, allowed
    ).all()
    with pytest.raises(
        ValueError, match=re.escape("the guide returned logits (2, 8, 59), expected (2, 8, 60)")
    ):
        denoise(toy, [[5]], guide=lambda logits, step: logits[..., 1:], **GOOD)
    with pytest.raises(ValueError, match="the guide's logits hold NaN"):
        denoise(toy, [[5]], guide=lambda logits, step: logits * math.nan, policy="random", **GOOD)


def test_a_guide_that_returns_nan_is_named(toy):
    with pytest.raises(ValueError, match="the guide's logits hold NaN at sample 0, position 0"):
        denoise(toy, [[5]], guide=lambda logits, step: logits * math.nan, **GOOD)


LOGITS, TOKENS, MASKED = (
    torch.zeros(4, 3, 10),
    torch.zeros(4, 3, dtype=torch.long),
    torch.ones(4, 3, dtype=torch.bool),
)
DIVERSIFY = [
    (
        {"objective": "od"},
        "unknown objective 'od'; known: dpp, none, odd, odd_sequential,",
    ),
    (
        {"objective": {"name": "odd", "qualty": "none"}},
        "objective 'odd' has no option 'qualty'; options: normalize, quality, q",
    ),
    (
        {"objective": {"name": "odd", "quality": "no"}},
        "objective quality must be one of grad, detached, none, not 'no'",
    ),
    (
        {"objective": {"name": "dpp", "kernel": "rbf"}},
        "objective kernel must be one of authors, paper, not 'rbf'",
    ),
    ({"objective": {"name": "odd", "enough": 0}}, "objective enough must be above 0, or None"),
    (
        {"objective": {"name": "odd", "enough": "1"}},
        "objective enough must be a finite number >= 0, not '1'",
    ),
    (
        {"objective": {"name": "odd_sequential", "enough": math.inf}},
        "objective enough must be a finite number >= 0, not inf",
    ),
    (
        {"objective": {"name": "dpp", "enough": 0.5}},
        "objective 'dpp' has no option 'enough'; options: normalize",
    ),
    ({"objective": "no_such_module.thing"}, "objective 'no_such_module.thing' cannot be imported"),
    ({"objective": "math.no_such_thing"}, "objective 'math.no_such_thing' cannot be imported"),
    (
        {"feature": "maxpool"},
        "unknown feature 'maxpool'; known: max_pool, mean_pool, ngrams, positional",
    ),
    ({"feature": {"name": "max_pool", "rank": 0}}, "feature rank must be an integer >= 1, not 0"),
    (
        {"feature": {"name": "max_pool", "rank": 1025}},
        "feature rank must be at most 1024, not 1025",
    ),
    ({"feature": {"name": "ngrams", "size": 2.5}}, "feature size must be an integer >= 1, not 2.5"),
    (
        {"feature": {"name": "ngrams", "size": 10**9}},
        "feature size must be at most 1024, not 1000000000",
    ),
    ({"feature": {"name": "ngrams", "order": 1}}, "feature order must be 2 or 3, not 1"),
    (
        {"feature": {"name": "mean_pool", "size": 8}},
        "feature 'mean_pool' has no option 'size'; options: none",
    ),
    (
        {"feature": {"name": "max_pool", "space": "semantic"}},
        "'semantic' needs embedding of shape [10, H], got None",
    ),
    (
        {"arithmetic": "published", "backend": "closed_form"},
        "backend 'closed_form' needs a feature with a trace (max_pool, mean_pool",
    ),
    ({"feature": {"name": "max_pool", "topk": 3}}, "feature 'max_pool' has no option 'topk'"),
    ({"feature": {"name": "max_pool", "top_k": 0}}, "feature top_k must be an integer >= 1, not 0"),
    (
        {"feature": {"name": "max_pool", "space": "logits"}},
        "feature space must be one of probs, embedding, semantic",
    ),
    (
        {"feature": {"name": "max_pool", "space": "embedding"}},
        "needs embedding of shape [10, H], got None",
    ),
    (
        {"feature": {"name": "max_pool", "ignore_ids": [10]}},
        "feature ignore_ids holds 10, outside the vocabulary 0..9",
    ),
    ({"alpha": -1.0}, "alpha must be a finite number >= 0, not -1.0"),
    ({"alpha": math.nan}, "alpha must be a finite number >= 0, not nan"),
    ({"alpha": math.inf}, "alpha must be a finite number >= 0, not inf"),
    ({"duplicates": "drop"}, "duplicates must be one of break, skip, not 'drop'"),
    ({"tolerance": 1.0}, "tolerance must lie in [0, 1), not 1.0"),
    ({"gradient": "sign"}, "gradient must be one of normalized, raw, not 'sign'"),
    ({"arithmetic": "authors"}, "arithmetic must be one of exact, published, not 'authors'"),
    ({"arithmetic": "published", "duplicates": "break"}, "arithmetic 'published' fixes duplicates"),
    ({"n": 3}, "n must divide the batch of 4 samples, not 3"),
    ({"n": 0}, "n must be an integer >= 1, not 0"),
    ({"n": 2.0}, "n must be an integer >= 1, not 2.0"),
    ({"history": 3}, "history must be an oddlm.Explored, not int"),
    ({"history": Explored()}, "history has no step 0; it holds 0 steps"),
    ({"alpha": "16"}, "alpha must be a finite number >= 0, not '16'"),
    ({"objective": "math.pi"}, "objective 'math.pi' is not a function but 3.14"),
    (
        {"logits": torch.zeros(4, 3, 10).to(torch.float8_e4m3fn)},
        "logits must be float64, float32, bfloat16, float16 of shape",
    ),
    ({"protected": [10]}, "protected holds 10, outside the vocabulary 0..9"),
    ({"seed": [1]}, "seed must be one integer or one per group: got 1 for 2 groups"),
    (
        {"logits": LOGITS[0]},
        "float16 of shape [B, S, V], not torch.float32 (3, 10)",
    ),
    ({"logits": LOGITS.long()}, "of shape [B, S, V], not torch.int64"),
    ({"tokens": TOKENS[:2]}, "tokens must have shape (4, 3) like logits, not (2, 3)"),
    ({"tokens": TOKENS.double()}, "tokens must be int64 or int32, not torch.float64"),
    ({"masked": MASKED[:, :2]}, "masked must have shape (4, 3) like logits, not (4, 2)"),
    ({"masked": MASKED.long()}, "masked must be bool, not torch.int64"),
    (
        {"masked": ~MASKED, "tokens": TOKENS + 10},
        "tokens holds a committed id outside the vocabulary 0..9",
    ),
    (
        {"masked": ~MASKED, "tokens": TOKENS - 1},
        "tokens holds a committed id outside the vocabulary 0..9",
    ),
]


@pytest.mark.parametrize(
    ("change", "message"), DIVERSIFY, ids=[message[:60] for _, message in DIVERSIFY]
)
def test_diversify(change, message):
    arguments = {
        "logits": LOGITS,
        "tokens": TOKENS,
        "masked": MASKED,
        "alpha": 1.0,
        "n": 2,
        **change,
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        diversify(
            arguments.pop("logits"), arguments.pop("tokens"), arguments.pop("masked"), **arguments
        )


def test_a_mask_id_outside_the_vocabulary_may_stand_where_masked():
    """Some models add MASK behind the vocabulary of their head; masked tokens are never read."""
    assert diversify(LOGITS, TOKENS + 99, MASKED, alpha=1.0).shape == LOGITS.shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"feature": {"name": "max_pool", "space": "x"}},
            "feature space must be one of probs, embedding, semantic",
        ),
        (
            {"objective": {"name": "odd", "quality": "no"}},
            "objective quality must be one of grad, detached, none, not 'no'",
        ),
        (
            {"feature": torch.sum, "backend": "closed_form"},
            "backend 'closed_form' needs a feature with a trace",
        ),
        (
            {"alpha_schedule": "linea"},
            "unknown alpha_schedule 'linea'; known: constant, cosine, linear, paper",
        ),
        ({"objective": "od"}, "unknown objective 'od'; known: dpp"),
        (
            {"feature": {"name": "positional", "size": 3}},
            "feature 'positional' has no option 'size'; options: scale",
        ),
    ],
)
def test_repulsion_refuses_when_it_is_made(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Repulsion(**settings)


def test_wrappers(toy):
    with pytest.raises(ValueError, match="max_batch must be an integer >= 1, not 0"):
        MicroBatch(toy, 0)
    with pytest.raises(ValueError, match="scale must be a finite number >= 0, not -1"):
        ClassifierFree(toy, -1)

"""LM.generate: text in, samples out, until somebody is content."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import chain

import pytest
import torch
from pydantic import ValidationError

import oddlm
from oddlm import LM, Sample, SampleParams
from oddlm.models.toy import Toy

PLAIN = {"length": 10, "steps": 5}


@pytest.fixture(scope="module")
def lm() -> LM:
    return oddlm.load("toy", vocab_size=60, dtype=torch.float64)


def test_samples_are_those_of_denoise(lm):
    groups = lm.generate(["t5 t6", "t7"], n=5, temperature=1.0, alpha=8, seed=3, **PLAIN)
    ids = [lm.tokenizer.encode(t) for t in ("t5 t6", "t7")]
    guide = oddlm.Repulsion(alpha=8)
    done = oddlm.denoise(
        lm.model, ids, n=5, temperature=1.0, guide=guide, fork=True, seed=3, **PLAIN
    )
    flat = [s for group in groups for s in group]
    assert [s.tokens for s in flat] == [tuple(r) for r in done.tokens.tolist()]
    assert [s.commit_steps for s in flat] == [tuple(r) for r in done.commit_step.tolist()]
    assert [(s.prompt, s.index) for s in flat] == [(p, i) for p in range(2) for i in range(5)]
    assert [s.seed for s in flat] == done.seeds.repeat_interleave(5).tolist()
    assert {s.nfe for s in flat} == {5}


def test_settings_stand_in_place_of_params(lm):
    """alpha=0 is plain sampling, whatever the params were."""
    draw = partial(lm.generate, "t5", 4, temperature=1.0)
    plain = draw(alpha=0, **PLAIN)
    assert (
        draw(params=SampleParams(**PLAIN), alpha=0)
        == draw(params=SampleParams(preset="careful", **PLAIN), alpha=0)
        == plain
    )
    assert (
        draw(params=SampleParams(**PLAIN), alpha=0, fork=True)
        == draw(alpha=0, fork=True, **PLAIN)
        != plain
    )
    assert draw(params=SampleParams(length=10), steps=1) == draw(length=10, steps=1)


def test_text_ends_at_the_first_end_token(lm):
    for sample in lm.generate("t5", n=30, temperature=2.0, objective="none", **PLAIN)[0]:
        end = next((i for i, t in enumerate(sample.tokens) if t in (Toy.EOS, Toy.PAD)), None)
        assert sample.finish_reason == ("length" if end is None else "stop")
        assert sample.text == " ".join(f"t{t}" for t in sample.tokens[:end])


def test_logprobs_by_brute_force(lm):
    """Replay the canvas of every step and ask the network again."""
    seen = []
    groups = lm.generate(
        ["t5 t6", "t7"], n=3, temperature=1.0, alpha=8, observe=seen.append, eos="never", **PLAIN
    )
    for row, sample in enumerate(s for group in groups for s in group):
        prompt = lm.tokenizer.encode(["t5 t6", "t7"][sample.prompt])
        for position, (token, step) in enumerate(
            zip(sample.tokens, sample.commit_steps, strict=True)
        ):
            canvas = [
                t if s < step else lm.model.mask_id
                for t, s in zip(sample.tokens, sample.commit_steps, strict=True)
            ]
            logits = lm.model(
                torch.tensor([prompt + canvas]), len(prompt), torch.tensor([len(prompt)])
            )[0, position]
            logits[[lm.model.mask_id, Toy.EOS, Toy.PAD]] = -math.inf
            assert sample.base_logprobs[position] == pytest.approx(
                float(logits.log_softmax(0)[token])
            )
            guided = seen[step].prediction.logits[row, position].log_softmax(0)[token]
            assert sample.pushed_logprobs[position] == pytest.approx(float(guided))


def test_plain_logprobs_are_equal_and_guided_ones_differ(lm):
    plain, diverse = (lm.generate("t5", n=4, objective=o, **PLAIN)[0] for o in ("none", "odd"))
    assert all(s.base_logprobs == s.pushed_logprobs for s in plain)
    assert all(s.base_logprobs != s.pushed_logprobs for s in diverse[1:])
    assert diverse[0].base_logprobs == diverse[0].pushed_logprobs


@pytest.mark.parametrize("max_batch", [1, 3, 4, 9, 100])
def test_max_batch_changes_nothing(lm, max_batch):
    prompts = ["t5 t6", "t7", "t8 t9 t10"]
    options = {"n": 4, "temperature": 1.0, **PLAIN}
    small, whole = (lm.generate(prompts, max_batch=m, **options) for m in (max_batch, 256))
    for a, b in zip(chain(*small), chain(*whole), strict=True):
        assert (a.prompt, a.index, a.tokens, a.commit_steps, a.seed) == (
            b.prompt,
            b.index,
            b.tokens,
            b.commit_steps,
            b.seed,
        )
        assert a.pushed_logprobs == pytest.approx(b.pushed_logprobs)


def test_eos_modes(lm):
    options = {"n": 30, "temperature": 2.0, "objective": "none", **PLAIN}
    free, late, never = (
        lm.generate("t5", eos=eos, **options)[0] for eos in ("free", "late", "never")
    )

    def ends(samples):
        pairs = [zip(s.tokens, s.commit_steps, strict=True) for s in samples]
        return [step for pair in pairs for token, step in pair if token in (Toy.EOS, Toy.PAD)]

    assert ends(never) == []
    assert sum(ends(late)) / len(ends(late)) > sum(ends(free)) / len(ends(free))


def test_guidance_costs_two_evaluations(lm):
    (guided,) = lm.generate("t5", n=2, cfg_scale=2.0, **PLAIN)
    assert guided[0].nfe == 10


def test_until_counts_and_continues_as_one_large_batch(lm):
    options = {"temperature": 1.0, "alpha": 16, "fork": True, **PLAIN}
    whole = lm.generate("t5", n=24, **options)[0]
    for wanted in (2, 9, 23):
        calls = []

        def accept(sample: Sample, wanted=wanted, calls=calls) -> bool:
            calls.append(sample.index)
            return sample.tokens == whole[wanted].tokens

        (samples,) = lm.generate("t5", n=8, until=accept, max_samples=24, **options)
        first = next(i for i, s in enumerate(whole) if s.tokens == whole[wanted].tokens)
        assert samples.took == first + 1
        assert calls == list(range(first + 1))
        assert samples == whole[: len(samples)]
        assert len(samples) == 8 * (first // 8 + 1)


def test_until_goes_on_only_for_unsolved_prompts(lm):
    options = {"n": 4, "temperature": 1.0, "seed": 7, **PLAIN}
    results = lm.generate(
        ["t5", "t6", "t7"],
        until=lambda s: s.prompt != 1 and s.index == 5 * (s.prompt > 0),
        max_samples=12,
        **options,
    )
    assert [r.took for r in results] == [1, None, 6]
    assert [len(r) for r in results] == [4, 12, 8]
    assert [[s.index for s in r] for r in results] == [list(range(len(r))) for r in results]
    alone = lm.generate(["t5", "t6", "t7"], until=lambda s: False, max_samples=12, **options)
    assert [s.tokens for s in results[2]] == [s.tokens for s in alone[2][:8]]


def test_until_never_draws_more_than_max_samples(lm):
    whole = lm.generate("t5", n=13, **PLAIN)[0]
    (samples,) = lm.generate("t5", n=5, until=lambda s: s.index == 99, max_samples=13, **PLAIN)
    assert [s.tokens for s in samples] == [s.tokens for s in whole]
    assert samples.took is None


def test_an_early_error_carries_no_samples(lm):
    with pytest.raises(ValueError, match="unknown policy") as caught:
        lm.generate("t5", policy="foo", **PLAIN)
    assert not hasattr(caught.value, "samples")


def test_a_verifier_that_raises_loses_nothing(lm):
    def broken(sample):
        if sample.index == 6:
            raise ZeroDivisionError("in the verifier")
        return False

    with pytest.raises(ZeroDivisionError, match="in the verifier") as caught:
        lm.generate("t5", n=4, until=broken, max_samples=16, **PLAIN)
    assert [s.index for s in caught.value.samples[0]] == list(range(8))
    assert "in this exception's .samples" in caught.value.__notes__[0]


def test_sparse_memory_serves_large_vocabularies(lm, monkeypatch):
    monkeypatch.setattr("oddlm.drawing.SMALL_VOCABULARY", 10)
    (samples,) = lm.generate("t5", n=4, until=lambda s: s.index == 9, max_samples=16, **PLAIN)
    assert samples.took == 10
    assert len({s.tokens for s in samples}) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": ""}, "prompts[0] is empty"),
        ({"prompts": ["t5", "  "]}, "prompts[1] is empty"),
        ({"prompts": []}, "prompts is empty: give at least one prompt"),
        (
            {"prompts": "t5 " * 1020},
            "prompts[0] has 1020 tokens: with length 10 that exceeds the model's context of 1024",
        ),
        ({"until": lambda s: True, "max_samples": 3}, "max_samples must be at least n: 3 < 4"),
        ({"max_batch": 0}, "max_batch must be an integer >= 1, not 0"),
        (
            {"until": lambda s: True, "objective": "dpp"},
            "objective 'dpp' couples all samples of a batch",
        ),
        ({"until": lambda s: True, "policy": "threshold"}, "policy 'threshold' is parallel"),
        ({"objective": "od"}, "unknown objective 'od'; known: dpp"),
        (
            {"until": lambda s: True, "policy": "threshold", "objective": "none"},
            "policy 'threshold' is parallel",
        ),
        ({"prompts": [5]}, "prompts[0] must be text or token ids, not int"),
        ({"max_samples": None}, "max_samples must be an integer >= 1, not None"),
        ({"n": 0}, "n must be an integer >= 1, not 0"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "-".join(x),
)
def test_bad_input(lm, arguments, message):
    arguments = {"prompts": "t5", "n": 4, **PLAIN, **arguments}
    with pytest.raises(ValueError, match=re.escape(message)):
        lm.generate(arguments.pop("prompts"), **arguments)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"temperatur": 1}, "temperatur"),
        ({"alpha": -1}, "alpha"),
        ({"eos": "maybe"}, "eos"),
        ({"length": 0}, "length"),
        ({"alpha": math.nan}, "alpha"),
        ({"length": 10, "block_length": 3}, "block_length 3 does not divide length 10"),
        ({"preset": "paper", "duplicates": "skip"}, "arithmetic 'published' fixes"),
    ],
)
def test_params_refuse(lm, change, where):
    with pytest.raises(ValidationError, match=where):
        SampleParams(**change)
    for params in (None, SampleParams()):
        with pytest.raises(ValueError, match=where) as told:
            lm.generate("t5", params=params, **change)
        assert type(told.value) is ValueError
        assert "\n" not in str(told.value)


def test_settings_are_refused_in_the_words_of_the_command_line(lm):
    known = ", ".join(SampleParams.model_fields)
    for change, words in (
        ({"temprature": 1}, f"unknown field 'temprature'; known: {known}"),
        ({"alpha": -1}, "alpha: Input should be greater than or equal to 0, not -1"),
        (
            {"preset": "care"},
            "preset: Input should be 'auto', 'careful' or 'paper', not 'care'",
        ),
    ):
        for params in (None, SampleParams()):
            with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
                lm.generate("t5", params=params, **change)


def test_params_are_frozen_and_survive_json(lm):
    params = SampleParams(objective={"name": "odd", "quality": "none"}, steps=5, length=10)
    with pytest.raises(ValidationError, match="frozen"):
        params.alpha = 3
    assert SampleParams.model_validate_json(params.model_dump_json()) == params
    assert lm.generate("t5", n=3, params=params) == lm.generate("t5", n=3, **params.model_dump())
    assert lm.generate("t5", n=3, params=params, seed=1) != lm.generate("t5", n=3, params=params)


def test_every_setting_of_repulsion_is_reachable():
    fields = set(oddlm.Repulsion.__dataclass_fields__) - {
        "protected",
        "embedding",
        "backend",
        "remember",
    }
    assert fields <= set(SampleParams.model_fields)


def test_a_model_without_tokenizer_is_refused():
    with pytest.raises(ValueError, match=r"has no tokenizer.*oddlm\.LM"):
        oddlm.load("tests.test_lm.Bare")


class Bare:
    mask_id, vocab_size, end_ids = 9, 10, ()

    def __call__(self, tokens, start, prompt_lengths):
        raise AssertionError


def longest(samples, n):
    return sorted(range(len(samples)), key=lambda i: -len(samples[i].text))[:n]


def backwards(prediction, step):
    return torch.arange(step.tokens.shape[1], dtype=torch.float64).expand(step.tokens.shape)


def test_functions_of_ones_own_as_settings(lm):
    settings = {
        "pool": 6,
        "selector": longest,
        "policy": backwards,
        "alpha": 0,
        "temperature": 1.0,
        "length": 6,
    }
    (samples,) = lm.generate("t5", n=3, **settings)
    (pool,) = lm.generate("t5", n=6, **{**settings, "pool": None})
    assert list(samples) == sorted(pool, key=lambda sample: -len(sample.text))[:3]
    assert samples[0].commit_steps == (5, 4, 3, 2, 1, 0)
    assert SampleParams(policy=backwards) == SampleParams(policy=f"{__name__}.backwards")
    assert (
        SampleParams.model_validate_json(SampleParams(policy=backwards).model_dump_json()).policy
        == f"{__name__}.backwards"
    )


def test_functions_of_a_script():
    script = """
import oddlm
def longest(samples, n):
    return range(n)
samples = oddlm.load("toy").generate("t5", n=2, pool=3, selector=longest, length=4)
print([sample.index for sample in samples[0]])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr


@pytest.mark.parametrize("field", ["selector", "policy", "objective", "feature", "alpha_schedule"])
def test_functions_without_a_path_are_refused_in_words(lm, field):
    message = f"^{field}: .* dotted path"

    def local(samples, n):
        return range(n)

    for function in (lambda samples, n: range(n), local, partial(longest, n=1), lm.generate):
        with pytest.raises(ValueError, match=message):
            lm.generate("t5", n=2, pool=3, length=4, **{field: function})


def test_a_sample_and_an_lm_fit_a_line(lm):
    sample = lm.generate("t5", n=1, length=2, eos="never")[0][0]
    assert repr(sample) == f"Sample(0, {sample.text!r}, length)"
    long = replace(sample, index=255, text="\n" * 1000, finish_reason="stop")
    assert repr(long).endswith("..., stop)")
    assert len(repr(long)) <= 100
    assert repr(lm).startswith("LM('toy (60, ")
    assert repr(lm).endswith(", cpu, fp64)")
    assert repr(oddlm.load("mini")) == "LM('mini', cpu, fp32)"
    assert repr(LM(Bare(), lm.tokenizer)).startswith("LM('Bare object 0x")


def test_one_prompt_has_its_samples_without_a_list_around_them():
    lm = oddlm.load("toy")
    (many,) = lm.generate(["t5 t6"], 3, length=6, alpha=8, seed=4)
    for prompt in ("t5 t6", lm.tokenizer.encode("t5 t6")):
        one = lm.sample(prompt, 3, length=6, alpha=8, seed=4)
        assert [sample.text for sample in one] == [sample.text for sample in many]
        assert isinstance(one, oddlm.Samples)

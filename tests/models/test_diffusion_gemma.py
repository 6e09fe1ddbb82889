"""DiffusionGemma: transformers' network, sampled as by transformers, and everything around it."""

import json
import pickle
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from transformers import DiffusionGemmaForBlockDiffusion, PreTrainedTokenizerFast
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    EntropyBoundSamplerConfig,
)

import oddlm
from oddlm import Repulsion, advance, begin, denoise, open_session
from oddlm.cli import main
from oddlm.models import load_model, model_digest
from oddlm.models.wrappers import MicroBatch
from oddlm.store import Store

from . import gemma_layout as layout
from .gemma_layout import CANVAS

STEPS = layout.GENERATION["max_denoising_steps"]
PROMPTS = [[5, 6, 7, 8, 9, 20, 21], [30, 31, 32, 40, 41, 42, 50, 51, 52, 60, 61, 62, 70, 71, 72]]
POLICY = {"name": "entropy_bound", "bound": 4.0}
TWO = {"length": 2 * CANVAS, "steps": 2 * STEPS, "temperature": 0.8, "policy": POLICY}
TEXTS = ["the end", "in the inn, a longer question than the other"]
QUIET = {"progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(layout.write(tmp_path_factory.mktemp("gemma")))


@pytest.fixture(scope="module")
def lm(folder):
    # In float64, rounding in batches of other sizes changes no token of this chaotic network.
    return oddlm.load(folder, device="cpu", dtype="fp64")


@pytest.fixture(scope="module")
def model(lm):
    return lm.model


def loaded(folder):
    return DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager"
    )


def tokens(groups):
    return [[sample.tokens for sample in own] for own in groups]


SETTINGS = {
    "as published": {"bound": 0.1, "certain": 0.005},
    "finished early": {"bound": 4.0, "certain": 1.0},
    "stable for longer": {"bound": 8.0, "certain": 2.0, "stable": 2},
    "certain at once": {"bound": 8.0, "certain": 3.0, "stable": 0},
    "other temperatures": {"bound": 2.0, "certain": 1.0, "t_min": 0.1, "t_max": 0.5},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_plain_sampling_is_that_of_transformers(tmp_path, setting):
    """Token for token with the same noise, over canvases, in a batch of unequal prompts."""
    rule = {"stable": 1, "t_min": 0.4, "t_max": 0.8} | setting
    told = {
        "t_min": rule["t_min"],
        "t_max": rule["t_max"],
        "stability_threshold": rule["stable"],
        "confidence_threshold": rule["certain"],
    }
    layout.write(tmp_path, **told)
    model = load_model(str(tmp_path), device="cpu", dtype="fp64")
    ours = denoise(
        model,
        PROMPTS,
        n=4,
        seed=[3, 4],
        length=3 * CANVAS,
        steps=3 * STEPS,
        temperature=rule["t_max"],
        policy={"name": "entropy_bound", "bound": rule["bound"]},
    )
    network = loaded(tmp_path)
    network.generation_config.eos_token_id = network.generation_config.pad_token_id = None
    for g, prompt in enumerate(PROMPTS):
        sampler = EntropyBoundSamplerConfig(entropy_bound=rule["bound"])
        theirs, passes = layout.generated(
            network,
            prompt,
            n=4,
            seed=3 + g,
            canvases=3,
            steps=STEPS,
            sampler_config=sampler,
        )
        rows = slice(4 * g, 4 * g + 4)
        assert torch.equal(ours.tokens[rows], theirs)
        assert torch.equal(ours.evaluations[rows], passes)
    early = (ours.commit_step % STEPS + 1 < STEPS).double().mean()
    assert early == 0 if setting["certain"] < 0.01 else early > 0.1


def test_an_end_stops_a_sample_where_transformers_stops_it(folder, model):
    network = loaded(folder)
    ends = torch.tensor(model.end_ids)
    network.generation_config.eos_token_id = model.end_ids = [*range(40, 80)]
    try:
        ours = denoise(model, PROMPTS[:1], n=6, stop_at_end=True, **TWO)
    finally:
        model.end_ids = tuple(ends.tolist())
    theirs, _ = layout.generated(network, PROMPTS[0], n=6, seed=0, canvases=2, steps=STEPS)
    found = 0
    for own, other in zip(ours.tokens.tolist(), theirs.tolist(), strict=True):
        end = next((i for i, token in enumerate(own) if 40 <= token < 80), len(own) - 1)
        assert own[: end + 1] == other[: end + 1]
        found += end < len(own) - 1
    assert found > 2
    assert ours.evaluations.min() < ours.evaluations.max()


def test_load_and_sample(lm, folder):
    info = lm.info
    assert (info.process, info.block_length, info.mask_id) == ("uniform", CANVAS, None)
    assert set(info.end_ids) == {layout.EOS, layout.END, layout.PAD}
    assert info.drafting.cooling == 0.5
    assert info.context == 512
    assert lm.model.published == {
        "length": CANVAS,
        "steps": STEPS,
        "temperature": 0.8,
        "policy": POLICY,
    }
    (own,) = lm.generate(TEXTS[0], 4, **lm.model.published, **QUIET)
    assert len({sample.tokens for sample in own}) == 4
    assert all(len(sample.tokens) == CANVAS for sample in own)
    assert all(set(sample.commit_steps) == {sample.commit_steps[0]} for sample in own)
    assert all(max(sample.base_logprobs) < 0 for sample in own)
    assert all(sample.nfe == sample.commit_steps[0] + 1 for sample in own)
    assert model_digest(folder) == lm.model.weights.digest


def test_prompts_go_through_the_chat_template(lm):
    ids = lm.tokenizer.chat([{"role": "user", "content": TEXTS[0]}])
    assert ids[:2] == [layout.BOS, layout.TURN]
    by_text, by_ids = (lm.generate([p], 2, **TWO, **QUIET) for p in (TEXTS[0], ids))
    assert tokens(by_text) == tokens(by_ids)


@pytest.mark.parametrize("more", [{"alpha": 0}, {"objective": "odd"}], ids=["plain", "odd"])
def test_each_sample_is_what_it_is_alone(lm, more):
    setting = {**TWO, **more, **QUIET}
    both = lm.generate(TEXTS, 4, seeds=[3, 4], **setting)
    for seed, text, own in zip((3, 4), TEXTS, both, strict=True):
        assert tokens(lm.generate(text, 4, seed=seed, **setting)) == tokens([own])
        (alone,) = lm.generate(text, 1, seed=seed, **setting)
        assert alone[0].text == own[0].text
    small = lm.generate(TEXTS, 4, seeds=[3, 4], max_batch=3, **setting)
    assert tokens(small) == tokens(both)


def test_odd_makes_samples_differ_and_its_push_is_over_before_a_canvas_is_written(lm):
    setting = {**TWO, "temperature": 0, "policy": "low_confidence", **QUIET}
    events = []
    plain = lm.sample(TEXTS[0], 8, alpha=0, **setting)
    # The default's alpha and early end, at all samples rather than at those too alike.
    odd = lm.sample(TEXTS[0], 8, objective="odd", fork=False, observe=events.append, **setting)
    moved = {event.step.index for event in events if (event.force > 1e-6).any()}
    assert {i % STEPS for i in moved} == set(range(STEPS // 4))
    assert all(i % STEPS >= STEPS // 4 for sample in odd for i in sample.commit_steps if i >= 0)
    assert odd[0].text == plain[0].text, "the first sample is never moved"
    assert [s.text for s in odd[1:]] != [s.text for s in plain[1:]]
    for sample in odd:  # so what is written is the network's own choice
        assert sample.base_logprobs == sample.pushed_logprobs


def test_until_goes_on_where_the_last_batch_ended(lm):
    seen = []
    setting = {**TWO, "objective": "odd", "stop_at_end": False, **QUIET}
    found = lm.sample(
        TEXTS[0], 3, until=lambda s: seen.append(s) or s.index == 7, max_samples=12, **setting
    )
    assert found.took == 8
    assert tokens([found]) == tokens([lm.sample(TEXTS[0], 9, **setting)])


def test_a_history_continues(model):
    options = TWO | {"guide": Repulsion("odd", remember="exact"), "seed": 5}
    first = denoise(model, PROMPTS, n=3, **options)
    second = denoise(model, PROMPTS, n=3, history=first.history, **options)
    whole = denoise(model, PROMPTS, n=6, **options)
    for g, group in enumerate(whole.groups()):
        rows = slice(3 * g, 3 * g + 3)
        assert torch.equal(torch.cat([first.tokens[rows], second.tokens[rows]]), group)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"guide": Repulsion("odd"), "top_p": 0.95},
        {"templates": [[9, None] * CANVAS, [8] * CANVAS + [None] * CANVAS]},
    ],
    ids=["plain", "odd", "template"],
)
def test_a_pickled_run_goes_on_with_another_session(model, options):
    """The self-conditioning of the next step is in the state."""
    whole = denoise(model, PROMPTS, n=3, **TWO | options)
    state = begin(model, PROMPTS, n=3, **TWO | options)
    while state.query is not None:
        state = pickle.loads(pickle.dumps(state))
        query = state.query
        state, _ = advance(state, open_session(model, query)(query), query=query)
    assert torch.equal(state.result.tokens, whole.tokens)


def test_the_network_gets_its_own_prediction_back(model):
    def deaf(query):
        return session(
            query.__class__(**{f: getattr(query, f) for f in query.__slots__} | {"echo": None})
        )

    state, without = (begin(model, PROMPTS[:1], n=4, **TWO) for _ in range(2))
    session = open_session(model, without.query)
    while without.query is not None:
        without, _ = advance(without, deaf(without.query))
    assert not torch.equal(without.result.tokens, denoise(model, PROMPTS[:1], n=4, **TWO).tokens)
    assert state.query.echo is None
    state, event = advance(state, open_session(model, state.query)(state.query))
    drawn = event.pushed_logits[:, :CANVAS] / 0.8
    torch.testing.assert_close(state.query.echo, drawn.to(model.embedding.dtype))


def test_a_template_is_read_and_kept(lm):
    """Also one with a canvas that is given as a whole, while another sample has to write there."""
    whole = lm.tokenizer.decode([70] * CANVAS)
    assert lm.tokenizer.encode(whole) == [70] * CANVAS
    forms = [[3, lm.tokenizer.decode([71]), 2 * CANVAS - 4], [whole, CANVAS]]
    setting = {"steps": 2 * STEPS, "temperature": 0.8, "policy": POLICY, **QUIET}
    for prompts in (TEXTS, TEXTS[:1] * 2):
        both = lm.generate(prompts, 3, templates=forms, seeds=[3, 4], **setting)
        assert all(sample.tokens[3] == 71 for sample in both[0])
        assert all(sample.tokens[:CANVAS] == (70,) * CANVAS for sample in both[1])
        assert len({sample.tokens[CANVAS:] for sample in both[1]}) == 3
        for i, form in enumerate(forms):
            alone = lm.generate(prompts[i], 3, templates=[form], seed=3 + i, **setting)
            assert tokens(alone) == tokens([both[i]])


def test_the_samples_of_a_prompt_share_its_keys_and_values(model):
    prompts = [[7 + i % 50 for i in range(200)], [9 + i % 40 for i in range(200)]]
    sizes = {}
    for n in (1, 16):
        state = begin(model, prompts, n=n, **TWO)
        session = open_session(model, state.query)
        state, _ = advance(state, session(state.query))
        sizes[n] = session.nbytes
        assert session.encoded == 400
        while state.query is not None:
            state, _ = advance(state, session(state.query))
        assert session.encoded == 400 + 2 * n * CANVAS, "each canvas once, and not the last"
    assert sizes[1] == sizes[16], "before the first canvas is finished, samples hold nothing"


def test_a_session_belongs_to_one_run(model):
    state, other = (begin(model, PROMPTS, n=1, **TWO) for _ in range(2))
    session = open_session(model, state.query)
    logits = session(state.query)
    with pytest.raises(ValueError, match="another run"):
        session(other.query)
    with pytest.raises(ValueError, match="expects query 1"):
        session(state.query)
    after, _ = advance(state, logits)
    assert session(after.query).shape == logits.shape
    with pytest.raises(ValueError, match="at least one token"):
        denoise(model, [[]], n=1, **TWO)


def test_a_call_answers_for_whole_canvases(model):
    query = begin(model, PROMPTS, n=2, **TWO).query
    logits = model(query.tokens, query.start, query.prompt_lengths)
    assert logits.shape == (4, 2 * CANVAS, layout.layout.VOCABULARY)
    torch.testing.assert_close(logits[:, :CANVAS], open_session(model, query)(query))


def test_a_network_that_somebody_loaded_is_wrapped(folder, lm):
    network = loaded(folder)
    network.train()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json",
        eos_token="<eos>",
        pad_token="<pad>",
        bos_token="<bos>",
        chat_template=layout.TEMPLATE,
    )
    wrapped = oddlm.wrap(network, tokenizer)
    assert set(wrapped.info.end_ids) == set(lm.info.end_ids)
    assert wrapped.info.drafting == lm.info.drafting
    assert wrapped.model.published == lm.model.published
    both = [one.generate(TEXTS, 2, **TWO, **QUIET) for one in (wrapped, lm)]
    assert tokens(both[0]) == tokens(both[1])
    assert network.training
    with pytest.raises(ValueError, match="no mask token"):
        oddlm.wrap(network, tokenizer, mask_id=3)


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


def test_the_command_line(command, folder):
    Path("own.jsonl").write_text(
        "".join(json.dumps({"prompt": text, "target": "x"}) + "\n" for text in TEXTS)
    )
    shape = ["--model", folder, "--device", "cpu", "--n", "3", "--policy", json.dumps(POLICY)]
    shape += ["--length", str(2 * CANVAS), "--steps", str(2 * STEPS), "--temperature", "0.8"]
    code, out, _ = command("eval", "own.jsonl", "--scorer", "exact", "--alpha", "0,8", *shape)
    assert code == 0
    assert "baseline" in out
    runs = [Store(Path("runs")).read(name) for name in Store(Path("runs")).ids()]
    assert len(runs) == 2
    for run in runs:
        assert run.spec.model_digest == model_digest(folder)
        assert [len(record.samples) for record in run.records] == [3, 3]
    code, out, err = command("sample", TEXTS[0], *shape)
    assert (code, err) == (0, "")
    with patch.object(DiffusionGemmaForBlockDiffusion, "from_pretrained") as read:
        code, _, err = command("sample", TEXTS[0], *shape, "--length", "20", "--steps", "20")
    assert code != 0
    assert f"multiple of {CANVAS}, not 20" in err
    assert not read.called, "the weights are large"


def test_lengths_that_are_no_canvases(lm):
    for length in (20, 4, CANVAS + 1):
        with pytest.raises(ValueError, match=f"multiple of {CANVAS}, not {length}"):
            lm.sample("the", 1, length=length, steps=length, **QUIET)
    with pytest.raises(ValueError, match="block_length 8 or left out"):
        lm.sample("the", 1, length=16, block_length=4, **QUIET)
    with pytest.raises(ValueError, match="context of 512"):
        lm.sample("the", 1, length=512, **QUIET)


@pytest.mark.parametrize("setting", [{"cfg_scale": 1.0}, {"prompt_noise": 0.5}], ids=str)
def test_settings_that_need_a_mask_or_our_own_network(lm, setting):
    with pytest.raises(ValueError, match=r"MASK|prompt_noise"):
        lm.sample("the", 1, **TWO, **setting, **QUIET)


def test_micro_batches_keep_their_sessions(model):
    setting = TWO | {"n": 5, "guide": Repulsion("odd"), "seed": 7}
    whole, parts = (denoise(m, PROMPTS, **setting) for m in (model, MicroBatch(model, 3)))
    assert torch.equal(whole.tokens, parts.tokens)

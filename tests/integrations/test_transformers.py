"""The processor in transformers' own `generate`, on a tiny random DiffusionGemma."""

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList

from oddlm import Diversifier, Repulsion
from oddlm.core import noise
from oddlm.integrations.ends import find_end_ids
from oddlm.integrations.transformers import DiverseLogitsProcessor, _read_aside

from . import tiny

N, STEPS = 4, 8
ENDS = (tiny.PAD, tiny.EOS, tiny.TURN)
COLD = {"t_min": 1e-4, "t_max": 2e-4}


@pytest.fixture(scope="module")
def model():
    return tiny.network()


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


class Watched(DiverseLogitsProcessor):
    """Keeps what it was given and what it returned."""

    def __init__(self, n=N, steps=STEPS, **settings):
        super().__init__(n, steps, **{"end_ids": ENDS, "objective": "odd", **settings})
        self.seen = []

    def __call__(self, input_ids, scores, cur_step):
        pushed = super().__call__(input_ids, scores, cur_step)
        self.seen.append((input_ids.clone(), scores.clone(), int(cur_step), pushed))
        return pushed


def generate(model, prompts, processor=None, drawn=0, **settings) -> Tensor:
    """The answers [B, L] to left-padded prompts."""
    inputs = tiny.tokenizer()(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(drawn)
    settings = {"max_new_tokens": tiny.CANVAS, "max_denoising_steps": STEPS, **settings}
    given = LogitsProcessorList([] if processor is None else [processor])
    out = model.generate(
        inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        logits_processor=given,
        **settings,
    )
    return out.sequences[:, inputs["input_ids"].shape[1] :]


TWO = ["w4 w5 w6"] * N + ["w9"] * N


def test_two_padded_prompts_are_pushed_as_by_hand(model):
    processor = Watched(alpha=8, alpha_end=0.5, fork=False, seed=3)
    generate(model, TWO, processor)
    guide = Repulsion("odd", alpha=8, alpha_end=0.5, protected=ENDS)
    by_hand = Diversifier(guide, n=N, steps=STEPS, seed=3)
    assert [left for _, _, left, _ in processor.seen] == list(range(STEPS, 0, -1))
    for step, (_, scores, _, pushed) in enumerate(processor.seen):
        assert torch.equal(pushed, by_hand(scores, step=step))
        assert torch.equal(pushed, scores) == (step >= STEPS / 2)
        assert torch.equal(pushed[..., ENDS], scores[..., ENDS])


@pytest.mark.parametrize("prompts", [["w4 w5"] * N, TWO])
def test_greedy_samples_of_one_start_become_different(model, prompts):
    start = {"decoder_input_ids": torch.full((len(prompts), tiny.CANVAS), 7), **COLD}
    processor = DiverseLogitsProcessor(N, STEPS, end_ids=model, alpha=16)
    plain, diverse = generate(model, prompts, **start), generate(model, prompts, processor, **start)
    for group in plain.split(N):
        assert len(group.unique(dim=0)) == 1
    for group in diverse.split(N):
        assert len(group.unique(dim=0)) == N


def test_drawn_samples_differ_more(model):
    settings = {
        "decoder_input_ids": torch.full((2 * N, tiny.CANVAS), 7),
        "t_max": 0.2,
        "t_min": 0.1,
    }

    def distinct(processor):
        found = [generate(model, TWO, processor, drawn=seed, **settings) for seed in range(4)]
        return sum(len(group.unique(dim=0)) for answers in found for group in answers.split(N))

    assert distinct(DiverseLogitsProcessor(N, STEPS, end_ids=ENDS)) > distinct(None) + 4


def test_one_sample_is_left_as_it_is(model):
    processor = Watched(n=1, alpha=64, alpha_end=1.0, fork=True)
    prompts, two = ["w4 w5 w6", "w9"], {"max_new_tokens": 2 * tiny.CANVAS}
    assert torch.equal(generate(model, prompts, processor, **two), generate(model, prompts, **two))
    assert all(torch.equal(scores, pushed) for _, scores, _, pushed in processor.seen)


@pytest.mark.parametrize("off", [{"alpha": 0}, {"objective": "none"}])
def test_without_a_push_nothing_forks(model, off):
    assert torch.equal(generate(model, TWO, Watched(**off)), generate(model, TWO))


def test_every_canvas_is_a_run_of_its_own(model):
    """The schedule starts again with another seed; the fork does not."""
    processor = Watched(alpha=8, fork=True, seed=3)
    generate(model, TWO, processor, max_new_tokens=3 * tiny.CANVAS, eos_token_id=59)
    assert len(processor.seen) == 3 * STEPS
    given = torch.tensor([3])
    for canvas in range(3):
        seed = 3 if canvas == 0 else int(noise.key(given, canvas, 0, noise.Purpose.SEED))
        guide = Repulsion("odd", alpha=8, alpha_end=0.25, protected=ENDS)
        by_hand = Diversifier(guide, n=N, steps=STEPS, seed=seed, fork=canvas == 0)
        for step, (ids, scores, _, pushed) in enumerate(processor.seen[canvas * STEPS :][:STEPS]):
            open_ = torch.ones(2 * N, tiny.CANVAS, dtype=torch.bool)
            for end in ENDS:
                open_ &= ~(ids[:, 3:] == end).any(dim=1, keepdim=True)
            assert torch.equal(pushed, by_hand(scores, None, open_, step=step))


def scores_of(seed: int, batch: int = N) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(batch, tiny.CANVAS, tiny.VOCABULARY, generator=g)


def call(processor, prompts, seeds, scores=scores_of) -> list[Tensor]:
    """One canvas of a call that stops after as many steps as there are seeds."""
    steps = processor._canvases.steps
    lefts = torch.arange(steps, steps - len(seeds), -1, dtype=torch.int32)
    return [processor(prompts, scores(seed), left) for seed, left in zip(seeds, lefts, strict=True)]


def test_samples_that_have_ended_are_left_out():
    prompts, written = torch.full((N, 3), 9), torch.full((N, tiny.CANVAS), 8)
    written[1, 2:] = torch.tensor([tiny.TURN, tiny.PAD, tiny.PAD, tiny.PAD])
    processor = Watched(fork=False)
    call(processor, prompts, [0])
    (pushed,) = call(processor, torch.cat([prompts, written], dim=1), [1])
    others = [0, 2, 3]
    assert torch.equal(pushed[1], scores_of(1)[1])
    assert not torch.equal(pushed[3], scores_of(1)[3])
    alone = Watched(n=3, fork=False)
    call(alone, prompts[others], [0], lambda seed: scores_of(seed)[others])
    longer = torch.cat([prompts, written], dim=1)[others]
    (expected,) = call(alone, longer, [1], lambda seed: scores_of(seed)[others])
    torch.testing.assert_close(pushed[others], expected)


def test_a_call_that_stopped_early_is_followed_by_a_new_one():
    """Even with the same prompts in the same tensor, and a canvas that ended within the push."""
    prompts, processor = torch.full((N, 3), 9), Watched()
    first = call(processor, prompts, [0])
    second = call(processor, prompts, [0, 1, 2])
    third = call(processor, torch.full((N, 3 + tiny.CANVAS), 5), [0])
    for pushed in (second, third):
        assert torch.equal(pushed[0], first[0])


@pytest.mark.parametrize("remember", ["exact", "sparse"])
@pytest.mark.parametrize("fork", [False, True])
def test_a_further_call_with_the_same_prompts_continues(remember, fork):
    """Together they are one batch; from where an earlier call stopped, the later is on its own."""
    settings = {"remember": remember, "fork": fork, "alpha": 8, "alpha_end": 1.0}
    prompts, two = torch.full((N, 3), 9), Watched(**settings)
    one = Watched(n=2 * N, **settings)
    whole = call(one, prompts.repeat(2, 1), [0, 1, 2], lambda s: scores_of(s, 2 * N))
    first = call(two, prompts, [0, 1, 2], lambda s: scores_of(s, 2 * N)[:N])
    second = call(two, prompts.clone(), [0, 1, 2, 3], lambda s: scores_of(s, 2 * N)[N:])
    close = {"rtol": 1e-5, "atol": 1e-5} if remember == "exact" else {"rtol": 1e-2, "atol": 0.1}
    for i in range(3):
        torch.testing.assert_close(torch.cat([first[i], second[i]]), whole[i], **close)
    assert not torch.equal(second[3], scores_of(3, 2 * N)[N:])
    third = call(two, prompts, [0, 1, 2, 3])
    assert two._canvases._past == {} or len(two._canvases._past[0].steps[0][0]) == 2 * N
    assert not torch.equal(third[0], second[0])


def test_other_prompts_start_anew():
    processor = Watched(remember="exact")
    prompts = torch.full((N, 3), 9)
    first = call(processor, prompts, [0, 1])
    other = call(processor, prompts + 1, [0, 1])
    forgetful = Watched()
    for pushed, again in zip(first, other, strict=True):
        assert torch.equal(pushed, again)
    call(forgetful, prompts, [0])
    assert torch.equal(call(forgetful, prompts, [0])[0], first[0])


def test_a_batch_that_holds_no_groups_is_refused(model):
    with pytest.raises(ValueError, match=f"batch of 7 .* n = {N}"):
        generate(model, TWO[:7], Watched())


def test_prompts_repeated_as_a_whole_are_refused(model):
    with pytest.raises(ValueError, match=rf"rows 0 and 1 .*repeat_interleave\({N}\)"):
        generate(model, ["w4 w5 w6", "w9"] * N, Watched())
    generate(model, ["w4 w5 w6"] * 2 * N, Watched())  # the same prompt twice


def test_different_prompts_in_one_group_are_refused(model):
    half = N // 2
    with pytest.raises(ValueError, match=f"rows {half - 1} and {half} "):
        generate(model, ["w4 w5 w6"] * half + ["w9"] * (2 * N - half), Watched())


@pytest.mark.parametrize("steps", [STEPS - 2, STEPS + 2])
def test_other_steps_than_those_of_generate_are_refused(model, steps):
    with pytest.raises(ValueError, match=f"{STEPS} steps left.* expected {steps}"):
        generate(model, TWO, Watched(steps=steps))


def test_scores_of_a_single_position_are_refused():
    with pytest.raises(ValueError, match=r"\(4, 60\)"):
        Watched()(torch.full((N, 3), 9), scores_of(0)[:, 0], STEPS)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"n": 0}, "n must"),
        ({"steps": 0}, "steps must"),
        ({"fork": "yes"}, "fork .* 'yes'"),
        ({"alpha": -1}, "alpha"),
        ({"remember": "all"}, "remember .* 'all'"),
        ({"seed": 0.5}, "seed .* 0.5"),
        ({"end_ids": torch.nn.Linear(1, 1)}, "Linear"),
    ],
)
def test_bad_settings_are_refused_when_it_is_made(settings, told):
    with pytest.raises(ValueError, match=told):
        Watched(**settings)


def test_end_ids_come_from_what_knows_them(model, tokenizer):
    for source in (tokenizer, model, model.config, model.generation_config, list(ENDS)):
        assert find_end_ids(source) == ENDS
    assert find_end_ids(()) == ()


def test_the_traps_that_the_guide_warns_of(model):
    """If one of these fails, transformers has changed: correct docs/guides/transformers.md."""
    given = LogitsProcessorList()
    ids = torch.full((2, 3), 9)
    for calls in (1, 2):
        model.generate(ids, max_denoising_steps=2, logits_processor=given)
        assert len(given) == calls
    plain = generate(model, TWO)
    for swallowed in ({"temperature": 9.0}, {"seed": 5}, {"num_return_sequences": 3}, {"top_k": 1}):
        assert torch.equal(generate(model, TWO, **swallowed), plain)
    with pytest.raises(ValueError, match="t_max"):
        generate(model, TWO, t_min=0.5, t_max=0.5)
    assert not torch.equal(generate(model, TWO, drawn=1), plain)


@pytest.mark.gpu
def test_the_step_is_read_without_waiting_for_the_network():
    left = torch.tensor(5, device="cuda", dtype=torch.int32)
    _read_aside(left)
    torch.cuda._sleep(1 << 30)
    assert _read_aside(left) == 5
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_gpu_generates_different_samples():
    model = tiny.network().to("cuda")
    ids = torch.full((N, 3), 9, device="cuda")
    start = torch.full((N, tiny.CANVAS), 7, device="cuda")
    given = LogitsProcessorList([DiverseLogitsProcessor(N, STEPS, end_ids=model)])
    settings = {"max_denoising_steps": STEPS, "max_new_tokens": tiny.CANVAS, **COLD}
    out = model.generate(ids, logits_processor=given, decoder_input_ids=start, **settings)
    assert len(out.sequences.unique(dim=0)) == N

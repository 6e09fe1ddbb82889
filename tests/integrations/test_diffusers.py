"""The schedulers in the real pipelines of diffusers, with tiny networks and the mini model."""

import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from diffusers import (
    BlockRefinementScheduler,
    DiffusionGemmaPipeline,
    EntropyBoundScheduler,
    LLaDA2Pipeline,
)

import oddlm
from oddlm import Diversifier, Repulsion
from oddlm.core import noise
from oddlm.integrations.diffusers import (
    DiverseBlockRefinementScheduler,
    DiverseEntropyBoundScheduler,
    find_end_ids,
)

from . import tiny

N, STEPS = 4, 8
ENDS = (tiny.PAD, tiny.EOS, tiny.TURN)
ODD = {"objective": "odd", "alpha": 8, "alpha_end": 0.5}
BOTH = [
    (BlockRefinementScheduler, DiverseBlockRefinementScheduler),
    (EntropyBoundScheduler, DiverseEntropyBoundScheduler),
]
DIVERSE = [diverse for _, diverse in BOTH]


class Mini(torch.nn.Module):
    """The mini model behind the call of LLaDA2's code."""

    def __init__(self):
        super().__init__()
        self.inner = oddlm.load("mini", device="cpu").model
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def forward(self, tokens, attention_mask, position_ids):
        assert attention_mask.all()  # of prompts of one length, and whole blocks
        logits = self.inner(tokens, 0, torch.zeros(len(tokens), dtype=torch.long))
        logits[..., self.inner.mask_id] = -torch.inf
        return SimpleNamespace(logits=logits)


@pytest.fixture(scope="module")
def mini():
    return Mini()


@pytest.fixture(scope="module")
def gemma():
    return tiny.network()


@pytest.fixture(scope="module")
def processor():
    return tiny.tokenizer()


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


def countdown(mini, scheduler, n=N, prompts=("2,87,96,9,16\n", "3,55,91,4,22\n"), **settings):
    """22 tokens for each of n samples, in blocks of 8; the first has 2 tokens of a prompt."""
    encode = oddlm.load("mini").tokenizer.encode
    ids = torch.tensor([encode(prompt) for prompt in prompts for _ in range(n)])
    assert ids.shape[1] == 10
    pipe = quiet(LLaDA2Pipeline(mini, scheduler))
    settings = {"num_inference_steps": 4, "editing_threshold": None, "threshold": 0.9, **settings}
    return pipe(
        input_ids=ids,
        gen_length=22,
        block_length=8,
        mask_token_id=mini.inner.mask_id,
        output_type="seq",
        **settings,
    ).sequences


def chat(gemma, processor, scheduler, prompts=("w4 w5 w6", "w9 w9 w9"), n=N, drawn=0, **settings):
    """Two canvases for each of n samples of the prompts."""
    pipe = quiet(DiffusionGemmaPipeline(gemma, scheduler, processor))
    settings = {"num_inference_steps": STEPS, "temperature": 0.7, **settings}
    return pipe(
        prompt=[prompt for prompt in prompts for _ in range(n)],
        gen_length=2 * tiny.CANVAS,
        generator=torch.Generator().manual_seed(drawn),
        output_type="seq",
        eos_early_stop=False,
        **settings,
    ).sequences


def watched(scheduler) -> list:
    """What the scheduler pushes: a list of (arguments, pushed logits) that fills."""
    seen, push = [], scheduler._push

    def note(logits, tokens, masked, index):
        pushed = push(logits, tokens, masked, index)
        kept = [None if x is None else x.clone() for x in (logits, tokens, masked)]
        seen.append((*kept, index, pushed.clone()))
        return pushed

    scheduler._push = note
    return seen


def by_hand(canvas: int, steps: int, ends=ENDS) -> Diversifier:
    seed = 5 if canvas == 0 else int(noise.key(torch.tensor([5]), canvas, 0, noise.Purpose.SEED))
    return Diversifier(
        Repulsion(**ODD, protected=ends), n=N, steps=steps, seed=seed, fork=canvas == 0
    )


def test_greedy_samples_of_llada2_become_different(mini):
    diverse = DiverseBlockRefinementScheduler(n=N, end_ids=mini.inner.end_ids, push=ODD)
    for group in countdown(mini, BlockRefinementScheduler()).split(N):
        assert len(group.unique(dim=0)) == 1
    for group in countdown(mini, diverse).split(N):
        assert len(group.unique(dim=0)) == N


def test_blocks_of_llada2_are_pushed_as_by_hand(mini):
    """The first begins in the prompt, whose tokens do not count; written ones do."""
    ends = mini.inner.end_ids
    scheduler = DiverseBlockRefinementScheduler(n=N, end_ids=ends, push=ODD, fork=True, seed=5)
    seen, canvas = watched(scheduler), -1
    countdown(mini, scheduler, eos_early_stop=False)
    for logits, tokens, masked, index, pushed in seen:
        if index == 0:
            canvas += 1
            push = by_hand(canvas, 4, ends)
        assert torch.equal(pushed, push(logits, tokens, masked, step=index))
        assert torch.equal(masked, tokens == mini.inner.mask_id)
        assert bool((tokens[:, :2] == -1).all()) == (canvas == 0)
        assert (tokens[:, 2:] >= 0).all()
    assert canvas == 2
    assert any((~masked & (tokens >= 0)).any() for _, tokens, masked, *_ in seen)


def test_a_pushed_step_writes_what_the_schedule_asks_for_and_no_more(mini):
    """A threshold that everything passes writes a block at once, when nothing is pushed."""

    def written(scheduler) -> list[int]:
        counts = []

        def count(_pipe, _step, _index, inputs):
            counts.append(int(inputs["transfer_index"].sum(dim=1).max()))
            return {}

        names = {"callback_on_step_end_tensor_inputs": ["transfer_index"]}
        countdown(mini, scheduler, threshold=0.0, callback_on_step_end=count, **names)
        return counts

    assert written(BlockRefinementScheduler())[:3] == [6, 0, 8]
    pushed = written(DiverseBlockRefinementScheduler(n=N, push=ODD))
    assert pushed[4:8] == [2, 2, 4, 0]  # the second block: two of four steps are pushed


def test_written_tokens_may_be_edited(mini):
    settings = {"editing_threshold": 0.3, "threshold": 0.5, "max_post_steps": 4}
    plain = countdown(mini, BlockRefinementScheduler(), **settings)
    off = DiverseBlockRefinementScheduler(n=N, push={"alpha": 0})
    assert torch.equal(countdown(mini, off, **settings), plain)
    on = DiverseBlockRefinementScheduler(n=N, end_ids=mini.inner.end_ids)
    seen = watched(on)
    assert not torch.equal(countdown(mini, on, **settings), plain)
    late = [(logits, pushed) for logits, _, masked, _, pushed in seen if not masked.any()]
    assert late
    assert all(torch.equal(logits, pushed) for logits, pushed in late)


@pytest.mark.parametrize("cls", DIVERSE)
def test_canvases_of_diffusion_gemma_are_pushed_as_by_hand(gemma, processor, cls):
    scheduler = cls(n=N, end_ids=ENDS, push=ODD, fork=True, seed=5)
    seen, canvas = watched(scheduler), -1
    chat(gemma, processor, scheduler)
    for logits, tokens, masked, index, pushed in seen:
        if index == 0:
            canvas += 1
            push = by_hand(canvas, STEPS)
            assert masked.all()
        assert torch.equal(pushed, push(logits, tokens, masked, step=index))
        if cls is DiverseEntropyBoundScheduler:
            assert masked.all()
        elif index:
            assert not masked.all()
    assert canvas == 1


@pytest.mark.parametrize(("plain", "diverse"), BOTH)
def test_one_sample_is_left_as_it_is(gemma, processor, plain, diverse):
    """So is a batch that nothing pushes; a push changes it, and a generator repeats it."""
    expected = chat(gemma, processor, plain())
    for settings in ({"n": 1}, {"n": N, "push": {"alpha": 0}}):
        assert torch.equal(chat(gemma, processor, diverse(**settings)), expected)
    scheduler = diverse(n=N, end_ids=ENDS)
    first, again = (chat(gemma, processor, scheduler) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, expected)
    assert not torch.equal(chat(gemma, processor, scheduler, drawn=1), first)


@pytest.mark.parametrize("diverse", DIVERSE)
def test_cold_samples_of_diffusion_gemma_become_different(gemma, processor, diverse, monkeypatch):
    """All start from one canvas, and the tokens are those of the argmax."""
    draw = torch.randint
    monkeypatch.setattr(torch, "randint", lambda *a, **k: draw(*a, **k)[:1].expand(2 * N, -1))
    cold = {"t_min": 1e-4, "t_max": 2e-4} if diverse is DiverseEntropyBoundScheduler else {}
    for n, expected in ((1, 1), (N, N)):
        scheduler = diverse(n=n, end_ids=ENDS, **cold)
        for group in chat(gemma, processor, scheduler, temperature=0.0).split(N):
            assert len(group.unique(dim=0)) == expected


@pytest.mark.parametrize(("plain", "diverse"), BOTH)
def test_it_takes_the_place_of_a_scheduler(plain, diverse, tmp_path):
    """Made of its config, with the same signatures (pipelines read them), and stored as JSON."""
    given = plain(num_inference_steps=5)
    made = diverse.from_config(given.config, n=3, end_ids=ENDS, push={"alpha": 8.0})
    assert made.num_inference_steps == 5
    assert made._guide.push == (8.0, 0.25)
    assert made._guide.protected == ENDS
    for name in ("step", "set_timesteps"):
        assert inspect.signature(getattr(diverse, name)) == inspect.signature(getattr(plain, name))
    made.save_config(tmp_path)
    assert json.loads((tmp_path / "scheduler_config.json").read_text())["push"] == {"alpha": 8.0}
    again = diverse.from_pretrained(tmp_path)
    assert (again._guide, again._group) == (made._guide, made._group)


@pytest.mark.parametrize("diverse", DIVERSE)
def test_what_does_not_fit_is_refused(gemma, processor, diverse):
    with pytest.raises(ValueError, match=r"batch of 8 .* n = 3"):
        chat(gemma, processor, diverse(n=3))
    with pytest.raises(ValueError, match="no setting 'alhpa'"):
        diverse(n=N, push={"alhpa": 8})
    with pytest.raises(ValueError, match="no setting 'remember'"):
        diverse(n=N, push={"remember": "exact"})
    with pytest.raises(ValueError, match="alpha"):
        diverse(n=N, push={"alpha": -1})


def test_end_ids_come_from_the_processor(processor):
    assert find_end_ids(SimpleNamespace(tokenizer=processor)) == ENDS

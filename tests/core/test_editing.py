"""Policies that replace written tokens: diffusers' scheduler as an independent sampler of LLaDA2.1,
and when a block is settled.
"""

import pickle

import pytest
import torch
from diffusers import BlockRefinementScheduler

import oddlm
from oddlm import ModelInfo, Repulsion, advance, begin, denoise, denoise_steps
from oddlm.core.process import Editing
from oddlm.models.toy import Toy

MASK, END, VOCAB, BLOCK, LENGTH = 19, 18, 20, 4, 12
SHAPE = {"length": LENGTH, "block_length": BLOCK}
PROMPTS = [[3, 1], [4, 1, 5, 9, 2, 6]]


class Undecided:
    """A block-causal network of random numbers whose predictions depend on what is written."""

    def __init__(self, seed: int, block: int | None = BLOCK) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self.own = torch.randn(LENGTH, VOCAB, dtype=torch.float64, generator=numbers)
        self.others = torch.randn(VOCAB, LENGTH, VOCAB, dtype=torch.float64, generator=numbers)
        self.block = block
        self.info = ModelInfo(VOCAB, MASK, (END,), block_length=block)

    def logits(self, answers):
        """[B, L] -> [B, L, V]: each position reads all others of its own and earlier blocks."""
        index = torch.arange(LENGTH)
        block = index // (self.block or LENGTH)
        seen = (block <= block[:, None]) & (index != index[:, None])  # [query, key]
        parts = self.others[answers]  # [B, key, L, V]
        return 1.5 * self.own + torch.einsum("bkqv,qk->bqv", parts, seen.double())

    def __call__(self, tokens, start, prompt_lengths):
        return self.logits(tokens[:, start:])


def drawn_by_diffusers(model, threshold, editing, steps):
    """LLaDA2.1's sampling: fill and edit a block until a pass without masks edits nothing."""
    scheduler = BlockRefinementScheduler(block_length=BLOCK)
    answer, passes, edits = torch.full((1, LENGTH), MASK), 0, 0
    for low in range(0, LENGTH, BLOCK):
        scheduler.set_timesteps(steps)
        reviews, step = 0, 0
        while True:
            here = answer[:, low : low + BLOCK]
            full = not (here == MASK).any()
            reviews += full
            if reviews > 16:
                break
            logits = model.logits(answer)[:, low : low + BLOCK].clone()
            logits[..., MASK] = -torch.inf
            done = scheduler.step(
                logits, step, here, mask_token_id=MASK, threshold=threshold,
                editing_threshold=editing,
            )  # fmt: skip
            answer[:, low : low + BLOCK] = done.prev_sample
            passes, step = passes + 1, step + 1
            edits += int(done.editing_transfer_index.sum())
            if full and not done.editing_transfer_index.any():
                break
    return answer[0].tolist(), passes, edits


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("threshold", "editing"), [(0.7, 0.5), (0.5, 0.05), (0.95, 0.9), (0.3, 2)])
def test_the_tokens_are_those_of_diffusers(seed, threshold, editing):
    model = Undecided(seed)
    expected, passes, edits = drawn_by_diffusers(model, threshold, editing, steps=BLOCK)
    policy = {"name": "joint_threshold", "threshold": threshold, "editing": editing}
    found = denoise(model, [[1]], n=1, steps=LENGTH, temperature=0, policy=policy, **SHAPE)
    assert found.tokens[0].tolist() == expected
    assert found.nfe == passes
    assert (editing < 1) or edits == 0


def test_something_is_edited():
    edits = [drawn_by_diffusers(Undecided(seed), 0.5, 0.05, BLOCK)[2] for seed in range(12)]
    assert sum(edit > 0 for edit in edits) > 6


@oddlm.policy(parallel=True, edits=True)
def restless(prediction, step):
    """Replace every written token of the open block, whatever comes."""
    return oddlm.Proposal(prediction.confidence.log(), edit=step.editable)


def test_tokens_that_replace_each_other_for_ever_are_settled_at_last():
    model = Undecided(0)
    events = list(
        denoise_steps(
            model, PROMPTS, n=1, steps=3, temperature=50, policy=restless, seed=1, **SHAPE
        )
    )
    reviews = [int(event.step.reviewing[0]) for event in events]
    assert reviews == ([0] + [1] * Editing(MASK).reviews) * 3
    assert sum(int((event.commit & ~event.step.masked).sum()) for event in events) > 50
    assert all(event.step.total > event.step.index for event in events)


def test_only_tokens_that_the_run_wrote_are_edited():
    given = [7, None, None, 7, None, 7, 7, None, 7, 7, 7, 7]
    options = {**SHAPE, "steps": 6, "temperature": 5.0, "seed": 2}
    result = denoise(Undecided(1), PROMPTS[:1], n=3, policy=restless, templates=[given], **options)
    for row, steps in zip(result.tokens.tolist(), result.commit_step.tolist(), strict=True):
        for token, step, was in zip(row, steps, given, strict=True):
            assert (token == was and step == -1) if was is not None else step >= 0


def test_an_end_token_that_is_edited_away_ends_nothing():
    model = Undecided(3)
    model.own[0, END], model.own[0, 5] = 9.0, 8.0  # first END, then 5 instead
    model.others[:, 0, END] -= 2.0
    model.others[MASK, 0, END] += 4.0
    options = {**SHAPE, "steps": LENGTH, "temperature": 0, "stop_at_end": True}
    policy = {"name": "joint_threshold", "threshold": 0.3, "editing": 0.2}
    events = list(denoise_steps(model, [[1]], n=1, policy=policy, **options))
    assert int(events[0].prediction.tokens[0, 0]) == END
    assert events[0].commit[0, 0]
    whole = denoise(model, [[1]], n=1, policy=policy, **options)
    assert whole.tokens[0, 0] != END
    assert (whole.commit_step >= 0).all()


@pytest.mark.parametrize("guide", [None, Repulsion(alpha=8, alpha_end=1)])
@pytest.mark.parametrize("block", [BLOCK, None])
def test_a_state_continues_after_pickling_with_the_same_tokens(guide, block):
    model = Undecided(4, block)
    shape = {**SHAPE, "n": 3, "steps": 6, "policy": "joint_threshold"}
    if block is None:
        shape["block_length"] = 6
    state = begin(model, PROMPTS, guide=guide, **shape)
    moved = pickle.loads(pickle.dumps(state))
    while (query := state.query) is not None:
        tokens = query.tokens[:, query.start :]
        state, _ = advance(state, model.logits(tokens))
        moved, _ = advance(moved, model.logits(moved.query.tokens[:, query.start :]))
        moved = pickle.loads(pickle.dumps(moved))
    assert torch.equal(moved.result.tokens, state.result.tokens)
    assert moved.query is None


def test_samples_do_not_depend_on_those_beside_them():
    model = Undecided(5)
    shape = {**SHAPE, "steps": 6, "policy": "joint_threshold", "temperature": 1.0}
    together = denoise(model, PROMPTS, n=3, seed=[1, 2], **shape)
    for g, prompt in enumerate(PROMPTS):
        alone = denoise(model, [prompt], n=3, seed=[g + 1], **shape)
        assert torch.equal(alone.tokens, together.tokens[3 * g : 3 * g + 3])
        assert torch.equal(alone.evaluations, together.evaluations[3 * g : 3 * g + 3])


def test_the_push_leaves_written_tokens_alone():
    model = Undecided(6)
    shape = {**SHAPE, "n": 4, "steps": 6, "policy": "joint_threshold"}
    guide = Repulsion(alpha=30, alpha_end=1)
    seen = 0
    for event in denoise_steps(model, PROMPTS, guide=guide, **shape):
        where = event.step.editable
        assert torch.equal(event.pushed_logits[where], event.base_logits[where])
        seen += int(where.sum())
    assert seen > 20


def test_a_text_has_the_probability_of_the_tokens_that_stayed():
    lm = oddlm.LM(Toy(vocab_size=60), Numbers())
    samples = lm.sample("5 6 7", n=2, length=8, steps=4, block_length=4, alpha=0, policy=restless)
    for sample in samples:
        assert all(value < 0 for value in sample.base_logprobs)
        assert max(sample.commit_steps) > 4


class Numbers:
    """A tokenizer of numbers."""

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def test_undeclared_edits_are_refused():
    def sly(prediction, step):
        return oddlm.Proposal(prediction.confidence.log(), edit=step.masked)

    with pytest.raises(ValueError, match="edits=True"):
        denoise(Undecided(0), PROMPTS, n=1, steps=3, policy=sly, **SHAPE)


def test_a_uniform_model_is_not_edited():
    info = ModelInfo(VOCAB, None, process="uniform")
    with pytest.raises(ValueError, match="uniform"):
        begin(info, PROMPTS, n=1, steps=3, policy="joint_threshold", **SHAPE)


def test_edits_and_the_triton_backend_are_not_combined():
    guide = Repulsion(alpha=4, backend="triton")
    with pytest.raises(ValueError, match="triton"):
        begin(
            Undecided(0).info, PROMPTS, n=2, steps=3, guide=guide, policy="joint_threshold", **SHAPE
        )

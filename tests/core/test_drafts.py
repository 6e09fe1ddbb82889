"""Models that draft: a block is revised as a whole, and written when it is finished."""

import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from oddlm import Drafting, ModelInfo, Repulsion, advance, begin, denoise, open_session
from oddlm.models.toy import Toy
from oddlm.models.wrappers import MicroBatch

BLOCK, STEPS = 8, 12  # STEPS of a block
CERTAIN = 0.4
PROMPTS = [[5, 6], [7, 8, 9]]
SHAPE = {"n": 4, "length": 3 * BLOCK, "steps": 3 * STEPS, "temperature": 0.8, "seed": 2}
BOUND = {"name": "entropy_bound", "bound": 2.0}
PLAIN, ODD = {"guide": None}, {"guide": Repulsion("odd")}


class Drafter(Toy):
    """A toy without a mask token that drafts; it mostly looks at positions, so blocks settle."""

    def __init__(self, **rule):
        super().__init__(vocab_size=60, sharpness=12.0, process="uniform")
        self._weight *= 0.1
        self.rule = Drafting(**{"stable": 1, "certain": CERTAIN, "cooling": 0.5} | rule)

    @property
    def info(self):
        given = {"drafting": self.rule, "block_length": BLOCK, "confidence": "sampled"}
        return replace(super().info, mask_id=None, **given)


@pytest.fixture(scope="module")
def model():
    return Drafter()


def watched(model, **options):
    events = []
    return denoise(model, PROMPTS, observe=events.append, **SHAPE | options), events


def finish(state, model):
    while (query := state.query) is not None:
        state, _ = advance(state, open_session(model, query)(query), query=query)
    return state.result


@pytest.mark.parametrize("guide", [PLAIN, ODD], ids=["plain", "odd"])
@pytest.mark.parametrize("policy", [BOUND, "low_confidence", "random"], ids=str)
def test_a_block_is_written_at_once_with_its_likeliest_tokens(model, policy, guide):
    done, events = watched(model, policy=policy, **guide)
    assert (done.commit_step.unflatten(1, (3, BLOCK)).diff(dim=2) == 0).all()
    for event in events:
        written = event.commit.any(dim=1)
        assert torch.equal(event.commit[written], event.step.open[written])
        likeliest = event.pushed_logits.argmax(dim=-1)
        assert torch.equal(event.prediction.tokens[event.commit], likeliest[event.commit])
    assert (done.evaluations <= 3 * STEPS).all()


@pytest.mark.parametrize("policy", [BOUND, "low_confidence"], ids=str)
def test_what_is_accepted_stays_for_one_step_and_the_rest_is_noise(model, policy):
    _, events = watched(model, policy=policy)
    changed = []
    for before, after in pairwise(events):
        held = before.decision.draft.held
        if after.step.index // STEPS == before.step.index // STEPS:
            assert torch.equal(after.step.tokens[held], before.prediction.tokens[held])
            again = after.step.open & ~held
            changed.append((after.step.tokens != before.step.tokens)[again])
        assert not (held & before.commit).any()
    assert torch.cat(changed).double().mean() > 0.9
    held = torch.stack([e.decision.draft.held.sum(dim=1) for e in events])
    sizes = torch.stack([e.step.open.sum(dim=1) for e in events])
    if policy == BOUND:
        assert held.max() > held[held > 0].min()
    else:  # a schedule accepts more at each step
        index = torch.tensor([e.step.index % STEPS + 1 for e in events])[:, None]
        written = torch.stack([e.commit.sum(dim=1) for e in events])
        assert torch.equal(held[written == 0], (-(-sizes * index // STEPS))[written == 0])


def test_the_bound_accepts_what_its_definition_says(model):
    """In the distribution that tokens are drawn from: after the temperature of the step."""
    _, events = watched(model, policy=BOUND)
    for event in events:
        heat = 0.8 * (1 - 0.5 * (event.step.index % STEPS) / STEPS)
        entropy = torch.special.entr((event.base_logits / heat).softmax(dim=-1)).sum(dim=-1)
        for row in range(len(entropy)):
            if event.commit[row].any() or not event.step.open[row].any():
                continue
            own = entropy[row].masked_fill(~event.step.open[row], torch.inf).sort()
            taken = own.values.cumsum(dim=0) - own.values <= BOUND["bound"]
            expected = torch.zeros_like(taken).scatter(0, own.indices, taken)
            assert torch.equal(event.decision.draft.held[row], expected)


def test_a_block_ends_when_it_is_stable_and_certain(model):
    done, events = watched(model, policy=BOUND)
    early = done.commit_step[:, ::BLOCK] % STEPS
    assert len(set(early.flatten().tolist())) > 2, "the trial needs blocks of all kinds"
    likeliest = {}  # of each sample, at its last step in this block
    for event in events:
        if event.step.index % STEPS == 0:
            likeliest = {}
        heat = 0.8 * (1 - 0.5 * (event.step.index % STEPS) / STEPS)
        shares = (event.base_logits / heat).softmax(dim=-1)
        entropy = torch.special.entr(shares).sum(dim=-1)
        for row, open_ in enumerate(event.step.open):
            if not open_.any():
                continue
            now = event.base_logits[row].argmax(dim=-1)[open_].tolist()
            ends = now == likeliest.get(row) and entropy[row][open_].mean() < CERTAIN
            assert bool(event.commit[row].any()) == (ends or (event.step.index + 1) % STEPS == 0)
            likeliest[row] = now


@pytest.mark.parametrize("stable", [0, 3])
def test_stability_is_counted_in_steps(stable):
    done = denoise(Drafter(stable=stable, certain=1e9), PROMPTS, policy=BOUND, **SHAPE)
    if stable == 0:
        assert (done.evaluations == 3).all(), "anything is certain enough"
    else:
        assert (done.commit_step % STEPS >= 3).all()


def test_all_samples_open_a_block_together_and_the_early_ones_wait(model):
    done, events = watched(model, policy=BOUND)
    assert [e.step.index for e in events] == sorted({e.step.index for e in events})
    for event in events:
        blocks = event.step.open.unflatten(1, (3, BLOCK)).any(dim=2)  # [B, 3]
        other = [i for i in range(3) if i != event.step.index // STEPS]
        assert not blocks[:, other].any()
    busy = torch.stack([e.step.open.any(dim=1) for e in events]).sum(dim=0)
    assert torch.equal(done.evaluations, busy), "a sample that waits costs nothing"
    assert len(events) < 3 * STEPS, "steps that nobody needs are skipped"


@pytest.mark.parametrize("guide", [PLAIN, ODD], ids=["plain", "odd"])
@pytest.mark.parametrize("policy", [BOUND, "low_confidence"], ids=str)
def test_a_sample_is_the_same_whatever_stands_beside_it(model, policy, guide):
    whole = denoise(model, PROMPTS, **SHAPE | {"policy": policy, "seed": [3, 4]} | guide)
    one = denoise(model, PROMPTS[1:], **SHAPE | {"policy": policy, "seed": 4, "n": 1} | guide)
    assert torch.equal(one.tokens[0], whole.tokens[4])
    assert torch.equal(one.commit_step[0], whole.commit_step[4])
    parts = denoise(
        MicroBatch(model, 3), PROMPTS, **SHAPE | {"policy": policy, "seed": [3, 4]} | guide
    )
    assert torch.equal(parts.tokens, whole.tokens)


RUNS = [
    {"policy": BOUND},
    {"policy": "margin", "guide": Repulsion(), "fork": True},
    {"policy": BOUND, "guide": Repulsion(remember="exact"), "top_p": 0.9},
    {"policy": BOUND, "stop_at_end": True, "guide": Repulsion(alpha=4)},
    {"templates": [[3, None] * BLOCK + [4] * BLOCK, [None, *[5] * BLOCK] * 2 + [None] * 6]},
    {"policy": "threshold", "suppress": (4, 7), "order_temperature": 0.3},
]


@pytest.mark.parametrize("options", RUNS, ids=str)
@pytest.mark.parametrize("echo", [None, torch.bfloat16], ids=["", "echo"])
def test_a_run_can_be_pickled_at_any_step(options, echo):
    model = Drafter(echo=echo)
    expected = denoise(model, PROMPTS, **SHAPE | options)
    states = [begin(model, PROMPTS, **SHAPE | options)]
    while (query := states[-1].query) is not None:
        states.append(advance(states[-1], open_session(model, query)(query))[0])
    for state in [*states[::5], states[-1]]:
        copy = finish(pickle.loads(pickle.dumps(state)), model)
        assert torch.equal(copy.tokens, expected.tokens)
        assert torch.equal(copy.evaluations, expected.evaluations)
        assert torch.equal(copy.commit_step, expected.commit_step)


def test_a_policy_that_remasks_is_refused(model):
    with pytest.raises(ValueError, match="remask"):
        denoise(model, PROMPTS, **SHAPE | {"policy": "remdm"})


@pytest.mark.parametrize("policy", [BOUND, "low_confidence"], ids=str)
def test_four_and_four_are_a_batch_of_eight(model, policy):
    """Also with a parallel policy: pushes act at the same steps of every sample."""
    options = SHAPE | {"policy": policy, "guide": Repulsion("odd", remember="exact")}
    first = denoise(model, PROMPTS, **options)
    second = denoise(model, PROMPTS, history=first.history, **options)
    whole = denoise(model, PROMPTS, **options | {"n": 8})
    for g, group in enumerate(whole.groups()):
        rows = slice(4 * g, 4 * g + 4)
        assert torch.equal(torch.cat([first.tokens[rows], second.tokens[rows]]), group)


@pytest.mark.parametrize("alpha_end", [0.25, 0.5, 1.0])
def test_a_push_acts_at_the_start_of_every_block_and_is_over_before_it_is_written(alpha_end):
    model = Drafter(certain=1e9, stable=0)  # without a push, a block takes one step
    guide = Repulsion("odd", alpha=16, alpha_end=alpha_end)
    done, events = watched(model, policy=BOUND, guide=guide)
    pushed = {e.step.index for e in events if (e.force > 1e-6).any()}
    last = round(alpha_end * STEPS)
    assert pushed <= {b * STEPS + i for b in range(3) for i in range(last)}
    assert {b * STEPS + i for b in range(3) for i in range(last - 1)} <= pushed
    assert (done.commit_step % STEPS == min(last, STEPS - 1)).all()
    plain = denoise(model, PROMPTS, **SHAPE | {"policy": BOUND})
    assert not torch.equal(plain.tokens, done.tokens)
    assert (plain.evaluations == 3).all()


def test_a_fork_accepts_one_token_per_sample_all_different(model):
    _, events = watched(model, fork=True, policy=BOUND, temperature=0.0)
    held = events[0].decision.draft.held
    assert (held.sum(dim=1) == 1).all()
    cells = [
        (int(row), *e)
        for row, e in zip(
            held.nonzero()[:, 0] // 4,
            zip(
                held.nonzero()[:, 1].tolist(),
                events[0].prediction.tokens[held].tolist(),
                strict=True,
            ),
            strict=True,
        )
    ]
    assert len(set(cells)) == 8


def test_the_echo_is_what_the_last_step_drew_from():
    seen = []

    class Listening(Drafter):
        def session(self, query):
            return self.answer

        def answer(self, query):
            seen.append(query)
            return self(query.tokens, query.start, query.prompt_lengths)

    _, events = watched(Listening(echo=torch.float64), policy=BOUND, top_k=9, **ODD)
    assert any(query.samples is not None for query in seen)
    last = None
    for query, event in zip(seen, events, strict=True):
        rows = slice(None) if query.samples is None else query.samples
        if event.step.index % STEPS == 0:
            assert query.echo is None
        else:
            expected = last[rows]
            torch.testing.assert_close(
                query.echo.masked_fill(expected.isnan(), 0.0),
                expected.nan_to_num(0.0, neginf=-torch.inf),
                rtol=1e-5,
                atol=1e-5,
            )
        heat = 0.8 * (1 - 0.5 * (event.step.index % STEPS) / STEPS)
        drawn = event.pushed_logits.double() / heat
        drawn = drawn.masked_fill(drawn < drawn.topk(9).values[..., -1:], -torch.inf)
        drawn = drawn.masked_fill(~event.step.open[..., None], torch.nan)
        block = event.step.index // STEPS
        last = drawn[:, block * BLOCK : (block + 1) * BLOCK]


@pytest.mark.parametrize("guide", [PLAIN, ODD], ids=["plain", "odd"])
def test_nothing_is_computed_after_an_end(model, guide):
    usual, ends = SHAPE | {"policy": BOUND, "n": 8, "seed": 5} | guide, torch.tensor([1, 2])
    whole, stopped = (denoise(model, PROMPTS, stop_at_end=x, **usual) for x in (False, True))
    blocks = torch.isin(whole.tokens, ends).unflatten(1, (3, BLOCK)).any(dim=2)
    assert blocks[:, :2].any()
    for row, found in enumerate(blocks):
        last = int(found.byte().argmax()) if found.any() else 2
        kept = slice(0, (last + 1) * BLOCK)
        assert torch.equal(stopped.tokens[row, kept], whole.tokens[row, kept])
        filled = stopped.commit_step[row] < 0
        assert not filled[kept].any()
        assert torch.isin(stopped.tokens[row, filled], ends).all()
    assert stopped.evaluations.sum() < whole.evaluations.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 20, "steps": 30}, "multiple of 8, not 20"),
        ({"length": 4, "steps": 12}, "multiple of 8, not 4"),
        ({"block_length": 4}, "block_length 8 or left out"),
        ({"steps": 35}, "steps 35 do not divide evenly over 3 blocks"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_settings_that_do_not_fit(model, change, message):
    with pytest.raises(ValueError, match=message):
        denoise(model, PROMPTS, **SHAPE | change)


@pytest.mark.parametrize(
    "wrong",
    [{"process": "absorbing", "mask_id": 3}, {"block_length": None}, {"align": "absolute"}],
    ids=str,
)
def test_only_a_uniform_model_with_blocks_drafts(wrong):
    info = ModelInfo(20, None, process="uniform", block_length=4, drafting=Drafting())
    assert begin(info, [[5]], n=1, length=8, steps=8).query.blocks.front == 0
    with pytest.raises(ValueError, match="drafting"):
        begin(replace(info, **wrong), [[5]], n=1, length=8, steps=8)


def test_a_block_may_have_more_steps_than_tokens():
    done = denoise(Drafter(certain=0.0), [[5]], n=1, length=8, steps=40)
    assert done.nfe == 40

"""The fused kernels against the closed form in float64 and against the CPU sampler: on a GPU, or
interpreted elsewhere.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from oddlm import Diversifier, ModelInfo, Repulsion, denoise, diversify
from oddlm.core import noise
from oddlm.core.alarm import Alarm
from oddlm.core.blocks import Blocks
from oddlm.core.choose import Outlook, look, predict
from oddlm.core.step import ABSENT, Step
from oddlm.diversity.memory import Explored
from oddlm.kernels import dispatch
from oddlm.models.native import Native
from oddlm.models.toy import Toy
from oddlm.models.transformer import Transformer, TransformerConfig

from ..registered import FUSED as FUSED_OBJECTIVES
from ..tolerances import FUSED, P_VALUE, SINGLE
from .noise_kernel import key_kernel, noise_kernel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


pytestmark = pytest.mark.usefixtures("interpreted")


def batch(groups, n, S, V, kind="plain", dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(groups * n, S, V, generator=g) * 2
    tokens = torch.randint(0, V, (groups * n, S), generator=g)
    masked = torch.rand(groups * n, S, generator=g) < 0.7
    masked[:, 0] = True
    if kind == "one-hot":
        logits[:, ::2] *= 12
    elif kind == "identical":
        logits, tokens, masked = (x[:1].expand_as(x).contiguous() for x in (logits, tokens, masked))
    elif kind == "some identical":
        for x in (logits, tokens, masked):
            x[::2] = x[0].clone()
    elif kind == "-inf":
        logits = logits.masked_fill(torch.rand(V, generator=g) < 0.3, -math.inf)
        logits[..., 0] = 0.0
    elif kind == "committed":
        masked[:] = False
    return logits.to(dtype), tokens, masked


def on(device, *tensors):
    return [x.to(device) for x in tensors]


def pushed(logits, tokens, masked, **options):
    return diversify(*on(DEVICE, logits, tokens, masked), backend="triton", **options).cpu()


CASES = [
    ("odd", 2, 3, 5, 41, "plain", torch.float32),
    ("odd", 1, 4, 3, 1271, "one-hot", torch.float32),
    ("odd", 1, 5, 4, 401, "identical", torch.float32),
    ("odd", 2, 4, 2, 41, "some identical", torch.bfloat16),
    ("odd", 1, 3, 1, 401, "-inf", torch.float16),
    ("odd", 1, 1, 3, 41, "plain", torch.float32),
    ("odd", 1, 2, 2, 41, "committed", torch.float32),
    ("odd_sequential", 2, 3, 1, 401, "identical", torch.float32),
    ("odd_sequential", 1, 3, 4, 41, "one-hot", torch.bfloat16),
    ("dpp", 2, 3, 4, 41, "plain", torch.float32),
    ("dpp", 1, 3, 2, 401, "some identical", torch.float32),
    ("dpp", 1, 1, 1, 41, "-inf", torch.float16),
    ("random_probe", 2, 3, 4, 41, "plain", torch.float32),
    ("random_probe", 1, 4, 2, 401, "identical", torch.bfloat16),
    (
        {"name": "random_probe", "normalize": False, "enough": 1.5},
        1,
        3,
        3,
        401,
        "one-hot",
        torch.float32,
    ),
    ({"name": "odd", "enough": 1.5}, 2, 4, 3, 41, "plain", torch.float32),
    ({"name": "odd", "enough": 0.6}, 1, 4, 2, 401, "some identical", torch.bfloat16),
    ({"name": "odd_sequential", "enough": 1.2}, 1, 3, 3, 41, "one-hot", torch.float32),
]
CASES += [
    (name, 2, 3, 4, 41, "plain", torch.float32)
    for name in FUSED_OBJECTIVES
    if name not in [case[0] for case in CASES]
]


def compare(objective, groups, n, S, V, kind, dtype, **more):
    logits, tokens, masked = batch(groups, n, S, V, kind, dtype)
    options = {
        "objective": objective,
        "n": n,
        "alpha": 8.0,
        "protected": [1, int(logits[0, 0].argmax())],
        **more,
    }
    if objective == "dpp" and "identical" in kind:
        options["gradient"] = (
            "raw"  # it nearly vanishes there, and normalising would magnify rounding
        )
    got = pushed(logits, tokens, masked, **options)
    exact = diversify(logits.double(), tokens, masked, backend="closed_form", **options)
    assert got.dtype == dtype
    assert torch.equal(got[~masked], logits[~masked])
    assert torch.equal(got.isneginf(), logits.isneginf())
    allowed = 8.0 * FUSED + exact.abs().where(exact.isfinite(), 0.0) * 2 * torch.finfo(dtype).eps
    assert ((got.double() - exact).nan_to_num(nan=0.0).abs() <= allowed).all()
    if n > 1 and kind != "committed" and "gradient" not in options:
        assert (got.double() - logits.double()).nan_to_num(nan=0.0).abs().max() > 0.1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_closed_form_in_float64(case):
    compare(*case)


@pytest.mark.parametrize(
    "options",
    [
        {"duplicates": "skip", "objective": {"name": "odd", "normalize": False, "quality": "none"}},
        {
            "gradient": "raw",
            "objective": {
                "name": "dpp",
                "normalize": False,
                "kernel": "paper",
                "quality": "detached",
            },
        },
    ],
    ids=str,
)
def test_options(options):
    logits, tokens, masked = batch(1, 3, 2, 41, "some identical")
    got = pushed(logits, tokens, masked, alpha=4.0, **options)
    exact = diversify(logits.double(), tokens, masked, alpha=4.0, **options)
    assert (got.double() - exact).abs().max() <= 4.0 * FUSED


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "one-hot", "identical", "some identical"])
@pytest.mark.parametrize("objective", FUSED_OBJECTIVES)
def test_a_large_vocabulary(objective, kind):
    for n, S, V, dtype in (
        (16, 8, 126464, torch.bfloat16),
        (5, 3, 126464, torch.float32),
        (33, 2, 1271, torch.float16),
    ):
        compare(objective, 1, n, S, V, kind, dtype)


@pytest.mark.parametrize("seed", [0, -3, 2**62 + 12345])
def test_the_noise_is_that_of_the_cpu(seed):
    size = 4096
    keys = noise.key(torch.tensor([seed]), 3, 5, noise.Purpose.TOKEN, 7)
    bits = torch.zeros(size, dtype=torch.int32, device=DEVICE)
    gumbel, normal = torch.zeros(2, size, device=DEVICE)
    noise_kernel[(1,)](*on(DEVICE, keys, noise.second_keys(keys)), bits, gumbel, normal, SIZE=size)
    assert torch.equal(bits.cpu(), noise._bits(keys, size)[0])
    torch.testing.assert_close(gumbel.cpu(), noise.gumbel(keys, size)[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(normal.cpu(), noise.normal(keys, size)[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("seed", [0, -3, 2**62 + 12345])
@pytest.mark.parametrize("purpose", noise.Purpose)
@pytest.mark.parametrize(("sample", "step"), [(0, 0), (1, 16), (70_000, 2**31 - 1)])
def test_the_keys_are_those_of_the_cpu(seed, purpose, sample, step):
    keys, where = torch.zeros(64, dtype=torch.int64, device=DEVICE), torch.tensor([seed])
    key_kernel[(1,)](where.to(DEVICE), sample, step, keys, purpose=int(purpose), SIZE=64)
    assert torch.equal(keys.cpu(), noise.key(where, sample, step, purpose, torch.arange(64)))


def a_step(tokens, open_, *, seed=0, never=()):
    seeds = torch.tensor([seed], device=tokens.device)
    return Step(
        2,
        4,
        tokens,
        Blocks(torch.zeros_like(tokens[:1]), 1, open_),
        len(tokens),
        0,
        seeds,
        never=never,
    )


def drawn(logits, tokens, open_, device, **options):
    """What the sampling kernel gives, or the CPU path (kernel None)."""
    settings = {"temperature": 0.0, "top_k": None, "top_p": None, "needs": None, **options}
    never = settings.pop("never", ())
    step = a_step(*on(device, tokens, open_), never=never)
    backend = dispatch.choose(device, logits.dtype if device is DEVICE else torch.float64)
    outlook = Outlook(logits.to(device), None, step.masked, step, Alarm(patient=False), backend)
    return predict(outlook, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("temperature", "needs"), [(0.0, "margin"), (0.7, "entropy"), (2.0, None)])
def test_draws_the_tokens_of_the_cpu(dtype, temperature, needs):
    for V, kind in ((41, "-inf"), (1271, "one-hot")):
        logits, tokens, open_ = batch(1, 3, 6, V, kind, dtype)
        logits[~open_] = torch.nan  # undefined where nobody may look
        options = {"temperature": temperature, "needs": needs, "never": (0, V - 1)}
        got = drawn(logits, tokens, open_, DEVICE, **options)
        expected = drawn(logits, tokens, open_, torch.device("cpu"), **options)
        assert torch.equal(got.tokens.cpu(), expected.tokens)
        for name in ("confidence", "margin", "entropy"):
            a, b = getattr(got, name), getattr(expected, name)
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-7)
        assert got.logits is None


def test_ties_go_to_the_lowest_id():
    logits = torch.zeros(2, 3, 300)
    logits[:, :, [7, 70, 299]] = 3.0
    tokens, open_ = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    assert (drawn(logits, tokens, open_, DEVICE).tokens == 7).all()


@pytest.mark.parametrize(
    "temperature", [0.5, *(pytest.param(one, marks=pytest.mark.soak) for one in (1.0, 2.0))]
)
def test_the_distribution(temperature):
    rows = 100_000 if DEVICE.type == "cuda" else 240
    logits = torch.tensor([1.0, 0.5, 0.25, 0.0, -0.25, -0.5, -math.inf, 9.0])
    tokens, open_ = (
        torch.zeros(4, rows // 4, dtype=torch.long),
        torch.ones(4, rows // 4, dtype=torch.bool),
    )
    got = drawn(
        logits.expand(4, rows // 4, -1), tokens, open_, DEVICE, temperature=temperature, never=(7,)
    ).tokens
    counts = np.bincount(got.flatten().cpu().numpy(), minlength=8)
    expected = (logits[:6].double() / temperature).softmax(0).numpy() * rows
    assert counts[6:].sum() == 0
    assert stats.chisquare(counts[:6], expected).pvalue > P_VALUE


class Moved:
    """A model on the device; the network itself runs on the CPU, so that both samplers see the same
    logits.
    """

    def __init__(self, model, device, dtype=torch.float32):
        self.model, self.device, self.dtype = model, device, dtype
        self.info = ModelInfo(
            model.vocab_size, model.mask_id, model.end_ids, name="moved", device=device, dtype=dtype
        )

    def __call__(self, tokens, start, prompt_lengths):
        return self.model(tokens.cpu(), start, prompt_lengths.cpu()).to(self.device, self.dtype)


RUNS = [
    {"guide": None, "temperature": 1.0},
    {"guide": Repulsion("odd", alpha=16), "temperature": 0.0},
    {
        "guide": Repulsion("odd_sequential", alpha=16),
        "temperature": 0.7,
        "block_length": 2,
        "suppress": [5],
    },
    {"guide": Repulsion("random_probe", alpha=16), "temperature": 0.5, "suppress": [5]},
    {
        "guide": Repulsion("dpp", alpha=16),
        "temperature": 0.5,
        "policy": "entropy",
        "suppress_confidence": [1],
    },
    {
        "guide": Repulsion("odd", alpha=16),
        "temperature": 1.0,
        "policy": "threshold",
        "order_temperature": 0.5,
        "n": 2,
    },
    {"guide": Repulsion("odd", alpha=16), "temperature": 1.0, "fork": True, "steps": 2, "n": 2},
    {"guide": Repulsion("odd", alpha=16), "temperature": 1.0, "top_k": 5},
    {
        "guide": Repulsion("odd", alpha=16),
        "temperature": 0.2,
        "top_p": 0.9,
        "policy": "entropy",
        "confidence": "sampled",
        "steps": 3,
    },
    {"guide": None, "temperature": 0.7, "policy": "margin", "confidence": "sampled", "steps": 3},
]
ENDING = {"guide": Repulsion("odd", alpha=16, alpha_end=0.5), "temperature": 1.0}  # after step 0
SLOW_RUNS = [*RUNS[3:6], *RUNS[9:]]  # Triton's interpreter takes long for each


@pytest.mark.parametrize(
    "options",
    [
        *RUNS[:3],
        *RUNS[6:9],
        ENDING,
        *(pytest.param(one, marks=pytest.mark.soak) for one in SLOW_RUNS),
    ],
    ids=str,
)
def test_a_run_writes_the_tokens_of_the_cpu(options, monkeypatch):
    toy = Toy(vocab_size=50)
    settings = {"n": 3, "length": 4, "steps": 2, "seed": 4, **options}
    got = denoise(Moved(toy, DEVICE), [[5, 6], [7]], **settings)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    expected = denoise(toy, [[5, 6], [7]], **settings)
    assert got.tokens.tolist() == expected.tokens.tolist()
    assert got.commit_step.tolist() == expected.commit_step.tolist()


def test_the_sampled_rule_keeps_the_fused_push():
    events = []
    settings = {
        "n": 3,
        "length": 4,
        "steps": 2,
        "temperature": 0.2,
        "top_p": 0.9,
        "confidence": "sampled",
    }
    denoise(
        Moved(Toy(vocab_size=50), DEVICE),
        [[5, 6]],
        guide=Repulsion(alpha=8),
        observe=events.append,
        **settings,
    )
    assert all(event.logits.pushed.push is not None for event in events)


def few(S, count, rows):
    """[rows, S]: as many masked positions in each row, and where they are."""
    order = torch.rand(rows, S, generator=torch.Generator().manual_seed(2)).argsort(dim=1)
    positions = order[:, :count].sort(dim=1).values
    return torch.zeros(rows, S, dtype=torch.bool).scatter(1, positions, True), positions


@pytest.mark.parametrize("needs", ["margin", "entropy"])
@pytest.mark.parametrize("objective", [None, "odd", "odd_sequential", "dpp"])
def test_logits_of_masked_positions_alone_give_the_same_bits(objective, needs):
    logits, tokens, _ = batch(1, 3, 7, 401, "one-hot")
    masked, positions = few(7, 3, 3)
    lines = logits.gather(1, positions[..., None].expand(-1, -1, 401))
    logits[~masked] = torch.nan
    logits, lines, tokens, masked, positions = on(DEVICE, logits, lines, tokens, masked, positions)
    guide, step = objective and Repulsion(objective, alpha=8), a_step(tokens, masked, never=(0,))
    options = {"temperature": 0.7, "top_k": None, "top_p": None, "needs": needs}
    backend = dispatch.choose(DEVICE, logits.dtype, forms=guide.forms if guide else ())
    running = guide and guide.begin(ModelInfo(401, 0), backend, None, resumes=False)

    def seen(x, where):
        return look(
            Outlook(x, where, masked, step, Alarm(patient=False), backend), running, None, step
        )[0]

    one, other = seen(logits, None), seen(lines, positions)
    for a, b in ((one, other), (one.without_guide(), other.without_guide())):
        wanted, got = predict(a, **options), predict(b, **options)
        assert torch.equal(got.tokens, wanted.tokens)
        for x, y in zip(
            (got.confidence, getattr(got, needs), *got.logprobs),
            (wanted.confidence, getattr(wanted, needs), *wanted.logprobs),
            strict=True,
        ):
            assert torch.equal(x, y)
    assert torch.equal(other.pushed_logits[masked], one.pushed_logits[masked])


def test_a_network_asked_for_masked_positions_writes_the_tokens_of_the_cpu(monkeypatch):
    torch.manual_seed(0)
    network = Transformer(TransformerConfig(60, width=32, layers=2, heads=4, hidden=48, shift=True))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    settings = {
        "n": 3,
        "length": 6,
        "steps": 4,
        "temperature": 0.7,
        "guide": Repulsion("odd", alpha=8),
    }
    got = denoise(
        Native(network.to(DEVICE), name="x", mask_id=59, end_ids=(1,)), [[5, 6], [7]], **settings
    )
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    expected = denoise(
        Native(network.to("cpu"), name="x", mask_id=59, end_ids=(1,)), [[5, 6], [7]], **settings
    )
    assert got.tokens.tolist() == expected.tokens.tolist()


def test_two_pushes_have_the_same_bits():
    both = [pushed(*batch(2, 3, 2, 401, "some identical"), alpha=8.0, n=3) for _ in range(2)]
    assert torch.equal(*both)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pushed_logits_leave_committed_rows_alone_in_any_layout(dtype):
    logits, tokens, masked = on(DEVICE, *batch(1, 4, 5, 401, "some identical", dtype))
    guide = Repulsion(alpha=8, backend="triton")
    push, before = Diversifier(guide, n=4, steps=1), logits.clone()
    result = push(logits, tokens, masked, step=0)
    assert torch.equal(logits, before)
    assert torch.equal(result[~masked], logits[~masked])
    assert (result[masked] != logits[masked]).any(dim=-1).any()
    wide = torch.zeros(5, 4, 500, dtype=dtype, device=DEVICE)
    wide[..., :401] = logits.transpose(0, 1)
    for other in (wide[..., :401].transpose(0, 1), logits.mT.contiguous().mT):
        again = Diversifier(guide, n=4, steps=1)(other, tokens, masked, step=0)
        assert again.is_contiguous()
        assert torch.equal(again, result)


def test_observers_see_the_guided_logits_that_nobody_wrote(monkeypatch):
    toy, events, plain_events = Toy(vocab_size=50), [], []
    settings = {
        "n": 3,
        "length": 4,
        "steps": 2,
        "temperature": 1.0,
        "guide": Repulsion("odd", alpha=8),
    }
    denoise(Moved(toy, DEVICE), [[5, 6]], observe=events.append, **settings)
    for event in events:
        assert event.prediction.logits is None
        assert not {"base", "pushed_logits"} & set(vars(event.logits))
    looked = [(e.logprobs, e.pushed_logits, e.plain.tokens, e.force) for e in events]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    denoise(toy, [[5, 6]], observe=plain_events.append, **settings)
    for (logprobs, guided, plain, force), event in zip(looked, plain_events, strict=True):
        torch.testing.assert_close(guided.cpu(), event.pushed_logits, rtol=SINGLE, atol=8 * FUSED)
        torch.testing.assert_close(force.cpu(), event.force, rtol=SINGLE, atol=8 * FUSED)
        assert torch.equal(plain.cpu(), event.plain.tokens)
        for a, b in zip(logprobs, event.logprobs, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=8 * FUSED)


def test_a_second_batch_goes_on_from_the_first():
    logits, tokens, masked = on(DEVICE, *batch(1, 4, 3, 41))
    first = Explored()
    options = {"alpha": 8.0, "seed": 3}
    whole = diversify(logits, tokens, masked, backend="closed_form", **options)
    diversify(logits[:2], tokens[:2], masked[:2], backend="triton", record=first, **options)
    rest = diversify(logits[2:], tokens[2:], masked[2:], backend="triton", history=first, **options)
    torch.testing.assert_close(rest, whole[2:], rtol=SINGLE, atol=8 * FUSED)


@pytest.mark.parametrize(
    ("value", "what"), [(math.nan, "NaN"), (math.inf, r"\+inf"), (-math.inf, "nothing but -inf")]
)
@pytest.mark.parametrize("guide", [None, Repulsion("odd", alpha=8)], ids=["plain", "guided"])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"confidence": "sampled"}], ids=str)
def test_bad_logits_are_named(value, what, guide, options):
    class Bad(Toy):
        def __call__(self, *args):
            logits = super().__call__(*args)
            logits[1, 2, slice(None) if math.isinf(value) and value < 0 else 3] = value
            return logits

    with pytest.raises(ValueError, match=f"logits hold {what} at sample 1, position 2"):
        denoise(
            Moved(Bad(vocab_size=30), DEVICE), [[5]], n=2, length=3, steps=1, guide=guide, **options
        )


def test_what_is_absent_owns_no_column():
    logits, tokens, masked = batch(1, 3, 5, 41)
    masked[:, 3] = False
    tokens[:, 3] = ABSENT
    found = {}
    for asked, device, dtype in (
        ("triton", DEVICE, torch.float32),
        ("closed_form", torch.device("cpu"), torch.float64),
    ):
        guide = Repulsion("odd", alpha=8, backend=asked)
        backend = dispatch.choose(device, dtype, asked=asked, forms=guide.forms)
        running = guide.begin(ModelInfo(41, None), backend, None, resumes=False)
        pushed, _ = running.pushed_logits(
            logits.to(device, dtype), a_step(*on(device, tokens, masked)), None
        )
        found[asked] = pushed.cpu().double()
    torch.testing.assert_close(found["triton"], found["closed_form"], rtol=SINGLE, atol=8 * FUSED)

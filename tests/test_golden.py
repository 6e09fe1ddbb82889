"""Numbers of the published implementation: 54 updates, 21 whole runs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import oddlm

from .tolerances import GOLDEN

DATA = np.load(Path(__file__).parent / "data" / "golden.npz")
CASES = json.loads(str(DATA["index"]))
UPDATES = [c for c in CASES if c["name"].startswith("diversify/")]
RUNS = [c for c in CASES if c["name"].startswith("denoise/")]


def tensors(case: dict, *names: str) -> list[Tensor]:
    return [torch.from_numpy(DATA[f"{case['name']}/{name}"]) for name in names]


class PublishedToy:
    """The network that the golden runs were made with."""

    def __init__(self, case: dict) -> None:
        self.E, self.M, self.U, self.R = tensors(case, "E", "M", "U", "R")
        self.mask_id, self.end_ids, self.vocab_size = (
            case["mask_id"],
            case["protected"],
            len(self.E),
        )

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        logits = torch.einsum("sr,brh->bsh", self.M, self.E[tokens]) @ self.U + self.R
        logits[..., self.mask_id] = -1e9
        return logits[:, start:]


def test_all_75_cases_are_here():
    assert (len(UPDATES), len(RUNS)) == (54, 21)


@pytest.mark.parametrize(
    "rule",
    [{}, {"duplicates": "skip"}, {"backend": "reference"}, {"arithmetic": "published"}],
    ids=str,
)
@pytest.mark.parametrize(
    "case", UPDATES, ids=lambda c: f"{c['name']}-{c['objective']}-{c['feature']}"
)
def test_diversify(case, rule):
    logits, masked, tokens, protected, expected = tensors(
        case, "logits", "masked", "tokens", "protected", "expected"
    )
    options = {"objective": case["objective"], "feature": case["feature"], "alpha": case["alpha"]}
    got = oddlm.diversify(logits, tokens, masked, protected=protected.tolist(), **options, **rule)
    assert (got - logits)[masked].abs().max() > 0.1 * case["alpha"] * (len(logits) > 1)
    torch.testing.assert_close(got[masked], expected[masked], rtol=GOLDEN, atol=GOLDEN)


@pytest.mark.parametrize("case", RUNS, ids=lambda c: f"{c['name']}-{c['objective']}-{c['alpha']}")
def test_denoise(case):
    (prompt, expected) = tensors(case, "prompt", "expected")
    guide = oddlm.Repulsion(case["objective"], alpha=case["alpha"], duplicates="skip")
    shape = {
        "n": case["n"],
        "length": case["length"],
        "steps": case["steps"],
        "temperature": case["temperature"],
    }
    done = oddlm.denoise(PublishedToy(case), [prompt], guide=guide, **shape)
    assert done.tokens.tolist() == expected.tolist()
    assert done.nfe == case["steps"]

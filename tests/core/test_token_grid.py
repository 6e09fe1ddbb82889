"""Pinned tokens for a grid of settings, which a rewrite of the sampler must not change.

    python -m tests.core.test_token_grid     # writes them again after an intended numerical change

All settings are explicit, so a change of a default changes nothing here.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from oddlm import Repulsion, denoise
from oddlm.models.toy import Toy

FILE = Path(__file__).parents[1] / "data" / "token_grid.npz"
# As they were when the file was written; a new piece is not in it.
POLICIES = ("low_confidence", "random", "margin", "entropy", "threshold", "factor", "entropy_bound")
PARALLEL = ("threshold", "factor", "entropy_bound")
OBJECTIVES = ("none", "odd", "odd_sequential", "dpp", "random_probe")
PROMPTS = [[5, 6, 7], [9]]
LENGTH, N = 8, 3
Setting = dict[str, object]


def settings() -> list[Setting]:
    """The grid, then settings that differ from its first points in one more way."""
    axes = {
        "policy": POLICIES,
        "objective": OBJECTIVES,
        "temperature": (0.0, 0.7),
        "block_length": (LENGTH, 4),
        "fork": (False, True),
        "history": (False, True),
    }
    grid = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    alone = ("dpp", *PARALLEL)  # what goes on from no history
    grid = [
        one
        for one in grid
        if not (one["history"] and {one["policy"], one["objective"]} & set(alone))
    ]
    more = [
        {"top_k": 3},
        {"top_p": 0.8},
        {"order_temperature": 0.5},
        {"confidence": "sampled", "temperature": 0.7, "top_p": 0.9},
        {"suppress": (1, 2, 7)},
        {"suppress_confidence": (1, 2, 7, 8)},
        {"fork": True, "fork_temperature": 1.5},
        {"prompt_noise": 0.3},
        {"steps": 4},
        {"steps": 4, "block_length": 4},
        {"feature": "mean_pool"},
        {"feature": "positional"},
        {"feature": "ngrams"},
        {"alpha_schedule": "constant"},
        {"arithmetic": "published"},
    ]
    base = {"temperature": 0.7, "block_length": LENGTH, "fork": False, "history": False}
    pairs = itertools.product(("low_confidence", "entropy", "threshold"), ("none", "odd"), more)
    return grid + [
        base | {"policy": policy, "objective": objective} | one for policy, objective, one in pairs
    ]


def tokens(model: Toy, setting: Setting) -> np.ndarray:
    given = dict(setting)
    pieces = {
        name: given.pop(name)
        for name in ("objective", "feature", "alpha_schedule", "arithmetic")
        if name in given
    }
    pieces |= (
        {"objective": {"name": "odd", "enough": 0.5}}
        if pieces["objective"] == "odd" and "arithmetic" not in pieces
        else {}
    )
    again = given.pop("history")
    guide = None
    if pieces["objective"] != "none":
        guide = Repulsion(alpha=6.0, backend="auto", remember="exact" if again else None, **pieces)
    options = {
        "n": N,
        "length": LENGTH,
        "steps": LENGTH,
        "confidence": "full",
        "seed": 3,
        "progress": False,
    } | given
    done = denoise(model, PROMPTS, guide=guide, **options)
    if again:
        done = denoise(model, PROMPTS, guide=guide, history=done.history, **options)
    return torch.cat([done.tokens, done.commit_step], dim=1).numpy().astype(np.int16)


@pytest.fixture(scope="module")
def written() -> dict[str, np.ndarray]:
    with np.load(FILE) as stored:
        found = dict(zip(json.loads(str(stored["settings"])), stored["tokens"], strict=True))
    assert list(found) == [json.dumps(setting) for setting in settings()]
    return found


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_those_that_were_written_down(
    toy: Toy, written: dict[str, np.ndarray], policy: str, step: int
) -> None:
    for setting in [one for one in settings() if one["policy"] == policy][::step]:
        assert np.array_equal(tokens(toy, setting), written[json.dumps(setting)]), setting


def main() -> None:
    model = Toy(vocab_size=60, dtype=torch.float64)
    found = np.stack([tokens(model, setting) for setting in settings()])
    np.savez_compressed(
        FILE, tokens=found, settings=json.dumps([json.dumps(setting) for setting in settings()])
    )
    print(f"{len(found)} settings, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""A tiny network in a folder, as `oddlm train` writes it, and a recipe that trains it."""

from dataclasses import replace

import pytest
import torch

from oddlm.models.mini import MiniTokenizer, save_checkpoint
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.tasks import Problem, Score, Task

RECIPE = """
model = "{model}"
task = "tests.rl.conftest.SHORT"
problems = {{ split = "train", count = 5 }}
steps = 6
learning_rate = 3e-3
check_every = 3
checkpoint_s = 1e-9
rows = 5
settings = {{ length = 4, steps = 2, temperature = 1.0 }}
rollouts = {{ prompts = 3, n = 4, settings = {{ alpha = 4, fork = false }} }}
evaluate = {{ problems = {{ split = "tune", count = 3 }}, n = 2 }}
"""


def tiny(block_length=None, seed=0) -> Transformer:
    torch.manual_seed(seed)
    size = MiniTokenizer().size
    return Transformer(
        TransformerConfig(
            vocab_size=size, width=16, layers=2, heads=2, hidden=16, block_length=block_length
        )
    )


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_checkpoint(tiny(), folder)
    return folder


@pytest.fixture
def recipe(model, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(model=model))
    return path


def _load(*, split="train", count=4):
    first = {"train": 10, "tune": 40, "test": 70}[split]
    return [Problem(f"{split}/{i}", f"{first + i},{first - i}", i) for i in range(count)]


def _template(problem):
    return ["a", 3]


SHORT = Task(
    name="short",
    load=_load,
    prompt=lambda problem: problem.prompt,
    score=lambda problem, text: Score(len(text) < 9, text, "by its length"),
    length=4,
)
FORM = replace(SHORT, name="form", template=_template)

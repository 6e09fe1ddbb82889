"""Training of block-causal networks: what sees what, that training asks what sampling does, and a
small network that learns.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

import oddlm
from oddlm.models.mini import MiniTokenizer, save_checkpoint
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.train import scratch
from oddlm.train.blocks import answer_logits, doubled_layout
from oddlm.train.loop import corrupt
from oddlm.train.scratch import read_config, train

TOKENIZER = MiniTokenizer()
BLOCK, VOCAB, MASK, START, LENGTH = 4, 30, 29, 9, 10
LENGTHS = torch.tensor([1, 3, 4, 8, 9])  # an answer that begins at every place in a block
RECIPE = """
steps = 150
block_length = 4
learning_rate = 1e-2
warmup = 5
precision = "fp32"
compile = false
log_every = 20
check_every = 75
focal = 0.0
model = { width = 32, layers = 2, heads = 2, hidden = 64 }
[[data]]
name = "echo"
stream = "tests.train.test_blocks.echo"
count = 128
prompt = 5
length = 7
batch = 64
share = 1.0
"""


def echo(*, seed, split="train"):
    """Pairs whose answers repeat their prompts, the same ones in every split."""
    while True:
        digit = seed % 10
        yield f"{digit}\n", f"{digit}+{digit}+{digit}"


@pytest.fixture
def network():
    torch.manual_seed(0)
    config = TransformerConfig(VOCAB, width=16, layers=2, heads=2, hidden=24, block_length=BLOCK)
    network = Transformer(config).double()
    for parameter in network.parameters():  # as initialised, all logits are nearly alike
        torch.nn.init.normal_(parameter, std=0.3)
    return network


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def noisy():
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, MASK, (len(LENGTHS), START), generator=generator)
    answers = torch.randint(1, MASK, (len(LENGTHS), LENGTH), generator=generator)
    return corrupt(prompts, LENGTHS, answers, MASK, generator, BLOCK)


def test_what_sees_what(network):
    T = START + LENGTH
    mask = doubled_layout(network, T, START, LENGTHS).mask
    assert mask.shape == (len(LENGTHS), 1, 2 * T, 2 * T)
    for row, length in enumerate(LENGTHS.tolist()):
        padding = START - length
        for query in range(padding, T):
            for key in range(T):
                real, q, k = key >= padding, (query - padding) // BLOCK, (key - padding) // BLOCK
                seen = mask[row, 0, query::T, key::T]  # [clean or noisy query, clean or noisy key]
                wanted = [[real and k <= q, False], [real and k < q, real and k == q]]
                assert seen.tolist() == wanted, (row, query, key)
    assert mask.any(dim=-1).all()  # padding sees something, too


def test_both_copies_have_the_same_positions(network):
    layout = doubled_layout(network, START + LENGTH, START, LENGTHS)
    once = network.layout(START + LENGTH, START, LENGTHS)
    for twice, one in ((layout.cos, once.cos), (layout.sin, once.sin)):
        assert torch.equal(twice, torch.cat([one, one], dim=2))


def test_a_block_is_predicted_as_in_sampling(network):
    canvas, lengths, answers, mask, _ = noisy()
    found = answer_logits(network, canvas, lengths, answers)
    assert found.shape == (*answers.shape, VOCAB)
    blocks = (lengths[:, None] + torch.arange(LENGTH)) // BLOCK
    for row, column in mask.nonzero().tolist():
        open_block = blocks[row] == blocks[row, column]
        later = blocks[row] > blocks[row, column]
        tokens = torch.where(open_block, canvas[row, START:], answers[row]).masked_fill(later, MASK)
        whole = torch.cat([canvas[row, :START], tokens])[None]
        wanted = network(whole, START, lengths[row : row + 1])[0, column]
        assert (found[row, column] - wanted).abs().max() < 1e-12


def test_without_blocks_it_is_the_network_itself():
    network = Transformer(TransformerConfig(VOCAB, width=16, layers=1, heads=2, hidden=24))
    canvas, lengths, answers, *_ = noisy()
    found = answer_logits(network, canvas, lengths, answers)
    assert torch.equal(found, network(canvas, START, lengths))


def test_every_block_has_its_own_t():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.arange(4096) % 9 + 1
    prompts, answers = torch.ones(4096, 9, dtype=torch.long), torch.full((4096, LENGTH), 2)
    canvas, _, _, mask, t = corrupt(prompts, lengths, answers, MASK, generator, BLOCK)
    assert (canvas[:, :9] == 1).all()
    assert torch.equal(canvas[:, 9:] == MASK, mask)
    borders = (lengths[:, None] + torch.arange(1, LENGTH)) % BLOCK == 0
    changes = t[:, 1:] != t[:, :-1]
    assert not changes[~borders].any()
    assert changes[borders].double().mean() > 0.9  # the others have the least t twice
    assert t.min() == 1 / BLOCK
    assert t.max() < 1
    assert abs((mask / t).mean() - 1) < 0.02
    pairs = t[lengths % BLOCK == 0]
    assert abs(torch.corrcoef(torch.stack([pairs[:, 0], pairs[:, 4]]))[0, 1]) < 0.1


def test_it_learns_and_samples_with_the_exact_cache(recipe, tmp_path):
    folder = train(read_config(recipe), tmp_path / "run", device="cpu", workers=1)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.1 * losses[0]
    held_out = [line["held_out"]["echo"] for line in lines if "held_out" in line]
    assert len(held_out) == 2
    assert held_out[-1]["right"] > 0.95

    lm, uncached = oddlm.load(str(folder)), oddlm.load(str(folder), cache="off")
    info = lm.model.info
    assert (lm.model.cache, info.block_length, info.align) == ("exact", 4, "absolute")
    prompts = [f"{digit}\n" for digit in range(10)]
    settings = {"n": 2, "length": 7, "steps": 7, "temperature": 0.0, "objective": "none"}
    texts = [[s.text for s in found] for found in lm.generate(prompts, **settings)]
    assert texts == [[f"{digit}+{digit}+{digit}"] * 2 for digit in range(10)]
    assert texts == [[s.text for s in found] for found in uncached.generate(prompts, **settings)]


def test_an_ended_run_goes_on_to_the_same_weights(recipe, tmp_path, monkeypatch):
    config = read_config(recipe, steps=20, check_every=10, checkpoint_s=1e-9)
    made = scratch.make_pairs([*config.data, *config.data], workers=1)
    monkeypatch.setattr(scratch, "make_pairs", lambda *given: made)
    whole = load_file(train(config, tmp_path / "whole", device="cpu") / "model.safetensors")

    def failing(*given):
        raise KeyboardInterrupt

    out = tmp_path / "ended"
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "check", failing)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, device="cpu")
    assert torch.load(out / "checkpoint.pt", weights_only=True)["progress"]["step"] == 9
    resumed = load_file(train(config, out, device="cpu") / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    with pytest.raises(ValueError, match="block_length"):
        train(config.model_copy(update={"block_length": None}), out, device="cpu")


def test_training_starts_from_given_weights(recipe, tmp_path):
    """Also from those of a network without blocks."""
    shape = {"width": 32, "layers": 2, "heads": 2, "hidden": 64}
    base = Transformer(TransformerConfig(TOKENIZER.size, **shape))
    save_checkpoint(base, tmp_path / "base")
    config = read_config(recipe, steps=1, base=str(tmp_path / "base"), learning_rate=1e-9)
    folder = train(config, tmp_path / "run", device="cpu", workers=1)
    before, after = (load_file(f / "model.safetensors") for f in (tmp_path / "base", folder))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert oddlm.load(str(folder)).model.info.block_length == 4

    wider = config.model_copy(update={"model": config.model.model_copy(update={"hidden": 48})})
    with pytest.raises(ValueError, match=r"hidden is 48 in the recipe but 64 in its base, .*base"):
        train(wider, tmp_path / "wider", device="cpu", workers=1)
    nowhere = config.model_copy(update={"base": str(tmp_path / "nowhere")})
    with pytest.raises(ValueError, match="nowhere"):
        train(nowhere, tmp_path / "other", device="cpu", workers=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0", "block_length: .*1.*, not 0"),
        ("-4", "block_length: .*, not -4"),
        ("2.5", "block_length: .*, not 2.5"),
        ('"four"', "block_length: .*, not 'four'"),
        ("true", "block_length: .*number"),
        ("12", "block_length 12 .* 12 tokens"),
    ],
)
def test_bad_block_lengths(recipe, given, message):
    recipe.write_text(RECIPE.replace("block_length = 4", f"block_length = {given}"))
    with pytest.raises(ValueError, match=message) as told:
        read_config(recipe)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("given", [0, True, "four", 1.5])
def test_a_stored_block_length_is_checked(tmp_path, given):
    shape = {"width": 8, "layers": 1, "heads": 1, "hidden": 8}
    save_checkpoint(Transformer(TransformerConfig(TOKENIZER.size, **shape)), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "block_length": given}))
    with pytest.raises(ValueError, match=f"block_length .*{given}"):
        oddlm.load(str(tmp_path))

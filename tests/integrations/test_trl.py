"""TRL's GRPOTrainer with our rollouts: real updates of a tiny network, and what its loss sees."""

import warnings
from itertools import pairwise

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

from oddlm import wrap
from oddlm.integrations.trl import (
    DiffusionGRPOTrainer,
    DiverseRollouts,
    hidden_part,
    masked_logprobs,
)
from oddlm.likelihood import hidden_logprobs

from .bidirectional import EOS, MASK, PAD, VOCABULARY, network, tokenizer

LENGTH = 6
PUSH = {"alpha": 6.0, "alpha_end": 1.0, "steps": 3}
pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL: its rollout_func is experimental


def make(folder, prompts=("w5 w6", "w7 w8 w9"), kind=DiffusionGRPOTrainer, push=PUSH, **options):
    seen = []

    def reward(completion_ids, step_maps, importance_weights, **_):
        seen.append((completion_ids, step_maps, importance_weights))
        return [float(sum(token % 2 for token in ids)) for ids in completion_ids]

    args = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=LENGTH,
        max_steps=2,
        learning_rate=0.01,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        **options,
    )
    trainer = kind(
        model=network(),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer(),
        rollout_func=DiverseRollouts(**push),
    )
    return trainer, seen


@pytest.mark.parametrize("options", [{}, {"num_iterations": 2}])
def test_two_updates(tmp_path, options):
    trainer, seen = make(tmp_path, **options)
    weights, losses = [], []

    def snapshot(*_, **__):
        weights.append(trainer.model.lm_head.weight.detach().clone())

    snapshot()
    trainer.callback_handler.callbacks[0].on_step_end = snapshot
    loss = trainer._compute_loss
    trainer._compute_loss = lambda *given: losses.append(loss(*given)) or losses[-1]
    trainer.train()
    assert trainer.state.global_step == 2
    assert len(weights) == 3
    for before, after in pairwise(weights):
        assert (before - after).abs().max() > 1e-4
    assert torch.stack([x.detach() for x in losses]).isfinite().all()
    assert len(seen) == (1 if options else 2), "an iteration draws nothing"
    for ids, steps, given in seen:
        assert len(ids) == 8
        for one, step_map, weight in zip(ids, steps, given, strict=True):
            assert len(one) == len(step_map) == len(weight)
            assert EOS not in one[:-1]
            assert MASK not in one
            assert set(step_map) <= {1, 2, 3}
        for group in (ids[:4], ids[4:]):
            assert len({tuple(one) for one in group}) > 1
        assert all(weight == 1.0 for weight in given[0]), "the first of a group is not pushed"
        assert any(weight != 1.0 for one in given for weight in one)


def test_the_network_is_shared_and_keeps_its_mode(tmp_path):
    trainer, _ = make(tmp_path)
    diverse = trainer.rollout_func
    trainer.model.train()
    first = diverse(["w5 w6"] * 4, trainer)
    assert trainer.model.training
    assert diverse.lm(trainer).model.network is trainer.model
    assert diverse.lm(trainer) is diverse.lm(trainer)
    assert first["completion_ids"] != diverse(["w5 w6"] * 4, trainer)["completion_ids"]
    params = diverse._params(trainer)
    assert (params.length, params.temperature) == (LENGTH, trainer.args.temperature)


def test_groups_are_found_among_neighbours(tmp_path):
    trainer, _ = make(tmp_path)
    prompts = ["w5 w6", "w7", "w7", "w7", "w5 w6"]
    found = trainer.rollout_func(prompts, trainer)
    assert found["prompt_ids"] == [[5, 6], [7], [7], [7], [5, 6]]
    assert all(w == 1.0 for i in (0, 1, 4) for w in found["importance_weights"][i])
    assert found["completion_ids"][0] != found["completion_ids"][4]
    chats = [[{"role": "user", "content": "w5"}]]
    assert trainer.rollout_func(chats, trainer)["prompt_ids"] == [[5, 3]]


def padded(rows, side, fill):
    width = max(map(len, rows))
    pads = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor(
        [p + r if side == "left" else r + p for p, r in zip(pads, rows, strict=True)]
    )


@pytest.mark.parametrize("shift", [False, True])
def test_the_estimate_is_the_networks_own(shift):
    one = network().eval()
    lm = wrap(one, tokenizer(), shift=shift, raw=True)
    prompts, answers = [[5, 6], [7, 8, 9]], [[4, 5, 6, 7, EOS], [9, 8, 7]]
    ids = torch.cat([padded(prompts, "left", PAD), padded(answers, "right", PAD)], dim=1)
    seen = torch.cat(
        [padded([[1] * len(x) for x in rows], side, 0) for rows, side in
         ((prompts, "left"), (answers, "right"))], dim=1
    )  # fmt: skip
    found, entropy = masked_logprobs(
        one, ids, seen, 5, mask_id=MASK, shift=shift, pairs=2, seed=3, entropy=True
    )
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = torch.tensor([answer])
        expected = torch.zeros(len(answer), dtype=torch.float64)
        for pair in range(2):
            some = hidden_part(tokens, torch.ones_like(tokens).bool(), 3, pair)
            for hidden in (some, ~some):
                expected += hidden_logprobs(lm.model, [prompt], tokens, hidden)[0] / 2
        assert (found[row, : len(answer)] - expected).abs().max() < 1e-5
    assert (found[1, 3:] == 0).all()
    assert ((entropy >= 0) & (entropy < torch.tensor(VOCABULARY).log())).all()
    assert (entropy[1, 3:] == 0).all()
    options = {"mask_id": MASK, "shift": shift}
    alone, _ = masked_logprobs(one, ids[1:, :-2], seen[1:, :-2], 3, pairs=2, seed=3, **options)
    assert (alone - found[1:, :3]).abs().max() < 1e-5
    other, _ = masked_logprobs(one, ids, seen, 5, mask_id=MASK, shift=shift, seed=4)
    assert (other - found).abs().max() > 1e-3
    (found[seen[:, -5:].bool()].sum()).backward()
    assert all(p.grad is not None for p in one.parameters())


def test_advantages_carry_the_weights(tmp_path):
    trainer, seen = make(tmp_path)
    trainer.model.train()
    inputs = [{"prompt": prompt} for prompt in ["w5 w6"] * 4 + ["w7 w8 w9"] * 4]
    batch = trainer._generate_and_score_completions(inputs)
    (ids, _, weights) = seen[-1]
    rewards = torch.tensor([float(sum(t % 2 for t in one)) for one in ids]).view(2, 4)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    for i, weight in enumerate(weights):
        expected = advantages.flatten()[i] * torch.tensor(weight)
        assert torch.allclose(batch["advantages"][i, : len(weight)], expected, atol=1e-5)


def test_bad_input(tmp_path):
    trainer, _ = make(tmp_path)
    with pytest.raises(ValueError, match="pairs"):
        masked_logprobs(None, torch.ones(1, 2), torch.ones(1, 2), 1, mask_id=MASK, pairs=0)
    with pytest.raises(ValueError, match="router_aux_loss_coef"):
        trainer._get_per_token_logps_and_entropies(None, None, None, 1, compute_aux_loss=True)
    trainer.rollout_func = None
    with pytest.raises(ValueError, match=r"None.*DiverseRollouts"):
        trainer._generate(["w5"])
    assert issubclass(DiffusionGRPOTrainer, GRPOTrainer)

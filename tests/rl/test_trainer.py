"""The run: it resumes bit for bit, processes learn together, and it never trains on its tests."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import oddlm
from oddlm.config import checked
from oddlm.rl import trainer
from oddlm.rl.config import RlConfig, read_rl_config
from oddlm.rl.trainer import Training, train
from oddlm.train.loop import Place

from ..starting import hearing_ctrl_c

HERE = Place(0, 1, "cpu")


def log_of(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_an_interrupted_run_ends_with_the_same_weights_and_log(recipe, tmp_path, monkeypatch):
    config = read_rl_config(recipe, ["reuse=2", "kl=0.1", "steps=12"])
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    weights = load_file(train(config, whole, device="cpu") / "model.safetensors")

    def loss_at(self, step):
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return Training.loss_at(self, step)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(
            trainer, "Training", type("Interrupted", (Training,), {"loss_at": loss_at})
        )
        with hearing_ctrl_c(), pytest.raises(KeyboardInterrupt):
            train(config, stopped, device="cpu")
    done = torch.load(stopped / "checkpoint.pt", weights_only=True)["progress"]["step"]
    assert done == 6  # the rollouts of step 4 are used up
    torch.manual_seed(99)  # what was drawn before does not matter
    resumed = load_file(train(config, stopped, device="cpu") / "model.safetensors")
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert log_of(stopped) == log_of(whole)
    assert [line["step"] for line in log_of(whole) if "held_out" in line] == [0, 3, 6, 9, 12]
    with pytest.raises(ValueError, match="kl"):
        train(read_rl_config(recipe, ["reuse=2", "kl=0.2", "steps=12"]), stopped, device="cpu")


def test_two_processes_do_the_work_of_one(recipe, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    changes = ["steps=3", "check_every=3", "rollouts.prompts=2"]
    words = [str(recipe), "--out", str(together), "--device", "cpu"]
    words += [word for change in changes for word in ("--set", change)]
    several = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, "-m", *several, "-m", "oddlm", "rl", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    config = read_rl_config(recipe, [*changes, "rollouts.prompts=4"])
    train(config, alone, device="cpu")
    first, other = log_of(alone), log_of(together)
    assert first[0]["held_out"] == other[0]["held_out"]  # problems are shared out among processes
    assert first[1]["reward"] == other[1]["reward"]
    begun, one, two = (
        torch.cat([x.flatten() for x in weights.values()])
        for weights in (
            load_file(Path(config.model) / "model.safetensors"),
            *(torch.load(run / "checkpoint.pt")["network"] for run in (alone, together)),
        )
    )
    moved = torch.nn.functional.cosine_similarity(one - begun.float(), two - begun.float(), dim=0)
    assert moved > 0.95


def test_what_is_logged_and_measured(recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config, out = read_rl_config(recipe), tmp_path / "run"
    folder = train(config, out, device="cpu", track=["tensorboard"])
    (page,) = (out / "tensorboard").iterdir()
    read = EventAccumulator(str(page)).Reload()
    lines = log_of(tmp_path / "run")
    updates = [line for line in lines if "loss" in line]
    assert len(updates) == 6
    assert all(0 <= line["reward"] <= 1 and 0 <= line["mixed"] <= 1 for line in updates)
    tracked = [event.value for event in read.Scalars("reward")]
    assert tracked == pytest.approx([line["reward"] for line in updates])
    assert [event.step for event in read.Scalars("held_out/plain/pass@2")] == [0, 3, 6]
    assert {line["weight"] for line in updates} != {1.0}  # the rollouts are pushed
    for line in lines:
        for found in line.get("held_out", {}).values():
            assert found["pass@1"] == pytest.approx(sum(found["right"]) / 2 / 3, abs=1e-4)
            assert found["pass@2"] == pytest.approx(sum(map(bool, found["right"])) / 3, abs=1e-4)
            assert found["entropy"] > 0
    lm = oddlm.load(str(folder))
    assert lm.sample("10,20", n=2, length=4)[0].tokens


def test_rewards_are_learned(recipe, tmp_path):
    changes = ["steps=30", "check_every=30", "rollouts.prompts=8", "rollouts.n=8", "rows=64"]
    changes += ["learning_rate=1e-2", "rollouts.settings.alpha=0"]
    train(read_rl_config(recipe, [*changes, "estimator=d1"]), tmp_path / "run", device="cpu")
    rewards = [line["reward"] for line in log_of(tmp_path / "run") if "loss" in line]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_every_problem_is_met_before_one_comes_again(recipe):
    config = read_rl_config(recipe)
    training = Training(config, HERE, oddlm.load(config.model))
    met = [training._problem(place).id for update in range(5) for place in training._places(update)]
    assert all(sorted(met[i : i + 5]) == sorted(set(met)) for i in (0, 5, 10))
    assert met[:5] != met[5:10]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["estimator=exact"], "exact"),
        (["loss=ppo"], "ppo"),
        (["reuse=4"], "reuse 4"),
        (["rollouts.settings.pool=8"], "pool"),
        (["settings.temperature=0"], "temperature 0"),
        (["rollouts.settings.alpa=8"], "alpa"),
        (["evaluate.methods.plain.n=0"], "n"),
        (["wings=2"], "wings"),
        (["steps"], "steps"),
        (["steps.first=1"], "steps"),
    ],
)
def test_bad_recipes(recipe, changes, named):
    with pytest.raises(ValueError, match=named):
        read_rl_config(recipe, changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["model=toy"], "toy .* trained"),
        (["model=mini2"], "unknown model 'mini2'"),
        (["rollouts.settings.length=999"], "length 999"),
        (["evaluate.methods.plain.length=998"], "length 998"),
        (["evaluate.problems.split=train"], "train/0"),
        (["task=tests.rl.conftest.FORM", "estimator=coupled"], "coupled"),
    ],
)
def test_runs_that_cannot_begin(recipe, tmp_path, changes, named):
    with pytest.raises(ValueError, match=named):
        train(read_rl_config(recipe, changes), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "log.jsonl").exists(), "nothing was measured"


def test_a_file_is_no_folder_for_a_run(recipe):
    with pytest.raises(ValueError, match=str(recipe)):
        train(read_rl_config(recipe), recipe, device="cpu")


def test_a_tracker_of_problems_cannot_follow_training(recipe, tmp_path):
    with pytest.raises(ValueError, match=r"test_trackers\.Diary"):
        train(
            read_rl_config(recipe),
            tmp_path / "run",
            device="cpu",
            track=["tests.experiments.test_trackers.Diary"],
        )


def test_the_guide_names_every_key_and_its_default():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "rl.md").read_text()
    recipe = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[-1])
    needed = {"task": "countdown", "steps": 1, "learning_rate": 1.0}
    usual = checked(RlConfig, needed).model_dump()
    assert recipe.keys() | {"advantage"} == usual.keys()
    free = {*needed, "protocol", "settings"}
    assert {k: v for k, v in recipe.items() if k not in free} == {
        k: v for k, v in usual.items() if k not in {*free, "advantage"}
    }


def test_given_text_in_answers_is_not_learned(recipe):
    config = read_rl_config(recipe, ["task=tests.rl.conftest.FORM"])
    training = Training(config, HERE, oddlm.load(config.model))
    training.loss_at(0)
    assert training.held.counted.sum(dim=1).max() <= 3
    assert torch.equal(training.held.weights == 0, ~training.held.counted)

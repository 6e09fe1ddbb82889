"""Rewards of samples: those of a function, or the verdicts of a task."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import isfinite
from typing import Any

from torch import Tensor

from ..drawing import Samples
from ..prompts import Template
from ..tasks import Problem, Task, check_scoring, find_task

Reward = Callable[[Samples], Sequence[float]]  # the samples of one prompt -> a number for each


def pose(
    prompts: Sequence[Any],
    reward: Reward | Task | str | None,
    templates: Sequence[Template] | None,
) -> tuple[list[str | Sequence[int]], Sequence[Template] | None, Reward | None]:
    """Return the prompts as texts or ids, their templates, and the function that rewards."""
    problems = [prompt for prompt in prompts if isinstance(prompt, Problem)]
    task = find_task(reward) if isinstance(reward, str) else reward
    if not isinstance(task, Task):
        if problems:
            raise ValueError("prompts holds problems: pass their task, or its name, as reward")
        return [p.tolist() if isinstance(p, Tensor) else p for p in prompts], templates, task
    if len(problems) != len(prompts):
        raise ValueError(f"reward is the task {task.name!r}: prompts must be its problems")
    check_scoring(task, unsafe=False)
    if task.template is not None and templates is None:
        templates = [task.template(problem) for problem in problems]
    return [task.prompt(problem) for problem in problems], templates, _verdicts(task, problems)


def _verdicts(task: Task, problems: Sequence[Problem]) -> Reward:
    """Return the reward of a task: 1.0 if right. Equal texts are scored once."""

    def reward(samples: Samples) -> list[float]:
        problem = problems[samples[0].prompt]
        texts = list(dict.fromkeys(sample.text for sample in samples))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            scores = list(pool.map(lambda text: task.score(problem, text).correct, texts))
        right = dict(zip(texts, scores, strict=True))
        return [float(right[sample.text]) for sample in samples]

    return reward


def rewards_of(reward: Reward, groups: Sequence[Samples], first: int) -> list[list[float]]:
    """Return the rewards of some prompts, the first of which has the index `first`."""
    found = []
    for i, group in enumerate(groups, first):
        samples = Samples(replace(sample, prompt=i) for sample in group)
        given = reward(samples)
        try:
            numbers = [float(x) for x in given]
        except (TypeError, ValueError):
            raise ValueError(f"reward returned {given!r:.80} for prompts[{i}]") from None
        if len(numbers) != len(samples):
            raise ValueError(
                f"reward returned {len(numbers)} numbers for the {len(samples)} samples of "
                f"prompts[{i}]"
            )
        if bad := [x for x in numbers if not isfinite(x)]:
            raise ValueError(f"reward returned {bad[0]} for prompts[{i}]")
        found.append(numbers)
    return found

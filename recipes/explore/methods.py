"""The methods of docs/exploration.md: the settings that each fixes, and those that are tuned.

For all methods, the settings of plain sampling are tuned as well.
"""

from dataclasses import dataclass, field
from typing import Any

from oddlm.tasks import find_task

# name: (task, protocol, tokens, the `eos` that suits plain sampling: the start of every search)
TASKS = {
    "countdown-3": ("countdown", "exploration_3", 16, "late"),
    "countdown-4": ("countdown", "exploration_4", 24, "late"),
    "countdown-5": ("countdown", "exploration_5", 32, "late"),
    "minicode": ("minicode", "exploration", 64, "free"),
}
# the tasks with a second and a third look, and with a pool of 32 in half the steps
PAIR = ("countdown-4", "minicode")
# values of settings that results leave out; the package's defaults were chosen by these results
UNSAID = {"alpha": 8.0, "fork": False}
PUSH = {"alpha": "1..32:log", "alpha_schedule": ["linear", "constant", "cosine"]}


@dataclass(frozen=True)
class Method:
    """A method and its search space."""

    fixed: dict[str, Any] = field(default_factory=dict)  # settings that define it
    space: dict[str, Any] = field(default_factory=dict)  # tuned in addition to plain sampling's
    start: dict[str, Any] = field(default_factory=dict)  # the first settings tried

    @property
    def pushes(self) -> bool:
        return "alpha" in self.space


def _plain(
    fixed: dict[str, Any] | None = None, space: dict[str, Any] | None = None, **start: Any
) -> Method:
    return Method({"objective": "none", "alpha": 0.0, **(fixed or {})}, space or {}, start)


def _odd(
    fixed: dict[str, Any] | None = None, space: dict[str, Any] | None = None, **start: Any
) -> Method:
    both = {"alpha": 8.0, "alpha_schedule": "linear", **start}
    objective = {} if "objective" in (space or {}) else {"objective": "odd"}
    return Method({**objective, **(fixed or {})}, {**PUSH, **(space or {})}, both)


def _feature(*features: dict[str, Any]) -> Method:
    return _odd({}, {"feature": list(features)}, feature=features[0])


METHODS = {
    "plain": _plain(),
    "order": _plain({}, {"order_temperature": "0.1..3:log"}, order_temperature=1.0),
    "fork": _plain({"fork": True}),
    "fork_drawn": _plain({"fork": True}, {"fork_temperature": "0.1..3:log"}, fork_temperature=1.0),
    "prompt_noise": _plain({}, {"prompt_noise": "0.05..2:log"}, prompt_noise=0.5),
    "odd": _odd(),
    "odd_sequential": _odd({"objective": "odd_sequential"}),
    "dpp": _odd({"objective": "dpp"}),
    "random_probe": _odd({"objective": "random_probe"}),
    "odd_semantic": _feature(
        {"name": "mean_pool", "space": "semantic"}, {"name": "max_pool", "space": "semantic"}
    ),
    "odd_reduced": _feature({"name": "max_pool", "rank": 128}, {"name": "max_pool", "rank": 32}),
    "odd_ngrams": _feature({"name": "ngrams"}, {"name": "ngrams", "order": 3}),
    "odd_enough": _odd(
        {},
        {"objective": [{"name": "odd", "enough": enough} for enough in (0.25, 0.5, 1.0)]},
        objective={"name": "odd", "enough": 0.5},
    ),
    "odd_order": _odd({}, {"order_temperature": "0.1..3:log"}, order_temperature=0.5),
    "odd_fork": _odd({"fork": True}),
}


def steps_of(task: str) -> int:
    name, protocol, _, _ = TASKS[task]
    return int(find_task(name).under(protocol).steps or 0)


def base_space(task: str, method: Method) -> dict[str, Any]:
    """Return the search space of plain sampling.

    It does not include the steps: all methods have the same number of network evaluations.
    """
    length = TASKS[task][2]
    knobs = {
        "policy": ["low_confidence", "margin", "entropy"],
        "eos": ["free", "late"],
        "block_length": [None, length // 2],
        "temperature": "0..2",
    }
    return knobs if method.pushes else {**knobs, "top_p": [None, 0.9]}


def base_start(task: str, method: Method) -> dict[str, Any]:
    known = {
        "policy": "low_confidence",
        "eos": TASKS[task][3],
        "block_length": None,
        "temperature": 1.0,
    }
    return {**known, **({} if method.pushes else {"top_p": None}), **method.start}


def refined(task: str) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of the second look, as many for plain sampling as for our candidates.

    They are around the start of all searches, which no random trial has beaten by much.
    """
    base = {"policy": "low_confidence", "eos": TASKS[task][3], "length": TASKS[task][2]}
    plain = [
        {
            **base,
            "objective": "none",
            "alpha": 0.0,
            "temperature": temperature,
            "top_p": top_p,
            "policy": policy,
        }
        for policy in ("low_confidence", "margin")
        for temperature in (0.75, 1.0, 1.25, 1.5)
        for top_p in (None, 0.9, 0.8)
    ]
    ours = [
        {**base, "objective": objective, "alpha": alpha, "temperature": temperature, "fork": fork}
        for objective in ("odd", {"name": "odd", "enough": 0.5})
        for fork in (False, True)
        for temperature in (0.5, 1.0)
        for alpha in (2.0, 4.0, 8.0)
    ]
    return {"plain": plain, "ours": ours}


def third(task: str) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of the third look, the only one large enough to resolve one point.

    They are the best of the earlier looks and what those left out: drawn forks, top-p and commit
    order, each together with a push. Plain sampling gets as many settings.
    """
    length = TASKS[task][2]
    base = {"policy": "low_confidence", "eos": TASKS[task][3], "length": length}
    plain = [
        {
            **base,
            "objective": "none",
            "alpha": 0.0,
            "temperature": temperature,
            "top_p": top_p,
            **other,
        }
        for other, temperatures, top_ps in (
            ({}, (0.9, 1.0, 1.1, 1.25, 1.33, 1.5), (None, 0.95, 0.9)),
            ({"policy": "margin"}, (0.9, 1.0, 1.1, 1.25, 1.4), (None, 0.9)),
            ({"policy": "entropy"}, (0.9, 1.0, 1.1, 1.25, 1.4), (None, 0.9)),
            ({"block_length": length // 2}, (0.9, 1.0, 1.1, 1.25, 1.4), (None, 0.9)),
        )
        for temperature in temperatures
        for top_p in top_ps
    ]
    odd, enough = "odd", {"name": "odd", "enough": 0.5}
    drawn = {"fork": True, "fork_temperature": 1.0}
    ours = [
        *[
            {
                "objective": objective,
                "alpha": alpha,
                "temperature": temperature,
                **drawn,
                "fork_temperature": heat,
            }
            for heat in (0.5, 1.0)
            for objective in (odd, enough)
            for temperature in (0.5, 1.0)
            for alpha in (2.0, 4.0, 8.0)
        ],
        *[
            {"objective": objective, "alpha": alpha, "temperature": 1.0, "top_p": 0.9, **fork}
            for fork in ({}, drawn)
            for objective in (odd, enough)
            for alpha in (4.0, 8.0, 12.0)
        ],
        *[
            {
                "objective": objective,
                "alpha": alpha,
                "temperature": 0.5,
                "order_temperature": 0.3,
                **drawn,
            }
            for objective in (odd, enough)
            for alpha in (2.0, 4.0, 8.0)
        ],
        *[
            {"objective": objective, "alpha": alpha, "temperature": temperature, "fork": fork}
            for objective, alpha, temperature, fork in (
                (enough, 4.0, 0.5, True),
                (odd, 2.0, 0.5, True),
                (odd, 4.0, 0.5, True),
                (enough, 8.0, 0.5, False),
                (enough, 8.0, 1.0, False),
                (odd, 8.0, 1.0, False),
            )
        ],
    ]
    return {"plain": plain, "ours": [{**base, **own} for own in ours]}

"""Many different good answers out of diffusion language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.guide import Guide as Guide
    from .core.model import Drafting as Drafting
    from .core.model import Model as Model
    from .core.model import ModelInfo as ModelInfo
    from .core.model import Query as Query
    from .core.model import Session as Session
    from .core.model import open_session as open_session
    from .core.policies import policy as policy
    from .core.run import advance as advance
    from .core.state import State as State
    from .core.step import Denoised as Denoised
    from .core.step import History as History
    from .core.step import Policy as Policy
    from .core.step import Prediction as Prediction
    from .core.step import Proposal as Proposal
    from .core.step import Sample as Sample
    from .core.step import Step as Step
    from .core.step import StepEvent as StepEvent
    from .diversity.diversify import Diversifier as Diversifier
    from .diversity.diversify import diversify as diversify
    from .diversity.memory import Explored as Explored
    from .diversity.repulsion import Repulsion as Repulsion
    from .drawing import Samples as Samples
    from .likelihood import Bound as Bound
    from .lm import LM as LM
    from .lm import load as load
    from .lm import wrap as wrap
    from .params import SampleParams as SampleParams
    from .rolling import Rollouts as Rollouts
    from .rolling import rollouts as rollouts
    from .rolling import sync as sync
    from .sampler import begin as begin
    from .sampler import denoise as denoise
    from .sampler import denoise_steps as denoise_steps
    from .spec import RunSpec as RunSpec
    from .store import Store as Store
    from .tasks import Problem as Problem
    from .tasks import Score as Score
    from .tasks import Task as Task
    from .voting import Answer as Answer

__version__ = "0.2.0"

# Resolved on first use: `import oddlm` and the command line start without torch.
_PUBLIC = {
    "Answer": "voting",
    "Bound": "likelihood",
    "Denoised": "core.step",
    "Diversifier": "diversity.diversify",
    "Drafting": "core.model",
    "Explored": "diversity.memory",
    "Guide": "core.guide",
    "History": "core.step",
    "LM": "lm",
    "Model": "core.model",
    "ModelInfo": "core.model",
    "Policy": "core.step",
    "Prediction": "core.step",
    "Problem": "tasks",
    "Proposal": "core.step",
    "Query": "core.model",
    "Repulsion": "diversity.repulsion",
    "Rollouts": "rolling",
    "RunSpec": "spec",
    "Sample": "core.step",
    "SampleParams": "params",
    "Samples": "lm",
    "Score": "tasks",
    "Session": "core.model",
    "State": "core.state",
    "Step": "core.step",
    "StepEvent": "core.step",
    "Store": "store",
    "Task": "tasks",
    "advance": "core.run",
    "begin": "sampler",
    "denoise": "sampler",
    "denoise_steps": "sampler",
    "diversify": "diversity.diversify",
    "load": "lm",
    "open_session": "core.model",
    "policy": "core.policies",
    "rollouts": "rolling",
    "sync": "rolling",
    "wrap": "lm",
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'oddlm' has no attribute {name!r}")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

"""Many different good answers out of diffusion language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .diversity.guide import Repulsion as Repulsion
    from .diversity.guide import diversify as diversify
    from .diversity.memory import Explored as Explored
    from .generate import LM as LM
    from .generate import Samples as Samples
    from .generate import load as load
    from .generate import wrap as wrap
    from .params import SampleParams as SampleParams
    from .sampler import denoise as denoise
    from .sampler import denoise_steps as denoise_steps
    from .types import Denoised as Denoised
    from .types import History as History
    from .types import Model as Model
    from .types import Prediction as Prediction
    from .types import Sample as Sample
    from .types import Step as Step
    from .types import StepEvent as StepEvent

__version__ = "0.1.0"

# Resolved on first use: `import oddlm` and the command line start without torch.
_PUBLIC = {
    "Denoised": "types",
    "Explored": "diversity.memory",
    "History": "types",
    "LM": "generate",
    "Model": "types",
    "Prediction": "types",
    "Repulsion": "diversity.guide",
    "Sample": "types",
    "SampleParams": "params",
    "Samples": "generate",
    "Step": "types",
    "StepEvent": "types",
    "denoise": "sampler",
    "denoise_steps": "sampler",
    "diversify": "diversity.guide",
    "load": "generate",
    "wrap": "generate",
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'oddlm' has no attribute {name!r}")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

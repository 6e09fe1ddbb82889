"""Untrusted Python, run so that it can neither harm nor lie; fails closed."""

from .jail import SandboxError, require_sandbox
from .run import Limits, Verdict, run_python

__all__ = ["Limits", "SandboxError", "Verdict", "require_sandbox", "run_python"]

"""The identity of a run: digests and versions of its model, data and task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..models import check_model, model_digest
from ..spec import RunSpec
from ..tasks import task_identity
from ..versions import SCORING
from .stages import task_of


def identified(spec: RunSpec) -> RunSpec:
    """Return the spec with the current digests and versions of its model, data and task.

    Raises ValueError if there is no such model or task.
    """
    task = task_of(spec)
    identity: dict[str, Any] = {"scorer_version": str(SCORING)}  # without a task: of the measures
    if task is not None and spec.task is not None:
        data = None if spec.data is None else Path(spec.data)
        identity = task_identity(spec.task, task, data, spec.split)
    digest = model_digest(spec.model, revision=spec.loading.revision)
    return spec.model_copy(update={"model_digest": digest, **identity})


def with_models(
    specs: Sequence[RunSpec], *, only_look: bool
) -> tuple[list[RunSpec], tuple[str, ...]]:
    """Return the specs with the digests of their models, and why some digests are unknown."""
    digests: dict[Any, str | None] = {}
    unknown: list[str] = []
    for spec in specs:
        key = (spec.model, spec.loading.revision)
        if spec.model_digest is not None or key in digests:
            continue
        digests[key] = None
        check_model(spec.model, **spec.loading.options())
        try:
            digests[key] = model_digest(spec.model, revision=spec.loading.revision)
        except ValueError as error:
            if not only_look:
                raise
            unknown.append(str(error))
    found = [
        spec.model_copy(
            update={"model_digest": spec.model_digest or digests[spec.model, spec.loading.revision]}
        )
        for spec in specs
    ]
    return found, tuple(unknown)


def check_identified(spec: RunSpec) -> None:
    """Raise ValueError for a spec without digests: it would find the records of other weights."""
    for name in ("model_digest", "scorer_version"):
        if getattr(spec, name) is None:
            raise ValueError(
                f"the spec of model {spec.model!r} has no {name}, so runs with other weights or "
                "scorers would have the same id: use oddlm.experiments.identity.identified(spec)"
            )

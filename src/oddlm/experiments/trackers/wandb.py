"""The tracker for Weights & Biases."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...spec import RunSpec
from .pages import PROJECT, Numbers, Page, Pages, described


def wandb(folder: Path) -> Pages:
    """Log to Weights & Biases, as configured by WANDB_MODE, WANDB_PROJECT, WANDB_DIR, ..."""
    import wandb

    if os.environ.get("WANDB_MODE", "online") in ("online", "shared"):
        try:
            wandb.Api()
        except wandb.errors.UsageError as error:
            raise ValueError(f"{error} Or set WANDB_MODE=offline.") from error

    def open_page(spec: RunSpec, problems: int) -> Page:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=spec.id,
            config=described(spec, problems),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )
        return _Page(run)

    return Pages(open_page)


@dataclass(frozen=True)
class _Page:
    run: Any

    def log(self, numbers: Numbers, step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def end(self, numbers: Numbers | None) -> None:
        self.run.summary.update(dict(numbers or {}))
        self.run.finish(exit_code=1 if numbers is None else 0)

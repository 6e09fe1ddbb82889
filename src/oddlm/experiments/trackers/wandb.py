"""The tracker for Weights & Biases."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .pages import PROJECT, Numbers, Page, Pages


def wandb(folder: Path) -> Pages:
    """Log to Weights & Biases, as configured by WANDB_MODE, WANDB_PROJECT, WANDB_DIR, ..."""
    import wandb

    if os.environ.get("WANDB_MODE", "online") in ("online", "shared"):
        try:
            wandb.Api()
        except wandb.errors.UsageError as error:
            raise ValueError(f"{error} Or set WANDB_MODE=offline.") from error

    def open_page(run_id: str, settings: Mapping[str, Any]) -> Page:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id,
            config=dict(settings),
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

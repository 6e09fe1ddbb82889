"""A run that is open for writing, with what is left of it."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..store import Stage, Store, Summary, Writer
from ..tasks import Problem
from .busy import Window
from .plan import Asked
from .stages import summarise


@dataclass
class OpenRun:
    """A run that is being written."""

    asked: Asked
    stages: tuple[Stage, ...]
    writer: Writer
    closing: ExitStack
    left: set[str]  # ids of the problems that are neither done nor failed
    by_id: dict[str, Problem]
    failed: bool = False
    environments: list[dict[str, Any]] = field(default_factory=list)  # logged so far
    window: Window = field(default_factory=Window)

    @property
    def complete(self) -> bool:
        """Whether all requested problems have passed the last stage."""
        return self.by_id.keys() <= _done(self.writer, self.stages)

    def note_environment(self, environment: dict[str, Any], stage: Stage) -> None:
        """Log the environment of a worker, once for every kind of worker that adds to the run."""
        timeless = {key: value for key, value in environment.items() if key != "time"}
        entry = {"stage": stage, **timeless}
        if environment and entry not in self.environments:
            self.environments.append(entry)
            self.writer.start({"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry})

    def note_network(self) -> None:
        """Log how busy the network was, if anything was drawn."""
        if (network := self.window.network()) is not None:
            self.writer.busy(network)

    def finish(self) -> Summary | None:
        """Return the summary, and store it if it is new; None if drawn problems lack scores."""
        writer = self.writer
        if not writer.scored or writer.scored != writer.digests.keys():
            return None
        summary = writer.summary
        if summary is None or summary.problems < len(writer.scored):
            # sorted, because the rounding of sums depends on the order
            scores = sorted(writer.scores(), key=lambda record: record.problem)
            summary = summarise(self.asked.spec, scores)
            writer.finish(summary)
        return summary


def open_run(
    store: Store, asked: Asked, digests: Mapping[str, str], stages: tuple[Stage, ...]
) -> OpenRun:
    """Lock and open a run whose problems have these digests, and forget failures to be retried."""
    with ExitStack() as stack:
        writer = stack.enter_context(store.open(asked.spec, len(asked.problems), digests))
        writer.clear_failures(stages)
        closing = stack.pop_all()
    by_id = {problem.id: problem for problem in asked.problems}
    possible = by_id.keys() if "draw" in stages else by_id.keys() & writer.digests.keys()
    left = set(possible - _done(writer, stages))
    return OpenRun(asked, stages, writer, closing, left, by_id)


def _done(writer: Writer, stages: tuple[Stage, ...]) -> set[str]:
    return writer.scored if "score" in stages else set(writer.digests)

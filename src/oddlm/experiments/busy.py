"""How much of the time of a plan or a run the network was busy."""

import time
from dataclasses import dataclass, field

from ..store import Network


@dataclass
class Window:
    """The time since the first drawing began, and how much of it workers have drawn.

    Times are those of the driver's clock: workers may be on other machines.
    """

    began: float | None = None
    busy: float = 0.0  # seconds, summed over workers
    workers: set[str] = field(default_factory=set)

    @property
    def open(self) -> bool:
        return self.began is not None

    def drew(self, worker: str, seconds: float) -> None:
        """Add a drawing that has just ended; what lies before the window does not count."""
        now = time.monotonic()
        if self.began is None:
            self.began = now - seconds
        self.busy += min(seconds, now - self.began)
        self.workers.add(worker)

    def network(self) -> Network | None:
        """Return the share of the window so far; None if nothing was drawn."""
        if self.began is None:
            return None
        seconds = time.monotonic() - self.began
        whole = seconds * len(self.workers)
        return Network(seconds=seconds, busy=min(1.0, self.busy / whole) if whole else 1.0)

"""The worker is this process: no copy of the model, and nothing to send."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from ..work import Bench, Options, Outcome, Take


class InlineExecutor:
    def __init__(self, options: Options) -> None:
        self.bench = Bench(options)

    def outcomes(self, take: Take) -> Generator[Outcome]:
        """One batch is scored in a thread while the next is drawn."""
        scoring: Future[Outcome] | None = None
        with ThreadPoolExecutor(1) as beside:
            try:
                while True:
                    if scoring is None and (batch := take("score")) is not None:
                        scoring = beside.submit(self.bench.run, batch)
                    batch = take("draw")
                    if batch is not None:
                        yield self.bench.run(batch)
                    if scoring is not None and (batch is None or scoring.done()):
                        outcome, scoring = scoring.result(), None
                        yield outcome
                    elif batch is None:
                        return
            except BaseException:
                self.close()  # the thread need not wait for programs that nobody waits for
                raise

    def close(self) -> None:
        self.bench.close()

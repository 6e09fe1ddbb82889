"""An executor whose only worker is this process: no copy of the model, nothing to send."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from ..work import Bench, Options, Outcome, Take


class InlineExecutor:
    def __init__(self, options: Options) -> None:
        self.bench = Bench(options)

    def outcomes(self, take: Take) -> Generator[Outcome]:
        """Draw one batch while a thread scores another."""
        scoring: Future[Outcome] | None = None
        with ThreadPoolExecutor(1) as scorer:
            try:
                while True:
                    if scoring is None and (batch := take("score")) is not None:
                        scoring = scorer.submit(self.bench.run, batch)
                    batch = take("draw")
                    if batch is not None:
                        yield self.bench.run(batch)
                    if scoring is not None and (batch is None or scoring.done()):
                        outcome, scoring = scoring.result(), None
                        yield outcome
                    elif batch is None:
                        return
            except BaseException:
                self.close()  # stops the thread's programs, whose results are no longer needed
                raise

    def close(self) -> None:
        self.bench.close()

"""An executor whose only worker is this process: no copy of the model, nothing to send."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ..work import Bench, Options, Outcome, Take

# Drawn batches that are handed to the scoring thread ahead, so that it does not wait for a draw.
MOST_HANDED = 64


class InlineExecutor:
    def __init__(self, options: Options) -> None:
        self.bench = Bench(options)

    def outcomes(self, take: Take) -> Generator[Outcome]:
        """Draw batches while a thread scores those that are drawn."""
        scoring: deque[Future[Outcome]] = deque()  # oldest first
        with ThreadPoolExecutor(1) as scorer:
            try:
                while True:
                    while len(scoring) < MOST_HANDED and (batch := take("score")) is not None:
                        scoring.append(scorer.submit(self.bench.run, batch))
                    batch = take("draw")
                    if batch is not None:
                        yield self.bench.run(batch)
                    elif scoring:
                        yield scoring.popleft().result()
                    else:
                        return
                    yield from _finished(scoring)
            except BaseException as error:
                scorer.shutdown(wait=False, cancel_futures=True)
                try:
                    if not isinstance(error, GeneratorExit):
                        yield from _finished(scoring)  # such as what waited for a stopped drawing
                finally:
                    self.close()  # stops the thread's programs: their results are not needed
                raise

    def close(self) -> None:
        self.bench.close()


def _finished(scoring: deque[Future[Outcome]]) -> Iterator[Outcome]:
    """Yield what has been scored by now."""
    while scoring and scoring[0].done() and not scoring[0].cancelled():
        yield scoring.popleft().result()

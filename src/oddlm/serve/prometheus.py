"""What `/metrics` tells Prometheus."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from .engine import Engine

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@dataclass(frozen=True)
class _Told(Collector):
    """A counter that somebody else counts."""

    name: str
    words: str
    value: Callable[[], float]

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.words, value=self.value())


class Meters:
    def __init__(self, engine: Engine, paths: frozenset[str]) -> None:
        self._registry, self._paths = CollectorRegistry(), paths
        tells = "1 while larger passes are still to be tried out, which is done while no request is there."
        gauges = {
            "oddlm_queue_length": ("Requests that wait.", lambda: engine.queued),
            "oddlm_rows_in_flight": ("Samples being denoised.", lambda: engine.rows),
            "oddlm_rows_stalled": ("Samples whose clients do not read.", lambda: engine.stalled),
            "oddlm_sizes_untried": (tells, lambda: engine.network.untried),
            "oddlm_network_passes": (
                "Network passes since the start.",
                lambda: engine.network.count,
            ),
        }
        busy = "Seconds that the network was at work; over the seconds alive, its share."
        self._registry.register(_Told("oddlm_busy_seconds", busy, lambda: engine.busy))
        for name, (words, value) in gauges.items():
            Gauge(name, words, registry=self._registry).set_function(value)
        self._requests = Counter(
            "oddlm_requests", "Answers.", ["path", "status"], registry=self._registry
        )
        self._latency = Histogram(
            "oddlm_request_seconds", "From the head of a request to its answer's end.", ["path"],
            buckets=SECONDS, registry=self._registry,
        )  # fmt: skip
        self._tokens = Counter(
            "oddlm_tokens", "Tokens read and written.", ["kind"], registry=self._registry
        )

    def count(self, path: str, status: int, seconds: float) -> None:
        known = (
            path if path in self._paths else "other"
        )  # paths are the client's: they must not make series
        self._requests.labels(known, status).inc()
        self._latency.labels(known).observe(seconds)

    def tokens(self, prompt: int, completion: int) -> None:
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)

    def text(self) -> bytes:
        return generate_latest(self._registry)

"""The metrics that `/metrics` exports to Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from .engine import Engine

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@dataclass(frozen=True)
class _ExternalCounter(Collector):
    """A counter whose value is kept elsewhere."""

    name: str
    description: str
    value: Callable[[], float]

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.description, value=self.value())


class RequestMeters:
    """Counts answers by path and status, and times them."""

    def __init__(self, paths: frozenset[str], prefix: str = "oddlm") -> None:
        self.registry, self._paths = CollectorRegistry(), paths
        self._requests = Counter(
            f"{prefix}_requests", "Answers sent.", ["path", "status"], registry=self.registry
        )
        self._latency = Histogram(
            f"{prefix}_request_seconds",
            "Time from the head of a request to the end of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )

    def count(self, path: str, status: int, seconds: float) -> None:
        known = path if path in self._paths else "other"  # clients must not create time series
        self._requests.labels(known, status).inc()
        self._latency.labels(known).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Meters(RequestMeters):
    """Adds the engine's figures, and the tokens."""

    def __init__(self, engine: Engine, paths: frozenset[str]) -> None:
        super().__init__(paths)
        untried = (
            "1 while sizes of passes remain to be tested, which happens while the server is idle."
        )
        gauges = {
            "oddlm_queue_length": ("Requests waiting in the queue.", lambda: engine.queued),
            "oddlm_rows_in_flight": ("Samples being denoised.", lambda: engine.rows),
            "oddlm_rows_stalled": ("Samples of clients that do not read.", lambda: engine.stalled),
            "oddlm_sizes_untried": (untried, lambda: engine.network.untried),
            "oddlm_network_passes": (
                "Network passes since the start.",
                lambda: engine.network.count,
            ),
        }
        busy = "Seconds during which the network computed; its rate is the network's utilization."
        self.registry.register(_ExternalCounter("oddlm_busy_seconds", busy, lambda: engine.busy))
        for name, (description, value) in gauges.items():
            Gauge(name, description, registry=self.registry).set_function(value)
        self._tokens = Counter(
            "oddlm_tokens", "Tokens read and written.", ["kind"], registry=self.registry
        )

    def tokens(self, prompt: int, completion: int) -> None:
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)


@dataclass(frozen=True)
class _Families(Collector):
    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def labelled(texts: Mapping[str, str]) -> bytes:
    """Merge the metrics of several replicas, each sample with the label of its replica."""
    merged: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            known = merged.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            known.samples += [
                sample._replace(labels={**sample.labels, "replica": replica})
                for sample in family.samples
            ]
    registry = CollectorRegistry()
    registry.register(_Families(merged.values()))
    return generate_latest(registry)

"""Workers on a Ray cluster: actors, each with its own copy of the model. Needs the extra 'ray'."""

import os
import socket
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ... import __version__
from ...store import Stage
from ..work import AHEAD, Batch, Bench, Holder, Jobs, Options, Outcome, Take, soonest

REACH_S = 5.0  # time limit for an address to answer
START_S = 600.0  # time limit for the first worker to start
SETTINGS = b"\x04"  # type of the frame with which both sides of HTTP/2 begin (RFC 9113, 3.4)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0\0\0\0\0"


class RayWorker:
    """The class of the actors. One call draws while the others score."""

    def __init__(self, options: Options) -> None:
        self._bench = Bench(options)

    def version(self) -> str:
        return __version__

    def run(self, batch: Batch) -> Outcome:
        return self._bench.run(batch)


@dataclass(eq=False)
class Actor(Holder):
    """An actor and its jobs, by the reference to their outcome."""

    handle: Any


class RayExecutor:
    def __init__(
        self,
        options: Options,
        workers: int | None = None,
        address: str = "auto",
        timeout_s: float | None = None,
    ) -> None:
        """workers: None is one per GPU, or per CPU if the cluster has no GPU.

        timeout_s: see `LocalExecutor`.
        """
        self.options, self.workers = options, workers
        self.address, self.timeout_s = address, timeout_s
        self._crew: _Crew | None = None
        self._connected = False

    def outcomes(self, take: Take) -> Generator[Outcome]:
        if not self._connected:
            connect(self.address)
            self._connected = True
        first = take("score") or take("draw")
        if first is None:
            return  # without starting workers
        waiting = [first]

        def take_first(stage: Stage) -> Batch | None:
            return waiting.pop() if waiting and waiting[0].stage == stage else take(stage)

        try:
            if self._crew is None:
                self._crew = _Crew(_ray(), self.options, self.workers, self.timeout_s)
            yield from self._crew.outcomes(Jobs(take_first))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connected:
            self._crew, self._connected = None, False
            _ray().shutdown()


class _Crew:
    def __init__(
        self, ray: Any, options: Options, workers: int | None, timeout_s: float | None
    ) -> None:
        have = ray.cluster_resources()
        gpus, cpus = int(have.get("GPU", 0)), int(have.get("CPU", 0))
        use_gpu = gpus > 0 and options.device != "cpu"
        if not (gpus if use_gpu else cpus):
            raise ValueError("the Ray cluster has no CPU to run a worker on")
        self.ray, self.timeout_s = ray, timeout_s
        self.workers = workers or (gpus if use_gpu else cpus)
        if use_gpu and options.device is None:
            options = replace(options, device="cuda")  # Ray shows each actor only one GPU
        needs = {"num_cpus": 1, "num_gpus": 1 if use_gpu else 0}
        together = sum(AHEAD.values())
        make = ray.remote(RayWorker).options(
            **needs, max_concurrency=together, max_restarts=0, max_task_retries=0
        )
        self._make: Callable[[], Any] = lambda: make.remote(options)
        self.starting: dict[Any, Actor] = {}  # by the reference to their first answer
        self.crew: list[Actor] = []

    def outcomes(self, jobs: Jobs) -> Iterator[Outcome]:
        for _ in range(self.workers - len(self.crew) - len(self.starting)):
            self._start()
        while True:
            for actor in self.crew:
                while job := jobs.take(actor.jobs.values()):
                    actor.hold(actor.handle.run.remote(job.batch), job)
            busy = {reference: actor for actor in self.crew for reference in actor.jobs}
            if not busy and self.crew:
                return
            limit = soonest(busy.values(), self.timeout_s) if busy else START_S
            ready, _ = self.ray.wait([*busy, *self.starting], num_returns=1, timeout=limit)
            if not ready and not busy:
                raise ValueError(
                    f"no worker of the Ray cluster was ready after {START_S:g} s: "
                    "are there free CPUs or GPUs?"
                )
            if not ready:
                yield from self._replace_overdue(jobs)
            elif ready[0] in self.starting:
                yield from self._admit(ready[0], jobs)
            else:
                yield from self._answer(busy[ready[0]], ready[0], jobs)

    def _start(self) -> None:
        actor = Actor(self._make())
        self.starting[actor.handle.version.remote()] = actor

    def _admit(self, reference: Any, jobs: Jobs) -> Iterator[Outcome]:
        """Add an actor that has started to the crew, if its version is ours."""
        actor = self.starting.pop(reference)
        try:
            version = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise ValueError(
                f"a worker of the Ray cluster does not start: {_cause(error)}"
            ) from error
        except self.ray.exceptions.RayError as error:
            if "No module named 'oddlm" in str(error):
                raise ValueError(
                    "a worker of the Ray cluster cannot import oddlm: "
                    f"install oddlm {__version__} on every node"
                ) from error
            yield from self._replace(actor, jobs, type(error).__name__)
            return
        if version != __version__:
            raise ValueError(
                f"a worker of the Ray cluster has oddlm {version}, but this is {__version__}: "
                "install the same version"
            )
        self.crew.append(actor)

    def _answer(self, actor: Actor, reference: Any, jobs: Jobs) -> Iterator[Outcome]:
        try:
            outcome = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise ValueError(_cause(error)) from error
        except self.ray.exceptions.RayError as error:
            self.crew.remove(actor)
            yield from self._replace(actor, jobs, type(error).__name__)
            return
        actor.answered(reference)
        jobs.done()
        yield outcome

    def _replace_overdue(self, jobs: Jobs) -> Iterator[Outcome]:
        for actor in list(self.crew):
            if (why := actor.overdue(self.timeout_s)) is not None:
                self.crew.remove(actor)
                yield from self._replace(actor, jobs, why)

    def _replace(self, actor: Actor, jobs: Jobs, why: str) -> Iterator[Outcome]:
        """Kill a worker that is dead, hangs or cannot be reached, and start another."""
        self.ray.kill(actor.handle)
        self._start()
        yield from jobs.died(actor.jobs.values(), f"{why} on the Ray cluster", self.workers)


def connect(address: str) -> None:
    """Connect to a cluster; raise ValueError within seconds if there is none."""
    ray = _ray()
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if address.startswith("ray://"):
        raise ValueError(
            f"{address}: ray:// addresses are for Ray's client; run this on a node of the cluster, "
            "with address=HOST:6379"
        )
    if address != "auto" and os.environ.get("RAY_USE_TLS", "0") == "0":
        _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"there is no Ray cluster at {address!r}: {error}; start one with `ray start --head`"
        ) from error


def _reach(address: str) -> None:
    """Raise ValueError unless the address speaks HTTP/2, as a head node does.

    If nothing answers, Ray itself would wait for minutes.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"the address must be HOST:PORT or auto, not {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_S) as connection:
            connection.sendall(PREFACE)
            if connection.recv(9)[3:4] != SETTINGS:
                raise OSError("the server there is not Ray")
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"the Ray address {address} does not answer: {error}; "
            "run `ray status` on the head node to see its address"
        ) from error


def _cause(error: Any) -> str:
    return str(error.cause) if isinstance(getattr(error, "cause", None), ValueError) else str(error)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "executor 'ray' needs the extra 'ray': pip install 'oddlm[ray]'"
        ) from error
    return ray

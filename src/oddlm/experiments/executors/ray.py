"""Workers on a Ray cluster: actors with their own copy of the model.

Ray comes with the extra 'ray'.
"""

import os
import socket
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ... import __version__
from ...store import Stage
from ..work import AHEAD, Batch, Bench, Holder, Jobs, Options, Outcome, Take, soonest

REACH_S = 5.0  # for an address to answer
START_S = 600.0  # for the first worker to start
SETTINGS = b"\x04"  # the type of the frame that both sides of HTTP/2 begin with (RFC 9113, 3.4)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0\0\0\0\0"


class RayWorker:
    """What lives in an actor. One call draws while the others score."""

    def __init__(self, options: Options) -> None:
        self._bench = Bench(options)

    def version(self) -> str:
        return __version__

    def run(self, batch: Batch) -> Outcome:
        return self._bench.run(batch)


@dataclass(eq=False)
class Actor(Holder):
    """Its jobs are known by the reference of their outcome."""

    handle: Any


class RayExecutor:
    def __init__(
        self,
        options: Options,
        workers: int | None = None,
        address: str = "auto",
        timeout_s: float | None = None,
    ) -> None:
        """workers None: one per GPU, or per CPU where the cluster has no GPU. timeout_s: see
        `LocalExecutor`.
        """
        self.options, self.workers, self.address, self.timeout_s = (
            options,
            workers,
            address,
            timeout_s,
        )
        self._crew: _Crew | None = None
        self._connected = False

    def outcomes(self, take: Take) -> Generator[Outcome]:
        if not self._connected:
            connect(self.address)
            self._connected = True
        first = take("score") or take("draw")
        if first is None:
            return  # no worker is started for nothing
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
        self.ray, self.workers, self.timeout_s = (
            ray,
            workers or (gpus if use_gpu else cpus),
            timeout_s,
        )
        if use_gpu and options.device is None:
            options = replace(options, device="cuda")  # Ray shows each actor a GPU of its own
        needs = {"num_cpus": 1, "num_gpus": 1 if use_gpu else 0}
        together = sum(AHEAD.values())
        make = ray.remote(RayWorker).options(
            **needs, max_concurrency=together, max_restarts=0, max_task_retries=0
        )
        self._make: Callable[[], Any] = lambda: make.remote(options)
        self.starting: dict[Any, Actor] = {}  # by the reference of their first word
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
                    f"no worker of the Ray cluster was ready after {START_S:g} s: are there free CPUs or GPUs?"
                )
            if not ready:
                yield from self._give_up(jobs)
            elif ready[0] in self.starting:
                yield from self._welcome(ready[0], jobs)
            else:
                yield from self._answer(busy[ready[0]], ready[0], jobs)

    def _start(self) -> None:
        actor = Actor(self._make())
        self.starting[actor.handle.version.remote()] = actor

    def _welcome(self, reference: Any, jobs: Jobs) -> Iterator[Outcome]:
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
                    "a worker of the Ray cluster cannot import oddlm: install the same version on every node"
                ) from error
            yield from self._bury(actor, jobs, type(error).__name__)
            return
        if version != __version__:
            raise ValueError(
                f"a worker of the Ray cluster has oddlm {version}, this is {__version__}: install the same"
            )
        self.crew.append(actor)

    def _answer(self, actor: Actor, reference: Any, jobs: Jobs) -> Iterator[Outcome]:
        try:
            outcome = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise ValueError(_cause(error)) from error
        except self.ray.exceptions.RayError as error:
            self.crew.remove(actor)
            yield from self._bury(actor, jobs, type(error).__name__)
            return
        actor.answered(reference)
        jobs.done()
        yield outcome

    def _give_up(self, jobs: Jobs) -> Iterator[Outcome]:
        """Nobody answers, for longer than some worker may take."""
        for actor in list(self.crew):
            if (why := actor.overdue(self.timeout_s)) is not None:
                self.crew.remove(actor)
                yield from self._bury(actor, jobs, why)

    def _bury(self, actor: Actor, jobs: Jobs, why: str) -> Iterator[Outcome]:
        """A worker or its node is dead, hangs or cannot be reached: it is ended, and another
        started where there is room.
        """
        self.ray.kill(actor.handle)
        self._start()
        yield from jobs.died(actor.jobs.values(), f"{why} on the Ray cluster", self.workers)


def connect(address: str) -> None:
    """ValueError in seconds where there is no cluster."""
    ray = _ray()
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if address.startswith("ray://"):
        raise ValueError(
            "ray:// addresses are for Ray's client: start from a node of the cluster, with address=HOST:6379"
        )
    if address != "auto" and os.environ.get("RAY_USE_TLS", "0") == "0":
        _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"there is no Ray cluster at {address!r}: {error}; `ray start --head` makes one"
        ) from error


def _reach(address: str) -> None:
    """Does somebody there speak HTTP/2, as a head node does?

    Ray itself waits for minutes where nobody does.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"the address must be HOST:PORT or auto, not {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_S) as line:
            line.sendall(PREFACE)
            if line.recv(9)[3:4] != SETTINGS:
                raise OSError("what answers there is no Ray")
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"the Ray address {address} does not answer: {error}; `ray status` on the head node shows it"
        ) from error


def _cause(error: Any) -> str:
    return str(error.cause) if isinstance(getattr(error, "cause", None), ValueError) else str(error)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "the executor ray needs the extra 'ray': pip install 'oddlm[ray]'"
        ) from error
    return ray

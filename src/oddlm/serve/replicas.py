"""Copies of the server on Ray Serve, each with the model of its own. Needs the extra 'replicas'.

The front (`front`) listens, checks and passes requests on; Ray Serve picks the replica, watches
them, replaces those that died, and scales their number.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from starlette.types import Message, Scope

from .. import __version__
from ..config import checked, json_or_text
from ..experiments.executors.ray import connect
from ..lm import load
from .api import create_app, health_of
from .server import workers_for
from .settings import ServeSettings

WINDOW = 16  # messages of an answer that may be on their way to the client
AT_ONCE = 256  # requests of a replica at a time, besides those that its own limits bound
HEALTH_S = 1.0  # between health checks of a replica
# Replicas log by themselves; errors that Serve would log reach clients or the operator.
QUIET = {"log_level": "CRITICAL", "enable_access_log": False}
MISSING = "--replicas needs Ray Serve: pip install 'oddlm[replicas]'"


class Plan(NamedTuple):
    """What every replica is made of."""

    model: str
    options: dict[str, Any]  # of `load`
    settings: ServeSettings
    workers: int | None
    version: str = __version__


class Outgoing:
    """The messages of an answer; the application waits when its client is too far behind."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(WINDOW)

    async def send(self, message: Message) -> None:
        await self._room.acquire()
        self._messages.put_nowait(message)

    def end(self) -> None:
        self._messages.put_nowait(None)

    def read(self, count: int) -> None:
        """Make room: the client has read so many messages."""
        for _ in range(count):
            self._room.release()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self._messages.get()) is not None:
            yield message


class Replica:
    """One copy of the model behind the HTTP application."""

    def __init__(self, plan: Plan) -> None:
        from ray import serve

        if plan.version != __version__:
            raise ValueError(
                f"a node of the Ray cluster has oddlm {__version__}, but this is {plan.version}: "
                "install the same version"
            )
        lm = load(plan.model, **plan.options)
        workers = plan.workers or workers_for(lm.info)
        # The front has checked host, key and origin.
        unguarded = {"workers": workers, "api_key": None, "host_names": None, "cors": ()}
        self.model = plan.settings.model
        self.app = create_app(lm, plan.settings.model_copy(update=unguarded))
        self.engine = self.app.state.engine
        self.engine.start()
        self.name = serve.get_replica_context().replica_tag
        self._answers: dict[str, Outgoing] = {}

    def check_health(self) -> None:
        """Raise if the replica must be replaced."""
        if not self.engine.alive:
            raise RuntimeError("the engine has stopped")

    async def answer(self, name: str, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """Yield the application's messages; the front names the answer, to report its reading."""
        request: Message = {"type": "http.request", "body": body, "more_body": False}
        arrived = [request]

        async def receive() -> Message:
            return arrived.pop() if arrived else await asyncio.Future()  # cancelled at the end

        outgoing = self._answers[name] = Outgoing()
        work = asyncio.ensure_future(self.app(scope, receive, outgoing.send))
        work.add_done_callback(lambda _: outgoing.end())
        try:
            async for message in outgoing:
                if message["type"] == "http.response.start":
                    message["headers"] = [
                        *message["headers"],
                        (b"x-oddlm-replica", self.name.encode()),
                    ]
                yield message
        finally:
            del self._answers[name]
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):  # it has answered 500, and logged
                await work

    async def read(self, name: str, count: int) -> None:
        if (answer := self._answers.get(name)) is not None:
            answer.read(count)

    async def health(self) -> tuple[str, dict[str, Any]]:
        return self.name, health_of(self.engine, self.model).model_dump()

    async def metrics(self) -> tuple[str, str]:
        return self.name, self.app.state.meters.text().decode()

    async def halt(self, number: int) -> None:
        self.app.state.halt(number)


def scaling_of(text: str) -> dict[str, Any]:
    """Return the options of a deployment for `4`, `1:8`, or fields of `autoscaling_config`."""
    config = _serve().config.AutoscalingConfig
    given = json_or_text(text)
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return {"num_replicas": given}
    low, colon, high = text.partition(":")
    if colon and low.isdecimal() and high.isdecimal():
        given = {"min_replicas": int(low), "max_replicas": int(high)}
    if not isinstance(given, dict):
        raise ValueError(
            "--replicas takes a number (4), a range (1:8), or the fields of Ray Serve's "
            f"autoscaling_config as JSON, not {text!r:.100}"
        )
    if unknown := given.keys() - config.model_fields.keys():
        raise ValueError(
            f"--replicas: unknown field {min(unknown)!r:.100}; "
            f"known: {', '.join(config.model_fields)}"
        )
    try:
        checked(config, given)
    except ValueError as error:
        raise ValueError(f"--replicas: {error}") from None
    return {"autoscaling_config": given}


def first_of(scaling: dict[str, Any]) -> int:
    """Return how many replicas there are at first."""
    if "num_replicas" in scaling:
        return int(scaling["num_replicas"])
    config = scaling["autoscaling_config"]
    return int(config.get("initial_replicas") or config.get("min_replicas", 1))


@contextmanager
def deployed(plan: Plan, scaling: dict[str, Any], name: str, *, grace_s: float) -> Iterator[Any]:
    """Start the replicas; yield their handle.

    Ray is that of RAY_ADDRESS, or starts on this machine for as long as the body takes.
    """
    ray, serve = _ray(), _serve()
    own = "RAY_ADDRESS" not in os.environ
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        if own:
            ray.init(address="local", include_dashboard=False, configure_logging=False)
        else:
            connect("auto")
        needs = _needs(ray.cluster_resources(), plan, scaling, own=own)
        serve.start(proxy_location="Disabled", logging_config=QUIET)
        limits = plan.settings.limits
        made = serve.deployment(
            Replica,
            **scaling,
            ray_actor_options=needs,
            max_ongoing_requests=limits.max_rows + limits.max_queue + AT_ONCE,
            max_queued_requests=limits.max_queue,
            max_constructor_retry_count=1,
            health_check_period_s=HEALTH_S,
            graceful_shutdown_timeout_s=grace_s,
            graceful_shutdown_wait_loop_s=0.1,
        )
        try:
            yield _run(serve, made.bind(plan), name)
        finally:
            if not own:
                serve.delete(name)
    finally:
        ray.shutdown()


def _run(serve: Any, application: Any, name: str) -> Any:
    """Return the handle of the replicas when they are ready."""
    try:
        return serve.run(application, name=name, route_prefix=None, logging_config=QUIET)
    except RuntimeError as error:
        found = serve.status().applications[name].deployments.values()
        causes = [cause for one in found if (cause := _cause(one.message)) is not None]
        raise ValueError(f"the replicas do not start: {[*causes, error][0]}") from error


def _needs(have: dict[str, float], plan: Plan, scaling: dict[str, Any], *, own: bool) -> Any:
    """Return the resources of a replica; raise ValueError if this machine has too few."""
    device = plan.options.get("device")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"--replicas takes --device cpu or cuda, not {device}: Ray picks the GPU")
    gpus = int(have.get("GPU", 0))
    use_gpu = device == "cuda" or (device is None and gpus > 0)
    cpus = 1 if use_gpu else plan.workers or 1
    count, needs = first_of(scaling), {"num_cpus": cpus, "num_gpus": int(use_gpu)}
    for kind, each in (("GPU", int(use_gpu)), ("CPU", cpus)):
        # A cluster may grow; this machine does not.
        if own and count * each > have.get(kind, 0):
            raise ValueError(
                f"{count} replicas need {count * each} {kind}s, this machine has "
                f"{have.get(kind, 0):g}"
            )
    return needs


def _cause(report: str) -> str | None:
    """Return the ValueError that Ray Serve reports of a replica, if that is what ended it."""
    lines = [line.strip() for line in report.splitlines()]
    known = [line for line in lines if line.startswith("ValueError: ")]
    return known[-1].removeprefix("ValueError: ") if known else None


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError(MISSING) from None
    return ray


def _serve() -> Any:
    try:
        from ray import serve
    except ImportError:
        raise ValueError(MISSING) from None
    return serve

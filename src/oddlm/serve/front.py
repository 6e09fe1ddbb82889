"""The front of several replicas: checks requests, and passes each to one that Ray Serve picks."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import Counter
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.types import Message, Receive, Scope, Send

from . import errors
from .api import PATHS, guard
from .engine import QueueFullError, TimedOutError
from .errors import ApiError, as_api_error
from .prometheus import RequestMeters, labelled
from .replicas import WINDOW
from .schema import Health
from .service import sse
from .settings import ServeSettings

ATTEMPTS = 2  # a request that ends two replicas is not sent to a third
ASK_S = 5.0  # for all replicas to report
HTTP = {"type", "asgi", "http_version", "method", "scheme", "headers", "client", "server"}
PASSED_ON = HTTP | {"path", "raw_path", "root_path", "query_string"}  # of the ASGI scope


class Front:
    """Passes requests on; those whose replica died before it answered go to another one."""

    def __init__(self, handle: Any, settings: ServeSettings) -> None:
        self.settings = settings
        self._handle, self._answer = handle, handle.options(stream=True).answer
        self.meters = RequestMeters(PATHS, "oddlm_front")
        self._retried = Counter(
            "oddlm_front_retries",
            "Requests sent to another replica because theirs died.",
            registry=self.meters.registry,
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    async def every(self, method: str, *given: Any) -> list[Any]:
        """Call a method of every replica; return the results of those that answered."""
        with suppress(DeploymentUnavailableError, TimeoutError):
            asked = self._handle.broadcast(method, *given)
            async with asyncio.timeout(ASK_S):
                found = await asked.results_async(return_exceptions=True)
            return [one for one in found if not isinstance(one, BaseException)]
        return []

    def halt(self, number: int) -> None:
        """End the requests of all replicas."""
        self._tell("halt", number)

    def _tell(self, method: str, *given: Any) -> None:
        """Call a method of every replica without waiting for it."""
        task = asyncio.create_task(self.every(method, *given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        relaying = asyncio.create_task(self._relay(scope, body, send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                relaying.result()
        finally:
            relaying.cancel()
            leaving.cancel()

    async def _relay(self, scope: Scope, body: bytes, send: Send) -> None:
        sent = {name: scope[name] for name in PASSED_ON & scope.keys()}
        for _ in range(ATTEMPTS):
            relay = _Relay(send, scope["path"])
            try:
                async for message in self._messages(sent, body):
                    await relay.take(message)
                return
            except RayTaskError:
                raise
            except RayError:  # the replica died
                if relay.begun:
                    await relay.break_off(_died())
                    return
                self._retried.inc()
        raise _died()

    async def _messages(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """Yield the messages of one replica, and let it send more as the client reads them."""
        name = uuid.uuid4().hex
        answer = self._answer.remote(name, scope, body)
        count = 0
        try:
            while (message := await self._next(answer, count)) is not None:
                yield message
                count += 1
                if count % (WINDOW // 2) == 0:
                    self._tell("read", name, WINDOW // 2)
        except BackPressureError:
            raise as_api_error(QueueFullError()) from None
        except DeploymentUnavailableError:
            raise ApiError(
                503, "no replica is available", type_="server_error", code="no_replica"
            ) from None
        finally:
            answer.cancel()  # frees its place if the client is gone; else nothing is left to cancel

    async def _next(self, answer: Any, count: int) -> Message | None:
        """Return the next message; the first must come in time, even if no replica is up."""
        try:
            async with asyncio.timeout(None if count else self.settings.limits.timeout_s):
                message: Message = await anext(answer)
                return message
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise as_api_error(TimedOutError()) from None


class _Relay:
    """The answer to one client, whose head is held back until there is something to read."""

    def __init__(self, send: Send, path: str) -> None:
        self._send, self._path = send, path
        self._head: Message | None = None
        self.begun = False  # whether the client may have read something
        self._events = False

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self._head is not None:
            head, self._head, self.begun = self._head, None, True
            self._events = any(
                value.startswith(b"text/event-stream") for _, value in head["headers"]
            )
            await self._send(head)
        await self._send(message)

    async def break_off(self, error: ApiError) -> None:
        """Tell the client of a stream what happened; any other answer must end incomplete."""
        if not self._events:
            raise error
        event = sse(error.answer, "error" if self._path == "/v1/denoise" else None)
        await self._send({"type": "http.response.body", "body": event.encode()})


def create_front(handle: Any, settings: ServeSettings) -> FastAPI:
    """Return the application in front of the replicas."""
    front = Front(handle, settings)
    app = FastAPI(title="oddlm", openapi_url=None)
    app.state.halt = front.halt
    errors.install(app)

    @app.get("/health")
    async def health(response: Response) -> Health:
        """Report how many replicas answer, and how busy they are together."""
        found = [Health.model_validate(one) for _, one in await front.every("health")]
        running = [one for one in found if one.status == "ok"]
        response.status_code = 200 if running else 503
        return Health(
            status="ok" if running else "down",
            model=settings.model,
            queued=sum(one.queued for one in running),
            rows=sum(one.rows for one in running),
            replicas=len(running),
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics of every replica, with its name, and those of the front."""
        merged = labelled(dict(await front.every("metrics")))
        return Response(merged + front.meters.text(), media_type="text/plain; version=0.0.4")

    app.mount("/", front)
    guard(app, settings, front.meters.count)
    return app


def _died() -> ApiError:
    return ApiError(
        503,
        "the replica that worked on this request died; send it again",
        type_="server_error",
        code="replica_died",
        headers={"Retry-After": "1"},
    )


async def _body(receive: Receive) -> bytes:
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

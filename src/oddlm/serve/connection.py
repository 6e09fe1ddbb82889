"""One client's connection, with limits on the time a client takes: to send its request, and to read
its answer.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import h11
from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError
from .settings import Limits

T = TypeVar("T")
GONE = 499  # nginx's number for a client that went away before its answer
LEAST_READ = 1024  # bytes of a waiting answer that count as reading
LOOKS = 4  # at a waiting answer, within the time that it may wait


class Outgoing:
    """A transport that knows how much of what it was given the client has taken.

    It drops what comes after its end.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._given = transport, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._given += len(data)
            self._transport.write(data)

    @property
    def waiting(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def taken(self) -> int:
        return self._given - self.waiting


class Connection(H11Protocol):
    """uvicorn's own, which would wait for half a request, or for a client to read, as long as the
    client likes.
    """

    def __init__(self, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self.limits = limits
        self._arrival: asyncio.TimerHandle | None = None  # runs while a request is incomplete
        self._reading: asyncio.TimerHandle | None = None
        self._progress = (0.0, 0)  # when the client last took something, and how much it had then

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.outgoing = Outgoing(transport)
        super().connection_made(cast("asyncio.Transport", self.outgoing))
        self._time_arrival()
        self._time_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._arrival, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_arrival()

    def shutdown(self) -> None:
        """A request that is there has its answer; what is not there yet will not be waited for."""
        if self._complete:
            super().shutdown()
        else:
            self._refuse(
                ApiError(
                    503, "the server is shutting down", type_="server_error", code="shutting_down"
                )
            )

    @property
    def _complete(self) -> bool:
        """Is there a whole request whose answer is not whole yet?"""
        return (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )

    def _time_arrival(self) -> None:
        if self._complete and self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        elif not self._complete and self._arrival is None:
            limit = self.limits.receive_timeout_s
            message = f"the request did not arrive whole within {limit:g} s"
            error = ApiError(408, message, type_="timeout", code="request_timeout")
            self._arrival = self.loop.call_later(limit, self._refuse, error)

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that is there in part, and hang up."""
        begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error.answer.model_dump_json().encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            head = h11.Response(status_code=error.status_code, headers=list(headers.items()))
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _time_reading(self) -> None:
        """Hang up on a client that has taken next to nothing of what waits for it in the time it
        may take.
        """
        now, (then, before) = self.loop.time(), self._progress
        if not self.outgoing.waiting or self.outgoing.taken - before >= LEAST_READ:
            self._progress = (now, self.outgoing.taken)
        elif now - then >= self.limits.send_timeout_s:
            self.transport.abort()
            return
        self._reading = self.loop.call_later(self.limits.send_timeout_s / LOOKS, self._time_reading)


async def while_there(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled where its client goes away."""

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ApiError(GONE, "the client went away")
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()

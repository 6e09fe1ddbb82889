"""One client's connection, with limits on the time to send a request and to read its answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import h11
from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError
from .settings import Limits

T = TypeVar("T")
GONE = 499  # nginx's status for a client that closed the connection before the answer
LEAST_READ = 1024  # bytes that a client must take of a waiting answer to count as reading
LOOKS = 4  # checks of a waiting answer within send_timeout_s


class Outgoing:
    """A transport that counts the bytes the client has taken.

    Data written after it was closed is dropped.
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
    """uvicorn's HTTP protocol with time limits.

    By default, uvicorn waits indefinitely for the rest of a request, and for a client to read.
    """

    def __init__(self, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self.limits = limits
        self._arrival: asyncio.TimerHandle | None = None  # runs while a request is incomplete
        self._reading: asyncio.TimerHandle | None = None
        self._progress = (0.0, 0)  # when the client last took something, and its total

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
        """Finish the answer to a complete request; refuse a request that is incomplete."""
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
        """Whether a complete request is waiting for the rest of its answer."""
        return (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )

    def _time_arrival(self) -> None:
        if self._complete and self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        elif not self._complete and self._arrival is None:
            limit = self.limits.receive_timeout_s
            message = f"the request was not complete within {limit:g} s"
            error = ApiError(408, message, type_="timeout", code="request_timeout")
            self._arrival = self.loop.call_later(limit, self._refuse, error)

    def _refuse(self, error: ApiError) -> None:
        """Answer an incomplete request with an error, and close the connection."""
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
        """Close the connection if the client took almost nothing for `send_timeout_s` seconds."""
        now, (then, before) = self.loop.time(), self._progress
        if not self.outgoing.waiting or self.outgoing.taken - before >= LEAST_READ:
            self._progress = (now, self.outgoing.taken)
        elif now - then >= self.limits.send_timeout_s:
            self.transport.abort()
            return
        self._reading = self.loop.call_later(self.limits.send_timeout_s / LOOKS, self._time_reading)


async def while_there(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is cancelled if the client disconnects."""

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ApiError(GONE, "the client closed the connection")
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()

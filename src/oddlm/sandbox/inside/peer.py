"""One end of the conversation between a candidate and its judge.

A side may ask the other a question while it serves one. A message is (changes, "ask", number,
request, ...) or (changes, "reply", number, answer, ...). Answers come in the reverse order of the
questions: a side that waits for an answer may have to serve a question first, and an answer to
anything but the latest question is out of turn.
"""

from __future__ import annotations

import os

from .heap import Heap
from .wire import Ends, WireError, decode, encode, receive_bytes, send_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LEVEL = 100  # questions within questions


def _number() -> int:
    """Return an unguessable number, so that a question cannot be answered before it is asked."""
    return int.from_bytes(os.urandom(7), "little")


class Peer(Ends):
    """One side, which lends objects to the other by their place in `own`.

    Containers are shared in `heap`.
    """

    def __init__(self, incoming: int, outgoing: int, heap: Heap) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.heap = heap
        self.own: list[Any] = []
        # For each of `own`: whether it is lent as an object, or only as one of its kind.
        self.by_reference: list[bool] = []
        self._places: dict[tuple[int, bool], int] = {}
        self.next = _number()  # of the next question
        self._level = 0

    def lend(self, value: Any, *, by_reference: bool = False) -> int:
        """Return the number by which the other side may refer to this object from now on."""
        place = self._places.setdefault((id(value), by_reference), len(self.own))
        if place == len(self.own):
            self.own.append(value)
            self.by_reference.append(by_reference)
        return place

    def take_own(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self.own):
            raise WireError("a reference to an unknown object")
        return self.own[number]

    def pack(self, *message: Any, ends: Ends | None = None, heap: Heap | None = None) -> bytes:
        """Encode a message; with the permanent heap, it includes the changes of containers."""
        changes = heap.changes() if heap is self.heap else ()
        return encode((changes, *message), ends=ends or self, heap=heap)

    def unpack(self, data: bytes, heap: Heap | None) -> tuple[Any, ...]:
        message = decode(data, self, heap)
        if not isinstance(message, tuple) or not message:
            raise WireError("a malformed message")
        if heap is not None:
            heap.settle()
            heap.apply(message[0])
        return message[1:]

    def ask(self, question: bytes, heap: Heap | None) -> tuple[Any, ...]:
        """Send a question, `pack`ed as ("ask", self.next, ...), and return the answer.

        `heap` is the heap of the answer.
        """
        number, self.next = self.next, _number()
        self._level += 1
        try:
            if self._level > MAX_LEVEL:
                raise WireError(f"calls back and forth, nested more than {MAX_LEVEL} deep")
            send_bytes(self.outgoing, question)
            while True:
                match self.unpack(receive_bytes(self.incoming), heap):
                    case ("reply", int(answered), *answer) if answered == number:
                        return tuple(answer)
                    case ("ask", int(asked), *request):
                        send_bytes(self.outgoing, self.reply(asked, request, heap))
                    case _:
                        raise WireError("a message out of turn")
        finally:
            self._level -= 1

    def reply(self, asked: int, request: list[Any], heap: Heap | None) -> bytes:
        """Return the encoded answer to a question of the other side."""
        raise WireError(f"question {asked} out of turn: {request!r:.20}, {heap!r:.20}")

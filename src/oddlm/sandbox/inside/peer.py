"""One end of the conversation between a candidate and its judge.

Either side may ask the other something while it is being asked: a message is ("ask", number,
request, ...) or ("reply", number, answer, ...). Answers come in the reverse order of the questions,
so a side that waits for one may have to serve a question first, and an answer to anything but the
latest question is out of turn.
"""

from __future__ import annotations

from .wire import Ends, WireError, encode, receive, send_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LEVEL = 100  # questions within questions


class Peer(Ends):
    """Each side knows the objects of the other by their place in `own`."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.own: list[Any] = []
        self.by_reference: list[bool] = []  # for each of `own`: lent as an object, or for its kind alone?
        self._places: dict[tuple[int, bool], int] = {}
        self._asked = 0
        self._level = 0

    def lend(self, value: Any, *, by_reference: bool = False) -> int:
        """The number by which the other side may refer to this object from now on."""
        place = self._places.setdefault((id(value), by_reference), len(self.own))
        if place == len(self.own):
            self.own.append(value)
            self.by_reference.append(by_reference)
        return place

    def take_own(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self.own):
            raise WireError("a reference to an unknown object")
        return self.own[number]

    def question(self, *request: Any) -> bytes:
        """The next question, encoded; WireError if part of it cannot cross."""
        return encode(("ask", self._asked + 1, *request), ends=self)

    def ask(self, question: bytes) -> tuple[Any, ...]:
        """Send a question and return the answer, serving whatever is asked meanwhile."""
        self._asked += 1
        number = self._asked
        self._level += 1
        try:
            if self._level > MAX_LEVEL:
                raise WireError(f"calls back and forth, nested more than {MAX_LEVEL} deep")
            send_bytes(self.outgoing, question)
            while True:
                match receive(self.incoming, self):
                    case ("reply", int(answered), *answer) if answered == number:
                        return tuple(answer)
                    case ("ask", int(asked), *request):
                        send_bytes(self.outgoing, self.reply(asked, request))
                    case _:
                        raise WireError("a message out of turn")
        finally:
            self._level -= 1

    def reply(self, asked: int, request: list[Any]) -> bytes:
        """The encoded answer to a question of the other side."""
        raise WireError(f"question {asked} out of turn: {request!r:.20}")

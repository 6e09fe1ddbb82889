"""The process in which chat templates run: a program of its own, with limits, that reads requests
and writes answers.

Templates come from checkpoints, which nobody vouches for. jinja2's sandbox keeps them from
everything but their variables; time and memory it does not bound, and nothing inside a process can.
`chat.Renderer` starts this, and starts it again when a template has used up its time. Nothing of
the package is imported here.
"""

import json
import math
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

CPU_S = 5  # of one request; templates of real models take milliseconds
MEMORY_BYTES = 512 << 20  # address space
MOST_CHARACTERS = 1 << 23  # that a template may write
MOST_SOURCE = 1 << 20  # characters of a template
HEADER = struct.Struct(">Q")


def send(file: BinaryIO, content: Any) -> None:
    data = json.dumps(content).encode()
    file.write(HEADER.pack(len(data)) + data)
    file.flush()


def main() -> None:
    while header := sys.stdin.buffer.read(HEADER.size):
        request = json.loads(sys.stdin.buffer.read(*HEADER.unpack(header)))
        _limit(request.pop("cpu_s"))
        try:
            answer = {"text": _answer(**request)}
        except MemoryError:
            answer = {"error": f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"}
        except Exception as error:  # whatever a template of unknown making raises
            answer = {"error": f"{error}"[:1000] or type(error).__name__}
        send(sys.stdout.buffer, answer)


def _limit(cpu_s: int) -> None:
    """So much memory for good, and so much time from now on; where a system knows no such limits
    there is `chat.WALL_S`.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = math.ceil(time.process_time())
        resource.setrlimit(
            resource.RLIMIT_CPU, (used + cpu_s, resource.getrlimit(resource.RLIMIT_CPU)[1])
        )
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _answer(source: str, variables: Mapping[str, Any] | None) -> str:
    """What a template writes; without variables it is only read."""
    template = _compiled(source)
    parts, room = [], MOST_CHARACTERS
    for part in template.generate(**variables) if variables is not None else ():
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise ValueError(f"it writes more than {MOST_CHARACTERS} characters")
    return "".join(parts)


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    from datetime import datetime

    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        autoescape=False,
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
    }
    return environment.from_string(source)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


if __name__ == "__main__":
    sys.path += sys.argv[1:]  # where jinja2 is; nothing else is looked for
    main()

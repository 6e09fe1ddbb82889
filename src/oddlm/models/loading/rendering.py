"""The process that renders chat templates: it reads requests, writes replies, and has limits.

Templates come from untrusted checkpoints. The sandbox of jinja2 restricts them to their variables,
but it cannot limit time or memory; only process limits can. `chat.Renderer` starts this program,
and restarts it after a template has exceeded its CPU time. Nothing from the package is imported
here.
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

CPU_S = 5  # per request; templates of real models take milliseconds
MEMORY_BYTES = 512 << 20  # address space
MOST_CHARACTERS = 1 << 23  # of rendered text
MOST_SOURCE = 1 << 20  # characters of a template's source
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
            reply = {"text": _render(**request)}
        except MemoryError:
            reply = {"error": f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"}
        except Exception as error:  # an untrusted template may raise anything
            reply = {"error": f"{error}"[:1000] or type(error).__name__}
        send(sys.stdout.buffer, reply)


def _limit(cpu_s: int) -> None:
    """Limit the memory of the process, and its CPU time from now on.

    On systems without such limits, only `chat.WALL_S` applies.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = math.ceil(time.process_time())
        resource.setrlimit(
            resource.RLIMIT_CPU, (used + cpu_s, resource.getrlimit(resource.RLIMIT_CPU)[1])
        )
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _render(source: str, variables: Mapping[str, Any] | None) -> str:
    """Return the rendered template; with variables None, only check its syntax."""
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
        "raise_exception": _raise,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
    }
    return environment.from_string(source)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


if __name__ == "__main__":
    sys.path += sys.argv[1:]  # only the folders of jinja2 and markupsafe
    main()

"""The worker process that runs the code of tasks, which may be slow, hungry or broken.

It does not import torch. Requests and replies are lines of JSON on a socket:

    {"do": "load", "task": NAME}
        -> {"cards": [{"id", "prompt", "question"}, ...], "kept": KEPT}
    {"do": "keep", "task": NAME, "kept": KEPT}
        -> {}
    {"do": "score", "task": NAME, "problem": ID, "text": TEXT}
        -> {"correct": ..., "answer": ..., "detail": ...}

A reply may also be {"error": KIND, "message": TEXT}. The kinds are "unavailable" (the task lacks
data or a sandbox), "memory", "size" and "failed". KEPT holds the pickled problems, which only these
processes read, so that the next process need not load them again.
"""

import base64
import ctypes
import json
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..sandbox import SandboxError
from ..signals import Terminated, unwinding
from ..tasks import Problem, check_scoring, find_task

MOST_PROBLEMS = 200  # offered per task
MOST_REPLY = 8 << 20  # bytes
PR_SET_PDEATHSIG = 1


class UnavailableError(Exception):
    """A task lacks data, a sandbox or a package."""


START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from {} import main; main(*map(int, sys.argv[2:]))"
)


def command(line: int, memory_bytes: int, parent: int) -> list[str]:
    """Return the command that starts a worker with one end of a socket and this sys.path."""
    return [
        sys.executable,
        "-c",
        START.format(__name__),
        json.dumps(sys.path),
        *map(str, (line, memory_bytes, parent)),
    ]


def main(line: int, memory_bytes: int, parent: int) -> None:
    with unwinding() as ending, suppress(Terminated):  # so that sandboxes end, too
        _end_with(parent)
        with suppress(ValueError, OSError):  # the limit may be lower already
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        warnings.showwarning = lambda message, *_: print(f"oddlm: {message}", file=sys.stderr)
        with socket.socket(fileno=line) as connection, connection.makefile("rwb") as lines:
            for request in lines:
                lines.write(_encoded(_reply(json.loads(request))) + b"\n")
                lines.flush()
    if ending.told:
        raise SystemExit(128 + signal.SIGTERM)


def _end_with(parent: int) -> None:
    """Have the kernel send SIGTERM when the server dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return DO[request.pop("do")](**request)
    except (SandboxError, UnavailableError) as error:
        return {"error": "unavailable", "message": str(error)}
    except MemoryError:
        return {"error": "memory", "message": ""}
    except Exception as error:
        traceback.print_exc()
        return {"error": "failed", "message": type(error).__name__}


def _load(task: str) -> dict[str, Any]:
    try:
        found = find_task(task)
        check_scoring(found, unsafe=False)
        problems = _PROBLEMS[task] = {
            one.id: one for one in found.problems(limit=MOST_PROBLEMS)[:MOST_PROBLEMS]
        }
    except (ValueError, OSError, ImportError) as error:
        raise UnavailableError(str(error)) from None
    cards = [
        {"id": one.id, "prompt": found.prompt(one), "question": found.question(one)}
        for one in problems.values()
    ]
    return {"cards": cards, "kept": _kept(problems)}


def _kept(problems: dict[str, Problem]) -> str | None:
    with suppress(Exception):  # a target may not be picklable
        kept = base64.b64encode(pickle.dumps(problems)).decode()
        return kept if len(kept) < MOST_REPLY // 2 else None
    return None


def _keep(task: str, kept: str) -> dict[str, Any]:
    find_task(task)  # imports the classes of its targets
    _PROBLEMS[task] = pickle.loads(base64.b64decode(kept))
    return {}


def _score(task: str, problem: str, text: str) -> dict[str, Any]:
    found = find_task(task).score(_PROBLEMS[task][problem], text)
    answer = None if found.answer is None else _sound(found.answer)
    return {"correct": bool(found.correct), "answer": answer, "detail": _sound(found.detail)}


def _sound(text: str) -> str:
    """Escape lone surrogates, which a task may produce and UTF-8 cannot encode."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _encoded(reply: dict[str, Any]) -> bytes:
    encoded = json.dumps(reply).encode()
    if len(encoded) < MOST_REPLY:
        return encoded
    error = {"error": "size", "message": f"the task's reply exceeds {MOST_REPLY} bytes"}
    return json.dumps(error).encode()


_PROBLEMS: dict[str, dict[str, Problem]] = {}  # task -> id -> problem
DO: dict[str, Callable[..., dict[str, Any]]] = {"load": _load, "keep": _keep, "score": _score}

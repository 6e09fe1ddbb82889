"""Starting processes that are to be interrupted."""

import signal
from subprocess import Popen
from typing import Any


def interruptible(command: list[str], **options: Any) -> "Popen[str]":
    """A process that hears Ctrl-C even where whoever runs the tests ignores it
    (`nohup make test &`), which is inherited.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return Popen(command, **options)
    finally:
        signal.signal(signal.SIGINT, before)

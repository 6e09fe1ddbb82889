"""The tracker for TensorBoard."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .pages import Numbers, Page, Pages


def tensorboard(folder: Path) -> Pages:
    """Write event files to folder/tensorboard, one folder per run.

    They are written synchronously: errors of TensorBoard's own writer are lost in its thread.
    """
    from tensorboard.summary.writer.record_writer import RecordWriter

    def open_page(run_id: str, settings: Mapping[str, Any]) -> Page:
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        path = folder / "tensorboard" / run_id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        page = _Page(RecordWriter(path.open("wb")))
        page.write(file_version="brain.Event:2")
        return page

    return Pages(open_page)


@dataclass(frozen=True)
class _Page:
    writer: Any

    def log(self, numbers: Numbers, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary as Values

        values = [Values.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.write(step=step, summary=Values(value=values))

    def write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.write(Event(wall_time=time.time(), **content).SerializeToString())
        self.writer.flush()

    def end(self, numbers: Numbers | None) -> None:
        if numbers is not None:
            self.log({f"run/{name}": value for name, value in numbers.items()}, 0)
        self.writer.close()

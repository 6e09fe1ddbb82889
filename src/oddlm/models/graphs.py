"""A function of tensors, recorded once per shape and replayed as a CUDA graph.

A replay costs the host one launch. The function must read nothing but its inputs and tensors that
stay where they are, and must not wait for the device. The first call of a shape is a plain one, so
that nothing is recorded for shapes that do not repeat.
"""

import gc
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

Recorded = tuple[Callable[[], None], Tensor]  # computes the result anew, and the result


class Recorder(Protocol):
    def record(self, function: Callable[[], Tensor]) -> Recorded: ...


class CudaRecorder:
    """Records the kernels of a function on one GPU, which need not be the current one.

    `torch.cuda.graph` would also collect garbage and give cached memory back to the driver, which
    takes longer than the recording. Instead, nothing is collected meanwhile: freeing an older graph
    would spoil it. All recordings use one stream, since each stream caches memory of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream, self.lock = device, torch.cuda.Stream(device), Lock()

    def record(self, function: Callable[[], Tensor]) -> Recorded:
        with self.lock, torch.cuda.device(self.device):
            return self._record(function)

    def _record(self, function: Callable[[], Tensor]) -> Recorded:
        graph, stream = torch.cuda.CUDAGraph(), self.stream
        stream.wait_stream(torch.cuda.current_stream())
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                function()  # libraries allocate their workspaces at the first call
                torch.cuda.synchronize()
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    result = function()
                except BaseException:
                    with suppress(RuntimeError):  # what went wrong is what function says
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        torch.cuda.current_stream().wait_stream(stream)
        return graph.replay, result


@dataclass(frozen=True, slots=True)
class Recording:
    inputs: list[Tensor]
    replay: Callable[[], None]
    result: Tensor


class Replays:
    """The recordings of one function.

    It is given at every call and not kept: a session that holds its own method in a cycle would
    hold keys and values, too, until garbage is collected. The result of a call is valid until the
    next call with inputs of the same shapes.

    most: how many recordings are kept; the oldest makes room for a new one.
    """

    def __init__(self, recorder: Recorder, most: int | None = None) -> None:
        self.recorder, self.most = recorder, most
        self.recordings: dict[Hashable, Recording] = {}
        self.met: set[Hashable] = set()

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        key = tuple((x.shape, x.dtype, x.device) for x in inputs)
        found = self.recordings.get(key)
        if found is None and key not in self.met:
            self.met.add(key)
            return function(*inputs)
        if found is None:
            if len(self.recordings) == self.most:
                del self.recordings[next(iter(self.recordings))]
            held = [x.clone() for x in inputs]
            found = Recording(held, *self.recorder.record(partial(function, *held)))
            self.recordings[key] = found
        for own, new in zip(found.inputs, inputs, strict=True):
            own.copy_(new)
        found.replay()
        return found.result

    def forget(self) -> None:
        """Drop all recordings: what they read has moved, or they are not needed any more."""
        self.recordings.clear()


def recorder_for(device: torch.device) -> Recorder | None:
    """Return a recorder for a device; None if it has no graphs."""
    return _recorder(device) if device.type == "cuda" else None


@cache
def _recorder(device: torch.device) -> CudaRecorder:
    return CudaRecorder(device)

"""The peak memory of a call, on a GPU or a CPU."""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

ON_CPU = 0  # the device type in events of the profiler


def peak_mib(device: torch.device, call: Callable[[], object]) -> float:
    """Return the most MiB of tensors that a call holds beyond those that exist before it."""
    gc.collect()
    if device.type != "cuda":
        return _peak_on_cpu(call)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _peak_on_cpu(call: Callable[[], object]) -> float:
    """Follow the allocations that torch's profiler notes: their sum is not asked of the system."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_bytes())["traceEvents"]
    changes = [
        (event["ts"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == ON_CPU
    ]
    held = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        most = max(most, held)
    return most / 2**20

"""Workers on this machine: processes, each with its own copy of the model and a pipe to it."""

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Lock
from typing import Any

from ...signals import Terminated, unwinding
from ..work import AHEAD, Batch, Bench, Holder, Job, Jobs, Options, Outcome, Take, soonest

# Seconds to wait for a process to end before it is killed. Programs that are being scored have
# time limits, but a worker that hangs may never end.
END_S = 20.0


@dataclass(frozen=True)
class Stop:
    """The answer of a worker that cannot work at all."""

    message: str


@dataclass
class Worker(Holder):
    process: BaseProcess
    pipe: "Connection[Any, Any]"

    def give(self, number: int, job: Job) -> None:
        self.hold(number, job)
        try:
            self.pipe.send((number, job.batch))
        except OSError:
            pass  # the worker is dead; reading its pipe will report that
        except Exception as error:
            raise ValueError(
                f"the problems of task {job.batch.spec.task!r} cannot be sent to a worker: {error}"
            ) from error

    def kill(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join(END_S)


class LocalExecutor:
    def __init__(self, options: Options, workers: int = 1, timeout_s: float | None = None) -> None:
        """timeout_s: how long a worker may take for a batch; None: no limit."""
        self.options, self.workers, self.timeout_s = options, workers, timeout_s
        self._crew: dict[int, Worker] = {}

    def outcomes(self, take: Take) -> Generator[Outcome]:
        jobs, crew = Jobs(take), self._crew
        number = 0  # of the next job
        try:
            while True:
                for index in range(self.workers):
                    while job := jobs.take(crew[index].jobs.values() if index in crew else ()):
                        if index not in crew:
                            crew[index] = self._start(index)
                        crew[index].give(number, job)
                        number += 1
                busy = {index: worker for index, worker in crew.items() if worker.jobs}
                if not busy:
                    return
                ready = wait(
                    [worker.pipe for worker in busy.values()],
                    soonest(busy.values(), self.timeout_s),
                )
                for index, worker in busy.items():
                    readable = worker.pipe in ready or worker.pipe.poll()
                    answer = _answer(worker) if readable else worker.overdue(self.timeout_s)
                    if answer is None:
                        continue
                    if isinstance(answer, Outcome):
                        jobs.done()
                        yield answer
                    else:
                        dead = crew.pop(index)
                        dead.kill()
                        yield from jobs.died(dead.jobs.values(), answer, self.workers)
        except BaseException:
            self.close()  # the results of the running jobs are no longer needed
            raise

    def close(self) -> None:
        _dismiss(list(self._crew.values()))
        self._crew.clear()

    def _start(self, index: int) -> Worker:
        here, there = multiprocessing.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(
            target=_work, args=(there, self.options, index, threads), daemon=True
        )
        # Started by the first worker's start instead, the tracker would unblock the signal.
        resource_tracker.ensure_running()
        with _uninterrupted():
            process.start()
        there.close()
        return Worker(process, here)


def _dismiss(workers: Sequence[Worker]) -> None:
    """Close the pipes, upon which the workers exit. Kill those that do not exit in time."""
    end = time.monotonic() + END_S
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(max(0.0, end - time.monotonic()))
        worker.kill()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which is for the driver."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(worker: Worker) -> Outcome | str:
    """Return the next outcome of a worker, or how it died."""
    try:
        number, answer = worker.pipe.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        worker.process.join(END_S)
        code = worker.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}"
    if isinstance(answer, Stop):
        raise ValueError(answer.message)
    worker.answered(number)
    return answer  # type: ignore[no-any-return]


def _work(pipe: "Connection[Any, Any]", options: Options, index: int, threads: int) -> None:
    """Run a worker process, until the driver ends for whatever reason."""
    import torch

    torch.set_num_threads(threads)
    if options.device == "cuda":
        options = replace(options, device=f"cuda:{index % max(1, torch.cuda.device_count())}")
    bench, sending = Bench(options), Lock()

    def answer(number: int, batch: Batch) -> None:
        try:
            result: Outcome | Stop = bench.run(batch)
        except Exception as error:
            result = Stop(_message(error))
        with sending:
            pipe.send((number, result))

    pool = ThreadPoolExecutor(sum(AHEAD.values()))
    with unwinding():
        try:
            while True:
                try:
                    pool.submit(answer, *pipe.recv())
                except (EOFError, ConnectionError):
                    raise
                except Exception as error:  # e.g. this process cannot import a problem's class
                    with sending:
                        pipe.send((-1, Stop(f"a worker cannot unpickle its batch: {error}")))
        # The driver is gone. If it left answers unread, the error is ConnectionResetError.
        except (EOFError, ConnectionError):
            status = 0
        except Terminated:
            status = 128 + signal.SIGTERM
        pipe.close()  # the other threads must not answer any more
        bench.close()
        os._exit(status)  # without waiting for a batch that is being drawn, which may take long


def _message(error: Exception) -> str:
    expected = isinstance(error, ValueError)
    return str(error) if expected else "".join(traceback.format_exception(error))

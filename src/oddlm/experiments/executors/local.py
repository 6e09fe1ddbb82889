"""Workers on this machine: processes with their own copy of the model, fed through a pipe each."""

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

# for a process to be gone: programs that are being scored have their own limits; one that hangs may
# never be
END_S = 20.0


@dataclass(frozen=True)
class Stop:
    """Said by a worker that cannot work at all."""

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
            pass  # it is dead, which its pipe will tell
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
        """timeout_s: for a worker to answer a batch; None: as long as it takes."""
        self.options, self.workers, self.timeout_s = options, workers, timeout_s
        self._crew: dict[int, Worker] = {}

    def outcomes(self, take: Take) -> Generator[Outcome]:
        jobs, crew = Jobs(take), self._crew
        given = 0
        try:
            while True:
                for index in range(self.workers):
                    while job := jobs.take(crew[index].jobs.values() if index in crew else ()):
                        if index not in crew:
                            crew[index] = self._start(index)
                        crew[index].give(given, job)
                        given += 1
                busy = {index: worker for index, worker in crew.items() if worker.jobs}
                if not busy:
                    return
                ready = wait(
                    [worker.pipe for worker in busy.values()],
                    soonest(busy.values(), self.timeout_s),
                )
                for index, worker in busy.items():
                    said = worker.pipe in ready or worker.pipe.poll()
                    answer = _answer(worker) if said else worker.overdue(self.timeout_s)
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
            self.close()  # what they hold, nobody waits for
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
        # as a part of the first start it would unblock the signal
        resource_tracker.ensure_running()
        with _uninterrupted():
            process.start()
        there.close()
        return Worker(process, here)


def _dismiss(workers: Sequence[Worker]) -> None:
    """A worker whose pipe is closed ends what it has begun, and itself; who does not do so in time
    is killed.
    """
    end = time.monotonic() + END_S
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(max(0.0, end - time.monotonic()))
        worker.kill()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A process that is started here never sees Ctrl-C, which is for the driver."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(worker: Worker) -> Outcome | str:
    """What a worker that has something to say says; text: it is dead, and how it died."""
    try:
        number, answer = worker.pipe.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        worker.process.join(END_S)
        code = worker.process.exitcode
        return (
            f"killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exit status {code}"
        )
    if isinstance(answer, Stop):
        raise ValueError(answer.message)
    worker.answered(number)
    return answer  # type: ignore[no-any-return]


def _work(pipe: "Connection[Any, Any]", options: Options, index: int, threads: int) -> None:
    """The life of a worker process: it ends with its driver, whatever ends that."""
    import torch

    torch.set_num_threads(threads)
    if options.device == "cuda":
        options = replace(options, device=f"cuda:{index % max(1, torch.cuda.device_count())}")
    bench, talking = Bench(options), Lock()

    def answer(number: int, batch: Batch) -> None:
        try:
            said: Outcome | Stop = bench.run(batch)
        except Exception as error:
            said = Stop(_story(error))
        with talking:
            pipe.send((number, said))

    pool = ThreadPoolExecutor(sum(AHEAD.values()))
    with unwinding():
        try:
            while True:
                try:
                    pool.submit(answer, *pipe.recv())
                except (EOFError, ConnectionError):
                    raise
                except Exception as error:  # a problem of a class that this process cannot import
                    with talking:
                        pipe.send((-1, Stop(f"a worker cannot read its work: {error}")))
        except (
            EOFError,
            ConnectionError,
        ):  # the driver is gone; with answers unread, the pipe is said to be reset
            status = 0
        except Terminated:
            status = 128 + signal.SIGTERM
        pipe.close()  # what the other threads would still say is no answer
        bench.close()
        os._exit(status)  # without waiting for what is being drawn, which may take long


def _story(error: Exception) -> str:
    return (
        str(error) if isinstance(error, ValueError) else "".join(traceback.format_exception(error))
    )

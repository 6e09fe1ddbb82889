"""Load test of `oddlm serve`: many concurrent clients, and clients that do not read.

    python benchmarks/serve.py --clients 1 8 64 --n 4 --seconds 60
    python benchmarks/serve.py --clients 1 8 64 --serve "--replicas 2"
    python benchmarks/serve.py --shape llada-8b --device cuda --clients 1 8 64
    python benchmarks/serve.py --stalled 1
    python benchmarks/serve.py --engine-only --model llada-8b --device cuda --dtype bf16 \\
        --clients 32 --pass-rows 4,8,16,32

Starts a server on a free loopback port. Every distinct request is first sent alone, then by many
clients at random for the given time, then alone again. Throughput is compared with the requests
sent alone, before and after, by the clock and by the server's processor time (which other programs
on the machine disturb less). Prints for each number of clients requests per second, latencies, how
many answers came back, how many of them have the same tokens as the same request alone, and the
memory. Memory and processor time are those of the server's process, without its replicas.

--model is a known model or a shape of `oddlm bench`, with random weights. --shape is another name
of it. --cache is the key and value cache of its runs.

With --stalled N, measures how long a request takes next to clients that requested the largest
number of samples: next to N that read nothing, and next to one that reads everything. Both are
given as multiples of the time of the same request alone, measured before and after in the same run.

With --engine-only, the clients call the engine in this process, without HTTP and its dependencies.
Prints requests per second, latencies, and the share of the time in which the network was running.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from oddlm import LM, SampleParams
from oddlm import load as load_lm
from oddlm.bench.overhead import SHAPES, random_network
from oddlm.models.cache import CACHES
from oddlm.models.loading.device import chosen_device, named_dtype
from oddlm.models.native import Native
from oddlm.serve.engine import Engine, Finished, Work
from oddlm.tasks import find_task

if TYPE_CHECKING:
    import httpx

WAIT_S = 600
POOL = 32  # distinct requests
SHAPE = "ODDLM_BENCHMARK_SHAPE"  # the variable that tells the server's process the shape


class Ids:
    """A tokenizer for a network with random weights."""

    def encode(self, text: str) -> list[int]:
        return [int(part) for part in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def shaped(
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    cache: str | None = None,
    shape: str | None = None,
) -> Native:
    """Make a network of a shape with random weights; a server gets this as its model."""
    shape, place = shape or os.environ[SHAPE], chosen_device(device)
    dtype = dtype or (torch.bfloat16 if place.type == "cuda" else torch.float32)
    network = random_network(SHAPES[shape], place, dtype, None)
    return Native(network, name=shape, mask_id=0, end_ids=(1, 2), tokenizer=Ids(), cache=cache)


def prompts_of(model: str) -> list[str]:
    if model in SHAPES:
        chooser = random.Random(0)
        lengths = [chooser.randrange(32, 161) for _ in range(POOL)]
        return [
            " ".join(str(5 + chooser.randrange(1000)) for _ in range(length)) for length in lengths
        ]
    task = find_task("countdown")
    return [task.prompt(problem) for problem in task.problems(limit=POOL)]


def requests(model: str, n: int, length: int, steps: int) -> list[dict]:
    """Make requests with several lengths, temperatures and alphas, each with a different seed."""
    prompts = prompts_of(model)
    shape = {
        "model": model,
        "n": n,
        "max_tokens": length,
        "steps": steps,
        "objective": "odd",
        "fork": False,
    }
    if model not in SHAPES:
        shape["eos"] = "late"
    varied = [
        {"temperature": 0.25 * (i % 5), "alpha": float(8 * (i % 3)), "seed": i} for i in range(POOL)
    ]
    return [
        {"prompt": prompt, **shape, **some} for prompt, some in zip(prompts, varied, strict=True)
    ]


@contextmanager
def server(model: str, *options: str):
    """Start a server in a separate process: (process, address)."""
    environment = dict(os.environ)
    if model in SHAPES:
        path = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
        environment |= {SHAPE: model, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        options = ("--name", model, *options)
    command = [sys.executable, "-m", "oddlm", "serve", "--port", "0", "--timeout", "600"]
    command += ["--model", "serve.shaped" if model in SHAPES else model, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        if "http://" not in line:
            raise RuntimeError(f"the server did not start: {line!r}")
        yield process, line.split()[-1]
    finally:
        process.terminate()
        process.wait()


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def choices_of(answer: dict, request: dict) -> list[tuple] | None:
    """Return the choices of an answer; None if it is incomplete."""
    choices = [
        (c["text"], c["finish_reason"])
        for c in answer["choices"]
        if isinstance(c["text"], str) and c["finish_reason"]
    ]
    complete = (
        len(choices) == request["n"]
        and answer["usage"]["completion_tokens"] >= 0
        and answer["oddlm"]["nfe"] > 0
    )
    return choices if complete else None


async def one_by_one(
    client: "httpx.AsyncClient", pool: list[dict], alone: dict[int, list], pid: int
) -> tuple[float, float]:
    """Send every request alone; return wall-clock and processor seconds per request."""
    began, cpu = time.perf_counter(), cpu_s(pid)
    for i, request in enumerate(pool):
        answer = await client.post("/v1/completions", json=request)
        answer.raise_for_status()
        found = choices_of(answer.json(), request)
        if found is None or alone.setdefault(i, found) != found:
            raise RuntimeError(f"request {i} sent alone is incomplete, or not twice the same")
    return (time.perf_counter() - began) / len(pool), (cpu_s(pid) - cpu) / len(pool)


async def load(
    client: "httpx.AsyncClient", pool: list[dict], clients: int, seconds: float, pid: int
) -> dict:
    """Run clients that send one request after the other."""
    import httpx

    statuses: Counter[str] = Counter()
    latencies: list[float] = []
    answers: list[tuple[int, list | None]] = []
    memory: list[float] = []
    began, cpu = time.perf_counter(), cpu_s(pid)

    async def one_client(seed: int) -> None:
        chooser = random.Random(seed)
        for sent in itertools.count():
            if sent and time.perf_counter() - began >= seconds:
                return
            i, asked = chooser.randrange(len(pool)), time.perf_counter()
            try:
                answer = await client.post("/v1/completions", json=pool[i])
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1
                continue
            statuses[str(answer.status_code)] += 1
            if answer.status_code == 200:
                latencies.append(time.perf_counter() - asked)
                answers.append((i, choices_of(answer.json(), pool[i])))
            else:
                await asyncio.sleep(float(answer.headers.get("retry-after", 0.1)))

    async def watch() -> None:
        while True:
            memory.append(memory_mb(pid))
            await asyncio.sleep(min(1.0, seconds / 10))

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(one_client(seed) for seed in range(clients)))
    elapsed = time.perf_counter() - began
    watcher.cancel()
    return {
        "statuses": dict(statuses),
        **speed(latencies, elapsed),
        "answers": answers,
        "memory": memory,
        "elapsed": elapsed,
        "cpu": cpu_s(pid) - cpu,
    }


def speed(latencies: list[float], elapsed: float) -> dict:
    ordered = sorted(latencies)
    return {
        "requests_per_s": len(ordered) / elapsed,
        "p50_s": statistics.median(ordered),
        "p95_s": ordered[int(0.95 * (len(ordered) - 1))],
    }


async def pause(client: "httpx.AsyncClient") -> float:
    """Wait until the server knows which sizes of passes it may use; return the seconds."""
    began = time.perf_counter()
    while _metric((await client.get("/metrics")).text, "oddlm_sizes_untried"):
        await asyncio.sleep(0.5)
    return time.perf_counter() - began


async def measure(
    url: str, pid: int, pool: list[dict], clients: Sequence[int], seconds: float
) -> list[dict]:
    import httpx

    alone: dict[int, list] = {}
    most = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=most) as client:
        tried = await pause(client)
        times, found = [await one_by_one(client, pool, alone, pid)], []
        for count in clients:
            passes = await network_passes(client)
            load_s = await load(client, pool, count, seconds, pid)
            load_s["passes"] = await network_passes(client) - passes
            times.append(await one_by_one(client, pool, alone, pid))
            found.append(
                {"clients": count, "tried_s": tried, **compared(load_s, pool, alone, *times[-2:])}
            )
    return found


def compared(
    found: dict,
    pool: list[dict],
    alone: dict[int, list],
    before: tuple[float, float],
    after: tuple[float, float],
) -> dict:
    """Compare a load with the requests sent alone before and after: (seconds, processor's)."""
    answers, memory = found.pop("answers"), found.pop("memory")
    quarter, n = max(1, len(memory) // 4), pool[0]["n"]
    together, alone_rate = n * len(answers) / found["elapsed"], 2 * n / (before[0] + after[0])
    cpu_together = found.pop("cpu") / max(1, n * len(answers))
    cpu_alone = (before[1] + after[1]) / 2 / n
    return {
        **found,
        "answers": len(answers),
        "complete": sum(choices is not None for _, choices in answers) / max(1, len(answers)),
        "identical": sum(choices == alone[i] for i, choices in answers) / max(1, len(answers)),
        "memory_mb": {
            "first_quarter": max(memory[:quarter]),
            "last_quarter": max(memory[-quarter:]),
        },
        "samples_per_s": {
            "one_by_one": alone_rate,
            "together": together,
            "ratio": together / alone_rate,
        },
        "cpu_s_per_sample": {
            "one_by_one": cpu_alone,
            "together": cpu_together,
            "ratio": cpu_alone / max(cpu_together, 1e-9),
        },
        "one_by_one_s": {"before": before[0], "after": after[0]},
    }


async def network_passes(client: "httpx.AsyncClient") -> float:
    return _metric((await client.get("/metrics")).text, "oddlm_network_passes")


def _metric(metrics: str, name: str) -> float:
    """Return a metric, summed over the replicas."""
    return sum(
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
    )


def gauge(url: str, name: str) -> float:
    import httpx

    return _metric(httpx.get(f"{url}/metrics", timeout=600).text, name)


@contextmanager
def watcher(url: str, request: dict, *, reads: bool):
    """A client of /v1/denoise that reads everything, or nothing."""
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(request).encode()
    with socket.socket() as raw:
        if not reads:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((host, int(port)))
        head = ["POST /v1/denoise HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        head.append(f"Content-Length: {len(content)}")
        raw.sendall("\r\n".join([*head, "", ""]).encode() + content)
        reader = threading.Thread(
            target=lambda: all(iter(lambda: raw.recv(1 << 20), b"")) if reads else None
        )
        reader.start()
        yield
        raw.shutdown(socket.SHUT_RDWR)
        reader.join()


def beside(url: str, request: dict, large: dict, stalled: int, times: int) -> dict:
    """Return the median seconds of a request alone and next to other clients."""
    import httpx

    def ask() -> float:
        began = time.perf_counter()
        httpx.post(f"{url}/v1/completions", json=request, timeout=600).raise_for_status()
        return time.perf_counter() - began

    def median() -> float:
        return statistics.median(ask() for _ in range(times))

    def wait(gauge_name: str, least: int) -> None:
        end = time.monotonic() + WAIT_S
        while gauge(url, gauge_name) < least:
            if time.monotonic() > end:
                raise SystemExit(
                    f"{gauge_name} did not reach {least} within {WAIT_S} s: "
                    "the model is too slow here for --stalled"
                )
            time.sleep(0.05)

    ask()
    while gauge(url, "oddlm_sizes_untried"):
        time.sleep(0.1)
    before = median()
    with ExitStack() as stack:
        for i in range(1, stalled + 1):
            stack.enter_context(watcher(url, large, reads=False))
            wait("oddlm_rows_stalled", i * large["n"])
        away = median()
        still = gauge(url, "oddlm_rows_stalled")
    between = median()
    with watcher(url, large, reads=True):
        wait("oddlm_rows_in_flight", large["n"])
        busy = ask()
    alone = (before + between) / 2
    found = {
        "alone_s": {"before": before, "between": between},
        "stalled": stalled,
        "stalled_rows_after": still,
    }
    return found | {
        name: {"s": taken, "ratio": taken / alone}
        for name, taken in (("unread", away), ("busy", busy))
    }


def engine_works(given: argparse.Namespace) -> tuple[LM, list[Work]]:
    """Return the model, and the requests that clients send without --engine-only."""
    place = {} if given.device is None else {"device": given.device}
    cache = {} if given.cache is None else {"cache": given.cache}
    if given.model in SHAPES:
        dtype = None if given.dtype is None else named_dtype(given.dtype)
        network = shaped(**place, **cache, dtype=dtype, shape=given.model)
        lm = LM(network, network.tokenizer)
    else:
        lm = load_lm(given.model, **place, **cache)
    works = []
    for body in requests(given.model, given.n, given.length, given.steps)[: given.pool]:
        own = {k: v for k, v in body.items() if k not in ("model", "n", "max_tokens", "prompt")}
        prompt = lm.tokenizer.encode(body["prompt"])
        works.append(Work([prompt], given.n, SampleParams(length=given.length, **own)))
    return lm, works


async def ask_engine(engine: Engine, work: Work) -> list[tuple]:
    job = engine.submit(work)
    while not isinstance(message := await job.receive(), Finished):
        pass
    if message.error is not None:
        raise message.error
    return [(sample.tokens, sample.base_logprobs) for sample in message.samples[0]]


async def load_engine(
    engine: Engine, works: list[Work], clients: Sequence[int], seconds: float
) -> list[dict]:
    """Send requests alone and by many clients at random; the answers must be identical."""
    began = time.perf_counter()
    alone = [await ask_engine(engine, work) for work in works]
    one_by_one = (time.perf_counter() - began) / len(works)
    while engine.network.untried:
        await asyncio.sleep(0.05)
    return [
        {
            "clients": count,
            **await busy_engine(engine, works, alone, count, seconds),
            "one_by_one_per_s": 1 / one_by_one,
        }
        for count in clients
    ]


async def busy_engine(
    engine: Engine, works: list[Work], alone: list, clients: int, seconds: float
) -> dict:
    latencies: list[float] = []
    identical = 0
    began, busy, passes = time.perf_counter(), engine.busy, engine.network.count

    async def one_client(seed: int) -> None:
        nonlocal identical
        chooser = random.Random(seed)
        while time.perf_counter() - began < seconds:
            i, sent = chooser.randrange(len(works)), time.perf_counter()
            found = await ask_engine(engine, works[i])
            latencies.append(time.perf_counter() - sent)
            identical += found == alone[i]

    await asyncio.gather(*(one_client(seed) for seed in range(clients)))
    elapsed = time.perf_counter() - began
    return {
        "requests": len(latencies),
        "identical": identical / len(latencies),
        **speed(latencies, elapsed),
        "busy_share": (engine.busy - busy) / elapsed,
        "passes": engine.network.count - passes,
    }


def measure_engine(given: argparse.Namespace) -> list[dict]:
    lm, works = engine_works(given)
    workers = given.workers or (1 if lm.info.device.type == "cuda" else torch.get_num_threads())
    if lm.info.device.type == "cpu":
        torch.set_num_threads(1)
    sizes = [int(size) for size in given.pass_rows.split(",")]
    engine = Engine(
        lm,
        sizes=sizes,
        workers=workers,
        max_rows=given.max_rows,
        max_queue=1 << 20,
        timeout_s=float(WAIT_S),
    )
    engine.start()
    try:
        return asyncio.run(load_engine(engine, works, given.clients, given.seconds))
    finally:
        engine.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--model",
        "--shape",
        help="default: mini; with --stalled toy, as that measures waiting, not the network",
    )
    add("--clients", type=int, nargs="+", default=[64])
    add("--n", type=int, default=4)
    add("--seconds", type=float, default=60.0)
    add("--length", type=int, default=24)
    add("--steps", type=int, default=12)
    add("--pool", type=int, default=POOL, help="distinct requests, at most 32")
    add("--serve", default="", help="further options of `oddlm serve`, in one string")
    add(
        "--stalled",
        type=int,
        default=0,
        help="clients that read nothing; measures waiting, not load",
    )
    add("--times", type=int, default=9, help="with --stalled: how often each is measured")
    add("--engine-only", action="store_true", help="the engine in this process, without HTTP")
    add("--device")
    add("--dtype", help="of a shape's random weights")
    add("--cache", choices=CACHES, help="of the runs")
    add("--pass-rows", default="4,8,16")
    add("--max-rows", type=int, default=64)
    add("--workers", type=int)
    given = parser.parse_args()
    given.model = given.model or ("toy" if given.stalled else "mini")
    return given


def serve_options(given: argparse.Namespace) -> list[str]:
    """Return the options of `oddlm serve`; those of --serve come last, and win."""
    found = ["--pass-rows", given.pass_rows, "--max-rows", str(given.max_rows)]
    for name in ("device", "dtype", "cache", "workers"):
        if (value := getattr(given, name)) is not None:
            found += [f"--{name}", str(value)]
    return found + given.serve.split()


def measure_beside(given: argparse.Namespace) -> dict:
    large = {"model": given.model, "prompt": "1,2,3,4,5\n", "n": 64, "max_tokens": 224, "seed": 0}
    request = requests(given.model, given.n, given.length, given.steps)[0]
    patient = ["--send-timeout", str(WAIT_S), "--timeout", str(WAIT_S)]
    with server(given.model, *patient, *serve_options(given)) as (_, url):
        return beside(url, request, large, given.stalled, given.times)


def measure_server(given: argparse.Namespace) -> list[dict]:
    pool = requests(given.model, given.n, given.length, given.steps)[: given.pool]
    with server(given.model, *serve_options(given)) as (process, url):
        return asyncio.run(measure(url, process.pid, pool, given.clients, given.seconds))


def main() -> None:
    given = arguments()
    if given.engine_only:
        found = measure_engine(given)
    elif given.stalled:
        found = measure_beside(given)
    else:
        found = measure_server(given)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

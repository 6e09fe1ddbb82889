"""Run what is still missing of the study of rollouts, several runs side by side on one device.

    python recipes/rl/study.py tune --jobs 9    # learning rate and negative weight
    python recipes/rl/study.py main --jobs 12   # methods x seeds, with what was chosen

Every run is an `oddlm rl` of config.toml with some settings changed. `--minutes 9` ends it after
that time; what is cut short is saved, and the same command again resumes it. A finished run leaves
a file of JSON lines in the results, which report.py reads; the published ones are in results/. The
methods of `main` differ in how rollouts are drawn, and in nothing else; all make the same number of
network evaluations.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from oddlm.files import write_whole
from oddlm.rl.config import RlConfig, read_rl_config
from oddlm.signals import unwinding
from oddlm.train.loop import LOG

HERE = Path(__file__).parent
CONFIG, RUNS = HERE / "config.toml", Path("runs/rl-study")
RESULTS = RUNS / "results"
METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"alpha": 0},
    "fork": {"alpha": 0, "fork": True},
    "odd": {"objective": "odd", "alpha": 8, "fork": False},
    "careful": {"preset": "careful"},
}
SEEDS = (0, 1, 2)
RATES, NEGATIVES = (2e-5, 5e-5, 1e-4), (0.2, 0.5, 1.0)
CHOSEN, OUTPUT = "chosen.json", "output.txt"
UNSAVED_S = 120  # a run that is told to end and has not saved by then is killed
DROPPED = ("tokens", "data")  # from the log; results are kept small


@dataclass(frozen=True)
class Job:
    """A run of the study."""

    name: str
    about: Mapping[str, Any]  # what the report needs to know
    changes: tuple[str, ...]  # of config.toml


def tune_jobs() -> list[Job]:
    """Plain rollouts, measured on problems that the study itself does not look at."""
    return [
        Job(
            f"tune-{rate:g}-{negative:g}",
            {"learning_rate": rate, "negative_weight": negative},
            (
                f"learning_rate={rate}",
                f"negative_weight={negative}",
                "steps=60",
                "check_every=20",
                "evaluate.problems.count=128",
            ),
        )
        for rate in RATES
        for negative in NEGATIVES
    ]


def main_jobs(chosen: Mapping[str, float]) -> list[Job]:
    shared = [f"{name}={value}" for name, value in chosen.items()]
    return [
        Job(
            f"{method}-{seed}",
            {"method": method, "seed": seed, **chosen},
            (
                f"seed={seed}",
                f"rollouts.settings={json.dumps(settings)}",
                "evaluate.problems.split=test",
                *shared,
            ),
        )
        for seed in SEEDS
        for method, settings in METHODS.items()
    ]


def choose(results: Path) -> dict[str, float]:
    """Return the settings whose last three measurements have the highest mean Pass@1."""
    missing = [job.name for job in tune_jobs() if not (results / f"{job.name}.jsonl").exists()]
    if missing:
        raise SystemExit(f"{missing[0]} is not complete: run the stage tune again, or pass --set")

    def quality(job: Job) -> float:
        lines = (results / f"{job.name}.jsonl").read_text().splitlines()
        found = [json.loads(line).get("held_out") for line in lines]
        last = [held_out["plain"]["pass@1"] for held_out in found if held_out][-3:]
        return sum(last) / len(last)

    return dict(max(tune_jobs(), key=quality).about)


class Queue:
    """Runs jobs, some at a time, until all are done or time is up."""

    def __init__(self, options: argparse.Namespace, jobs: Sequence[Job]) -> None:
        self.options = options
        self.waiting = [job for job in jobs if not (options.results / f"{job.name}.jsonl").exists()]
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
        self.failed: list[str] = []

    def run(self, ends: float) -> None:
        """Start and collect runs; at the time `ends`, end those that run. They save first."""
        try:
            while (self.waiting or self.running) and monotonic() < ends:
                while self.waiting and len(self.running) < self.options.jobs:
                    self.start(self.waiting.pop(0))
                sleep(0.1)
                self.collect()
        finally:
            for _, process in self.running.values():
                process.terminate()  # unlike SIGINT, it is not ignored in the background
            late = monotonic() + UNSAVED_S
            for _, process in self.running.values():
                try:
                    process.wait(max(0.1, late - monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self.collect(ended=True)

    def start(self, job: Job) -> None:
        out = self.options.runs / job.name
        out.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "oddlm", "rl", str(self.options.config), "--out", str(out)]
        for change in (*job.changes, *self.options.change):
            command += ["--set", change]
        if self.options.device:
            command += ["--device", self.options.device]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with (out / OUTPUT).open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        self.running[job.name] = job, process

    def collect(self, *, ended: bool = False) -> None:
        """Keep the results of runs that are done; note those that failed."""
        for name, (job, process) in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[name]
            if process.returncode == 0:
                keep(job, self.options)
                print(f"{name} is complete", flush=True)
            elif not ended:
                self.failed.append(name)
                output = (self.options.runs / name / OUTPUT).read_text().splitlines()
                print(f"{name} failed: {output[-1] if output else process.returncode}", flush=True)


def config_of(job: Job, options: argparse.Namespace) -> RlConfig:
    return read_rl_config(options.config, [*job.changes, *options.change])


def keep(job: Job, options: argparse.Namespace) -> None:
    """Write the results of a run: what it was, then its log."""
    lines = [{**job.about, "config": config_of(job, options).model_dump(mode="json")}]
    for text in (options.runs / job.name / LOG).read_text().splitlines():
        line = json.loads(text)
        lines.append({name: value for name, value in line.items() if name not in DROPPED})
    options.results.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    write_whole(options.results / f"{job.name}.jsonl", content.encode())


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("tune", "main"))
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--results", type=Path, default=RESULTS, help="small; to be kept")
    parser.add_argument("--runs", type=Path, default=RUNS, help="checkpoints and logs")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then save and end")
    parser.add_argument("--device", help="default: a GPU, if there is one")
    parser.add_argument("--only", help="names of runs that begin with this")
    parser.add_argument(
        "--set", dest="change", action="append", default=[], help="for every run: steps=20"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    began = monotonic()
    options = parse(words)
    if options.stage == "tune":
        jobs = tune_jobs()
    else:
        path = options.results / CHOSEN
        if not path.exists():
            options.results.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(choose(options.results)).encode())
        jobs = main_jobs(json.loads(path.read_text()))
    jobs = [job for job in jobs if job.name.startswith(options.only or "")]
    for job in jobs:
        config_of(job, options)  # raises ValueError before anything runs
    queue = Queue(options, jobs)
    try:
        with unwinding():
            queue.run(began + 60 * options.minutes)
    except KeyboardInterrupt:  # SIGTERM, too: runs have saved
        print("stopped; the same command goes on")
        return 130
    left = sum(not (options.results / f"{job.name}.jsonl").exists() for job in jobs)
    print(f"{len(jobs) - left} of {len(jobs)} runs are complete")
    return 1 if queue.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Check that every command makes the same records for the same unit.

    python benchmarks/records.py

Runs one setting of the toy network through every command, each with a separate store, and prints a
Markdown table with a digest of each store's records, without times.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

TIMES = {"seconds", "draw_seconds"}
GRID = """
model = "toy"
task = { name = "countdown", split = "tune", limit = 6, params = { length = 8 } }
n = 4
[params]
alpha = 8
"""
SHAPE = ["countdown", "--model", "toy", "--split", "tune", "--limit", "6"]
SHAPE += ["--length", "8", "--n", "4"]
PROMPT = ["--model", "toy", "--n", "4", "--length", "8"]
WAYS = {  # name: commands, one after the other
    "eval": [["eval", *SHAPE, "--alpha", "8"]],
    "eval, 3 problems, then 6": [
        ["eval", *SHAPE, "--alpha", "8", "--limit", "3"],
        ["eval", *SHAPE, "--alpha", "8"],
    ],
    "eval --workers 2": [["eval", *SHAPE, "--alpha", "8", "--workers", "2"]],
    "draw, runs score": [["draw", *SHAPE, "--alpha", "8"], ["runs", "score", "--all"]],
    "sweep": [["sweep", "grid.toml"]],
    "sweep --executor inline --together 4": [
        ["sweep", "grid.toml", "--executor", "inline", "--together", "4"]
    ],
    "sweep --only draw, --only score": [
        ["sweep", "grid.toml", "--only", "draw"],
        ["sweep", "grid.toml", "--only", "score"],
    ],
    "tune": [["tune", *SHAPE, "--trials", "1", "--space", "alpha=8", "--search", "random"]],
}
ALONE = {
    "sample": [["sample", "t5 t6", *PROMPT]],
    "sample, twice": [["sample", "t5 t6", *PROMPT]] * 2,
}


def digests(folder: Path) -> dict[str, tuple[str, str, int]]:
    """Return by run the digests of both stages, with lines sorted by problem, and their number."""
    found = {}
    for run in sorted(path.parent for path in folder.glob("*/spec.json")):
        parts = []
        for name in ("drawn.jsonl", "scores.jsonl"):
            records = [json.loads(line) for line in (run / name).read_text().splitlines()]
            kept = sorted(
                (one["problem"], {k: v for k, v in one.items() if k not in TIMES})
                for one in records
            )
            parts.append(hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12])
        found[run.name] = (parts[0], parts[1], len(records))
    return found


def main() -> None:
    print("| commands | run | problems | drawn | scored | equal |\n|---|---|---|---|---|---|")
    for ways in (WAYS, ALONE):
        first: dict[str, tuple[str, str, int]] = {}
        for name, commands in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "grid.toml").write_text(GRID)
                for words in commands:
                    done = subprocess.run(
                        [sys.executable, "-m", "oddlm", *words],
                        cwd=folder,
                        capture_output=True,
                        text=True,
                    )
                    if done.returncode:
                        raise SystemExit(f"oddlm {' '.join(words)}: {done.stderr}")
                found = digests(Path(folder) / "runs")
            for run, (drawn, scored, problems) in found.items():
                known = first.setdefault(run, (drawn, scored, problems))
                equal = "yes" if known == (drawn, scored, problems) else "NO"
                print(
                    f"| `{name}` | {run} | {problems} | {drawn} | {scored} | {equal} |", flush=True
                )


if __name__ == "__main__":
    main()

"""Plot the loss curve of a training run. Needs matplotlib.

python recipes/mini/plot.py recipes/mini/log.jsonl recipes/mini/loss.png
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    log, picture = sys.argv[1:]
    lines = [json.loads(line) for line in Path(log).read_text().splitlines()]
    curves = defaultdict(list)
    for line in lines:
        for name, values in line.get("held_out", {}).items():
            curves[name].append((line["step"], values["bound"]))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name, marker=".")
    axes.set(xlabel="step", ylabel="bound on held-out pairs, nats per token", yscale="log")
    axes.legend()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()

"""Draws why samples part: `python docs/push.py` writes docs/assets/push.svg (extra `plot`).

Three samples, one masked position, three tokens. A sample's feature is its vector of three
probabilities, a point of the triangle. Everything drawn is computed by `oddlm.diversify` and by the
function that finds the directions of the push.
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

import oddlm
from oddlm.kernels.directions import Duplicates, find_directions

OUT = Path(__file__).parent / "assets" / "push.svg"
GREY, COLOURS = "#7b828c", ("#2b7bd0", "#d97706", "#0f9d6b")
TOKENS = ("cat", "dog", "owl")
LOGITS = ((1.0, 0.55, 0.3), (0.6, 0.9, 0.3), (0.6, 0.55, 0.62))  # [samples, tokens]
ALPHA, STEPS = 0.15, 30
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
Points = NDArray[np.float64]


def walk() -> Points:
    """[steps + 1, samples, tokens]: the probabilities, pushed again and again."""
    logits = torch.tensor(LOGITS, dtype=torch.float64)[:, None]  # [3, 1, 3]: one position
    tokens = torch.zeros(3, 1, dtype=torch.long)
    masked = torch.ones(3, 1, dtype=torch.bool)
    found = [logits.softmax(-1)[:, 0].numpy()]
    for step in range(STEPS):
        logits = oddlm.diversify(logits, tokens, masked, alpha=ALPHA, objective="odd", step=step)
        found.append(logits.softmax(-1)[:, 0].numpy())
    return np.stack(found)


def residuals(features: Points) -> Points:
    """[samples, tokens]: unit vectors, of each feature what the span of the earlier ones lacks."""
    rule = Duplicates("skip", 1e-3, native=False)
    vectors = find_directions(torch.tensor(features)[None], None, rule, lambda *_: None).vectors
    return vectors[0].numpy()


def place(features: Points) -> Points:
    """Where features lie in the triangle; what does not sum to one is a point on its ray."""
    return features / features.sum(-1, keepdims=True) @ CORNERS


def triangle(axes: Axes, title: str) -> None:
    axes.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.17, 1.02))
    axes.axis("off")
    axes.add_patch(plt.Polygon(CORNERS, fill=False, edgecolor=GREY, linewidth=1.6))
    for (x, y), token, shift in zip(CORNERS, TOKENS, (-0.1, -0.1, 0.05), strict=True):
        axes.text(x, y + shift, token, ha="center", color=GREY, fontsize=15)
    axes.set_title(title, color=GREY, fontsize=16, pad=10)


def dot(axes: Axes, point: Points, sample: int) -> None:
    axes.plot(*point, "o", markersize=17, color=COLOURS[sample], zorder=4)
    axes.text(
        *point,
        str(sample + 1),
        ha="center",
        va="center_baseline",
        color="white",
        fontsize=13,
        fontweight="bold",
        zorder=5,
    )


def before(axes: Axes, features: Points) -> None:
    """The features, the span that sample 3 is compared with, and where 2 and 3 are pushed."""
    triangle(axes, "one step: push along\nwhat the earlier ones lack")
    points, away = place(features), residuals(features)
    along = points[1] - points[0]
    line = points[0] + along * np.linspace(-20, 20, 4001)[:, None]
    inside = (
        np.linalg.solve(
            np.vstack([CORNERS.T, np.ones(3)]), np.vstack([line.T, np.ones(len(line))])
        ).min(0)
        >= 0
    )
    axes.plot(*line[inside].T, "--", color=GREY, linewidth=1.6)
    x, y = line[inside].mean(0)
    axes.text(x, y - 0.12, "span of 1 and 2", ha="center", color=GREY, fontsize=14)
    for sample in (1, 2):
        length = np.linalg.norm(features[sample])
        target = place(features[sample] + 0.55 * length * away[sample])
        arrow = {"arrowstyle": "-|>", "color": COLOURS[sample], "linewidth": 2.6}
        axes.annotate("", target, points[sample], arrowprops={**arrow, "mutation_scale": 20})
    for sample, point in enumerate(points):
        dot(axes, point, sample)


def after(axes: Axes, path: Points) -> None:
    triangle(axes, f"{STEPS} steps: each sample\ngoes its own way")
    points = place(path)
    for sample in range(path.shape[1]):
        axes.plot(*points[:, sample].T, color=COLOURS[sample], linewidth=2.6, alpha=0.8)
        axes.plot(*points[0, sample], "o", markersize=7, color=COLOURS[sample])
        dot(axes, points[-1, sample], sample)


def main() -> None:
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "push", "font.family": "sans-serif"}
    path = walk()
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.9))
    before(left, path[0])
    after(right, path)
    figure.subplots_adjust(0, 0, 1, 0.84, wspace=0.02)
    figure.savefig(OUT, transparent=True, metadata={"Date": None})
    print(OUT)


if __name__ == "__main__":
    main()

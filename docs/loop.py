"""Draws the sampling loop: `python docs/loop.py` writes docs/assets/loop.svg.

Boxes are filled and their text is white; lines and captions are mid-grey. So the drawing reads on
light and on dark pages, and at the width of a phone.
"""

from pathlib import Path

OUT = Path(__file__).parent / "assets" / "loop.svg"
WIDTH, HEIGHT = 480, 560
GREY, BLUE, ORANGE, GREEN, SLATE = "#7b828c", "#2b6cb0", "#b45309", "#047857", "#5b6470"
BOX_WIDTH, BOX_HEIGHT = 176, 50
LEFT, RIGHT = 124, 356  # centres of the two columns
TOP, ROW = 132, 104

# name: centre x, centre y, fill, caption below
BOXES = {
    "query": (LEFT, TOP, BLUE, "canvas and masked positions"),
    "network": (RIGHT, TOP, SLATE, "any model: the only I/O"),
    "push": (RIGHT, TOP + ROW, ORANGE, "samples repel each other"),
    "choose": (RIGHT, TOP + 2 * ROW, BLUE, "a token per position"),
    "commit": (LEFT, TOP + 2 * ROW, BLUE, "the surest positions"),
}


def box(name: str, x: float, y: float, fill: str, caption: str) -> str:
    left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
    size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="9"'
    rectangle = f'<rect x="{left}" y="{top}" {size} fill="{fill}"/>'
    texts = label(x, y + 7, name, kind="name") + label(x, y + BOX_HEIGHT / 2 + 19, caption)
    return rectangle + texts


def arrow(path: str) -> str:
    return f'<path d="{path}" class="arrow" marker-end="url(#tip)"/>'


def label(x: float, y: float, text: str, anchor: str = "middle", kind: str = "caption") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{text}</text>'


def batch(x: float, y: float, rows: list[str]) -> str:
    """n samples as rows of cells: "#" is a committed token, "." a masked position."""
    size, gap = 17, 4
    parts = []
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            place = f'x="{x + c * (size + gap)}" y="{y + r * (size + gap)}"'
            look = (
                f'fill="{GREEN}"'
                if cell == "#"
                else f'fill="none" stroke="{GREY}" stroke-width="1.5" stroke-dasharray="3 2"'
            )
            parts.append(f'<rect {place} width="{size}" height="{size}" rx="3" {look}/>')
    return "".join(parts)


def draw() -> str:
    half, side = BOX_HEIGHT / 2, BOX_WIDTH / 2
    below = half + 28  # under a caption
    parts = [
        label(LEFT, 26, "prompts, n samples each"),
        label(LEFT, 64, "begin", kind="call"),
        arrow(f"M{LEFT} 34V44"),
        arrow(f"M{LEFT} 74V{TOP - half - 6}"),
        *(box(name, *rest) for name, rest in BOXES.items()),
        arrow(f"M{LEFT + side} {TOP}H{RIGHT - side - 6}"),
        arrow(f"M{RIGHT} {TOP + below}V{TOP + ROW - half - 6}"),
        arrow(f"M{RIGHT} {TOP + ROW + below}V{TOP + 2 * ROW - half - 6}"),
        arrow(f"M{RIGHT - side} {TOP + 2 * ROW}H{LEFT + side + 6}"),
        arrow(f"M{LEFT} {TOP + 2 * ROW - half}V{TOP + below}"),
        label(LEFT - 12, TOP + ROW - 8, "advance", "end", "call"),
        label(LEFT - 12, TOP + ROW + 14, "next step", "end"),
        arrow(f"M{LEFT} {TOP + 2 * ROW + below}V{TOP + 3 * ROW - 12}"),
        batch(LEFT - 82, TOP + 3 * ROW, ["#.##..#.", "##..#.#.", ".##.#..#", "#..##.#."]),
        label(LEFT + 104, TOP + 3 * ROW + 24, "one batch, n samples", "start"),
        label(LEFT + 104, TOP + 3 * ROW + 46, "green: committed", "start"),
        label(LEFT + 104, TOP + 3 * ROW + 68, "dashed: masked", "start"),
        label(WIDTH / 2, HEIGHT - 14, "Until no position is masked: n different texts"),
    ]
    style = (
        ".name{font:600 20px ui-monospace,Menlo,Consolas,monospace;fill:#fff}"
        f".call{{font:600 19px ui-monospace,Menlo,Consolas,monospace;fill:{GREY}}}"
        f'.caption{{font:16px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:{GREY}}}'
        f".arrow{{fill:none;stroke:{GREY};stroke-width:2.5}}"
    )
    title = "The sampling loop: query, network, push, choose, commit, and back"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{title}"><title>{title}</title><style>{style}</style>'
        f'<defs><marker id="tip" viewBox="0 0 10 10" refX="6" refY="5" markerWidth="5.5"'
        f' markerHeight="5.5" orient="auto"><path d="M0 0L10 5L0 10z" fill="{GREY}"/></marker>'
        "</defs>" + "\n".join(parts) + "</svg>\n"
    )


if __name__ == "__main__":
    OUT.write_text(draw())
    print(OUT)

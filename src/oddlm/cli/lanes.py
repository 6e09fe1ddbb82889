"""The table of `oddlm bench answers`."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from ..bench.costs import PER_ANSWERS, PUBLISHED, PUBLISHED_EXTRA_GIB, Lane
from .views import bare_table


def lanes_table(lanes: Sequence[Lane], about: Mapping[str, object]) -> Table:
    """Return a table with a lane per row; `about` is what they share, for the caption."""
    table = bare_table()
    for header in ("network", "sampler"):
        table.add_column(header, no_wrap=True)
    beside = any(lane.published_ms is not None for lane in lanes)
    for header in (
        "steps",
        "ms/step",
        f"s/{PER_ANSWERS}",
        "tokens/s",
        "speed [range]",
        "over floor [range]",
        "host %",
        "MiB",
        *([f"ms, {PUBLISHED}"] if beside else []),
    ):
        widest = max(map(len, header.split()))  # a narrow terminal wraps between words
        table.add_column(header, justify="right", min_width=widest)
    for lane in lanes:
        cells = [
            str(lane.steps),
            f"{lane.step_ms:.3g}",
            f"{lane.seconds:.3g}",
            f"{lane.tokens_per_s:.0f}" if lane.tokens_per_s >= 100 else f"{lane.tokens_per_s:.3g}",
            f"{lane.speed:.2f} [{lane.speed_low:.2f}, {lane.speed_high:.2f}]",
            "-"
            if lane.over_floor is None
            else f"{lane.over_floor:.2f} [{lane.over_floor_low:.2f}, {lane.over_floor_high:.2f}]",
            _number(lane.host_share and 100 * lane.host_share, "{:.0f}"),
            f"{lane.extra_mib:.0f}",
            *([_number(lane.published_ms, "{:g}")] if beside else []),
        ]
        table.add_row(lane.network, lane.sampler, *cells)
    first = lanes[0]
    shape = f"n={first.n}, {first.length} tokens in blocks of {first.block_length}"
    rest = ", ".join(f"{key} {value}" for key, value in about.items() if value is not None)
    notes = [f"{first.model} {first.dtype}, {shape}; {rest}."]
    notes.append("Speed: over the first lane with the same sampler. MiB: peak, without weights.")
    if about["threads"] is not None:
        notes.append("On a CPU, ratios, floor and host are processor time.")
    if beside:
        notes.append(f"{PUBLISHED}: {PUBLISHED_EXTRA_GIB} GiB of extra memory.")
    table.caption = " ".join(notes)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)

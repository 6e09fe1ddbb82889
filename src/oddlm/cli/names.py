"""`oddlm names`: what settings may name."""

from .app import app


@app.command()
def names() -> None:
    """List the objectives, features, policies, alpha schedules and selectors, with their options,
    and what presets stand for.
    """
    from rich.table import Table

    from ..diversity.features import FEATURE_OPTIONS
    from ..pieces import PIECES
    from ..presets import ABOUT, PRESETS
    from .views import open_console

    table = Table("kind", "name", "options", "what it does", show_lines=False, pad_edge=False)
    for field, registry in PIECES.items():
        for name in registry.names:
            shared = FEATURE_OPTIONS if field == "feature" else {}
            options = ", ".join(
                f"{k}={v!r}" for k, v in {**registry.options(name), **shared}.items()
            )
            table.add_row(
                registry.kind, name, options, (registry.find(name).__doc__ or "").split("\n")[0]
            )
        table.add_section()
    for kind, name, stands_for in (("preset", *preset) for preset in PRESETS.items()):
        table.add_row(
            kind, name, ", ".join(f"{k}={v!r}" for k, v in stands_for.items()), ABOUT[name]
        )
    open_console().print(table)

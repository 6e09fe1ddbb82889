"""`oddlm names`: the names that settings can take."""

from .app import PIECES as PIECES_PANEL
from .app import app


@app.command(rich_help_panel=PIECES_PANEL)
def names() -> None:
    """List the names that settings can take: policies, objectives, ways to vote, losses and more.

    Each name is shown with its options, and each preset with the settings it stands for. A name
    with options is given as JSON, as in the example; a dotted path names a function of your own.

    Example: oddlm names

    Example: oddlm sample "73,32,7,19,28" --policy '{"name": "threshold", "threshold": 0.8}'
    """
    from rich.table import Table

    from ..diversity.features import FEATURE_OPTIONS, FEATURES
    from ..pieces import PIECES
    from ..presets import ABOUT, PRESETS
    from ..rl.estimators import ESTIMATORS
    from ..rl.losses import ADVANTAGES, LOSSES
    from ..voting import WAYS
    from .views import open_console

    table = Table("kind", "name", "options", "description", show_lines=False, pad_edge=False)
    for registry in (*PIECES.values(), WAYS, ESTIMATORS, LOSSES, ADVANTAGES):
        for name in registry.names:
            shared = FEATURE_OPTIONS if registry is FEATURES else {}
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

"""Entry points that other programs load by themselves. Importing this imports nothing of theirs."""

import os

SGLANG = "ODDLM_SGLANG"  # in the environment: the processes of a server inherit it


def sglang() -> None:
    """Register the algorithm `Odd` with SGLang, if ODDLM_SGLANG=1 asks for it.

    Every process of every SGLang server beside an installed oddlm calls this, and what has to be
    imported to register takes seconds.
    """
    if os.environ.get(SGLANG) == "1":
        from .sglang import register

        register()

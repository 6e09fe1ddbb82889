"""How tests start processes."""

import signal


def heed_interrupts() -> None:
    """Ctrl-C reaches a process with this as its `preexec_fn`, also where the tests run with it ignored: after `nohup`, say.

    A process keeps what its parent ignored, and Python then raises no KeyboardInterrupt.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)

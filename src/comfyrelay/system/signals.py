"""Handle stop signals: from Ctrl-C, service managers and closed console windows."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

STOPS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform == "win32":
    # Windows sends this for Ctrl-Break and a closed window, and never sends SIGTERM.
    STOPS = (*STOPS, signal.SIGBREAK)


@contextmanager
def on_stop(handle: Callable[[int], object]) -> Iterator[None]:
    """Call `handle` with the number of each stop signal, in the running loop."""
    loop = asyncio.get_running_loop()
    with ExitStack() as undo:
        for number in STOPS:
            try:
                loop.add_signal_handler(number, handle, number)
                undo.callback(loop.remove_signal_handler, number)
            except NotImplementedError:
                # On Windows, a handler runs between two steps of the loop and must wake the loop.
                before = signal.signal(number, lambda received, _frame: loop.call_soon_threadsafe(handle, received))
                undo.callback(signal.signal, number, before)
        yield


def ignore_ctrl_c() -> None:
    """Ignore Ctrl-C in a helper process, because its parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

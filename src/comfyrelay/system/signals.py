"""Stop signals: Ctrl-C, service managers, and closed console windows."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

STOPS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform == "win32":
    # Ctrl-Break and a closed window; Windows sends no SIGTERM
    STOPS = (*STOPS, signal.SIGBREAK)


@contextmanager
def on_stop(handle: Callable[[int], object]) -> Iterator[None]:
    """Call `handle` with the number of each stop signal, in the running loop."""
    loop = asyncio.get_running_loop()
    with ExitStack() as undo:
        for number in STOPS:
            undo.callback(_install(loop, number, handle))
        yield


def _install(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[int], object]
) -> Callable[[], object]:
    try:
        loop.add_signal_handler(number, handle, number)
    except NotImplementedError:
        # on Windows, a handler runs between two steps of the loop and must wake it
        before = signal.signal(number, lambda *_: loop.call_soon_threadsafe(handle, int(number)))
        return lambda: signal.signal(number, before)
    return lambda: loop.remove_signal_handler(number)


def ignore_ctrl_c() -> None:
    """For a helper process: its parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

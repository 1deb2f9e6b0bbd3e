"""Being asked to end: by Ctrl-C, by who runs services, by a window that is closed."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

STOPS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform == "win32":
    # Ctrl-Break, and the window; nobody sends SIGTERM there
    STOPS = (*STOPS, signal.SIGBREAK)


@contextmanager
def on_stop(handle: Callable[[int], object]) -> Iterator[None]:
    """Until this is left, `handle` is called in the running loop, with the signal, each time we are asked to end."""
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
        # not on Windows; there a handler runs between two steps of the loop, and must wake it
        before = signal.signal(number, lambda *_: loop.call_soon_threadsafe(handle, int(number)))
        return lambda: signal.signal(number, before)
    return lambda: loop.remove_signal_handler(number)


def ignore_ctrl_c() -> None:
    """In a process that serves another one: who presses Ctrl-C means that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

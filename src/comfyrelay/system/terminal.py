"""Read single keys from a terminal."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnKeys = Callable[[str], object]
# Passed instead of a key when the terminal is closed.
END = ""


@contextmanager
def keys(on_keys: OnKeys) -> Iterator[None]:
    """Call `on_keys` in the running loop for each key, and with `END` when the terminal is closed. Without a terminal,
    nothing is read."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    with _reading(on_keys):
        yield


if sys.platform == "win32":
    import msvcrt

    _POLL_SECONDS = 0.05

    @contextmanager
    def _reading(on_keys: OnKeys) -> Iterator[None]:
        async def watch() -> None:
            while True:
                while msvcrt.kbhit():
                    on_keys(msvcrt.getwch())
                # A Windows console sends no events, so poll it.
                await asyncio.sleep(_POLL_SECONDS)

        watching = asyncio.get_running_loop().create_task(watch())
        try:
            yield
        finally:
            watching.cancel()

else:
    import termios
    import tty

    @contextmanager
    def _reading(on_keys: OnKeys) -> Iterator[None]:
        def read() -> None:
            # `sys.stdin` would buffer keys without triggering an event.
            pressed = os.read(keyboard, 64)
            if not pressed:
                # A closed terminal would stay readable forever.
                loop.remove_reader(keyboard)
            on_keys(pressed.decode(errors="replace") if pressed else END)

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        loop = asyncio.get_running_loop()
        tty.setcbreak(keyboard)
        loop.add_reader(keyboard, read)
        try:
            yield
        finally:
            loop.remove_reader(keyboard)
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

"""What a terminal takes and gives: keys one by one, and text that it may not be able to show."""

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnKeys = Callable[[str], object]
# The keyboard has ended: its terminal is gone.
END = ""


def show_what_can_be_shown() -> None:
    """From now on, what the terminal or a file cannot take is shown as `?`: on Windows many take few letters only."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def keys(on_keys: OnKeys) -> Iterator[None]:
    """Until this is left, what is pressed is given to `on_keys` at once, in the running loop, and `END` at the end.
    Without a terminal nothing is."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    with _reading(on_keys):
        yield


if sys.platform == "win32":
    import msvcrt

    _SECONDS = 0.05

    @contextmanager
    def _reading(on_keys: OnKeys) -> Iterator[None]:
        async def watch() -> None:
            while True:
                while msvcrt.kbhit():
                    on_keys(msvcrt.getwch())
                # a console wakes nobody
                await asyncio.sleep(_SECONDS)

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
            # not through sys.stdin: what that holds back wakes nobody
            pressed = os.read(keyboard, 64)
            if not pressed:
                # it would be ready for ever
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

"""Run the work of a command with an engine, on an event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from typing import TYPE_CHECKING, Any, TypeVar

from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine

T = TypeVar("T")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Import modules faster: scanning them for garbage takes a sixth of the import time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_with_engine(work: Callable[[Engine], Awaitable[T]]) -> T:
    """Run `work` with an engine on the databases of the settings."""
    require("server")
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import load_settings

    async def run() -> T:
        async with Engine(load_settings()) as engine:
            return await work(engine)

    return asyncio.run(run())


def run_event_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on uvloop if it is installed. The server extra includes it, except on Windows."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


@contextmanager
def explained_port(address: str) -> Iterator[None]:
    """Explain why a command with the option `--port` cannot listen."""
    try:
        yield
    except OSError as error:
        if error.errno not in (EADDRINUSE, EADDRNOTAVAIL, EACCES):
            raise
        raise ConfigurationError(
            f"Cannot listen at {address}. If another program uses the port, choose a different one with --port."
        ) from None

"""What commands about fleets do with the databases of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine

T = TypeVar("T")


def with_engine(work: Callable[[Engine], Awaitable[T]]) -> T:
    require("server")
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import load_settings

    async def run() -> T:
        async with Engine(load_settings()) as engine:
            return await work(engine)

    return asyncio.run(run())

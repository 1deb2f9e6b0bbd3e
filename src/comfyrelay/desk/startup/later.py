"""Modules that a desk imports when its page answers already, because they take a third of its start."""

import asyncio
from importlib import import_module
from typing import Literal

LaterModule = Literal["comfyrelay.simulator", "comfyrelay.worker.agent"]


async def import_later(module: LaterModule) -> None:
    """Import a module in a thread, while the page answers."""
    await asyncio.to_thread(import_module, module)

"""Modules that a desk imports once its page answers, because importing them takes a third of the startup time."""

import asyncio
from importlib import import_module
from typing import Literal

LaterModule = Literal["comfyrelay.simulator", "comfyrelay.worker.agent"]


async def import_later(module: LaterModule) -> None:
    """Import a module in a thread while the page answers."""
    await asyncio.to_thread(import_module, module)

"""Read the workflow that ComfyUI embeds in images, videos and audio."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.editor.embedded import Embedded, read_embedded
from comfyrelay.errors import NotFound
from comfyrelay.http_client import save
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore


async def read_embedded_workflow(objects: ObjectStore, path: str) -> Any:
    """Return the graph that was run, or the workflow of the editor, or `None`."""
    found = await _read(objects, path)
    return None if found is None else found.graph or found.workflow


async def _read(objects: ObjectStore, path: str) -> Embedded | None:
    if isinstance(objects, LocalObjects):
        local = await objects.file_of(path)
        if local is None:
            raise NotFound("This file has not been uploaded yet.")
        return await asyncio.to_thread(read_embedded, local)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "file")
        await save(objects.stream(path), copy)
        return await asyncio.to_thread(read_embedded, copy)

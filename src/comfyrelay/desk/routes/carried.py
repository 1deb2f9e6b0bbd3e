"""The workflow that a picture, a video or a sound carries, so that what made it can be run again."""

import asyncio
import tempfile
from pathlib import Path

from fastapi import APIRouter

from comfyrelay.comfy.editor.embedded import Embedded, read_embedded
from comfyrelay.errors import NotFound
from comfyrelay.net import save
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import Carried
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.bodies import BodyRoute
from comfyrelay.server.base.context import Context, ContextOf
from comfyrelay.server.base.parameters import IdInPath
from comfyrelay.server.base.problems import may_answer
from comfyrelay.storage.local import LocalObjects

router = APIRouter(prefix="/api/desk/files", tags=["desk"], route_class=BodyRoute)


@router.get("/{file_id}/workflow", responses=may_answer(401, 404, 422, 503))
async def workflow_in(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Carried]:
    """What made a file that was uploaded, as far as ComfyUI wrote it there: as it ran, else as the editor had it."""
    file = await context.engine.jobs.uploads.stored(user, file_id)
    found = await _read(context, file.path)
    return Answer(data=Carried(graph=(found.graph or found.workflow) if found is not None else None))


async def _read(context: Context, path: str) -> Embedded | None:
    objects = context.engine.objects
    if isinstance(objects, LocalObjects):
        place = await objects.file_of(path)
        if place is None:
            raise NotFound("This file has not been uploaded yet.")
        return await asyncio.to_thread(read_embedded, place)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "file")
        await save(objects.stream(path), copy)
        return await asyncio.to_thread(read_embedded, copy)

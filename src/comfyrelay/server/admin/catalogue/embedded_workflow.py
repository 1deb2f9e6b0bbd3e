"""The workflow embedded in an uploaded file, for the catalogue."""

from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.user import Carried
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.parameters import IdInPath
from comfyrelay.server.http.problems import may_answer
from comfyrelay.services.catalogue.embedded_workflow import read_embedded_workflow

router = admin_router("/uploads")


@router.get("/{file_id}/workflow", responses=may_answer(404, 422))
async def workflow_in(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Carried]:
    """The workflow that ComfyUI embedded in your uploaded file: the graph as it ran, else the editor's workflow."""
    file = await context.engine.jobs.uploads.find_file(user, file_id)
    return Answer(data=Carried(graph=await read_embedded_workflow(context.engine.objects, file.path)))

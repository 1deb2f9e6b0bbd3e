"""The workflow embedded in an image, video or sound."""

from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.user import EmbeddedWorkflow
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, Router
from comfyrelay.services.catalogue.embedded_workflow import read_embedded_workflow

router = Router(prefix="/api/desk/files", tags=["desk"])


@router.get("/{file_id}/workflow", responses=error_responses(401, 404, 422, 503))
async def workflow_in(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[EmbeddedWorkflow]:
    """Return the workflow that ComfyUI embedded in an uploaded file: as it ran, otherwise as the editor saved it."""
    file = await context.engine.jobs.uploads.find_file(user, file_id)
    return Answer(data=EmbeddedWorkflow(graph=await read_embedded_workflow(context.engine.objects, file.path)))

"""Files of the catalogue: assets of effects, and uploaded files with an embedded workflow."""

from comfyrelay.domain.uploads import AnnouncedUpload
from comfyrelay.protocol.admin import catalogue as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.user import EmbeddedWorkflow
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath

router = admin_router()


@router.post("/assets", status_code=201, responses=error_responses(413, 422))
async def begin_upload(body: wire.NewAsset, context: ContextOf) -> Answer[wire.AssetUpload]:
    """Request an upload URL for an asset, which workers download and users do not see. The response also contains the
    path to use in defaults and overrides."""
    upload = await context.engine.catalogue.assets.create_upload(AnnouncedUpload(**body.model_dump()))
    signed = upload.signed
    data = wire.AssetUpload.of(upload, signed, upload_url=signed.url, upload_headers=signed.headers)
    return Answer(data=data, message="Send the bytes with PUT.")


@router.get("/uploads/{file_id}/workflow", responses=error_responses(404, 422))
async def workflow_in(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[EmbeddedWorkflow]:
    """Get the workflow that ComfyUI embedded in your uploaded file: the graph that ran, or else the editor's
    workflow."""
    file = await context.engine.jobs.uploads.find_file(user, file_id)
    return Answer(data=await context.engine.catalogue.embedded_workflows.read(file.path))

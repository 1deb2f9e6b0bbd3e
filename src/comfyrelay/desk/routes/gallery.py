"""Copy outputs of the gallery to a folder."""

from comfyrelay.desk.batches.gallery_export import copy_chosen
from comfyrelay.desk.state import DeskStateOf
from comfyrelay.protocol import gallery as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk/gallery", tags=["desk"])


@router.post("/copy", responses=error_responses(401, 403, 422, 503))
async def copy_outputs(
    body: wire.CopyOutputs, state: DeskStateOf, context: ContextOf, user: CurrentUser
) -> Answer[wire.CopiedOutputs]:
    """Copy outputs to a folder inside the output folder. The copies are kept when a job is deleted."""
    result = await copy_chosen(
        context.engine,
        user.tenant_id,
        list(dict.fromkeys(body.ids)),
        root=state.output_folder,
        folder=body.folder,
        umask=state.output_umask,
        outputs=state.outputs,
    )
    copied = [str(path) for path in result.copied]
    failed = f" Not copied: {len(result.not_copied)}." if result.not_copied else ""
    return Answer(
        data=wire.CopiedOutputs.of(result, folder=str(result.folder), copied=copied),
        message=f"Copied {len(copied)} to {result.folder}.{failed}",
    )

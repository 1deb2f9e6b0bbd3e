"""ComfyUI's editor: links that open it, and the workflows that the user saved there."""

import json
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Path, Request

from comfyrelay.errors import Conflict, Forbidden, InvalidInput, NotFound
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.protocol.fields import STORABLE
from comfyrelay.server.http.auth import Bearer, CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import user_router
from comfyrelay.server.user.accounts import secret_of
from comfyrelay.services.comfyui_api.sessions import CODE_SECONDS

router = user_router("/api/editor", "editor")
# Where the editor saves workflows.
FOLDER = "workflows"
SUFFIX = ".json"
FilePath = Annotated[str, Path(max_length=400, pattern=STORABLE)]


@router.post("/links", status_code=201, responses=error_responses(403, 404, 409, 422))
async def add_link(
    body: wire.NewEditorLink, request: Request, context: ContextOf, user: CurrentUser, bearer: Bearer
) -> Answer[wire.EditorLink]:
    """Create a link that opens ComfyUI's editor once, with the workflow of a job or one of your workflows if given. Its
    session is valid for ComfyUI's API only, and ends with the token or session of this request."""
    if not context.has_editor:
        raise Conflict("This server has no editor. Its administrator can install and configure it.")
    await context.engine.accounts.own_workflows.require(user.tenant_id)
    documents, query = context.engine.comfyui_api.documents, {}
    if body.job_id is not None:
        await documents.of_job(user.tenant_id, body.job_id)
        query = {"template": body.job_id, "source": "job"}
    elif body.workflow is not None:
        await documents.of_workflow(user.tenant_id, body.workflow)
        query = {"template": body.workflow, "source": "workflow"}
    elif body.catalogue is not None:
        if not user.is_admin:
            raise Forbidden("Only administrators may open workflows of the catalogue.")
        await documents.of_catalogue(body.catalogue)
        query = {"template": body.catalogue, "source": "catalogue"}
    parent_id = await context.engine.accounts.sign_in.token_id(secret_of(request, context, bearer))
    code = await context.engine.comfyui_api.sessions.create_code(user, parent_id=parent_id)
    url = f"{context.settings.comfyui_url}/open?{urlencode({'code': code, **query})}"
    return Answer(data=wire.EditorLink(url=url, seconds=int(CODE_SECONDS)), message="The link works once.")


@router.get("/workflows")
async def workflows(context: ContextOf, user: CurrentUser) -> Answer[Items[wire.EditorFile]]:
    """List the workflows that you saved in ComfyUI's editor, newest first."""
    found = await context.engine.comfyui_api.user_files.list(user.tenant_id, FOLDER)
    saved = [file for file in found if file.path.endswith(SUFFIX)]
    saved.sort(key=lambda file: file.modified_at, reverse=True)
    return Answer(
        data=Items(
            items=[
                wire.EditorFile(path=file.path.removeprefix(f"{FOLDER}/"), modified_at=file.modified_at)
                for file in saved
            ]
        )
    )


@router.get("/workflows/{path:path}", responses=error_responses(404, 422))
async def workflow(path: FilePath, context: ContextOf, user: CurrentUser) -> Answer[wire.EditorWorkflow]:
    """Get a workflow that you saved in ComfyUI's editor."""
    content = await context.engine.comfyui_api.user_files.read(user.tenant_id, f"{FOLDER}/{path}")
    if content is None:
        raise NotFound("You have no such workflow in the editor.")
    try:
        graph = json.loads(content)
    except (ValueError, RecursionError):
        graph = None
    if not isinstance(graph, dict):
        raise InvalidInput("This file is not a workflow.")
    return Answer(data=wire.EditorWorkflow(graph=graph))

"""Bring a graph: it becomes a workflow whose inputs are typed properties."""

import asyncio

from fastapi import APIRouter, Request, status

from comfyrelay.comfy.client import ComfyClient
from comfyrelay.comfy.editor.loading import as_graph
from comfyrelay.comfy.editor.workflow import is_editor_file
from comfyrelay.desk.state import DeskState
from comfyrelay.errors import ComfyError, GraphError
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import DescribedGraph, NewGraph
from comfyrelay.server.base.auth import CurrentUser, known_user
from comfyrelay.server.base.bodies import BodyRoute, large_body
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.effects import workflow_body
from comfyrelay.services.catalogue.own_workflows import NewWorkflow
from comfyrelay.services.forms.describe import Described, describe

router = APIRouter(prefix="/api/desk/graphs", tags=["desk"], route_class=BodyRoute)


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403, 422, 503))
@large_body(known_user)
async def add_graph(body: NewGraph, request: Request, context: ContextOf, user: CurrentUser) -> Answer[DescribedGraph]:
    """Bring a workflow as ComfyUI's editor saves it, or a graph in the API's format.

    Types, ranges and choices are those of the nodes that are installed.
    """
    state: DeskState = request.app.state.desk
    message = "Added."
    try:
        async with ComfyClient(state.comfyui[0]) as client:
            object_info = await client.object_info()
    except ComfyError as error:
        if is_editor_file(body.graph):
            raise GraphError(
                "This workflow was saved by ComfyUI's editor, and only ComfyUI knows the fields of its nodes. "
                f"Start ComfyUI and add it again. {error.detail}"
            ) from error
        object_info, message = None, f"Added. The types of its inputs were guessed from their values. {error.detail}"
    try:
        graph = await asyncio.to_thread(as_graph, body.graph, object_info or {})
    except ComfyError as error:
        raise GraphError(error.detail) from error
    described = await asyncio.to_thread(describe, graph, object_info)
    new = NewWorkflow(
        graph=described.graph,
        name=body.name,
        properties=described.properties,
        output_node_id=described.output_node_id,
        output_extension=described.output_extension,
        output_mime_type=described.output_mime_type,
    )
    made = await context.engine.catalogue.own_workflows.create_once(user.tenant_id, new)
    missing = await context.engine.catalogue.fitting.of_workflow(made, shows_names=user.is_admin)
    return Answer(
        data=DescribedGraph(
            workflow=workflow_body(made, missing), graph=graph, roles=described.roles, positions=_positions(described)
        ),
        message=message,
    )


def _positions(described: Described) -> dict[str, list[str]]:
    keys = {each["placeholder"]: each["key"] for each in described.properties}
    found: dict[str, list[str]] = {key: [] for key in keys.values()}
    for node_id, node in described.graph.items():
        for name, value in node["inputs"].items():
            if isinstance(value, str) and value in keys:
                found[keys[value]].append(f"{node_id}.{name}")
    return found

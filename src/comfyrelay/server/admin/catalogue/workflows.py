"""Workflows: register, change, delete and validate graphs."""

from collections.abc import Sequence
from typing import Any

from comfyrelay.domain.prices.limits import with_limits
from comfyrelay.protocol.admin import catalogue as wire
from comfyrelay.protocol.admin.fields import DeletedSlug
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router, changes_nothing
from comfyrelay.server.http.auth import Admin, authenticate_admin
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import (
    Limit,
    PositionCursor,
    SlugInPath,
    TextCursor,
    TextFilter,
    VersionNumber,
    page_of,
)
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.workflows import WorkerFitness, WorkflowView

router = admin_router("/workflows")
# The importer converts these fields, and detects them if they are absent.
_IMPORTED = ("graph", "properties", "output_node_id", "output_extension", "output_mime_type")


@router.get("", responses=error_responses(422))
async def list_workflows(
    context: ContextOf,
    tenant_id: TextFilter = None,
    is_active: bool | None = None,
    limit: Limit = 50,
    cursor: TextCursor = None,
) -> Answer[Page[wire.WorkflowSummary]]:
    """List the workflows of the catalogue by slug; with `tenant_id`, the private workflows of a tenant."""
    page = await context.engine.catalogue.workflows.page(
        tenant_id=tenant_id, is_active=is_active, cursor=cursor, limit=limit
    )
    return page_of(page, lambda workflow: wire.WorkflowSummary.of(workflow, provider=workflow.may_run_at))


@router.post("", status_code=201, responses=error_responses(409, 422))
@large_body(authenticate_admin)
async def create_workflow(body: wire.NewCatalogueWorkflow, context: ContextOf) -> Answer[wire.WorkflowDetails]:
    """Register a graph, in ComfyUI's API format or as saved by its editor. The slug cannot be changed later.

    Without `properties`, every changeable value becomes a property, and numbers get limits that suit customers.
    """
    engine = context.engine
    imported = await engine.catalogue.importer.import_workflow(
        WorkflowImport(
            graph=body.graph,
            properties=None if body.properties is None else _plain(body.properties),
            output_node_id=body.output_node_id,
            output_extension=body.output_extension,
            output_mime_type=body.output_mime_type,
        )
    )
    workflow = await engine.catalogue.workflows.create(
        **body.fields(but=_IMPORTED),
        graph=imported.graph,
        properties=with_limits(imported.properties) if body.properties is None else imported.properties,
        output_node_id=imported.output_node_id,
        output_extension=imported.output_extension,
        output_mime_type=imported.output_mime_type or "video/mp4",
    )
    return _answer(await engine.catalogue.workflows.get(workflow.slug), "Registered", imported.remark)


@router.get("/{slug}", responses=error_responses(404, 422))
async def get_workflow(slug: SlugInPath, context: ContextOf) -> Answer[wire.WorkflowDetails]:
    """Get a workflow with its graph, and warnings about probable mistakes."""
    return Answer(data=_body(await context.engine.catalogue.workflows.get(slug)))


@router.patch("/{slug}", responses=error_responses(404, 409, 422))
@large_body(authenticate_admin)
async def change_workflow(
    slug: SlugInPath, body: wire.WorkflowPatch, context: ContextOf
) -> Answer[wire.WorkflowDetails]:
    """Change the given fields. Submitted jobs keep their graph."""
    changes = body.changes()
    if body.graph is not None:
        changes["graph"] = await context.engine.catalogue.importer.as_graph(body.graph)
    if body.properties is not None:
        changes["properties"] = _plain(body.properties)
    return _answer(await context.engine.catalogue.workflows.change(slug, changes), "Changed")


@router.delete("/{slug}", responses=error_responses(404, 409, 422))
async def delete_workflow(slug: SlugInPath, context: ContextOf) -> Answer[DeletedSlug]:
    """Delete a workflow that no effect uses and that has no active jobs."""
    await context.engine.catalogue.workflows.delete(slug)
    return Answer(data=DeletedSlug(slug=slug), message="Deleted.")


@router.post("/{slug}/validate", responses=error_responses(404, 422))
@changes_nothing
async def validate_workflow(
    slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[wire.WorkflowValidation]:
    """List the nodes and models of the graph that its assigned workers do not report."""
    inspection = await context.engine.catalogue.workflows.inspect(slug, cursor=cursor, limit=limit)
    data = wire.WorkflowValidation.of(
        inspection,
        node_types=sorted(inspection.requirements.node_types),
        models=sorted(inspection.requirements.models),
        workers=page_of(inspection.workers, _check).data,
    )
    return Answer(data=data, message=inspection.text)


@router.get("/{slug}/versions", responses=error_responses(404, 422))
async def list_versions(
    slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: PositionCursor = None
) -> Answer[Page[wire.WorkflowVersion]]:
    """List the versions of a workflow, newest first."""
    page = await context.engine.catalogue.workflows.versions(slug, cursor=cursor, limit=limit)
    return page_of(page, wire.WorkflowVersion.of)


@router.get("/{slug}/versions/{number}", responses=error_responses(404, 422))
async def get_version(
    slug: SlugInPath, number: VersionNumber, context: ContextOf
) -> Answer[wire.WorkflowVersionDetails]:
    """Get a version with its graph. To use it for new jobs again, send the graph with PATCH."""
    version, graph = await context.engine.catalogue.workflows.version(slug, number)
    return Answer(data=wire.WorkflowVersionDetails.of(version, graph=graph))


@router.post("/{slug}/test-run", status_code=201, responses=error_responses(404, 409, 422, 429))
@changes_nothing
@large_body(authenticate_admin)
async def test_run(
    slug: SlugInPath, body: wire.TestRun, context: ContextOf, admin: Admin
) -> Answer[wire.StartedTestRun]:
    """Run a workflow of the catalogue as your own job, at no cost; with `worker_id`, only on that worker."""
    job = await context.engine.jobs.test_runs.run(
        admin, slug, worker_id=body.worker_id, values=body.values, input_file_id=body.input_file_id
    )
    return Answer(data=wire.StartedTestRun(job_id=job.id, only_worker=job.only_worker), message="Submitted.")


def _body(view: WorkflowView) -> wire.WorkflowDetails:
    return wire.WorkflowDetails.of(view, view.workflow, provider=view.workflow.may_run_at)


def _plain(properties: Sequence[wire.WorkflowProperty]) -> list[dict[str, Any]]:
    return [property_.model_dump(mode="json", exclude_unset=True) for property_ in properties]


def _answer(view: WorkflowView, action: str, remark: str = "") -> Answer[wire.WorkflowDetails]:
    sentence = f"{action}, with warnings." if view.warnings else f"{action}."
    return Answer(data=_body(view), message=f"{sentence} {remark}".strip())


def _check(worker: WorkerFitness) -> wire.WorkerCheck:
    return wire.WorkerCheck.of(worker.worker, worker.fitness)

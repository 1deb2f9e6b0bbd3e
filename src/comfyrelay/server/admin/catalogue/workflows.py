"""Workflows: register, change, delete and validate graphs."""

from collections.abc import Sequence
from typing import Any

from fastapi import status

from comfyrelay.protocol.admin import catalogue as wire
from comfyrelay.protocol.admin.fields import DeletedSlug
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router, changes_nothing
from comfyrelay.server.http.auth import Admin, authenticate_admin
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import AnyId, Limit, SlugInPath, TextCursor, VersionCursor, VersionNumber
from comfyrelay.server.http.problems import may_answer
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.workflows import WorkerFitness, WorkflowView

router = admin_router("/workflows")
# Detected if absent, or given in another format.
_READ = ("graph", "properties", "output_node_id", "output_extension", "output_mime_type")


@router.get("", responses=may_answer(422))
async def list_workflows(
    context: ContextOf,
    tenant_id: AnyId = None,
    is_active: bool | None = None,
    limit: Limit = 50,
    cursor: TextCursor = None,
) -> Answer[Page[wire.WorkflowSummary]]:
    """The workflows of the catalogue by slug; with `tenant_id`, the private workflows of a tenant."""
    page = await context.engine.catalogue.workflows.page(
        tenant_id=tenant_id, is_active=is_active, cursor=cursor, limit=limit
    )
    return page_of(page, lambda each: wire.WorkflowSummary.of(each, provider=each.may_run_at))


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(409, 422))
@large_body(authenticate_admin)
async def create_workflow(body: wire.NewCatalogueWorkflow, context: ContextOf) -> Answer[wire.WorkflowDetails]:
    """Register a graph, in ComfyUI's API format or as its editor saves it. The slug cannot be changed later."""
    engine = context.engine
    read = await engine.catalogue.importer.import_workflow(
        WorkflowImport(
            graph=body.graph,
            properties=None if body.properties is None else _plain(body.properties),
            output_node_id=body.output_node_id,
            output_extension=body.output_extension,
            output_mime_type=body.output_mime_type,
        )
    )
    workflow = await engine.catalogue.workflows.create(
        **body.fields(but=_READ),
        graph=read.graph,
        properties=read.properties,
        output_node_id=read.output_node_id,
        output_extension=read.output_extension,
        output_mime_type=read.output_mime_type or "video/mp4",
    )
    return _answer(await engine.catalogue.workflows.get(workflow.slug), "Registered", read.remark)


@router.get("/{slug}", responses=may_answer(404, 422))
async def get_workflow(slug: SlugInPath, context: ContextOf) -> Answer[wire.WorkflowDetails]:
    """A workflow with its graph, and warnings about probable mistakes."""
    return Answer(data=_body(await context.engine.catalogue.workflows.get(slug)))


@router.patch("/{slug}", responses=may_answer(404, 409, 422))
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


@router.delete("/{slug}", responses=may_answer(404, 409, 422))
async def delete_workflow(slug: SlugInPath, context: ContextOf) -> Answer[DeletedSlug]:
    """Delete a workflow that no effect uses and that has no active jobs."""
    await context.engine.catalogue.workflows.delete(slug)
    return Answer(data=DeletedSlug(slug=slug), message="Deleted.")


@router.post("/{slug}/validate", responses=may_answer(404, 422))
@changes_nothing
async def validate_workflow(
    slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[wire.Validated]:
    """The nodes and models of the graph that its assigned workers are missing, as far as they report them."""
    found = await context.engine.catalogue.workflows.inspect(slug, cursor=cursor, limit=limit)
    data = wire.Validated.of(
        found,
        node_types=sorted(found.requirements.node_types),
        models=sorted(found.requirements.models),
        workers=page_of(found.workers, _check).data,
    )
    return Answer(data=data, message=found.text)


@router.get("/{slug}/versions", responses=may_answer(404, 422))
async def list_versions(
    slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: VersionCursor = None
) -> Answer[Page[wire.WorkflowVersion]]:
    """The versions of the workflow, newest first."""
    page = await context.engine.catalogue.workflows.versions(slug, cursor=cursor, limit=limit)
    return page_of(page, wire.WorkflowVersion.of)


@router.get("/{slug}/versions/{number}", responses=may_answer(404, 422))
async def get_version(
    slug: SlugInPath, number: VersionNumber, context: ContextOf
) -> Answer[wire.WorkflowVersionDetails]:
    """A version with its graph. Send it with PATCH to make new jobs run it again."""
    found, graph = await context.engine.catalogue.workflows.version(slug, number)
    return Answer(data=wire.WorkflowVersionDetails.of(found, graph=graph))


@router.post("/{slug}/test-run", status_code=status.HTTP_201_CREATED, responses=may_answer(404, 409, 422, 429))
@changes_nothing
@large_body(authenticate_admin)
async def test_run(slug: SlugInPath, body: wire.TestRun, context: ContextOf, admin: Admin) -> Answer[wire.StartedTest]:
    """Run a workflow of the catalogue as your own job, at no cost; with `worker_id`, only on that worker."""
    job = await context.engine.jobs.test_runs.run(
        admin, slug, worker_id=body.worker_id, values=body.values, input_file_id=body.input_file_id
    )
    return Answer(data=wire.StartedTest(job_id=job.id, only_worker=job.only_worker), message="Submitted.")


def _body(view: WorkflowView) -> wire.WorkflowDetails:
    return wire.WorkflowDetails.of(view, view.workflow, provider=view.workflow.may_run_at)


def _plain(properties: Sequence[wire.WorkflowProperty]) -> list[dict[str, Any]]:
    return [property_.model_dump(mode="json", exclude_unset=True) for property_ in properties]


def _answer(view: WorkflowView, done: str, remark: str = "") -> Answer[wire.WorkflowDetails]:
    words = f"{done}, with warnings." if view.warnings else f"{done}."
    return Answer(data=_body(view), message=f"{words} {remark}".strip())


def _check(each: WorkerFitness) -> wire.WorkerCheck:
    return wire.WorkerCheck.of(each.worker, each.fitness)

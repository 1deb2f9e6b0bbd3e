"""Erase the data of a deleted account from the central database. Times, amounts and durations remain for statistics."""

from typing import Any

from sqlalchemy import Text, cast, delete, select, update

from comfyrelay.store.central.catalogue import delete_workflow
from comfyrelay.store.central.tables.catalogue import workflow_versions, workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches, dispatch_leases
from comfyrelay.store.central.tables.workers import worker_audit_logs
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now

# Job durations are learned from entries of the audit log within this time.
LEARNING_SECONDS = 600.0


async def erase_workflows(tx: Tx, tenant_id: str) -> None:
    """Delete the workflows of a tenant with their versions. Rows without content remain for finished dispatches."""
    own = workflows.c.tenant_id == tenant_id
    for workflow_id in await tx.scalars(select(workflows.c.id).where(own, workflows.c.deleted_at.is_(None))):
        await delete_workflow(tx, workflow_id)
    of_workflows = workflow_versions.c.workflow_id.in_(select(workflows.c.id).where(own))
    await tx.execute(delete(workflow_versions).where(of_workflows))
    empty: dict[str, Any] = {"name": "", "added_as": None, "properties": [], "waiting": None, "output_node_id": None}
    slug = "erased-" + cast(workflows.c.id, Text)
    await tx.execute(update(workflows).where(own).values(**empty, slug=slug))


async def erase_texts(tx: Tx, tenant_id: str) -> None:
    """Delete the error texts of a tenant's jobs, which may quote inputs."""
    own = ai_job_dispatches.c.tenant_id == tenant_id
    ids = select(ai_job_dispatches.c.id).where(own)
    await tx.execute(update(ai_job_dispatches).where(own).values(last_error=None, progress=None))
    await tx.execute(update(dispatch_leases).where(dispatch_leases.c.dispatch_id.in_(ids)).values(reason=None))
    # Newer entries are still needed to learn durations. The erasure is repeated for longer than that.
    entries = update(worker_audit_logs).where(worker_audit_logs.c.dispatch_id.in_(ids))
    await tx.execute(entries.where(worker_audit_logs.c.created_at < relay_now(-LEARNING_SECONDS)).values(data={}))

"""Rules for running a job again that depend on the catalogue and on the user's role, which may have changed.

A job of an effect can run again only while the effect is offered, at its current price. A retry replaces a run that
failed or was canceled, so it remains possible until the workflow is deleted, at the price that the user accepted. A
test run is free, so only an administrator can repeat it. A tenant's own workflow can run again only while the tenant is
allowed to have own workflows.
"""

from collections.abc import Iterable, Sequence

from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Conflict, Forbidden
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue, tenants
from comfyrelay.store.database import Tx


class RerunRules:
    def __init__(self, databases: Databases, own_access: OwnWorkflowAccess) -> None:
        self._databases = databases
        self._own_access = own_access

    async def check_again(self, old: Sequence[JobRecord]) -> None:
        """Raise `Conflict` if an effect is no longer offered or a workflow was deleted. Raise `Forbidden` for a test
        run, unless its user is still an administrator, and for workflows of tenants that may no longer run their own.
        """
        async with self._databases.central.read() as tx:
            await _check_effects(tx, old)
            await _check_workflows(tx, old)
            owners = await _check_unpriced(tx, old)
        await self._check_owners(owners)

    async def check_retry(self, old: Sequence[JobRecord]) -> None:
        """Raise `Conflict` if a workflow was deleted. Raise `Forbidden` as `check_again` does."""
        async with self._databases.central.read() as tx:
            await _check_workflows(tx, old)
            owners = await _check_unpriced(tx, old)
        await self._check_owners(owners)

    async def _check_owners(self, tenant_ids: Iterable[str]) -> None:
        for tenant_id in tenant_ids:
            await self._own_access.require(tenant_id)


async def _check_effects(tx: Tx, old: Iterable[JobRecord]) -> None:
    for effect_id in sorted({job.effect_id for job in old if job.effect_id is not None}):
        effect, workflow = await catalogue.effect_with_workflow(tx, effect_id)
        if effect is None or not effect.is_active or workflow is None or not workflow.is_active:
            name = f"The effect {effect.name!r}" if effect is not None else "The effect of this job"
            raise Conflict(f"{name} is no longer offered, so this cannot run again. Choose another effect.")


async def _check_workflows(tx: Tx, old: Sequence[JobRecord]) -> None:
    present = await catalogue.present_workflows(tx, {job.workflow_id for job in old})
    for job in old:
        if job.workflow_id not in present:
            advice = (
                "Add the workflow again and submit a new job." if job.effect_id is None else "Choose another effect."
            )
            raise Conflict(f"The workflow of this job was deleted, so it cannot run again. {advice}")


async def _check_unpriced(tx: Tx, old: Iterable[JobRecord]) -> set[str]:
    """Check the test runs. Returns the tenants of the other jobs without an effect, which run own workflows."""
    unpriced = [job for job in old if job.effect_id is None]
    if not unpriced:
        return set()
    workflows = await catalogue.workflows_by_id(tx, {job.workflow_id for job in unpriced})
    tests = [job for job in unpriced if workflows[job.workflow_id].tenant_id is None]
    for user_id in sorted({job.user_id for job in tests}):
        user = await tenants.user(tx, user_id)
        if user is None or not user.is_admin:
            raise Forbidden("This is a test run of a workflow, which only an administrator can run. Choose an effect.")
    return {job.tenant_id for job in unpriced if workflows[job.workflow_id].tenant_id is not None}

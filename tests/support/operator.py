"""An administrator, a user with tokens, an effect, and jobs in every state."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Fault
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.central.queue import dispatches
from tests.support.api import Api, Caller, data_of
from tests.support.world import OUTPUT

ADMIN = "/api/admin"


@dataclass
class OperatorScenario:
    api: Api
    admin: Caller
    user: User
    effect_id: int
    _numbers: int = 0

    async def get(self, path: str, **query: Any) -> Any:
        return await self.admin.get(f"{ADMIN}{path}", params=query)

    async def send(self, method: str, path: str, body: Any = None) -> Any:
        return data_of(await self.admin.call(method, f"{ADMIN}{path}", body))

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return await self.admin.call(method, f"{ADMIN}{path}", body, **options)

    async def ids(self, **query: Any) -> list[str]:
        """Return the job ids of one page of the queue."""
        return [item["job_id"] for item in (await self.get("/dispatches", **query))["items"]]

    async def submit(self, **more: Any) -> JobRecord:
        self._numbers += 1
        request = JobRequest(
            tenant_id=self.user.tenant_id,
            user_id=self.user.id,
            idempotency_key=f"job-{self._numbers}",
            **{"effect_id": self.effect_id, **more},
        )
        return await self.api.engine.jobs.submit.submit(request)

    async def worker(self, worker_id: str = "gpu-1", *, fleet: str = "home-clip", **more: Any) -> str:
        await self.api.engine.workers.workers.register(worker_id=worker_id, fleet_slug=fleet, **more)
        return worker_id

    async def lease(self, worker_id: str = "gpu-1") -> LeasedDispatch:
        request = LeaseRequest(worker_id=worker_id, providers=[Provider.SELF_HOSTED])
        [leased] = await self.api.engine.queue.leasing.lease(request)
        return leased

    async def complete(self, leased: LeasedDispatch) -> None:
        await self.api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)

    async def fail(self, leased: LeasedDispatch, error: str = "it broke", *, fault: Fault = Fault.JOB) -> None:
        await self.api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error=error, fault=fault)

    async def completed(self) -> JobRecord:
        job = await self.submit()
        await self.complete(await self.lease())
        return job

    async def failed(self, error: str = "it broke") -> JobRecord:
        job = await self.submit()
        await self.fail(await self.lease(), error)
        return job

    async def dispatch(self, job: JobRecord) -> Dispatch:
        async with self.api.engine.databases.central.read() as tx:
            return (await dispatches.by_job(tx, job.tenant_id, [job.id]))[job.id]

    async def advance(self, seconds: float) -> None:
        await self.api.clock.set(self.api.clock.now + timedelta(seconds=seconds))


async def open_operator_scenario(api: Api) -> OperatorScenario:
    admin = await api.user("root@example.com", is_admin=True)
    caller = await api.user("ada@example.com", tokens=100)
    assert caller.user is not None
    return OperatorScenario(api=api, admin=admin, user=caller.user, effect_id=await api.effect())

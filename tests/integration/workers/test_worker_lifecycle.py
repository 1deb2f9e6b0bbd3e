"""Workers register, register again, are drained or revoked, and deregister."""

import asyncio
from functools import partial

import pytest

from comfyrelay.domain.queue.states import Stage, WorkflowKind
from comfyrelay.errors import Conflict, Forbidden, InvalidInput, LeaseLost, NotFound
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import audit
from comfyrelay.store.central.workers import workers
from comfyrelay.store.database import Boundary
from tests.support.world import Desk, World, execute, submit_many


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


class TestRegister:
    async def test_worker_is_assigned_the_workflows_of_its_fleet(self, world: World) -> None:
        fleet = await world.fleet(await world.workflow("b"), await world.workflow("a"))
        registered = await world.engine.workers.workers.register(worker_id="w", fleet_slug=fleet, max_concurrency=2)
        worker = registered.worker
        assert registered.workflows == ["a", "b"]
        assert (worker.worker_id, worker.max_concurrency, worker.stage) == ("w", 2, "production")
        assert worker.is_approved
        assert not worker.is_draining
        assert worker.last_seen_at == world.clock.now

    async def test_worker_may_request_some_workflows_of_its_fleet(self, world: World) -> None:
        fleet = await world.fleet(await world.workflow("a"), await world.workflow("b"))
        await world.workflow("c")
        registered = await world.engine.workers.workers.register(
            worker_id="w", fleet_slug=fleet, workflow_slugs=["b", "c"]
        )
        assert registered.workflows == ["b"]

    async def test_requested_workflows_apply_after_the_fleet_changes(self, world: World) -> None:
        a, b = await world.workflow("a"), await world.workflow("b")
        fleet = await world.fleet(a)
        await world.engine.workers.workers.register(worker_id="w", fleet_slug=fleet, workflow_slugs=["a"])
        await world.engine.workers.fleets.map_workflows(stage=Stage.PRODUCTION, slug=fleet, workflow_slugs=["a", "b"])
        async with world.engine.databases.central.read() as tx:
            assert await workers.workflows_of(tx, ["w"]) == [a.id]
        user = await world.user()
        await world.submit(user, await world.effect(b))
        assert await world.lease("w") is None

    async def test_disabled_workflow_is_not_assigned(self, world: World) -> None:
        fleet = await world.fleet(await world.workflow("a"), await world.workflow("b"))
        await world.engine.catalogue.workflows.set_active("b", is_active=False)
        registered = await world.engine.workers.workers.register(worker_id="w", fleet_slug=fleet)
        assert registered.workflows == ["a"]

    async def test_only_the_worker_of_a_desk_is_assigned_scripts(self, world: World) -> None:
        engine = await world.restart(Hooks(desk_workers=["own"]))
        graph, script = await world.workflow("a"), await world.workflow("b", kind=WorkflowKind.SCRIPT)
        fleet = await world.fleet(graph, script)
        for name, expected in {"own": ["a", "b"], "another": ["a"]}.items():
            assert (
                await engine.workers.workers.try_to_register(worker_id=name, fleet_slug=fleet, stage=Stage.PRODUCTION)
                == expected
            )
            registered = await engine.workers.workers.register(worker_id=name, fleet_slug=fleet)
            assert registered.workflows == expected
        # a changed fleet assigns no scripts either
        await engine.workers.fleets.map_workflows(stage=Stage.PRODUCTION, slug=fleet, workflow_slugs=["b", "a"])
        async with engine.databases.central.read() as tx:
            assert await workers.workflows_of(tx, ["another"]) == [graph.id]
            assert sorted(await workers.workflows_of(tx, ["own"])) == [graph.id, script.id]
        await world.submit(await world.user(), await world.effect(script))
        assert await world.lease("another") is None
        assert await world.lease("own") is not None

    async def test_registering_a_used_name_without_its_key_is_a_conflict(self, world: World, desk: Desk) -> None:
        with pytest.raises(Conflict):
            await world.worker(desk.fleet, name=desk.worker)
        with pytest.raises(Conflict):
            await world.engine.workers.workers.register(worker_id=desk.worker, fleet_slug=desk.fleet, key="any key")

    async def test_worker_registers_again_with_its_key_and_keeps_its_leases(self, world: World, desk: Desk) -> None:
        register = partial(world.engine.workers.workers.register, worker_id="w", fleet_slug=desk.fleet)
        first = await register(key="its own key", token_hash="first", protocol=1)
        await desk.submit()
        leased = await world.lease("w")
        assert leased is not None
        await world.engine.workers.workers.set_draining("w", is_draining=True)
        await world.advance(30)
        second = await register(key="its own key", token_hash="second", protocol=2, version="9")
        assert (first.leases, second.leases, second.workflows) == (0, 1, first.workflows)
        assert (second.worker.token_hash, second.worker.protocol, second.worker.version) == ("second", 2, "9")
        assert second.worker.is_draining
        assert second.worker.last_seen_at == world.clock.now
        assert await world.complete(leased, worker_id="w") == "completed"

    @pytest.mark.parametrize("key", [None, "another key"])
    async def test_worker_without_its_key_is_refused_until_the_earlier_worker_is_offline(
        self, world: World, desk: Desk, key: str | None
    ) -> None:
        register = partial(world.engine.workers.workers.register, worker_id="w", fleet_slug=desk.fleet)
        await register(key="its own key")
        with pytest.raises(Conflict):
            await register(key=key)
        await world.advance(301)
        assert (await register(key=key)).leases == 0

    async def test_revoked_worker_cannot_register_with_its_key(self, world: World, desk: Desk) -> None:
        register = partial(
            world.engine.workers.workers.register, worker_id="w", fleet_slug=desk.fleet, key="its own key"
        )
        await register()
        await world.engine.workers.workers.set_approved("w", is_approved=False)
        with pytest.raises(Forbidden):
            await register()

    async def test_unknown_fleet_or_stage_is_not_found(self, world: World, desk: Desk) -> None:
        with pytest.raises(NotFound):
            await world.worker("unknown")
        with pytest.raises(NotFound):
            await world.worker(desk.fleet, stage=Stage.STAGING)

    async def test_fleet_without_an_active_workflow_accepts_no_worker(self, world: World) -> None:
        fleet = await world.fleet(await world.workflow("a"))
        await world.engine.catalogue.workflows.set_active("a", is_active=False)
        with pytest.raises(InvalidInput):
            await world.worker(fleet, name="w")
        with pytest.raises(Forbidden):
            await world.lease("w")

    async def test_worker_without_workflows_or_slots_is_refused(self, world: World, desk: Desk) -> None:
        with pytest.raises(InvalidInput):
            await world.engine.workers.workers.register(worker_id="w", fleet_slug=desk.fleet, workflow_slugs=["other"])
        with pytest.raises(InvalidInput):
            await world.worker(desk.fleet, concurrency=0)

    async def test_full_fleet_accepts_only_its_own_workers_until_one_deregisters(self, world: World) -> None:
        workflow = await world.workflow()
        await world.engine.workers.fleets.create(slug="small", max_workers=1, workflow_slugs=[workflow.slug])
        for _ in range(2):
            await world.engine.workers.workers.register(worker_id="w", fleet_slug="small", key="its own key")
        with pytest.raises(Forbidden):
            await world.worker("small")
        await world.engine.workers.workers.deregister("w")
        await world.worker("small", name="w")

    async def test_offline_worker_does_not_count_against_the_limit(self, world: World) -> None:
        workflow = await world.workflow()
        await world.engine.workers.fleets.create(slug="small", max_workers=1, workflow_slugs=[workflow.slug])
        await world.worker("small")
        await world.advance(89)
        with pytest.raises(Forbidden):
            await world.worker("small")
        await world.advance(2)
        await world.worker("small")

    async def test_concurrent_registrations_do_not_exceed_the_limit(self, world: World) -> None:
        workflow = await world.workflow()
        await world.engine.workers.fleets.create(slug="small", max_workers=2, workflow_slugs=[workflow.slug])
        answers = await asyncio.gather(*(world.worker("small") for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(answer, str) for answer in answers) == 2
        assert sum(isinstance(answer, Forbidden) for answer in answers) == 3


class TestDeregister:
    async def test_leases_of_a_deregistered_worker_are_requeued_without_penalty(self, world: World) -> None:
        desk = await world.desk(concurrency=2)
        jobs = await submit_many(world, desk.user, desk.effect, 2)
        leased = await world.leases(desk.worker, 2)
        assert await world.engine.workers.workers.deregister(desk.worker, reason="asg_termination") == 2
        for job in jobs:
            dispatch = await world.dispatch(job)
            assert (dispatch.status, dispatch.attempts) == ("queued", 0)
            assert dispatch.last_error == "Requeued: asg_termination"
            assert (await world.job(job)).status == "queued"
        with pytest.raises(LeaseLost):
            await world.complete(leased[0])

    async def test_deregistered_worker_is_unknown(self, world: World, desk: Desk) -> None:
        workers = world.engine.workers.workers
        await workers.deregister(desk.worker)
        with pytest.raises(Forbidden):
            await world.lease(desk.worker)
        for call in (
            workers.deregister(desk.worker),
            workers.set_approved(desk.worker, is_approved=True),
            workers.set_draining(desk.worker, is_draining=True),
        ):
            with pytest.raises(NotFound):
                await call

    async def test_worker_deregistering_during_a_lease_keeps_no_job(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        tasks: list[asyncio.Task[int]] = []

        async def deregister(step: str, boundary: Boundary) -> None:
            if step == TransactionStep.LEASE and boundary is Boundary.BEFORE_COMMIT:
                tasks.append(asyncio.create_task(world.engine.workers.workers.deregister(desk.worker)))
                if world.backend == "postgresql":
                    await wait_for_lock()

        async def wait_for_lock() -> None:
            query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            while not await execute(world.engine.databases.central, query):
                pass

        world.on_boundary(deregister)
        await world.engine.queue.leasing.lease(LeaseRequest(worker_id=desk.worker, providers=["self_hosted"]))
        await tasks[0]
        assert (await world.dispatch(job)).status == "queued"


async def test_leases_of_a_revoked_worker_are_requeued_without_penalty(world: World, desk: Desk) -> None:
    job, leased = await desk.submit_and_lease()
    await world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
    dispatch = await world.dispatch(job)
    assert (dispatch.status, dispatch.attempts, dispatch.last_error) == ("queued", 0, "Requeued: revoked")
    with pytest.raises(LeaseLost):
        await world.complete(leased)
    await world.engine.workers.workers.set_approved(desk.worker, is_approved=True)
    assert await world.lease(desk.worker) is not None


async def test_draining_worker_finishes_its_jobs(world: World, desk: Desk) -> None:
    _, leased = await desk.submit_and_lease()
    await world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
    assert await world.complete(leased) == "completed"


async def test_last_seen_time_is_recorded_for_many_workers(world: World, desk: Desk) -> None:
    other, silent = await world.worker(desk.fleet), await world.worker(desk.fleet)
    before = world.clock.now
    await world.advance(10)
    await world.engine.workers.workers.record_seen([desk.worker, other])
    async with world.engine.databases.central.read() as tx:
        records = [await workers.get(tx, worker) for worker in (desk.worker, other, silent)]
    assert [record.last_seen_at if record else None for record in records] == [world.clock.now, world.clock.now, before]


async def test_audit_log_lists_the_worker_lifecycle_in_order(world: World, desk: Desk) -> None:
    _, first = await desk.submit_and_lease()
    await world.complete(first)
    await desk.submit_and_lease()
    await world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
    await world.engine.workers.workers.set_draining(desk.worker, is_draining=False)
    await world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
    await world.engine.workers.workers.set_approved(desk.worker, is_approved=True)
    await world.engine.workers.workers.deregister(desk.worker)
    assert await world.audit(desk.worker) == [
        "register",
        "lease",
        "complete",
        "lease",
        "drain",
        "undrain",
        "revoke",
        "release",
        "approve",
        "deregister",
    ]


async def test_audit_log_has_reason_and_subject(world: World, desk: Desk) -> None:
    _, leased = await desk.submit_and_lease()
    await world.advance(1.5)
    await world.requeue(leased, "spot_rebalance")
    async with world.engine.databases.central.read() as tx:
        entry = (await audit.page(tx, worker_id=desk.worker))[0][0]
    assert (entry.event, entry.dispatch_id) == ("requeue", leased.dispatch_id)
    assert entry.data == {"status": "queued", "epoch": 1, "reason": "spot_rebalance", "ran_seconds": 1.5}

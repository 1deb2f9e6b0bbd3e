"""Missing requirements are reported on submission; a job is leased only to a worker that may meet them."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from comfyrelay.comfyui.editor.packages import NODE_MAP
from comfyrelay.domain.capabilities import MAX_NAMES_STORED, Fitness, ReportedCapabilities, Requirements
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import MissingOnWorkers
from comfyrelay.services.catalogue.availability import UNUSED_SECONDS, default_requirements
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.central import tables as central
from comfyrelay.store.central.workers import workers
from comfyrelay.store.database import Tx
from tests.support.world import GRAPH, PROMPT, Desk, World, submit_batch

NODES = ["CheckpointLoader", "Prompt", "SaveVideo"]
MODEL = "model.safetensors"
ALL = {"node_types": NODES, "models": [MODEL]}
NO_SAVER = {"node_types": NODES[:2], "models": [MODEL]}
NO_MODEL = {"node_types": NODES, "models": ["other.safetensors"]}
CHOICE = {
    "key": "model",
    "type": "text",
    "placeholder": "{{MODEL}}",
    "default_value": MODEL,
    "choices": [MODEL, "large.safetensors"],
    "user_configurable": True,
}
WITH_CHOICE: dict[str, Any] = {
    "graph": {**GRAPH, "1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": "{{MODEL}}"}}},
    "properties": [PROMPT, CHOICE],
}


async def make_desk(world: World, *capabilities: dict[str, Any], **values: Any) -> Desk:
    """Return a desk with a worker for each report; the first one is its worker."""
    workflow = await world.workflow(**values)
    effect, fleet = await world.effect(workflow), await world.fleet(workflow)
    names = [await add_worker(world, fleet, report, name=f"gpu-{n}") for n, report in enumerate(capabilities, start=1)]
    return Desk(
        world=world,
        user=await world.user(),
        workflow=workflow,
        effect=effect,
        fleet=fleet,
        worker=(names or ["none"])[0],
    )


async def add_worker(world: World, fleet: str, capabilities: dict[str, Any], *, name: str) -> str:
    await world.engine.workers.workers.register(worker_id=name, fleet_slug=fleet, capabilities=capabilities)
    return name


async def report_capabilities(world: World, name: str, capabilities: dict[str, Any]) -> None:
    async with world.engine.databases.central.read() as tx:
        found = await workers.get(tx, name)
    assert found is not None
    await world.engine.workers.workers.note_capabilities(found, capabilities)


async def wait_reason(world: World, job: JobRecord) -> Waiting:
    return await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)


async def submit_refused(desk: Desk, **values: Any) -> MissingOnWorkers:
    with pytest.raises(MissingOnWorkers) as refused:
        await desk.world.submit(desk.user, desk.effect, **values)
    return refused.value


async def test_job_that_no_worker_can_run_is_refused_with_all_missing_requirements(world: World) -> None:
    desk = await make_desk(world, {"node_types": ["Prompt"], "models": []})
    error = await submit_refused(desk)
    assert error.detail.startswith("The worker is missing the nodes CheckpointLoader, SaveVideo and the model " + MODEL)
    assert [(item["kind"], item["name"]) for item in error.missing] == [
        ("node", "CheckpointLoader"),
        ("node", "SaveVideo"),
        ("model", MODEL),
    ]
    assert (await world.count(), await desk.balance()) == (0, 1000)


async def test_package_of_a_missing_node_is_named_by_the_node_map(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    map_ = {"https://github.com/owner/videos": [["SaveVideo"], {}]}
    (world.engine.settings.data_dir / NODE_MAP).write_text(json.dumps(map_), "utf-8")
    error = await submit_refused(desk)
    [item] = error.missing
    assert item["source"].startswith("owner/videos, from the node map of ")
    assert "SaveVideo is in the package owner/videos" in error.detail


@pytest.mark.parametrize("shows_workers", [False, True])
async def test_worker_names_are_shown_only_to_callers_that_may_see_them(world: World, shows_workers: bool) -> None:
    desk = await make_desk(world, NO_SAVER, NO_MODEL)
    error = await submit_refused(desk, shows_workers=shows_workers)
    assert [(item["name"], item["workers"], item["on"]) for item in error.missing] == [
        ("SaveVideo", 1, ["gpu-2"] if shows_workers else []),
        (MODEL, 1, ["gpu-1"] if shows_workers else []),
    ]
    assert ("gpu-2" in error.detail) is shows_workers
    assert error.detail.startswith("None of the 2 workers meets all requirements")


@pytest.mark.parametrize(
    "reports",
    [[], [{}], [NO_SAVER, {}], [NO_SAVER, ALL], [{"node_types": NODES}]],
    ids=["no worker", "no report", "one without report", "one able", "no report on models"],
)
@pytest.mark.both_databases
async def test_job_is_accepted_unless_every_worker_is_known_to_lack_a_requirement(
    world: World, reports: Sequence[dict[str, Any]]
) -> None:
    desk = await make_desk(world, *reports)
    assert (await world.submit(desk.user, desk.effect)).status == "queued"


@pytest.mark.both_databases
async def test_only_workers_that_may_get_the_job_count(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    other = await world.fleet(await world.workflow())
    await add_worker(world, other, ALL, name="elsewhere")
    await add_worker(world, desk.fleet, ALL, name="revoked")
    await world.engine.workers.workers.set_approved("revoked", is_approved=False)
    error = await submit_refused(desk, shows_workers=True)
    assert [(item["name"], item["on"]) for item in error.missing] == [("SaveVideo", [])]


@pytest.mark.both_databases
async def test_waiting_job_is_not_leased_to_a_worker_with_missing_requirements(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    job = await world.submit(desk.user, desk.effect, wait_for_missing=True)
    assert await world.lease("gpu-1") is None
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.text) == (Reason.MISSING, "Waiting for a worker with the node SaveVideo.")


async def test_waiting_job_runs_when_a_worker_with_all_requirements_registers(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    job = await world.submit(desk.user, desk.effect, wait_for_missing=True)
    await add_worker(world, desk.fleet, ALL, name="gpu-2")
    assert (await wait_reason(world, job)).reason is Reason.STARTING
    assert await world.lease("gpu-1") is None
    leased = await world.lease("gpu-2")
    assert leased is not None
    assert await world.complete(leased) == "completed"


@pytest.mark.both_databases
async def test_waiting_job_runs_when_a_worker_gains_the_missing_requirement(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    await world.submit(desk.user, desk.effect, wait_for_missing=True)
    await report_capabilities(world, "gpu-1", NO_MODEL)
    assert await world.lease("gpu-1") is None
    await report_capabilities(world, "gpu-1", ALL)
    assert await world.lease("gpu-1") is not None


async def test_worker_that_loses_a_node_gets_no_job_that_needs_it(world: World) -> None:
    desk = await make_desk(world, ALL)
    await world.submit(desk.user, desk.effect)
    await report_capabilities(world, "gpu-1", NO_SAVER)
    assert await world.lease("gpu-1") is None


async def test_only_the_worker_with_all_requirements_gets_the_job(world: World) -> None:
    desk = await make_desk(world, NO_SAVER, ALL)
    await world.submit(desk.user, desk.effect)
    assert await world.lease("gpu-1") is None
    assert await world.lease("gpu-2") is not None


async def test_late_lease_is_not_reaped_for_a_worker_with_missing_requirements(world: World) -> None:
    desk = await make_desk(world, ALL, NO_SAVER)
    await world.submit(desk.user, desk.effect)
    assert await world.lease("gpu-1") is not None
    await world.advance(world.engine.settings.lease_ttl_seconds + 1)
    idle = [LeaseRequest(worker_id="gpu-2", providers=[Provider.SELF_HOSTED])]
    assert await world.engine.queue.demand.late(idle) == []


@pytest.mark.both_databases
async def test_chosen_model_is_a_requirement(world: World) -> None:
    desk = await make_desk(world, ALL, **WITH_CHOICE)
    large = {"model": "large.safetensors"}
    assert (await world.submit(desk.user, desk.effect)).status == "queued"
    assert [item["name"] for item in (await submit_refused(desk, input_payload=large)).missing] == ["large.safetensors"]
    with pytest.raises(MissingOnWorkers):
        await submit_batch(world, desk.user, desk.effect, [ItemRequest(), ItemRequest(input_payload=large)])
    batch = await submit_batch(
        world, desk.user, desk.effect, [ItemRequest(input_payload=large), ItemRequest()], wait_for_missing=True
    )
    assert batch.counts == {"queued": 2}
    await world.lease("gpu-1")
    await world.advance(1)
    # the waiting job does not block later jobs
    assert len(await world.leases("gpu-1", 5, max_concurrency=5)) == 1
    async with world.engine.databases.central.read() as tx:
        rows = (await tx.execute(select(central.queue.ai_job_dispatches.c.status))).scalars().all()
    assert sorted(rows) == ["leased", "leased", "queued"]


async def test_cloud_jobs_and_other_stages_ignore_missing_requirements(world: World) -> None:
    cloud = await make_desk(world, NO_SAVER, provider=Provider.CLOUD)
    # the same graph for self-hosted workers
    own = await world.workflow()
    await world.engine.workers.fleets.map_workflows(
        stage=Stage.PRODUCTION, slug=cloud.fleet, workflow_slugs=[cloud.workflow.slug, own.slug], force=True
    )
    with pytest.raises(MissingOnWorkers):
        await world.submit(cloud.user, await world.effect(own))
    await world.submit(cloud.user, cloud.effect)
    assert await world.lease("gpu-1", providers=[Provider.SELF_HOSTED, Provider.CLOUD]) is not None


async def test_retry_waits_for_missing_requirements(world: World) -> None:
    desk = await make_desk(world, ALL)
    job = await world.submit(desk.user, desk.effect)
    leased = await world.lease("gpu-1")
    assert leased is not None
    await world.fail(leased)
    await report_capabilities(world, "gpu-1", NO_MODEL)
    retry = await world.engine.jobs.submit.retry(job.tenant_id, job.id)
    assert (await wait_reason(world, retry)).text == f"Waiting for a worker with the model {MODEL}."


async def test_refused_request_may_be_repeated_to_wait(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    await submit_refused(desk, key="one")
    job = await world.submit(desk.user, desk.effect, key="one", wait_for_missing=True)
    assert (await world.submit(desk.user, desk.effect, key="one")).id == job.id


async def test_adding_a_workflow_reports_its_missing_requirements(world: World) -> None:
    desk = await make_desk(world, NO_SAVER, **WITH_CHOICE)
    missing = await world.engine.catalogue.availability.check_workflow(desk.workflow, shows_names=True)
    assert missing is not None
    assert missing.text == "The worker is missing the node SaveVideo."
    await report_capabilities(world, "gpu-1", ALL)
    assert await world.engine.catalogue.availability.check_workflow(desk.workflow, shows_names=True) is None
    # the check stores nothing, because the workflow may never have a job
    assert await count_requirements(world) == 0


async def test_list_of_missing_names_is_truncated(world: World) -> None:
    graph = {**GRAPH, **{f"x{n}": {"class_type": f"Node{n:04}", "inputs": {}} for n in range(500)}}
    able = {"node_types": [*NODES, "Node0000", "Node0400"], "models": [MODEL]}
    desk = await make_desk(world, NO_SAVER, able, graph=graph)
    error = await submit_refused(desk)
    assert "Node0001 (on no worker)" in error.detail
    assert "Node0000 (only on 1 worker)" in error.detail
    assert "Node0049 (on no worker), and more. Install" in error.detail
    await add_worker(world, desk.fleet, NO_MODEL, name="later")
    async with world.engine.databases.central.read() as tx:
        rows = (await tx.execute(select(central.workers.worker_missing_requirements))).all()
    assert [len(row.node_types) for row in rows] == [MAX_NAMES_STORED] * 3
    missing = await world.engine.catalogue.availability.check_workflow(desk.workflow, shows_names=True)
    assert missing is not None
    assert len(missing.items) < 3 * MAX_NAMES_STORED


async def test_requirements_are_checked_off_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await make_desk(world, NO_SAVER)
    await submit_refused(desk)
    fitness, threads = ReportedCapabilities.fitness, []

    def record_thread(self: ReportedCapabilities, needs: Requirements) -> Fitness:
        threads.append(threading.current_thread())
        return fitness(self, needs)

    monkeypatch.setattr(ReportedCapabilities, "fitness", record_thread)
    await add_worker(world, desk.fleet, NO_SAVER, name="later")
    await report_capabilities(world, "later", NO_MODEL)
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def count_requirements(world: World) -> int:
    async with world.engine.databases.central.read() as tx:
        return len((await tx.execute(select(central.workers.workflow_requirements))).all())


@pytest.mark.both_databases
async def test_unused_requirements_are_deleted_and_recreated_on_use(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    job = await world.submit(desk.user, desk.effect, wait_for_missing=True)
    await world.advance(UNUSED_SECONDS + 1)
    assert await world.engine.catalogue.availability.delete_unused() == 0
    await world.engine.queue.control.cancel(job.tenant_id, job.id)
    assert await world.engine.catalogue.availability.delete_unused() == 1
    assert await count_requirements(world) == 0
    await submit_refused(desk)


async def test_recently_used_requirements_are_not_deleted(world: World) -> None:
    desk = await make_desk(world, NO_SAVER)
    await submit_refused(desk)
    await world.advance(UNUSED_SECONDS + 1)
    await submit_refused(desk)
    assert await world.engine.catalogue.availability.delete_unused() == 0


@pytest.mark.both_databases
async def test_worker_registering_during_a_submission_is_checked(world: World) -> None:
    workflow: WorkflowRecord = await world.workflow()
    desk = await make_desk(world, ALL)
    fleet = await world.fleet(workflow, desk.workflow)
    for number in range(5):
        graph = {**GRAPH, "9": {"class_type": f"Node{number}", "inputs": {}}}
        other = await world.workflow(graph=graph)
        await world.engine.workers.fleets.map_workflows(
            stage=Stage.PRODUCTION, slug=fleet, workflow_slugs=[workflow.slug, other.slug], force=True
        )
        await asyncio.gather(
            add_worker(world, fleet, ALL, name=f"late-{number}"),
            world.submit(desk.user, await world.effect(other), wait_for_missing=True),
        )
        assert await world.lease(f"late-{number}") is None


async def test_many_reports_do_not_block_the_event_loop(world: World) -> None:
    many = {"node_types": [f"Node{n}" for n in range(2000)], "models": [f"{n}.safetensors" for n in range(200)]}
    desk = await make_desk(world, many)
    async with world.engine.databases.central.read() as tx:
        [row] = (await tx.execute(select(central.workers.workers))).mappings().all()
    rows = [{**row, "worker_id": f"many-{n}", "token_hash": None} for n in range(100)]

    async def add_workers(tx: Tx) -> None:
        await tx.execute(central.workers.workers.insert(), rows)
        pairs = [{"worker_id": row["worker_id"], "workflow_id": desk.workflow.id} for row in rows]
        await tx.execute(central.workers.worker_workflows.insert(), pairs)

    await world.engine.databases.central.run("test", add_workers)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    error = await submit_refused(desk)
    counting.cancel()
    assert [item["workers"] for item in error.missing] == [0, 0, 0, 0]
    # other tasks ran while the reports were read
    assert turns > 100


async def test_choice_of_models_requires_only_the_default(world: World) -> None:
    models = [f"model-{number}.safetensors" for number in range(100)]
    choice = {**CHOICE, "default_value": models[3], "choices": models}
    workflow = await world.workflow(**{**WITH_CHOICE, "properties": [PROMPT, choice]})
    found = await default_requirements(workflow, world.engine.catalogue.graphs)
    assert found.models == {models[3]}

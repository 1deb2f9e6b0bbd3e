"""Despite server, worker and network failures at any time, each job ends once and is charged once."""

import asyncio
import json
import signal

import httpx
import pytest

from comfyrelay.simulator import Slow, Stuck
from tests.support.network_proxy import Proxy
from tests.support.processes import Service
from tests.support.whole_system import COMPLETE, DOWNLOAD, UPLOAD, System
from tests.support.world import PATIENCE_SECONDS

ANY_CALL = b"POST /api/worker/"


@pytest.mark.journey
async def test_running_job_survives_a_server_restart(any_system: System) -> None:
    effect = await any_system.effect()
    stuck = any_system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await any_system.started()
    job = await any_system.image(effect)
    await any_system.until_running()
    await any_system.restart_server()
    stuck.end()
    await any_system.completed(job)
    assert (await any_system.job(job))["attempts"] == 1


async def test_completion_during_a_server_outage_is_delivered_later(system: System) -> None:
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started()
    job = await system.image(effect)
    await system.until_running()
    await system.server.kill()
    stuck.end()
    # the output goes to the server's address
    await worker.wait_for_log("transfer.retried")
    await system.start_server()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


@pytest.mark.parametrize("simulators", [2])
async def test_worker_that_was_cut_off_too_long_loses_its_job(system: System) -> None:
    """Another worker gets the job; later messages from the first worker change nothing."""
    effect = await system.effect()
    stuck = system.simulators[0].misbehave(Stuck(class_type="ImageInvert"))
    lost = await system.started("cut-off", simulators=[system.simulators[0]])
    job = await system.image(effect)
    await system.until_running(system.simulators[0])
    await system.api.cut()
    await system.expire_lease(job)
    await system.started("other", simulators=[system.simulators[1]], api_base_url=str(system.http.base_url))
    output = await system.completed(job)
    stuck.end()
    await system.api.restore()
    await lost.wait_for_log("worker.job_lost")
    assert await system.completed(job) == output
    found = await system.job(job)
    assert (found["attempts"], len(found["outputs"])) == (2, 1)
    assert (await system.lease_of(job))["last_worker_id"] == "other"


@pytest.mark.parametrize("simulators", [2])
async def test_completion_after_the_lease_is_refused(system: System) -> None:
    effect = await system.effect()
    # with a parked poll, the worker would get its own job back
    late = await system.started("late", simulators=[system.simulators[0]], poll_wait_seconds=0)
    system.api.hold(COMPLETE)
    job = await system.image(effect)
    await system.api.until_held()
    # now no request gets through, not even heartbeats
    system.api.hold(b"POST /api/worker/")
    await system.started("other", simulators=[system.simulators[1]], api_base_url=str(system.http.base_url))
    await system.expire_lease(job)
    output = await system.completed(job)
    system.api.release()
    await late.wait_for_log("worker.job_lost")
    assert await system.completed(job) == output
    assert (await system.lease_of(job))["last_worker_id"] == "other"


@pytest.mark.parametrize("settings", [{"LEASE_TTL_SECONDS": "30"}])
async def test_short_network_cut_costs_no_attempt(system: System) -> None:
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started()
    job = await system.image(effect)
    await system.until_running()
    await system.api.cut()
    stuck.end()
    await system.files.until_asked("PUT /files/tenants/", 2)
    await system.api.restore()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    # the job continues
    await system.completed(await system.image(effect))
    assert worker.is_running


@pytest.mark.parametrize("settings", [{"LATE_GRACE_SECONDS": "0"}])
async def test_lease_is_returned_if_the_server_never_accepts_completion(system: System) -> None:
    """Otherwise heartbeats alone would keep the lease forever."""
    effect = await system.effect()
    worker = await system.started(report_timeout_seconds=1)
    system.api.refuse(COMPLETE)
    job = await system.image(effect)
    await worker.wait_for_log("worker.report_retried")
    await worker.wait_for_log("worker.job_lost")
    await system.expire_lease(job)
    system.api.release()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2


async def test_worker_waits_for_an_unresponsive_server(system: System) -> None:
    """The wait has no limit, because the lease may still be valid and the worker has the output."""
    job = await system.image(await system.effect())
    system.files.hold(UPLOAD)
    worker = await system.started(report_timeout_seconds=1)
    await system.files.until_held()
    system.api.refuse(ANY_CALL)
    system.files.release()
    await system.api.until_asked("POST /api/worker/complete", 5)
    system.api.release()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert len(worker.logged("worker.report_retried")) == 1


@pytest.mark.journey
async def test_lost_poll_response_loses_no_job(system: System) -> None:
    """If the connection breaks between a poll and its response, the repeated request gets the same lease."""
    effect = await system.effect()
    await system.started()
    await system.api.until_asked("POST /api/worker/poll")
    await system.api.cut()
    job = await system.image(effect)
    await system.api.restore()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


async def test_broken_download_and_upload_are_retried(system: System) -> None:
    effect = await system.effect()
    await system.started()
    job = await system.image(effect)
    for prefix in (DOWNLOAD, UPLOAD):
        system.files.hold(prefix)
        await system.files.until_held()
        await system.files.cut()
        await system.files.restore()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert system.simulator.log.prompts_queued == 1


# URLs are valid for twice the lease, including the grace period
@pytest.mark.parametrize(
    "settings", [{"PRESIGNED_TTL_SECONDS": "2", "LEASE_TTL_SECONDS": "3", "LATE_GRACE_SECONDS": "2"}]
)
@pytest.mark.parametrize("prefix", [DOWNLOAD, UPLOAD], ids=["download", "upload"])
async def test_expired_urls_are_requested_again(system: System, prefix: bytes) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    system.files.hold(prefix)
    await system.started()
    await system.files.until_held()
    held = next(request for request in reversed(system.files.requests) if request.encode().startswith(prefix))
    async with asyncio.timeout(PATIENCE_SECONDS):
        # the server reports when its URLs have expired
        while (await _status(system, held)) != 403:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    system.files.release()
    job_now = await system.until(job, "completed")
    assert job_now["attempts"] == 1


async def test_worker_killed_during_a_job_reports_it_after_restart(system: System) -> None:
    effect = await system.effect()
    running = system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
    worker = await system.started()
    job = await system.image(effect)
    await system.until_running()
    await worker.wait_for_log("worker.job_started")
    await worker.kill()
    running.end()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2


async def test_unrecorded_run_is_found_after_a_kill(system: System) -> None:
    effect = await system.effect()
    # a second run would wait behind the first, which takes ten minutes
    system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, times=1))
    worker = await system.started()
    job = await system.image(effect)
    await system.until_running()
    await worker.kill()
    [held] = system.folder.glob("**/held/*.json")
    held.write_text(json.dumps(json.loads(held.read_text()) | {"runs": []}))
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2


async def test_run_from_before_the_kill_is_stopped_when_comfyui_returns(system: System) -> None:
    """The job of the run is returned and does not wait for ComfyUI."""
    effect = await system.effect()
    # a second run would wait behind the first, which takes ten minutes
    system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, times=1))
    async with Proxy(system.simulator.url) as comfyui:
        worker = await system.started(variables={"COMFYUI_BASE_URL": comfyui.url})
        job = await system.image(effect)
        await system.until_running()
        await worker.kill()
        await comfyui.cut()
        [held] = system.folder.glob("**/held/*.json")
        held.write_text(json.dumps(json.loads(held.read_text()) | {"runs": []}))
        await worker.start()
        await system.until(job, "queued")
        # the pending stop survives another kill
        await worker.kill()
        await worker.start()
        await comfyui.restore()
        await system.completed(job)
        # before its ComfyUI stops
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    assert not list(system.folder.glob("**/held/*.json"))


async def test_worker_killed_before_the_run_returns_its_job_without_an_attempt(system: System) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    system.files.hold(DOWNLOAD)
    worker = await system.started()
    await system.files.until_held()
    await worker.kill()
    system.files.release()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


@pytest.mark.journey
async def test_worker_killed_during_upload_does_not_rerun_the_job(system: System) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    system.files.hold(UPLOAD)
    worker = await system.started()
    await system.files.until_held()
    await worker.kill()
    system.files.release()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert system.simulator.log.prompts_queued == 1


async def assert_finished_after_restart(system: System, worker: Service, job: str) -> None:
    """Check that the worker exits cleanly and that its job does not run again."""
    assert await worker.ended() == 0
    system.api.release()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert system.simulator.log.prompts_queued == 1


class TestRecovery:
    """A worker was killed during an upload and is restarted."""

    @pytest.fixture
    async def killed(self, system: System) -> tuple[Service, str]:
        job = await system.image(await system.effect())
        system.files.hold(UPLOAD)
        worker = await system.started()
        await system.files.until_held()
        await worker.kill()
        return worker, job

    async def test_cancel_stops_the_upload(self, system: System, killed: tuple[Service, str]) -> None:
        worker, job = killed
        uploads = system.files.asked("PUT /")
        await worker.start()
        await system.files.until_asked("PUT /", uploads + 1)
        await system.user("POST", f"/ai-jobs/{job}/cancel", {})
        await system.until(job, "canceled")
        system.files.release()

    async def test_stopped_worker_leaves_the_upload_to_its_next_start(
        self, system: System, killed: tuple[Service, str]
    ) -> None:
        worker, job = killed
        system.api.refuse(ANY_CALL)
        system.files.release()
        await worker.start()
        await worker.wait_for_log("worker.report_retried")
        worker.send(signal.SIGTERM)
        await assert_finished_after_restart(system, worker, job)


async def test_output_is_delivered_after_a_stop_during_a_server_outage(system: System) -> None:
    job = await system.image(await system.effect())
    system.files.hold(UPLOAD)
    worker = await system.started()
    await system.files.until_held()
    system.api.refuse(ANY_CALL)
    system.files.release()
    await worker.wait_for_log("worker.report_retried")
    for _ in range(2):
        worker.send(signal.SIGTERM)
    await assert_finished_after_restart(system, worker, job)


@pytest.mark.journey
@pytest.mark.parametrize("simulators", [2])
async def test_job_of_a_lost_worker_moves_to_another(system: System) -> None:
    effect = await system.effect()
    running = system.simulators[0].misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
    dead = await system.started("dead", simulators=[system.simulators[0]])
    job = await system.image(effect)
    await system.until_running(system.simulators[0])
    await dead.wait_for_log("worker.job_started")
    await dead.kill()
    # once the other worker has started, no heartbeat of the dead worker is in flight
    await system.started("other", simulators=[system.simulators[1]])
    await system.expire_lease(job)
    await system.completed(job)
    running.end()
    # restart the dead worker, so that it cleans its disk
    await dead.start()
    await dead.wait_for_log("worker.job_lost")


async def _status(system: System, request: str) -> int:
    method, _, path = request.partition(" ")
    async with httpx.AsyncClient(base_url=system.http.base_url) as http:
        answer = await http.request(method if method == "GET" else "PUT", path, content=b"")
        return answer.status_code

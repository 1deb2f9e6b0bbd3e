"""Servers, workers and the network between them break at any moment: each job ends once and is paid for once."""

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
async def test_server_may_be_restarted_while_a_job_runs(any_system: System) -> None:
    effect = await any_system.effect()
    stuck = any_system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await any_system.started()
    job = await any_system.image(effect)
    await any_system.until_running()
    await any_system.restart_server()
    stuck.end()
    await any_system.completed(job)
    assert (await any_system.job(job))["attempts"] == 1


async def test_job_that_ends_while_the_server_is_down_is_told_of_later(system: System) -> None:
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started()
    job = await system.image(effect)
    await system.until_running()
    await system.server.kill()
    stuck.end()
    # the output goes where the server was
    await worker.until_said("transfer.retried")
    await system.start_server()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


@pytest.mark.parametrize("simulators", [2])
async def test_worker_that_was_cut_off_for_too_long_is_not_heard_any_more(system: System) -> None:
    """Another worker gets its job; what the first one says of it later changes nothing."""
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
    await lost.until_said("worker.job_lost")
    assert await system.completed(job) == output
    found = await system.job(job)
    assert (found["attempts"], len(found["outputs"])) == (2, 1)
    assert (await system.lease_of(job))["last_worker_id"] == "other"


@pytest.mark.parametrize("simulators", [2])
async def test_completion_that_comes_after_the_lease_is_refused(system: System) -> None:
    effect = await system.effect()
    # whose poll waits at the server would be given its own job again
    late = await system.started("late", simulators=[system.simulators[0]], poll_wait_seconds=0)
    system.api.hold(COMPLETE)
    job = await system.image(effect)
    await system.api.until_held()
    # now nothing of it gets through, its heartbeats neither
    system.api.hold(b"POST /api/worker/")
    await system.started("other", simulators=[system.simulators[1]], api_base_url=str(system.http.base_url))
    await system.expire_lease(job)
    output = await system.completed(job)
    system.api.let_go()
    await late.until_said("worker.job_lost")
    assert await system.completed(job) == output
    assert (await system.lease_of(job))["last_worker_id"] == "other"


@pytest.mark.parametrize("settings", [{"LEASE_TTL_SECONDS": "30"}])
async def test_short_cut_of_the_network_costs_nothing(system: System) -> None:
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
    # and it goes on
    await system.completed(await system.image(effect))
    assert worker.is_running


@pytest.mark.parametrize("settings", [{"LATE_GRACE_SECONDS": "0"}])
async def test_control_plane_that_never_takes_the_end_of_a_job_gets_the_lease_back(system: System) -> None:
    """Heartbeats alone would keep it for ever."""
    effect = await system.effect()
    worker = await system.started(verdict_timeout_seconds=1)
    system.api.refuse(COMPLETE)
    job = await system.image(effect)
    await worker.until_said("worker.not_settled_yet")
    await worker.until_said("worker.job_lost")
    await system.expire_lease(job)
    system.api.let_go()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2


async def test_control_plane_that_answers_nothing_is_waited_for(system: System) -> None:
    """However long: as far as anybody knows the lease still holds, and the output is here."""
    job = await system.image(await system.effect())
    system.files.hold(UPLOAD)
    worker = await system.started(verdict_timeout_seconds=1)
    await system.files.until_held()
    system.api.refuse(ANY_CALL)
    system.files.let_go()
    await system.api.until_asked("POST /api/worker/complete", 5)
    system.api.let_go()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert len(worker.said("worker.not_settled_yet")) == 1


@pytest.mark.journey
async def test_answer_that_is_lost_loses_no_job(system: System) -> None:
    """The connection breaks between a poll and its answer; the same request gets the same lease."""
    effect = await system.effect()
    await system.started()
    await system.api.until_asked("POST /api/worker/poll")
    await system.api.cut()
    job = await system.image(effect)
    await system.api.restore()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


async def test_broken_download_and_a_broken_upload_are_tried_again(system: System) -> None:
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


# they work for twice the time of a lease, grace included
@pytest.mark.parametrize(
    "settings", [{"PRESIGNED_TTL_SECONDS": "2", "LEASE_TTL_SECONDS": "3", "LATE_GRACE_SECONDS": "2"}]
)
@pytest.mark.parametrize("prefix", [DOWNLOAD, UPLOAD], ids=["download", "upload"])
async def test_urls_that_have_expired_are_asked_for_anew(system: System, prefix: bytes) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    system.files.hold(prefix)
    await system.started()
    await system.files.until_held()
    held = next(each for each in reversed(system.files.requests) if each.encode().startswith(prefix))
    async with asyncio.timeout(PATIENCE_SECONDS):
        # the server says when its URLs have expired
        while (await _status(system, held)) != 403:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    system.files.let_go()
    job_now = await system.until(job, "completed")
    assert job_now["attempts"] == 1


async def test_worker_that_is_killed_while_it_runs_a_job_says_so_when_it_is_back(system: System) -> None:
    effect = await system.effect()
    running = system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
    worker = await system.started()
    job = await system.image(effect)
    await system.until_running()
    await worker.until_said("worker.job_runs")
    await worker.kill()
    running.end()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2


async def test_run_that_was_not_yet_written_down_when_the_worker_was_killed_is_found(system: System) -> None:
    effect = await system.effect()
    # it could not be run again while the first run, of ten minutes, holds the server
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


async def test_run_of_before_the_kill_is_stopped_also_when_its_comfyui_comes_back_later(system: System) -> None:
    """Its job is given back meanwhile, and does not wait for it."""
    effect = await system.effect()
    # it could not be run again while the first run, of ten minutes, holds the server
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
        # that it is still to be stopped outlives another kill
        await worker.kill()
        await worker.start()
        await comfyui.restore()
        await system.completed(job)
        # before its ComfyUI is gone
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    assert not list(system.folder.glob("**/held/*.json"))


async def test_worker_that_is_killed_before_it_ran_a_job_gives_it_back_unpunished(system: System) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    system.files.hold(DOWNLOAD)
    worker = await system.started()
    await system.files.until_held()
    await worker.kill()
    system.files.let_go()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


@pytest.mark.journey
async def test_worker_that_is_killed_while_it_uploads_does_not_run_the_job_again(system: System) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    system.files.hold(UPLOAD)
    worker = await system.started()
    await system.files.until_held()
    await worker.kill()
    system.files.let_go()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert system.simulator.log.prompts_queued == 1


async def finished_by_its_next_process(system: System, worker: Service, job: str) -> None:
    """The worker leaves in order, and its job is not run again."""
    assert await worker.ended() == 0
    system.api.let_go()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1
    assert system.simulator.log.prompts_queued == 1


class TestLeftBehind:
    """A worker was killed while it uploaded an output, and is started again."""

    @pytest.fixture
    async def killed(self, system: System) -> tuple[Service, str]:
        job = await system.image(await system.effect())
        system.files.hold(UPLOAD)
        worker = await system.started()
        await system.files.until_held()
        await worker.kill()
        return worker, job

    async def test_cancel_stops_what_it_does_about_it(self, system: System, killed: tuple[Service, str]) -> None:
        worker, job = killed
        uploads = system.files.asked("PUT /")
        await worker.start()
        await system.files.until_asked("PUT /", uploads + 1)
        await system.user("POST", f"/ai-jobs/{job}/cancel", {})
        await system.until(job, "canceled")
        system.files.let_go()

    async def test_told_to_leave_it_leaves_it_to_the_next(self, system: System, killed: tuple[Service, str]) -> None:
        worker, job = killed
        system.api.refuse(ANY_CALL)
        system.files.let_go()
        await worker.start()
        await worker.until_said("worker.not_settled_yet")
        worker.send(signal.SIGTERM)
        await finished_by_its_next_process(system, worker, job)


async def test_worker_that_leaves_while_the_server_is_away_brings_its_output_later(system: System) -> None:
    job = await system.image(await system.effect())
    system.files.hold(UPLOAD)
    worker = await system.started()
    await system.files.until_held()
    system.api.refuse(ANY_CALL)
    system.files.let_go()
    await worker.until_said("worker.not_settled_yet")
    for _ in range(2):
        worker.send(signal.SIGTERM)
    await finished_by_its_next_process(system, worker, job)


@pytest.mark.journey
@pytest.mark.parametrize("simulators", [2])
async def test_worker_that_never_comes_back_loses_its_job_to_another(system: System) -> None:
    effect = await system.effect()
    running = system.simulators[0].misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
    dead = await system.started("dead", simulators=[system.simulators[0]])
    job = await system.image(effect)
    await system.until_running(system.simulators[0])
    await dead.until_said("worker.job_runs")
    await dead.kill()
    # by the time that the other is up, no heartbeat of the dead one is on its way any more
    await system.started("other", simulators=[system.simulators[1]])
    await system.expire_lease(job)
    await system.completed(job)
    running.end()
    # so that nothing of it stays on its disk either
    await dead.start()
    await dead.until_said("worker.job_lost")


async def _status(system: System, request: str) -> int:
    method, _, path = request.partition(" ")
    async with httpx.AsyncClient(base_url=system.http.base_url) as http:
        answer = await http.request(method if method == "GET" else "PUT", path, content=b"")
        return answer.status_code

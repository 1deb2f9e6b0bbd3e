"""Work stops on cancel and pause by users, drain and revoke by operators, signals, and termination notices."""

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.simulator import Slow, Stuck
from tests.support.ec2_metadata import Metadata
from tests.support.processes import Service
from tests.support.whole_system import DOWNLOAD, UPLOAD, System
from tests.support.world import PATIENCE_SECONDS

# the first node is slow: progress counts nodes, so after the first node the job would seem nearly done
ENDLESS = Slow(class_type="LoadImage", seconds=600, steps=6000)
# The next heartbeat comes so late that no test waits for it.
RARE_HEARTBEATS = {"HEARTBEAT_INTERVAL_SECONDS": "30"}
# The documented limit is two seconds. Slow machines get more time, but less than the heartbeat interval.
SOON_SECONDS = 10.0
StoppableWorker = tuple[System, Service, Metadata | None]


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    async with Metadata() as metadata:
        yield metadata


async def stop_delay(system: System, worker: Service, job: str, verb: str) -> float:
    """Return the seconds between the response to the user and the release of the job, read from both logs."""
    await worker.wait_for_log("worker.job_requeued", job_id=job, reason=verb)
    [requeued] = worker.logged("worker.job_requeued", job_id=job, reason=verb)
    # the request is logged after its response, possibly after the worker stopped
    await system.server.wait_for_log("request", path=f"/api/ai-jobs/{job}/{verb}")
    [request] = system.server.logged("request", path=f"/api/ai-jobs/{job}/{verb}")
    return (
        datetime.fromisoformat(requeued["timestamp"]) - datetime.fromisoformat(request["timestamp"])
    ).total_seconds()


async def until_silent(system: System, job: str) -> None:
    """Wait until the server knows the node in which the job is stuck; no further progress follows."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not ((await system.lease_of(job))["progress"] or {}).get("node"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def request_shutdown(worker: Service, metadata: Metadata | None) -> None:
    """Send a Spot notice if there is a metadata service, otherwise SIGTERM."""
    if metadata is None:
        worker.send(signal.SIGTERM)
    else:
        metadata.interrupt(seconds=120)


async def assert_finished_by_another(system: System, job: str) -> None:
    """Check that the returned job counts no attempt and that another worker completes it."""
    found = await system.job(job)
    assert (found["status"], found["attempts"]) == ("queued", 0)
    system.simulator.behave()
    system.files.release()
    await system.started("other")
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


@pytest.fixture(params=["signal", "spot"])
def stoppable(request: pytest.FixtureRequest, system: System, metadata: Metadata) -> StoppableWorker:
    """Return a worker that is not started yet, and the metadata service if that will stop it."""
    by_signal = request.param == "signal"
    worker = system.worker(
        metadata_url="off" if by_signal else metadata.url, metadata_interval_seconds=0.1, shutdown_seconds=30
    )
    return system, worker, None if by_signal else metadata


class TestShutdown:
    """A worker is stopped by SIGTERM or by a Spot notice at each stage of a job."""

    async def test_idle_worker_exits_at_once(self, stoppable: StoppableWorker) -> None:
        system, worker, metadata = stoppable
        await system.plain_effect()
        await worker.start()
        await worker.wait_for_log("worker.registered")
        request_shutdown(worker, metadata)
        assert await worker.ended() == 0
        assert (await system.admin("GET", "/workers"))["items"] == []

    async def test_downloading_job_is_returned(self, stoppable: StoppableWorker) -> None:
        system, worker, metadata = stoppable
        job = await system.image(await system.effect())
        system.files.hold(DOWNLOAD)
        await worker.start()
        await system.files.until_held()
        request_shutdown(worker, metadata)
        assert await worker.ended() == 0
        await assert_finished_by_another(system, job)

    @pytest.mark.journey
    async def test_job_that_cannot_finish_in_time_is_interrupted_and_returned(self, stoppable: StoppableWorker) -> None:
        system, worker, metadata = stoppable
        system.simulator.misbehave(ENDLESS)
        job = await system.image(await system.effect())
        await worker.start()
        await system.until_progress(job, 0.0001)
        request_shutdown(worker, metadata)
        assert await worker.ended() == 0
        assert system.simulator.log.interrupts == 1
        await assert_finished_by_another(system, job)

    async def test_nearly_finished_job_is_completed(self, stoppable: StoppableWorker) -> None:
        system, worker, metadata = stoppable
        system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=3, steps=30))
        job = await system.image(await system.effect())
        await worker.start()
        await system.until_progress(job, 0.4)
        request_shutdown(worker, metadata)
        assert await worker.ended() == 0
        assert (await system.until(job, "completed"))["attempts"] == 1
        assert system.simulator.log.interrupts == 0

    async def test_output_upload_is_completed(self, stoppable: StoppableWorker) -> None:
        system, worker, metadata = stoppable
        job = await system.image(await system.effect())
        system.files.hold(UPLOAD)
        await worker.start()
        await system.files.until_held()
        request_shutdown(worker, metadata)
        await worker.wait_for_log("worker.draining")
        system.files.release()
        assert await worker.ended() == 0
        assert (await system.until(job, "completed"))["attempts"] == 1

    async def test_stopping_worker_claims_no_jobs(self, stoppable: StoppableWorker) -> None:
        system, worker, metadata = stoppable
        effect = await system.effect()
        job = await system.image(effect)
        system.files.hold(UPLOAD)
        await worker.start()
        await system.files.until_held()
        request_shutdown(worker, metadata)
        await worker.wait_for_log("worker.draining")
        system.files.release()
        second = await system.image(effect)
        assert await worker.ended() == 0
        await system.completed(job)
        await assert_finished_by_another(system, second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_a_worker_that_is_not_registered_yet(tmp_path: Path, number: signal.Signals) -> None:
    requested = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as silent:
        environment = {
            "API_BASE_URL": "http://127.0.0.1:1",
            "COMFYUI_BASE_URL": "http://127.0.0.1:1",
            "FLEET_SECRET": "a secret of a fleet",
            "FLEET_SLUG": "gpus",
            "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path),
            "COMFYRELAY_WORKER_METADATA_URL": f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}",
        }
        worker = Service("early", "worker", environment=environment, log=tmp_path / "log")
        await worker.start()
        await asyncio.wait_for(requested.wait(), PATIENCE_SECONDS)
        worker.send(number)
        assert await worker.ended() == 0, worker.text()


async def test_second_signal_exits_at_once(system: System) -> None:
    job = await system.image(await system.effect())
    system.files.hold(UPLOAD)
    worker = await system.started(shutdown_seconds=600)
    await system.files.until_held()
    worker.send(signal.SIGINT)
    await worker.wait_for_log("worker.draining")
    worker.send(signal.SIGINT)
    assert await worker.ended() == 0
    await assert_finished_by_another(system, job)


async def test_rebalance_recommendation_lets_the_job_finish(system: System, metadata: Metadata) -> None:
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started(metadata_url=metadata.url, metadata_interval_seconds=0.1)
    job = await system.image(effect)
    await system.until_running()
    metadata.recommend_rebalance()
    await worker.wait_for_log("worker.draining")
    second = await system.image(effect)
    stuck.end()
    await system.completed(job)
    assert await worker.ended() == 0
    await assert_finished_by_another(system, second)


async def test_auto_scaling_termination_stops_the_worker(system: System, metadata: Metadata) -> None:
    effect = await system.effect()
    system.simulator.misbehave(ENDLESS)
    worker = await system.started(metadata_url=metadata.url, metadata_interval_seconds=0.1)
    job = await system.image(effect)
    await system.until_progress(job, 0.0001)
    metadata.end_by_group()
    assert await worker.ended() == 0
    await assert_finished_by_another(system, job)


@dataclass
class AutoScalingApi:
    """Record the Auto Scaling calls of a worker, in order."""

    url: str = ""
    received_calls: list[dict[str, str]] = field(default_factory=list)
    refuses: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        fields = {name: values[0] for name, values in parse_qs(await request.text()).items()}
        self.received_calls.append(fields)
        if fields["Action"] == "CompleteLifecycleAction" and self.refuses:
            self.refuses -= 1
            return web.Response(status=503, text="busy")
        name = fields["Action"]
        return web.Response(text=f"<{name}Response><{name}Result/></{name}Response>", content_type="text/xml")

    @property
    def completed(self) -> list[dict[str, str]]:
        return [
            received_call
            for received_call in self.received_calls
            if received_call["Action"] == "CompleteLifecycleAction"
        ]


@pytest.fixture
async def aws() -> AsyncIterator[AutoScalingApi]:
    aws = AutoScalingApi()
    app = web.Application()
    app.router.add_post("/", aws.answer)
    async with TestServer(app) as server:
        aws.url = str(server.make_url("/"))
        yield aws


class TestLifecycleHook:
    """An Auto Scaling group with a lifecycle hook waits for the worker before it terminates the instance."""

    async def started(self, system: System, metadata: Metadata, aws: AutoScalingApi) -> Service:
        await system.plain_effect()
        return await system.started(
            metadata_url=metadata.url,
            metadata_interval_seconds=0.1,
            asg_name="gpu",
            asg_lifecycle_hook="drain",
            variables={"AWS_ENDPOINT_URL": aws.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
        )

    async def test_lifecycle_action_completes_after_deregistration(
        self, system: System, metadata: Metadata, aws: AutoScalingApi
    ) -> None:
        worker = await self.started(system, metadata, aws)
        aws.refuses = 1
        metadata.end_by_group()
        assert await worker.ended() == 0
        assert (await system.admin("GET", "/workers"))["items"] == []
        # the first call failed
        assert len(aws.completed) == 2
        completion = aws.completed[-1]
        assert (completion["AutoScalingGroupName"], completion["LifecycleHookName"]) == ("gpu", "drain")
        assert (completion["InstanceId"], completion["LifecycleActionResult"]) == ("i-0123456789abcdef0", "CONTINUE")
        # no call follows, because the instance may be terminated by then
        assert aws.received_calls[-1] == completion

    async def test_stopped_worker_does_not_complete_the_lifecycle_action(
        self, system: System, metadata: Metadata, aws: AutoScalingApi
    ) -> None:
        worker = await self.started(system, metadata, aws)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert aws.received_calls
        assert aws.completed == []


class TestStopping:
    @pytest.mark.journey
    async def test_cancel_stops_the_run_soon(self, any_system: System) -> None:
        system = any_system
        effect = await system.effect()
        # the node reports no progress, so no answer to a progress report carries the stop request
        stuck = system.simulator.misbehave(Stuck(class_type="LoadImage"))
        worker = await system.started(variables=RARE_HEARTBEATS)
        job = await system.image(effect)
        await until_silent(system, job)
        await system.user("POST", f"/ai-jobs/{job}/cancel", {})
        assert await stop_delay(system, worker, job, "cancel") < SOON_SECONDS
        await system.until(job, "canceled")
        assert system.simulator.log.interrupts == 1
        stuck.end()
        system.simulator.behave()
        await system.completed(await system.image(effect))

    async def test_cancel_stops_a_download(self, system: System) -> None:
        effect = await system.effect()
        system.files.hold(DOWNLOAD)
        worker = await system.started(variables=RARE_HEARTBEATS)
        job = await system.image(effect)
        await system.files.until_held()
        await system.user("POST", f"/ai-jobs/{job}/cancel", {})
        assert await stop_delay(system, worker, job, "cancel") < SOON_SECONDS
        await system.until(job, "canceled")
        system.files.release()

    async def test_immediate_pause_requeues_the_job_soon(self, system: System) -> None:
        effect = await system.effect()
        stuck = system.simulator.misbehave(Stuck(class_type="LoadImage"))
        worker = await system.started(variables=RARE_HEARTBEATS)
        job = await system.image(effect)
        await until_silent(system, job)
        await system.user("POST", f"/ai-jobs/{job}/pause", {"mode": "now"})
        assert await stop_delay(system, worker, job, "pause") < SOON_SECONDS
        await system.until(job, "paused")
        stuck.end()
        await system.user("POST", f"/ai-jobs/{job}/resume", {})
        await system.completed(job)
        assert (await system.job(job))["attempts"] == 1

    @pytest.mark.parametrize("simulators", [2])
    async def test_prefetched_job_is_returned_for_an_idle_worker(self, system: System) -> None:
        effect = await system.effect()
        stuck = system.simulators[0].misbehave(Stuck(class_type="ImageInvert"))
        worker = await system.started("busy", simulators=[system.simulators[0]], variables=RARE_HEARTBEATS)
        running, fetched = await system.image(effect), await system.image(effect)
        await system.until_running(system.simulators[0])
        await system.files.until_asked("GET /files/tenants/", 2)
        await system.started("idle", simulators=[system.simulators[1]])
        await system.completed(fetched)
        assert worker.logged("worker.job_requeued", job_id=fetched, reason="released")
        assert (await system.job(fetched))["attempts"] == 1
        # the running job is not recalled
        stuck.end()
        await system.completed(running)
        assert [entry["job_id"] for entry in worker.logged("worker.job_requeued")] == [fetched]

    @pytest.mark.journey
    async def test_draining_worker_finishes_its_jobs_and_gets_no_new_ones(self, system: System) -> None:
        effect = await system.effect()
        stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
        worker = await system.started(prefetch=0)
        job = await system.image(effect)
        await system.until_running()
        await system.admin("POST", "/workers/gpu-1/drain")
        second = await system.image(effect)
        stuck.end()
        await system.completed(job)
        # long enough for any other worker to claim the job
        await system.reconcile()
        assert (await system.job(second))["status"] == "queued"
        await system.admin("POST", "/workers/gpu-1/undrain")
        await system.completed(second)
        assert worker.is_running

    @pytest.mark.parametrize("simulators", [2])
    async def test_revoked_worker_stops_its_jobs(self, system: System) -> None:
        effect = await system.effect()
        system.simulators[0].misbehave(ENDLESS)
        worker = await system.started("revoked", simulators=[system.simulators[0]])
        job = await system.image(effect)
        await system.until_running()
        await worker.wait_for_log("worker.job_started")
        await system.admin("POST", "/workers/revoked/revoke")
        await worker.wait_for_log("worker.job_lost")
        assert system.simulators[0].log.interrupts == 1
        await system.started("trusted", simulators=[system.simulators[1]])
        await system.completed(job)
        assert (await system.lease_of(job))["last_worker_id"] == "trusted"

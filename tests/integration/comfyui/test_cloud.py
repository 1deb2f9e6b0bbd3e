"""The Comfy Cloud client has the same interface, keeps its key private, and never pays twice."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from structlog.testing import capture_logs

from comfyrelay.comfyui import Attachment, CloudClient, ComfyServer, Finished, Queued, Started
from comfyrelay.comfyui.cloud.status import CloudPhase, phase_of
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import (
    ComfyError,
    Fault,
    GraphRefused,
    NodeFailed,
    NoOutput,
    NotInstalled,
    OutputGone,
    PaymentRequired,
    RateLimited,
    RunInterrupted,
    RunLost,
    RunTimedOut,
    ServerRefused,
)
from comfyrelay.simulator import (
    EmptyOutputs,
    EndAs,
    ErrorAfterQueueing,
    Fail,
    LostFile,
    OutOfMemory,
    Refuse,
    Simulator,
    Slow,
    SlowHttp,
)
from tests.integration.comfyui.event_listener import Listener
from tests.support.full import full_only
from tests.support.graphs import PNG, clip, invert, invert_file


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator(cloud=True, api_key="secret-key") as simulator:
        yield simulator


@pytest.fixture
async def cloud(simulator: Simulator) -> AsyncIterator[CloudClient]:
    async with CloudClient(
        "secret-key", url=simulator.url, poll_seconds=0.02, retries=3, first_pause_seconds=0.01
    ) as cloud:
        yield cloud


async def test_cloud_client_implements_the_server_interface(cloud: CloudClient) -> None:
    server: ComfyServer = cloud
    await server.check()
    assert server.slots == 1
    assert await server.preflight(invert()) == []


async def test_image_is_uploaded_and_inverted(simulator: Simulator, cloud: CloudClient, tmp_path: Path) -> None:
    listener = Listener()
    result = await cloud.run(
        invert_file(), attachments=[Attachment(node="1", input="image", source=PNG, name="a.png")], on_event=listener
    )
    assert await cloud.download(result.file, tmp_path / "out.png") > 0
    before = Image.open(io.BytesIO(PNG)).convert("RGB").getpixel((0, 0))
    assert isinstance(before, tuple)
    assert Image.open(tmp_path / "out.png").getpixel((0, 0)) == tuple(255 - part for part in before)
    assert isinstance(listener.events[0], Queued)
    assert isinstance(listener.events[-1], Finished)


async def test_video_output_of_the_wanted_node_is_first(cloud: CloudClient) -> None:
    result = await cloud.run(clip(), wanted=["6"])
    assert [file.mime_type for file in result.files] == ["video/webm", "video/mp4"]


async def test_key_never_follows_a_redirect(simulator: Simulator, cloud: CloudClient) -> None:
    """HTTP libraries remove `Authorization` when a redirect leads to another host, but keep other headers."""
    result = await cloud.run(invert())
    assert b"".join([piece async for piece in cloud.read(result.file)])
    assert simulator.log.leaked_credentials == []


async def test_same_content_is_uploaded_once(simulator: Simulator, cloud: CloudClient) -> None:
    assert await cloud.upload(PNG, name="a.png") == await cloud.upload(PNG, name="b.png")
    assert simulator.log.count("POST", "/api/upload/image") == 1


@pytest.mark.parametrize("status", [429, 503, *full_only(500, 502)])
async def test_busy_service_is_retried(simulator: Simulator, cloud: CloudClient, status: int) -> None:
    busy = simulator.misbehave(Refuse(status=status, path="/api/prompt", error_type="QUEUE_LIMIT", times=2))
    assert (await cloud.run(invert())).files
    assert busy.happened == 2
    assert simulator.log.prompts_queued == 1


class TestSharedFiles:
    """A shared file is uploaded once, also by processes that have only a record file in common."""

    LOGO = Attachment(
        source=PNG, placeholder="{{LOGO}}", name="a.png", content_hash=hashlib.sha256(PNG).hexdigest(), shared=True
    )

    async def run(self, simulator: Simulator, record: Path, logo: Attachment = LOGO) -> int:
        """Run a graph like a new process; return the total number of uploads."""
        async with CloudClient("secret-key", url=simulator.url, poll_seconds=0.02, uploads=record) as cloud:
            for _ in range(2):
                await cloud.run(invert_file("{{LOGO}}"), attachments=[logo])
        return simulator.log.count("POST", "/api/upload/image")

    async def test_later_process_does_not_upload_a_shared_file_again(
        self, simulator: Simulator, tmp_path: Path
    ) -> None:
        assert [await self.run(simulator, tmp_path / "uploads.json") for _ in range(3)] == [1, 1, 1]
        # Each later process checks it once.
        assert simulator.log.count("GET", "/api/view") == 2
        assert [path.name for path in tmp_path.iterdir()] == ["uploads.json"]

    async def test_missing_file_is_uploaded_again(self, simulator: Simulator, tmp_path: Path) -> None:
        assert await self.run(simulator, tmp_path / "uploads.json") == 1
        for path in (simulator.folder / "input").iterdir():
            path.unlink()
        assert await self.run(simulator, tmp_path / "uploads.json") == 2

    @pytest.mark.parametrize("content", ["[]", '{"x": 1', *full_only("", "{}")])
    async def test_unreadable_upload_record_only_costs_an_upload(
        self, simulator: Simulator, tmp_path: Path, content: str
    ) -> None:
        record = tmp_path / "uploads.json"
        record.write_text(content)
        assert [await self.run(simulator, record) for _ in range(2)] == [1, 1]

    async def test_runs_continue_if_the_upload_record_cannot_be_written(
        self, simulator: Simulator, tmp_path: Path
    ) -> None:
        assert [await self.run(simulator, tmp_path / "none" / "uploads.json") for _ in range(2)] == [1, 2]

    async def test_unshared_file_is_not_recorded(self, simulator: Simulator, tmp_path: Path) -> None:
        own = replace(self.LOGO, shared=False, folder="job-1")
        assert await self.run(simulator, tmp_path / "uploads.json", own) == 2
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/api/upload/image", "/api/job", "/api/history_v2"])
async def test_every_call_is_retried(simulator: Simulator, cloud: CloudClient, path: str) -> None:
    simulator.misbehave(Refuse(status=503, path=path, times=2))
    assert (
        await cloud.run(invert_file(), attachments=[Attachment(node="1", input="image", source=PNG, name="a.png")])
    ).files


async def test_retry_after_is_respected(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Refuse(status=429, path="/api/prompt", error_type="QUEUE_LIMIT", retry_after=0, times=3))
    assert (await cloud.run(invert())).files


async def test_retries_are_limited(simulator: Simulator, cloud: CloudClient) -> None:
    busy = simulator.misbehave(Refuse(status=429, path="/api/prompt", error_type="QUEUE_LIMIT", retry_after=0))
    with pytest.raises(RateLimited) as caught:
        await cloud.run(invert())
    assert (caught.value.fault, caught.value.retry_after_seconds) == (Fault.WORKER, 0)
    assert busy.happened == 4


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (402, "PAYMENT_REQUIRED", "credits are used up"),
        (402, "CLOUD_SUBSCRIPTION_REQUIRED", "active subscription"),
        (429, "FREE_TIER_EXHAUSTED", "free runs are used up"),
        (402, "PARTNER_NODE_PAYMENT_REQUIRED", "partner node"),
        (402, None, "injected this refusal"),
    ],
)
async def test_payment_error_is_explained_and_not_retried(
    simulator: Simulator, cloud: CloudClient, status: int, kind: str | None, text: str
) -> None:
    refusal = simulator.misbehave(Refuse(status=status, path="/api/prompt", error_type=kind))
    with pytest.raises(PaymentRequired, match=text) as caught:
        await cloud.run(invert())
    assert caught.value.fault is Fault.JOB
    assert refusal.happened == 1


async def test_wrong_key_is_reported(simulator: Simulator) -> None:
    async with CloudClient("wrong", url=simulator.url) as cloud:
        with pytest.raises(ServerRefused, match="does not accept this API key"):
            await cloud.check()


async def test_no_error_shows_the_key(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Refuse(status=400, path="/api/prompt"))
    with pytest.raises(ComfyError) as caught:
        await cloud.run(invert())
    assert "secret-key" not in f"{caught.value!r} {caught.value.raw}"


async def test_status_500_may_have_queued_the_job(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(ErrorAfterQueueing(times=1))
    assert (await cloud.run(invert())).files
    assert simulator.log.prompts_queued == 1


async def test_invalid_graph_is_refused_by_the_cloud(cloud: CloudClient) -> None:
    with pytest.raises(NotInstalled, match=r"NoSuch \(2\)"):
        await cloud.run(invert() | {"2": {"class_type": "NoSuch", "inputs": {}}})
    with pytest.raises(GraphRefused, match="not connected"):
        await cloud.run(invert() | {"3": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}})


@pytest.mark.parametrize(
    ("state", "kind", "fault"),
    [
        ("lost", RunLost, Fault.WORKER),
        ("cancelled", RunInterrupted, Fault.INTERRUPTED),
        ("non_retryable_error", NodeFailed, Fault.JOB),
        ("error", NodeFailed, Fault.WORKER),
    ],
)
async def test_job_error_has_the_message_of_the_service(
    simulator: Simulator, cloud: CloudClient, state: str, kind: type[ComfyError], fault: Fault
) -> None:
    simulator.misbehave(EndAs(state=state))
    with pytest.raises(kind) as caught:
        await cloud.run(invert())
    assert caught.value.fault is fault


async def test_error_of_a_node_is_explained(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(
        Fail(class_type="ImageInvert", exception_type="ValueError", message="bad value in /srv/x/y.py", times=1)
    )
    with pytest.raises(NodeFailed, match=r"ImageInvert \(2\): bad value in y\.py"):
        await cloud.run(invert())
    simulator.misbehave(OutOfMemory(class_type="ImageInvert"))
    with pytest.raises(ComfyError, match="not enough memory"):
        await cloud.run(invert())


async def test_success_without_outputs_is_an_error(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(EmptyOutputs())
    with pytest.raises(NoOutput):
        await cloud.run(invert())


async def test_missing_output_file_is_reported(simulator: Simulator, cloud: CloudClient, tmp_path: Path) -> None:
    result = await cloud.run(invert())
    simulator.misbehave(LostFile())
    with pytest.raises(OutputGone):
        await cloud.download(result.file, tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


async def test_cancelling_stops_this_job_and_no_other(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(cloud.run(invert(), on_event=listener))
    await listener.received(Started)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    # That route stops all jobs of the account.
    assert simulator.log.count("POST", "/api/interrupt") == 0
    simulator.behave()
    assert (await cloud.run(invert(color=9))).files


async def test_job_is_stopped_at_its_time_limit(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    with pytest.raises(RunTimedOut, match="took too long"):
        await cloud.run(invert(), timeouts=RunTimeouts(run_seconds=0.1))


async def test_unknown_state_is_logged_once_and_the_job_goes_on(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(EndAs(state="rehearsing"))
    with capture_logs() as logs, pytest.raises(RunTimedOut, match="waited too long"):
        await cloud.run(invert(), timeouts=RunTimeouts(queue_seconds=0.2))
    assert [(log["event"], log["kind"]) for log in logs] == [("comfyui.unknown_status", "rehearsing")]


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("submitted", CloudPhase.WAITING),
        ("queued_limited", CloudPhase.WAITING),
        ("unknown status", CloudPhase.WAITING),
        ("cancel_requested", CloudPhase.WAITING),
        ("executing", CloudPhase.RUNNING),
        ("in_progress", CloudPhase.RUNNING),
        ("success", CloudPhase.DONE),
        ("completed", CloudPhase.DONE),
        ("failed", CloudPhase.FAILED),
        ("cancelled", CloudPhase.FAILED),
    ],
)
def test_statuses_of_both_api_versions_are_understood(word: str, phase: CloudPhase) -> None:
    assert phase_of({"status": word}) is phase


async def test_cancelling_during_submission_cancels_the_job(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(SlowHttp(seconds=0.2, path="/api/prompt"))
    run = asyncio.create_task(cloud.run(invert()))
    while simulator.log.count("POST", "/api/prompt") == 0:  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert any("cancel" in received.path for received in simulator.log.requests)


async def test_outage_during_a_run_is_waited_out(simulator: Simulator, cloud: CloudClient) -> None:
    refused = simulator.misbehave(Refuse(status=503, path="/api/job/", times=12))
    assert (await cloud.run(invert())).files
    assert refused.happened == 12


async def test_outputs_are_found_without_the_outdated_route(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Refuse(status=404, path="/api/history_v2"))
    assert (await cloud.run(invert())).files


async def test_possibly_queued_job_is_not_sent_again(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(ErrorAfterQueueing(times=1))
    simulator.misbehave(Refuse(status=503, path="/api/job/", times=8))
    with pytest.raises(ServerRefused):
        await cloud.run(invert())
    assert simulator.log.prompts_queued == 1


async def test_closing_cancels_running_jobs(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(cloud.run(invert(), on_event=listener))
    await listener.received(Started)
    await cloud.close()
    with pytest.raises(RunInterrupted, match="The client was closed"):
        await run
    assert any(received.path.endswith("/cancel") for received in simulator.log.requests)


async def test_closing_waits_for_a_pending_cancel(simulator: Simulator, cloud: CloudClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(cloud.run(invert(), on_event=listener))
    await listener.received(Started)
    late = simulator.misbehave(SlowHttp(seconds=0.2, path="/api/jobs/"))
    run.cancel()
    while late.happened == 0:  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0.01)
    await cloud.close()
    assert simulator.log.interrupts == 1
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_extra_data_is_sent_to_the_cloud(simulator: Simulator, cloud: CloudClient) -> None:
    result = await cloud.run(invert(), extra_data={"note": "mine"})
    history = await cloud._http.object(f"/api/history_v2/{result.prompt_id}")
    assert history[result.prompt_id]["prompt"]["extra_data"]["note"] == "mine"

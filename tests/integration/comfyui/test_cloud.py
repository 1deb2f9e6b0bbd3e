"""The client of the Comfy API has the interface of a server client, keeps its key private, and never pays twice."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from structlog.testing import capture_logs

from comfyrelay.comfyui import Attachment, ComfyApiClient, ComfyServer, Finished, Preview, Queued, Started, Step
from comfyrelay.comfyui.comfy_api.jobs import Phase, phase_of
from comfyrelay.comfyui.comfy_api.run import Submission
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import (
    ComfyError,
    Fault,
    GraphRefused,
    NodeFailed,
    NoOutput,
    OutputGone,
    PaymentRequired,
    RateLimited,
    RunInterrupted,
    RunLost,
    RunTimedOut,
    ServerRefused,
)
from comfyrelay.errors import OutOfMemory as OutOfMemoryError
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
async def cloud(simulator: Simulator) -> AsyncIterator[ComfyApiClient]:
    async with ComfyApiClient(
        "secret-key", url=simulator.url, poll_seconds=0.02, retries=3, first_pause_seconds=0.01
    ) as cloud:
        yield cloud


async def test_cloud_client_implements_the_server_interface(cloud: ComfyApiClient) -> None:
    server: ComfyServer = cloud
    await server.check()
    assert server.slots == 1
    assert await server.preflight(invert()) == []


async def test_image_is_uploaded_and_inverted(simulator: Simulator, cloud: ComfyApiClient, tmp_path: Path) -> None:
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


async def test_video_output_of_the_wanted_node_is_first(cloud: ComfyApiClient) -> None:
    result = await cloud.run(clip(), wanted=["6"])
    assert [file.mime_type for file in result.files] == ["video/webm", "video/mp4"]


async def test_key_never_follows_a_redirect(simulator: Simulator, cloud: ComfyApiClient) -> None:
    """HTTP libraries remove `Authorization` when a redirect leads to another host, but keep other headers."""
    result = await cloud.run(invert())
    assert b"".join([piece async for piece in cloud.read(result.file)])
    assert simulator.log.leaked_credentials == []


async def test_same_content_is_uploaded_once(simulator: Simulator, cloud: ComfyApiClient) -> None:
    assert await cloud.upload(PNG, name="a.png") == await cloud.upload(PNG, name="b.png")
    assert simulator.log.count("POST", "/api/v2/assets") == 1


@pytest.mark.parametrize("status", [429, 503, *full_only(500, 502)])
async def test_busy_service_is_retried(simulator: Simulator, cloud: ComfyApiClient, status: int) -> None:
    busy = simulator.misbehave(Refuse(status=status, path="/api/v2/jobs", error_type="queue_full", times=2))
    assert (await cloud.run(invert())).files
    assert busy.happened == 2
    assert simulator.log.prompts_queued == 1


class TestSharedFiles:
    """A shared file is uploaded once, even by processes that share only the upload record."""

    LOGO = Attachment(
        source=PNG, placeholder="{{LOGO}}", name="a.png", content_hash=hashlib.sha256(PNG).hexdigest(), shared=True
    )

    async def run(self, simulator: Simulator, record: Path, logo: Attachment = LOGO) -> int:
        """Run a graph twice as a new process would; return the total number of uploads."""
        async with ComfyApiClient("secret-key", url=simulator.url, poll_seconds=0.02, uploads=record) as cloud:
            for _ in range(2):
                await cloud.run(invert_file("{{LOGO}}"), attachments=[logo])
        return simulator.log.count("POST", "/api/v2/assets")

    async def test_later_process_does_not_upload_a_shared_file_again(
        self, simulator: Simulator, tmp_path: Path
    ) -> None:
        assert [await self.run(simulator, tmp_path / "uploads.json") for _ in range(3)] == [1, 1, 1]
        # Each later process checks once that the file exists.
        checks = [path for method, path in simulator.log.requests if method == "GET" and "/api/v2/assets/" in path]
        assert len(checks) == 2
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


@pytest.mark.parametrize("path", ["/api/v2/assets", "/api/v2/jobs"])
async def test_every_call_is_retried(simulator: Simulator, cloud: ComfyApiClient, path: str) -> None:
    simulator.misbehave(Refuse(status=503, path=path, times=2))
    assert (
        await cloud.run(invert_file(), attachments=[Attachment(node="1", input="image", source=PNG, name="a.png")])
    ).files


async def test_retry_after_is_respected(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Refuse(status=429, path="/api/v2/jobs", error_type="queue_full", retry_after=0, times=3))
    assert (await cloud.run(invert())).files


async def test_retries_are_limited(simulator: Simulator, cloud: ComfyApiClient) -> None:
    busy = simulator.misbehave(Refuse(status=429, path="/api/v2/jobs", error_type="queue_full", retry_after=0))
    with pytest.raises(RateLimited) as caught:
        await cloud.run(invert())
    assert (caught.value.fault, caught.value.retry_after_seconds) == (Fault.WORKER, 0)
    assert busy.happened == 4


async def test_payment_error_is_explained_and_not_retried(simulator: Simulator, cloud: ComfyApiClient) -> None:
    refusal = simulator.misbehave(Refuse(status=402, error_type="insufficient_credits", message="No credits left."))
    with pytest.raises(PaymentRequired, match="No credits left") as caught:
        await cloud.run(invert())
    assert caught.value.fault is Fault.JOB
    assert refusal.happened == 1


@pytest.mark.parametrize(
    ("refusal", "kind", "fault"),
    [
        (Refuse(status=422, error_type="deployment_stopped"), ServerRefused, Fault.WORKER),
        (Refuse(status=422, error_type="workflow_format_ui"), GraphRefused, Fault.JOB),
        (Refuse(status=403, error_type="forbidden"), ServerRefused, Fault.WORKER),
    ],
)
async def test_refusal_blames_the_job_or_the_service(
    simulator: Simulator, cloud: ComfyApiClient, refusal: Refuse, kind: type[ComfyError], fault: Fault
) -> None:
    simulator.misbehave(refusal)
    with pytest.raises(kind) as caught:
        await cloud.run(invert())
    assert caught.value.fault is fault


async def test_wrong_key_is_reported(simulator: Simulator) -> None:
    async with ComfyApiClient("wrong", url=simulator.url) as cloud:
        with pytest.raises(ServerRefused, match="does not accept this API key"):
            await cloud.check()


async def test_no_error_shows_the_key(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Refuse(status=400))
    with pytest.raises(ComfyError) as caught:
        await cloud.run(invert())
    assert "secret-key" not in f"{caught.value!r} {caught.value.raw}"


async def test_job_of_unknown_outcome_is_not_sent_again(simulator: Simulator, cloud: ComfyApiClient) -> None:
    """This service does not return the job of an idempotency key that was already used."""
    simulator.misbehave(ErrorAfterQueueing(times=1))
    with pytest.raises(RunLost, match="could be charged twice") as caught:
        await cloud.run(invert())
    assert caught.value.fault is Fault.JOB
    assert simulator.log.prompts_queued == 1


async def test_refused_submission_may_be_repeated(simulator: Simulator, cloud: ComfyApiClient) -> None:
    submission = Submission(key="k")
    with pytest.raises(GraphRefused, match="NoSuch"):
        await cloud.run(invert() | {"2": {"class_type": "NoSuch", "inputs": {}}}, submission=submission)
    assert (await cloud.run(invert(), submission=submission)).files
    assert simulator.log.prompts_queued == 1


async def test_job_of_an_earlier_process_is_continued(simulator: Simulator, cloud: ComfyApiClient) -> None:
    first = await cloud.run(invert(), submission=Submission(key="k"))
    again = await cloud.run(invert(), submission=Submission(key="k", job_id=first.prompt_id))
    assert (again.prompt_id, again.files) == (first.prompt_id, first.files)
    assert simulator.log.prompts_queued == 1


async def test_invalid_graph_is_refused_by_the_cloud(cloud: ComfyApiClient) -> None:
    with pytest.raises(GraphRefused, match="Required input is missing"):
        await cloud.run(invert() | {"3": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}})


@pytest.mark.parametrize(
    ("state", "kind", "fault"),
    [
        ("expired", RunLost, Fault.WORKER),
        ("canceled", RunInterrupted, Fault.INTERRUPTED),
        ("failed", NodeFailed, Fault.JOB),
    ],
)
async def test_job_error_has_the_message_of_the_service(
    simulator: Simulator, cloud: ComfyApiClient, state: str, kind: type[ComfyError], fault: Fault
) -> None:
    simulator.misbehave(EndAs(state=state))
    with pytest.raises(kind) as caught:
        await cloud.run(invert())
    assert caught.value.fault is fault


async def test_error_of_a_node_is_explained(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(
        Fail(class_type="ImageInvert", exception_type="ValueError", message="bad value in /srv/x/y.py", times=1)
    )
    with pytest.raises(NodeFailed, match=r"ImageInvert \(2\): bad value in y\.py"):
        await cloud.run(invert())
    simulator.misbehave(OutOfMemory(class_type="ImageInvert"))
    with pytest.raises(OutOfMemoryError, match=r"ImageInvert \(2\)"):
        await cloud.run(invert())


async def test_success_without_outputs_is_an_error(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(EmptyOutputs())
    with pytest.raises(NoOutput):
        await cloud.run(invert())


async def test_missing_output_file_is_reported(simulator: Simulator, cloud: ComfyApiClient, tmp_path: Path) -> None:
    result = await cloud.run(invert())
    simulator.misbehave(LostFile())
    with pytest.raises(OutputGone):
        await cloud.download(result.file, tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


async def test_cancelling_stops_this_job_and_no_other(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(cloud.run(invert(), on_event=listener))
    await listener.received(Started)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    # This route would stop all jobs of the account.
    assert simulator.log.count("POST", "/api/interrupt") == 0
    simulator.behave()
    assert (await cloud.run(invert(color=9))).files


async def test_job_is_stopped_at_its_time_limit(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    with pytest.raises(RunTimedOut, match="took too long"):
        await cloud.run(invert(), timeouts=RunTimeouts(run_seconds=0.1))


async def test_unknown_state_is_logged_once_and_the_job_continues(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(EndAs(state="rehearsing"))
    with capture_logs() as logs, pytest.raises(RunTimedOut, match="waited too long"):
        await cloud.run(invert(), timeouts=RunTimeouts(queue_seconds=0.2))
    assert [(log["event"], log["kind"]) for log in logs] == [("comfyui.unknown_status", "rehearsing")]


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("queued", Phase.WAITING),
        ("unknown status", Phase.WAITING),
        ("running", Phase.RUNNING),
        ("canceling", Phase.RUNNING),
        ("succeeded", Phase.DONE),
        ("failed", Phase.FAILED),
        ("canceled", Phase.FAILED),
        ("expired", Phase.FAILED),
    ],
)
def test_each_state_has_a_phase_and_unknown_states_wait(word: str, phase: Phase) -> None:
    assert phase_of({"status": word}) is phase


async def test_cancelling_during_submission_cancels_the_job(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(SlowHttp(seconds=0.2, path="/api/v2/jobs", times=1))
    run = asyncio.create_task(cloud.run(invert()))
    while simulator.log.count("POST", "/api/v2/jobs") == 0:  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert any("cancel" in received.path for received in simulator.log.requests)


async def test_run_survives_an_outage(simulator: Simulator, cloud: ComfyApiClient) -> None:
    refused = simulator.misbehave(Refuse(status=503, path="/api/v2/jobs/", times=12))
    assert (await cloud.run(invert())).files
    assert refused.happened == 12


async def test_closing_cancels_running_jobs(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(cloud.run(invert(), on_event=listener))
    await listener.received(Started)
    await cloud.close()
    with pytest.raises(RunInterrupted, match="The client was closed"):
        await run
    assert any(received.path.endswith("/cancel") for received in simulator.log.requests)


async def test_closing_waits_for_a_pending_cancel(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(cloud.run(invert(), on_event=listener))
    await listener.received(Started)
    late = simulator.misbehave(SlowHttp(seconds=0.2, path="/api/v2/jobs/"))
    run.cancel()
    while late.happened == 0:  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0.01)
    await cloud.close()
    assert simulator.log.interrupts == 1
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_only_the_partner_key_is_sent_as_extra_data(simulator: Simulator, cloud: ComfyApiClient) -> None:
    """The service refuses every other key in the extra data."""
    extra_data = {"extra_pnginfo": {"workflow": {}}, "api_key_comfy_org": "partner"}
    assert (await cloud.run(invert(), extra_data=extra_data)).files


async def test_progress_and_previews_are_reported(simulator: Simulator, cloud: ComfyApiClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=1.0, steps=20, previews=True))
    listener = Listener()
    await cloud.run(invert(), on_event=listener)
    steps = [event for event in listener.events if isinstance(event, Step)]
    assert {step.maximum for step in steps} == {20}
    assert [step.value for step in steps] == sorted(step.value for step in steps)
    assert next(event for event in listener.events if isinstance(event, Preview)).image.startswith(b"\xff\xd8")


@pytest.mark.parametrize("status", [429, 501])
async def test_job_is_polled_without_a_stream(simulator: Simulator, cloud: ComfyApiClient, status: int) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.3, steps=3))
    refused = simulator.misbehave(Refuse(status=status, suffix="/events", error_type="too_many_streams"))
    assert (await cloud.run(invert())).files
    assert refused.happened == 1


async def test_deleted_asset_is_uploaded_again(simulator: Simulator, cloud: ComfyApiClient) -> None:
    attachment = Attachment(node="1", input="image", source=PNG, name="a.png")
    assert (await cloud.run(invert_file(), attachments=[attachment])).files
    for path in (simulator.folder / "input").iterdir():
        path.unlink()
    assert (await cloud.run(invert_file(), attachments=[attachment])).files
    assert simulator.log.count("POST", "/api/v2/assets") == 2


async def test_comfyui_is_not_a_service_of_this_api() -> None:
    async with Simulator() as comfyui, ComfyApiClient("key", url=comfyui.url) as cloud:
        with pytest.raises(ServerRefused, match="does not speak the Comfy API"):
            await cloud.check()


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("/deployment/x/api/v2/jobs/1/events", "/api/v2/jobs/1/events"),
        ("https://service.test/deployment/x/api/v2/jobs/1/events?a=1", "/api/v2/jobs/1/events?a=1"),
        ("https://elsewhere.test/deployment/x/api/v2/jobs/1/events", "/default"),
        ("//elsewhere.test/deployment/x/events", "/default"),
        ("/other", "/default"),
        (None, "/default"),
    ],
)
async def test_links_are_followed_only_at_the_same_origin(link: str | None, path: str) -> None:
    async with ComfyApiClient("key", url="https://service.test/deployment/x") as cloud:
        assert cloud._http.path_of(link, "/default") == path

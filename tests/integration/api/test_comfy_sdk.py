"""The Python SDK of Comfy Org, unmodified, against a server on a socket with a worker on the simulator."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import comfy_sdk
import httpx
import pytest
from comfy_sdk import AsyncComfy, Comfy
from comfy_sdk.events import OutputReady, Preview, Progress, StatusChange
from comfy_sdk.exceptions import (
    ComfyError,
    IdempotencyKeyReuse,
    InvalidWorkflow,
    JobFailed,
    MissingAsset,
    NotFound,
)

from comfyrelay.comfyui.versions import TRIED
from comfyrelay.simulator.misbehaviour import Fail, Slow
from tests.support.api_calls import png
from tests.support.comfy_site import ComfySite, open_comfy_site
from tests.support.comfyui_site import MODELS, open_site, painted
from tests.support.graphs import five_images, invert, invert_file, saved_text
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def sdk(
    backend: SqliteBackend | PostgresBackend,
    storage_url: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[ComfySite]:
    async with open_comfy_site(backend, tmp_path, storage_url=storage_url) as site:
        monkeypatch.setenv("COMFY_BASE_URL", site.url)
        monkeypatch.setenv("COMFY_API_KEY", site.token)
        yield site


@pytest.fixture
async def client(sdk: ComfySite) -> AsyncIterator[AsyncComfy]:
    async with AsyncComfy() as client:
        yield client


@pytest.fixture
def sync_client(sdk: ComfySite) -> Iterator[Comfy]:
    with Comfy() as client:
        yield client


async def test_example_of_the_sdk_runs(sdk: ComfySite, sync_client: Comfy, tmp_path: Path) -> None:
    """Run the first example of the SDK's documentation in a thread, because it blocks."""
    (tmp_path / "photo.png").write_bytes(png("red"))
    (tmp_path / "workflow_api.json").write_text(json.dumps(invert_file("photo.png")))

    def example() -> tuple[bytes, bytes, int]:
        wf = sync_client.workflows.from_file(tmp_path / "workflow_api.json")
        asset = sync_client.assets.from_file(tmp_path / "photo.png")
        wf.set_input("1", "image", asset)
        job = sync_client.run(wf, timeout=PATIENCE_SECONDS)
        [output] = job.get_outputs("3")
        written = output.to_file(tmp_path / "out.png").read_bytes()
        stream = io.BytesIO()
        return written, output.to_bytes(range=(0, 3)), output.to_stream(stream)

    written, start, streamed = await asyncio.to_thread(example)
    assert written.startswith(b"\x89PNG")
    assert start == written[:4]
    assert streamed == len(written)
    assert sdk.simulator.log.count("POST", "/prompt") == 1


async def test_events_end_with_outputs_and_success(client: AsyncComfy) -> None:
    job = await client.submit(client.workflows.from_json(five_images()))
    assert job.status == "queued"
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = [event async for event in job.events()]
    statuses = [event.status for event in found if isinstance(event, StatusChange)]
    assert statuses[0] == "queued"
    assert statuses[-1] == "succeeded"
    assert all(0 <= event.value <= 1 for event in found if isinstance(event, Progress))
    ready = {event.output.id for event in found if isinstance(event, OutputReady)}
    done = await job.result()
    assert ready == {output.id for output in done.outputs}
    assert len(done.get_outputs("3")) == 4
    assert len(done.get_outputs("5")) == 1
    assert {output.type for output in done.outputs} == {"image"}
    assert done.get_outputs("no such node") == []
    link = await done.outputs[0].get_download_url()
    async with httpx.AsyncClient() as plain:
        # the link needs no token
        assert (await plain.get(link.url)).content == await done.outputs[0].to_bytes()


async def test_events_of_an_ended_job_describe_its_final_state(client: AsyncComfy) -> None:
    job = await client.run(client.workflows.from_str(json.dumps(invert(31))), timeout=PATIENCE_SECONDS)
    again = await client.jobs.get(job.id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = [event async for event in again.events()]
    assert [type(event) for event in found] == [OutputReady, StatusChange]
    assert (await again.wait(timeout=PATIENCE_SECONDS)).status == "succeeded"
    [output] = again.get_outputs("3")
    assert (output.content_type, output.size_bytes) == ("image/png", len(await output.to_bytes()))


async def test_same_bytes_are_uploaded_once(sdk: ComfySite, client: AsyncComfy) -> None:
    first = client.assets.from_bytes(png("green"), filename="photo.png")
    await first.commit()
    again = client.assets.from_stream(io.BytesIO(png("green")), filename="other.png")
    await again.commit()
    assert first.created_new is True
    assert again.created_new is False
    assert again.id == first.id
    found = await client.assets.get(first.id or "")
    assert (found.hash, found.file_path, found.job_id) == (first.hash, "photo.png", None)
    assert found.expires_at is not None
    link = await found.get_download_url()
    copy = await client.assets.from_url(link.url)
    assert copy.hash == first.hash
    other = await sdk.api.user("other@example.com")
    head = await other.call("HEAD", f"/api/v2/assets/by-hash/{first.hash}")
    assert head.status_code == 404
    assert (await sdk.user.call("HEAD", f"/api/v2/assets/by-hash/{first.hash}")).status_code == 200


async def test_deleted_asset_is_gone(client: AsyncComfy) -> None:
    asset = client.assets.from_bytes(png("blue"), filename="photo.png")
    id_ = await asset.commit()
    await asset.delete()
    with pytest.raises(NotFound):
        await client.assets.delete(id_)
    with pytest.raises(NotFound):
        await client.assets.get(id_)
    workflow = client.workflows.from_json(invert_file())
    workflow.set_input("1", "image", {"__type": "core/ASSET", "info": {"id": id_}})
    with pytest.raises(MissingAsset, match=r"1\.image"):
        await client.submit(workflow)


async def test_output_is_an_asset_that_can_be_reused_but_not_deleted(client: AsyncComfy) -> None:
    job = await client.run(client.workflows.from_json(invert(32)), timeout=PATIENCE_SECONDS)
    [output] = job.outputs
    asset = await client.assets.get(output.id)
    assert asset.job_id == output.job_id == job.id
    with pytest.raises(ComfyError) as refused:
        await asset.delete()
    assert refused.value.code == "asset_in_use"
    workflow = client.workflows.from_json(invert_file())
    workflow.set_input("1", "image", await asset.as_reference())
    assert (await client.run(workflow, timeout=PATIENCE_SECONDS)).status == "succeeded"


async def test_labels_are_returned_and_filter_the_list(client: AsyncComfy) -> None:
    for number in range(3):
        metadata = {"client": "acme", "number": str(number), "it's [odd]": 'a "b" $.c'}
        await client.submit(client.workflows.from_json(invert(number)), metadata=metadata)
    plain = await client.submit(client.workflows.from_json(invert(9)))
    assert plain.metadata == {}
    pages = [summary async for summary in client.list_jobs(metadata={"client": "acme"}, limit=2)]
    assert [summary.metadata["number"] for summary in pages] == ["2", "1", "0"]
    assert all(summary.create_time is not None and summary.update_time is not None for summary in pages)
    [odd] = [summary async for summary in client.list_jobs(metadata={"it's [odd]": 'a "b" $.c', "number": "1"})]
    assert (await client.jobs.get(odd.id)).metadata["client"] == "acme"
    assert [summary async for summary in client.list_jobs(metadata={"client": "acm"})] == []
    assert len([summary async for summary in client.list_jobs()]) == 4
    for labels in ({str(number): "x" for number in range(17)}, {"": "x"}, {"x": "y" * 513}):
        with pytest.raises(ComfyError) as refused:
            await client.submit(client.workflows.from_json(invert()), metadata=labels)
        assert refused.value.code == "metadata_invalid"


async def test_reused_key_is_refused(client: AsyncComfy) -> None:
    first = await client.submit(client.workflows.from_json(invert(1)), idempotency_key="order-1")
    for color in (1, 2):
        with pytest.raises(IdempotencyKeyReuse, match=first.id):
            await client.submit(client.workflows.from_json(invert(color)), idempotency_key="order-1")
    assert [summary.id async for summary in client.list_jobs()] == [first.id]


async def test_workflow_of_a_job_can_be_submitted_again(sdk: ComfySite, client: AsyncComfy) -> None:
    workflow = client.workflows.from_json(invert_file())
    asset = client.assets.from_bytes(png("white"), filename="photo.png")
    workflow.set_input("1", "image", asset)
    job = await client.run(workflow, timeout=PATIENCE_SECONDS)
    found = await (await client.jobs.get(job.id)).get_workflow()
    assert found.format == "api"
    assert found.graph["1"]["inputs"]["image"] == {"__type": "core/ASSET", "info": {"id": asset.id}}
    assert found.graph["2"] == invert_file()["2"]
    again = await client.run(client.workflows.from_json(found.graph), timeout=PATIENCE_SECONDS)
    assert (await again.get_workflow()).graph == found.graph
    assert sdk.simulator.log.count("POST", "/prompt") == 2


async def test_running_job_is_canceled(sdk: ComfySite, client: AsyncComfy) -> None:
    sdk.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, previews=True))
    job = await client.submit(client.workflows.from_json(invert(3)))
    seen: list[object] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in job.events():
            seen.append(event)
            # a preview and progress arrive while the job runs
            if {Preview, Progress} <= {type(event) for event in seen} and not any(map(_is_canceling, seen)):
                assert (await job.cancel()).status in ("canceling", "canceled")
                seen.append(StatusChange(status="canceling"))
    assert seen[-1] == StatusChange(status="canceled")
    assert next(event for event in seen if isinstance(event, Preview)).to_pil().size
    progress = [event for event in seen if isinstance(event, Progress)][-1]
    assert (progress.nodes_done, progress.nodes_total, progress.current_node) == (1, 3, "2")
    assert (await job.cancel()).status == "canceled"


def _is_canceling(event: object) -> bool:
    return isinstance(event, StatusChange) and event.status == "canceling"


async def test_jobs_run_on_the_worker_that_has_their_nodes_and_models(
    backend: SqliteBackend | PostgresBackend,
    storage_url: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second worker has a different model, and lacks `SaveText`."""
    async with open_site(backend, storage_url, tmp_path, versions=(TRIED[-1], "0.7.0")) as site:
        assert site.client.user is not None
        monkeypatch.setenv("COMFY_BASE_URL", site.api.context.settings.base_url)
        token = site.client.user.headers["Authorization"].removeprefix("Bearer ")
        async with AsyncComfy(api_key=token) as client:
            for graph, prompts in ((painted(MODELS[1]), (0, 1)), (saved_text(), (1, 1)), (painted(MODELS[0]), (2, 1))):
                await client.run(client.workflows.from_json(graph), timeout=PATIENCE_SECONDS)
                assert tuple(simulator.log.count("POST", "/prompt") for simulator in site.simulators) == prompts
            with pytest.raises(InvalidWorkflow, match="NoSuchNode"):
                await client.submit(client.workflows.from_json({"1": {"class_type": "NoSuchNode", "inputs": {}}}))


@pytest.mark.parametrize("file_format", ["txt", "md"])
async def test_saved_text_is_one_output(client: AsyncComfy, file_format: str) -> None:
    job = await client.run(client.workflows.from_json(saved_text(file_format)), timeout=PATIENCE_SECONDS)
    [output] = (await client.jobs.get(job.id)).outputs
    assert (output.node_id, output.name, output.type) == ("2", f"note_00001.{file_format}", "text")


async def test_failed_job_raises_with_the_reason(sdk: ComfySite, client: AsyncComfy) -> None:
    sdk.simulator.misbehave(Fail(class_type="ImageInvert", message="the node is broken"))
    job = await client.submit(client.workflows.from_json(invert(4)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(JobFailed) as failed:
            await job.result()
    assert failed.value.code == "node_execution_error"
    assert failed.value.error is not None
    assert "the node is broken" in failed.value.error.message
    assert (failed.value.error.node_id, failed.value.error.class_type) == ("2", "ImageInvert")


async def test_invalid_requests_raise_errors_of_the_sdk(sdk: ComfySite, client: AsyncComfy) -> None:
    with pytest.raises(NotFound):
        await client.jobs.get("00000000-0000-0000-0000-000000000000")
    with pytest.raises(InvalidWorkflow):
        await client.submit(client.workflows.from_json({"1": {"inputs": {}}}))
    with pytest.raises(MissingAsset, match="Upload the file as an asset"):
        await client.submit(client.workflows.from_json(invert_file("example.png")))
    with pytest.raises(ComfyError, match="only extra_pnginfo"):
        await client.submit(client.workflows.from_json(invert()), api_key="comfyui-key")
    with pytest.raises(ComfyError, match="only images, videos and audio"):
        await client.assets.from_bytes(b"text", filename="notes.txt").commit()
    async with AsyncComfy(api_key="wrong") as stranger:
        with pytest.raises(comfy_sdk.exceptions.Unauthorized):
            await stranger.submit(stranger.workflows.from_json(invert()))

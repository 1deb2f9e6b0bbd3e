"""The desk sends each notification once, only for the chosen events, and without delaying jobs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.client import Batch
from comfyrelay.desk.notifications import sender
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import ComfyRelayError
from comfyrelay.http_client import listen
from comfyrelay.simulator import Simulator, Slow
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.webhook_receiver import Receiver, open_receiver
from tests.support.world import PATIENCE_SECONDS

BROKEN = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 7}},
    "2": {"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "magic"}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}


def hook(receiver: Receiver) -> str:
    return receiver.url.replace("http://", "json://")


def titles(receiver: Receiver) -> list[str]:
    return [json.loads(body)["title"] for _, body in receiver.received]


@asynccontextmanager
async def open_desk_with(folder: Path, **settings: Any) -> AsyncIterator[OpenDesk]:
    async with open_desk(make_desk(folder, **settings)) as desk:
        yield desk


async def add_batch(desk: OpenDesk, *, tries: int = 1, **wish: Any) -> Batch:
    """Add a batch of the sample image."""
    body = {"effect_slug": "invert-image", "input_subdir": "examples", "tries": tries, "label": "cats", **wish}
    return await desk.client.add_batch(body)


async def wait_until_ended(desk: OpenDesk, batch: Batch) -> None:
    for job in [job async for job in desk.client.jobs(batch_id=batch.id)]:
        await desk.ended(job.id)


async def submit_broken(desk: OpenDesk) -> None:
    slug = (await desk.client.add_graph(BROKEN, name="broken")).data.slug
    job = await desk.client.submit(workflow_slug=slug, label="dog")
    assert (await desk.ended(job.id)).status == "failed"


async def test_failures_and_an_empty_queue_notify_by_default(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        async with open_desk_with(tmp_path, notify_urls=[hook(receiver)]) as desk:
            await wait_until_ended(desk, await add_batch(desk))
            await receiver.wait_for(1)
            await submit_broken(desk)
            await receiver.wait_for(3)
        assert titles(receiver) == ["The queue is empty", "dog failed", "The queue is empty"]


async def test_notified_events_can_be_chosen(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        async with open_desk_with(tmp_path, notify_urls=hook(receiver), notify_on="completed") as desk:
            await submit_broken(desk)
            await wait_until_ended(desk, await add_batch(desk, tries=3))
        assert titles(receiver) == ["cats is done"]


async def test_batch_notification_is_sent_once_when_all_items_have_ended(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        async with open_desk_with(tmp_path) as desk:
            batch = await add_batch(desk, tries=4, notify_urls=[hook(receiver)])
            await wait_until_ended(desk, await add_batch(desk))
            await wait_until_ended(desk, batch)
        [(_, body)] = receiver.received
        assert (json.loads(body)["title"], json.loads(body)["message"]) == ("cats is done", "4 completed.")


async def test_batch_and_its_rerun_notify_after_a_restart(tmp_path: Path) -> None:
    async with open_receiver() as receiver, Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
        async with open_desk_with(tmp_path, comfyui_url=[simulator.url], shutdown_seconds=0) as desk:
            batch = await add_batch(desk, notify_urls=[hook(receiver)])
        assert receiver.received == []
        simulator.behave()
        async with open_desk_with(tmp_path, comfyui_url=[simulator.url]) as desk:
            await wait_until_ended(desk, batch)
            await receiver.wait_for(1)
            again = await desk.client.rerun_batch(batch.id, new_seeds=False)
            await wait_until_ended(desk, again.data)
        assert titles(receiver) == ["cats is done", "cats is done"]


async def test_cancelled_batch_sends_no_notification(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        async with open_desk_with(tmp_path, notify_urls=[hook(receiver)], notify_on=["completed", "failed"]) as desk:
            batch = await add_batch(desk, tries=20)
            await desk.client.pause("batch", batch.id, now=True)
            await desk.client.cancel("batch", batch.id)
            await wait_until_ended(desk, batch)
            counts = (await desk.client.batch(batch.id)).counts
        assert titles(receiver) == (["cats is done"] if counts[JobStatus.COMPLETED] else [])


async def test_silent_notification_service_delays_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the desk waits for notifications only while it closes
    monkeypatch.setattr(sender, "FLUSH_SECONDS", 0.2)
    silent = listen("127.0.0.1", 0)
    url = f"json://127.0.0.1:{silent.getsockname()[1]}/s3cr3t"
    async with open_desk_with(tmp_path, notify_urls=[url]) as desk:
        await wait_until_ended(desk, await add_batch(desk))
        await wait_until_ended(desk, await add_batch(desk))
    silent.close()


async def test_failed_notification_is_logged_without_secrets(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        receiver.statuses = [500]
        async with open_desk_with(tmp_path, notify_urls=[hook(receiver).replace("://", "://ada:s3cr3t@")]) as desk:
            await wait_until_ended(desk, await add_batch(desk))
            await receiver.wait_for(1)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (notifications := (await desk.client.desk()).notifications).not_sent:
                    pass
        assert notifications.on == ["failed", "empty"]
        [failure] = notifications.not_sent
        assert failure.url.startswith("json://127.0.0.1:")
        assert "500" in failure.why
        assert "s3cr3t" not in notifications.model_dump_json()
        assert "s3cr3t" not in repr(desk.desk)


async def test_invalid_url_is_refused_when_a_batch_is_added(desk: OpenDesk) -> None:
    for url, reason in {"tgram://s3cr3t": "not a complete URL", "nonsense://s3cr3t": "No service"}.items():
        with pytest.raises(ComfyRelayError, match=reason) as refused:
            await add_batch(desk, notify_urls=[url])
        assert "s3cr3t" not in str(refused.value)

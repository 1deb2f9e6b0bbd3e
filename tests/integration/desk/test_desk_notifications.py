"""Notifications of the desk: sent once, for the chosen events, without delaying the work."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.client import Batch, Client
from comfyrelay.desk.notifications import sender
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import ComfyRelayError
from comfyrelay.http_client import listen
from comfyrelay.simulator import Simulator, Slow
from tests.support.desk import OpenDesk, make_desk
from tests.support.webhook_receiver import Receiver, receiving

BROKEN = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 7}},
    "2": {"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "magic"}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}


def hook(receiver: Receiver) -> str:
    return receiver.url.replace("http://", "json://")


def titles(receiver: Receiver) -> list[str]:
    return [json.loads(body)["title"] for _, body in receiver.heard]


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[OpenDesk]:
    made = make_desk(folder, **settings)
    async with made.open() as (_, ready), Client(ready.url) as client:
        yield OpenDesk(client=client, ready=ready, desk=made)


async def add(desk: OpenDesk, *, tries: int = 1, **wish: Any) -> Batch:
    """Add a batch of the sample image."""
    body = {"effect_slug": "invert-image", "input_subdir": "examples", "tries": tries, "label": "cats", **wish}
    return await desk.client.add_batch(body)


async def ended(desk: OpenDesk, batch: Batch) -> None:
    for each in [job async for job in desk.client.jobs(batch_id=batch.id)]:
        await desk.ended(each.id)


async def submit_broken(desk: OpenDesk) -> None:
    made = await desk.client.add_graph(BROKEN, name="broken")
    job = await desk.client.submit(workflow_slug=made.data.slug, label="dog")
    assert (await desk.ended(job.id)).status == "failed"


async def test_failures_and_the_empty_queue_notify_by_default(tmp_path: Path) -> None:
    async with receiving() as receiver:
        async with opened(tmp_path, notify_urls=[hook(receiver)]) as desk:
            await ended(desk, await add(desk))
            await receiver.wait_for(1)
            await submit_broken(desk)
            await receiver.wait_for(3)
        assert titles(receiver) == ["The queue is empty", "dog failed", "The queue is empty"]


async def test_notified_events_can_be_chosen(tmp_path: Path) -> None:
    async with receiving() as receiver:
        async with opened(tmp_path, notify_urls=hook(receiver), notify_on="completed") as desk:
            await submit_broken(desk)
            await ended(desk, await add(desk, tries=3))
        assert titles(receiver) == ["cats is done"]


async def test_batch_notification_is_sent_once_when_all_items_have_ended(tmp_path: Path) -> None:
    async with receiving() as receiver:
        async with opened(tmp_path) as desk:
            batch = await add(desk, tries=4, notify_urls=[hook(receiver)])
            await ended(desk, await add(desk))
            await ended(desk, batch)
        [(_, body)] = receiver.heard
        assert (json.loads(body)["title"], json.loads(body)["message"]) == ("cats is done", "4 completed.")


async def test_batch_and_its_rerun_notify_after_a_restart(tmp_path: Path) -> None:
    async with receiving() as receiver, Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
        async with opened(tmp_path, comfyui_url=[simulator.url], finish_seconds=0) as desk:
            batch = await add(desk, notify_urls=[hook(receiver)])
        assert receiver.heard == []
        simulator.behave()
        async with opened(tmp_path, comfyui_url=[simulator.url]) as desk:
            await ended(desk, batch)
            await receiver.wait_for(1)
            again = await desk.client.rerun_batch(batch.id, new_seeds=False)
            await ended(desk, again.data)
        assert titles(receiver) == ["cats is done", "cats is done"]


async def test_cancelled_batch_sends_no_notification(tmp_path: Path) -> None:
    async with receiving() as receiver:
        async with opened(tmp_path, notify_urls=[hook(receiver)], notify_on=["completed", "failed"]) as desk:
            batch = await add(desk, tries=20)
            await desk.client.pause("batch", batch.id, now=True)
            await desk.client.cancel("batch", batch.id)
            await ended(desk, batch)
            counts = (await desk.client.batch(batch.id)).counts
        assert titles(receiver) == (["cats is done"] if counts[JobStatus.COMPLETED] else [])


async def test_service_that_does_not_answer_holds_up_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # only a desk that closes waits for it
    monkeypatch.setattr(sender, "FLUSH_SECONDS", 0.2)
    silent = listen("127.0.0.1", 0)
    url = f"json://127.0.0.1:{silent.getsockname()[1]}/s3cr3t"
    async with opened(tmp_path, notify_urls=[url]) as desk:
        await ended(desk, await add(desk))
        await ended(desk, await add(desk))
    silent.close()


async def test_failed_notification_is_logged_without_secrets(tmp_path: Path) -> None:
    async with receiving() as receiver:
        receiver.statuses = [500]
        async with opened(tmp_path, notify_urls=[hook(receiver).replace("://", "://ada:s3cr3t@")]) as desk:
            await ended(desk, await add(desk))
            await receiver.wait_for(1)
            while not (shown := (await desk.client.desk()).notifications).not_sent:
                pass
        assert shown.on == ["failed", "empty"]
        [failure] = shown.not_sent
        assert failure.url.startswith("json://127.0.0.1:")
        assert "500" in failure.why
        assert "s3cr3t" not in shown.model_dump_json()
        assert "s3cr3t" not in repr(desk.desk)


@pytest.mark.parametrize(
    ("url", "why"), [("tgram://s3cr3t", "not a complete URL"), ("nonsense://s3cr3t", "No service")]
)
async def test_url_that_cannot_work_is_refused_when_a_batch_is_added(desk: OpenDesk, url: str, why: str) -> None:
    with pytest.raises(ComfyRelayError, match=why) as refused:
        await add(desk, notify_urls=[url])
    assert "s3cr3t" not in str(refused.value)

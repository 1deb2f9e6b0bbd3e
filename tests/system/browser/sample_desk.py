"""A desk with sample content: pictures, clips, batches, failures and waiting jobs, with the given texts."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import httpx
from PIL import Image, ImageDraw

from tests.support.desk import callable_url
from tests.support.desk_owner import owner_http
from tests.support.world import PATIENCE_SECONDS

LASTING = ("completed", "failed", "canceled")


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """Texts that users write and programs report."""

    batch: str
    labels: Sequence[str]
    prompts: Sequence[str]
    file: str
    workflow: str
    preset: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """The ids of the sample content."""

    workflow: str
    done: str
    clip: str
    failed: str
    batch: str
    waiting: str


@dataclass
class Filling:
    http: httpx.AsyncClient
    comfyui: str
    effects: dict[str, int] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str) -> AsyncIterator[Self]:
        async with owner_http(url) as http:
            desk = cls(http, "")
            desk.comfyui = callable_url((await desk.call("GET", "/api/desk"))["comfyui"][0])
            effects = (await desk.call("GET", "/api/effects"))["items"]
            desk.effects = {effect["slug"]: effect["id"] for effect in effects}
            yield desk

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()["data"]

    async def misbehave(self, name: str, **fields: Any) -> None:
        answer = await self.http.post(f"{self.comfyui}/simulator/misbehave", json={"name": name, **fields})
        answer.raise_for_status()

    async def behave(self) -> None:
        (await self.http.delete(f"{self.comfyui}/simulator/misbehave")).raise_for_status()

    async def upload(self, name: str, content: bytes, mime_type: str = "image/png") -> str:
        about = {"mime_type": mime_type, "size": len(content), "original_filename": name}
        upload = await self.call("POST", "/api/videos/uploads", about)
        (
            await self.http.put(upload["upload_url"], content=content, headers=upload["upload_headers"])
        ).raise_for_status()
        return str(upload["file"]["id"])

    async def submit(self, effect: str, label: str | None = None, **fields: Any) -> str:
        body = {"effect_id": self.effects[effect], "label": label, "idempotency_key": str(uuid4()), **fields}
        return str((await self.call("POST", "/api/ai-jobs", body))["id"])

    async def submit_batch(self, effect: str, label: str, items: Sequence[dict[str, Any]]) -> str:
        body = {"effect_id": self.effects[effect], "label": label, "items": items}
        return str((await self.call("POST", "/api/batches", body))["id"])

    async def ended(self, job_id: str) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with self.http.stream("GET", f"/api/ai-jobs/{job_id}/events", timeout=None) as stream:
                async for _line in stream.aiter_lines():
                    pass
        return await self.call("GET", f"/api/ai-jobs/{job_id}")

    async def batch_ended(self, batch_id: str) -> None:
        found = await self.call("GET", f"/api/ai-jobs?batch_id={batch_id}&limit=200")
        for job in found["items"]:
            await self.ended(job["id"])

    async def fill(self, texts: Texts, *, graph: dict[str, Any] | None = None) -> Filled:
        """Add content of each kind; a node that never finishes blocks the first waiting job."""
        workflow = "text-to-image"
        if graph is not None:
            workflow = (await self.call("POST", "/api/workflows", {"graph": graph, "name": texts.workflow}))["slug"]
        await self.call("POST", "/api/presets", {"name": texts.preset, "values": {"prompt": texts.prompts[0]}})
        file_id = await self.upload(texts.file, picture(0))
        done = await self.submit("text-to-image", texts.labels[0], input_payload={"prompt": texts.prompts[0]})
        clip = await self.submit("image-to-clip", texts.labels[1], input_file_id=file_id)
        items = [
            {"label": texts.labels[number % len(texts.labels)], "input_payload": {"prompt": prompt}}
            for number, prompt in enumerate(texts.prompts)
        ]
        batch = await self.submit_batch("text-to-image", texts.batch, items)
        for job in (done, clip):
            assert (await self.ended(job))["status"] == "completed"
        await self.batch_ended(batch)
        await self.misbehave("Fail", class_type="ImageInvert", message=texts.error)
        failed = await self.submit("invert-image", texts.labels[2], input_file_id=file_id)
        assert (await self.ended(failed))["status"] == "failed"
        await self.behave()
        await self.misbehave("Stuck", class_type="ImageInvert")
        await self.submit("invert-image", texts.labels[0], input_file_id=file_id)
        waiting = await self.submit("invert-image", texts.labels[1], input_file_id=file_id)
        return Filled(workflow=workflow, done=done, clip=clip, failed=failed, batch=batch, waiting=waiting)


def picture(number: int, width: int = 640, height: int = 480) -> bytes:
    """Return a picture of a sky, hills and a sun, which vary with `number`."""
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    tint = (number * 53) % 160
    for line in range(height):
        part = line / height
        draw.line(
            [(0, line), (width, line)], fill=(int(30 + tint * part), int(60 + 90 * part), int(140 - tint * part / 2))
        )
    radius = height // 8
    left, top = int(width * (0.2 + 0.6 * ((number * 7) % 10) / 10)), height // 4
    draw.ellipse((left - radius, top - radius, left + radius, top + radius), fill=(255, 214, 140))
    for hill in range(3):
        base = height * (5 + hill) // 8
        points = [(width * step // 8, base - ((number + step * (hill + 3) * 37) % 70)) for step in range(9)]
        draw.polygon([(0, height), *points, (width, height)], fill=(30 - hill * 8, 60 - hill * 14, 50 - hill * 8))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()

"""The clients of a soak test, one per tenant, retry and record the jobs that the servers accepted."""

import asyncio
import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from PIL import Image

from tests.soak.plan import Act, Verb
from tests.soak.world import Tenant, World

PAUSE_SECONDS = 0.05
CREDIT = 11
# A pause with this number pauses the queue rather than a job.
PAUSES_QUEUE = 3


@dataclass
class Client:
    world: World
    tenant: Tenant
    seed: int
    # the accepted jobs, in order
    jobs: list[str] = field(default_factory=list)

    async def run(self, acts: Sequence[Act], began_at: float) -> None:
        """Run every act at its time; slow acts do not delay others."""
        loop = asyncio.get_running_loop()

        async def run_act(act: Act, number: int) -> None:
            await asyncio.sleep(began_at + act.at - loop.time())
            await self._do(act, number)

        await asyncio.gather(*(run_act(act, number) for number, act in enumerate(acts)))

    async def call(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> tuple[int, Any]:
        """Retry until a server answers; repeated requests must count only once."""
        headers = {"Authorization": f"Bearer {token}"} if token else self.tenant.headers
        while True:
            try:
                async with self.world.http.request(method, self.world.url + path, json=body, headers=headers) as answer:
                    if answer.status < 500 and answer.status != 429:
                        return answer.status, await answer.json()
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            await asyncio.sleep(PAUSE_SECONDS)

    async def call_successfully(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Any:
        """Return the data of a call that must succeed."""
        status, answer = await self.call(method, path, body, token=token)
        assert status < 300, f"{self.tenant.name}: {method} {path}: {status} {answer}"
        return answer["data"]

    async def _do(self, act: Act, number: int) -> None:
        key = f"{self.seed}-{number}"
        # a different color for each job of all seeds, so no two jobs are equal
        color = (self.seed * 1_000 + number * 10) % 2**24
        match act.verb:
            case Verb.PLAIN:
                await self._submit("plain", key, {"input_payload": {"color": color}})
            case Verb.DOOMED:
                await self._submit("doomed", key, {"input_payload": {"color": color}})
            case Verb.ONCE:
                await self._submit_once(key, {"input_payload": {"color": color}})
            case Verb.IMAGE:
                await self._submit("image", key, {"input_file_id": await self._upload(_png(color))})
            case Verb.BATCH:
                await self._submit_batch(key, [{"input_payload": {"color": color + n}} for n in range(act.number)])
            case Verb.CREDIT:
                path = f"/api/admin/tenants/{self.tenant.id}/credits"
                await self.call_successfully(
                    "POST", path, {"amount": CREDIT, "reference": key}, token=self.world.admin_token
                )
                self.world.credits[self.tenant.name] += CREDIT
            case Verb.CANCEL if self.jobs:
                # 409: the job has ended
                await self.call("POST", f"/api/ai-jobs/{self._pick_job(act)}/cancel")
            case Verb.PAUSE if act.number == PAUSES_QUEUE:
                await self.call("POST", "/api/queue/pause", {"mode": "now"})
            case Verb.PAUSE if self.jobs:
                await self.call("POST", f"/api/ai-jobs/{self._pick_job(act)}/pause", {"mode": "now"})

    def _pick_job(self, act: Act) -> str:
        return self.jobs[act.number % len(self.jobs)]

    async def _submit(self, effect: str, key: str, item: dict[str, Any]) -> None:
        body = {"effect_id": self.world.effects[effect], "idempotency_key": key, **item}
        self.jobs.append((await self.call_successfully("POST", "/api/ai-jobs", body))["id"])

    async def _submit_once(self, key: str, item: dict[str, Any]) -> None:
        """Submit without a retry; an unanswered request may have been accepted, and then its job must also end."""
        body = {"effect_id": self.world.effects["plain"], "idempotency_key": key, **item}
        url = f"{self.world.url}/api/ai-jobs?once"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self.world.http.post(url, json=body, headers=self.tenant.headers) as answer:
                if answer.status < 300:
                    self.jobs.append((await answer.json())["data"]["id"])

    async def _submit_batch(self, key: str, items: list[dict[str, Any]]) -> None:
        body = {"effect_id": self.world.effects["plain"], "idempotency_key": key, "items": items}
        batch = await self.call_successfully("POST", "/api/batches", body)
        found = (await self.call_successfully("GET", f"/api/ai-jobs?batch_id={batch['id']}"))["items"]
        assert len(found) == len(items), f"{self.tenant.name}: a batch of {len(items)} has {len(found)} jobs"
        self.jobs += [job["id"] for job in found]

    async def _upload(self, content: bytes) -> str:
        request = {"mime_type": "image/png", "size": len(content), "original_filename": "cat.png"}
        while True:
            upload = await self.call_successfully("POST", "/api/videos/uploads", request)
            try:
                async with self.world.http.put(
                    upload["upload_url"], data=content, headers=upload["upload_headers"]
                ) as answer:
                    if answer.status < 300:
                        file_id: str = upload["file"]["id"]
                        return file_id
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            await asyncio.sleep(PAUSE_SECONDS)


def _png(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number >> 16 & 255, number >> 8 & 255, number & 255)).save(file, "PNG")
    return file.getvalue()

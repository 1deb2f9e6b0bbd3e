"""`python -m tests.compat.comfy_api`: one script against any server of the Comfy API v2, which prints what it found.

COMFY_BASE_URL and COMFY_API_KEY name the server, as for the SDK. docs/explanation/compare.md has the results.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import httpx
from comfy_sdk import AsyncComfy
from comfy_sdk.exceptions import ComfyError

from tests.support.editor_files import empty, save, workflow
from tests.support.graphs import invert

TIMEOUT_SECONDS = 60
EDITOR_FILE = workflow([empty(1), save(2, 1)], [(1, 1, 0, 2, 0)])


class Script:
    def __init__(self, client: AsyncComfy, http: httpx.AsyncClient) -> None:
        self._client = client
        self._http = http

    async def run_a_graph(self) -> str:
        job = await self._client.run(self._client.workflows.from_json(invert(1)), timeout=TIMEOUT_SECONDS)
        return f"{job.status}, {len(await job.outputs[0].to_bytes())} bytes"

    async def labels(self) -> str:
        wanted = {"client": str(uuid4())}
        job = await self._client.submit(self._client.workflows.from_json(invert(2)), metadata=wanted)
        listed = [summary.id async for summary in self._client.list_jobs(metadata=wanted)]
        return f"listed: {listed == [job.id]}"

    async def priority(self) -> str:
        return await self._submit(invert(3), priority=5)

    async def webhook_url(self) -> str:
        return await self._submit(invert(4), webhook_url="https://example.com/hook")

    async def inputs(self) -> str:
        return await self._submit(invert(5), inputs={"1.width": 32})

    async def file_of_the_editor(self) -> str:
        return await self._submit(EDITOR_FILE)

    async def events_have_ids(self) -> str:
        job = await self._client.run(self._client.workflows.from_json(invert(6)), timeout=TIMEOUT_SECONDS)
        response = await self._http.get(f"/api/v2/jobs/{job.id}/events")
        return str(any(line.startswith("id:") for line in response.text.splitlines()))

    async def reused_key(self) -> str:
        key = str(uuid4())
        await self._submit(invert(7), key=key)
        return await self._submit(invert(8), key=key)

    async def unknown_node(self) -> str:
        return await self._submit({"1": {"class_type": "NoSuchNode", "inputs": {}}})

    async def key_of_partner_nodes(self) -> str:
        return await self._submit(invert(9), extra_data={"api_key_comfy_org": "key"})

    async def without_a_token(self) -> str:
        async with httpx.AsyncClient(base_url=self._http.base_url) as anonymous:
            return str((await anonymous.get("/api/v2/jobs")).status_code)

    async def _submit(self, graph: dict[str, Any], *, key: str | None = None, **fields: Any) -> str:
        headers = {} if key is None else {"Idempotency-Key": key}
        response = await self._http.post("/api/v2/jobs", json={"workflow": graph, **fields}, headers=headers)
        error = response.json().get("error")
        code = error["code"] if isinstance(error, dict) else ""
        return f"{response.status_code} {code}".strip()


async def main() -> None:
    token = os.environ.get("COMFY_API_KEY")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    options: dict[str, Any] = {"base_url": os.environ["COMFY_BASE_URL"], "headers": headers, "timeout": TIMEOUT_SECONDS}
    async with AsyncComfy() as client, httpx.AsyncClient(**options) as http:
        script = Script(client, http)
        calls = [getattr(script, name) for name in vars(Script) if not name.startswith("_")]
        found = {call.__name__: await _outcome(call) for call in calls}
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n")


async def _outcome(call: Callable[[], Awaitable[str]]) -> str:
    try:
        return await call()
    except ComfyError as error:
        return f"{error.code}: {error}"


if __name__ == "__main__":
    asyncio.run(main())

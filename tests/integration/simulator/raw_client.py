"""A plain client of ComfyUI's API for tests, which sends raw requests and listens to the WebSocket."""

import asyncio
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from comfyrelay.simulator import Simulator
from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS

Message = dict[str, Any]
# All clients share this context: loading unused certificates takes longer than most tests.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Listener:
    """Keep every message of one socket and wake the waiters."""

    def __init__(self, socket: ClientConnection, client_id: str) -> None:
        self.socket = socket
        self.client_id = client_id
        self.messages: list[Message] = []
        self.frames: list[bytes] = []
        self.close_code: int | None = None
        self._changed = asyncio.Condition()

    async def listen(self) -> None:
        try:
            async for text in self.socket:
                async with self._changed:
                    if isinstance(text, bytes):
                        self.frames.append(text)
                    else:
                        self.messages.append(json.loads(text))
                    self._changed.notify_all()
        except ConnectionClosed:
            pass
        finally:
            async with self._changed:
                self.close_code = self.socket.close_code
                self._changed.notify_all()

    async def wait(self, until: Callable[[Message], bool]) -> Message:
        """Return the first message, past or future, that matches."""
        found: list[Message] = []

        def has_match() -> bool:
            found[:] = [message for message in self.messages if until(message)]
            return bool(found)

        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(has_match)
        return found[0]

    async def wait_for_end(self, prompt_id: str) -> Message:
        return await self.wait(
            lambda message: message["type"] == "executing" and message["data"] == {"node": None, "prompt_id": prompt_id}
        )

    async def wait_for_node(self, node_id: str) -> Message:
        return await self.wait(lambda message: message["type"] == "executing" and message["data"]["node"] == node_id)

    async def wait_closed(self) -> int | None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.close_code is not None)
        return self.close_code

    def kinds(self) -> list[str]:
        return [message["type"] for message in self.messages]


@asynccontextmanager
async def listening(
    simulator: Simulator, client_id: str | None = None, flags: Mapping[str, Any] | None = None
) -> AsyncIterator[Listener]:
    client_id = client_id or uuid.uuid4().hex
    url = f"{simulator.url.replace('http', 'ws', 1)}/ws?clientId={client_id}"
    async with connect(url, close_timeout=0.1) as socket:
        if flags is not None:
            await socket.send(json.dumps({"type": "feature_flags", "data": dict(flags)}))
        listener = Listener(socket, client_id)
        task = asyncio.create_task(listener.listen())
        try:
            await listener.wait(lambda message: message["type"] == "status")
            yield listener
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Client:
    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.http = httpx.AsyncClient(base_url=simulator.url, timeout=PATIENCE_SECONDS, verify=NO_TLS)

    async def prompt(self, graph: Mapping[str, Any], **fields: Any) -> httpx.Response:
        return await self.http.post("/prompt", json={"prompt": graph, **fields})

    async def queue_prompt(self, graph: Mapping[str, Any], **fields: Any) -> str:
        response = await self.prompt(graph, **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["prompt_id"])

    async def run(self, graph: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """Run a graph to its end and return its history."""
        fields = {"client_id": "runner", **fields}
        prompt_id = await self.queue_prompt(
            graph, **{name: value for name, value in fields.items() if value is not None}
        )
        return await self.ended(prompt_id)

    async def ended(self, prompt_id: str) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}

        async def has_match() -> bool:
            found.update((await self.http.get(f"/history/{prompt_id}")).json())
            return bool(found)

        await until(has_match)
        return found[prompt_id]

    async def upload(self, path: Path, name: str | None = None) -> None:
        response = await self.http.post("/upload/image", files={"image": (name or path.name, path.read_bytes())})
        assert response.status_code == 200

    async def download(self, item: Mapping[str, str]) -> bytes:
        response = await self.http.get("/view", params=dict(item))
        assert response.status_code == 200
        return response.content

    async def idle(self) -> bool:
        return not (await self.http.get("/prompt")).json()["exec_info"]["queue_remaining"]

    async def has_no_listener(self) -> bool:
        return not self.simulator.clients

    async def queue(self) -> dict[str, list[Any]]:
        shown: dict[str, list[Any]] = (await self.http.get("/queue")).json()
        return shown


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Poll until a condition holds that no message announces."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await check():
                return
            await asyncio.sleep(0.005)


PROMPT_ID = "0c9f4c0b-5a4e-4a52-9a3c-8f6f6d3d2b11"


def invert_graph(image: str = "rec.png", prefix: str = "job/out") -> dict[str, Any]:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": image}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": prefix}},
    }


def error_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of `execution_error` in a history entry."""
    kind, data = entry["status"]["messages"][-1]
    assert kind == "execution_error", entry["status"]
    found: dict[str, Any] = data
    return found


def recording(name: str, version: str = "0.7.0") -> Any:
    """Return the recorded exchanges of a run on a version of ComfyUI."""
    return json.loads((RECORDINGS / version / f"{name}.json").read_text())

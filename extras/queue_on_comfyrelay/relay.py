"""Sends graphs with their files to a server, and its progress and outputs as ComfyUI's messages to the editor."""

import asyncio
import base64
import json
import logging
import mimetypes
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, FormData

# The server sends something every 5 s.
_TIMEOUT = ClientTimeout(total=None, sock_connect=10, sock_read=60)
_RECONNECT_SECONDS = 2.0
# An event may contain a preview.
_BUFFER_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_MEDIA_TYPES = ("image/", "video/", "audio/")
# ComfyUI's BinaryEventTypes.PREVIEW_IMAGE, and its number for JPEG.
_PREVIEW_IMAGE, _JPEG = 1, (1).to_bytes(4, "big")
_ENDS = {
    "succeeded": "execution_success",
    "failed": "execution_error",
    "canceled": "execution_interrupted",
}
# Arguments: the event and its data. The data of a preview is bytes.
Send = Callable[[Any, Any], None]
_logger = logging.getLogger("comfyrelay")


class RelayError(Exception):
    """An error whose message is shown to the user."""


class Relay:
    def __init__(self, *, settings: Path, folders: Mapping[str, Path]) -> None:
        """`settings` is a JSON file with `url` and `token`. `folders` are `input`, `output` and `temp` of ComfyUI."""
        self._settings = settings
        self._folders = {name: Path(os.path.normpath(folder.absolute())) for name, folder in folders.items()}
        self._following: set[asyncio.Task[None]] = set()

    async def submit(self, graph: Mapping[str, Any], workflow: Any, send: Send) -> str:
        """Queue a graph and return the id of its job. The job's messages are sent until it ends."""
        api = self._connect()
        try:
            # Pictures contain the workflow, as with ComfyUI itself.
            body = {"extra_data": {"extra_pnginfo": {"workflow": workflow}}}
            job = await api.call("POST", "/jobs", json={"workflow": await self._with_assets(api, graph), **body})
            job_id = _id_of(job)
        except BaseException:
            await api.close()
            raise
        task = asyncio.create_task(_follow(api, job_id, self._folders["output"], send))
        # The event loop keeps only a weak reference.
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return job_id

    def _connect(self) -> "_Api":
        try:
            settings = json.loads(self._settings.read_text("utf-8"))
            return _Api(str(settings["url"]), token=str(settings["token"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RelayError(f"Write the url and the token of ComfyRelay into {self._settings}.") from error

    async def _with_assets(self, api: "_Api", graph: Mapping[str, Any]) -> dict[str, Any]:
        """Return the graph with its local files replaced by uploaded files."""
        uploaded: dict[Path, Any] = {}
        found = {}
        for node_id, node in graph.items():
            inputs = dict(node["inputs"])
            for name, value in inputs.items():
                if isinstance(value, str) and (path := self._media_file(value)) is not None:
                    if path not in uploaded:
                        uploaded[path] = {"__type": "core/ASSET", "info": {"id": await api.upload(path)}}
                    inputs[name] = uploaded[path]
            found[node_id] = {**node, "inputs": inputs}
        return found

    def _media_file(self, value: str) -> Path | None:
        """Return the file for a value such as `photo.png` or `photo.png [output]`."""
        name, kind = value, "input"
        for suffix in self._folders:
            if value.endswith(f"[{suffix}]"):
                name, kind = value[: -len(suffix) - 2].rstrip(), suffix
        folder = self._folders[kind]
        path = Path(os.path.normpath(folder / name))
        is_media = (mimetypes.guess_type(name)[0] or "").startswith(_MEDIA_TYPES)
        # A prompt text can be invalid as a file name.
        with suppress(OSError, ValueError):
            if is_media and path.is_relative_to(folder) and path.is_file():
                return path
        return None


class _Api:
    def __init__(self, url: str, *, token: str) -> None:
        self._url = f"{url.rstrip('/')}/api/v2"
        headers = {"Authorization": f"Bearer {token}"}
        self._session = ClientSession(headers=headers, timeout=_TIMEOUT, read_bufsize=_BUFFER_BYTES)

    async def close(self) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, **options: Any) -> Any:
        try:
            async with self._session.request(method, f"{self._url}{path}", **options) as response:
                await _check(response)
                return await response.json()
        except (ClientError, TimeoutError, ValueError) as error:
            raise RelayError(f"ComfyRelay does not answer: {error}") from error

    async def upload(self, path: Path) -> str:
        with path.open("rb") as file:
            form = FormData({"file_path": path.name, "content_type": mimetypes.guess_type(path.name)[0] or ""})
            form.add_field("file", file, filename=path.name)
            return str((await self.call("POST", "/assets", data=form))["id"])

    async def download(self, asset_id: str, to: Path) -> None:
        async with self._session.get(f"{self._url}/assets/{asset_id}/content") as response:
            await _check(response)
            with to.open("wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    file.write(chunk)

    async def events(self, job_id: str) -> AsyncIterator[tuple[str, Any]]:
        """Yield the events of a job. The first event is its status."""
        async with self._session.get(f"{self._url}/jobs/{job_id}/events") as response:
            await _check(response)
            name = ""
            async for line in response.content:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)


async def _check(response: ClientResponse) -> None:
    if response.status >= 400:
        with suppress(ValueError, KeyError, TypeError):
            raise RelayError(json.loads(await response.text())["error"]["message"])
        raise RelayError(f"ComfyRelay answered {response.status}. Check the url.")


async def _follow(api: _Api, job_id: str, folder: Path, send: Send) -> None:
    """Send the messages of a job until it ends. A lost connection is reopened."""
    send("execution_start", {"prompt_id": job_id})
    try:
        while True:
            with suppress(ClientError, TimeoutError):
                if await _has_ended(api, job_id, folder, send):
                    return
            await asyncio.sleep(_RECONNECT_SECONDS)
    except RelayError as error:
        send("execution_error", _failure(job_id, {"message": str(error)}))
    except Exception:
        _logger.exception("The job %s of ComfyRelay is no longer shown.", job_id)
    finally:
        send("executing", {"node": None, "prompt_id": job_id})
        await api.close()


async def _has_ended(api: _Api, job_id: str, folder: Path, send: Send) -> bool:
    """Send messages until the connection or the job ends, and return whether the job has ended."""
    node = None
    async for name, data in api.events(job_id):
        if name == "preview":
            send(_PREVIEW_IMAGE, _JPEG + base64.b64decode(data["data_base64"]))
        elif name == "progress" and data["current_node"] is not None:
            if node != data["current_node"]:
                node = data["current_node"]
                send("executing", {"node": node, "display_node": node, "prompt_id": job_id})
            if data["steps"]:
                step = {"value": data["step"] or 0, "max": data["steps"], "node": node, "prompt_id": job_id}
                send("progress", step)
        elif name == "status" and data["status"] in _ENDS:
            job = await api.call("GET", f"/jobs/{job_id}")
            if data["status"] == "succeeded":
                await _save_outputs(api, job_id, job["outputs"], folder, send)
            failure = _failure(job_id, job["error"] or {})
            send(_ENDS[data["status"]], failure)
            return True
    return False


async def _save_outputs(api: _Api, job_id: str, outputs: Sequence[Mapping[str, Any]], folder: Path, send: Send) -> None:
    """Save the outputs of a job in ComfyUI's output folder, and show each output on its node."""
    subfolder = f"comfyrelay/{job_id}"
    await asyncio.to_thread((folder / subfolder).mkdir, parents=True, exist_ok=True)
    shown: dict[str, dict[str, list[Any]]] = {}
    for output in outputs:
        name = Path(output["name"].replace("\\", "/")).name
        await api.download(output["id"], folder / subfolder / name)
        kind = "audio" if output["type"] == "audio" else "images"
        file = {"filename": name, "subfolder": subfolder, "type": "output"}
        about = shown.setdefault(output["node_id"], {})
        about.setdefault(kind, []).append(file)
        if output["type"] == "video":
            about["animated"] = [True]
    for node, about in shown.items():
        send("executed", {"node": node, "display_node": node, "output": about, "prompt_id": job_id})


def _id_of(job: Mapping[str, Any]) -> str:
    """Return the id of a job, checked because it is used as a folder name."""
    try:
        return str(UUID(job["id"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RelayError("The response is not from ComfyRelay. Check the url in the settings.") from error


def _failure(job_id: str, error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of ComfyUI's last message, which for an error includes the reason."""
    return {
        "prompt_id": job_id,
        "node_id": error.get("node_id"),
        "node_type": error.get("class_type"),
        "executed": [],
        "exception_message": error.get("message", ""),
        "exception_type": "ComfyRelay",
        "traceback": [],
    }

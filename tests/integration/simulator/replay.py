"""Replay recorded runs of a real server on the simulator, and normalize both sides to compare them."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.integration.simulator.raw_client import Client, Listener

_TIMES = frozenset({"timestamp", "create_time", "execution_start_time", "execution_end_time"})
# Real servers send these fields in the order of a set.
_UNORDERED = frozenset({"executed", "current_outputs"})
_FREE_TEXT = frozenset({"tooltip", "traceback", "number", "priority", "description", "output_tooltips"})
Step = Callable[[Listener], Awaitable[object]]


def normal(value: Any, ids: dict[str, str]) -> Any:
    """Remove times, numbers and free texts from a value, and replace ids by labels."""
    if isinstance(value, dict):
        return {
            with_ids(key, ids): _normal_field(key, field, ids) for key, field in value.items() if key not in _FREE_TEXT
        }
    if isinstance(value, list):
        return [normal(item, ids) for item in value]
    return with_ids(value, ids) if isinstance(value, str) else value


def _normal_field(key: str, value: Any, ids: dict[str, str]) -> Any:
    if key in _TIMES:
        return type(value).__name__
    if key in _UNORDERED:
        return sorted(value)
    if key == "prompt" and isinstance(value, list) and len(value) == 5:
        # The first item is the prompt's number, which depends on earlier runs.
        return ["number", *normal(value[1:4], ids), sorted(value[4])]
    if key.startswith("queue_") and isinstance(value, list):
        return [_normal_field("prompt", entry, ids) for entry in value]
    return normal(value, ids)


def with_ids(text: str, ids: Mapping[str, str]) -> str:
    for theirs, ours in ids.items():
        text = text.replace(theirs, ours)
    return text


async def replay(
    recorded: dict[str, Any],
    client: Client,
    listener: Listener,
    *,
    before: Mapping[str, Step] | None = None,
    in_order: bool = True,
) -> None:
    """Send the recorded requests and compare the answers; `before` has steps to run before a "METHOD /path"."""
    theirs = {recorded["client_id"]: "CLIENT", "/comfyui": "BASE"}
    ours = {listener.client_id: "CLIENT", str(client.simulator.folder): "BASE"}
    current: dict[str, str] = {}
    for exchange in recorded["http"]:
        method, path = exchange["method"], with_ids(exchange["path"], current)
        request = json.loads(with_ids(json.dumps(exchange.get("request")), current))
        if isinstance(request, dict) and "client_id" in request:
            request["client_id"] = listener.client_id
        for start, step in (before or {}).items():
            if f"{method} {exchange['path']}".startswith(start):
                await step(listener)
        if path.startswith("/history/") and exchange["response"]:
            await listener.wait_for_end(path.removeprefix("/history/"))
        response = await client.http.request(method, path, json=request)
        assert response.status_code == exchange["status"], (path, response.text)
        if exchange["content_type"]:
            assert response.headers["content-type"] == exchange["content_type"]
        if path == "/prompt" and response.status_code == 200:
            theirs[exchange["response"]["prompt_id"]] = f"PROMPT {len(current)}"
            ours[response.json()["prompt_id"]] = f"PROMPT {len(current)}"
            current[exchange["response"]["prompt_id"]] = response.json()["prompt_id"]
        if isinstance(exchange["response"], dict):
            assert normal(response.json(), ours) == normal(exchange["response"], theirs)
    got = [[message["type"], normal(message["data"], ours)] for message in listener.messages]
    wanted = [[message["type"], normal(message["data"], theirs)] for message in recorded["ws"]]
    if not in_order:
        # "status" is broadcast when the queue changes, so it may come between any other messages; the sort is stable
        for messages in (got, wanted):
            messages.sort(key=lambda message: message[0] == "status")
    assert got == wanted

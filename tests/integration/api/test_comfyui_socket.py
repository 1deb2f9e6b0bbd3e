"""The WebSocket of ComfyUI's API, with a real client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from comfyrelay.simulator.misbehaviour import Slow
from tests.support.comfyui_site import MODELS, ComfyuiSite, Events, open_site
from tests.support.graphs import five_images, invert
from tests.support.provider_contract import until
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def site(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[ComfyuiSite]:
    async with open_site(backend, storage_url, tmp_path, models=MODELS[:1]) as site:
        yield site


async def test_events_of_a_prompt_are_in_order(site: ComfyuiSite) -> None:
    async with site.client.socket("me") as events:
        kind, status = await events.next()
        assert (kind, status["sid"]) == ("status", "me")
        assert status["status"]["exec_info"]["queue_remaining"] == 0
        prompt_id = await site.client.prompt(five_images(), client_id="me")
        found = await events.until_done(prompt_id)
    kinds = [kind for kind, _ in found if kind != "status"]
    assert kinds[:2] == ["execution_start", "execution_cached"]
    assert kinds[-2:] == ["execution_success", "executing"]
    executed = {data["node"]: data["output"] for kind, data in found if kind == "executed"}
    assert {node: len(output["images"]) for node, output in executed.items()} == {"3": 4, "5": 1}
    assert all(data["prompt_id"] == prompt_id for kind, data in found if kind != "status")
    # the history is readable before the end
    assert prompt_id in await site.client.get(f"/history/{prompt_id}")


async def test_progress_and_previews_are_sent(site: ComfyuiSite) -> None:
    site.simulators[0].misbehave(Slow(class_type="ImageInvert", seconds=60, steps=600, previews=True))
    async with site.client.socket("me", path="/api/ws") as events:
        await events.connection.send(json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}}))
        prompt_id = await site.client.prompt(invert(), client_id="me")
        seen: dict[str, Any] = {}
        while not {"feature_flags", "executing", "progress", "progress_state", "binary"} <= seen.keys():
            kind, data = await events.next()
            seen[kind] = data
        assert seen["feature_flags"]["assets"] is False
        assert seen["executing"]["node"] == "2"
        assert seen["progress"]["prompt_id"] == prompt_id
        assert 0 <= seen["progress"]["value"] <= seen["progress"]["max"] == 600
        assert seen["progress_state"]["nodes"]["2"]["state"] == "running"
        preview: bytes = seen["binary"]
        assert int.from_bytes(preview[:4], "big") == 4
        length = int.from_bytes(preview[4:8], "big")
        assert json.loads(preview[8 : 8 + length])["prompt_id"] == prompt_id
        assert preview[8 + length :].startswith(b"\xff\xd8")
        await site.client.post("/interrupt", {"prompt_id": prompt_id})
        found = await events.until_done(prompt_id)
    assert "execution_interrupted" in [kind for kind, _ in found]


async def test_events_of_other_clients_are_not_sent(site: ComfyuiSite) -> None:
    bob = await site.new_client("bob@example.com")
    async with site.client.socket("me") as mine, site.client.socket("else") as other, bob.socket("me") as foreign:
        prompt_id = await site.client.prompt(invert(), client_id="me")
        await mine.until_done(prompt_id)
        last = await bob.prompt(invert(9), client_id="me")
        found = await foreign.until_done(last)
        assert prompt_id not in str(found)
        own = await site.client.prompt(invert(11), client_id="else")
        assert prompt_id not in str(await other.until_done(own))


async def test_socket_that_connects_during_a_run_gets_its_remaining_events(site: ComfyuiSite) -> None:
    slow = site.simulators[0].misbehave(Slow(class_type="ImageInvert", seconds=60, steps=600))
    prompt_id = await site.client.prompt(invert(), client_id="me")
    await site.client.until_running(1)
    async with site.client.socket("me") as events:
        while (await events.next())[0] != "execution_start":
            pass
        slow.end()
        await site.client.post("/interrupt", {})
        await events.until_done(prompt_id)


async def test_new_socket_replaces_the_clients_old_socket(site: ComfyuiSite) -> None:
    async with site.client.socket("me") as old, site.client.socket("me") as new:
        assert (await _closing_code(old.connection)) == 1000
        prompt_id = await site.client.prompt(invert(), client_id="me")
        await new.until_done(prompt_id)


async def test_closed_sockets_are_no_longer_counted(site: ComfyuiSite) -> None:
    limits = site.limits
    await site.client.http.aclose()
    await until(_is(lambda: limits._connections == 0))
    headers = {"Authorization": site.client.http.headers["Authorization"]}
    async with AsyncExitStack() as stack:
        for number in range(20):
            url = f"{site.url.replace('http', 'ws')}/ws?clientId={number}"
            socket = await stack.enter_async_context(connect(url, additional_headers=headers))
            await Events(socket).next()
        assert limits._connections == 20
    await until(_is(lambda: limits._connections == 0))
    assert not limits._holders._connections
    assert not limits._idle


async def test_sockets_of_foreign_pages_and_anonymous_callers_are_refused(site: ComfyuiSite) -> None:
    url = f"{site.url.replace('http', 'ws')}/ws"
    headers = {"Authorization": site.client.http.headers["Authorization"]}
    for status, options in (
        (401, {}),
        (401, {"additional_headers": {"Authorization": "Bearer wrong"}}),
        (403, {"additional_headers": headers, "origin": "http://evil.example"}),
    ):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, **options)
        assert refused.value.response.status_code == status
    # large messages are refused, too
    async with connect(url, additional_headers=headers) as socket:
        await socket.send("x" * 100_000)
        assert (await _closing_code(socket)) == 1009


async def test_revoked_token_closes_its_socket(site: ComfyuiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comfyrelay.server.comfyui_api.socket.CHECK_SECONDS", 0.1)
    assert site.client.user is not None
    assert site.client.user.user is not None
    async with site.client.socket("me") as events:
        await events.next()
        await site.api.engine.accounts.sign_in.revoke_all(site.client.user.user)
        site.api.context.forget_user(site.client.user.user)
        assert (await _closing_code(events.connection)) == 1008


async def _closing_code(connection: ClientConnection) -> int | None:
    """Read until the server closes the connection, and return its code."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with suppress(ConnectionClosedError):
            async for _ in connection:
                pass
        await connection.wait_closed()
    return connection.close_code


def _is(condition: Any) -> Any:
    async def check() -> bool:
        return bool(condition())

    return check

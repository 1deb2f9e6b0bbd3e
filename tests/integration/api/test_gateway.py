"""`comfyrelay gateway`: programs on this machine use ComfyUI's API without a token."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from comfyrelay.errors import ConfigurationError, ControlPlaneUnreachable, Unauthorized
from comfyrelay.gateway import Gateway
from comfyrelay.simulator import Simulator
from tests.support.api_calls import png
from tests.support.comfyui_site import Client, ComfyuiSite, open_site, working
from tests.support.graphs import invert
from tests.support.server_processes import free_port
from tests.support.world import PostgresBackend, SqliteBackend


@pytest.fixture
async def site(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[ComfyuiSite]:
    async with open_site(backend, storage_url, tmp_path, models=()) as site:
        yield site


@pytest.fixture
async def gateway(site: ComfyuiSite) -> AsyncIterator[Gateway]:
    token = site.client.http.headers["Authorization"].removeprefix("Bearer ")
    async with Gateway(site.url, token=token, port=0) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    """Yield a client without a valid token."""
    # the socket of a `Client` sends this header, which the gateway replaces
    async with httpx.AsyncClient(base_url=gateway.url, headers={"Authorization": "Bearer wrong"}) as http:
        yield Client(http)


async def test_graph_runs_without_a_token(site: ComfyuiSite, client: Client, tmp_path: Path) -> None:
    uploaded = await client.upload("cat.png", png())
    graph = {"1": {"class_type": "LoadImage", "inputs": {"image": uploaded["name"]}}, "2": invert()["3"]}
    graph["2"]["inputs"]["images"] = ["1", 0]
    async with (
        Simulator() as simulator,
        client.socket("me") as events,
        working(site.public_url, tmp_path / "gpu", simulator, name="gpu-1"),
    ):
        prompt_id = await client.prompt(graph, client_id="me")
        kinds = [kind for kind, _ in await events.until_done(prompt_id)]
    assert kinds[0] == "status"
    assert "execution_success" in kinds
    [image] = (await client.ended(prompt_id))["outputs"]["2"]["images"]
    whole = await client.http.get("/view", params=image)
    assert whole.content.startswith(b"\x89PNG")
    part = await client.http.get("/view", params=image, headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")


async def test_paths_bodies_and_statuses_pass_unchanged(client: Client) -> None:
    saved = await client.http.post("/userdata/workflows%2Fa b.json?full_info=true", content=b'{"nodes": []}')
    assert saved.json()["path"] == "workflows/a b.json"
    assert (await client.http.get("/userdata/workflows%2Fa b.json")).json() == {"nodes": []}
    assert (await client.http.delete("/userdata/workflows%2Fa b.json")).status_code == 204
    assert (await client.http.get("/userdata/workflows%2Fa b.json")).status_code == 404
    refused = await client.post("/prompt", {"prompt": {}})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "prompt_no_outputs")


async def test_other_hosts_and_pages_are_refused(site: ComfyuiSite, gateway: Gateway) -> None:
    for headers in foreign_headers(gateway.url.rpartition(":")[2]):
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers) as http:
            for method, path in (("GET", "/queue"), ("POST", "/prompt"), ("GET", "/ws")):
                body = {"prompt": invert()} if method == "POST" else None
                assert (await http.request(method, path, json=body)).status_code == 403, (headers, path)
        if "Host" not in headers:
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"{gateway.url.replace('http', 'ws')}/ws", additional_headers=headers):
                    pass
            assert refused.value.response.status_code == 403, headers
    assert await site.client.get("/queue") == {"queue_running": [], "queue_pending": []}


async def test_absolute_targets_are_refused(gateway: Gateway) -> None:
    # appended to the server's URL, an absolute target would name another host
    port = int(gateway.url.rpartition(":")[2])
    for target in (f"{gateway.url}/queue", "http://evil.example/queue"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        assert b" 400 " in await reader.readline(), target
        writer.close()


def foreign_headers(port: str) -> list[dict[str, str]]:
    return [
        *({"Host": host} for host in ("evil.example", f"evil.example:{port}", "127.0.0.1")),
        *({"Origin": origin} for origin in ("http://evil.example", "http://localhost:1", "null")),
        *({"Sec-Fetch-Site": place} for place in ("cross-site", "same-site")),
    ]


async def test_own_pages_are_accepted(client: Client, gateway: Gateway) -> None:
    headers = {"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
    assert (await client.http.get("/queue", headers=headers)).status_code == 200
    named = {"Host": gateway.url.replace("http://127.0.0.1", "localhost")}
    assert (await client.http.get("/queue", headers=named)).status_code == 200


async def test_end_of_the_server_closes_sockets_and_is_reported(
    backend: SqliteBackend | PostgresBackend, tmp_path: Path
) -> None:
    async with open_site(backend, None, tmp_path, models=()) as site:
        token = site.client.http.headers["Authorization"].removeprefix("Bearer ")
        gateway = await Gateway(site.url, token=token, port=0).__aenter__()
        connection = await connect(f"{gateway.url.replace('http', 'ws')}/ws")
        await connection.recv()
    try:
        async with asyncio.timeout(10):
            await connection.wait_closed()
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            response = await http.get("/queue")
        assert (response.status_code, response.json()["error"]["type"]) == (502, "server_unreachable")
    finally:
        await gateway.__aexit__()


async def test_gateway_does_not_start_without_a_usable_server(site: ComfyuiSite) -> None:
    with pytest.raises(Unauthorized, match="COMFYRELAY_TOKEN"):
        await Gateway(site.url, token="crt_wrong", port=0).__aenter__()
    with pytest.raises(ControlPlaneUnreachable, match="No server answers"):
        await Gateway(f"http://127.0.0.1:{free_port()}", token="crt_x", port=0).__aenter__()
    with pytest.raises(ConfigurationError, match="COMFYRELAY_COMFYUI_API_PORT"):
        await Gateway(site.public_url, token="crt_x", port=0).__aenter__()
    for url in ("ftp://relay.example", "http://", "http://user:secret@relay.example"):
        with pytest.raises(ConfigurationError, match="not the address") as refused:
            Gateway(url, token="crt_x", port=0)
        assert "secret" not in str(refused.value)

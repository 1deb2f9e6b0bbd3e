"""`comfyrelay server` serves ComfyUI's API on its port, and stops although WebSockets are open."""

import signal
from pathlib import Path

import httpx
import pytest

from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.simulator import Simulator
from tests.support.api import FLEET_SECRET, PASSWORD
from tests.support.comfyui_site import Client, working
from tests.support.graphs import invert
from tests.support.server_processes import free_port, server_process


@pytest.mark.journey
async def test_script_runs_a_graph_through_a_server_process(tmp_path: Path) -> None:
    port, token = free_port(), await _token(tmp_path)
    settings = {
        "DATA_DIR": str(tmp_path),
        "COMFYUI_API_PORT": str(port),
        "DEFAULT_FLEET": "home",
        "OWN_WORKFLOWS": "everyone",
        "OWN_WORKFLOW_TOKENS_PER_SECOND": "0",
        "FLEET_SECRETS": f'{{"production": ["{FLEET_SECRET}"]}}',
    }
    http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"})
    async with server_process(settings) as server, Simulator() as simulator, http:
        client = Client(http)
        async with client.socket("me") as events:
            async with working(server.url, tmp_path / "gpu", simulator, name="gpu-1"):
                prompt_id = await client.prompt(invert(), client_id="me")
                found = await events.until_done(prompt_id)
                [image] = (await client.ended(prompt_id))["outputs"]["3"]["images"]
                assert (await client.http.get("/view", params=image)).content.startswith(b"\x89PNG")
            assert "execution_success" in [kind for kind, _ in found]
            server.process.send_signal(signal.SIGTERM)
            await events.connection.wait_closed()
        assert await server.process.wait() == 0


async def _token(folder: Path) -> str:
    async with Engine(Settings(data_dir=folder, default_fleet="home")) as engine:
        await engine.databases.upgrade()
        await engine.workers.fleets.create(slug="home", workflow_slugs=[])
        user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD)
        await engine.accounts.ledger.credit(user.tenant_id, 100, reference="test")
        return (await engine.accounts.sign_in.issue(user, name="test")).secret

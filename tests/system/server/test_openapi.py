"""The OpenAPI document is correct: no request gets a 5xx response, and every response is documented."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import httpx
import pytest

from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support.api import FLEET_SECRET, PASSWORD
from tests.support.full import full_only
from tests.support.server_processes import server_process
from tests.support.world import PATIENCE_SECONDS

FLEET = "home"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.parametrize(
    ("caller", "examples"), [("administrator", 1), *full_only(("administrator", 10), ("user", 5), ("worker", 5))]
)
async def test_every_response_matches_the_documentation(tmp_path: Path, caller: str, examples: int) -> None:
    phases = "examples,coverage,fuzzing,stateful" if examples > 1 else "examples,fuzzing"
    settings = {
        "DATA_DIR": str(tmp_path),
        "RATE_LIMIT_PER_MINUTE": "1000000",
        "WEBHOOK_ALLOW_PRIVATE": "true",
        "FLEET_SECRETS": json.dumps({"production": [FLEET_SECRET]}),
    }
    token = await _user(tmp_path, is_admin=caller == "administrator")
    async with server_process(settings) as server:
        if caller == "worker":
            token = await _worker(server.url)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, headers=headers) as http:
            # built once; Schemathesis waits at most ten seconds for it
            assert (await http.get(f"{server.url}/openapi.json")).status_code == 200
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {token}"),
            *("--checks", CHECKS, "--phases", phases, "--max-examples", str(examples)),
            *("--generation-deterministic", "--no-color", "--max-failures", "20"),
            # one is a long poll, the other would end the test's session
            *("--exclude-path-regex", r"/events$|/logout$"),
            stdout=PIPE,
            stderr=STDOUT,
            cwd=tmp_path,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[:20000]


async def _user(folder: Path, *, is_admin: bool) -> str:
    async with Engine(Settings(data_dir=folder)) as engine:
        await engine.databases.upgrade()
        await engine.workers.fleets.create(slug=FLEET, workflow_slugs=[])
        user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD, is_admin=is_admin)
        return (await engine.accounts.sign_in.issue(user, name="test")).secret


async def _worker(url: str) -> str:
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, headers={"X-Fleet-Secret": FLEET_SECRET}) as http:
        answer = await http.post(f"{url}/api/worker/register", json={"worker_id": "gpu-1", "fleet_slug": FLEET})
        token: str = answer.json()["data"]["token"]
        return token

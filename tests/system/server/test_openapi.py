"""The OpenAPI document is correct: no request gets a 5xx response, and every response is documented."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import pass_for
from tests.support.api import FLEET_SECRET, PASSWORD
from tests.support.desk import make_desk, open_desk
from tests.support.full import full_only
from tests.support.schemathesis_runs import check_responses
from tests.support.server_processes import server_process
from tests.support.world import PATIENCE_SECONDS

FLEET = "home"
# These routes are long polls, end the session of the test, or write to the disk or the settings of this machine.
SKIPPED = r"/events$|/poll$|/logout$|^/api/desk/(folders|settings|password|notifications)|^/api/desk/.*copy$"
# The routes that only this caller may use; the administrator and the user call the others.
PARTS = {"worker": "^/api/worker", "owner": "^/api/desk"}


@pytest.mark.parametrize(
    ("caller", "examples"),
    [("administrator", 1), *full_only(("administrator", 10), ("user", 5), ("worker", 5), ("owner", 5))],
)
async def test_every_response_matches_the_documentation(tmp_path: Path, caller: str, examples: int) -> None:
    phases = "examples,coverage,fuzzing,stateful" if examples > 1 else "examples,fuzzing"
    schema = tmp_path / "openapi.json"
    async with _desk(tmp_path) if caller == "owner" else _server(tmp_path, caller) as site:
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as http:
            # Only users may read this.
            found = await http.get(f"{site.url}/openapi.json", headers={"Authorization": f"Bearer {site.reader}"})
            schema.write_bytes(found.raise_for_status().content)
        await check_responses(
            schema,
            site.url,
            site.token,
            phases=phases,
            examples=examples,
            skipped=SKIPPED,
            only=PARTS.get(caller, ""),
        )


class _Site(NamedTuple):
    """A running server; `reader` is a user's token, and `token` is the caller's."""

    url: str
    reader: str
    token: str


@asynccontextmanager
async def _server(folder: Path, caller: str) -> AsyncIterator[_Site]:
    settings = {
        "DATA_DIR": str(folder),
        "RATE_LIMIT_PER_MINUTE": "1000000",
        "WEBHOOK_ALLOW_PRIVATE": "true",
        "DEFAULT_FLEET": FLEET,
        "FLEET_SECRETS": json.dumps({"production": [FLEET_SECRET]}),
    }
    token = await _user(folder, is_admin=caller == "administrator")
    async with server_process(settings) as server:
        yield _Site(server.url, token, await _worker(server.url) if caller == "worker" else token)


@asynccontextmanager
async def _desk(folder: Path) -> AsyncIterator[_Site]:
    async with open_desk(make_desk(folder / "desk")) as desk:
        found = pass_for(desk.ready.url)
        assert found is not None
        yield _Site(desk.ready.url, found.secret, found.secret)


async def _user(folder: Path, *, is_admin: bool) -> str:
    async with Engine(Settings(data_dir=folder)) as engine:
        await engine.databases.upgrade()
        await engine.workers.fleets.create(slug=FLEET, workflow_slugs=[])
        user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD, is_admin=is_admin)
        return (await engine.accounts.sign_in.issue(user, name="test")).secret


async def _worker(url: str) -> str:
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, headers={"X-Fleet-Secret": FLEET_SECRET}) as http:
        answer = await http.post(f"{url}/api/worker/register", json={"worker_id": "gpu-1", "fleet_slug": FLEET})
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["data"]["token"]
        return token

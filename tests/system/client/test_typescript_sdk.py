"""Every documented call of Comfy Org's unmodified TypeScript SDK from npm works."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.simulator import Simulator
from comfyrelay.simulator.misbehaviour import Fail, Slow
from tests.support.api_calls import png
from tests.support.comfy_site import open_comfy_site, working
from tests.support.npm import install
from tests.support.storage import BUCKET

SDK = "@comfyorg/sdk@0.1.9"
SCRIPT = Path(__file__).parent / "comfy_sdk.mjs"
# Documented exceptions: keys of partner nodes are set on the workers.
REFUSED = {"apiKey of partner nodes": "extra_data"}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the installed package."""
    return install(SDK, tmp_path_factory.mktemp("sdk"))


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_every_documented_call_works(
    sdk: Path, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The server uses PostgreSQL and S3, and the ComfyUI of a second worker has fewer nodes."""
    storage_url = None
    if database == "postgresql":
        request.getfixturevalue("aws")
        storage_url = f"s3://{BUCKET}/typescript"
    backend = request.getfixturevalue("sqlite_backend" if database == "sqlite" else "real_postgres_backend")
    (tmp_path / "photo.png").write_bytes(png("red"))
    options: dict[str, Any] = {
        "storage_url": storage_url,
        "webhook_allow_private": True,
        "max_active_jobs_per_user": 20,
    }
    async with open_comfy_site(backend, tmp_path, **options) as site, Simulator(version="0.7.0") as older:
        for simulator in (site.simulator, older):
            simulator.misbehave(Slow(class_type="ImageScale", seconds=600, steps=6000))
            simulator.misbehave(Fail(class_type="ImageCrop"))
        environ = {**os.environ, "COMFY_BASE_URL": site.url, "COMFY_API_KEY": site.token}
        async with working(site.url, tmp_path / "older", older, worker_id="gpu-2"):
            process = await asyncio.create_subprocess_exec(
                *("node", SCRIPT, sdk, tmp_path / "photo.png"), env=environ, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
        for simulator in (site.simulator, older):
            assert simulator.log.count("POST", "/prompt") > 0
    found = json.loads(out)
    for name, words in REFUSED.items():
        assert words in found.pop(name)
    assert {name: problem for name, problem in found.items() if problem is not None} == {}
    assert len(found) > 20

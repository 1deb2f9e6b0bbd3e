"""A server whose disk is full answers 503 and recovers."""

import asyncio
import json
import os
import resource
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from comfyrelay.domain.queue.customer_texts import OUT_OF_SERVICE
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support.api import PASSWORD, SECRETS, problem_of
from tests.support.server_processes import server_process
from tests.support.small_disk import SmallDisk

pytestmark = pytest.mark.both_databases


SECRET = "whsec_"


async def test_full_disk_causes_503_until_space_is_free_and_logs_no_secret(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    async with Engine(settings, signing_secrets=SECRETS.signing) as engine:
        await engine.databases.upgrade()
        user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD)
        secret = (await engine.accounts.sign_in.issue(user, name="test")).secret
    async with server_process({"DATA_DIR": str(tmp_path)}) as server:

        async def rotate() -> Any:
            return await server.http.put(
                "/api/webhook", json={"rotate_secret": True}, headers={"Authorization": f"Bearer {secret}"}
            )

        assert (await rotate()).is_success
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        # writes append to a file, which now cannot grow
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (64 * 1024, hard))
        answers = [await rotate() for _ in range(40)]
        problem = problem_of(answers[-1], 503)
        assert problem["type"].endswith("not_writable")
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert "disk is full" in problem_of(await server.http.get("/readyz"), 503)["errors"]["main"]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert (await rotate()).is_success
        assert SECRET not in server.log()


@asynccontextmanager
async def small_databases(postgres_url: str) -> AsyncIterator[tuple[SmallDisk, str, str]]:
    """Yield a small disk, a central database elsewhere, and a shard on that disk."""
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    with tempfile.TemporaryDirectory(prefix="comfyrelay-tests-") as folder:
        # if root runs the tests, the server belongs to another user
        Path(folder).chmod(0o755)
        place = Path(folder) / "disk"
        place.mkdir()
        disk = SmallDisk(place, size_bytes=64 * 1024**2)
        if not disk.mount():
            await connection.close()
            pytest.skip("nothing can be mounted here, so no disk can be filled")
        owner = Path(await connection.fetchval("SHOW data_directory")).stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        try:
            await connection.execute(f"CREATE TABLESPACE small_disk LOCATION '{place}'")
            await connection.execute("CREATE DATABASE small_central")
            await connection.execute("CREATE DATABASE small_shard TABLESPACE small_disk")
            yield disk, postgres_url.format("small_central"), postgres_url.format("small_shard")
        finally:
            disk.make_room()
            try:
                await connection.execute("DROP DATABASE IF EXISTS small_central WITH (FORCE)")
                await connection.execute("DROP DATABASE IF EXISTS small_shard WITH (FORCE)")
                await connection.execute("DROP TABLESPACE IF EXISTS small_disk")
                await connection.close()
            finally:
                disk.unmount()


async def test_full_postgresql_disk_causes_503_until_space_is_free(tmp_path: Path, postgres_url: str) -> None:
    async with small_databases(postgres_url) as (disk, central, shard):
        settings = Settings(data_dir=tmp_path, database_url=central, shards={"main": shard})
        async with Engine(settings, signing_secrets=SECRETS.signing) as engine:
            await engine.databases.upgrade()
            user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD)
            secret = (await engine.accounts.sign_in.issue(user, name="test")).secret
        environment = {
            "DATA_DIR": str(tmp_path),
            "DATABASE_URL": central,
            "SHARDS": json.dumps({"main": shard}),
            "RATE_LIMIT_PER_MINUTE": "100000",
        }
        async with server_process(environment) as server:
            server.http.headers["Authorization"] = f"Bearer {secret}"

            async def upload() -> Any:
                upload = {"mime_type": "image/png", "size": 100, "original_filename": "cat.png"}
                return await server.http.post("/api/videos/uploads", json=upload)

            assert (await upload()).is_success
            disk.fill()
            # existing pages have free space
            answers = [await upload()]
            while answers[-1].is_success and len(answers) < 1000:
                answers.append(await upload())
            problem = problem_of(answers[-1], 503)
            assert problem["type"].endswith("not_writable")
            assert problem["detail"] == OUT_OF_SERVICE
            assert "disk is full" in problem_of(await server.http.get("/readyz"), 503)["errors"]["main"]
            assert (await server.http.get("/api/webhook")).is_success
            disk.make_room()
            assert (await upload()).is_success
            async with asyncio.timeout(60):
                # readiness is checked periodically
                while not (await server.http.get("/readyz")).is_success:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

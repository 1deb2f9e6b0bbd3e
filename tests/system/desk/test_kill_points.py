"""A desk killed at any side effect outside its databases loses, repeats and leaves behind nothing."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from _pytest.mark import ParameterSet

from comfyrelay.clock import utc_now
from comfyrelay.errors import ComfyRelayError, NotFound
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.simulator import Simulator
from comfyrelay.system.atomic import PART_PREFIX
from tests.support.desk_owner import owner_http
from tests.support.forked_commands import SKEW_VARIABLE
from tests.support.full import full_only
from tests.support.graphs import PNG, invert_file
from tests.support.kill_points import KillPoint
from tests.support.side_effects import (
    DESK_KILL_POINTS,
    MESSAGE_KILL_POINTS,
    SCRIPT_KILL_POINTS,
    UPLOAD_KILL_POINTS,
)
from tests.support.stored_objects import stored_and_known_paths
from tests.support.webhook_receiver import open_receiver
from tests.system.desk.test_killed import DeskProcess

T = TypeVar("T")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kill points need the fork server")

DAY_SECONDS = 86400
# Longer than the pauses of background loops.
REACHED_SECONDS = 30.0


class KilledDesk(DeskProcess):
    """A desk that is killed once and restarted when a step needs it."""

    is_new = True

    def __init__(
        self, folder: Path, simulator: Simulator, point: KillPoint, *, down_seconds: float, config: Path | None = None
    ) -> None:
        folders = str(simulator.folder)
        super().__init__(folder, simulator, config=config, interrupted_jobs="requeue", comfyui_folders=folders)
        # The receiver of messages runs on this machine.
        self.service.environment["COMFYRELAY_WEBHOOK_ALLOW_PRIVATE"] = "true"
        self.was_killed = False
        self._after_kill = {**self.service.environment, SKEW_VARIABLE: str(down_seconds)}
        self.service.environment.update(point.environment)

    async def do(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step if the desk was killed during it."""
        while True:
            try:
                return await step()
            except (ComfyRelayError, httpx.TransportError):
                if self.was_killed:
                    raise
                await self.start_again()

    async def start_again(self) -> None:
        async with asyncio.timeout(REACHED_SECONDS):
            assert await self.service.ended() == -signal.SIGKILL, self.service.text()[-4000:]
        self.was_killed = True
        self.service.environment = self._after_kill
        await self.start()

    async def stop(self) -> None:
        self.service.send(signal.SIGTERM)
        assert await self.service.ended() == 0, self.service.text()[-4000:]

    async def completed(self, **options: object) -> str:
        """Submit a job and wait for its end; return its id."""

        job = await self.do(lambda: self.client.submit(**options))  # type: ignore[arg-type]
        await self.ended(job.id)
        return job.id

    async def ended(self, job_id: str) -> None:
        await self.do(lambda: self._ended(job_id))

    async def post(self, path: str, body: object = None) -> None:
        async def post() -> None:
            async with owner_http(self.client.url) as http:
                answer = await http.post(path, json=body)
                assert answer.is_success, answer.text

        await self.do(post)

    async def prepare(self, picture: Path) -> dict[str, str]:
        """Upload an input and add a workflow; return the fields of a submission."""
        file_id = await self.do(lambda: self.client.upload(picture))
        added = await self.do(lambda: self.client.add_graph(invert_file(), name="mine"))
        return {"workflow_slug": added.data.slug, "input_file_id": file_id}

    async def _ended(self, job_id: str) -> None:
        async with asyncio.timeout(60):
            # a stream of events would end silently with the desk
            while (job := await self.client.job(job_id)).status in ("queued", "processing"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert job.status == "completed", job.error

    async def output_id(self, job_id: str) -> str:
        async def find() -> str:
            async with owner_http(self.client.url) as http:
                found = (await http.get("/api/gallery")).json()["data"]["items"]
            [id_] = [item["id"] for item in found if item["job_id"] == job_id]
            return str(id_)

        return await self.do(find)

    async def delete(self, job_id: str) -> None:
        async def delete() -> None:
            try:
                await self.client.delete_job(job_id)
            except NotFound:
                assert self.was_killed

        await self.do(delete)


@asynccontextmanager
async def killed_desk(
    folder: Path, simulator: Simulator, point: KillPoint, down: float, *, config: Path | None = None
) -> AsyncIterator[KilledDesk]:
    desk = KilledDesk(folder, simulator, point, down_seconds=down, config=config)
    try:
        await desk.service.start()
        await desk.do(desk.until_ready)
        yield desk
    finally:
        await desk.client.close()
        await desk.service.kill()


def as_parameter(point: KillPoint) -> ParameterSet:
    """Return the parameter; `make test` runs the kill point that concerns the user's output folder."""
    is_journey = point.function == "desk.batches.output_copies:_put" and point.when == "after"
    return pytest.param(point, id=str(point), marks=[pytest.mark.journey] if is_journey else [])


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def storage_differences(data_dir: Path) -> list[str]:
    """Return objects without a row and rows without an object, after retention."""
    async with Engine(Settings(data_dir=data_dir), clock=lambda: utc_now() + timedelta(days=3)) as engine:
        await engine.operations.retention.run_once(grace_seconds=0)
        await engine.jobs.removal.run_once(grace_seconds=0)
        await engine.objects.sweep(older_than_seconds=0)  # type: ignore[attr-defined]
        stored, rows = await stored_and_known_paths(engine)
    return sorted(stored ^ rows)


@pytest.mark.parametrize("down", [0, *full_only(DAY_SECONDS)])
@pytest.mark.parametrize("point", [*map(as_parameter, DESK_KILL_POINTS)])
async def test_killed_desk_loses_repeats_and_leaves_nothing(tmp_path: Path, point: KillPoint, down: float) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    async with Simulator() as simulator:
        before = files_in(simulator.folder)
        async with killed_desk(tmp_path, simulator, point, down) as desk:
            job = await desk.prepare(picture)
            # the content of inputs is compared only if a job requests it
            first = await desk.completed(**job, idempotency_key="first", label="first", reuse=True)
            output = await desk.output_id(first)
            await desk.post("/api/desk/gallery/copy", {"ids": [output], "folder": "picks"})
            second = await desk.completed(**job, idempotency_key="second", label="second", reuse=True)
            await desk.delete(first)
            if not desk.was_killed:
                # wait until a background loop reaches the kill point
                await desk.start_again()
            [remaining] = [job async for job in desk.client.jobs()]
            assert (remaining.id, remaining.reused_from) == (second, first)
            await desk.agrees()
            await desk.stop()
        assert files_in(simulator.folder) == before
    data_dir = tmp_path / "data"
    own, picked = sorted(files_in(data_dir / "outputs"))
    assert own == f"0001_second-{second[-8:]}.png"
    assert picked == "picks/first.png"
    assert files_in(data_dir / "copies") == set()
    for folder in ("held", "left", "work"):
        assert files_in(data_dir / "worker" / "desk" / folder) == set()
    assert await storage_differences(data_dir) == []
    assert list(data_dir.rglob(f"{PART_PREFIX}*")) == []


@pytest.mark.parametrize("point", UPLOAD_KILL_POINTS, ids=str)
async def test_killed_desk_leaves_no_copied_input(tmp_path: Path, point: KillPoint) -> None:
    async with Simulator() as simulator, killed_desk(tmp_path, simulator, point, 0) as desk:
        fields = {"effect_slug": "invert-image", "input_subdir": "examples", "idempotency_key": "once"}
        batch = await desk.do(lambda: desk.client.add_batch(fields))
        [job] = await desk.do(lambda: desk.jobs(batch.id))
        await desk.ended(job.id)
        await desk.post(f"/api/ai-jobs/{job.id}/outputs/1/as-input")
        assert desk.was_killed
        assert [found.id async for found in desk.client.jobs()] == [job.id]
        await desk.stop()
    assert await storage_differences(tmp_path / "data") == []


@pytest.mark.parametrize("point", MESSAGE_KILL_POINTS, ids=str)
async def test_killed_desk_sends_every_message(tmp_path: Path, point: KillPoint) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    # a webhook whose delivery was interrupted is sent again after a minute
    async with open_receiver() as webhooks, open_receiver() as notifications, Simulator() as simulator:
        config = tmp_path / "comfyrelay.toml"
        url = notifications.url.replace("http://", "json://")
        config.write_text(f"[desk]\nnotify_urls = {json.dumps([url])}\nnotify_on = ['completed']\n")
        async with killed_desk(tmp_path, simulator, point, DAY_SECONDS, config=config) as desk:
            job = await desk.prepare(picture)
            await desk.completed(**job, idempotency_key="once", label="cats", webhook_url=webhooks.url)
            if not desk.was_killed:
                await desk.start_again()
            # a message that was sent but not recorded is sent again
            is_unrecorded = point.when == ("before" if point.function.endswith("_record") else "after")
            repeated = 2 if is_unrecorded else 1
            is_webhook = "webhooks" in point.function
            await webhooks.wait_for(repeated if is_webhook else 1)
            await notifications.wait_for(1 if is_webhook else repeated)
        assert len({headers["webhook-id"] for headers, _ in webhooks.received}) == 1
        assert {json.loads(body)["title"] for _, body in notifications.received} == {"cats is done"}


@pytest.mark.parametrize("point", SCRIPT_KILL_POINTS, ids=str)
async def test_killed_desk_runs_a_script_once_with_its_inputs(tmp_path: Path, point: KillPoint) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from pathlib import Path\n"
        "with open('runs', 'a') as runs: runs.write('x')\n"
        f"Path('made.png').write_bytes({PNG!r})\n"
        "print('Saved:', Path('made.png').absolute())\n"
    )
    config = tmp_path / "comfyrelay.toml"
    config.write_text(
        f"[desk.script]\nscript = {json.dumps(str(script))}\nworking_folder = {json.dumps(str(tmp_path))}\n"
        "output_extension = 'png'\n"
    )
    # old files are removed a day later
    async with (
        Simulator() as simulator,
        killed_desk(tmp_path, simulator, point, DAY_SECONDS, config=config) as desk,
    ):
        payload = {"positive": "a cat", "input_subdir": "examples"}
        job_id = await desk.completed(workflow_slug="script", input_payload=payload, idempotency_key="once")
        if not desk.was_killed:
            await desk.start_again()
        assert [found.id async for found in desk.client.jobs()] == [job_id]
        await desk.stop()
    assert (tmp_path / "runs").read_text() == "x"
    assert list(tmp_path.rglob(f"{PART_PREFIX}*")) == []

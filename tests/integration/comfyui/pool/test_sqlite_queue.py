import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.pool import Block, Bucket, JobOutcome, PoolJobStatus, SqliteQueue, StoredJobs
from comfyrelay.comfyui.pool.queues.sqlite import SCHEMA_VERSION
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError, ConfigurationError, Conflict, Fault, InvalidInput, OutOfMemory
from tests.support.pool import NOW, anywhere, ticket


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[SqliteQueue, StoredJobs]]:
    queue = SqliteQueue(path)
    try:
        yield queue, await queue.open()
    finally:
        await queue.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


async def stored(path: Path) -> StoredJobs:
    async with opened(path) as (_, left):
        return left


async def test_waiting_jobs_survive_with_all_fields(path: Path, tmp_path: Path) -> None:
    full = ticket(
        1,
        bucket=Bucket("w", frozenset({"a"}), frozenset({"b", "c"})),
        priority=-3,
        metadata={"user": "ü", "nested": {"list": [1, 2.5, None, True]}},
        include_outputs=("9", "Save"),
        attachments=(
            Attachment(node="1", input="image", source=b"\x00bytes", name="a.png"),
            Attachment(node="2", input="video", source=tmp_path / "clip.mp4", content_hash="ff"),
            Attachment(placeholder="__IMG__", source=b"own", folder="job-1"),
            Attachment(placeholder="__LUT__", source=tmp_path / "lut.png", shared=True),
        ),
        extra_data={"extra_pnginfo": {"workflow": {"ü": [1, None]}}},
        max_attempts=5,
        retry_delay=0.25,
        one_attempt_per_server=True,
        give_up_after_seconds=12.5,
        timeouts=RunTimeouts(queue_seconds=9, node_seconds=None),
        attempts=2,
    )
    async with opened(path) as (queue, _):
        await queue.put(full)
        await queue.put(ticket(2))
    async with opened(path) as (queue, left):
        assert left == StoredJobs(waiting=(full, ticket(2)))
        assert queue.take(anywhere) == ticket(2)
        assert queue.take(anywhere) == full


async def test_queue_of_an_earlier_version_is_read(path: Path) -> None:
    """In earlier versions, tickets had no extra data, and attachments had neither placeholder nor folder."""
    attachment = Attachment(node="1", input="image", source=b"bytes")
    async with opened(path) as (queue, _):
        await queue.put(ticket(1, attachments=(attachment,)))
    with closing(sqlite3.connect(path)) as connection:
        (text,) = connection.execute("SELECT ticket FROM jobs").fetchone()
        older = json.loads(text)
        for name in ("extra_data", "one_attempt_per_server", "give_up_after_seconds"):
            del older[name]
        for name in ("placeholder", "folder", "shared"):
            del older["attachments"][0][name]
        connection.execute("UPDATE jobs SET ticket = ?", (json.dumps(older).encode(),))
        connection.commit()
    assert (await stored(path)).waiting == (ticket(1, attachments=(attachment,)),)


async def test_relative_path_is_stored_as_absolute(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(path) as (queue, _):
        await queue.put(ticket(1, attachments=(Attachment(node="1", input="i", source=Path("a.png")),)))
    (left,) = (await stored(path)).waiting
    assert left.attachments[0].source == tmp_path / "a.png"


async def test_running_job_waits_again_after_a_restart_with_its_attempt_counted(path: Path) -> None:
    async with opened(path) as (queue, _):
        await queue.put(ticket(1))
        found = queue.take(anywhere)
        assert found is not None
        await queue.begin(replace(found, attempts=1))
    async with opened(path) as (queue, left):
        assert [(job.id, job.attempts) for job in left.waiting] == [("job-1", 1)]
        assert len(queue) == 1


async def test_outcomes_survive_a_restart(path: Path) -> None:
    result = RunResult(
        prompt_id="p",
        files=(OutputFile(node_id="9", filename="a.png", subfolder="s", type="temp", key="gifs"),),
        texts={"5": ("one", "two")},
        cached_nodes=frozenset({"1", "2"}),
        seconds=1.5,
    )
    done = JobOutcome(
        status=PoolJobStatus.COMPLETED,
        attempts=2,
        client_id="a",
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=3),
        result=result,
    )
    canceled = JobOutcome(status=PoolJobStatus.CANCELED, attempts=0, finished_at=NOW + timedelta(seconds=4))
    async with opened(path) as (queue, _):
        await queue.put(ticket(1, attachments=(Attachment(node="1", input="i", source=b"bytes"),)))
        await queue.put(ticket(2))
        await queue.settle("job-2", canceled)
        await queue.settle("job-1", done)
    left = await stored(path)
    assert left.waiting == ()
    # Outcomes are in order of completion, without the graphs and files that are no longer needed.
    assert left.finished == (
        (replace(ticket(1), attempts=2, graph=b""), done),
        (replace(ticket(2), graph=b""), canceled),
    )


async def test_errors_survive_a_restart(path: Path) -> None:
    error = OutOfMemory(
        "No memory.", fault=Fault.WORKER, node_id="3", problems=["x"], raw="Traceback", retry_after_seconds=2.0
    )
    async with opened(path) as (queue, _):
        for number, failure in enumerate((error, ComfyError("Odd.", fault=Fault.JOB))):
            await queue.put(ticket(number))
            outcome = JobOutcome(
                status=PoolJobStatus.FAILED, attempts=3, finished_at=NOW + timedelta(seconds=number), error=failure
            )
            await queue.settle(f"job-{number}", outcome)
    first, second = [outcome.error for _, outcome in (await stored(path)).finished]
    assert type(first) is OutOfMemory
    assert vars(first) == vars(error)
    assert type(second) is ComfyError
    assert (second.detail, second.fault) == ("Odd.", Fault.JOB)


async def test_forgotten_jobs_are_deleted(path: Path) -> None:
    async with opened(path) as (queue, _):
        for number in range(3):
            await queue.put(ticket(number, attachments=(Attachment(node="1", input="i", source=b"bytes"),)))
        await queue.forget(["job-0", "job-2"])
    assert [job.id for job in (await stored(path)).waiting] == ["job-1"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT job_id FROM attachments").fetchall() == [("job-1",)]


async def test_concurrent_writes_are_all_stored(path: Path) -> None:
    async with opened(path) as (queue, _):
        await asyncio.gather(*(queue.put(ticket(number)) for number in range(500)))
        assert len(queue) == 500
    assert len((await stored(path)).waiting) == 500


async def test_failed_write_reaches_its_caller_and_the_queue_continues(path: Path) -> None:
    async with opened(path) as (queue, _):
        await queue.put(ticket(1))
        with pytest.raises(sqlite3.IntegrityError):
            await queue.put(ticket(1))
        await queue.put(ticket(2))
        assert len(queue) == 2
    assert len((await stored(path)).waiting) == 2


async def test_second_pool_is_refused_while_the_first_uses_the_file(path: Path) -> None:
    async with opened(path) as (queue, _):
        await queue.put(ticket(1))
        with pytest.raises(Conflict, match="in use by another pool"):
            await stored(path)
        await queue.put(ticket(2))
    assert len((await stored(path)).waiting) == 2


async def test_file_of_a_newer_version_is_refused(path: Path) -> None:
    async with opened(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(ConfigurationError, match="has version 3; this ComfyRelay reads version 2"):
        await stored(path)


async def test_blocks_survive_until_they_are_forgotten(path: Path) -> None:
    blocks = {
        ("a", "w"): Block(failure_count=3, blocked_until=NOW),
        ("a", "v"): Block(failure_count=1),
        ("b", "w"): Block(failure_count=1, blocked_until=NOW),
    }
    async with opened(path) as (queue, _):
        for pair, block in blocks.items():
            await queue.store_block(*pair, Block(failure_count=1))
            await queue.store_block(*pair, block)
    async with opened(path) as (queue, left):
        assert left.blocks == blocks
        await queue.store_block("a", "w", None)
    assert (await stored(path)).blocks.keys() == {("a", "v"), ("b", "w")}


async def test_version_1_file_is_migrated(path: Path) -> None:
    async with opened(path) as (queue, _):
        await queue.put(ticket(1))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE blocks; PRAGMA user_version = 1;")
    async with opened(path) as (queue, left):
        assert left == StoredJobs(waiting=(ticket(1),))
        await queue.store_block("a", "w", Block(failure_count=1))
    assert (await stored(path)).blocks == {("a", "w"): Block(failure_count=1)}


async def test_database_of_another_program_is_refused_and_not_changed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(ConfigurationError, match="another program"):
        await stored(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("bookmarks",)]


async def test_file_that_is_not_a_database_is_refused(path: Path) -> None:
    path.write_text("These are not the bytes of a database. " * 100)
    with pytest.raises(ConfigurationError, match="not a ComfyRelay queue"):
        await stored(path)


async def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unable to open"):
        await stored(tmp_path / "missing" / "queue.db")


@pytest.mark.parametrize("value", [object(), NOW, {1: "x"}, 2**70])
async def test_metadata_that_is_not_json_is_refused(path: Path, value: object) -> None:
    async with opened(path) as (queue, _):
        with pytest.raises(InvalidInput, match="metadata") as caught:
            await queue.put(ticket(1, metadata={"value": value}))
        assert set(caught.value.errors) == {"metadata"}
        assert len(queue) == 0


async def test_any_job_id_is_stored(path: Path) -> None:
    job_id = str(uuid4())
    async with opened(path) as (queue, _):
        await queue.put(replace(ticket(1), id=job_id))
    assert [job.id for job in (await stored(path)).waiting] == [job_id]

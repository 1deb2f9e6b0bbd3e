"""The benchmark of the queue runs: nothing else notices when a change of the services breaks it."""

from pathlib import Path

from bench.cycle import sqlite_rate


async def test_benchmark_completes_every_job(tmp_path: Path) -> None:
    assert await sqlite_rate(tmp_path, jobs=100) > 0

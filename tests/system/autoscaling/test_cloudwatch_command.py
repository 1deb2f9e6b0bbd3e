"""The command that prints and sends fleet metrics."""

import json
import os
from pathlib import Path
from typing import Any

from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support import commands
from tests.support.cloudwatch import METRIC_NAMES, metric_value, metrics_client, moto_url, set_aws_endpoint
from tests.support.world import SqliteBackend

__all__ = ["metrics_client", "moto_url", "set_aws_endpoint"]


async def test_command_prints_or_sends_metrics(
    sqlite_backend: SqliteBackend, tmp_path: Path, metrics_client: Any
) -> None:
    async with sqlite_backend.databases(["main"]) as (central, shards, _):
        settings = Settings(data_dir=tmp_path, database_url=central, shards=shards)
        async with Engine(settings) as engine:
            await engine.workers.fleets.create(slug="home")
        env = {
            **os.environ,
            "COMFYRELAY_DATA_DIR": str(tmp_path),
            "COMFYRELAY_DATABASE_URL": central,
            "COMFYRELAY_SHARDS": json.dumps(shards),
            "COMFYRELAY_CLOUDWATCH_NAMESPACE": "Command",
        }
        printed = await commands.run("fleet", "publish-metrics", "--dry-run", env=env)
        assert {load["MetricName"] for load in json.loads(printed.out)} == METRIC_NAMES - {"JobProcessingP50"}
        assert metrics_client.list_metrics(Namespace="Command")["Metrics"] == []
        sent = await commands.run("fleet", "publish-metrics", "--once", env=env)
        assert (sent.code, sent.err) == (0, "7 metrics sent.\n")
        assert metric_value(metrics_client, "Command", "ActiveWorkers", "home") == 0

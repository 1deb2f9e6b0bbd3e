"""On servers and workers, every log line about a job contains its id."""

import json
from pathlib import Path
from typing import Any

from tests.support.processes import Service
from tests.support.whole_system import System, open_system

OF_A_LEASE = {"/api/worker/heartbeat", "/api/worker/complete"}
IDS = {"request_id", "worker_id", "job_id", "dispatch_id"}


def lines(service: Service) -> list[dict[str, Any]]:
    return [json.loads(line) for line in service.text().splitlines() if line.startswith("{")]


async def run_job(system: System) -> str:
    effect_id = await system.effect()
    await system.started()
    job_id = await system.image(effect_id)
    await system.completed(job_id)
    await system.check()
    return job_id


async def test_log_lines_have_the_ids_of_their_request_and_job(tmp_path: Path) -> None:
    async with open_system(tmp_path, {}) as system:
        job_id = await run_job(system)
        [worker] = system.workers
        requests = [line for line in lines(system.server) if line["event"] == "request"]
        assert all("request_id" in line for line in requests)
        [submitted] = [line for line in requests if (line["method"], line["path"]) == ("POST", "/api/ai-jobs")]
        assert submitted["job_id"] == job_id
        about_leases = [line for line in requests if line["path"] in OF_A_LEASE]
        assert {line["path"] for line in about_leases} >= {"/api/worker/complete"}
        leasing = [line for line in requests if line["path"] == "/api/worker/poll" and "job_id" in line]
        assert leasing
        for line in (*about_leases, *leasing):
            assert line.keys() >= IDS, line
            assert line["job_id"] == job_id
        of_job = [line for line in lines(worker) if line["event"].startswith("worker.job_")]
        assert {line["event"] for line in of_job} >= {"worker.job_leased", "worker.job_started", "worker.job_completed"}
        assert all(line["job_id"] == job_id and "dispatch_id" in line for line in of_job)

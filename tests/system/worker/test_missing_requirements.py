"""If each of two workers lacks a requirement, the server refuses the job and names it, or the job waits."""

import asyncio
from typing import Any

import httpx

from comfyrelay.simulator import Simulator
from tests.support.graphs import invert
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS

RARE = "rare.safetensors"


async def test_job_waits_until_a_worker_has_its_requirements(system: System) -> None:
    # this is not connected to an output, so a worker must only know the node and the model
    graph = {**invert(), "9": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": RARE}}}
    effect = await system.effect("rare", graph, properties=[])
    async with Simulator() as second:
        await system.started("gpu-1")
        await system.started("gpu-2", simulators=[second])
        lacking = {"kind": "model", "name": RARE, "workers": 0, "on": []}
        assert await missing(system, effect, token=system.admin_token) == [{**lacking, "source": None}]
        body = {"effect_id": effect, "idempotency_key": "once"}
        refused = await refusal(system, body, token=system.admin_token)
        assert refused["type"] == "urn:comfyrelay:missing_on_workers"
        assert refused["missing"] == [lacking]
        assert refused["detail"].startswith(
            f"None of the 2 workers meets all requirements: the model {RARE} (on no worker)."
        )
        # Customers do not see the requirements of an effect.
        assert await missing(system, effect, token=system.user_token) == []
        refused = await refusal(system, body, token=system.user_token)
        assert (refused["title"], "missing" in refused) == ("Not available", False)

        job_id = await system.submit(effect, wait_for_missing=True)
        waiting = await system.waiting(job_id)
        assert (waiting["reason"], waiting["text"]) == ("missing", f"Waiting for a worker with the model {RARE}.")
        port, folder = int(second.url.rpartition(":")[2]), second.folder
        await second.stop()
        async with Simulator(port=port, folder=folder, models={"checkpoints": [RARE]}):
            done = await system.until(job_id, "completed")
    assert done["attempts"] == 1
    ran = await system.admin("GET", "/dispatches?worker_id=gpu-2")
    assert len(ran["items"]) == 1


async def missing(system: System, effect: int, *, token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    answer = await system.http.get("/api/missing", params={"effect_id": effect}, headers=headers)
    return answer.json()["data"]["missing"]["items"]


async def refusal(system: System, body: dict[str, Any], *, token: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        headers = {"Authorization": f"Bearer {token}"}
        answer = await system.http.post("/api/ai-jobs", json=body, headers=headers)
    assert answer.status_code == httpx.codes.CONFLICT
    found: dict[str, Any] = answer.json()
    return found

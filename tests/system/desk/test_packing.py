"""With `--per-gpu auto`, the number of ComfyUI processes of a desk follows the load and is shown everywhere."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from comfyrelay.client.labels import JobLabels
from comfyrelay.client.top import take_snapshot
from comfyrelay.domain.packing.state import PackingLimits
from comfyrelay.protocol.user import WorkerSlot
from comfyrelay.simulator.gpu import GIB
from comfyrelay.worker import agent
from comfyrelay.worker.comfyui import packing
from comfyrelay.worker.metrics import WorkerMetrics
from tests.support.comfyui_install import FakeInstall
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.simulated_gpus import picture
from tests.support.world import PATIENCE_SECONDS

# A second process always pays off, independent of the speed of the machine.
ALWAYS = PackingLimits(min_gain=-1.0, max_processes=2, idle_seconds=1.0, turns=1, jobs_per_turn=1)


async def seen(desk: OpenDesk, is_so: Callable[[list[WorkerSlot]], bool]) -> list[WorkerSlot]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so(found := await desk.client.slots()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return found


async def test_process_count_follows_the_queue_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast_reconnect: None
) -> None:
    quick = partial(packing.Packer, limits=ALWAYS, spare_cores=lambda _own: 16.0, loads=dict, check_seconds=0.1)
    monkeypatch.setattr(packing, "Packer", quick)
    metrics = WorkerMetrics()
    monkeypatch.setattr(agent, "WorkerMetrics", lambda: metrics)
    install = FakeInstall(tmp_path / "ComfyUI")
    gpu = {"folder": str(tmp_path / "gpu"), "memory_bytes": 24 * GIB, "context_bytes": GIB, "model_bytes": 2 * GIB}
    install.behave(gpu=gpu, step_seconds=0.7)
    settings = make_desk(
        tmp_path / "desk",
        simulator=False,
        comfyui_dir=install.folder,
        comfyui_python=sys.executable,
        comfyui_args=[],
        per_gpu="auto",
    )
    with capture_logs() as logs:
        async with open_desk(settings) as desk:
            workflow = (await desk.client.create_workflow(picture(0), name="mine", output_node_id="6")).slug
            jobs = [await desk.client.submit(workflow_slug=workflow) for _ in range(4)]
            # there are far more jobs than the worker leases, so only the desk knows the queue length
            adding = asyncio.create_task(keep_adding(desk, workflow))
            slots = await seen(desk, lambda slots: len(slots) == 2)
            slots = await seen(
                desk, lambda slots: all("this is the limit for one GPU" in (slot.packing or "") for slot in slots)
            )
            adding.cancel()
            assert [(slot.server, slot.on_gpu) for slot in slots] == [("comfyui-1", 2), ("comfyui-2", 2)]
            top = await take_snapshot(desk.client, JobLabels(desk.client))
            assert "2 processes: this is the limit" in " ".join(top.gpus)
            now = await desk.client.now()
            assert now is not None
            assert now.worker is not None
            assert now.worker.max_concurrency == 2
            assert await asyncio.to_thread(on_gpu, metrics) == 2
            await asyncio.gather(adding, return_exceptions=True)
            async for job in desk.client.jobs():
                assert (await desk.ended(job.id)).status == "completed"
            assert (await desk.ended(jobs[0].id)).status == "completed"
            [slot] = await seen(desk, lambda slots: len(slots) == 1)
            assert slot.on_gpu == 1
            assert await asyncio.to_thread(on_gpu, metrics) == 1
        assert install.running_pids == []
    changes = [log["change"] for log in logs if log["event"] == "worker.packing" and log["change"] != "nothing"]
    assert changes == ["add", "remove"]
    # starts and stops by the desk cause no warning
    assert [log for log in logs if log["log_level"] in ("warning", "error")] == []


async def keep_adding(desk: OpenDesk, workflow: str) -> None:
    while True:
        now = await desk.client.now()
        if now is not None and now.counts["queued"] < 8:
            await desk.client.submit(workflow_slug=workflow)
        else:
            await asyncio.sleep(0.05)


def on_gpu(metrics: WorkerMetrics) -> float:
    found = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    return next(sample.value for sample in found if sample.name == "comfyrelay_worker_comfyui_on_gpu")

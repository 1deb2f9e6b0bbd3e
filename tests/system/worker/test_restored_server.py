"""If a server is restored from a backup while workers run, they reconnect, and each job is charged once."""

import signal

import pytest

from comfyrelay.simulator import Stuck
from tests.support.processes import run_command
from tests.support.whole_system import COST, TOKENS, System, _prefixed

SETTINGS = {"LEASE_TTL_SECONDS": "5", "WORKER_OFFLINE_SECONDS": "1", "MAX_ATTEMPTS": "50"}


async def command(system: System, *words: str) -> None:
    log = system.folder / "command.log"
    code, text = await run_command(*words, environment=_prefixed(system.settings), log=log)
    assert code == 0, text


@pytest.mark.journey
@pytest.mark.parametrize("settings", [SETTINGS])
async def test_workers_unknown_to_the_backup_reconnect_without_double_charge(
    system: System,
) -> None:
    effect = await system.effect()
    worker = await system.started("gpu-1")
    done = await system.image(effect)
    output = await system.completed(done)
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    running, waiting = [await system.image(effect) for _ in range(2)]
    await system.until_running(prompts=2)
    await command(system, "backup", str(system.folder / "backups"))

    # since the backup, one lease ended, the worker's token changed, and a new worker registered
    stuck.end()
    for job_id in (running, waiting):
        await system.completed(job_id)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    await worker.start()
    await worker.wait_for_log("worker.registered", count=2)
    other = await system.started("gpu-2")
    await system.api.cut()
    await system.server.kill()
    await command(system, "restore", str(system.folder / "backups"), "--force")
    # most backups are older than the longest lease
    await system.expire_lease(running)
    await system.start_server()
    await system.until(running, "queued")
    await system.api.restore()

    await worker.wait_for_log("worker.token_refused")
    await other.wait_for_log("worker.token_refused")
    for job_id in (running, waiting):
        await system.completed(job_id)
    assert await system.completed(done) == output
    await worker.wait_for_log("worker.registered", count=3)
    await other.wait_for_log("worker.registered", count=2)
    assert (await system.user("GET", "/wallet"))["balance"] == TOKENS - 3 * COST

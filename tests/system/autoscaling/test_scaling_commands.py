"""`comfyrelay fleet …` inspects and controls autoscaling in a terminal, through the databases of a server."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from comfyrelay.autoscaling.kubernetes.decision import ReplicaDecisions
from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Fault, ProviderError
from tests.support import commands
from tests.support.memory_provider import Fleets, open_fleets
from tests.support.world import PATIENCE_SECONDS, SqliteBackend, execute, open_world


@pytest.fixture
async def fleets(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Fleets]:
    async with open_world(sqlite_backend, tmp_path) as world:
        yield await open_fleets(world)


@pytest.fixture
def env(fleets: Fleets, tmp_path: Path) -> Mapping[str, str]:
    settings = fleets.world.engine.settings
    return {
        "COMFYRELAY_DATA_DIR": str(tmp_path),
        "COMFYRELAY_DATABASE_URL": settings.central_url,
        "COMFYRELAY_SHARDS": json.dumps(settings.shard_urls),
        "COLUMNS": "200",
    }


async def test_status_and_decisions_list_machines_and_reasons(fleets: Fleets, env: Mapping[str, str]) -> None:
    await fleets.submit()
    await fleets.decide()
    shown = await commands.run("fleet", "status", env=env)
    assert shown.code == 0, shown.err
    assert fleets.fleet in shown.out
    assert "1 booting" in shown.out
    [status] = json.loads((await commands.run("fleet", "status", "--json", env=env)).out)
    assert status["by_state"]["booting"] == 1
    listed = await commands.run("fleet", "decisions", fleets.fleet, env=env)
    assert "1 launched" in listed.out
    [decision] = json.loads((await commands.run("fleet", "decisions", "--json", "--limit", "5", env=env)).out)
    assert (decision["fleet"], decision["outcome"]) == (fleets.fleet, {"launched": 1, "refused": 0})


async def test_decisions_list_the_replicas_requested_from_a_cluster(fleets: Fleets, env: Mapping[str, str]) -> None:
    await fleets.change(machines={"provider": "kubernetes"})
    await fleets.submit()
    await ReplicaDecisions(fleets.world.engine.autoscaling, None).desired_replicas(Stage.PRODUCTION, fleets.fleet)
    listed = await commands.run("fleet", "decisions", fleets.fleet, env=env)
    assert "requested 1" in listed.out


async def test_fleets_are_paused_and_resumed_one_by_one_or_together(fleets: Fleets, env: Mapping[str, str]) -> None:
    async def is_paused() -> bool:
        return (await fleets.record()).scaling_spec.is_paused

    assert (await commands.run("fleet", "pause", fleets.fleet, env=env)).code == 0
    assert await is_paused()
    resumed = await commands.run("fleet", "resume", "--all", env=env)
    assert resumed.out == f"{fleets.fleet} (production): resumed\n"
    assert not await is_paused()
    refused = await commands.run("fleet", "pause", env=env)
    assert refused.code == 2
    assert "--all" in refused.err
    missing = await commands.run("fleet", "pause", "none", env=env)
    assert missing.code == 2
    assert "There is no production fleet 'none'" in missing.err


async def test_run_scales_until_it_is_stopped_and_releases_leadership(fleets: Fleets, env: Mapping[str, str]) -> None:
    await fleets.world.engine.autoscaling.leadership.resign()
    await fleets.change(machines={"provider": "static"})
    await fleets.submit()
    running = await commands.start("fleet", "run", env=env)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert b"Autoscaling fleets" in await running.err.readline()
        views = fleets.world.engine.autoscaling.views
        # a separate process, so only its writes can be observed
        while not (await views.decisions(Stage.PRODUCTION, fleets.fleet, limit=1)).items:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    running.process.send_signal(signal.SIGTERM)
    ended = await running.ended()
    assert ended.code == 0, ended.err
    [decision] = await fleets.decisions()
    assert "only reports" in decision.reason
    # the clock of the process differs from the clock of the test
    leader = await fleets.world.engine.autoscaling.leadership.current()
    assert leader is not None
    assert leader.expires_at <= utc_now()


async def test_provider_message_is_shown_verbatim(fleets: Fleets, env: Mapping[str, str]) -> None:
    fleets.provider.fails = ProviderError("no [/red] and no [bold] ones.")
    await fleets.submit()
    await fleets.round()
    for word in ("status", "decisions"):
        shown = await commands.run("fleet", word, env={**env, "COLUMNS": "400"})
        assert shown.code == 0, shown.err
        assert "no [/red] and no [bold] ones." in shown.out


async def test_narrow_terminal_cuts_no_text(fleets: Fleets, env: Mapping[str, str]) -> None:
    await fleets.submit()
    await fleets.decide()
    [decision] = await fleets.decisions()
    for command in ("status", "decisions"):
        shown = await commands.run("fleet", command, env={**env, "COLUMNS": "40"})
        assert shown.code == 0, shown.err
        assert "…" not in shown.out
        assert not {*"┃│━─"} & {*shown.out}
        assert fleets.fleet in shown.out
        assert decision.reason in " ".join(shown.out.split())


async def test_missing_databases_are_reported_and_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    env = {"COMFYRELAY_DATA_DIR": str(folder), "COMFYRELAY_URL": "https://relay.example.com", "COLUMNS": "200"}
    for words in (["run"], ["blocks"], ["costs"], ["user-data", "video"]):
        refused = await commands.run("fleet", *words, env=env)
        assert refused.code == 2
        assert f"There is no database in {folder}." in refused.err
        assert "This command ignores COMFYRELAY_URL" in refused.err
    assert not folder.exists()


async def test_server_url_is_ignored_with_a_warning(fleets: Fleets, env: Mapping[str, str]) -> None:
    shown = await commands.run("fleet", "costs", env={**env, "COMFYRELAY_URL": "https://relay.example.com"})
    assert shown.code == 0
    assert "Ignoring COMFYRELAY_URL" in shown.err


async def test_failed_launches_are_shown_and_reset(fleets: Fleets, env: Mapping[str, str]) -> None:
    await fleets.change(autoscaling={"min_machines": 1, "failed_boots": 1})
    await fleets.round()
    assert "Launches fail" not in (await commands.run("fleet", "status", env=env)).out
    await fleets.pass_time(3 * 100 + 121)
    for _ in range(2):
        await fleets.round()
    shown = await commands.run("fleet", "status", env=env)
    assert "Launches fail: the last 1 rounds produced no worker. Fix the cause" in shown.out
    done = await commands.run("fleet", "reset", fleets.fleet, env=env)
    assert done.out == f"{fleets.fleet} (production): reset\n"
    assert "Launches fail" not in (await commands.run("fleet", "status", env=env)).out

    listed = await commands.run("fleet", "machines", fleets.fleet, env=env)
    assert listed.code == 0, listed.err
    assert "boot_failed: no worker after 421 s" in listed.out
    [machine] = json.loads((await commands.run("fleet", "machines", "--json", env=env)).out)
    assert (machine["fleet"], machine["registered_at"], machine["jobs"]) == (fleets.fleet, None, 0)


async def test_fleet_is_created_and_changed_in_the_databases(fleets: Fleets, env: Mapping[str, str]) -> None:
    await create_and_change(env)


async def create_and_change(env: Mapping[str, str]) -> None:
    created = await commands.run(
        *("fleet", "create", "attic", "--provider", "local", "--max-machines", "2"),
        *("--set", "machines.options.comfyui=simulator", "--set", "machines.options.grace_seconds=5"),
        env=env,
    )
    assert (created.code, created.out) == (0, "attic (production): created\n"), created.err
    options = ("--min-machines", "1", "--policy", "fast", "--set", "machines.options.grace_seconds=9")
    changed = await commands.run("fleet", "set", "attic", *options, "--json", env=env)
    assert changed.code == 0, changed.err
    fleet = json.loads(changed.out)
    assert fleet["machines"]["options"] == {"comfyui": "simulator", "grace_seconds": 9}
    scaling = fleet["autoscaling"]
    assert (scaling["policy"], scaling["min_machines"], scaling["max_machines"]) == ("fast", 1, 2)
    for words, message in (
        (("set", "attic"), "Nothing to change"),
        (("set", "attic", "--max-machines", "0"), "more than max_machines"),
        (("set", "attic", "--set", "machines.provider=moon"), "Unknown provider"),
        (("set", "none", "--max-machines", "1"), "There is no production fleet 'none'"),
        (("create", "attic"), "attic"),
    ):
        refused = await commands.run("fleet", *words, env=env)
        assert refused.code == 2
        assert message in refused.err


async def test_blocks_are_listed_with_their_reason_and_ended(fleets: Fleets, env: Mapping[str, str]) -> None:
    world = fleets.world
    assert "No worker is blocked." in (await commands.run("fleet", "blocks", env=env)).out
    worker = await world.worker(fleets.fleet)
    await fleets.submit()
    leased = await world.lease(worker)
    assert leased is not None
    await world.fail(leased, "No space left on device", fault=Fault.WORKER)
    # The commands use the real clock.
    until = "UPDATE workflow_blocks SET blocked_until = '2100-01-01 00:00:00.000000'"
    await execute(world.engine.databases.central, until)
    shown = await commands.run("fleet", "blocks", env=env)
    assert worker in shown.out
    assert "No space left on device" in shown.out
    [block] = json.loads((await commands.run("fleet", "blocks", "--json", env=env)).out)
    assert (block["worker_id"], block["failure_count"], block["is_out_of_memory"]) == (worker, 1, False)
    other = await commands.run("fleet", "unblock", worker, "--workflow", "none", env=env)
    assert other.out == f"{worker}: 0 workflows unblocked\n"
    ended = await commands.run("fleet", "unblock", worker, "--workflow", block["workflow_hash"][:12], env=env)
    assert ended.out == f"{worker}: 1 workflow unblocked\n"
    assert await world.lease(worker) is not None
    missing = await commands.run("fleet", "unblock", "none", env=env)
    assert missing.code == 2
    assert "There is no worker 'none'." in missing.err

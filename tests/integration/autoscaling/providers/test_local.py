"""Machines that are processes of this host: the provider contract, and guarantees of this provider only."""

import asyncio
import json
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.autoscaling.providers.base import MachineProvider, ProviderFleet, ProviderMachineState, RefusalKind
from comfyrelay.autoscaling.providers.local import WORKER_SETTINGS, LocalProvider, _LocalMachine
from comfyrelay.domain.autoscaling.spec import DEFAULT_MAX_MACHINES, InstanceType, MachineProviderName, MachineSpec
from comfyrelay.domain.queue.states import Stage
from comfyrelay.system.commands import detached
from comfyrelay.worker.settings import WorkerSettings
from tests.support.full import full_only
from tests.support.kill_points import VARIABLE, KillPoint
from tests.support.memory_provider import lead
from tests.support.paths import ROOT
from tests.support.provider_contract import (
    FLEET,
    SERVER_SECRETS,
    STAGE,
    ProviderContract,
    Site,
    launched,
    opened,
    orders,
    until,
    until_observed,
    wait_until_left,
)
from tests.support.side_effects import LOCAL_MACHINE_KILL_POINTS
from tests.support.world import PATIENCE_SECONDS, World

MODULE = "comfyrelay.autoscaling.providers.local_machine"
SECRET = "a secret that is long enough for a fleet"
# Answers like ComfyUI once a file exists, and records its arguments and environment.
COMFYUI = """#!{python} -SE
import http.server, json, os, pathlib, sys, time
pathlib.Path("given.json").write_text(json.dumps({{"argv": sys.argv[1:], "environment": dict(os.environ)}}))
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.01)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
# Waits for its end, and leaves a file if it was terminated by SIGTERM.
WORKER = """
import json, os, pathlib, signal, sys
def leave(*_):
    pathlib.Path("left").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
pathlib.Path("worker.json").write_text(json.dumps(dict(os.environ)))
while True:
    signal.pause()
"""


class LocalSite(Site):
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "machines"
        self.programs = folder / "programs"
        self.programs.mkdir(exist_ok=True)
        self._gate = folder / "booted"
        self.write("comfyui", COMFYUI.format(python=sys.executable, gate=str(self._gate)))
        self.options: dict[str, Any] = {"comfyui": "comfyui", "grace_seconds": 5.0}

    def write(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def provider(self) -> LocalProvider:
        return LocalProvider(
            folder=self.folder,
            api_url="http://127.0.0.1:9",
            secrets={"staging": [SECRET], "production": [SECRET]},
            programs=self.programs,
            worker=(sys.executable, "-SE", "-c", WORKER),
        )

    async def fleet(
        self, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = DEFAULT_MAX_MACHINES
    ) -> ProviderFleet:
        spec = MachineSpec(
            provider=MachineProviderName.LOCAL,
            instance_types=(InstanceType(name="cpu", price_per_hour=0.1, speed=0.5),),
            options=self.options,
        )
        return ProviderFleet(slug=slug, stage=stage, spec=spec, max_machines=max_machines)

    def processes(self, fleet: ProviderFleet | None = None) -> set[int]:
        """Return the processes that run a machine, or that are about to check whether they may run it."""
        prefix = str(self.folder if fleet is None else self.folder / fleet.stage / fleet.slug)
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if MODULE in words and words[-1].startswith(f"{prefix}/") and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process.pid)
        return found

    async def existing(self, fleet: ProviderFleet) -> int:
        pids: set[int] = set()

        async def have_all_begun() -> bool:
            pids.clear()
            pids.update(self.processes(fleet))
            begun = (self.folder / fleet.stage / fleet.slug).glob("*/begun.json")
            return pids <= {json.loads(path.read_text())["pid"] for path in begun}

        await until(have_all_begun)
        return len(pids)

    async def boot(self, fleet: ProviderFleet) -> None:
        self._gate.touch()

    async def refuse(self, fleet: ProviderFleet) -> RefusalKind:
        (self.programs / "comfyui").unlink()
        return RefusalKind.SETUP

    async def cut_off(self) -> None:
        if self.folder.exists():
            self.folder.rename(self.folder.with_name("elsewhere"))
        self.folder.write_text("no folder")

    async def clear(self) -> None:
        for pid in self.processes():
            kill_all(pid)

        async def have_ended() -> bool:
            return not self.processes()

        await until(have_ended)


def kill_all(pid: int) -> None:
    """Kill a process with its children, as in a power loss of the host: no process can clean up."""
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        processes = [first, *first.children(recursive=True)]
        for action in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with suppress(psutil.Error):
                    action(process)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[LocalSite]:
    site = LocalSite(tmp_path)
    yield site
    await site.clear()


class TestLocalProvider(ProviderContract):
    pass


def machine_folder(site: LocalSite, fleet: ProviderFleet, key: str) -> Path:
    return site.folder / fleet.stage / fleet.slug / key


async def wait_for_file(path: Path) -> None:
    async def exists() -> bool:
        return path.exists()

    await until(exists)


async def start_machines(site: LocalSite, provider: MachineProvider, *keys: str) -> ProviderFleet:
    fleet = await site.fleet()
    await site.boot(fleet)
    await launched(provider, fleet, *keys)
    await until_observed(provider, fleet, len(keys), ProviderMachineState.RUNNING)
    return fleet


# Launches two machines and crashes.
LAUNCH = """
import asyncio, os, pathlib, signal, sys
from comfyrelay.domain.autoscaling.spec import MachineSpec
from comfyrelay.autoscaling.providers.base import MachineOrder, ProviderFleet
from comfyrelay.autoscaling.providers.local import LocalProvider
folder, programs, slug, stage = sys.argv[1:]
provider = LocalProvider(
    folder=pathlib.Path(folder), programs=pathlib.Path(programs), api_url="http://a.test", secrets={stage: ["secret"]}
)
fleet = ProviderFleet(slug=slug, stage=stage, spec=MachineSpec(options={"comfyui": "comfyui"}), max_machines=2)
asyncio.run(provider.launch(fleet, [MachineOrder(key="a"), MachineOrder(key="b")], total=2))
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_machines_outlive_their_launcher(site: LocalSite) -> None:
    leader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LAUNCH, str(site.folder), str(site.programs), FLEET, STAGE)
    )
    assert await leader.wait() == -signal.SIGKILL
    fleet = await site.fleet()

    async with opened(site) as other:
        found = await until_observed(other, fleet, 2)
        await launched(other, fleet, "a", "b")
        assert await site.existing(fleet) == 2
        await other.end(fleet, [machine.id for machine in found])
        await wait_until_left(site, other, fleet, left=[])


# Launches a machine and ends it, unless it is killed before.
LAUNCH_AND_END = """
import asyncio, pathlib, sys
from comfyrelay.domain.autoscaling.spec import MachineSpec
from comfyrelay.autoscaling.providers.base import MachineOrder, ProviderFleet
from comfyrelay.autoscaling.providers.local import LocalProvider
from tests.support import kill_points
folder, programs, slug, stage, point = sys.argv[1:]
kill_points.install(point)
provider = LocalProvider(
    folder=pathlib.Path(folder), programs=pathlib.Path(programs), api_url="http://a.test", secrets={stage: ["secret"]}
)
fleet = ProviderFleet(slug=slug, stage=stage, spec=MachineSpec(options={"comfyui": "comfyui"}), max_machines=2)
async def main():
    [machine] = (await provider.launch(fleet, [MachineOrder(key="a")], total=1)).launched
    await provider.end(fleet, [machine.id])
asyncio.run(main())
"""


@pytest.mark.parametrize("point", LOCAL_MACHINE_KILL_POINTS, ids=str)
async def test_launcher_killed_at_any_side_effect_loses_and_repeats_no_machine(
    site: LocalSite, point: KillPoint
) -> None:
    words = (str(site.folder), str(site.programs), FLEET, STAGE, point.environment[VARIABLE])
    leader = await asyncio.create_subprocess_exec(sys.executable, "-c", LAUNCH_AND_END, *words, cwd=ROOT)
    assert await leader.wait() == -signal.SIGKILL
    fleet = await site.fleet()
    has_ended = (machine_folder(site, fleet, "a") / "ended").exists()
    async with opened(site) as other:
        # its order is in the database, so the next leader repeats it
        result = await other.launch(fleet, orders("a"), total=1)
        if not has_ended:
            assert [machine.key for machine in result.launched] == ["a"]
            await wait_for_file(machine_folder(site, fleet, "a") / "begun.json")
            assert await site.existing(fleet) == 1
        # the end of the machine is in the database, too
        await other.end(fleet, [machine.id for machine in await other.observe(fleet)])
        await wait_until_left(site, other, fleet, left=[])
        assert await site.existing(fleet) == 0


@pytest.mark.parametrize("is_repeated", [False, *full_only(True)])
async def test_order_of_a_crashed_launcher_is_carried_out_by_the_next_observer(
    site: LocalSite, monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    fleet = await site.fleet()

    def die(*_words: Any, **_values: Any) -> None:
        raise asyncio.CancelledError

    async with opened(site) as first:
        with monkeypatch.context() as patch:
            patch.setattr(detached, "start", die)
            with pytest.raises(asyncio.CancelledError):
                await first.launch(fleet, orders("a"), total=1)
    assert await site.existing(fleet) == 0

    async with opened(site) as second:
        if is_repeated:
            await launched(second, fleet, "a")
        else:
            assert [machine.state for machine in await second.observe(fleet)] == [ProviderMachineState.PENDING]
        await wait_for_file(machine_folder(site, fleet, "a") / "begun.json")
        assert await site.existing(fleet) == 1


async def test_order_started_twice_makes_one_machine(
    site: LocalSite,
) -> None:
    """A leader crashes after it started a process, and its successor starts another one."""
    fleet = await site.fleet()
    provider = site.provider()
    await provider.launch(fleet, orders("a"), total=1)
    machine = _LocalMachine(machine_folder(site, fleet, "a"))
    provider._start(fleet, machine)
    assert await site.existing(fleet) == 1
    await wait_for_file(machine.folder / "given.json")

    await site.clear()
    (machine.folder / "given.json").unlink()
    provider._start(fleet, machine)

    late = provider._children[machine.id]
    assert await asyncio.to_thread(late.wait, PATIENCE_SECONDS) == 0
    assert not (machine.folder / "given.json").exists()
    assert list(await provider.observe(fleet)) == []


async def test_order_that_never_started_expires(site: LocalSite, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = await site.fleet()
    async with opened(site) as provider:
        with monkeypatch.context() as patch:
            patch.setattr(LocalProvider, "_start", lambda *_: None)
            await provider.launch(fleet, orders("a"), total=1)
            assert len(await provider.observe(fleet)) == 1
            patch.setattr("comfyrelay.autoscaling.providers.local.START_SECONDS", 0.0)
            assert list(await provider.observe(fleet)) == []


async def test_key_of_a_lost_machine_is_not_launched_again(site: LocalSite) -> None:
    async with opened(site) as provider:
        fleet = await start_machines(site, provider, "a")
        [found] = await provider.observe(fleet)
        await site.clear()
        assert list(await provider.observe(fleet)) == []

        result = await provider.launch(fleet, orders("a"), total=1)

        assert result.launched == []
        assert [refusal.text for refusal in result.refused] == [f"The machine {found.id} has already ended."]
        assert await site.existing(fleet) == 0


async def test_simulator_of_a_machine_has_a_secret_that_only_its_worker_gets(site: LocalSite) -> None:
    site.options = {"comfyui": "simulator", "grace_seconds": 5.0}
    provider = site.provider()
    provider._simulator = (str(site.programs / "comfyui"), "{port}", "{folder}")
    fleet = await start_machines(site, provider, "a")
    folder = machine_folder(site, fleet, "a")
    await wait_for_file(folder / "worker.json")
    given, worker = json.loads((folder / "given.json").read_text()), json.loads((folder / "worker.json").read_text())
    secret = given["environment"]["COMFYRELAY_SIMULATOR_SECRET"]
    assert len(secret) >= 32
    assert f"//simulator:{secret}@127.0.0.1:" in worker["COMFYUI_BASE_URL"]
    assert "COMFYRELAY_SIMULATOR_SECRET" not in worker
    # other users see the arguments of processes
    assert secret not in " ".join(given["argv"])
    assert secret not in (folder / "order.json").read_text()


async def test_every_listening_socket_of_a_machine_needs_a_credential(site: LocalSite) -> None:
    """Other users of the host can find and reach every port. By default, a machine runs the real simulator."""
    site.options = {"grace_seconds": 5.0}
    fleet = await start_machines(site, site.provider(), "a")
    process = json.loads((machine_folder(site, fleet, "a") / "begun.json").read_text())["pid"]
    ports = listening_ports(psutil.Process(process))
    assert len(ports) == 1
    for port in ports:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as anonymous:
            for path in ("/prompt", "/queue", "/history", "/view", "/ws", "/system_stats", "/x"):
                for method in ("GET", "POST"):
                    assert (await anonymous.request(method, path)).status_code == 401, f"{port} {method} {path}"
            assert (await anonymous.get("/queue", headers={"Host": "evil.example"})).status_code == 403


def listening_ports(first: psutil.Process) -> set[int]:
    """Ports on which a process or one of its children listens."""
    processes = [first, *first.children(recursive=True)]
    connections = [connection for process in processes for connection in process.net_connections("inet")]
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


async def test_stopping_a_machine_terminates_its_worker_first(site: LocalSite) -> None:
    async with opened(site) as provider:
        fleet = await start_machines(site, provider, "a")
        await wait_for_file(machine_folder(site, fleet, "a") / "worker.json")

        await provider.end(fleet, [(await provider.observe(fleet))[0].id])
        await wait_until_left(site, provider, fleet, left=[])

        folder = machine_folder(site, fleet, "a")
        assert (folder / "left").exists()
        assert not (folder / "comfyui").exists()


async def test_worker_that_does_not_exit_is_killed_after_the_grace(site: LocalSite) -> None:
    site.options = {**site.options, "grace_seconds": 0.2}
    stubborn = WORKER.replace("sys.exit(0)", "")
    async with opened(site) as provider:
        assert isinstance(provider, LocalProvider)
        provider._worker = (sys.executable, "-SE", "-c", stubborn)
        fleet = await start_machines(site, provider, "a")
        await wait_for_file(machine_folder(site, fleet, "a") / "worker.json")

        await provider.end(fleet, [(await provider.observe(fleet))[0].id])

        await wait_until_left(site, provider, fleet, left=[])
        assert (machine_folder(site, fleet, "a") / "left").exists()


@pytest.mark.parametrize("which", [0, 1, *full_only(2)])
async def test_killing_one_process_of_a_machine_stops_all(site: LocalSite, which: int) -> None:
    async with opened(site) as provider:
        fleet = await start_machines(site, provider, "a")
        await wait_for_file(machine_folder(site, fleet, "a") / "worker.json")
        [pid] = site.processes(fleet)
        first = psutil.Process(pid)
        # The supervising processes are between the machine and these.
        leaves = [child for child in first.children(recursive=True) if not child.children()]
        [worker] = [leaf for leaf in leaves if "signal.pause" in leaf.cmdline()[-1]]
        [comfyui] = [leaf for leaf in leaves if leaf != worker]
        processes = [first, *first.children(recursive=True)]

        [first, worker, comfyui][which].kill()

        async def have_ended() -> bool:
            return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)

        await until(have_ended)
        assert list(await provider.observe(fleet)) == []


async def test_process_with_a_reused_pid_is_not_killed() -> None:
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
    started = detached.started_at(sleeper.pid)
    try:
        assert detached.is_running(pid=sleeper.pid, started=started)
        detached.send_sigterm(pid=sleeper.pid, started=started - 60)
        assert psutil.Process(sleeper.pid).status() != psutil.STATUS_ZOMBIE
        detached.send_sigterm(pid=sleeper.pid, started=started)
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await sleeper.wait()
        with suppress(ProcessLookupError):
            sleeper.kill()
    assert sleeper.returncode == -signal.SIGTERM
    assert not detached.is_running(pid=sleeper.pid, started=started)


async def test_machine_gets_its_environment_without_the_credentials_of_the_server(
    site: LocalSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SERVER_SECRETS:
        monkeypatch.setenv(name, "of-the-server")
    site.options = {
        **site.options,
        "environment": {"CUDA_VISIBLE_DEVICES": "{slot}", "COMFYRELAY_WORKER_PREFETCH": "0"},
    }
    async with opened(site) as provider:
        fleet = await start_machines(site, provider, "a", "b")
        by_id = {machine.id: machine.key for machine in await provider.observe(fleet)}
        devices = set()
        for name, key in by_id.items():
            folder = machine_folder(site, fleet, str(key))
            await wait_for_file(folder / "worker.json")
            worker = json.loads((folder / "worker.json").read_text())
            comfyui = json.loads((folder / "given.json").read_text())
            assert (worker["WORKER_ID"], worker["FLEET_SLUG"], worker["FLEET_STAGE"]) == (name, FLEET, STAGE)
            assert worker["FLEET_SECRET"] == SECRET
            assert worker["COMFYUI_BASE_URL"] == f"http://127.0.0.1:{comfyui['argv'][0]}"
            assert "FLEET_SECRET" not in comfyui["environment"]
            assert worker["COMFYRELAY_WORKER_PREFETCH"] == "0"
            assert not [name for name in comfyui["environment"] if name.startswith("COMFYRELAY_")]
            assert "of-the-server" not in {*worker.values(), *comfyui["environment"].values()}
            assert all(SECRET not in file.read_text() for file in folder.iterdir() if file.name == "order.json")
            devices.add(worker["CUDA_VISIBLE_DEVICES"])
        assert devices == {"0", "1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"comfyui": "../comfyui"}, "without its folder"),
        ({"comfyui": "/bin/sh"}, "without its folder"),
        ({"comfyui": "other"}, "There is no program other"),
        ({"comfyui": "plain"}, "chmod +x"),
        ({"environment": {"LD_PRELOAD": "x.so"}}, "LD_PRELOAD cannot be set here"),
        *(
            ({"environment": {f"COMFYRELAY_WORKER_{name}": "x"}}, f"COMFYRELAY_WORKER_{name} cannot be set here")
            for name in ("API_BASE_URL", "COMFYUI_DIR", "COMFYUI_PYTHON", "COMFYUI_RESTART_COMMAND", "DATA_DIR")
        ),
        ({"comfy": "simulator"}, "comfy: Extra inputs are not permitted"),
    ],
)
async def test_forbidden_program_is_refused_with_its_reason(
    site: LocalSite, options: dict[str, Any], message: str
) -> None:
    (site.programs / "plain").write_text("")
    site.options = options
    async with opened(site) as provider:
        [refused] = (await provider.launch(await site.fleet(), orders("a"), total=1)).refused
    assert refused.kind is RefusalKind.SETUP
    assert message in refused.text


def test_fleets_can_set_only_existing_worker_settings() -> None:
    assert {name.lower() for name in WORKER_SETTINGS} <= WorkerSettings.model_fields.keys()


async def test_fleet_with_a_maximum_of_0_ends_its_machines_and_a_paused_one_keeps_them(
    site: LocalSite, world: World
) -> None:
    """`fleet deprovision` and the removal of a fleet advise operators to do this."""
    slug = await world.fleet(await world.workflow())
    await world.engine.workers.fleets.change(
        stage=Stage.PRODUCTION,
        slug=slug,
        changes={"machines": {"provider": "local", "options": site.options}, "autoscaling": {"min_machines": 2}},
    )
    await lead(world)
    fleet = await site.fleet(slug, stage=Stage.PRODUCTION)
    async with opened(site) as provider:
        loop = ScalingLoop(world.engine, OneProvider(provider))

        async def run_round() -> None:
            await loop.observe_once()
            await loop.decide_once()
            await loop.idle()

        await run_round()
        await until_observed(provider, fleet, 2)
        views = world.engine.autoscaling.views
        await views.set_paused(Stage.PRODUCTION, slug, is_paused=True)
        limits = {"autoscaling": {"min_machines": 0, "max_machines": 0}}
        await world.engine.workers.fleets.change(stage=Stage.PRODUCTION, slug=slug, changes=limits)
        await run_round()
        await until_observed(provider, fleet, 2)

        await views.set_paused(Stage.PRODUCTION, slug, is_paused=False)
        await run_round()
        await until_observed(provider, fleet, 0)

        async def are_gone() -> bool:
            # New machines may be listed late.
            await world.advance(61)
            await run_round()
            return not (await views.get(Stage.PRODUCTION, slug)).machines

        await until(are_gone)
        await world.engine.workers.fleets.delete(stage=Stage.PRODUCTION, slug=slug)


class OneProvider:
    def __init__(self, provider: MachineProvider) -> None:
        self._provider = provider

    def get(self, _name: str, /) -> MachineProvider:
        return self._provider


async def test_logs_of_a_machine_are_kept_for_a_week(site: LocalSite) -> None:
    async with opened(site) as provider:
        fleet = await start_machines(site, provider, "old")
        await site.clear()
        folder = machine_folder(site, fleet, "old")
        assert {file.name for file in folder.glob("*.log")} == {"machine.log", "comfyui.log", "worker.log"}
        order = json.loads((folder / "order.json").read_text())
        (folder / "order.json").write_text(json.dumps({**order, "launched_at": "2020-01-01T00:00:00+00:00"}))

        await launched(provider, fleet, "new")

        assert not folder.exists()

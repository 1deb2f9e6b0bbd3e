"""Machines launched by a script: the provider contract with the example that rents GPUs, and errors of scripts."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from comfyrelay.autoscaling.providers.base import ProviderFleet, ProviderMachine, ProviderMachineState, RefusalKind
from comfyrelay.autoscaling.providers.command import CommandProvider
from comfyrelay.domain.autoscaling.spec import DEFAULT_MAX_MACHINES, InstanceType, MachineProviderName, MachineSpec
from comfyrelay.errors import ProviderError
from tests.integration.autoscaling.providers.gpu_rental import TOKEN, Rental
from tests.support.full import full_only
from tests.support.paths import ROOT
from tests.support.provider_contract import (
    FLEET,
    SERVER_SECRETS,
    STAGE,
    ThrottledContract,
    ThrottledSite,
    orders,
    until,
    until_observed,
)

EXAMPLES = ROOT / "deploy" / "fleet-commands"
SECRET = "a secret that is long enough for a fleet"
API = "http://127.0.0.1:9"


def provider_in(folder: Path, programs: Path | None, **values: Any) -> CommandProvider:
    secrets = {"staging": [SECRET], "production": [SECRET]}
    return CommandProvider(folder=folder / "commands", api_url=API, secrets=secrets, programs=programs, **values)


def fleet_of(
    command: str, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = DEFAULT_MAX_MACHINES, **options: Any
) -> ProviderFleet:
    spec = MachineSpec(
        provider=MachineProviderName.COMMAND,
        image="registry.test/worker:1",
        instance_types=(InstanceType(name="small", price_per_hour=0.5), InstanceType(name="large", speed=2.0)),
        options={"command": command, **options},
    )
    return ProviderFleet(slug=slug, stage=stage, spec=spec, max_machines=max_machines)


class RentedSite(ThrottledSite):
    def __init__(self, folder: Path, rental: Rental) -> None:
        self._folder = folder
        self.rental = rental

    def provider(self) -> CommandProvider:
        return provider_in(self._folder, EXAMPLES, variables=["RENTAL_URL", "RENTAL_TOKEN_FILE"])

    async def fleet(
        self, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = DEFAULT_MAX_MACHINES
    ) -> ProviderFleet:
        return fleet_of("rented-gpus", slug, stage=stage, max_machines=max_machines)

    async def existing(self, fleet: ProviderFleet) -> int:
        label = f"comfyrelay/{fleet.stage}/{fleet.slug}"
        return sum(instance["label"] == label for instance in self.rental.instances.values())

    async def boot(self, fleet: ProviderFleet) -> None:
        self.rental.boots = True

    async def refuse(self, fleet: ProviderFleet) -> RefusalKind:
        self.rental.refusal_status = 503
        return RefusalKind.CAPACITY

    async def cut_off(self) -> None:
        await self.rental.close()

    async def throttle(self, calls: int) -> None:
        self.rental.throttled = calls


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RentedSite]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with Rental() as rental:
        monkeypatch.setenv("RENTAL_URL", rental.url)
        monkeypatch.setenv("RENTAL_TOKEN_FILE", str(tmp_path / "token"))
        yield RentedSite(tmp_path, rental)


class TestCommandProvider(ThrottledContract):
    pass


async def test_rented_machines_get_the_worker_environment_and_the_current_price(site: RentedSite) -> None:
    provider, fleet = site.provider(), await site.fleet()
    site.rental.prices["small"] = 0.3

    await provider.launch(fleet, orders("a"), total=1)

    [found] = await provider.observe(fleet)
    [order] = site.rental.orders
    assert (found.key, found.instance_type, found.price_per_hour) == ("a", "small", 0.3)
    assert order["environment"] == {
        "API_BASE_URL": API,
        "FLEET_SLUG": FLEET,
        "FLEET_STAGE": STAGE,
        "FLEET_SECRET": SECRET,
        "WORKER_ID": found.worker_id,
    }
    assert [price.price_per_hour for price in await provider.prices(fleet)] == [0.3, 1.5]


async def test_rental_quota_is_reported_as_a_quota(site: RentedSite) -> None:
    site.rental.refusal_status = 402
    [refused] = (await site.provider().launch(await site.fleet(), orders("a"), total=1)).refused
    assert (refused.kind, refused.instance_type) == (RefusalKind.QUOTA, "small")
    assert refused.text == "No small could be rented: none left in this region."


# Errors of scripts.

Script = Callable[[str], ProviderFleet]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a function that creates a fleet whose script is these lines of Python. The script has its subcommand in
    `action`, and its input in `request`."""

    def write(lines: str) -> ProviderFleet:
        path = tmp_path / "programs" / "script"
        path.parent.mkdir(exist_ok=True)
        begin = "import json, os, sys, time\naction, request = sys.argv[1], json.load(sys.stdin)\n"
        path.write_text(f"#!{sys.executable} -SE\n{begin}{lines}\n")
        path.chmod(0o700)
        return fleet_of("script")

    return write


def provider_of(tmp_path: Path, **values: Any) -> CommandProvider:
    return provider_in(tmp_path, tmp_path / "programs", **values)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("print('starting …')", "script observe must print JSON"),
        ("print('{}')", "machines is invalid: Field required"),
        ('print(json.dumps({"machines": [{"id": ""}]}))', "machines.0.id is invalid"),
        ('print(json.dumps({"machines": [{"id": "a"}, {"id": "a"}]}))', "listed a machine twice"),
        ("sys.exit(3)", "script observe ended with exit code 3."),
        ("sys.exit('no key for gpu-1')", "script observe ended with exit code 1: no key for gpu-1."),
        ("os.kill(os.getpid(), 9)", "script observe ended with exit code -9."),
        ("sys.exit(75)", "script observe asks to be tried again later."),
        ("print('x' * 5_000_000)", "printed more than"),
        *full_only(
            ("", "machines is invalid: Field required"),
            ('print(json.dumps({"machines": [{"id": "a", "state": "on"}]}))', "machines.0.state is invalid"),
        ),
    ],
)
async def test_invalid_script_output_is_an_error_with_its_reason(
    script: Script, tmp_path: Path, lines: str, message: str
) -> None:
    fleet = script(lines)
    with pytest.raises(ProviderError) as caught:
        await provider_of(tmp_path).observe(fleet)
    assert message in caught.value.detail


async def test_script_timeout_is_an_error(script: Script, tmp_path: Path) -> None:
    fleet = script("time.sleep(1000)")
    with pytest.raises(ProviderError, match=r"script observe took longer than 0\.1 s and was stopped"):
        await provider_of(tmp_path, timeout_seconds=0.1).observe(fleet)


async def test_cancelled_script_is_killed_with_its_child_processes(script: Script, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fleet = script(
        f"os.execlp('sh', 'sh', '-c', 'sleep 1000 & echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; wait')"
    )
    observing = asyncio.create_task(provider_of(tmp_path).observe(fleet))

    async def has_pid() -> bool:
        return pid_file.exists()

    await until(has_pid)
    observing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await observing

    async def has_no_process() -> bool:
        return not processes_in_group(int(pid_file.read_text()))

    await until(has_no_process)


def processes_in_group(number: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def test_launch_with_unknown_outcome_is_an_error_and_not_a_refusal(script: Script, tmp_path: Path) -> None:
    fleet = script("print(json.dumps({'machines': []}) if action == 'observe' else 'not JSON')")
    with pytest.raises(ProviderError, match="script launch must print JSON"):
        await provider_of(tmp_path).launch(fleet, orders("a"), total=1)


@pytest.mark.parametrize(("code", "kind"), [(75, RefusalKind.THROTTLED), (1, RefusalKind.SETUP)])
async def test_script_that_fails_to_launch_is_a_refusal(
    script: Script, tmp_path: Path, code: int, kind: RefusalKind
) -> None:
    fleet = script(f"print(json.dumps({{'machines': []}})) if action == 'observe' else sys.exit({code})")
    [refused] = (await provider_of(tmp_path).launch(fleet, orders("a", "b"), total=2)).refused
    assert refused.kind is kind


async def test_existing_key_is_not_launched_again(script: Script, tmp_path: Path) -> None:
    """The script would launch a second machine."""
    record = tmp_path / "launched"
    fleet = script(
        f"path = {str(record)!r}\n"
        "launched = open(path).read().split() if os.path.exists(path) else []\n"
        "new = [order['key'] for order in request.get('orders', [])]\n"
        "open(path, 'w').write(' '.join(launched + new))\n"
        "keys = new if action == 'launch' else launched\n"
        "print(json.dumps({'machines': [{'id': str(n), 'key': key} for n, key in enumerate(keys)]}))"
    )
    for keys in (("a",), ("a", "b"), ("a", "b")):
        await provider_of(tmp_path).launch(fleet, orders(*keys), total=len(keys))
    assert record.read_text().split() == ["a", "b"]


async def test_background_process_of_a_script_does_not_delay_its_result(script: Script, tmp_path: Path) -> None:
    """The background process keeps the script's output open, so the output never ends."""
    fleet = script(
        "import subprocess\n"
        f"child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print(json.dumps({'machines': []}), flush=True)"
    )
    try:
        assert await provider_of(tmp_path, timeout_seconds=60).observe(fleet) == []
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_script_gets_the_secret_in_a_file_and_no_server_settings(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SERVER_SECRETS:
        monkeypatch.setenv(name, "of-the-server")
    monkeypatch.setenv("RENTAL_TOKEN_FILE", "/etc/rental-token")
    fleet = script(
        f"open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps([dict(os.environ), request]))\n"
        "print(json.dumps({'machines': []}))"
    )
    await provider_of(tmp_path, variables=["RENTAL_TOKEN_FILE"]).observe(fleet)
    environment, request = json.loads((tmp_path / "seen").read_text())
    path = Path(environment["FLEET_SECRET_FILE"])
    assert (path.read_text(), path.stat().st_mode & 0o077) == (SECRET, 0)
    assert SECRET not in environment.values()
    assert (environment["FLEET_SLUG"], environment["FLEET_STAGE"], environment["API_BASE_URL"]) == (FLEET, STAGE, API)
    assert "of-the-server" not in environment.values()
    assert environment["RENTAL_TOKEN_FILE"] == "/etc/rental-token"
    assert (request["fleet"], request["stage"], request["max_machines"]) == (FLEET, STAGE, DEFAULT_MAX_MACHINES)
    assert request["machines"]["options"] == {"command": "script"}


@pytest.mark.parametrize(
    ("command", "message"),
    [("", "has no script"), ("none", "There is no program none"), ("../script", "without its folder")],
)
async def test_forbidden_script_is_refused_with_its_reason(tmp_path: Path, command: str, message: str) -> None:
    (tmp_path / "programs").mkdir()
    [refused] = (await provider_of(tmp_path).launch(fleet_of(command), orders("a"), total=1)).refused
    assert refused.kind is RefusalKind.SETUP
    assert message in refused.text


async def test_no_script_runs_without_a_programs_folder(tmp_path: Path) -> None:
    [refused] = (await provider_in(tmp_path, None).launch(fleet_of("script"), orders("a"), total=1)).refused
    assert "COMFYRELAY_FLEET_COMMANDS_DIR is not set" in refused.text


# The other examples.


def states(found: list[ProviderMachine]) -> list[tuple[str | None, ProviderMachineState]]:
    return sorted((machine.key, machine.state) for machine in found)


async def test_local_processes_example_starts_one_worker_per_comfyui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKERS_DIR", str(tmp_path / "workers"))
    monkeypatch.setenv("WORKER_COMMAND", json.dumps(["sleep", "1000"]))
    provider = provider_in(tmp_path, EXAMPLES, variables=["WORKERS_DIR", "WORKER_COMMAND"])
    fleet = fleet_of("local-processes", comfyui=["http://127.0.0.1:8188", "http://127.0.0.1:8189"])
    try:
        result = await provider.launch(fleet, orders("a", "b", "c"), total=3)
        assert [refusal.kind for refusal in result.refused] == [RefusalKind.CAPACITY]
        await provider.launch(fleet, orders("a"), total=1)
        found = await until_observed(provider, fleet, 2)
        assert states(found) == [("a", ProviderMachineState.RUNNING), ("b", ProviderMachineState.RUNNING)]
        pid_files = [tmp_path / "workers" / STAGE / FLEET / key / "pid" for key in "ab"]

        async def have_pids() -> bool:
            return all(pid_file.exists() for pid_file in pid_files)

        await until(have_pids)
        [ended] = [machine.id for machine in found if machine.key == "a"]
        await provider.end(fleet, [ended])
        [remaining] = await until_observed(provider, fleet, 1)
        assert remaining.key == "b"
    finally:
        for path in (tmp_path / "workers").rglob("pid"):
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)


# Ssh to hosts that are folders, and a docker that keeps its containers in them.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
cd "$HOSTS/$1" || { echo "ssh: no host $1" >&2; exit 255; }
exec sh -c "$2"
"""
DOCKER = """#!{python} -SE
import os, pathlib, sys
words = sys.argv[1:]
if words[0] == "ps":
    label = words[words.index("--filter") + 1].removeprefix("label=")
    for container in pathlib.Path().glob("*.container"):
        if container.read_text().splitlines()[0] == label:
            print(container.stem, "running")
elif words[0] == "run":
    path = pathlib.Path(words[words.index("--name") + 1] + ".container")
    if path.exists():
        sys.exit(125)
    path.write_text(words[words.index("--label") + 1] + "\\n" + words[-1] + "\\n" + sys.stdin.read())
elif words[0] == "stop":
    pathlib.Path(words[-1] + ".container").unlink()
"""


async def test_ssh_containers_example_starts_one_container_per_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, hosts = tmp_path / "tools", tmp_path / "hosts"
    tools.mkdir()
    for name, text in (("ssh", SSH), ("docker", DOCKER.format(python=sys.executable))):
        (tools / name).write_text(text)
        (tools / name).chmod(0o700)
    for host in ("gpu-1", "gpu-2"):
        (hosts / host).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", str(hosts))
    provider = provider_in(tmp_path, EXAMPLES, variables=["HOSTS"])
    fleet, other = (fleet_of("ssh-containers", slug, hosts=["gpu-1", "gpu-2"]) for slug in (FLEET, "landscapes"))

    result = await provider.launch(fleet, orders("a", "b", "c"), total=3)
    assert [refusal.kind for refusal in result.refused] == [RefusalKind.CAPACITY]
    await provider.launch(fleet, orders("a", "b"), total=2)
    found = await until_observed(provider, fleet, 2)

    assert states(found) == [("a", ProviderMachineState.RUNNING), ("b", ProviderMachineState.RUNNING)]
    assert list(await provider.observe(other)) == []
    [container] = (hosts / "gpu-1").iterdir()
    label, image, *settings = container.read_text().splitlines()
    assert (label, image) == (f"comfyrelay={STAGE}/{FLEET}", "registry.test/worker:1")
    assert f"FLEET_SECRET={SECRET}" in settings
    assert f"WORKER_ID={container.stem}" in settings
    await provider.end(fleet, [container.stem])
    [remaining] = await until_observed(provider, fleet, 1)
    assert remaining.id != container.stem

    shutil.rmtree(hosts / "gpu-2")
    with pytest.raises(ProviderError, match="gpu-2: ssh: no host gpu-2"):
        await provider.observe(fleet)


async def test_invalid_price_is_ignored(tmp_path: Path) -> None:
    invalid = ["NaN", "Infinity", "-1", "1e10", "1e400"]
    prices = [*invalid, "2.5"]
    machines = ", ".join(f'{{"id": "{n}", "price_per_hour": {price}}}' for n, price in enumerate(prices))
    answer = f'{{"machines": [{machines}], "prices": [{{"name": "small", "price_per_hour": NaN}}]}}'
    (tmp_path / "script").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / "script").chmod(0o755)
    provider = provider_in(tmp_path, tmp_path)
    assert [machine.price_per_hour for machine in await provider.observe(fleet_of("script"))] == [None] * 5 + [2.5]
    assert [instance_type.price_per_hour for instance_type in await provider.prices(fleet_of("script"))] == [0.5, 0.0]


async def test_unstorable_name_is_ignored(tmp_path: Path) -> None:
    fields, names = ("key", "worker_id", "instance_type"), ("k" * 201, "a\0b", "")
    machines = [{"id": f"{field}-{n}", field: name} for field in fields for n, name in enumerate(names)]
    (tmp_path / "answer").write_text(json.dumps({"machines": machines}))
    (tmp_path / "script").write_text(f"#!/bin/sh\ncat {tmp_path / 'answer'}\n")
    (tmp_path / "script").chmod(0o755)
    found = await provider_in(tmp_path, tmp_path).observe(fleet_of("script"))
    assert [machine.id for machine in found] == [machine["id"] for machine in machines]
    assert {getattr(machine, field) for machine in found for field in fields} == {None}

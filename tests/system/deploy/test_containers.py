"""Images and the compose file are linted, use existing commands and settings, and run a job together."""

import asyncio
import fnmatch
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from comfyrelay import __version__
from comfyrelay.settings import load_settings
from comfyrelay.worker.settings import load_worker_settings
from tests.support.commands import run
from tests.support.compose_files import (
    COMPOSE,
    DOCKERFILES,
    composed,
    environment_of,
    example,
    instructions,
    of_kind,
    variables,
    words_of,
)
from tests.support.entry_points import parse, unknown_variables
from tests.support.graphs import invert
from tests.support.paths import ROOT
from tests.support.processes import Service
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS

FILLED = {name: value or f"{name.lower().replace('_', '')}0123456789abcdef" for name, value in example().items()}
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
# run once, before the others
ONCE = {"bucket"}
BIN = Path(sysconfig.get_path("scripts"))


def hadolint(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BIN / "hadolint", path], capture_output=True, text=True, check=False)


def service(name: str) -> Any:
    return composed(FILLED)["services"][name]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_dockerfile_passes_the_linter(dockerfile: Path) -> None:
    done = hadolint(dockerfile)
    assert (done.returncode, done.stdout) == (0, "")


def test_linter_finds_errors(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd /tmp && sudo pip install requests\n")
    assert hadolint(bad).returncode != 0


def test_stages_share_a_base_image_pinned_by_digest(dockerfile: Path) -> None:
    base = dict(each.split("=", maxsplit=1) for each in of_kind(dockerfile, "ARG") if "=" in each)["PYTHON_IMAGE"]
    assert DIGEST.fullmatch(base)
    assert of_kind(dockerfile, "FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]


def test_image_runs_without_root_and_has_a_health_check(dockerfile: Path) -> None:
    assert of_kind(dockerfile, "USER") == ["10001:10001"]
    # no step runs after the user is set
    kinds = [word for word, _ in instructions(dockerfile)]
    assert "RUN" not in kinds[kinds.index("USER") :]
    [check] = of_kind(dockerfile, "HEALTHCHECK")
    assert "CMD [" in check


def test_dependencies_of_an_image_are_pinned_by_hash(dockerfile: Path) -> None:
    installs = [each for each in of_kind(dockerfile, "RUN") if "pip install" in each]
    assert len(installs) == 2
    assert "--require-hashes --requirement" in installs[0]
    assert "--no-deps --no-build-isolation ." in installs[1]


def test_copied_files_exist_and_are_in_the_build_context(dockerfile: Path) -> None:
    kept = [each[1:] for each in (ROOT / ".dockerignore").read_text().splitlines() if each.startswith("!")]
    copied = [each for each in of_kind(dockerfile, "COPY") if not each.startswith("--from")]
    sources = [word for each in copied for word in each.split()[:-1]]
    defaults = dict(each.split("=", maxsplit=1) for each in of_kind(dockerfile, "ARG") if "=" in each)
    for word in sources:
        path = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], word)
        assert (ROOT / path).exists()
        assert any(fnmatch.fnmatch(path, pattern) for pattern in kept), path
    # files that the build needs
    assert {"pyproject.toml", "LICENSE", "src"} <= set(sources)


def test_image_runs_an_existing_command_with_known_variables(dockerfile: Path) -> None:
    command, *words = words_of(dockerfile)
    assert command == "comfyrelay"
    assert parse(words) == f"comfyrelay {dockerfile.stem}"
    assert unknown_variables(environment_of(dockerfile)) == []


def test_services_use_our_images_or_pinned_ones() -> None:
    for name, each in composed(FILLED)["services"].items():
        if "build" not in each:
            assert DIGEST.fullmatch(each["image"]), name
            continue
        assert each["image"].endswith(f":{__version__}")
        path = (COMPOSE.parent / each["build"]["context"] / each["build"]["dockerfile"]).resolve()
        assert path in DOCKERFILES
        requirements = each["build"].get("args", {}).get("REQUIREMENTS")
        assert requirements is None or (ROOT / "requirements" / f"{requirements}.txt").is_file()


def test_services_have_health_checks_and_dependencies() -> None:
    services = composed(FILLED)["services"]
    for name, each in services.items():
        checked = "healthcheck" in each or "build" in each
        assert checked or name in ONCE, name
        for other, how in each.get("depends_on", {}).items():
            is_once = how["condition"] == "service_completed_successfully"
            assert is_once == (other in ONCE)
            assert other in services


def test_services_mount_no_host_folder() -> None:
    whole = composed(FILLED)
    mounted = {each.partition(":")[0] for one in whole["services"].values() for each in one.get("volumes", ())}
    assert mounted == set(whole["volumes"])


def test_published_ports_are_local() -> None:
    ports = [each for one in composed(FILLED)["services"].values() for each in one.get("ports", ())]
    assert ports == ["127.0.0.1:8420:8420"]


def test_example_names_every_variable_without_secrets() -> None:
    assert variables() == set(example())
    assert [name for name, value in example().items() if value] == ["S3_ACCESS_KEY"]


@pytest.mark.parametrize("name", ["server", "worker", "comfyui"])
def test_service_runs_an_existing_command_with_known_variables(name: str) -> None:
    expected = {"comfyui": "comfyrelay simulator"}
    assert parse(service(name)["command"]) == expected.get(name, f"comfyrelay {name}")
    assert unknown_variables(service(name).get("environment", {})) == []


def test_server_and_worker_load_their_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server", "worker"):
        for variable, value in service(name)["environment"].items():
            monkeypatch.setenv(variable, value)
    settings, worker = load_settings(), load_worker_settings()
    assert worker.fleet_secret in settings.fleet_secrets[worker.fleet_stage]
    assert worker.fleet_slug == settings.default_fleet
    grace = int(service("worker")["stop_grace_period"].removesuffix("s"))
    assert grace >= worker.shutdown_seconds + 20


class ComposedProcesses:
    """The services of the compose file as local processes, each on a free port."""

    def __init__(self, folder: Path, databases: Mapping[str, str]) -> None:
        self._folder = folder
        ports = {name: free_port() for name in ("server:8420", "s3:9000", "comfyui:8188", "worker:9100")}
        self.port = {name.partition(":")[0]: port for name, port in ports.items()}
        self._places = {
            **{name: f"127.0.0.1:{port}" for name, port in ports.items()},
            **{f"127.0.0.1:{name.partition(':')[2]}": f"127.0.0.1:{port}" for name, port in ports.items()},
            **databases,
        }

    def text(self, text: str) -> str:
        for before, after in self._places.items():
            text = text.replace(before, after)
        return text

    def environment(self, name: str) -> dict[str, str]:
        return {key: self.text(value) for key, value in service(name).get("environment", {}).items()}

    def words(self, name: str) -> list[str]:
        """The command with local folders and ports."""
        own = {"/data": str(self._folder / "s3"), "/data/comfyrelay": str(self._folder / "s3" / "comfyrelay")}
        ports = {":9000": self.port["s3"], "8188": self.port["comfyui"], "9100": self.port["worker"]}
        found = {**own, **{key: f"{'127.0.0.1:' * key.startswith(':')}{port}" for key, port in ports.items()}}
        return [found.get(each, each) for each in service(name)["command"]]

    def comfyrelay(self, name: str, **more: str) -> Service:
        environment = {"HOME": str(self._folder), **self.environment(name), **more}
        return Service(name, *self.words(name), environment=environment, log=self._folder / f"{name}.log")

    @asynccontextmanager
    async def started(self, each: Service) -> AsyncIterator[None]:
        await each.start()
        try:
            await self.wait_until_healthy([sys.executable, *(self.text(word) for word in _check(each.name))], {})
            yield
        finally:
            await each.kill()

    async def wait_until_healthy(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Wait until the health check succeeds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                process = await asyncio.create_subprocess_exec(
                    *words, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                if await process.wait() == 0:
                    return
                # there is no signal for an open port
                await asyncio.sleep(0.05)


@asynccontextmanager
async def s3(processes: ComposedProcesses) -> AsyncIterator[None]:
    own = {"HOME": "/nonexistent", "RCLONE_CONFIG": "", **processes.environment("s3")}
    rclone = str(BIN / "rclone")
    assert await (await asyncio.create_subprocess_exec(rclone, *processes.words("bucket"), env=own)).wait() == 0
    process = await asyncio.create_subprocess_exec(rclone, *processes.words("s3"), env=own, stderr=subprocess.DEVNULL)
    try:
        [_, _, *words] = service("s3")["healthcheck"]["test"]
        await processes.wait_until_healthy([rclone, *words], own)
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[dict[str, str]]:
    """The databases of the compose file, under unique names."""
    name = f"composed_{free_port()}"
    made = {f"relay_{each}": f"{name}_{each}" for each in ("central", "tenants")}
    postgres = service("postgres")
    assert postgres["environment"]["POSTGRES_DB"] == "relay_central"
    assert composed(FILLED)["configs"]["shards"]["content"] == "CREATE DATABASE relay_tenants;"
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    for each in made.values():
        await connection.execute(f"CREATE DATABASE {each}")
    address = f"postgresql://relay:{FILLED['POSTGRES_PASSWORD']}@postgres/"
    yield {f"{address}{before}": postgres_url.format(after) for before, after in made.items()}
    for each in made.values():
        await connection.execute(f"DROP DATABASE {each} WITH (FORCE)")
    await connection.close()


@pytest.mark.journey
async def test_composed_services_run_a_job(databases: dict[str, str], tmp_path: Path) -> None:
    processes = ComposedProcesses(tmp_path, databases)
    at = {"COMFYRELAY_DATA_DIR": str(tmp_path / "server"), "COMFYRELAY_PORT": str(processes.port["server"])}
    server, comfyui = processes.comfyrelay("server", **at), processes.comfyrelay("comfyui")
    worker = processes.comfyrelay("worker", COMFYRELAY_WORKER_DATA_DIR=str(tmp_path / "worker"))
    address = f"http://127.0.0.1:{processes.port['server']}"
    # inside the server's container
    inside = {**{"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, **processes.environment("server"), **at}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(s3(processes))
        for each in (server, comfyui):
            await stack.enter_async_context(processes.started(each))
        token = await _admin(inside)
        await _catalogue(address, token, fleet=processes.environment("worker")["FLEET_SLUG"])
        await stack.enter_async_context(processes.started(worker))
        asking = {**inside, "COMFYRELAY_URL": address, "COMFYRELAY_TOKEN": token}
        done = await run("run", "invert", "--out", str(tmp_path / "made"), env=asking)
        assert done.code == 0, done.err + "".join(each.text() for each in (server, comfyui, worker))
    [made] = (tmp_path / "made").iterdir()
    assert made.read_bytes().startswith(b"\x89PNG")
    stored = [each for each in (tmp_path / "s3" / "comfyrelay").rglob("*") if each.is_file()]
    assert made.read_bytes() in [each.read_bytes() for each in stored]


def _check(name: str) -> list[str]:
    """Arguments of the health check of a service or its image, after `python`."""
    own = service(name).get("healthcheck")
    if own is not None:
        found: list[str] = own["test"]
        return found[2:]
    [check] = of_kind(ROOT / service(name)["build"]["dockerfile"], "HEALTHCHECK")
    words: list[str] = json.loads(check.partition("CMD ")[2])
    return words[1:]


async def _admin(env: Mapping[str, str]) -> str:
    words = ("admin", "create", "--email", "you@example.com", "--password", "choose a long one")
    return (await run(*words, env=env)).out.strip()


async def _catalogue(address: str, token: str, *, fleet: str) -> None:
    made = {
        "fleets": {"slug": fleet, "name": "Simulators"},
        "workflows": {"slug": "invert", "graph": invert()},
        "effects": {"slug": "invert", "name": "Invert", "workflow_slug": "invert", "credits_cost": 0},
    }
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{address}/api/admin", headers=headers, timeout=PATIENCE_SECONDS) as http:
        for path, body in made.items():
            (await http.post(f"/{path}", json=body)).raise_for_status()

"""Run the whole system as real processes: server, workers and commands, on a network that tests can break.

ComfyUI simulators run in the event loop of the test, so tests can control them.
"""

import asyncio
import hashlib
import itertools
import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.services.engine import Engine
from comfyrelay.services.queue import demand, polls
from comfyrelay.settings import Settings
from comfyrelay.simulator import Simulator
from comfyrelay.worker import agent, control, draining
from comfyrelay.worker.files import transfers
from tests.support import log_secrets
from tests.support.api import FLEET_SECRET, PASSWORD, SECRETS
from tests.support.api_calls import png
from tests.support.graphs import MP4, invert, invert_file, invert_video
from tests.support.network_proxy import Proxy
from tests.support.processes import Service, run_command
from tests.support.server_processes import free_port
from tests.support.storage import ACCESS_KEY, SECRET_KEY
from tests.support.world import PATIENCE_SECONDS, execute

FLEET = "home"
COST = 7
TOKENS = 1_000
ENDED = ("completed", "failed", "canceled")
# Prefixes of worker requests as the proxies see them.
DOWNLOAD = b"GET /"
UPLOAD = b"PUT /"
COMPLETE = b"POST /api/worker/complete"

# Shorter pauses for tests.
SERVER_CONSTANTS = {(demand, "RECALL_AFTER_SECONDS"): 0.5, (polls, "REPOLL_TICKS"): 1}
WORKER_CONSTANTS = {
    (agent, "DEREGISTER_SECONDS"): 1.0,
    (control, "LONGEST_PAUSE_SECONDS"): 0.5,
    (draining, "REQUEUE_SECONDS"): 2.0,
    (draining, "RECHECK_SECONDS"): 0.2,
    (transfers, "_LONGEST_PAUSE_SECONDS"): 0.5,
}

INPUT = {"key": "input", "type": "image", "placeholder": "{{INPUT}}", "is_primary_input": True, "required": True}
VIDEO = {**INPUT, "type": "video"}
COLOR = {
    "key": "color",
    "type": "number",
    "placeholder": "{{COLOR}}",
    "default_value": 7,
    "minimum": 0,
    "maximum": 2**24 - 1,
    "user_configurable": True,
}
_IMAGE = {"output_node_id": "3", "output_extension": "png", "output_mime_type": "image/png"}


@dataclass
class System:
    folder: Path
    server: Service
    settings: Mapping[str, str]
    http: httpx.AsyncClient
    # proxies between workers and the server, and between all processes and the files
    api: Proxy
    files: Proxy
    simulator: Simulator
    admin_token: str = ""
    user_token: str = ""
    workers: list[Service] = field(default_factory=list)
    simulators: list[Simulator] = field(default_factory=list)
    # files of effects, which may remain on a ComfyUI
    assets: list[bytes] = field(default_factory=list)
    _workflows: list[str] = field(default_factory=list)
    _submitted: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    # actions of the operator

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        return _data(await self.http.request(method, f"/api/admin{path}", json=body, headers=_bearer(self.admin_token)))

    async def effect(
        self,
        slug: str = "invert",
        graph: Graph | None = None,
        *,
        properties: Sequence[Mapping[str, Any]] = (INPUT,),
        overrides: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> int:
        """Add an effect to the fleet, which by default inverts an image."""
        graph = invert_file("{{INPUT}}") if graph is None else graph
        body = {"slug": slug, "graph": graph, "properties": list(properties), **_IMAGE, **more}
        await self.admin("POST", "/workflows", body)
        self._workflows.append(slug)
        await self.admin("PUT", f"/fleets/production/{FLEET}/workflows", {"workflow_slugs": self._workflows})
        effect = await self.admin(
            "POST",
            "/effects",
            {"slug": slug, "workflow_slug": slug, "credits_cost": COST, "property_overrides": dict(overrides or {})},
        )
        effect_id: int = effect["id"]
        return effect_id

    async def plain_effect(self, slug: str = "plain", **more: Any) -> int:
        """Add an effect without an input file."""
        graph = invert()
        graph["1"]["inputs"]["color"] = "{{COLOR}}"
        return await self.effect(slug, graph, properties=[COLOR], **more)

    async def video_effect(self, slug: str = "invert-video") -> int:
        return await self.effect(
            slug,
            invert_video("{{INPUT}}"),
            properties=[VIDEO],
            output_node_id="5",
            output_extension="mp4",
            output_mime_type="video/mp4",
        )

    async def asset(self, content: bytes, *, name: str = "logo.png", mime_type: str = "image/png") -> str:
        """Upload an effect asset; return its path."""
        body = {"mime_type": mime_type, "size": len(content), "original_filename": name}
        created = await self.admin("POST", "/assets", body)
        await self._put(created, content)
        self.assets.append(content)
        path: str = created["path"]
        return path

    def worker(
        self,
        worker_id: str = "gpu-1",
        *,
        simulators: Sequence[Simulator] | None = None,
        variables: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Service:
        """Return a worker that is not started yet; `settings` are its settings, in lower case without the prefix."""
        environment = self._environment(worker_id, simulators=simulators, variables=variables, **settings)
        log = self.folder / f"{worker_id}.log"
        service = Service(worker_id, "worker", environment=environment, log=log, constants=WORKER_CONSTANTS)
        self.workers.append(service)
        return service

    async def checked(self, *words: str, worker_id: str = "gpu-1", **settings: Any) -> tuple[int, str]:
        """Run `comfyrelay worker check` with the settings of a worker; return its exit code and output."""
        environment = self._environment(worker_id, **settings)
        return await run_command("worker", "check", *words, environment=environment, log=self.folder / "check.log")

    def _environment(
        self,
        worker_id: str,
        *,
        simulators: Sequence[Simulator] | None = None,
        variables: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> dict[str, str]:
        simulators = self.simulators if simulators is None else simulators
        own = {
            "api_base_url": self.api.url,
            "comfyui_folders": ",".join(str(simulator.folder) for simulator in simulators) or None,
            "data_dir": str(self.folder / "worker"),
            "metadata_url": "off",
            "shutdown_seconds": 5,
            **settings,
        }
        return {
            "FLEET_SECRET": FLEET_SECRET,
            "FLEET_SLUG": FLEET,
            "FLEET_STAGE": "production",
            "WORKER_ID": worker_id,
            "COMFYUI_BASE_URL": ",".join(simulator.url for simulator in simulators),
            "HEARTBEAT_INTERVAL_SECONDS": "1",
            **(variables or {}),
            **{f"COMFYRELAY_WORKER_{key.upper()}": str(value) for key, value in own.items() if value is not None},
        }

    async def started(self, worker_id: str = "gpu-1", **settings: Any) -> Service:
        """Start a worker and wait until it is registered."""
        worker = self.worker(worker_id, **settings)
        await worker.start()
        await worker.wait_for_log("worker.registered")
        return worker

    async def restart_server(self) -> None:
        """Stop the server gracefully and start it again."""
        self.server.send(signal.SIGTERM)
        assert await self.server.ended() == 0
        await self.start_server()

    async def start_server(self) -> None:
        await self.server.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                assert self.server.is_running, f"the server exited:\n{self.server.text()[-4000:]}"
                try:
                    await self.http.get("/healthz")
                except httpx.TransportError:
                    # poll until the port is open
                    await asyncio.sleep(0.05)
                else:
                    return

    # actions of the user

    async def user(self, method: str, path: str, body: Any = None) -> Any:
        return _data(await self.http.request(method, f"/api{path}", json=body, headers=_bearer(self.user_token)))

    async def upload(self, content: bytes, *, name: str, mime_type: str) -> str:
        body = {"mime_type": mime_type, "size": len(content), "original_filename": name}
        created = await self.user("POST", "/videos/uploads", body)
        await self._put(created, content)
        file_id: str = created["file"]["id"]
        return file_id

    async def submit(self, effect: int | str, content: bytes | None = None, **more: Any) -> str:
        """Submit a job of an effect or of the user's workflow, with a file if given; return its id."""
        if content is not None:
            is_video = content is MP4
            more["input_file_id"] = await self.upload(
                content,
                name="clip.mp4" if is_video else "cat.png",
                mime_type="video/mp4" if is_video else "image/png",
            )
        target = {"workflow_slug": effect} if isinstance(effect, str) else {"effect_id": effect}
        body = {**target, "idempotency_key": f"key-{next(self._numbers)}", **more}
        job_id: str = (await self.user("POST", "/ai-jobs", body))["id"]
        self._submitted.append(job_id)
        return job_id

    async def image(self, effect_id: int) -> str:
        """Submit a job with a unique image."""
        colour = f"#{next(self._numbers):06x}"
        return await self.submit(effect_id, png(colour))

    async def plain(self, effect_id: int) -> str:
        return await self.submit(effect_id, input_payload={"color": next(self._numbers)})

    async def job(self, job_id: str) -> Any:
        return await self.user("GET", f"/ai-jobs/{job_id}")

    async def until(self, job_id: str, *statuses: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait until a job is in one of these states."""
        job: Any = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        job = await self.job(job_id)
                    except httpx.TransportError:
                        # the server is restarting
                        job = {"status": "unknown"}
                    if job["status"] in statuses:
                        return job
                    assert job["status"] not in ENDED, f"the job is {job['status']}: {job['error']}"
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"The job did not become {' or '.join(statuses)}: {job}") from None

    async def completed(self, job_id: str, *, seconds: float = PATIENCE_SECONDS) -> bytes:
        """Wait until a job is completed; return its output."""
        job = await self.until(job_id, "completed", seconds=seconds)
        [output] = job["outputs"]
        async with httpx.AsyncClient() as http:
            answer = await http.get(output["url"])
        assert answer.is_success, answer.text
        assert hashlib.sha256(answer.content).hexdigest() == output["content_hash"]
        return answer.content

    async def lease_of(self, job_id: str) -> Any:
        """Return the dispatch of a job."""
        [found] = (await self.admin("GET", f"/dispatches?search={job_id}"))["items"]
        return found

    async def log_lines(self, job_id: str) -> list[str]:
        """Return the log of a job, which customers cannot read because it names nodes and servers."""
        tenant_id = (await self.lease_of(job_id))["tenant_id"]
        async with self._engine() as engine:
            page = await engine.jobs.views.logs(tenant_id, job_id, after_id=0, limit=200, is_admin=True)
        return [line.line for line in page.items]

    async def waiting(self, job_id: str) -> Any:
        """Return the wait reason of a job as operators see it."""
        return await self.admin("GET", f"/dispatches/{(await self.lease_of(job_id))['id']}/waiting")

    async def until_leased(self, job_id: str, *, by: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # the server sends no event for this, so poll
            while (await self.lease_of(job_id))["worker_id"] != by:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def until_running(self, simulator: Simulator | None = None, *, prompts: int = 1) -> None:
        """Wait until a ComfyUI has received this many prompts."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (simulator or self.simulator).log.prompts_queued < prompts:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_progress(self, job_id: str, value: float) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while ((await self.job(job_id))["progress"] or {}).get("value", 0.0) < value:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def until_phase(self, job_id: str, phase: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while ((await self.job(job_id))["progress"] or {}).get("phase") != phase:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    # checks after every test

    async def check(self) -> None:
        """Stop all processes; check that no files remain and that all databases agree."""
        for worker in self.workers:
            if worker.is_running:
                worker.send(signal.SIGTERM)
                assert await worker.ended() == 0, worker.text()[-4000:]
        assert self.left_on_worker() == []
        assert [left for simulator in self.simulators for left in self.left_on_comfyui(simulator)] == []
        await self._check_charges()
        await self.reconcile()

    async def reconcile(self) -> None:
        """Check that queue, jobs and ledger agree."""
        async with self._engine() as engine:
            assert (await engine.operations.reconciler.run()).findings == []

    async def expire_lease(self, job_id: str) -> None:
        """Expire the lease of a job."""
        async with self._engine() as engine:
            await execute(
                engine.databases.central,
                "UPDATE ai_job_dispatches SET lease_expires_at = relay_now(0) WHERE tenant_job_id = :job_id",
                job_id=job_id,
            )

    async def silence(self, worker_id: str) -> None:
        """Set the last contact with a worker to an hour ago."""
        async with self._engine() as engine:
            await execute(
                engine.databases.central,
                "UPDATE workers SET last_seen_at = relay_now(-3600) WHERE worker_id = :worker_id",
                worker_id=worker_id,
            )

    def _engine(self) -> Engine:
        """Open the databases of the server."""
        return Engine(
            Settings(
                data_dir=Path(self.settings["DATA_DIR"]),
                database_url=self.settings.get("DATABASE_URL"),
                shards=json.loads(self.settings.get("SHARDS", "{}")),
            )
        )

    def left_on_worker(self) -> list[Path]:
        """Return remaining job files, leases and partial downloads of workers."""
        root = self.folder / "worker"
        files = [path for path in root.rglob("*") if path.is_file()]
        return [
            path
            for path in files
            if {"work", "held"} & set(path.parts) or path.suffix in (".part", ".tmp") or path.name.startswith(".")
        ]

    def left_on_comfyui(self, simulator: Simulator) -> list[Path]:
        """Return files in the folders of ComfyUI, except effect assets."""
        paths = [path for kind in ("input", "output", "temp") for path in (simulator.folder / kind).rglob("*")]
        return [path for path in paths if path.is_file() and path.read_bytes() not in self.assets]

    async def _check_charges(self) -> None:
        """Check that every job was charged at most once."""
        kinds = {"completed": "JOB_CONSUME", "failed": "JOB_REFUND", "canceled": "JOB_REFUND"}
        booked = Counter(
            (entry["job_id"], entry["type"]) for entry in (await self.user("GET", "/wallet?limit=200"))["transactions"]
        )
        expected: Counter[tuple[str | None, str]] = Counter()
        for job_id in self._submitted:
            expected[job_id, "JOB_RESERVE"] = 1
            if (status := (await self.job(job_id))["status"]) in kinds:
                expected[job_id, kinds[status]] = 1
        assert {key: count for key, count in booked.items() if key[0] is not None} == expected

    async def _put(self, created: Mapping[str, Any], content: bytes) -> None:
        async with httpx.AsyncClient() as http:
            sent = await http.put(created["upload_url"], content=content, headers=created["upload_headers"])
        assert sent.is_success, sent.text


@dataclass(frozen=True)
class Populated:
    """The data folder of a server and the tokens of its users."""

    folder: Path
    admin_token: str
    user_token: str


async def populate(folder: Path) -> Populated:
    """Create the initial data of a system on SQLite."""
    async with open_system(folder, {}, quiet=True) as system:
        system.server.send(signal.SIGTERM)
        assert await system.server.ended() == 0
    return Populated(folder / "server", system.admin_token, system.user_token)


@asynccontextmanager
async def open_system(
    folder: Path,
    databases: Mapping[str, str],
    *,
    s3: tuple[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    simulators: int = 1,
    quiet: bool = False,
    populated: Populated | None = None,
    is_empty: bool = False,
) -> AsyncIterator[System]:
    """Run a server with an administrator, a user with tokens and an empty fleet; `s3` is a server and a storage URL.

    The data comes from `populated` or is created, unless `is_empty` is set. At the end, the output of the processes is
    printed, unless `quiet` is set.
    """
    port = free_port()
    server_url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Proxy(server_url))
        files = await stack.enter_async_context(Proxy(s3[0] if s3 else server_url))
        own = {
            "DATA_DIR": str(folder / "server"),
            "PORT": str(port),
            # the server itself serves local files
            "PUBLIC_URL": server_url if s3 else files.url,
            "FLEET_SECRETS": json.dumps(SECRETS.fleet),
            "SIGNING_SECRETS": json.dumps(SECRETS.signing),
            "REAPER_INTERVAL_SECONDS": "0.2",
            "RATE_LIMIT_PER_MINUTE": "1000",
            "MAX_ACTIVE_JOBS_PER_USER": "200",
            "OWN_WORKFLOWS": "everyone",
            "OWN_WORKFLOW_TOKENS_PER_SECOND": "0",
            # a block would exclude the only worker from the next attempt
            "BLOCK_COOLDOWN_SECONDS": "0",
            **databases,
            **(settings or {}),
        }
        aws: dict[str, str] = {}
        if s3 is not None:
            own["STORAGE_URL"] = s3[1]
            aws = {
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_ENDPOINT_URL": files.url,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        environment = {**_prefixed(own), **aws}
        server = Service(
            *("server", "server", "--log-level", "info"),
            environment=environment,
            log=folder / "server.log",
            constants=SERVER_CONSTANTS,
        )
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=server_url, timeout=60))
        started = [await stack.enter_async_context(Simulator()) for _ in range(simulators)]
        system = System(folder, server, own, http, api, files, started[0], simulators=started)
        try:
            if populated is None:
                await system.start_server()
                if not is_empty:
                    await _populate(system, environment)
            else:
                shutil.copytree(populated.folder, folder / "server")
                system.admin_token, system.user_token = populated.admin_token, populated.user_token
                await system.start_server()
            yield system
        finally:
            for service in (*system.workers, server):
                if service.is_running:
                    await service.kill()
                log_secrets.note(line for line in service.text().splitlines() if line.startswith("{"))
                if not quiet:
                    sys.stdout.write(f"--- {service.name}\n{service.text()[-6000:]}\n")


async def _populate(system: System, environment: Mapping[str, str]) -> None:
    account = {"email": "root@example.com", "password": PASSWORD}
    code, text = await run_command(
        *("admin", "create", "--email", account["email"], "--password", account["password"]),
        environment=environment,
        log=system.folder / "admin.log",
    )
    assert code == 0, text
    system.admin_token = text.strip().splitlines()[-1]
    answer = await system.http.post("/api/register", json={"email": "ada@example.com", "password": PASSWORD})
    system.user_token = _data(answer)["token"]
    tenant_id = (await system.user("GET", "/me"))["tenant_id"]
    await system.admin("POST", f"/tenants/{tenant_id}/credits", {"amount": TOKENS, "reference": "test"})
    await system.admin("POST", "/fleets", {"slug": FLEET, "workflow_slugs": []})


def _prefixed(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"COMFYRELAY_{key}": value for key, value in settings.items()}


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _data(answer: httpx.Response) -> Any:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    return answer.json()["data"]

"""The world of a soak test: servers, workers, databases and the network between them.

It has two servers on two PostgreSQL servers and S3, and three workers with one ComfyUI simulator each. One world serves
many seeds.
"""

import asyncio
import json
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import asyncpg
import certifi
from aiohttp import web
from sqlalchemy import select

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.http_client import listen
from comfyrelay.services import databases, engine
from comfyrelay.services.engine import Engine
from comfyrelay.services.outbox import delivery
from comfyrelay.services.queue import demand, polls
from comfyrelay.services.webhooks import deliveries
from comfyrelay.settings import Settings
from comfyrelay.store.central import tables as central
from comfyrelay.worker import agent, control, draining
from comfyrelay.worker.comfyui import servers
from comfyrelay.worker.files import transfers
from tests.soak.plan import CLIENTS, COMFYUIS, DATABASES, LEASE_SECONDS, SERVERS, STORAGE, TENANTS, WORKERS
from tests.soak.processes import Postgres, SoakProcess
from tests.soak.wire import Wire
from tests.support import forked_commands
from tests.support.api import FLEET_SECRET, SECRETS
from tests.support.graphs import invert, invert_file
from tests.support.server_processes import free_port
from tests.support.storage import ACCESS_KEY, BUCKET, SECRET_KEY, serve_s3
from tests.support.whole_system import COLOR, INPUT
from tests.support.world import PATIENCE_SECONDS, memory_folder

FLEET = "home"
COST = 7
TOKENS = 100_000
# The PostgreSQL server of each database.
PLACES = {"central": "core", "a": "core", "b": "side"}
HEARTBEAT_SECONDS = 0.5
# The duration of a simulated run in seconds, and its steps, between which it can be interrupted.
RUN = {"name": "Slow", "class_type": "ImageInvert", "seconds": 0.6, "steps": 6}
# Each attempt creates a different output, so that attempts can be distinguished.
OUTPUTS = {"name": "Vary", "class_type": "SaveImage"}
# A graph that no worker can run.
FAILING_RUN = {"name": "Fail", "class_type": "RepeatImageBatch"}

# Shorter pauses for tests.
SERVER_CONSTANTS: forked_commands.Constants = {
    (databases, "DOWN_SECONDS"): 0.5,
    # a longer pause: an applied entry that is still in the outbox is applied again after a crash
    (delivery, "REMOVAL_SECONDS"): 0.5,
    (demand, "RECALL_AFTER_SECONDS"): 0.5,
    (deliveries, "LEASE_SECONDS"): 4.0,
    (deliveries, "RETRY_DELAYS_SECONDS"): [0.5] * 20,
    (engine, "SEEN_SECONDS"): 1.0,
    (engine, "WEBHOOK_SECONDS"): 0.5,
    (polls, "REPOLL_TICKS"): 1,
}
WORKER_CONSTANTS: forked_commands.Constants = {
    (agent, "DISK_PAUSE_SECONDS"): 1.0,
    (agent, "DEREGISTER_SECONDS"): 1.0,
    (control, "ANSWER_SECONDS"): 4.0,
    (control, "LONGEST_PAUSE_SECONDS"): 0.5,
    (draining, "REQUEUE_SECONDS"): 2.0,
    (draining, "RECHECK_SECONDS"): 0.2,
    (servers, "OFFLINE_SECONDS"): 2.0,
    (transfers, "_LONGEST_PAUSE_SECONDS"): 0.5,
}
# The clock of each database, which the test can advance.
CLOCK = """
CREATE TABLE soak_clock (ahead_seconds double precision NOT NULL);
INSERT INTO soak_clock VALUES (0);
CREATE OR REPLACE FUNCTION relay_now(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT now() + make_interval(secs => ahead_seconds + seconds) FROM soak_clock $$;
"""

# Whether a transaction waits to insert a job into the queue.
ENQUEUING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND query ILIKE '%INSERT INTO ai_job_dispatches%' AND pid <> pg_backend_pid()
"""
INSERT_SECONDS = 3.0
# All errors that a driver raises for a killed database.
UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@dataclass(frozen=True, kw_only=True)
class Tenant:
    name: str
    id: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


class Receiver:
    """A server that receives the webhooks of all tenants."""

    def __init__(self) -> None:
        # the message ids, by job
        self.ids: dict[str, list[str]] = {}
        self.refusing = 0
        self._runner = web.ServerRunner(web.Server(self._receive, access_log=None), shutdown_timeout=0.1)
        self.url = ""

    async def __aenter__(self) -> Self:
        listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.BaseRequest) -> web.Response:
        job_id = json.loads(await request.read())["data"]["job_id"]
        self.ids.setdefault(job_id, []).append(request.headers["webhook-id"])
        if self.refusing:
            self.refusing -= 1
            return web.Response(status=500)
        return web.Response(status=204)


@dataclass
class World:
    folder: Path
    postgres: Mapping[str, Postgres]
    http: aiohttp.ClientSession
    wires: Mapping[str, Wire]
    receiver: Receiver
    engine: Engine
    processes: Mapping[str, SoakProcess]
    # the processes that listen on a port
    addresses: Mapping[str, str]
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    # the tokens granted to each tenant, by name
    credits: Counter[str] = field(default_factory=Counter)
    admin_token: str = ""

    @property
    def url(self) -> str:
        """The address of the servers for clients."""
        return self.wires[CLIENTS].url

    async def start(self, name: str, *, skew_seconds: float = 0.0) -> None:
        await self.processes[name].start(skew_seconds=skew_seconds)

    async def holder_of(self, path: str) -> str | None:
        """Return the worker that has the lease for an output's job."""
        job_id = path.partition("/ai-jobs/")[2].partition("/")[0]
        d = central.queue.ai_job_dispatches
        try:
            async with self.engine.databases.central.read() as tx:
                found: str | None = await tx.scalar(select(d.c.worker_id).where(d.c.tenant_job_id == job_id))
        except DatabaseUnavailable:
            return None
        return found

    async def wait_for_another_lease(self, dispatch_id: int, lease_token: str) -> None:
        """Wait until a dispatch has a different lease."""
        d = central.queue.ai_job_dispatches
        query = select(d.c.lease_token).where(d.c.id == dispatch_id, d.c.lease_token != lease_token)
        while True:
            with suppress(DatabaseUnavailable):
                async with self.engine.databases.central.read() as tx:
                    if await tx.scalar(query) is not None:
                        return
            # a database sends no signal
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def hold_queue(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Block inserts into the queue, as a migration would; the yielded function waits for an attempt to insert.

        If the database is down, nothing is inserted either.
        """
        async with AsyncExitStack() as stack:
            connection: asyncpg.Connection | None = None
            with suppress(*UNREACHABLE):
                connection = await asyncpg.connect(self.postgres[PLACES["central"]].url("central"), timeout=1)
                stack.push_async_callback(_close, connection)
                await connection.execute("BEGIN; LOCK TABLE ai_job_dispatches IN EXCLUSIVE MODE")

            async def wait_for_insert() -> None:
                with suppress(*UNREACHABLE):
                    async with asyncio.timeout(INSERT_SECONDS):
                        # a database does not signal waiting transactions
                        while connection is not None and not await connection.fetchval(ENQUEUING):  # noqa: ASYNC110
                            await asyncio.sleep(0.02)

            yield wait_for_insert

    def data_of(self, worker: str) -> Path:
        return self.folder / worker

    def folder_of(self, comfyui: str) -> Path:
        return self.folder / comfyui

    async def advance(self, seconds: float) -> None:
        """Advance the clocks of all databases."""
        for name in PLACES:
            await self._execute(name, f"UPDATE soak_clock SET ahead_seconds = ahead_seconds + {seconds}")

    async def wait_until_ready(self) -> None:
        """Wait until every process answers; killed processes must have been restarted, and none may be paused."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            for name in (*SERVERS, *COMFYUIS):
                await self._wait_for_answer(name, "/readyz" if name in SERVERS else "/queue")

    async def get(self, name: str, path: str) -> Any:
        """Return the response of a process, bypassing the network."""
        async with self.http.get(self.addresses[name] + path) as answer:
            answer.raise_for_status()
            return await answer.json()

    def logs(self) -> dict[str, str]:
        found = {name: process.text() for name, process in self.processes.items()}
        return found | {name: postgres.text() for name, postgres in self.postgres.items()}

    async def populate(self) -> None:
        for name in set(PLACES):
            await self._execute("postgres", f"CREATE DATABASE {name}", place=PLACES[name])
        await self.engine.databases.upgrade()
        for name in PLACES:
            await self._execute(name, CLOCK)
        accounts, catalogue = self.engine.accounts, self.engine.catalogue
        root = await accounts.tenancy.create_user(email="root@example.com", is_admin=True)
        self.admin_token = (await accounts.sign_in.issue(root, name="soak test")).secret
        shards = [name for name in PLACES if name != "central"]
        tenants = {}
        for number, name in enumerate(TENANTS):
            user = await accounts.tenancy.create_user(email=f"{name}@example.com", shard=shards[number % len(shards)])
            await accounts.ledger.credit(user.tenant_id, TOKENS, reference="first")
            self.credits[name] = TOKENS
            await self.engine.webhooks.endpoints.set_webhook(user.tenant_id, url=self.receiver.url)
            secret = (await accounts.sign_in.issue(user, name="soak test")).secret
            tenants[name] = Tenant(name=name, id=user.tenant_id, token=secret)
        self.tenants = tenants
        plain = invert()
        plain["1"]["inputs"]["color"] = "{{COLOR}}"
        doomed = plain | {"2": {"class_type": "RepeatImageBatch", "inputs": {"image": ["1", 0], "amount": 1}}}
        output: dict[str, Any] = {"output_node_id": "3", "output_extension": "png", "output_mime_type": "image/png"}
        image = invert_file("{{INPUT}}")
        for slug, graph, field_ in (("plain", plain, COLOR), ("image", image, INPUT), ("doomed", doomed, COLOR)):
            await catalogue.workflows.create(slug=slug, graph=graph, properties=[field_], **output)
            effect = await catalogue.effects.create(slug=slug, workflow_slug=slug, credits_cost=COST)
            self.effects[slug] = effect.id
        await self.engine.workers.fleets.create(slug=FLEET, workflow_slugs=[*self.effects])

    async def _wait_for_answer(self, name: str, path: str) -> None:
        while True:
            try:
                await self.get(name, path)
            except (aiohttp.ClientError, OSError):
                # there is no signal for an opened port
                await asyncio.sleep(0.05)
            else:
                return

    async def _execute(self, database: str, statement: str, *, place: str | None = None) -> None:
        connection = await asyncpg.connect(self.postgres[place or PLACES[database]].url(database))
        await connection.execute(statement)
        await connection.close()


async def _close(connection: asyncpg.Connection) -> None:
    # the database may have stopped
    with suppress(*UNREACHABLE):
        await connection.close(timeout=1)


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(memory_folder())
        postgres = await stack.enter_async_context(_databases())
        s3 = stack.enter_context(serve_s3(folder / "s3"))
        ports = {name: free_port() for name in (*SERVERS, *COMFYUIS)}
        addresses = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        behind = [addresses[name] for name in SERVERS]
        wires = {name: await stack.enter_async_context(Wire(name, behind)) for name in (*WORKERS, CLIENTS)}
        wires[STORAGE] = await stack.enter_async_context(Wire(STORAGE, [s3]))
        settings = _server_settings(folder, postgres, public_url=wires[CLIENTS].url)
        aws = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": wires[STORAGE].url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        # the test itself can always access the files
        stack.enter_context(_environment({**aws, "AWS_ENDPOINT_URL": s3}))
        engine_ = await stack.enter_async_context(_engine(settings))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=5), connector=aiohttp.TCPConnector(force_close=True)
            )
        )
        receiver = await stack.enter_async_context(Receiver())
        processes = {
            **_servers(folder, ports, {**{f"COMFYRELAY_{key}": value for key, value in settings.items()}, **aws}),
            **_comfyuis(folder, ports),
            **_workers(folder, addresses, wires),
        }
        world = World(folder, postgres, http, wires, receiver, engine_, processes, addresses)
        await world.populate()
        stack.push_async_callback(_kill, world)
        await asyncio.gather(*(world.start(name) for name in processes))
        await world.wait_until_ready()
        yield world


@asynccontextmanager
async def _databases() -> AsyncIterator[dict[str, Postgres]]:
    """Run PostgreSQL servers; yield them by name."""
    with tempfile.TemporaryDirectory(prefix="comfyrelay-soak-", ignore_cleanup_errors=True) as home:
        # if root runs the tests, the server belongs to another user, who must have access to its files
        Path(home).chmod(0o755)
        postgres = {name: Postgres(Path(home) / name) for name in DATABASES}
        first = postgres[DATABASES[0]]
        try:
            for server in postgres.values():
                await asyncio.to_thread(server.create_files, None if server is first else first)
            for server in postgres.values():
                await server.start()
            yield postgres
        finally:
            for server in postgres.values():
                try:
                    if server.is_up:
                        await server.stop_at_once()
                finally:
                    server.disk.unmount()


def _server_settings(folder: Path, postgres: Mapping[str, Postgres], *, public_url: str) -> dict[str, str]:
    shards = {name: postgres[place].url(name) for name, place in PLACES.items() if name != "central"}
    return {
        "DATA_DIR": str(folder / "server"),
        "DATABASE_URL": postgres[PLACES["central"]].url("central"),
        "SHARDS": json.dumps(shards),
        "STORAGE_URL": f"s3://{BUCKET}/files",
        "PUBLIC_URL": public_url,
        "FLEET_SECRETS": json.dumps(SECRETS.fleet),
        "SIGNING_SECRETS": json.dumps(SECRETS.signing),
        "LEASE_TTL_SECONDS": str(LEASE_SECONDS),
        "REAPER_INTERVAL_SECONDS": "0.2",
        "RECOVERY_INTERVAL_SECONDS": "0.3",
        "RETRY_BACKOFF_SECONDS": "0.2",
        "BLOCK_COOLDOWN_SECONDS": "0.5",
        "WORKER_OFFLINE_SECONDS": "2",
        "RATE_LIMIT_PER_MINUTE": "100000",
        "MAX_ACTIVE_JOBS_PER_USER": "1000",
        "WEBHOOK_ALLOW_PRIVATE": "true",
        "OWN_WORKFLOWS": "everyone",
        "OWN_WORKFLOW_TOKENS_PER_SECOND": "0",
        "UNUSED_UPLOAD_HOURS": "1",
        "DATABASE_SHARD_SIZE": "5",
    }


def _engine(settings: Mapping[str, str]) -> Engine:
    """Open the databases and files of the servers, to inspect them and run retention."""
    own = Settings(
        data_dir=Path(settings["DATA_DIR"]),
        database_url=settings["DATABASE_URL"],
        shards=json.loads(settings["SHARDS"]),
        storage_url=settings["STORAGE_URL"],
        unused_upload_hours=float(settings["UNUSED_UPLOAD_HOURS"]),
        webhook_allow_private=True,
        database_pool_size=2,
    )
    return Engine(own, signing_secrets=SECRETS.signing)


def _servers(folder: Path, ports: Mapping[str, int], environment: Mapping[str, str]) -> dict[str, SoakProcess]:
    return {
        name: SoakProcess(
            name,
            *("server", "--log-level", "info"),
            environment={**environment, "COMFYRELAY_PORT": str(ports[name])},
            log=folder / f"{name}.log",
            constants=SERVER_CONSTANTS,
        )
        for name in SERVERS
    }


def _comfyuis(folder: Path, ports: Mapping[str, int]) -> dict[str, SoakProcess]:
    return {
        name: SoakProcess(
            name,
            *("simulator", "--port", str(ports[name]), "--folder", str(folder / name)),
            *(word for behavior in (RUN, OUTPUTS, FAILING_RUN) for word in ("--misbehave", json.dumps(behavior))),
            environment={},
            log=folder / f"{name}.log",
        )
        for name in COMFYUIS
    }


def _workers(folder: Path, addresses: Mapping[str, str], wires: Mapping[str, Wire]) -> dict[str, SoakProcess]:
    return {
        name: SoakProcess(
            name,
            "worker",
            environment=_worker_environment(
                name, folder, api=wires[name].url, comfyui=comfyui, address=addresses[comfyui]
            ),
            log=folder / f"{name}.log",
            constants=WORKER_CONSTANTS,
        )
        for name, comfyui in zip(WORKERS, COMFYUIS, strict=True)
    }


def _worker_environment(worker: str, folder: Path, *, api: str, comfyui: str, address: str) -> dict[str, str]:
    own = {
        "api_base_url": api,
        "comfyui_folders": str(folder / comfyui),
        "data_dir": str(folder / worker),
        "metadata_url": "off",
        "poll_wait_seconds": "3",
        "shutdown_seconds": "2",
    }
    return {
        "FLEET_SECRET": FLEET_SECRET,
        "FLEET_SLUG": FLEET,
        "FLEET_STAGE": "production",
        "WORKER_ID": worker,
        "COMFYUI_BASE_URL": address,
        "HEARTBEAT_INTERVAL_SECONDS": str(HEARTBEAT_SECONDS),
        **{f"COMFYRELAY_WORKER_{key.upper()}": value for key, value in own.items()},
    }


async def _kill(world: World) -> None:
    await asyncio.gather(*(process.kill() for process in world.processes.values() if process.is_running))


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def small_certificate_bundle() -> Iterator[None]:
    """Give HTTP clients a bundle of one certificate: each client parses the whole bundle, and none uses TLS."""
    first, end, _others = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(first + end)
        file.flush()
        with _environment({"SSL_CERT_FILE": file.name}):
            yield

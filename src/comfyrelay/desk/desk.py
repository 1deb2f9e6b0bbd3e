"""The whole system in one process for one person: server, worker, and the simulator where things are tried out."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.processes.options import CareSettings
from comfyrelay.desk.addresses import LOOPBACK, open_listeners
from comfyrelay.desk.batches.output_copies import Copies, remove_copies
from comfyrelay.desk.batches.run_files import about_run
from comfyrelay.desk.checks import examine_own
from comfyrelay.desk.data_folder import open_data_folder
from comfyrelay.desk.examples import EXAMPLES, write_sample
from comfyrelay.desk.notifications.notifier import Notifier, Occasion, without_secrets
from comfyrelay.desk.notifications.sender import NotificationSender
from comfyrelay.desk.one_time_links import OneTimeLinks
from comfyrelay.desk.origin_check import LocalOnly, address_here, own_names
from comfyrelay.desk.owner_auth import OwnerOnly
from comfyrelay.desk.password import Password, Sessions, require_password
from comfyrelay.desk.routes.desk import add_desk_routes
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.scripts.config import script_settings
from comfyrelay.desk.scripts.frozen_inputs import FrozenInputs
from comfyrelay.desk.scripts.server import ScriptServer
from comfyrelay.desk.scripts.workflow import CLASS_TYPE, SLUG, ScriptCheck, furnish_script, snapshot_in, varied
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.simulated_jobs import TRIED_MODELS, Trying
from comfyrelay.desk.starter_presets import PRESETS
from comfyrelay.desk.state import DeskState
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.states import DispatchStatus, Stage, WorkflowKind
from comfyrelay.domain.queue.updates import UploadedOutput
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import DispatchFilter, NewJobRecord
from comfyrelay.errors import ComfyError, Conflict, NotFound
from comfyrelay.http_client import is_loopback
from comfyrelay.protocol.desk import TryingOut
from comfyrelay.server.app import create_app
from comfyrelay.server.http.context import SESSION_COOKIE, Owner
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.server.main import serving
from comfyrelay.services.engine import Engine, Hooks
from comfyrelay.services.jobs.removal import RemovedFiles
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import load_secret, noted
from comfyrelay.worker.agent import Agent
from comfyrelay.worker.check import CheckFinding
from comfyrelay.worker.comfyui.servers import WrapServer
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from comfyrelay.simulator import Simulator

FLEET = "desk"
WORKER = "desk"
# the fleet and the worker of what is tried out
STAND_IN = "simulator"
LOCAL_EMAIL = "desk@localhost"
# Nobody else's jobs wait on a desk.
NO_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskReady:
    """A desk that is up."""

    url: str
    data_dir: Path
    # where ComfyUI is, or is waited for
    comfyui: list[str]
    # of those, the ones that do not answer yet
    silent: list[str]
    # from where it is started by the desk itself, if it is
    comfyui_dir: Path | None
    trying_out: TryingOut
    is_new: bool
    # where other machines find it, if they may
    url_elsewhere: str | None
    # opens the page in one browser, once
    link: str = field(repr=False)


@dataclass(kw_only=True)
class Desk:
    settings: Settings
    desk: DeskSettings = field(default_factory=DeskSettings)
    # `[desk.script]`, as the file has it
    script: Mapping[str, Any] | None = None
    # the user's own, where this process has another: for scripts, and for what is copied out of the data folder
    umask: int | None = None
    on_ready: Callable[[DeskReady], None] = lambda _ready: None
    on_status: Callable[[list[Lease]], None] | None = None
    # a ComfyUI came that was away when the desk was up, or since
    on_comfyui: Callable[[], None] = lambda: None
    # by the stage that they work at
    _agents: dict[Stage, Agent] = field(default_factory=dict, init=False)
    _copies: Copies | None = field(default=None, init=False)
    _simulator: "Simulator | None" = field(default=None, init=False)

    async def run(self) -> None:
        """Until SIGTERM or Ctrl-C, and until the job that runs then is finished or put back."""
        async with self.open(signals=True) as (agent, _ready):
            await agent

    @asynccontextmanager
    async def open(self, *, signals: bool = False) -> AsyncIterator[tuple["asyncio.Task[None]", DeskReady]]:
        """A desk that is up; the task is that of its worker, and ends when the worker has left."""
        settings = _for_one_person(self.settings)
        names = own_names(settings, self.desk.allowed_hosts)
        password = self._password(settings)
        if (care := self.desk.care) is not None:
            # what cannot be started is said before anything is
            care.resolved()
        async with AsyncExitStack() as opened:
            opened.callback(open_data_folder(settings.data_dir).give_up)
            write_sample(self.input_folder)
            script = self._script_settings()
            snapshots = FrozenInputs(settings.data_dir / "script" / "snapshots", script) if script is not None else None
            listeners = [opened.enter_context(closing(each)) for each in open_listeners(settings.host, settings.port)]
            address, pass_secret = _loopback(listeners[0]), token_urlsafe(32)
            forget_note = opened.enter_context(noted(settings.data_dir, address=address, secret=pass_secret))
            secrets = load_secrets(settings, is_only_server=True)
            links = OneTimeLinks(settings.base_url)
            notifications = NotificationSender(Notifier(self.desk.notify_urls, self.notify_on))
            trying = Trying(
                settings.data_dir,
                stage=Stage(settings.stage),
                is_chosen=self.desk.simulator,
                is_named=bool({"comfyui_url", "comfyui_dir"} & self.desk.model_fields_set),
            )
            hooks = self._hooks(notifications, trying, ScriptCheck(script, snapshots) if script and snapshots else None)
            engine = await opened.enter_async_context(Engine(settings, signing_secrets=secrets.signing, hooks=hooks))
            await engine.databases.upgrade()
            user, is_new = await _furnish(engine, settings)
            await Password(settings.data_dir).end_sessions_of_others(engine.accounts.sign_in, user)
            await furnish_script(engine, user, script)
            if snapshots is not None:
                opened.push_async_callback(_ended_task(asyncio.create_task(_sweep(snapshots, engine, user))))
            silent = await self._check_comfyui(engine, trying)
            simulator = None
            if trying.mode is not TryingOut.NOTHING or await _has_tries(engine, trying.tries_stage):
                await _furnish_simulator(engine, trying)
                simulator = self._simulator = await opened.enter_async_context(
                    _simulator(settings.data_dir, self.desk.simulator_step_seconds)
                )
            ready = DeskReady(
                url=settings.base_url,
                data_dir=settings.data_dir,
                comfyui=self._addresses,
                silent=silent,
                comfyui_dir=self.desk.comfyui_dir,
                trying_out=trying.mode,
                is_new=is_new,
                url_elsewhere=_url_elsewhere(settings),
                link=links.make(),
            )
            owner = Owner(
                user=user,
                secret=load_secret(settings.data_dir),
                pass_secret=pass_secret,
                session_cookie=f"{SESSION_COOKIE}_{settings.port}",
                worker_ids=(WORKER, STAND_IN),
                worker_secret=token_urlsafe(32),
                about_run=self._about_run,
                session_of=Sessions(engine.accounts.sign_in, settings.data_dir).name_of,
            )
            self._copies = Copies(engine, self.output_folder, umask=self._umask_of(self.output_folder))
            self._agents = self._make_agents(
                settings,
                owner.worker_secret,
                trying,
                simulator,
                signals=signals,
                on_output=self._copies.keep,
                wrap_server=self._beside_script(script, snapshots) if script and snapshots else None,
                own_nodes=frozenset({CLASS_TYPE} if script is not None else ()),
            )
            app = create_app(engine, secrets, owner=owner)
            self._add_desk(
                app,
                ready,
                links,
                password=password,
                notifications=notifications,
                trying=trying,
                script=script,
                simulator=simulator,
            )
            app.add_middleware(OwnerOnly, context=app.state.context, has_password=password is not None)
            # the outermost: nothing else is asked before it
            app.add_middleware(LocalOnly, names=names, own_addresses=not is_loopback(settings.host))
            async with serving(app, *listeners), notifications.sending(engine, user):
                tasks = {each: asyncio.create_task(each.run()) for each in self._agents.values()}
                # it hears signals from its first step on, and whoever is told that it is up may send one
                await asyncio.sleep(0)
                self.on_ready(ready)
                try:
                    yield tasks[self._agents[trying.stage]], ready
                finally:
                    for each in tasks:
                        each.stop()
                    await asyncio.gather(*tasks.values(), return_exceptions=True)
                    # from here on somebody else may listen there before this process is gone
                    forget_note()

    def _password(self, settings: Settings) -> Password | None:
        """Where others can reach the desk, by its address or through a proxy, there must be one."""
        others = [*self.desk.allowed_hosts, *([] if is_loopback(settings.host) else [settings.host])]
        if not others:
            return None
        require_password(settings.data_dir, host=", ".join(others))
        return Password(settings.data_dir)

    def _hooks(self, notifications: NotificationSender, trying: Trying, check: ScriptCheck | None) -> Hooks:
        return Hooks(
            on_ended=notifications.job_ended,
            checks={WorkflowKind.SCRIPT: check} if check is not None else {},
            vary=varied,
            desk_workers=(WORKER, STAND_IN),
            sends_notifications=True,
            comfyui_away=self._all_away,
            is_worker_coming=self._is_worker_coming,
            stage_of=trying.stage_of,
            on_removed=self._remove_copies,
            on_reused=self._keep_reused,
            more_fleets=[(trying.tries_stage, STAND_IN)],
            live_definitions=lambda: self._definitions(trying),
            on_missing=self._refresh_models,
        )

    async def _check_comfyui(self, engine: Engine, trying: Trying) -> list[str]:
        """Those that do not answer yet."""
        trying.examples = await _example_ids(engine)
        silent = await _silent(self._addresses)
        if len(silent) < len(self._addresses):
            trying.note_comfyui()
        return silent

    def _make_agents(
        self,
        settings: Settings,
        secret: str,
        trying: Trying,
        simulator: "Simulator | None",
        *,
        signals: bool,
        **common: Any,
    ) -> dict[Stage, Agent]:
        """One for ComfyUI, which hears signals, and one for what is tried out."""
        common |= {"on_status": self._show_held, "is_shared": False}
        own = self._worker_settings(settings, secret, **self._where_comfyui_is)
        agents = {
            trying.stage: Agent(own, on_online=lambda: self._found_comfyui(trying), signals=signals, **common),
        }
        if simulator is not None:
            for_tries = self._worker_settings(
                settings,
                secret,
                comfyui_base_url=[simulator.url],
                comfyui_folders=[simulator.folder],
                worker_id=STAND_IN,
                display_name="Simulator",
                fleet_slug=STAND_IN,
                fleet_stage=trying.tries_stage,
            )
            agents[trying.tries_stage] = Agent(for_tries, signals=False, **common)
        return agents

    def _all_away(self, stage: str) -> list[str]:
        """Why nothing that runs jobs of this stage can be used, if nothing can."""
        agent = self._agents.get(Stage(stage))
        return agent.comfyui_away if agent is not None and agent.is_without_comfyui else []

    def _is_worker_coming(self, stage: str) -> bool:
        """Whether the desk has only just begun: the API answers before its workers are there."""
        agent = self._agents.get(Stage(stage))
        return agent.is_coming if agent is not None else not self._agents

    async def _definitions(self, trying: Trying) -> Mapping[str, Any]:
        """Of the nodes that whatever runs new workflows has at this moment."""
        is_tried = trying.mode is TryingOut.EVERYTHING and self._simulator is not None
        own = self._own_urls(trying) or ["http://127.0.0.1:8188"]
        async with ComfyClient(self._simulator.url if is_tried and self._simulator else own[0]) as client:
            return await client.object_info()

    @property
    def _addresses(self) -> list[str]:
        """Where ComfyUI is, unless the desk starts it itself."""
        return self.desk.comfyui_url if self.desk.care is None else []

    def _own_urls(self, trying: Trying) -> list[str]:
        """The same, with those that the desk has started."""
        agent = self._agents.get(trying.stage)
        return self._addresses or (agent.comfyui_urls if agent is not None else [])

    @property
    def _where_comfyui_is(self) -> dict[str, Any]:
        desk = self.desk
        if desk.care is None:
            return {"comfyui_base_url": desk.comfyui_url, "comfyui_folders": desk.comfyui_folders}
        return {name: getattr(desk, name) for name in CareSettings.model_fields}

    def _refresh_models(self) -> None:
        for each in self._agents.values():
            each.refresh_models()

    async def _keep_reused(
        self, job: NewJobRecord, batch_label: str | None, output: UploadedOutput
    ) -> dict[str, Any] | None:
        return None if self._copies is None else await self._copies.keep_reused(job, batch_label, output)

    async def _remove_copies(self, attempts: Sequence[Attempt]) -> RemovedFiles:
        return await asyncio.to_thread(remove_copies, self.output_folder, attempts)

    def _found_comfyui(self, trying: Trying) -> None:
        trying.note_comfyui()
        self.on_comfyui()

    def _show_held(self, _of_one: list[Lease]) -> None:
        if self.on_status is not None:
            self.on_status(self._held)

    @property
    def _held(self) -> list[Lease]:
        return [lease for agent in self._agents.values() for lease in agent.held]

    def _about_run(self, lease_token: str, reported: dict[str, Any] | None) -> dict[str, Any] | None:
        """Files are named by the worker in this process, which is asked itself, and never over the wire."""
        own = next((each.about for each in self._held if each.job.lease_token == lease_token), {})
        return about_run(reported, own)

    @property
    def input_folder(self) -> Path:
        return (self.desk.input_folder or self.settings.data_dir / "inputs").expanduser().absolute()

    @property
    def output_folder(self) -> Path:
        return (self.desk.output_folder or self.settings.data_dir / "outputs").expanduser().absolute()

    @property
    def notify_on(self) -> list[Occasion]:
        return [Occasion(each) for each in self.desk.notify_on]

    def _add_desk(
        self,
        app: FastAPI,
        ready: DeskReady,
        links: OneTimeLinks,
        *,
        password: Password | None,
        notifications: NotificationSender,
        trying: Trying,
        script: ScriptSettings | None,
        simulator: "Simulator | None",
    ) -> None:
        is_all_tried = trying.mode is TryingOut.EVERYTHING

        def find_comfyui() -> list[str]:
            return [simulator.url] if simulator is not None and is_all_tried else self._own_urls(trying)

        state = DeskState(
            find_comfyui=find_comfyui,
            examine=lambda: self._examine([] if is_all_tried else find_comfyui()),
            comfyui_away=lambda: [] if is_all_tried else self._agents[trying.stage].comfyui_away,
            trying=trying,
            data_dir=ready.data_dir,
            input_folder=self.input_folder,
            output_folder=self.output_folder,
            output_umask=self._umask_of(self.output_folder),
            notify_urls=[without_secrets(each) for each in self.desk.notify_urls],
            notify_on=self.notify_on,
            not_sent=notifications.not_sent,
            script=script,
            links=links,
            password=password,
        )
        add_desk_routes(app, state)

    def _examine(self, in_use: Sequence[str]) -> AsyncIterator[CheckFinding]:
        return examine_own(self.settings, self.desk, in_use, script=self.script)

    def _beside_script(self, script: ScriptSettings, snapshots: FrozenInputs) -> WrapServer:
        logs = self.settings.data_dir / "script" / "logs"
        umask = self._umask_of(script.output_folder or script.working_folder)
        return lambda comfy: ScriptServer(comfy, script, snapshots=snapshots, log_folder=logs, umask=umask)

    def _umask_of(self, folder: Path) -> int | None:
        """With what a folder is written to: what lies in the data folder is as private as that is."""
        return None if folder.is_relative_to(self.settings.data_dir) else self.umask

    def _script_settings(self) -> ScriptSettings | None:
        if self.script is None:
            return None
        return script_settings(self.script, data_dir=self.settings.data_dir, input_folder=self.input_folder)

    def _worker_settings(self, settings: Settings, secret: str, **who: Any) -> WorkerSettings:
        named = {
            "fleet_slug": FLEET,
            "fleet_stage": settings.stage,
            "worker_id": WORKER,
            "display_name": "This machine",
        }
        return WorkerSettings(
            **{**named, **who},
            api_base_url=settings.base_url,
            fleet_secret=secret,
            comfy_providers=["self_hosted"],
            max_concurrency=self.desk.at_once,
            prefetch=self.desk.prefetch,
            killed_jobs=self.desk.interrupted_jobs,
            is_only_worker=True,
            tidy_comfyui=self.desk.tidy_comfyui,
            graph_policy=settings.graph_policy,
            graph_denied_nodes=settings.graph_denied_nodes,
            graph_allowed_nodes=settings.graph_allowed_nodes,
            shutdown_seconds=self.desk.finish_seconds,
            data_dir=settings.data_dir / "worker",
            metadata_url="off",
        )


def _loopback(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return (host if is_loopback(host) else LOOPBACK), port


def _url_elsewhere(settings: Settings) -> str | None:
    if is_loopback(settings.host):
        return None
    host = address_here(settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _for_one_person(settings: Settings) -> Settings:
    given = settings.model_fields_set
    is_alone = is_loopback(settings.host)
    wanted = {
        "max_active_jobs_per_user": NO_LIMIT,
        "default_fleet": FLEET,
        # others may try secrets where they can reach it
        "requests_per_minute": NO_LIMIT if is_alone else settings.requests_per_minute,
        # its own worker is at home here, whoever else it listens to
        "public_url": settings.public_url if is_alone else f"http://{LOOPBACK}:{settings.port}",
        # nobody else waits, and a batch of ten thousand items has a prompt in each
        "max_large_body_bytes": 64 * 1024**2,
        "max_body_values": 2 * NO_LIMIT,
        "max_batch_nodes": 1000 * NO_LIMIT,
        "max_own_workflows": NO_LIMIT,
        # whose graphs they are, theirs is the machine
        "graph_policy": "off",
        # there is no other worker to try it meanwhile
        "block_cooldown_seconds": 5.0,
    }
    changes = {name: value for name, value in wanted.items() if name not in given or name == "default_fleet"}
    return settings.model_copy(update=changes)


async def _furnish(engine: Engine, settings: Settings) -> tuple[User, bool]:
    """The one user, the one fleet, and the examples, at the first start; one that was cut off is gone on with."""
    user = await engine.accounts.tenancy.user_of(LOCAL_EMAIL)
    # what somebody has removed since does not come back
    is_furnished = settings.data_dir / ".furnished"
    if user is not None and is_furnished.exists():
        return user, False
    with suppress(Conflict):
        await engine.fleet.fleets.create(slug=FLEET, stage=Stage(settings.stage), name="The desk")
    for each in EXAMPLES:
        with suppress(Conflict):
            await engine.catalogue.workflows.create(
                slug=each.slug,
                name=each.name,
                graph=each.graph,
                properties=each.properties,
                output_node_id=each.output_node_id,
                output_extension=each.output_extension,
                output_mime_type=each.output_mime_type,
            )
        with suppress(Conflict):
            await engine.catalogue.effects.create(
                slug=each.slug, workflow_slug=each.slug, name=each.name, credits_cost=0
            )
    user = user or await engine.accounts.tenancy.create_user(email=LOCAL_EMAIL, name="You", is_admin=True)
    for name, values in reversed([*PRESETS.items()]):
        with suppress(Conflict):
            await engine.catalogue.presets.create(user.tenant_id, name=name, values=values)
    is_furnished.touch()
    return user, True


async def _sweep(snapshots: FrozenInputs, engine: Engine, user: User) -> None:
    """Remove what was kept for script jobs that are no longer there."""
    workflow = (await engine.catalogue.workflows.get(SLUG)).workflow
    found = [each async for each in engine.jobs.views.snapshots(user.tenant_id, workflow_id=workflow.id)]
    used = {name for each in found if (name := snapshot_in(each.values)) is not None}
    await asyncio.to_thread(snapshots.sweep, used)


def _ended_task(task: "asyncio.Task[None]") -> Callable[[], Awaitable[None]]:
    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return end


async def _example_ids(engine: Engine) -> frozenset[int]:
    found: set[int] = set()
    for each in EXAMPLES:
        with suppress(NotFound):
            found.add((await engine.catalogue.workflows.get(each.slug)).workflow.id)
    return frozenset(found)


async def _has_tries(engine: Engine, stage: Stage) -> bool:
    """Whether something that was added to try things out is not done yet."""
    for status in (DispatchStatus.QUEUED, DispatchStatus.LEASED, DispatchStatus.PAUSED):
        wanted = DispatchFilter(stage=stage, status=status)
        if (await engine.operations.inspection.dispatches(wanted, limit=1)).items:
            return True
    return False


async def _furnish_simulator(engine: Engine, trying: Trying) -> None:
    """Its fleet, which may run whatever the desk itself may."""
    slugs = (await engine.fleet.views.get(trying.stage, FLEET)).workflow_slugs
    with suppress(Conflict):
        await engine.fleet.fleets.create(slug=STAND_IN, stage=trying.tries_stage, workflow_slugs=slugs)


@asynccontextmanager
async def _simulator(data_dir: Path, step_seconds: float) -> AsyncIterator["Simulator"]:
    # nobody else needs it, nor the HTTP library that it comes with
    from comfyrelay.simulator import Simulator  # noqa: PLC0415

    folder = data_dir / "simulator"
    folder.mkdir(exist_ok=True)
    async with Simulator(folder=folder, step_seconds=step_seconds, models=TRIED_MODELS) as simulator:
        yield simulator


async def _silent(urls: Sequence[str]) -> list[str]:
    """Those where no ComfyUI answers."""
    found = await asyncio.gather(*map(answers, urls))
    return [url for url, is_there in zip(urls, found, strict=True) if not is_there]


async def answers(url: str) -> bool:
    """Whether there is a ComfyUI."""
    async with ComfyClient(url) as client:
        try:
            async with asyncio.timeout(3.0):
                await client.check()
        except (ComfyError, TimeoutError):
            return False
    return True

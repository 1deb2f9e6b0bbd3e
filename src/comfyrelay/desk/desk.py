"""The whole system in one process for one user: server, worker, and the simulator if it is needed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from comfyrelay.desk.addresses import open_listeners
from comfyrelay.desk.checks import examine_own
from comfyrelay.desk.composition.first_start import create_initial_data, single_user_settings
from comfyrelay.desk.composition.hooks import OutputFolder, desk_hooks
from comfyrelay.desk.composition.scripts import DeskScript, set_up_script
from comfyrelay.desk.composition.simulator import check_comfyui, open_simulator
from comfyrelay.desk.composition.web import (
    create_desk_app,
    create_owner,
    load_password,
    loopback_address,
    url_elsewhere,
)
from comfyrelay.desk.composition.workers import DeskWorkers
from comfyrelay.desk.data_folder import open_data_folder
from comfyrelay.desk.examples import write_sample
from comfyrelay.desk.notifications.notifier import Notifier, NotificationEvent, without_secrets
from comfyrelay.desk.notifications.sender import NotificationSender
from comfyrelay.desk.one_time_links import OneTimeLinks
from comfyrelay.desk.password import Password
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.simulated_jobs import Trying
from comfyrelay.desk.state import DeskState
from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.server.main import serving
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import desk_note
from comfyrelay.worker.lease import Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskReady:
    """A desk that is up."""

    url: str
    data_dir: Path
    # the URLs of ComfyUI, reachable or not
    comfyui: list[str]
    # the URLs that do not answer yet
    silent: list[str]
    # the folder of a managed ComfyUI
    comfyui_dir: Path | None
    simulated_jobs: SimulatedJobs
    is_new: bool
    # the URL for other machines, if they may connect
    url_elsewhere: str | None
    # opens the page in one browser, once
    link: str = field(repr=False)


@dataclass(kw_only=True)
class Desk:
    settings: Settings
    desk: DeskSettings = field(default_factory=DeskSettings)
    # `[desk.script]` of the configuration file
    script: Mapping[str, Any] | None = None
    # the user's umask, if the process has another: for scripts, and for copies outside the data folder
    umask: int | None = None
    on_ready: Callable[[DeskReady], None] = lambda _ready: None
    on_status: Callable[[list[Lease]], None] | None = None
    # a ComfyUI that was unreachable answers
    on_comfyui: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Until SIGTERM or Ctrl-C. The running job is then finished or requeued."""
        async with self.open(signals=True) as (agent, _ready):
            await agent

    @asynccontextmanager
    async def open(self, *, signals: bool = False) -> AsyncIterator[tuple["asyncio.Task[None]", DeskReady]]:
        """Yield the task of the worker, which ends when the worker has deregistered."""
        settings = single_user_settings(self.settings)
        password = load_password(settings, self.desk.allowed_hosts)
        if (managed := self.desk.managed) is not None:
            # report an unusable ComfyUI folder before anything starts
            managed.resolve()
        async with AsyncExitStack() as opened:
            opened.callback(open_data_folder(settings.data_dir).release)
            write_sample(self.input_folder)
            script = self._load_script()
            listeners = [
                opened.enter_context(closing(listener)) for listener in open_listeners(settings.host, settings.port)
            ]
            pass_secret = token_urlsafe(32)
            remove_note = opened.enter_context(
                desk_note(settings.data_dir, address=loopback_address(listeners[0]), secret=pass_secret)
            )
            secrets = load_secrets(settings, is_only_server=True)
            links = OneTimeLinks(settings.base_url)

            notifications = NotificationSender(Notifier(self.desk.notify_urls, self.notify_on))
            trying = self._choose_simulated_jobs()
            workers = DeskWorkers(settings, self.desk, trying, on_status=self.on_status, on_comfyui=self.on_comfyui)
            outputs = OutputFolder(self.output_folder, umask=self._umask_of(self.output_folder))
            hooks = desk_hooks(notifications, trying, workers, outputs, script)
            engine = await opened.enter_async_context(Engine(settings, signing_secrets=secrets.signing, hooks=hooks))
            await engine.databases.upgrade()

            user, is_new = await create_initial_data(engine, settings)
            await Password(settings.data_dir).end_sessions_of_others(engine.accounts.sign_in, user)
            await set_up_script(engine, user, script)
            if script is not None:
                await opened.enter_async_context(script.removing_unused_inputs(engine, user))
            silent = await check_comfyui(engine, trying, workers.configured_urls)
            simulator = await opened.enter_async_context(
                open_simulator(engine, trying, step_seconds=self.desk.simulator_step_seconds)
            )
            owner = create_owner(engine, user, workers, pass_secret=pass_secret)
            workers.add(
                owner.worker_secret,
                simulator,
                signals=signals,
                on_output=outputs.attach(engine).keep,
                wrap_server=script.wrap_server if script is not None else None,
                own_nodes=script.own_nodes if script is not None else frozenset(),
            )
            state = self._state(workers, trying, notifications, links, script=script, password=password)
            app = create_desk_app(engine, secrets, owner, state, self.desk.allowed_hosts)
            ready = DeskReady(
                url=settings.base_url,
                data_dir=settings.data_dir,
                comfyui=workers.configured_urls,
                silent=silent,
                comfyui_dir=self.desk.comfyui_dir,
                simulated_jobs=trying.mode,
                is_new=is_new,
                url_elsewhere=url_elsewhere(settings),
                link=links.make(),
            )
            async with serving(app, *listeners), notifications.sending(engine, user):
                try:
                    async with workers.running() as task:
                        self.on_ready(ready)
                        yield task, ready
                finally:
                    # while the desk still listens: afterwards another process may take the address
                    remove_note()

    @property
    def input_folder(self) -> Path:
        return (self.desk.input_folder or self.settings.data_dir / "inputs").expanduser().absolute()

    @property
    def output_folder(self) -> Path:
        return (self.desk.output_folder or self.settings.data_dir / "outputs").expanduser().absolute()

    @property
    def notify_on(self) -> list[NotificationEvent]:
        return [NotificationEvent(each) for each in self.desk.notify_on]

    def _load_script(self) -> DeskScript | None:
        return DeskScript.load(
            self.script,
            data_dir=self.settings.data_dir,
            input_folder=self.input_folder,
            umask_of=self._umask_of,
        )

    def _choose_simulated_jobs(self) -> Trying:
        return Trying(
            self.settings.data_dir,
            stage=Stage(self.settings.stage),
            is_chosen=self.desk.simulator,
            is_named=bool({"comfyui_url", "comfyui_dir"} & self.desk.model_fields_set),
        )

    def _state(
        self,
        workers: DeskWorkers,
        trying: Trying,
        notifications: NotificationSender,
        links: OneTimeLinks,
        *,
        script: DeskScript | None,
        password: Password | None,
    ) -> DeskState:
        return DeskState(
            find_comfyui=lambda: workers.urls_in_use,
            examine=lambda: examine_own(
                self.settings,
                self.desk,
                [] if workers.is_all_simulated else workers.comfyui_urls,
                script=self.script,
            ),
            comfyui_unreachable=workers.unreachable_comfyui,
            trying=trying,
            data_dir=self.settings.data_dir,
            input_folder=self.input_folder,
            output_folder=self.output_folder,
            output_umask=self._umask_of(self.output_folder),
            notify_urls=[without_secrets(notify_url) for notify_url in self.desk.notify_urls],
            notify_on=self.notify_on,
            not_sent=notifications.not_sent,
            script=script.settings if script is not None else None,
            links=links,
            password=password,
        )

    def _umask_of(self, folder: Path) -> int | None:
        """The data folder keeps the process's umask, which is as private as the folder."""
        return None if folder.is_relative_to(self.settings.data_dir) else self.umask

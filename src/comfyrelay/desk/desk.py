"""Run the whole system in one process for one user: the server, the worker and, if needed, the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from comfyrelay.configuration import settings_file
from comfyrelay.desk.addresses import open_comfyui_listeners, open_listeners
from comfyrelay.desk.data_folder import open_data_folder
from comfyrelay.desk.examples import write_sample
from comfyrelay.desk.origin_check import url_elsewhere
from comfyrelay.desk.page_settings.live import LiveSettings
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.startup.first_start import prepare_databases, single_user_settings
from comfyrelay.desk.startup.parts import DeskParts
from comfyrelay.desk.startup.ready import DeskReady
from comfyrelay.desk.startup.scripts import DeskScript
from comfyrelay.desk.startup.simulator import check_comfyui, open_simulator, prepare_simulator
from comfyrelay.desk.startup.web import (
    check_password,
    create_desk_app,
    create_owner,
    loopback_address,
    serving_comfyui,
)
from comfyrelay.protocol.desk import CheckResult
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.server.main import serving
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import desk_note
from comfyrelay.system.signals import on_stop

if TYPE_CHECKING:
    from comfyrelay.worker.lease import Lease


@dataclass(kw_only=True)
class Desk:
    settings: Settings
    desk: DeskSettings = field(default_factory=DeskSettings)
    # The table `[desk.script]` of the configuration file.
    script: Mapping[str, Any] | None = None
    # The configuration file that was read, which may set the data folder. Default: the file in the data folder.
    config_file: Path | None = None
    # Names of settings from the command line, such as `desk.comfyui_url`.
    options: Collection[str] = ()
    # The user's umask, if the process has a different one. It applies to scripts and to copies outside the data folder.
    umask: int | None = None
    on_ready: Callable[[DeskReady], None] = lambda _ready: None
    on_status: Callable[[list[Lease]], None] | None = None
    # Called when a ComfyUI that was unreachable answers.
    on_comfyui: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Run until SIGTERM or Ctrl-C. The running job is then finished or requeued."""
        async with self.open(signals=True) as (worker, _ready):
            await worker

    @asynccontextmanager
    async def open(self, *, signals: bool = False) -> AsyncIterator[tuple[asyncio.Task[None], DeskReady]]:
        """Yield the task of the worker, which ends when the worker has deregistered."""
        settings = single_user_settings(self.settings)
        check_password(settings, self.desk.allowed_hosts)
        live = self._live_settings(settings)
        if (managed := self.desk.managed) is not None:
            # Report an unusable ComfyUI folder before anything starts.
            managed.resolve()
        async with AsyncExitStack() as opened:
            opened.callback(open_data_folder(settings.data_dir).release)
            write_sample(live.input_folder)
            script = self._load_script(live)
            listeners = [
                opened.enter_context(closing(listener)) for listener in open_listeners(settings.host, settings.port)
            ]
            pass_secret = token_urlsafe(32)
            comfyui_listeners = [
                opened.enter_context(closing(listener)) for listener in open_comfyui_listeners(settings)
            ]
            remove_note = opened.enter_context(
                desk_note(settings.data_dir, address=loopback_address(listeners[0]), secret=pass_secret)
            )
            parts = self._create_parts(live, script)
            workers, simulation = parts.workers, parts.simulation
            engine = await opened.enter_async_context(Engine(settings, hooks=parts.hooks()))
            parts.connect(engine)
            user, is_new = await prepare_databases(engine, script.settings if script is not None else None)
            secrets = load_secrets(settings, is_only_server=True)
            engine.sign_with(secrets.signing)
            await parts.outputs.remove_leftovers(user.tenant_id)
            if script is not None:
                await opened.enter_async_context(script.removing_unused_inputs(engine, user))
            silent = await check_comfyui(engine, simulation, workers.configured_urls)
            needs_simulator = await prepare_simulator(engine, simulation)
            owner = create_owner(engine, user, workers, pass_secret=pass_secret)
            app = create_desk_app(engine, secrets, owner, parts.state(partial(self._examine, live)))
            ready = DeskReady(
                url=settings.base_url,
                data_dir=settings.data_dir,
                settings_file=live.file,
                comfyui=workers.without_logins(workers.configured_urls),
                silent=workers.without_logins(silent),
                comfyui_dir=self.desk.comfyui_dir,
                simulated_jobs=simulation.mode,
                is_new=is_new,
                url_elsewhere=url_elsewhere(settings),
                link=parts.links.make(),
            )
            if signals:
                opened.enter_context(on_stop(workers.stop_soon))
            simulator_seconds = self.desk.simulator_step_seconds if needs_simulator else None
            async with (
                serving(app, *listeners),
                serving_comfyui(app.state.context, live, *comfyui_listeners),
                parts.notifications.sending(engine, user),
            ):
                try:
                    async with open_simulator(engine, step_seconds=simulator_seconds) as simulator:
                        secret, on_output = owner.worker_secret, parts.outputs.copy_run
                        await workers.add(secret, simulator, signals=signals, on_output=on_output, script=script)
                        async with workers.running() as task, app.warming_up():
                            self.on_ready(ready)
                            yield task, ready
                finally:
                    # Once the desk no longer listens, another process may use the address.
                    remove_note()

    @property
    def input_folder(self) -> Path:
        return self._live_settings(self.settings).input_folder

    @property
    def output_folder(self) -> Path:
        return self._live_settings(self.settings).output_folder

    def _live_settings(self, settings: Settings) -> LiveSettings:
        file = self.config_file or settings_file(settings.data_dir)
        # The frozen inputs of a script are in its input folder, which by default is the desk's input folder.
        is_fixed = self.script is not None and "input_folder" not in self.script
        return LiveSettings(
            settings=settings,
            desk=self.desk,
            file=file,
            options=frozenset(self.options),
            fixed=frozenset({"desk.input_folder"} if is_fixed else ()),
            umask=self.umask,
        )

    def _load_script(self, live: LiveSettings) -> DeskScript | None:
        return DeskScript.load(
            self.script,
            data_dir=self.settings.data_dir,
            input_folder=live.input_folder,
            umask_of=live.umask_of,
        )

    def _create_parts(self, live: LiveSettings, script: DeskScript | None) -> DeskParts:
        return DeskParts.create(live, script, on_status=self.on_status, on_comfyui=self.on_comfyui)

    def _examine(self, live: LiveSettings, comfyui_urls: Sequence[str]) -> AsyncIterator[CheckResult]:
        from comfyrelay.desk.checks import examine_own

        return examine_own(self.settings, live.desk, comfyui_urls, script=self.script)

"""Run the workers in the desk's process: one for ComfyUI, and one for the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.processes.options import ManagedSettings
from comfyrelay.desk.batches.run_files import COMFYUI, about_run
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.simulated_jobs import SimulationPolicy
from comfyrelay.desk.startup.first_start import FLEET
from comfyrelay.desk.startup.later import import_later
from comfyrelay.desk.startup.scripts import DeskScript
from comfyrelay.desk.startup.simulator import SIMULATOR
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ConfigurationError
from comfyrelay.http_client import without_login
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.settings import Settings
from comfyrelay.system.signals import on_stop

if TYPE_CHECKING:
    from comfyrelay.simulator import Simulator
    from comfyrelay.worker.agent import Agent
    from comfyrelay.worker.jobs.tools import OutputListener
    from comfyrelay.worker.lease import Lease
    from comfyrelay.worker.settings import WorkerSettings

WORKER = "desk"
log = structlog.get_logger(__name__)

DEFAULT_COMFYUI_URL = "http://127.0.0.1:8188"


class DeskWorkers:
    """The workers, which `add` creates once the page answers. The engine needs the methods as hooks before that."""

    def __init__(
        self,
        settings: Settings,
        desk: DeskSettings,
        simulation: SimulationPolicy,
        *,
        on_status: Callable[[list[Lease]], None] | None,
        on_comfyui: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._desk = desk
        self._simulation = simulation
        self._on_status = on_status
        self._on_comfyui = on_comfyui
        self._agents: dict[Stage, Agent] = {}
        self._simulator: Simulator | None = None
        self._is_stopping = False
        self._are_running = False
        # A function that creates the worker for ComfyUI from the current settings.
        self._create: Callable[[], Agent] | None = None
        self._changed = asyncio.Event()
        # The reason why the worker for ComfyUI cannot run with changed settings.
        self._problem: str | None = None

    async def add(
        self,
        secret: str,
        simulator: Simulator | None,
        *,
        signals: bool,
        on_output: OutputListener,
        script: DeskScript | None,
    ) -> None:
        """Create the workers. If `signals` is set, the worker for ComfyUI handles signals."""
        await import_later("comfyrelay.worker.agent")
        from comfyrelay.worker.agent import Agent

        options: dict[str, Any] = {"on_status": self._show_leases, "on_output": on_output, "is_shared": False}
        simulation, self._simulator = self._simulation, simulator

        def create() -> Agent:
            own = self._worker_settings(secret, **self._comfyui_options)
            scripted = script.worker_options() if script is not None else {}
            return Agent(own, on_online=self._note_comfyui, signals=signals, **options, **scripted)

        self._create = create
        self._agents[simulation.stage] = create()
        if simulator is not None:
            simulated = self._worker_settings(
                secret,
                comfyui_base_url=[simulator.url_with_login],
                comfyui_folders=[simulator.folder],
                worker_id=SIMULATOR,
                display_name="Simulator",
                fleet_slug=SIMULATOR,
                fleet_stage=simulation.simulated_stage,
            )
            scripted = script.worker_options(comfyui_url=simulator.url_with_secret) if script is not None else {}
            self._agents[simulation.simulated_stage] = Agent(simulated, signals=False, **options, **scripted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run all workers, and yield the task of the worker for ComfyUI."""
        own = self._simulation.stage
        tasks = {
            stage: asyncio.create_task(self._run_own(agent) if stage is own else agent.run())
            for stage, agent in self._agents.items()
        }
        # An agent handles signals only from its first step on, and a caller may send a signal as soon as the desk has
        # started.
        await asyncio.sleep(0)
        self._are_running = True
        if self._is_stopping:
            self._stop()
        try:
            yield tasks[own]
        finally:
            self._stop()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _run_own(self, agent: Agent) -> None:
        """Run the worker for ComfyUI, and replace it with a new worker after each change of its settings."""
        await agent.run()
        while agent.has_finished and not self._is_stopping and self._create is not None:
            self._changed.clear()
            agent = self._agents[self._simulation.stage] = self._create()
            try:
                await agent.run()
            except ConfigurationError as error:
                # The desk stays up, so that the settings can be changed again.
                log.error("desk.comfyui_settings_unusable", why=error.detail)
                self._problem = error.detail
                agent.finish()
                with on_stop(self.stop_soon):
                    await self._changed.wait()
                self._problem = None

    def change(self, desk: DeskSettings) -> None:
        """Use changed settings. If they concern ComfyUI, a new worker starts when the running jobs have ended."""
        before, self._desk = self._comfyui_options, desk
        if self._comfyui_options != before:
            self._simulation.has_comfyui = True
            if (agent := self._agents.get(self._simulation.stage)) is not None:
                agent.finish()
            self._changed.set()

    @property
    def is_finishing(self) -> bool:
        """Whether running jobs delay a change of the settings of ComfyUI."""
        agent = self._agents.get(self._simulation.stage)
        return agent is not None and agent.has_finished and bool(agent.held)

    def stop_soon(self, _signal: int) -> None:
        """Stop the workers, if necessary as soon as they run. Running workers handle signals themselves, but the loop
        may still call this method for an earlier signal."""
        self._is_stopping = True
        if self._are_running:
            self._stop()

    def _stop(self) -> None:
        self._changed.set()
        for agent in self._agents.values():
            agent.stop()

    @property
    def configured_urls(self) -> list[str]:
        """The URLs of ComfyUI in the settings, unless the desk starts ComfyUI itself."""
        return self._desk.comfyui_url if self._desk.managed is None else []

    @property
    def comfyui_urls(self) -> list[str]:
        """The URLs of ComfyUI, including managed processes."""
        agent = self._agents.get(self._simulation.stage)
        return self.configured_urls or ([*agent.comfyui_urls.values()] if agent is not None else [])

    @property
    def is_all_simulated(self) -> bool:
        return self._simulation.mode is SimulatedJobs.EVERYTHING

    @property
    def urls_in_use(self) -> list[str]:
        """The URLs of the ComfyUI servers for new jobs. They may contain passwords."""
        if self._simulator is not None and self.is_all_simulated:
            return [self._simulator.url_with_login]
        return self.comfyui_urls

    @staticmethod
    def without_logins(urls: Iterable[str]) -> list[str]:
        """Return the URLs to display, without passwords."""
        return [without_login(url) for url in urls]

    def unreachable_comfyui(self) -> list[str]:
        """Return a reason for each ComfyUI that is unreachable."""
        if self._problem is not None:
            return [self._problem]
        agent = self._agents.get(self._simulation.stage)
        return [] if self.is_all_simulated or agent is None else agent.comfyui_unreachable

    def uncleaned_comfyui(self) -> list[str]:
        """Return the URLs of ComfyUI servers that keep job files, without passwords."""
        agent = self._agents.get(self._simulation.stage)
        return [] if self.is_all_simulated or agent is None else self.without_logins(agent.uncleaned_comfyui)

    def unreachable_at(self, stage: str) -> list[str]:
        """Return the reasons if all ComfyUI servers of a stage are unreachable."""
        agent = self._agents.get(Stage(stage))
        return agent.comfyui_unreachable if agent is not None and agent.is_without_comfyui else []

    def is_starting(self, stage: str) -> bool:
        """Whether the worker of a stage has not registered yet. The API answers before that."""
        agent = self._agents.get(Stage(stage))
        return agent.is_starting if agent is not None else not self._agents

    async def node_definitions(self) -> Mapping[str, Any]:
        """Return the current node definitions of the ComfyUI that runs new workflows."""
        urls = self.urls_in_use or [DEFAULT_COMFYUI_URL]
        async with ComfyClient(urls[0]) as client:
            return await client.object_info()

    def refresh_models(self) -> None:
        for agent in self._agents.values():
            agent.refresh_models()

    def run_report(self, lease_token: str, reported: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the details to store with an attempt. File paths and the address of ComfyUI come from the worker in
        this process, never over the wire."""
        own: dict[str, Any] = {}
        for stage, agent in self._agents.items():
            for lease in agent.held:
                if lease.job.lease_token == lease_token:
                    own = dict(lease.about)
                    # The simulator has no page.
                    if stage == self._simulation.stage and (url := agent.comfyui_urls.get(lease.server or "")):
                        own[COMFYUI] = without_login(url)
        return about_run(reported, own)

    @property
    def _leases(self) -> list[Lease]:
        return [lease for agent in self._agents.values() for lease in agent.held]

    def _show_leases(self, _of_one_worker: list[Lease]) -> None:
        if self._on_status is not None:
            self._on_status(self._leases)

    def _note_comfyui(self) -> None:
        self._simulation.note_comfyui()
        self._on_comfyui()

    @property
    def _comfyui_options(self) -> dict[str, Any]:
        desk = self._desk
        if desk.managed is None:
            return {"comfyui_base_url": desk.comfyui_url, "comfyui_folders": desk.comfyui_folders}
        return {name: getattr(desk, name) for name in ManagedSettings.model_fields}

    def _worker_settings(self, secret: str, **options: Any) -> WorkerSettings:
        from comfyrelay.worker.settings import WorkerSettings

        settings, desk = self._settings, self._desk
        defaults = {
            "fleet_slug": FLEET,
            "fleet_stage": settings.stage,
            "worker_id": WORKER,
            "display_name": "This machine",
        }
        return WorkerSettings(
            **{**defaults, **options},
            api_base_url=settings.base_url,
            fleet_secret=secret,
            comfy_providers=["self_hosted"],
            max_concurrency=desk.max_concurrency,
            prefetch=desk.prefetch,
            interrupted_jobs=desk.interrupted_jobs,
            is_only_worker=True,
            tidy_comfyui=desk.tidy_comfyui,
            graph_policy=settings.graph_policy,
            graph_denied_nodes=settings.graph_denied_nodes,
            graph_allowed_nodes=settings.graph_allowed_nodes,
            shutdown_seconds=desk.shutdown_seconds,
            data_dir=settings.data_dir / "worker",
            metadata_url="off",
        )

"""The worker agent: wait for ComfyUI, register, run jobs, drain and deregister."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from comfyrelay.comfyui.processes.gpus import GpuInventory
from comfyrelay.errors import ComfyRelayError, ConfigurationError
from comfyrelay.worker.capacity import max_processes_per_gpu, worker_capacity
from comfyrelay.worker.comfyui.capabilities import Capabilities
from comfyrelay.worker.comfyui.devices import Devices
from comfyrelay.worker.comfyui.local_folders import LocalFolders
from comfyrelay.worker.comfyui.managed import ManagedServers
from comfyrelay.worker.comfyui.node_definitions import NodeDefinitionSender
from comfyrelay.worker.comfyui.orphaned_files import OrphanedFiles
from comfyrelay.worker.comfyui.packing import Packer, open_packer
from comfyrelay.worker.comfyui.servers import Servers, WrapServer
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.draining import drain
from comfyrelay.worker.estimate import TypicalDurations
from comfyrelay.worker.files.assets import AssetCache
from comfyrelay.worker.files.inputs import Inputs, asset_folder
from comfyrelay.worker.files.run_folders import ComfyFolders
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.host.machine import HostIdentity, identify_host
from comfyrelay.worker.host.protection import Protection
from comfyrelay.worker.host.scaling_group import ScalingGroup, find_scaling_group
from comfyrelay.worker.host.shutdown_notices import Notice, Notices
from comfyrelay.worker.jobs.job import JobRunner
from comfyrelay.worker.jobs.tools import JobTools, OutputListener
from comfyrelay.worker.lease import Lease, LeaseStop
from comfyrelay.worker.metrics import WorkerMetrics
from comfyrelay.worker.poller import Poller
from comfyrelay.worker.registration import Registrar, wait_online
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder

log = structlog.get_logger(__name__)

# How long unreachable storage is retried, while heartbeats keep the lease alive.
DOWNLOAD_PATIENCE_SECONDS = 120.0
UPLOAD_PATIENCE_SECONDS = 3600.0
# How long polling pauses after a disk error, usually a full disk, because a new job would only use up an attempt.
DISK_PAUSE_SECONDS = 60.0
DEREGISTER_SECONDS = 5.0
_FINISHED = "replaced"


@dataclass(frozen=True, kw_only=True)
class _Session:
    """The parts that registration and jobs need."""

    host: HostIdentity
    state: StateFolder
    control: ControlPlane
    transfers: Transfers
    registrar: Registrar


class Agent:
    """One worker in the running event loop. `run` returns after the worker has deregistered."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        metrics: WorkerMetrics | None = None,
        on_status: Callable[[list[Lease]], None] = lambda _held: None,
        on_output: OutputListener | None = None,
        on_online: Callable[[], None] = lambda: None,
        wrap_server: WrapServer | None = None,
        own_nodes: frozenset[str] = frozenset(),
        is_shared: bool = True,
        signals: bool = True,
        last_lines: Callable[[], list[str]] | None = None,
    ) -> None:
        """Prepare a worker.

        `signals`: whether SIGTERM and Ctrl-C stop this worker; otherwise only `stop` does.
        `on_output` is awaited before an output is reported to the control plane, and must not fail.
        `on_online` is called when a server becomes usable while no other server is.
        `wrap_server` wraps each ComfyUI client; `own_nodes` are the node classes that the wrapper runs itself.
        `is_shared`: whether jobs of several users run here.
        `last_lines` returns the end of the worker's log, without secrets, for administrators.
        """
        self._settings = settings
        self._metrics = metrics or WorkerMetrics()
        self._on_status = on_status
        self._on_output = on_output
        self._on_online = on_online
        self._own_nodes = own_nodes
        self._is_shared = is_shared
        self._policy = settings.policy(is_shared=is_shared)
        self._signals = signals
        self._last_lines = last_lines
        self._imds = Imds(settings.metadata_url) if settings.has_metadata else None
        self._notices = Notices(
            imds=self._imds,
            interval_seconds=settings.metadata_interval_seconds,
            shutdown_seconds=settings.shutdown_seconds,
            asg_seconds=settings.termination_seconds,
        )
        self._runners: dict[JobRunner, asyncio.Task[None]] = {}
        self._durations = TypicalDurations()
        self._group: ScalingGroup | None = None
        self._protection: Protection | None = None
        self._orphaned_files: OrphanedFiles | None = None
        self._poller: Poller | None = None
        self._online = asyncio.Event()
        self._slots = 0
        self._servers = Servers(settings, on_change=self._on_servers_change, wrap_server=wrap_server)
        self._local_folders = LocalFolders(settings, self._servers)
        self._managed: ManagedServers | None = None
        self._packer: Packer | None = None
        self._definitions: NodeDefinitionSender | None = None
        self._devices: Devices | None = None
        # While this is set, the worker registers again if its token is refused.
        self._session: _Session | None = None
        self._registering = asyncio.Lock()
        self._capabilities = Capabilities(self._servers, settings.capabilities, on_refresh=self._on_capabilities)

    @property
    def held(self) -> list[Lease]:
        return [runner.lease for runner in self._runners]

    @property
    def comfyui_unreachable(self) -> list[str]:
        """The reasons why ComfyUIs cannot be used."""
        return self._servers.unavailable_reasons

    @property
    def uncleaned_comfyui(self) -> list[str]:
        """The URLs of ComfyUIs whose folders are not known, so that job files are not deleted there."""
        return self._local_folders.unknown()

    @property
    def is_without_comfyui(self) -> bool:
        """Whether no ComfyUI can be used."""
        return len(self._servers.unavailable_reasons) == len(self._servers.own)

    @property
    def is_starting(self) -> bool:
        """Whether the worker has yet to register."""
        return self._poller is None

    @property
    def gpus(self) -> GpuInventory | None:
        """The GPUs on which the worker could start more managed ComfyUI processes."""
        return self._managed

    @property
    def comfyui_urls(self) -> dict[str, str]:
        return {name: client.url for name, client in self._servers.own.items()}

    def refresh_models(self) -> None:
        """Rescan models, because a missing model may have been installed."""
        self._capabilities.refresh_soon()

    def stop(self, *, seconds: float | None = None) -> None:
        """Shut down as after a signal."""
        time_left = self._settings.shutdown_seconds if seconds is None else seconds
        self._notices.add(Notice(reason="shutdown", seconds=time_left))

    def finish(self) -> None:
        """Stop when the running jobs have ended. A signal or `stop` takes precedence."""
        self._notices.add(Notice(reason=_FINISHED, seconds=None))

    @property
    def has_finished(self) -> bool:
        """Whether this worker was ended only by `finish`."""
        return self._notices.current is not None and self._notices.current.reason == _FINISHED

    async def run(self) -> None:
        if self._signals:
            # Handle signals first, because EC2 may take seconds to identify this machine.
            self._notices.handle_signals()
        try:
            await self._run_as(await identify_host(self._settings, self._imds))
        finally:
            if self._imds is not None:
                await self._imds.close()
            # Release the signals last, so that a second signal cannot interrupt the shutdown.
            await self._notices.close()

    async def _run_as(self, host: HostIdentity) -> None:
        state = StateFolder(self._settings.data_dir / host.folder_name)
        state.open()
        try:
            if (options := self._settings.managed) is not None:
                self._managed = ManagedServers(options, self._servers, folder=state.folder, held=lambda: self.held)
            self._group = find_scaling_group(self._settings.asg_name, host)
            self._notices.watch()
            await self._work_until_notice(host, state)
        finally:
            await self._servers.close()
            if self._managed is not None:
                await self._managed.close()
            if self._protection is not None:
                await self._protection.close()
            state.close()
            hook = self._settings.asg_lifecycle_hook
            if self._group is not None and hook is not None and self._notices.is_ended_by_group:
                await self._group.retry_complete_termination(hook)

    async def _work_until_notice(self, host: HostIdentity, state: StateFolder) -> None:
        control = ControlPlane(
            self._settings.api_base_url,
            worker_id=host.worker_id,
            devices=lambda: self._devices.current if self._devices is not None else [],
            renew=self._renew,
            last_lines=self._last_lines,
        )
        transfers = Transfers(
            patience_seconds=DOWNLOAD_PATIENCE_SECONDS,
            upload_patience_seconds=UPLOAD_PATIENCE_SECONDS,
            on_bytes=self._metrics.count_bytes,
        )
        registrar = Registrar(self._settings, control, state, imds=self._imds)
        session = _Session(host=host, state=state, control=control, transfers=transfers, registrar=registrar)
        working = asyncio.create_task(self._work(session))
        notified = asyncio.create_task(self._notices.wait_newer(None))
        try:
            await asyncio.wait({working, notified}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                # This task ends only with an error.
                working.result()
            else:
                await self._drain(notified.result(), working, session)
        finally:
            for task in (notified, working, *self._runners.values()):
                task.cancel()
            await asyncio.gather(notified, working, *self._runners.values(), return_exceptions=True)
            if self._orphaned_files is not None:
                await self._orphaned_files.close()
            await transfers.close()
            await control.close()

    async def _work(self, session: _Session) -> None:
        session.registrar.require_settings()
        await self._servers.open()
        if self._managed is not None:
            await self._open_managed(self._managed)
        if self._group is not None:
            self._protection = Protection(self._group)
            self._protection.start()
            self._protection.want(False)
        self._definitions = NodeDefinitionSender(session.control, self._servers)
        tools = self._tools(session)
        session.control.token = session.state.saved_token() or ""
        self._session = session
        self._devices = Devices(
            self._servers,
            is_busy=lambda: bool(self._runners),
            packing_reason=self._packer.reason if self._packer is not None else lambda _gpu: None,
            report_unavailable=session.control.report_unavailable,
        )
        prepare, report = self._prepare_wait(session, tools), self._report_wait(session, self._devices)
        await wait_online(self._online, prepare=prepare, report=report)
        await asyncio.gather(self._capabilities.refresh(), self._local_folders.find(), self._devices.refresh())
        await self._settle_after_kill(session.state, tools)
        await self._register(session)
        self._poller = Poller(
            session.control,
            capacity=lambda ended: worker_capacity(self.held, ended, self._servers, self._settings, self._durations),
            servers=self._servers,
            capabilities=self._capabilities,
            accept=lambda lease: self._accept(lease, tools),
            register=partial(self._register, session),
            on_reported=self._send_definitions,
            wait_seconds=self._settings.poll_wait_seconds,
        )
        loops = [self._capabilities.keep(), self._definitions.keep(), self._devices.keep(), self._local_folders.keep()]
        if self._packer is not None:
            loops.append(self._packer.keep())
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await self._poller.run()
        finally:
            self._poller = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _open_managed(self, managed: ManagedServers) -> None:
        await managed.open()
        if managed.is_automatic:
            max_processes = max_processes_per_gpu(self._settings.max_concurrency, gpus=len(managed.gpus()))
            self._packer = open_packer(managed, self._servers.pool, max_processes, poller=lambda: self._poller)

    async def _register(self, session: _Session, refused: str | None = None) -> None:
        """Register, unless another call has already replaced the refused token."""
        async with self._registering:
            if refused is not None and session.control.token not in ("", refused):
                return
            capabilities = self._capabilities.current
            is_at_work = any(lease.stop is not LeaseStop.LOST for lease in self.held)
            details = {
                "capacity_type": session.host.capacity_type,
                "instance_type": session.host.instance_type,
                "max_concurrency": max(self._servers.at_once, 1),
                "capabilities": capabilities,
                "devices": self._devices.unavailable if self._devices is not None else None,
            }
            if await session.registrar.register(details, is_at_work=is_at_work):
                # The capabilities were sent with the registration, so that the first poll need not contain megabytes.
                self._capabilities.sent = capabilities
                self._send_definitions()

    async def _renew(self, refused: str) -> bool:
        """Replace a refused token. Returns false if the fleet refuses to register this worker."""
        if self._session is None:
            return False
        try:
            await self._register(self._session, refused)
        except ConfigurationError:
            return False
        return True

    async def _settle_after_kill(self, state: StateFolder, tools: JobTools) -> None:
        """Settle leases of an earlier process before polling."""
        for held in state.held_leases():
            runner = JobRunner(held.lease, tools)
            self._start(runner, runner.stop_runs(held) if held.is_settled else runner.settle_after_kill(held))
        while self._runners:
            await asyncio.wait(self._runners.values())
            # Let the callbacks of finished tasks run.
            await asyncio.sleep(0)

    async def _drain(self, notice: Notice, working: asyncio.Task[None], session: _Session) -> None:
        log.info("worker.draining", reason=notice.reason, seconds=notice.seconds, jobs=len(self._runners))
        working.cancel()
        await asyncio.wait({working})
        notice = await drain(notice, self._notices, self._runners, self._durations)
        # After deregistration, no pending call may register the worker again.
        self._session = None
        if not session.control.token:
            return
        try:
            async with asyncio.timeout(DEREGISTER_SECONDS):
                await session.registrar.deregister(notice.reason)
            log.info("worker.stopped", reason=notice.reason)
        except (ComfyRelayError, TimeoutError) as error:
            # The leases will expire. The token is kept, so that this worker id remains usable.
            log.warning("worker.deregistration_failed", why=str(error) or "the control plane does not answer")

    def _tools(self, session: _Session) -> JobTools:
        assets = asset_folder(session.state.folder)
        folders = ComfyFolders(self._comfyui_folders, asset_folder=assets, shared=self._local_folders.found)

        def on_removed(name: str) -> None:
            folders.remove_asset(name)
            self._servers.forget_uploads()

        cache = AssetCache(session.state.assets, max_bytes=self._settings.asset_cache_bytes, on_removed=on_removed)
        folders.keep_assets(cache.names)
        self._orphaned_files = OrphanedFiles(session.state, servers=self._servers, folders=folders)
        self._orphaned_files.resume()
        self._metrics.watch(
            cache=cache,
            control=session.control,
            servers=self._servers,
            held=lambda: self.held,
            gpus=lambda: self._packer.statuses if self._packer is not None else {},
        )
        return JobTools(
            control=session.control,
            servers=self._servers,
            state=session.state,
            transfers=session.transfers,
            inputs=Inputs(session.transfers, cache, folder=session.state.work, asset_folder=assets),
            folders=folders,
            orphaned_files=self._orphaned_files,
            durations=self._durations,
            metrics=self._metrics,
            settings=self._settings,
            policy=self._policy,
            own_nodes=self._own_nodes,
            next_poll=lambda lease: self._poller.next_poll(lease) if self._poller is not None else None,
            on_change=self._on_change,
            on_progress=self._show,
            on_output=self._on_output,
            on_disk_error=self._on_disk_error,
        )

    def _comfyui_folders(self) -> list[Path]:
        if not self._settings.tidy_comfyui:
            return []
        return self._local_folders.known() if self._managed is None else self._managed.folders()

    def _accept(self, lease: Lease, tools: JobTools) -> None:
        log.info("worker.job_leased", **lease.log_fields)
        runner = JobRunner(lease, tools)
        self._start(runner, runner.run())

    def _start(self, runner: JobRunner, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_run_with_log_fields(runner.lease, work))
        self._runners[runner] = task
        task.add_done_callback(lambda _: self._on_ended(runner, task))
        self._on_change()

    def _on_ended(self, runner: JobRunner, task: asyncio.Task[None]) -> None:
        self._runners.pop(runner, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("worker.job_crashed", dispatch_id=runner.lease.dispatch_id, exc_info=error)
        self._on_change()

    def _on_disk_error(self) -> None:
        log.error("worker.disk_error", pause_seconds=DISK_PAUSE_SECONDS)
        if self._poller is not None:
            self._poller.pause(DISK_PAUSE_SECONDS)

    def _on_change(self) -> None:
        if self._poller is not None:
            self._poller.changed()
        if self._protection is not None:
            self._protection.want(bool(self._runners))
        self._metrics.update()
        self._show()

    def _on_servers_change(self) -> None:
        slots = sum(self._servers.slots(name) for name in self._settings.providers)
        if slots:
            self._online.set()
            if not self._slots:
                self._on_online()
        if slots > self._slots:
            self._capabilities.refresh_soon()
        if slots != self._slots and self._devices is not None:
            self._devices.refresh_soon()
        self._slots = slots
        self._on_change()

    def _on_capabilities(self) -> None:
        self._on_change()
        # With definitions of nodes that no worker has reported, workflows would look as if they could run.
        if self._capabilities.changes is None:
            self._send_definitions()

    def _send_definitions(self) -> None:
        if self._definitions is not None:
            self._definitions.send_soon()

    def _show(self) -> None:
        self._on_status(self.held)

    async def _prepare_wait(self, session: _Session, tools: JobTools) -> None:
        urls = [*self.comfyui_urls.values(), *(client.url for client in self._servers.cloud.values())]
        # The supervisor already logs the start of a managed ComfyUI.
        log_line = log.warning if self._managed is None else log.info
        log_line("worker.waiting_for_comfyui", servers=urls)
        # The wait may be long, so report a refused registration now.
        await session.registrar.check_settings({"max_concurrency": max(self._servers.at_once, 1)})
        # Leases of an earlier process must not appear to be running.
        await self._settle_after_kill(session.state, tools)
        await session.registrar.deregister_earlier()

    async def _report_wait(self, session: _Session, devices: Devices) -> None:
        """Register without a usable server, so that operators see the reason. A desk's worker does not do this."""
        if self._is_shared:
            await devices.refresh()
            await self._register(session)
            await devices.keep()


async def _run_with_log_fields(lease: Lease, work: Coroutine[Any, Any, None]) -> None:
    """Run the work of a job with the job's ids in every log line, including transfers and heartbeats."""
    structlog.contextvars.bind_contextvars(job_id=lease.job_id, dispatch_id=lease.dispatch_id)
    await work

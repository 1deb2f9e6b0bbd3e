"""The worker agent: wait for ComfyUI, register, run jobs, drain and deregister."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from comfyrelay.comfyui.processes.gpu_processes import GpuInventory
from comfyrelay.errors import ComfyRelayError, ConfigurationError
from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.capacity import Capacity, capacity_for, most_on_gpu, times_for
from comfyrelay.worker.comfyui.capabilities import Capabilities
from comfyrelay.worker.comfyui.devices import Devices
from comfyrelay.worker.comfyui.managed import ManagedServers
from comfyrelay.worker.comfyui.node_definitions import NodeDefinitionSender
from comfyrelay.worker.comfyui.orphaned_files import OrphanedFiles
from comfyrelay.worker.comfyui.packing import Packer
from comfyrelay.worker.comfyui.servers import AHEAD_SECONDS, Servers, WrapServer
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.draining import drain
from comfyrelay.worker.estimate import Typical
from comfyrelay.worker.files.assets import AssetCache
from comfyrelay.worker.files.inputs import Inputs, asset_folder
from comfyrelay.worker.files.run_folders import ComfyFolders
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.host.machine import HostIdentity, machine
from comfyrelay.worker.host.protection import Protection
from comfyrelay.worker.host.scaling_group import ScalingGroup
from comfyrelay.worker.host.shutdown_notices import Notice, Notices
from comfyrelay.worker.job import OutputListener, Tools, Work
from comfyrelay.worker.lease import Lease, LeaseStop
from comfyrelay.worker.metrics import WorkerMetrics
from comfyrelay.worker.poller import Poller
from comfyrelay.worker.registration import Registrar
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder

log = structlog.get_logger(__name__)

# How long to wait for unreachable storage; heartbeats keep the lease alive.
DOWNLOAD_PATIENCE_SECONDS = 120.0
UPLOAD_PATIENCE_SECONDS = 3600.0
# Pause polling after a disk error, usually a full disk: a new job would only use up an attempt.
DISK_PAUSE_SECONDS = 60.0
SIGN_OFF_SECONDS = 5.0
# Upper limit of prefetched jobs, and of finished jobs whose outputs are still uploading.
MAX_PREFETCHED = 40


class Agent:
    """One worker in the running event loop. `run` returns once it has deregistered."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        metrics: WorkerMetrics | None = None,
        on_status: Callable[[list[Lease]], None] | None = None,
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
        `on_online` is called when a server becomes usable and none was before.
        `wrap_server` wraps each ComfyUI client; `own_nodes` are the node classes that the wrapper runs itself.
        `is_shared`: whether jobs of several users run here.
        `last_lines` returns the end of its log, without secrets, for administrators.
        """
        self._settings = settings
        self._metrics = metrics or WorkerMetrics()
        self._on_status = on_status
        self._on_output = on_output
        self._on_online = on_online
        self._own_nodes = own_nodes
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
        self._works: dict[Work, asyncio.Task[None]] = {}
        self._typical = Typical()
        self._group: ScalingGroup | None = None
        self._protection: Protection | None = None
        self._orphaned_files: OrphanedFiles | None = None
        self._poller: Poller | None = None
        self._online = asyncio.Event()
        self._slots = 0
        self._servers = Servers(settings, on_change=self._on_servers_change, wrap_server=wrap_server)
        # managed ComfyUI processes, while the worker runs
        self._managed: ManagedServers | None = None
        self._packer: Packer | None = None
        self._definitions: NodeDefinitionSender | None = None
        self._devices: Devices | None = None
        # replaces a refused token; set from registration until deregistration
        self._register: Callable[[str], Awaitable[None]] | None = None
        self._capabilities = Capabilities(self._servers, settings.capabilities, on_refresh=self._on_capabilities)

    @property
    def held(self) -> list[Lease]:
        return [work.lease for work in self._works]

    @property
    def comfyui_unreachable(self) -> list[str]:
        return self._servers.away

    @property
    def is_without_comfyui(self) -> bool:
        """Whether none of its servers is usable."""
        return len(self._servers.away) == len(self._servers.own)

    @property
    def is_coming(self) -> bool:
        """Whether it has not registered yet."""
        return self._poller is None

    @property
    def gpus(self) -> GpuInventory | None:
        """GPUs on which it could start more managed ComfyUI processes."""
        return self._managed

    @property
    def comfyui_urls(self) -> list[str]:
        return [each.url for each in self._servers.own]

    def refresh_models(self) -> None:
        """Rescan models: a missing one may have been installed."""
        self._capabilities.refresh_soon()

    def stop(self, *, seconds: float | None = None) -> None:
        """Shut down as after a signal."""
        time_left = self._settings.shutdown_seconds if seconds is None else seconds
        self._notices.add(Notice(reason="shutdown", seconds=time_left))

    async def run(self) -> None:
        if self._signals:
            # before anything slow: EC2 may take seconds to identify this machine
            self._notices.handle_signals()
        try:
            this = await machine(self._settings, self._imds)
            await self._run_on(this)
        finally:
            if self._imds is not None:
                await self._imds.close()
            # last, so that a second signal cannot interrupt the shutdown
            await self._notices.close()

    async def _run_on(self, this: HostIdentity) -> None:
        state = StateFolder(self._settings.data_dir / this.folder_name)
        state.open()
        try:
            self._keep(state)
            self._find_group(this)
            self._notices.watch()
            await self._live(this, state)
        finally:
            await self._servers.close()
            if self._managed is not None:
                await self._managed.close()
            if self._protection is not None:
                await self._protection.close()
            state.close()
            await self._let_go_of_machine()

    async def _live(self, this: HostIdentity, state: StateFolder) -> None:
        control = ControlPlane(
            self._settings.api_base_url,
            worker_id=this.worker_id,
            devices=lambda: self._devices.current if self._devices is not None else [],
            renew=self._renew,
            last_lines=self._last_lines,
        )
        transfers = Transfers(
            patience_seconds=DOWNLOAD_PATIENCE_SECONDS,
            upload_patience_seconds=UPLOAD_PATIENCE_SECONDS,
            on_bytes=self._metrics.transferred,
        )
        registration = Registrar(self._settings, control, state, imds=self._imds)
        working = asyncio.create_task(self._work(this, state, control, transfers, registration))
        notified = asyncio.create_task(self._notices.wait_newer(None))
        try:
            await asyncio.wait({working, notified}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                # it only returns if it cannot continue
                working.result()
            else:
                await self._drain(notified.result(), working, control, registration)
        finally:
            for task in (notified, working, *self._works.values()):
                task.cancel()
            await asyncio.gather(notified, working, *self._works.values(), return_exceptions=True)
            if self._orphaned_files is not None:
                await self._orphaned_files.close()
            await transfers.close()
            await control.close()

    async def _work(
        self,
        this: HostIdentity,
        state: StateFolder,
        control: ControlPlane,
        transfers: Transfers,
        registration: Registrar,
    ) -> None:
        registration.require_settings()
        await self._servers.open()
        if self._managed is not None:
            await self._managed.open()
            if self._managed.is_automatic:
                self._packer = Packer(
                    self._managed,
                    self._servers.pool,
                    most=most_on_gpu(self._settings.max_concurrency, gpus=len(self._managed.gpus())),
                    more_waiting=self._more_waiting,
                    taken=self._managed.largest_process_bytes,
                )
        details = {
            "capacity_type": this.capacity_type,
            "instance_type": this.instance_type,
        }

        registering = asyncio.Lock()

        async def register(refused: str | None = None) -> None:
            async with registering:
                if refused is not None and control.token not in ("", refused):
                    # another call was refused too and has already replaced the token
                    return
                capabilities = self._capabilities.current
                is_at_work = any(work.lease.stop is not LeaseStop.LOST for work in self._works)
                # more servers may have started since
                now = {"max_concurrency": self._servers.at_once, "capabilities": capabilities}
                if await registration.register({**details, **now}, is_at_work=is_at_work):
                    # sent with the registration, so that the first poll need not carry megabytes
                    self._capabilities.mark_sent(capabilities)
                    self._bring_definitions()

        self._protect()
        self._definitions = NodeDefinitionSender(control, self._servers)
        tools = self._tools(control, state, transfers)
        registration.load_token()
        self._register = register
        await self._some_server(registration, before_waiting=lambda: self._settle_after_kill(state, tools))
        await self._capabilities.refresh()
        await self._settle_after_kill(state, tools)
        await register()
        self._poller = Poller(
            control,
            capacity=self._capacity,
            servers=self._servers,
            capabilities=self._capabilities,
            accept=lambda lease: self._accept(lease, tools),
            register=register,
            wait_seconds=self._settings.poll_wait_seconds,
        )
        self._devices = Devices(self._servers, is_busy=lambda: bool(self._works), why_so_many=self._why_so_many)
        keeping = [asyncio.create_task(each.keep()) for each in (self._capabilities, self._definitions, self._devices)]
        if self._packer is not None:
            keeping.append(asyncio.create_task(self._packer.keep()))
        try:
            await self._poller.run()
        finally:
            self._poller = None
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def _renew(self, refused: str) -> bool:
        """Replace a refused token. Returns false if the fleet refuses a new one."""
        if self._register is None:
            return False
        try:
            await self._register(refused)
        except ConfigurationError:
            # the fleet refuses it
            return False
        return True

    async def _settle_after_kill(self, state: StateFolder, tools: Tools) -> None:
        """Settle leases of an earlier process before polling."""
        for held in state.held_leases():
            work = Work(held.lease, tools)
            self._begin(work, work.stop_runs(held) if held.is_settled else work.settle_after_kill(held))
        while self._works:
            await asyncio.wait(self._works.values())
            # let the callbacks of finished tasks run
            await asyncio.sleep(0)

    async def _drain(
        self, notice: Notice, working: asyncio.Task[None], control: ControlPlane, registration: Registrar
    ) -> None:
        log.info("worker.draining", reason=notice.reason, seconds=notice.seconds, jobs=len(self._works))
        working.cancel()
        await asyncio.wait({working})
        notice = await drain(notice, self._notices, self._works, typical=self._typical)
        # after deregistration no pending call may register again
        self._register = None
        if not control.token:
            return
        try:
            async with asyncio.timeout(SIGN_OFF_SECONDS):
                await registration.leave(notice.reason)
            log.info("worker.stopped", reason=notice.reason)
        except (ComfyRelayError, TimeoutError) as error:
            # its leases expire; the token is kept so that this worker id stays usable
            log.warning("worker.not_signed_off", why=str(error) or "the control plane does not answer")

    def _tools(self, control: ControlPlane, state: StateFolder, transfers: Transfers) -> Tools:
        assets = asset_folder(state.folder)
        folders = ComfyFolders(self._comfyui_folders, asset_folder=assets)

        def on_removed(name: str) -> None:
            folders.remove_asset(name)
            self._servers.forget_uploads()

        cache = AssetCache(state.assets, max_bytes=self._settings.asset_cache_bytes, on_removed=on_removed)
        folders.keep_assets(cache.names)
        self._orphaned_files = OrphanedFiles(state, servers=self._servers, folders=folders)
        self._orphaned_files.resume()
        self._metrics.watch(
            cache=cache,
            control=control,
            servers=self._servers,
            held=lambda: self.held,
            gpus=lambda: self._packer.decided if self._packer is not None else {},
        )
        return Tools(
            control=control,
            servers=self._servers,
            state=state,
            transfers=transfers,
            inputs=Inputs(transfers, cache, folder=state.work, asset_folder=assets),
            folders=folders,
            orphaned_files=self._orphaned_files,
            typical=self._typical,
            metrics=self._metrics,
            settings=self._settings,
            policy=self._policy,
            own_nodes=self._own_nodes,
            on_change=self._on_change,
            on_progress=self._show,
            on_output=self._on_output,
            on_disk_error=self._on_disk_error,
        )

    def _keep(self, state: StateFolder) -> None:
        if (options := self._settings.managed) is not None:
            self._managed = ManagedServers(options, self._servers, folder=state.folder, held=lambda: self.held)

    def _why_so_many(self, gpu: str) -> str | None:
        status = self._packer.decided.get(gpu) if self._packer is not None else None
        return status.reason if status is not None else None

    def _comfyui_folders(self) -> list[Path]:
        if not self._settings.tidy_comfyui:
            return []
        if self._managed is not None:
            return self._managed.folders()
        places = [self._settings.folder_of(url) for url in self._settings.comfyui_base_url]
        return [place for place in places if place is not None]

    def _accept(self, lease: Lease, tools: Tools) -> None:
        log.info(
            "worker.job_leased",
            job_id=lease.job_id,
            dispatch_id=lease.dispatch_id,
            workflow=lease.workflow_hash,
            attempt=lease.job.attempt,
        )
        work = Work(lease, tools)
        self._begin(work, work.run())

    def _begin(self, work: Work, doing: Any) -> None:
        task = asyncio.create_task(doing)
        self._works[work] = task
        task.add_done_callback(lambda _: self._ended(work, task))
        self._on_change()

    def _ended(self, work: Work, task: "asyncio.Task[Any]") -> None:
        self._works.pop(work, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("worker.job_broke", dispatch_id=work.lease.dispatch_id, exc_info=error)
        self._on_change()

    def _on_disk_error(self) -> None:
        log.error("worker.disk_trouble", pause_seconds=DISK_PAUSE_SECONDS)
        if self._poller is not None:
            self._poller.pause(DISK_PAUSE_SECONDS)

    def _capacity(self) -> Capacity | None:
        slots: dict[str, int] = {name: self._servers.slots(name) for name in self._settings.providers}
        running = [each.workflow_hash for each in self.held if each.phase is Phase.RUNNING]
        times = times_for(
            map(self._typical.run_seconds, running), slots=sum(slots.values()), short_seconds=AHEAD_SECONDS
        )
        return capacity_for(
            self.held,
            slots=slots,
            max_concurrency=self._servers.at_once,
            prefetch=min(self._settings.prefetch * times, MAX_PREFETCHED),
            upload_behind=min(self._settings.upload_behind * times, MAX_PREFETCHED),
        )

    def _more_waiting(self) -> int:
        return self._poller.more_waiting if self._poller is not None else 0

    def _on_change(self) -> None:
        if self._poller is not None:
            self._poller.changed()
        if self._protection is not None:
            self._protection.want(bool(self._works))
        self._metrics.changed()
        self._show()

    def _on_servers_change(self) -> None:
        slots = sum(self._servers.slots(name) for name in self._settings.providers)
        if slots:
            self._online.set()
        if slots and not self._slots:
            self._on_online()
        if slots > self._slots:
            self._capabilities.refresh_soon()
        if slots != self._slots and self._devices is not None:
            self._devices.refresh_soon()
        self._slots = slots
        self._on_change()

    def _on_capabilities(self) -> None:
        self._on_change()
        self._bring_definitions()

    def _bring_definitions(self) -> None:
        if self._definitions is not None:
            self._definitions.send_soon()

    def _show(self) -> None:
        if self._on_status is not None:
            self._on_status(self.held)

    async def _some_server(self, registration: Registrar, *, before_waiting: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(3.0):
                await self._online.wait()
        except TimeoutError:
            where = [*(each.url for each in self._servers.own), *(each.url for each in self._servers.cloud)]
            # the supervisor already logs the start of a managed ComfyUI
            log_line = log.warning if self._managed is None else log.info
            log_line("worker.waiting_for_comfyui", servers=where)
            # the wait may be long, so report a refused registration now
            await registration.check_settings({"max_concurrency": self._servers.at_once})
            # leases of an earlier process must not look as if they were running
            await before_waiting()
            await registration.deregister_earlier()
            await self._online.wait()

    def _find_group(self, this: HostIdentity) -> None:
        name = self._settings.asg_name
        if name and this.instance_id and this.region:
            self._group = ScalingGroup(name, instance_id=this.instance_id, region=this.region)
        elif name:
            log.warning("worker.no_protection", why="ASG_NAME is set, but this is not an EC2 instance.")

    def _protect(self) -> None:
        if self._group is not None:
            self._protection = Protection(self._group)
            self._protection.start()
            self._protection.want(False)

    async def _let_go_of_machine(self) -> None:
        """Complete the Auto Scaling lifecycle hook, so that the group need not wait for its timeout."""
        hook = self._settings.asg_lifecycle_hook
        if self._group is None or hook is None or not self._notices.is_ended_by_group:
            return
        for pause in (1.0, 3.0, 0.0):
            try:
                await asyncio.to_thread(self._group.complete_termination, hook)
            except Exception as error:
                log.warning("worker.termination_not_completed", hook=hook, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(pause)
            else:
                log.info("worker.termination_completed", hook=hook)
                return

"""The parts of a running desk, and how they are connected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from comfyrelay.desk.batches.output_copies import OutputCopies
from comfyrelay.desk.notifications.notifier import Notifier
from comfyrelay.desk.notifications.sender import NOTIFIED_FILE, NotificationSender
from comfyrelay.desk.one_time_links import OneTimeLinks
from comfyrelay.desk.page_settings.live import LiveSettings
from comfyrelay.desk.scripts.workflow import varied
from comfyrelay.desk.simulated_jobs import SimulationPolicy
from comfyrelay.desk.startup.scripts import DeskScript
from comfyrelay.desk.startup.simulator import SIMULATOR
from comfyrelay.desk.startup.workers import WORKER, DeskWorkers
from comfyrelay.desk.state import DeskState
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.protocol.desk import CheckResult
from comfyrelay.services.engine import Engine
from comfyrelay.services.hooks import Hooks

if TYPE_CHECKING:
    from comfyrelay.worker.lease import Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskParts:
    live: LiveSettings
    # The script of `[desk.script]`, if configured.
    script: DeskScript | None
    notifications: NotificationSender
    simulation: SimulationPolicy
    workers: DeskWorkers
    outputs: OutputCopies
    links: OneTimeLinks

    @classmethod
    def create(
        cls,
        live: LiveSettings,
        script: DeskScript | None,
        *,
        on_status: Callable[[list[Lease]], None] | None,
        on_comfyui: Callable[[], None],
    ) -> DeskParts:
        settings, desk = live.settings, live.desk
        simulation = SimulationPolicy(settings, desk)
        return cls(
            live=live,
            script=script,
            notifications=NotificationSender(
                Notifier(desk.notify_urls, live.notify_on), state=settings.data_dir / NOTIFIED_FILE
            ),
            simulation=simulation,
            workers=DeskWorkers(settings, desk, simulation, on_status=on_status, on_comfyui=on_comfyui),
            outputs=OutputCopies(
                live.output_folder, data_dir=settings.data_dir, umask=live.output_umask, names=desk.output_names
            ),
            links=OneTimeLinks(settings.base_url),
        )

    def hooks(self) -> Hooks:
        """Return the functions that the engine calls."""

        def on_ended(ended: Sequence[JobState]) -> None:
            self.outputs.forget_recorded(job.id for job in ended)
            self.notifications.job_ended(ended)

        return Hooks(
            on_ended=on_ended,
            checks=self.script.checks if self.script is not None else {},
            vary=varied,
            desk_workers=(WORKER, SIMULATOR),
            users_are_owners=True,
            comfyui_unreachable=self.workers.unreachable_at,
            is_worker_starting=self.workers.is_starting,
            stage_of=self.simulation.stage_of,
            on_removing=self.outputs.before_removal,
            on_removed=self.outputs.remove,
            on_reused=self.outputs.copy_reused,
            more_fleets=[(self.simulation.simulated_stage, SIMULATOR)],
            live_definitions=self.workers.node_definitions,
            on_missing=self.workers.refresh_models,
        )

    def connect(self, engine: Engine) -> None:
        """Connect the parts to the engine. From now on, changed settings apply to both."""
        self.outputs.engine = engine
        engine.gallery.expiry.keep_days = self.live.desk.keep_outputs_days
        self.live.listeners.append(lambda: self._apply(engine))

    def _apply(self, engine: Engine) -> None:
        settings, desk = self.live.settings, self.live.desk
        self.notifications.configure(Notifier(desk.notify_urls, self.live.notify_on))
        self.outputs.configure(self.live.output_folder, umask=self.live.output_umask, names=desk.output_names)
        self.workers.change(desk)
        engine.gallery.expiry.keep_days = desk.keep_outputs_days
        engine.operations.retention.configure(
            retention_days=settings.retention_days, unused_upload_hours=settings.unused_upload_hours
        )

    def state(self, examine: Callable[[Sequence[str]], AsyncIterator[CheckResult]]) -> DeskState:
        """Return the state that the routes use. `examine` runs the checks of `comfyrelay doctor` for these ComfyUI
        URLs."""
        workers = self.workers
        return DeskState(
            find_comfyui=lambda: workers.urls_in_use,
            examine=lambda: examine([] if workers.is_all_simulated else workers.comfyui_urls),
            comfyui_unreachable=workers.unreachable_comfyui,
            uncleaned_comfyui=workers.uncleaned_comfyui,
            is_finishing_jobs=lambda: workers.is_finishing,
            simulation=self.simulation,
            data_dir=self.live.settings.data_dir,
            live=self.live,
            outputs=self.outputs,
            not_sent=self.notifications.not_sent,
            script=self.script.settings if self.script is not None else None,
            links=self.links,
        )

"""What the engine calls on a desk."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comfyrelay.desk.batches.output_copies import Copies, remove_copies
from comfyrelay.desk.composition.scripts import DeskScript
from comfyrelay.desk.composition.simulator import SIMULATOR
from comfyrelay.desk.composition.workers import WORKER, DeskWorkers
from comfyrelay.desk.notifications.sender import NotificationSender
from comfyrelay.desk.scripts.workflow import varied
from comfyrelay.desk.simulated_jobs import Trying
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.updates import UploadedOutput
from comfyrelay.domain.records.jobs import NewJobRecord
from comfyrelay.services.engine import Engine, Hooks
from comfyrelay.services.jobs.removal import RemovedFiles


class OutputFolder:
    """The copies of outputs in the user's output folder. None are made before `attach`."""

    def __init__(self, folder: Path, *, umask: int | None) -> None:
        self._folder = folder
        self._umask = umask
        self._copies: Copies | None = None

    def attach(self, engine: Engine) -> Copies:
        self._copies = Copies(engine, self._folder, umask=self._umask)
        return self._copies

    async def keep_reused(
        self, job: NewJobRecord, batch_label: str | None, output: UploadedOutput
    ) -> dict[str, Any] | None:
        return None if self._copies is None else await self._copies.keep_reused(job, batch_label, output)

    async def remove(self, attempts: Sequence[Attempt]) -> RemovedFiles:
        return await asyncio.to_thread(remove_copies, self._folder, attempts)


def desk_hooks(
    notifications: NotificationSender,
    trying: Trying,
    workers: DeskWorkers,
    outputs: OutputFolder,
    script: DeskScript | None,
) -> Hooks:
    return Hooks(
        on_ended=notifications.job_ended,
        checks=script.checks if script is not None else {},
        vary=varied,
        desk_workers=(WORKER, SIMULATOR),
        sends_notifications=True,
        comfyui_unreachable=workers.unreachable_at,
        is_worker_starting=workers.is_starting,
        stage_of=trying.stage_of,
        on_removed=outputs.remove,
        on_reused=outputs.keep_reused,
        more_fleets=[(trying.tries_stage, SIMULATOR)],
        live_definitions=workers.node_definitions,
        on_missing=workers.refresh_models,
    )

"""Load the user's own script, if `[desk.script]` configures one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.scripts.config import script_settings
from comfyrelay.desk.scripts.frozen_inputs import FrozenInputs
from comfyrelay.desk.scripts.workflow import CLASS_TYPE, SLUG, ScriptCheck, snapshot_in
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.accounts import User
from comfyrelay.services.engine import Engine
from comfyrelay.services.hooks import ValueCheck
from comfyrelay.system.atomic import remove_parts

if TYPE_CHECKING:
    from comfyrelay.desk.scripts.server import ScriptServer
    from comfyrelay.worker.comfyui.servers import JobServer


@dataclass(frozen=True, kw_only=True)
class DeskScript:
    settings: ScriptSettings
    inputs: FrozenInputs
    log_folder: Path
    umask: int | None

    @classmethod
    def load(
        cls,
        table: Mapping[str, Any] | None,
        *,
        data_dir: Path,
        input_folder: Path,
        umask_of: Callable[[Path], int | None],
    ) -> DeskScript | None:
        """Load the script from `table`, which is `[desk.script]` of the configuration file."""
        if table is None:
            return None
        settings = script_settings(table, data_dir=data_dir, input_folder=input_folder)
        log_folder = data_dir / "script" / "logs"
        # A killed desk may have been shortening a log.
        remove_parts(log_folder)
        return cls(
            settings=settings,
            inputs=FrozenInputs(data_dir / "script" / "snapshots", settings),
            log_folder=log_folder,
            umask=umask_of(settings.output_folder or settings.working_folder),
        )

    def worker_options(self, *, comfyui_url: str | None = None) -> dict[str, Any]:
        """Return the options of a worker that runs the script. Its ComfyUI has this URL, or else the URL of the
        worker."""
        from comfyrelay.desk.scripts.server import ScriptServer

        def wrap_server(comfy: JobServer) -> ScriptServer:
            return ScriptServer(
                comfy,
                self.settings,
                comfyui_url=comfyui_url or comfy.url,
                snapshots=self.inputs,
                log_folder=self.log_folder,
                umask=self.umask,
            )

        return {"wrap_server": wrap_server, "own_nodes": frozenset({CLASS_TYPE})}

    @property
    def checks(self) -> Mapping[WorkflowKind, ValueCheck]:
        return {WorkflowKind.SCRIPT: ScriptCheck(self.settings, self.inputs)}

    @asynccontextmanager
    async def removing_unused_inputs(self, engine: Engine, user: User) -> AsyncIterator[None]:
        """Remove frozen inputs of deleted jobs in the background."""
        task = asyncio.create_task(self._remove_unused(engine, user))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _remove_unused(self, engine: Engine, user: User) -> None:
        workflow = (await engine.catalogue.workflows.get(SLUG)).workflow
        found = [payload async for payload in engine.jobs.views.payloads(user.tenant_id, workflow_id=workflow.id)]
        used = {name for payload in found if (name := snapshot_in(payload.values)) is not None}
        await asyncio.to_thread(self.inputs.sweep, used)

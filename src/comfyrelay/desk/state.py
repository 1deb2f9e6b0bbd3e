"""The state of the desk that its routes use."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from comfyrelay.desk.batches.output_copies import OutputCopies
from comfyrelay.desk.notifications.notifier import without_secrets
from comfyrelay.desk.one_time_links import OneTimeLinks
from comfyrelay.desk.page_settings.live import LiveSettings
from comfyrelay.desk.password import Password
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.simulated_jobs import SimulationPolicy
from comfyrelay.http_client import without_login
from comfyrelay.protocol.desk import CheckResult, FailedNotification, NotificationEvent, SimulatedJobs


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskState:
    # Returns the URLs of the ComfyUI servers in use, which may contain passwords. They change when managed processes
    # start and stop.
    find_comfyui: Callable[[], list[str]]
    # Returns a reason for each ComfyUI that is unreachable.
    comfyui_unreachable: Callable[[], Sequence[str]]
    # Returns the URLs of the ComfyUI servers that keep job files.
    uncleaned_comfyui: Callable[[], Sequence[str]]
    # Whether running jobs delay a change of the settings of ComfyUI.
    is_finishing_jobs: Callable[[], bool]
    # Runs the checks of `comfyrelay doctor`.
    examine: Callable[[], AsyncIterator[CheckResult]]
    simulation: SimulationPolicy
    data_dir: Path
    live: LiveSettings
    outputs: OutputCopies
    not_sent: Collection[FailedNotification]
    # The script of `[desk.script]`, if configured.
    script: ScriptSettings | None
    links: OneTimeLinks

    @property
    def comfyui(self) -> list[str]:
        """The URLs of the ComfyUI servers in use, without passwords."""
        return [without_login(url) for url in self.find_comfyui()]

    @property
    def password(self) -> Password | None:
        return self.live.password

    @property
    def input_folder(self) -> Path:
        return self.live.input_folder

    @property
    def output_folder(self) -> Path:
        return self.live.output_folder

    @property
    def output_umask(self) -> int | None:
        """The umask for the output folder if it differs from the umask of the process."""
        return self.live.output_umask

    @property
    def notify_urls(self) -> list[str]:
        """URLs without secrets."""
        return [without_secrets(url) for url in self.live.desk.notify_urls]

    @property
    def notify_on(self) -> list[NotificationEvent]:
        return self.live.notify_on

    @property
    def simulated_jobs(self) -> SimulatedJobs:
        return self.simulation.mode

    @property
    def own_folders(self) -> list[Path]:
        """The folders from which run files may be served."""
        return [self.output_folder, *(self.script.own_folders if self.script is not None else ())]


# A coroutine, because FastAPI runs plain functions in a thread.
async def _desk_state(request: Request) -> DeskState:
    state: DeskState = request.app.state.desk
    return state


DeskStateOf = Annotated[DeskState, Depends(_desk_state)]

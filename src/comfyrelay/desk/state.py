"""State of the desk for its routes."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.desk.notifications.notifier import NotificationEvent
from comfyrelay.desk.one_time_links import OneTimeLinks
from comfyrelay.desk.password import Password
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.simulated_jobs import Trying
from comfyrelay.protocol.desk import CheckResult, FailedNotification, SimulatedJobs


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskState:
    # managed ComfyUIs come and go
    find_comfyui: Callable[[], list[str]]
    # unreachable ones
    comfyui_unreachable: Callable[[], Sequence[str]]
    # the checks of `doctor`
    examine: Callable[[], AsyncIterator[CheckResult]]
    trying: Trying
    data_dir: Path
    input_folder: Path
    output_folder: Path
    # umask for the output folder, if not that of the process
    output_umask: int | None
    # without secrets
    notify_urls: Sequence[str]
    notify_on: Sequence[NotificationEvent]
    not_sent: Collection[FailedNotification]
    # `[desk.script]`, if configured
    script: ScriptSettings | None
    links: OneTimeLinks
    # for sign-in from other machines, if they may connect
    password: Password | None

    @property
    def comfyui(self) -> list[str]:
        return self.find_comfyui()

    @property
    def simulated_jobs(self) -> SimulatedJobs:
        return self.trying.mode

    @property
    def own_folders(self) -> list[Path]:
        """Folders from which run files may be served."""
        return [self.output_folder, *(self.script.own_folders if self.script is not None else ())]

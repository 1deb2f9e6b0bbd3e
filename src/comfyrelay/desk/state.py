"""What the routes of a desk must know about it."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.desk.notifications.notifier import Occasion
from comfyrelay.desk.one_time_links import OneTimeLinks
from comfyrelay.desk.password import Password
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.simulated_jobs import Trying
from comfyrelay.protocol.desk import CheckResult, NotSent, TryingOut


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskState:
    # those that the desk starts itself come and go
    find_comfyui: Callable[[], list[str]]
    # of those, the ones that do not answer now
    comfyui_away: Callable[[], Sequence[str]]
    # what `doctor` would say of it
    examine: Callable[[], AsyncIterator[CheckResult]]
    trying: Trying
    data_dir: Path
    input_folder: Path
    output_folder: Path
    # who may read what is put there, if not as this process says
    output_umask: int | None
    # without their secrets
    notify_urls: Sequence[str]
    notify_on: Sequence[Occasion]
    not_sent: Collection[NotSent]
    # `[desk.script]`, where there is one
    script: ScriptSettings | None
    links: OneTimeLinks
    # opens the page, where other machines can reach it
    password: Password | None

    @property
    def comfyui(self) -> list[str]:
        return self.find_comfyui()

    @property
    def trying_out(self) -> TryingOut:
        return self.trying.mode

    @property
    def own_folders(self) -> list[Path]:
        """Where what runs have made may be read from."""
        return [self.output_folder, *(self.script.own_folders if self.script is not None else ())]

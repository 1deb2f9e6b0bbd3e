"""What the routes of a desk must know about it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.desk.links import Links
from comfyrelay.desk.notifications.notifier import Occasion
from comfyrelay.desk.notifications.sending import NotSent
from comfyrelay.desk.password import Password
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.trying_out import Trying
from comfyrelay.protocol.desk import TryingOut


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskState:
    comfyui: list[str]
    # of those, the ones that do not answer now
    comfyui_away: Callable[[], Sequence[str]]
    trying: Trying
    data_dir: Path
    input_folder: Path
    output_folder: Path
    # without their secrets
    notify_urls: Sequence[str]
    notify_on: Sequence[Occasion]
    not_sent: Collection[NotSent]
    # `[desk.script]`, where there is one
    script: ScriptSettings | None
    links: Links
    # opens the page, where other machines can reach it
    password: Password | None

    @property
    def trying_out(self) -> TryingOut:
        return self.trying.mode

    @property
    def own_folders(self) -> list[Path]:
        """Where what runs have made may be read from."""
        return [self.output_folder, *(self.script.own_folders if self.script is not None else ())]
